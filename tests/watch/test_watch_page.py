# ruff: noqa: F401, F811 (the browser is a fixture, imported)
"""The live page in a real browser: it moves with the run, every control works, and nothing breaks it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.report.runs import record, write_evaluation, write_long_run, write_run
from tests.report.test_browser import ATTACK, CHROMIUM, browser
from tests.watch.browsers import page_megabytes
from tests.watch.test_live_view import append
from turnwise.cli import watching
from turnwise.evaluate.comparison import compare_folders
from turnwise.watch import WatchServer, live_view

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install turnwise[dev]")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")
DEADLINE = 60_000
"""Milliseconds for what should take one or two seconds: machines may be busy."""
CONTRASTS = Path(__file__).parents[1] / "report" / "contrasts.js"


@pytest.fixture(autouse=True)
def scans_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "SCAN_SECONDS", 0.5)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run that is going on, with a finished one beside it."""
    folder = tmp_path / "runs"
    run = write_run(folder / "geo", algorithm="ppo", steps=60, falls_at=40, recorded=(1, 30, 60), episodes=4)
    (run / "events.jsonl").write_text("")
    write_run(folder / "old", algorithm="st-ppo", steps=20, recorded=(20,), episodes=4)
    return folder


@pytest.fixture
def server(runs: Path) -> Iterator[WatchServer]:
    with WatchServer([runs]) as started:
        yield started


def opened(browser: Browser, server: WatchServer, link: str = "", **options: Any) -> tuple[Page, list[str]]:
    """The page once it is drawn, and everything that the browser complained about (it fills while the test runs)."""
    page = browser.new_page(viewport={"width": 1400, "height": 900}, **options)
    page.set_default_timeout(DEADLINE)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda ask: None if ask.url.startswith(server.address) else complaints.append(ask.url))
    page.goto(f"{server.address}/{link}")
    page.wait_for_selector("html[data-ready=yes]")
    return page, complaints


