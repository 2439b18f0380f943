"""The page is one file, trusts no text, and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.page_data import Page, data_of
from tests.report.runs import write_run
from turnwise.report import Sample, write_report
from turnwise.report.page import escape_json

ATTACK = "</script><img src=x onerror=document.title='owned'><!-- \u2028\u2029 & <script>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about a run in which every text is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    words: dict[str, str] = dict.fromkeys(["observation", "action", "task", "id"], ATTACK)
    run = write_run(folder / "run<img src=x onerror=1>", recorded=(1, 40), words=words, settings={"note": ATTACK})
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "kind": "guard", "signal": ATTACK, "text": ATTACK, ATTACK: ATTACK}) + "\n")
    comparison = {"sentences": [ATTACK], "tables": [{"title": ATTACK, "columns": [ATTACK], "rows": [[ATTACK]]}]}
    return write_report([run], folder / "report.html", comparison=comparison)


def test_hostile_texts_add_no_tag_to_the_page(hostile: Path, tmp_path: Path) -> None:
    plain = write_report([write_run(tmp_path / "plain")], tmp_path / "plain.html")
    tags = [[tag for tag, _ in Page(page.read_text(encoding="utf-8")).tags] for page in (hostile, plain)]
    assert tags[0] == tags[1]


def test_hostile_texts_arrive_unchanged(hostile: Path) -> None:
    data = data_of(hostile)
    (run,) = data["runs"]
    assert run["name"] == "run<img src=x onerror=1>"
    assert run["config"]["train.note"] == ATTACK
    assert run["events"][-1]["text"] == ATTACK
    assert run["events"][-1]["rest"] == {ATTACK: ATTACK}
    assert run["episodes"][0]["id"].startswith(ATTACK)
    assert json.loads(run["episodes"][0]["task"])["question"] == ATTACK
    assert data["comparison"]["tables"][0]["rows"] == [[ATTACK]]


def test_the_policy_of_the_page_allows_its_own_script_and_style_alone(hostile: Path) -> None:
    page = Page(hostile.read_text(encoding="utf-8"))
    policy = next(tag["content"] for _, tag in page.tags if tag.get("http-equiv") == "Content-Security-Policy")
    own = [page.texts_of("script")[1], *page.texts_of("style")]
    script, style = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in own)
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_the_page_names_no_address_and_builds_no_markup_from_text(hostile: Path) -> None:
    page = Page(hostile.read_text(encoding="utf-8"))
    assert not [
        tag for _, tag in page.tags if "src" in tag or "style" in tag or any(name.startswith("on") for name in tag)
    ]
    assert {tag.get("href") for name, tag in page.tags if name in ("a", "link")} == {"#main"}
    script = page.texts_of("script")[1]
    assert re.findall(r"https?://[^\"]*", script) == ["http://www.w3.org/2000/svg"]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|fetch\(|XMLHttp", script
    )


@given(st.text(), st.text(alphabet="<>&/!-\u2028\u2029\ud800\"'\\ script"))
def test_escaped_json_reads_back_and_cannot_leave_its_element(first: str, second: str) -> None:
    text = escape_json({first: second})
    assert json.loads(text) == {first: second}
    assert not set(text) & set("<>&\u2028\u2029")
    text.encode("utf-8")


def test_numbers_that_are_not_finite_reach_the_page_as_null(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "rollout/success": NaN, "loss/entropy": null, "train/scale": Infinity}\n')
    comparison = {"tables": [{"title": "t", "columns": ["a"], "rows": [[math.nan]]}]}
    data = data_of(write_report([run], tmp_path / "report.html", comparison=comparison))
    columns = data["runs"][0]["curves"]["columns"]
    assert columns["rollout/success"][-1] is None
    assert columns["train/scale"][-1] is None
    assert data["comparison"]["tables"][0]["rows"] == [[None]]


def test_a_report_of_200_steps_with_large_episodes_stays_under_15_megabytes(tmp_path: Path) -> None:
    words = {"observation": "a long observation with many different words 0123456789 " * 200}
    run = write_run(tmp_path / "run", steps=200, recorded=(1, 100, 200), episodes=16, words=words)
    report = write_report([run], tmp_path / "report.html", sample=Sample(steps=3, episodes=40))
    (shown,) = data_of(report)["runs"]
    assert report.stat().st_size < 15e6
    assert len(shown["curves"]["step"]) == 200
    assert len(shown["episodes"]) > 10
    assert shown["episodes"][0]["turns"][0]["left_out"][0] > 0


def test_writing_a_report_imports_no_torch(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=12, recorded=(12,))
    code = (
        "import sys; from pathlib import Path; from turnwise.report import write_report; "
        f"write_report([Path({str(run)!r})], Path({str(tmp_path / 'report.html')!r})); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_report_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run was given"):
        write_report([], tmp_path / "report.html")
