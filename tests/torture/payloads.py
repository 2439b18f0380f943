"""Hostile strings in every text that a report shows: they must stay texts, in the file and in a browser.

For each payload a run is written in which every text is that payload, and a report of it. The page must have the very
elements of a harmless run's page, and hand the payload over unchanged; a Chromium that opens it must run nothing of it.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.report.page_data import Page, data_of
from tests.report.runs import write_run
from tests.torture.tally import Tally, shortened
from turnwise.report import write_report
from turnwise.runs import RunFolder

_MARK = "window.owned=1"
PAYLOADS = (
    f"<script>{_MARK}</script>",
    f"</script><script>{_MARK}</script>",
    f"</SCRIPT ><sCrIpT>{_MARK}</sCrIpT>",
    f"<!--<script>{_MARK}</script>-->",
    f"<!--<script></script><script>{_MARK}</script>",
    f"--><script>{_MARK}</script><!--",
    f"]]><script>{_MARK}</script>",
    f"<img src=x onerror={_MARK}>",
    f'"><img src=x onerror="{_MARK}">',
    f"'><img src=x onerror='{_MARK}'>",
    f"<svg onload={_MARK}>",
    f"<svg><script>{_MARK}</script></svg>",
    f"<svg><animate onbegin={_MARK} attributeName=x dur=1s>",
    f"<math><mtext><style><img src=x onerror={_MARK}></style></mtext></math>",
    f"</title><script>{_MARK}</script>",
    f"</style><script>{_MARK}</script>",
    f"</textarea><script>{_MARK}</script>",
    f"<iframe srcdoc='<script>parent.{_MARK}</script>'></iframe>",
    f"<iframe src='javascript:parent.{_MARK}'></iframe>",
    f"<a href='javascript:{_MARK}' autofocus onfocus={_MARK}>x</a>",
    f"<body onload={_MARK}>",
    f"<details open ontoggle={_MARK}><summary>x</summary></details>",
    f"<video><source onerror={_MARK}></video>",
    f"<input autofocus onfocus={_MARK}>",
    f"<form action='javascript:{_MARK}'><button>x</button></form>",
    "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<base href='https://example.invalid/'>",
    "<link rel=stylesheet href='https://example.invalid/x.css'>",
    "<style>*{display:none}</style>",
    "<object data='javascript:alert(1)'></object><embed src='javascript:alert(1)'>",
    f"${{{_MARK}}} {{{{{_MARK}}}}} #{{{_MARK}}} `+{_MARK}+`",
    f"';{_MARK};//\";{_MARK};//",
    f"\\u003cscript\\u003e{_MARK}\\u003c/script\\u003e",
    f"&lt;script&gt;{_MARK}&lt;/script&gt;",
    f"&#60;script&#62;{_MARK}&#60;/script&#62;",
    f"+ADw-script+AD4-{_MARK}+ADw-/script+AD4-",
    f"\u2028\u2029\u202e<script>{_MARK}</script>\u2066",
    f"＜script＞{_MARK}＜/script＞",
    f"<scr\0ipt>{_MARK}</scr\0ipt>",
    f"<a href='data:text/html,<script>{_MARK}</script>'>x</a>",
    "__proto__",
    "constructor",
    "<![CDATA[<b>bold</b>]]>",
    "<template><b>bold</b></template><b>bold</b>" * 50,
)
COUNT = len(PAYLOADS)
_ELEMENTS = "script, style, meta, link, base, img, iframe, object, embed, form, b, math, video, input, body, template"
_COUNT_ELEMENTS = """selector => {
    const found = [...document.querySelectorAll(selector)].map(node => node.tagName.toLowerCase());
    const handled = [...document.querySelectorAll('*')].filter(node => [...node.attributes].some(
        each => each.name.startsWith('on') || /^\\s*(javascript|data):/i.test(each.value)));
    return [...found, ...handled.map(node => 'handler on ' + node.tagName)];
}"""

Write = Callable[..., Path]


def campaign(*, count: int = COUNT, seed: int = 0, write: Write = write_report, browser: bool = True) -> Tally:
    """Write `count` reports, each full of one payload; all payloads come before any comes again."""
    tally, rng = Tally(), random.Random(seed)
    chosen = [payload for _ in range(-(-count // COUNT)) for payload in rng.sample(PAYLOADS, COUNT)][:count]
    with tempfile.TemporaryDirectory(prefix="turnwise-payloads-") as name, _chromium(browser) as open_page:
        folder = Path(name)
        plain = write_hostile(folder / "plain", "harmless", write)
        elements = open_page(plain) if open_page else None
        for number, payload in enumerate(chosen):
            page = write_hostile(folder / str(number), payload, write)
            wrong = _fault(page, plain, payload) or (open_page and _seen(open_page(page), elements))
            if wrong:
                tally.fail(f"{shortened(payload)}: {wrong}")
            else:
                tally.note("inert in the browser" if open_page else "inert in the file")
            shutil.rmtree(folder / str(number))
    return tally


def write_hostile(folder: Path, payload: str, write: Write = write_report) -> Path:
    """The report of a run in which every text is the payload: names, settings, metrics, events, episodes."""
    name = "run " + payload.replace("/", "∕").replace("\0", "")[:60]
    words: dict[str, str] = dict.fromkeys(["observation", "action", "task", "id"], payload)
    settings = {"note": payload, payload: payload, "nested": [{payload: payload}]}
    path = write_run(folder / name, steps=12, recorded=(1, 12), episodes=4, words=words, settings=settings)
    run = RunFolder.open(path)
    run.metrics.append({"step": 13, payload: 1.0, "rollout/success": 0.5})
    run.turns.append({"step": 13, "turn": 0, payload: 1.0})
    event = dict.fromkeys(("kind", "signal", "action", "text", "change", "time", "mode"), payload)
    run.events.append({"step": 3, **event, "kind": "guard", payload: payload, "evidence": {payload: payload}})
    run.events.append({"step": 4, **event})
    (path / "meta.json").write_text(json.dumps({**run.meta, "device": payload, payload: payload}))
    return write([path], folder / "report.html", comparison=_comparison(payload))


def _comparison(payload: str) -> dict[str, Any]:
    table = {"title": payload, "note": payload, "columns": [payload], "rows": [[payload]]}
    line = {"name": payload, "x": [1.0, 2.0], "y": [0.4, 0.7], "low": [0.3, 0.6], "high": [0.5, 0.8]}
    figure = {"title": payload, "note": payload, "x": payload, "lines": [line]}
    shared = {"notes": [payload], "collapse_definition": payload, "baseline": payload}
    return {"sentences": [payload], "tables": [table], "figures": [figure], **shared}


def _fault(page: Path, plain: Path, payload: str) -> str:
    """What the payload did to the file."""
    text, harmless = (Page(each.read_text(encoding="utf-8")) for each in (page, plain))
    if [tag for tag, _ in text.tags] != [tag for tag, _ in harmless.tags]:
        return f"it added {Counter(tag for tag, _ in text.tags) - Counter(tag for tag, _ in harmless.tags)}"
    if handlers := [name for _, tag in text.tags for name in tag if name.startswith("on")]:
        return f"it added the handlers {handlers}"
    (run,) = data_of(page)["runs"]
    arrived = (run["config"]["train.note"], run["events"][-1]["text"], data_of(page)["comparison"]["sentences"][0])
    return "" if set(arrived) == {payload} else "it did not arrive as it was written"


def _seen(found: list[str], elements: list[str] | None) -> str:
    """What a browser found in the page beyond what it finds in a harmless one."""
    more = Counter(found) - Counter(elements)
    return f"in the browser: {dict(more)}" if more else ""


def _dismiss(dialog: Any, heard: list[str]) -> None:
    heard.append("a dialog")
    dialog.dismiss()


@contextmanager
def _chromium(wanted: bool) -> Iterator[Callable[[Path], list[str]] | None]:
    """Opens a page, shows all of it, and lists its elements and whatever ran or complained; None without a browser."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not wanted or program is None or find_spec("playwright") is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])

        def look(report: Path) -> list[str]:
            page, heard = browser.new_page(), list[str]()
            page.on("dialog", lambda dialog: _dismiss(dialog, heard))
            page.on("console", lambda message: heard.append(message.text))
            page.on("pageerror", lambda error: heard.append(str(error)))
            page.on("request", lambda sent: None if sent.url == report.as_uri() else heard.append(sent.url))
            page.goto(report.as_uri())
            page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
            page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true })")
            page.evaluate("document.querySelectorAll('.episode-list button').forEach(node => node.click())")
            ran = ["its script ran"] if page.evaluate("'owned' in window") else []
            found = page.evaluate(_COUNT_ELEMENTS, _ELEMENTS)
            page.close()
            return [*heard, *ran, *found]

        yield look
        browser.close()
