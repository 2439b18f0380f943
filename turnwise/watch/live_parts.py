"""Parts of the page with tags: a browser that says which tags it has is sent what it lacks, and nothing else.

A tag is made of content alone, never of a server's memory. So a browser that comes back after a broken connection, to a
server that was restarted, or to a run that was rewound meanwhile, gets exactly the difference.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.report.columns import Columns
from turnwise.runs.tail import JournalTail

NOTHING = "-"
"""The tag of a browser that has nothing of a part."""
Tags = dict[str, dict[str, str]]
"""For each run, the tag of each part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PagePart:
    """A piece of the page: its tag, and its content for a browser that has an earlier tag."""

    tag: str
    since: Callable[[str], Any]


def whole(content: Any) -> PagePart:
    """A part that is sent again as a whole when it changes."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return PagePart(tag=f"{zlib.crc32(text.encode('utf-8', 'backslashreplace')):x}", since=lambda _: content)


def growing(
    tail: JournalTail, steps: Callable[[int], int], columns: Columns[Any], show: Callable[[int], dict[str, Any]]
) -> PagePart:
    """Columns over a journal: of those only the points are sent that the browser's own rows do not settle.

    `steps(rows)` are the steps that the first rows belong to, and `show(since)` are the points from a bucket on.
    """
    rows, check = tail.position

    def since(tag: str) -> dict[str, Any]:
        known = _reading(tag)
        start = 0
        if known is not None and known[:2] == (columns.most, columns.width) and tail.begins_with(*known[2:]):
            start = columns.bucket_of(steps(known[2]))
        return {"from": start, **show(start)}

    return PagePart(tag=f"{columns.most}.{columns.width}.{rows}.{check:x}", since=since)


def _reading(tag: str) -> tuple[int, int, int, int] | None:
    fields = tag.split(".")
    try:
        most, width, rows, check = (int(each, 16 if place == 3 else 10) for place, each in enumerate(fields))
    except ValueError:
        return None
    return (most, width, rows, check) if rows >= 0 else None


def write_tags(tags: Mapping[str, Mapping[str, str]]) -> str:
    """All tags in one line: what a browser repeats when it comes back."""
    return ";".join(f"{run}:{','.join(f'{part}={tag}' for part, tag in parts.items())}" for run, parts in tags.items())


def read_tags(line: str) -> Tags:
    """The tags of a line; whatever cannot be read counts as nothing."""
    runs = (each.partition(":") for each in line.split(";"))
    return {
        run: {part: tag for part, _, tag in (pair.partition("=") for pair in pairs.split(","))}
        for run, _, pairs in runs
    }
