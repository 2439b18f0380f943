"""How fast the live page of a long run opens, in how much memory, and what another step costs page and server.

python -m benchmarks.watch --steps 10000
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.report.runs import record, write_long_run
from tests.watch.browsers import page_megabytes
from turnwise.watch import WatchServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_AT_ONCE = 10
"""Steps that are appended between two looks at the page."""


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--more", type=int, default=300, help="Steps that follow while the page is open.")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = write_long_run(Path(folder) / "long", steps=chosen.steps)
        record(run, chosen.steps, Random(0), episodes=12, words={})
        print(json.dumps(measure(run, steps=chosen.steps, tries=chosen.tries, more=chosen.more), indent=2))


def measure(run: Path, *, steps: int, tries: int, more: int) -> dict[str, Any]:
    """Seconds until everything is drawn, the page's memory then and after more steps, and the server's work."""
    with WatchServer([run]) as server, sync_playwright() as driver:
        seconds: list[float] = []
        memory: list[float] = []
        later = float("nan")
        for attempt in range(tries):
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page, took = _open(browser, server.address)
            seconds.append(took)
            memory.append(page_megabytes(browser) or float("nan"))
            if attempt == tries - 1:
                _append(page, run, first=steps + 1, count=more)
                later = page_megabytes(browser) or float("nan")
            browser.close()
        spent = time.process_time()
        _write(run, [steps + more + 1])
        server.view.look()
        return {
            "opened_seconds": _spread(seconds),
            "page_megabytes": _spread(memory),
            f"page_megabytes_after_{more}_steps": round(later, 1),
            "server_seconds_for_a_step": round(time.process_time() - spent, 3),
        }


def _open(browser: Browser, address: str) -> tuple[Page, float]:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    started = time.monotonic()
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    took = time.monotonic() - started
    page.wait_for_selector(".episode-list", timeout=60_000)
    page.wait_for_timeout(2000)  # until all is drawn again
    return page, took


def _append(page: Page, run: Path, *, first: int, count: int) -> None:
    """Steps that follow while somebody looks: each of some at once is waited for."""
    for start in range(first, first + count, _AT_ONCE):
        last = min(start + _AT_ONCE, first + count) - 1
        _write(run, range(start, last + 1))
        page.wait_for_selector(f"#head progress[aria-label^='step {last} ']", timeout=60_000)


def _write(run: Path, steps: Sequence[int]) -> None:
    """Rows like those of the first step."""
    for name in ("metrics", "turns"):
        with (run / f"{name}.jsonl").open() as file:
            row = json.loads(file.readline())
        with (run / f"{name}.jsonl").open("a") as file:
            file.write("".join(json.dumps({**row, "step": step}) + "\n" for step in steps))


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(median(values), 2), "least": round(min(values), 2), "most": round(max(values), 2)}


if __name__ == "__main__":
    main()
