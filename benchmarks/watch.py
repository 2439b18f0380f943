"""How fast the live page of a long run opens, in how much memory, and what a step costs its server.

python -m benchmarks.watch --steps 10000
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.report.runs import write_long_run
from turnwise.watch import WatchServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tries", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = write_long_run(Path(folder) / "long", steps=chosen.steps)
        print(json.dumps(measure(run, tries=chosen.tries), indent=2))


def megabytes(browser: Browser) -> float:
    """Memory of the processes that show pages, without what they share with others."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    statuses = [Path(f"/proc/{each['id']}/status").read_text() for each in processes if each["type"] == "renderer"]
    return sum(int(status.partition("RssAnon:")[2].split()[0]) / 1000 for status in statuses)


def measure(run: Path, *, tries: int) -> dict[str, float]:
    """Seconds until everything is drawn (the fastest of several tries), the page's memory, and the server's work."""
    with WatchServer([run]) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened: list[float] = []
        memory: list[float] = []
        for _ in range(tries):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            started = time.monotonic()
            page.goto(server.address)
            page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
            opened.append(time.monotonic() - started)
            page.wait_for_timeout(2000)  # until the episodes have come and all is drawn again
            memory.append(megabytes(browser))
            page.close()
        browser.close()
        spent = time.process_time()
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 10**9, "rollout/success": 0.5}) + "\n")
        server.view.look()
        return {
            "opened_seconds": round(min(opened), 2),
            "page_megabytes": round(max(memory), 1),
            "server_seconds_for_a_step": round(time.process_time() - spent, 3),
        }


if __name__ == "__main__":
    main()
