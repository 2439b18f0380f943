"""An ASGI application on a port of this machine, served by a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from turnwise.doorkeeping import listen

LOOPBACK = "127.0.0.1"
_BACKLOG = 4096
_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_KEEP_ALIVE = 600
"""Seconds that an idle connection stays open."""

Application = Callable[[Any, Any, Any], Awaitable[None]]


def require_server(why: str) -> None:
    """ValueError with the fix if the packages of servers are missing; `why` is who needs them."""
    if find_spec("uvicorn") is None:
        raise ValueError(f"{why} needs a server; install it with: pip install 'turnwise[serve]'")


class ServerThread:
    """`ServerThread(application, name="gateway").origin` is `http://127.0.0.1:43121`; it answers until `stop`."""

    def __init__(self, application: Application, *, name: str) -> None:
        import uvicorn

        self._listener = listen(LOOPBACK, 0, waiting=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._started, self._failure = threading.Event(), None
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                interface="asgi3",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                lifespan="off",
                access_log=False,
                log_level="critical",
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=1,
                ws="none",
            )
        )
        self._thread = threading.Thread(target=self._run, name=f"turnwise-{name}", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise ValueError(f"the server of the {name} did not start in {_START_SECONDS:g} s ({self._failure!r})")

    @property
    def origin(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self.port}"

    def stop(self) -> None:
        """Answer nobody from now on."""
        self._server.should_exit = True
        self._thread.join(timeout=_STOP_SECONDS)
        self._listener.close()

    def _run(self) -> None:
        async def main() -> None:
            asyncio.get_running_loop().call_soon(self._started.set)
            await self._server.serve(sockets=[self._listener])

        try:
            asyncio.run(main())
        except BaseException as error:  # the edge of a thread: whoever waits for it is told
            self._failure = error
