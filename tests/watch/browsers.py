"""A browser's memory in Python: it applies what the server sends, as the page's own script does."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from turnwise.watch import LiveView

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@dataclass(kw_only=True)
class Memory:
    """What a browser knows, and the tags of it."""

    tags: str = ""
    shared: dict[str, Any] = field(default_factory=dict[str, Any])
    runs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    sizes: list[int] = field(default_factory=list[int])

    def take(self, found: tuple[str, str] | None) -> None:
        """Apply a message."""
        if found is None:
            return
        self.tags, text = found
        self.sizes.append(len(text))
        for key, parts in json.loads(text)["parts"].items():
            for name, content in parts.items():
                if key == "all":
                    self.shared = content
                else:
                    self._apply(self.runs.setdefault(key, {}), name, content)
        self.runs = {key: self.runs[key] for key in self.shared["order"]}

    def _apply(self, run: dict[str, Any], name: str, content: dict[str, Any]) -> None:
        if name not in ("curves", "heat"):
            run[name] = content
            return
        start = content.pop("from")
        old = run[name] if start else {"step": [], "columns": {}, "maps": {}}
        joined = {**content, "step": old["step"][:start] + content["step"]}
        if name == "curves":
            columns = content["columns"].items()
            joined["columns"] = {key: _join(old["columns"].get(key), new, start) for key, new in columns}
        else:
            joined["maps"] = {
                key: [
                    _join(dict(enumerate(old["maps"].get(key, ()))).get(turn), new, start)
                    for turn, new in enumerate(rows)
                ]
                for key, rows in content["maps"].items()
            }
        run[name] = joined

    @property
    def content(self) -> Any:
        """All that is known."""
        return json.loads(json.dumps({"shared": self.shared, "runs": self.runs}))


def _join(old: list[Any] | None, new: list[Any], start: int) -> list[Any]:
    return (old if old is not None else [None] * start)[:start] + new


def page_megabytes(browser: Browser) -> float | None:
    """Memory of the process that shows the browser's only page, without what it shares; None where it cannot be read.

    The browser keeps smaller ones ready for pages to come.
    """
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    files = [Path(f"/proc/{each['id']}/status") for each in processes if each["type"] == "renderer"]
    used = [re.search(r"^RssAnon:\s*(\d+) kB$", file.read_text(), re.MULTILINE) for file in files if file.exists()]
    known = [int(each[1]) / 1000 for each in used if each is not None]
    return max(known) if known and len(known) == len(files) else None


def fresh(roots: list[Path]) -> Any:
    """What a browser would know that came just now, to a server that was just started."""
    view, memory = LiveView(roots), Memory()
    view.look()
    memory.take(view.changes(""))
    return memory.content


class Stream:
    """A stream of a server, message by message; it may be left and taken up again."""

    def __init__(self, address: str, tags: str = "", *, in_address: bool = False) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        path = f"/events?tags={quote(tags)}" if in_address else "/events"
        self._connection.request("GET", path, headers={} if in_address else {"Last-Event-ID": tags})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def next(self) -> tuple[str, str]:
        """The next message: its id and its data; EOFError where the stream ends, or says that it does."""
        fields = self.fields()
        if fields.get("event") == "ended":
            raise EOFError(fields["data"])
        return fields["id"], fields["data"]

    def fields(self) -> dict[str, str]:
        """All fields of the next message, by name."""
        fields: dict[str, str] = {}
        while read := self._answer.readline():
            line = read.decode().rstrip("\n")
            if not line and "data" in fields:
                return fields
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
        raise EOFError("the stream has ended")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()
