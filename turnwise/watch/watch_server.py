"""The live page's server: one page, one stream of changes, episodes on demand. It only answers, and writes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import parse_qs, urlsplit

from turnwise import __version__
from turnwise.doorkeeping import address_of, is_loopback, is_token, listen, names_loopback
from turnwise.watch.live_view import LiveView
from turnwise.watch.watch_page import WORKER, render_watch

LOOK_SECONDS = 0.7
"""Between two looks at the run folders while somebody watches."""
LAST_SECONDS = 3.0
"""How long the end waits for browsers that read slowly."""
ALIVE_SECONDS = 15.0
"""Between two signs of life on a stream without news."""
MOST_CONNECTIONS = 512
_READ_SECONDS = 60.0
"""How long a connection may be silent, and a browser may not read."""
_ON_EVERY_ANSWER = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CLOSED = "default-src 'none'; frame-ancestors 'none'"
_WORKER_POLICY = "default-src 'none'; connect-src 'self'"


class WatchServer:
    """Serves the runs in some folders: `with WatchServer([Path("runs")]) as server: print(server.address)`."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        evals: Sequence[Path] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
    ) -> None:
        if not token and not is_loopback(host):
            raise ValueError(f"host {host!r} opens runs to other machines; pass token=…, which visitors must then know")
        self.view, self.token = LiveView(roots, evals=evals), token
        self._listener = listen(host, port)
        self.address = address_of(self._listener, host)
        self.cookie = f"turnwise_watch_{self._listener.getsockname()[1]}"
        self.page, self.policy = render_watch()
        self._news = threading.Condition()
        self._looks, self._stops = 0, threading.Event()
        """How many looks have brought something."""
        self._streams: dict[int, int] = {}
        """For each stream, the last look of which all was sent."""
        self._ends = False
        self._come = threading.Event()
        self._come.set()  # the first look is taken before anybody comes
        self._http = _Server(self._listener, self)
        self._threads = [
            threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True),
            threading.Thread(target=self._follow, name="turnwise-watch", daemon=True),
        ]

    def __enter__(self) -> WatchServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._come.set()
        with self._news:
            self._news.notify_all()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join(timeout=10)

    def show_all(self) -> None:
        """Look at the folders a last time; wait until the browsers have been sent what is new, and that this is all."""
        self.view.look(everywhere=True)
        with self._news:
            self._ends = True
            self._looks += 1
            self._news.notify_all()
            self._news.wait_for(lambda: all(sent == self._looks for sent in self._streams.values()), LAST_SECONDS)

    @property
    def streams(self) -> int:
        """How many browsers watch now: all pages of one share a stream."""
        return len(self._streams)

    def stream(self, tags: str, send: Callable[[str], None]) -> None:
        """Send what a browser with these tags lacks, now and whenever something changes, until it is gone."""
        me, told = threading.get_ident(), False
        with self._news:
            self._streams[me] = 0
            self._come.set()
        try:
            while not self._stops.is_set():
                with self._news:
                    looks, ends = self._looks, self._ends
                found = self.view.changes(tags) if looks else None
                if found is not None:
                    tags, content = found
                    send(f"id: {tags}\ndata: {content}\n\n")
                    continue
                if ends and not told:
                    send("event: ended\ndata: this is all\n\n")
                    told = True
                with self._news:
                    self._streams[me] = looks
                    if self._ends:
                        self._news.notify_all()
                    is_news = self._news.wait_for(
                        lambda seen=looks: self._looks != seen or self._stops.is_set(), ALIVE_SECONDS
                    )
                if not is_news:  # sent without the lock: others must not wait for a browser that does not read
                    send(": alive\n\n")
        finally:
            with self._news:
                del self._streams[me]

    def _follow(self) -> None:
        """Look at the folders while somebody watches."""
        while not self._stops.is_set():
            self._come.wait()
            started = time.monotonic()
            changed = self.view.look()
            with self._news:
                if changed or not self._looks:
                    self._looks += 1
                    self._news.notify_all()
                if not self._streams:
                    self._come.clear()
            # Many large folders take longer to look at, and then rest longer.
            self._stops.wait(max(LOOK_SECONDS, 2 * (time.monotonic() - started)))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket, watch: WatchServer) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.watch = listener, watch
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"turnwise/{__version__}", ""
    timeout = _READ_SECONDS
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        watch, parts = self.server.watch, urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if (refusal := self._refusal(query)) is not None:
            return self._answer(*refusal)
        if "token" in query and watch.token:  # keep it out of the address, the history and screenshots
            kept = f"{watch.cookie}={watch.token}; HttpOnly; SameSite=Strict; Path=/"
            return self._answer(HTTPStatus.SEE_OTHER, "", headers={"Location": "/", "Set-Cookie": kept})
        if parts.path == "/":
            return self._answer(HTTPStatus.OK, watch.page, kind="text/html", policy=watch.policy)
        if parts.path == "/worker.js":
            return self._answer(HTTPStatus.OK, WORKER, kind="text/javascript", policy=_WORKER_POLICY)
        if parts.path == "/events":
            return self._stream(self.headers.get("Last-Event-ID") or query.get("tags", ""))
        if parts.path == "/episodes" and query.get("step", "").isdecimal() and len(query["step"]) < 13:
            found = watch.view.episodes(query.get("run", ""), query.get("kind", "step"), int(query["step"]))
            if found is not None:
                return self._answer(HTTPStatus.OK, found, kind="application/json")
        return self._answer(HTTPStatus.NOT_FOUND, "there is nothing here; the page is at /")

    do_HEAD = do_GET

    def _refusal(self, query: dict[str, str]) -> tuple[HTTPStatus, str] | None:
        """Pages of other sites must not read runs, nor anybody without the token where there is one."""
        token, host = self.server.watch.token, self.headers.get("Host", "")
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            return HTTPStatus.FORBIDDEN, "pages of other sites are not answered"
        if token and not any(is_token(each, token) for each in (query.get("token", ""), *self._given())):
            return HTTPStatus.UNAUTHORIZED, "open the address that `turnwise watch` printed: it has the token"
        if not token and not names_loopback(host):
            return HTTPStatus.FORBIDDEN, "without a token only this machine is answered, by its own name"
        return None

    def _given(self) -> tuple[str, str]:
        try:
            kept = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.watch.cookie)
        except CookieError:
            kept = None
        return self.headers.get("Authorization", "").removeprefix("Bearer "), kept.value if kept else ""

    def _stream(self, tags: str) -> None:
        self._begin(HTTPStatus.OK, kind="text/event-stream", policy=_CLOSED, headers={"Connection": "close"})
        self.close_connection = True
        if self.command == "GET":
            self._write("retry: 1000\n\n")
            self.server.watch.stream(tags, self._write)

    def _answer(
        self,
        status: HTTPStatus,
        text: str,
        *,
        kind: str = "text/plain",
        policy: str = _CLOSED,
        headers: dict[str, str] | None = None,
    ) -> None:
        content = text.encode("utf-8", "backslashreplace")
        self._begin(status, kind=kind, policy=policy, headers={"Content-Length": str(len(content)), **(headers or {})})
        if self.command == "GET":
            self.wfile.write(content)

    def _begin(self, status: HTTPStatus, *, kind: str, policy: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", **_ON_EVERY_ANSWER, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode("utf-8", "backslashreplace"))
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed: the terminal belongs to the run."""