def show_alone(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def wait_until(page: Page, script: str) -> None:
    """Wait in this process: the page's policy forbids what playwright would run in it."""
    deadline = monotonic() + DEADLINE / 1000
    while not page.evaluate(script):
        assert monotonic() < deadline, script
        page.wait_for_timeout(100)


def test_everything_moves_while_the_run_goes_on(browser: Browser, server: WatchServer, runs: Path) -> None:
    page, complaints = opened(browser, server)
    assert page.locator("#head tbody tr").count() == 2
    show_alone(page, "geo")
    assert page.locator("h1").inner_text() == "geo"
    assert page.locator("#curves figure").count() == 15
    page.locator("#settings summary").click()
    last = json.loads((runs / "geo/metrics.jsonl").read_text().splitlines()[-1])
    append(runs / "geo/metrics.jsonl", *({**last, "step": step, "rollout/success": 0.25} for step in (61, 62)))
    append(runs / "geo/turns.jsonl", {"step": 62, "turn": 0, "turn/entropy": 0.4})
    append(
        runs / "geo/events.jsonl", {"step": 62, "kind": "guard", "signal": "kl", "action": "shrink", "text": "too far"}
    )
    record(runs / "geo", 62, Random(0), episodes=4, words={})
    wait_until(page, "document.querySelector('#head progress').getAttribute('aria-label') === 'step 62 of 60'")
    page.locator("#events").scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('#events').innerText.includes('too far')")
    page.locator("#curves").scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('#curves svg').getAttribute('aria-label').includes('at step 62')")
    page.locator("#microscope").scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('#microscope .step-labels').innerText.endsWith('62')")
    page.locator("#episodes").scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('.episode-list')?.innerText.includes('Step 62')")
    assert page.locator("#settings details").get_attribute("open") is not None  # what was opened stays open
    assert "Guard incidents\n1" in page.locator(".tiles").inner_text()
    assert complaints == []
    page.close()


def test_a_figure_that_is_pointed_at_waits(browser: Browser, server: WatchServer, runs: Path) -> None:
    page, complaints = opened(browser, server)
    first = page.locator("#curves figure").nth(0)
    first.hover(position={"x": 150, "y": 120})
    page.wait_for_selector("#curves .tip:visible")
    append(runs / "geo/metrics.jsonl", {"step": 61, "rollout/success": 0.5, "rollout/reward": 0.5})
    wait_until(page, "document.querySelectorAll('#curves svg')[1].getAttribute('aria-label').includes('at step 61')")
    assert page.locator("#curves .tip:visible").count() == 1
    assert "at step 61" not in (first.locator("svg").get_attribute("aria-label") or "")
    page.mouse.move(5, 5)
    wait_until(page, "document.querySelector('#curves svg').getAttribute('aria-label').includes('at step 61')")
    assert complaints == []
    page.close()


def test_a_link_shows_what_it_was_copied_from(browser: Browser, server: WatchServer) -> None:
    page, complaints = opened(browser, server)
    show_alone(page, "geo")
    page.get_by_label("newest").uncheck()
    page.get_by_label("Earlier step").click()
    page.locator(".episode-list button").nth(2).click()
    page.locator(".colouring select").select_option("ratio")
    page.locator("nav a", has_text="Episodes").click()
    link = page.evaluate("location.hash")
    assert link.startswith("#episodes?")
    other, _ = opened(browser, server, link)
    other.wait_for_selector(".episode-list button")
    assert other.locator("h1").inner_text() == "geo"
    assert other.locator(".episode-list button[aria-pressed=true] b").inner_text() == "Step 30"
    assert other.locator(".episode-list button").nth(2).get_attribute("aria-pressed") == "true"
    assert other.locator(".colouring select").input_value() == "ratio"
    wait_until(other, "document.querySelector('#episodes').getBoundingClientRect().top < innerHeight / 2")
    other.close()
    page.get_by_role("button", name="Show all 2 runs").click()
    assert page.locator("#head tbody input:checked").count() == 2
    page.locator("#head tbody input").first.uncheck()
    assert page.locator("h1").inner_text() == "old"
    assert complaints == []
    page.close()


def test_keys_lead_everywhere(browser: Browser, server: WatchServer, runs: Path) -> None:
    page, complaints = opened(browser, server)
    page.keyboard.press("?")
    assert "pause or go on" in page.locator("#keys").inner_text()
    page.keyboard.press("]")
    assert page.locator("h1").inner_text() == "geo"
    page.keyboard.press("]")
    assert page.locator("h1").inner_text() == "old"
    page.keyboard.press("0")
    assert page.locator("h1").inner_text() == "geo, old"
    page.keyboard.press("n")
    wait_until(page, "location.hash.startsWith('#episodes')")
    page.keyboard.press("p")
    assert page.locator("#connection").inner_text() == "paused"
    append(runs / "geo/metrics.jsonl", {"step": 61, "rollout/success": 0.5})
    page.wait_for_timeout(2500)
    assert "61" not in (page.locator("#head progress").first.get_attribute("aria-label") or "")
    page.keyboard.press("p")
    wait_until(page, "document.querySelector('#head progress').getAttribute('aria-label').includes('61')")
    page.locator("#curves figure svg").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    wait_until(page, "location.hash.includes('step=60')")
    assert complaints == []
    page.close()


def test_the_page_outlives_its_server_and_every_mishap_of_a_folder(browser: Browser, runs: Path) -> None:
    with WatchServer([runs]) as server:
        port = int(server.address.rpartition(":")[2])
        page, _ = opened(browser, server)
        wait_until(page, "document.querySelector('#connection').innerText === 'live'")
    wait_until(page, "document.querySelector('#connection').innerText.startsWith('not connected')")
    os.truncate(runs / "geo/metrics.jsonl", (runs / "geo/metrics.jsonl").stat().st_size // 2)
    label = "document.querySelector('#head progress')?.getAttribute('aria-label')"
    before = page.evaluate(label)
    with WatchServer([runs], port=port):
        wait_until(page, "document.querySelector('#connection').innerText === 'live'")
        wait_until(page, f"{label} !== {json.dumps(before)}")
        shutil.rmtree(runs / "geo")
        wait_until(page, "document.querySelector('h1').innerText === 'old'")
        shutil.rmtree(runs)
        wait_until(page, "document.querySelector('h1').innerText === 'No run yet'")
        write_run(runs / "again", steps=5)
        wait_until(page, "document.querySelector('h1').innerText === 'again'")
        assert page.locator("#curves figure").count() == 15
    page.close()


def test_the_page_tells_a_command_that_has_ended_from_a_lost_connection(
    browser: Browser, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "document.querySelector('#connection').innerText"
    with watching.watched(runs, True):
        address = capsys.readouterr().out.split()[-1]
        page = browser.new_page()
        page.goto(address, timeout=DEADLINE)
        page.wait_for_selector("html[data-ready=yes]", timeout=DEADLINE)
        wait_until(page, f"{told} === 'live'")
        append(runs / "geo/metrics.jsonl", {"step": 61, "rollout/success": 0.5})
    wait_until(page, f"{told} === 'the command has ended; this is its last state'")
    wait_until(page, "document.querySelector('#head progress').getAttribute('aria-label').includes('61')")
    page.wait_for_timeout(3000)  # it has tried to connect again
    assert page.evaluate(told) == "the command has ended; this is its last state"
    with WatchServer([runs], port=int(address.rpartition(":")[2])):
        wait_until(page, f"{told} === 'live'")
    wait_until(page, f"{told}.startsWith('not connected')")
    page.close()


def test_more_tabs_than_a_browser_allows_connections_share_one_stream(
    browser: Browser, server: WatchServer, runs: Path
) -> None:
    context = browser.new_context()
    tabs = [context.new_page() for _ in range(50)]
    for tab in tabs:
        tab.goto(server.address, wait_until="commit", timeout=DEADLINE)
    for tab in tabs:
        tab.wait_for_selector("html[data-ready=yes]", timeout=DEADLINE)
    append(runs / "geo/metrics.jsonl", {"step": 61, "rollout/success": 0.5})
    for tab in tabs:
        wait_until(tab, "document.querySelector('#head progress').getAttribute('aria-label').includes('61')")
    assert server.streams == 1
    context.close()


def test_hostile_texts_are_shown_as_texts(browser: Browser, tmp_path: Path) -> None:
    words: dict[str, str] = dict.fromkeys(["observation", "action", "task", "id", "error"], ATTACK)
    folder = tmp_path / "runs"
    run = write_run(
        folder / "run<img src=x>", steps=20, recorded=(20,), episodes=2, words=words, settings={"note": ATTACK}
    )
    append(run / "events.jsonl", {"step": 3, "kind": "guard", "signal": ATTACK, "text": ATTACK})
    append(run / "events.jsonl", {"step": 21, "kind": "failed", "text": f"failed with {ATTACK}", ATTACK: ATTACK})
    append(run / "metrics.jsonl", {"step": 21, "__proto__": 1.0, "constructor": 2.0, ATTACK: 3.0})
    append(run / "metrics.jsonl", {"step": 22, f"rollout/reward_{ATTACK}": 3.0})
    write_evaluation(run / "evals/after.json", ATTACK, solved=2)
    (run / "evals/broken.json").write_text(json.dumps({"kind": ATTACK}))
    (folder / "comparison.json").write_text(
        json.dumps({"sentences": [ATTACK], "tables": [{"title": ATTACK, "columns": [ATTACK], "rows": [[ATTACK]]}]})
    )
    with WatchServer([folder]) as server:
        page, complaints = opened(browser, server)
        page.locator("#settings summary").click()
        page.get_by_text("All other metrics").click()
        page.wait_for_selector(".episode")
        assert page.title() == "run<img src=x> · Turnwise watch"
        assert page.locator("img, main b:text-is('bold')").count() == 0
        for place in ("#events", "#settings", ".episode", "#curves details", "#comparison", "#evaluations"):
            assert ATTACK in page.locator(place).inner_text(), place
        page.locator("#events summary").click()
        assert f"failed with {ATTACK}" in page.locator("#events").inner_text()
        assert f"Error\n{ATTACK}" in page.locator(".episode .pairs").inner_text()
        assert f"{ATTACK}\n\nWhat this part adds" in page.locator("#curves").inner_text()
        assert "__proto__" in page.locator("#curves details").inner_text()
        assert complaints == []
        page.close()


def test_a_hostile_problem_of_a_folder_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    (run / "config.yaml").write_text(f"name: !{quote(ATTACK, safe='')} x\n")  # the reader's error repeats it
    with WatchServer([run]) as server:
        page, complaints = opened(browser, server)
        assert f"constructor for the tag {f'!{ATTACK}'!r}" in page.locator(".problem").inner_text()
        assert page.locator("img").count() == 0
        assert complaints == []
        page.close()


def test_a_study_of_two_algorithms_fills_its_table_and_concludes(browser: Browser, tmp_path: Path) -> None:
    study = tmp_path / "runs/compare"
    for seed in range(2):
        write_run(study / f"ppo/seed-{seed}", algorithm="ppo", seed=seed, steps=20)
    write_run(tmp_path / "runs/other", algorithm="grpo", steps=10)
    with WatchServer([tmp_path / "runs"]) as server:
        page, complaints = opened(browser, server)
        table = page.get_by_role("region", name="Groups of runs")
        assert table.locator("tbody tr").count() == 2
        folders = {"ppo": [study / f"ppo/seed-{seed}" for seed in range(2)], "st-ppo": list[Path]()}
        for seed in range(2):
            folders["st-ppo"].append(write_run(study / f"st-ppo/seed-{seed}", algorithm="st-ppo", seed=seed, steps=20))
        wait_until(page, "document.querySelectorAll('#head table')[1].innerText.includes('st-ppo')")
        assert table.locator("tbody tr").count() == 3
        assert page.locator("#comparison").count() == 0
        compare_folders(folders).save(study / "comparison.json")
        wait_until(page, "document.querySelector('#comparison') !== null")
        assert page.locator("#comparison .lead").inner_text() == "The study in compare."
        assert page.locator("nav a").first.inner_text() == "Comparison"
        reached = page.get_by_role("region", name="What each algorithm reached").locator("tbody tr")
        assert [row.split("\t")[0] for row in reached.all_inner_texts()] == ["ppo", "st-ppo"]
        assert page.get_by_role("region", name="Against ppo").locator("tbody tr").count() == 1
        assert page.locator("#comparison figure").count() == 1
        show_alone(page, "other")  # which has no part in it
        assert page.locator("#comparison").count() == 0
        show_alone(page, "compare/ppo/seed-0")
        assert page.locator("#comparison").count() == 1
        shutil.copytree(study, tmp_path / "runs/second", ignore=shutil.ignore_patterns("*seed*"))
        page.keyboard.press("0")
        wait_until(page, "document.querySelectorAll('#comparison .study').length === 2")
        assert page.locator("#comparison > .study > h3").all_inner_texts() == [
            "compare: comparison",
            "second: comparison",
        ]
        for run in list((tmp_path / "runs").glob("**/meta.json")):
            shutil.rmtree(run.parent)
        wait_until(page, "document.querySelector('h1').innerText === 'No run'")
        assert [section.get_attribute("id") for section in page.locator("main > section").all()] == ["comparison"]
        assert complaints == []
        page.close()


def test_parts_of_the_reward_and_saved_evaluations_have_their_chapters(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "geo", steps=20, parts=("exact", "style"))
    write_evaluation(run / "evals/before.json", "before", solved=2)
    with WatchServer([run]) as server:
        page, complaints = opened(browser, server)
        assert page.locator("#curves h3").all_inner_texts()[:2] == ["Outcome", "Parts of the reward"]
        figures = page.locator("#curves h3:text-is('Parts of the reward') + .grid figure")
        assert figures.locator("h4").all_inner_texts() == ["exact", "style"]
        assert figures.first.locator("path.mark").count() == 2  # diamonds: evaluations
        write_evaluation(run / "evals/after.json", "after", solved=7)
        page.locator("#evaluations").scroll_into_view_if_needed()
        wait_until(page, "document.querySelector('#evaluations').innerText.includes('Difference from')")
        assert complaints == []
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_its_words_have_contrast(browser: Browser, server: WatchServer, scheme: Any) -> None:
    page, _ = opened(browser, server, color_scheme=scheme)
    contrasts = page.evaluate(CONTRASTS.read_text())
    assert len(contrasts) > 100
    assert [found for found in contrasts if found[0] < 4.5] == []
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 380
    show_alone(page, "geo")
    assert page.evaluate("document.documentElement.scrollWidth") == 380
    page.close()


def test_a_run_of_ten_thousand_steps_opens_in_little_memory(browser: Browser, tmp_path: Path) -> None:
    run = write_long_run(tmp_path / "long", steps=10_000)
    record(run, 10_000, Random(0), episodes=4, words={})
    alone = browser.browser_type.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    with WatchServer([run]) as server:
        page, complaints = opened(alone, server)
        page.wait_for_selector(".episode-list")
        assert "10,000 of 10,000" in page.locator(".tiles").inner_text()
        opening = measured(page)
        assert opening["JSHeapUsedSize"] < 50e6
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        for step in range(10_001, 10_201, 20):
            append(run / "metrics.jsonl", *({**last, "step": step + more} for more in range(20)))
            wait_until(page, f"document.querySelector('#head progress').ariaLabel.startsWith('step {step + 19} ')")
        assert measured(page)["Nodes"] < 1.5 * opening["Nodes"]  # what was drawn again is not kept
        used = page_megabytes(alone)
        assert used is None or used < 150  # None: only Linux tells
        assert complaints == []
    alone.close()


def measured(page: Page) -> dict[str, float]:
    """The browser's own counts of a page, without what it has only not thrown away yet."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
