"""An engine in other processes: sessions belong to this client, servers only continue sequences.

Every request has the session's whole sequence, so a session whose server dies goes on at another one. A retry has the
same seed, and only one answer is used. All HTTP is in one thread with its own event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from turnwise.engine.connections import Connections
from turnwise.engine.contract import Completion, EngineError, EngineSetup, Finish, SamplingParams, Weights
from turnwise.engine.probing import probe_ids
from turnwise.engine.publishing import Publisher
from turnwise.engine.sampling import session_seed
from turnwise.engine.servers import Server, ServerError, Status
from turnwise.engine.supervisor import Supervisor
from turnwise.engine.wires import Answer, Ask, Call, Wire, reset

TOKEN = "TURNWISE_ENGINE_TOKEN"
"""The environment variable with the servers' token; a recipe must not hold it."""
_ATTEMPTS = 3
"""Tries at a request, on the same server or on others."""
_GOODBYE = 2.0
"""Seconds for the last message to a server."""
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class ServerStanding:
    """Servers after a publish, for others that sample on them."""

    salt: str
    adapter: str
    version: str
    servers: dict[str, tuple[Status, list[str]]]
    """By address: the status, and the version of every publish that it has passed."""


class RemoteEngine:
    """Samples on one or more servers: `engine: {kind: turnwise, urls: [http://127.0.0.1:8100]}` in a recipe."""

    def __init__(
        self,
        setup: EngineSetup,
        *,
        wire: Wire,
        supervisor: Supervisor | None = None,
        seconds: float = 240.0,
        load_seconds: float = 600.0,
        dtype: str = "",
    ) -> None:
        self._supervisor = supervisor
        self.capacity, self.setup, self.wire = setup.capacity, setup, wire
        self._seed, self._seconds = setup.seed, seconds
        self._vocabulary = int(setup.model.config.get_text_config().vocab_size)
        self._sessions: dict[str, list[int]] = {}
        self._at: dict[str, Server] = {}
        """The server that last continued each session."""
        self.run = setup.ranks.broadcast(secrets.token_hex(6))
        self.salt, self.adapter, self.adapter_version = "", "", "0"
        self._waiting, self._waited, self._since = 0, 0.0, 0.0
        self._telling: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnwise-remote", daemon=True)
        self._thread.start()
        token = os.environ.get(TOKEN, "")
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self.servers = [
            Server(url=url.rstrip("/"), wire=wire, connections=Connections(url, headers)) for url in setup.urls
        ]
        ranks = setup.ranks
        # With a server or more for each rank, ranks keep apart; one each can go in lock-step.
        own = self.servers[ranks.rank :: ranks.size] if len(self.servers) >= ranks.size else self.servers
        self._own = own
        alone = setup.role == "alone"
        self.lockstep = wire.kind == "turnwise" and len(self.servers) == ranks.size and alone
        self.in_lockstep = False
        """Whether lock-step was ever asked for: then its server serves this rank alone."""
        self._expected: list[int | None] = []
        """What the server is still to be told; only the last one counts."""
        folder = setup.folder or Path(tempfile.mkdtemp(prefix="turnwise-published-"))
        self._publisher = Publisher(self, folder / setup.policy.replace("/", "_"), seconds=load_seconds, dtype=dtype)

    @property
    def busy_seconds(self) -> float:
        """Time in which a request was under way."""
        return self._waited + (time.perf_counter() - self._since if self._waiting else 0.0)

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Continue a session on its server, or on another one if that fails."""
        if why := self.wire.refusal(params):
            raise ValueError(why)
        ids = [*self._sessions.get(session, ()), *new_ids]
        self._sessions[session] = ids
        room = self.capacity - len(ids)
        if room <= 0:
            return Completion(ids=[], logprobs=[], versions=[], finish=Finish.CONTEXT_FULL)
        ask = Ask(
            ids=ids,
            params=replace(params, max_tokens=min(room, params.max_tokens)),
            session=session,
            seed=session_seed(self._seed, session),
            vocabulary=self._vocabulary,
        )
        try:
            answer = await asyncio.wrap_future(self.start(self._generate(ask)))
        except asyncio.CancelledError:
            self.close(session)
            raise
        ids.extend(answer.ids)
        cut = answer.finish is Finish.MAX_TOKENS and len(answer.ids) < params.max_tokens
        return Completion(
            ids=answer.ids,
            logprobs=answer.logprobs,
            versions=[int(version) for version in answer.versions],
            finish=Finish.CONTEXT_FULL if cut else answer.finish,
            oldest_version=answer.oldest_version,
            top=answer.top,
        )

    def publish(self, weights: Weights | None, version: int) -> None:
        """Give the weights to every server and probe them; ValueError if no server is left."""
        if self.setup.role == "follows":
            return  # another process has done so
        self._revive()
        try:
            self._publisher.publish(weights, version)
        except ValueError:
            if not self._revive():
                raise
            self._publisher.publish(weights, version)

    def standing(self) -> ServerStanding:
        """What a process that samples on the same servers must know after a publish."""
        servers: dict[str, tuple[Status, list[str]]] = {
            server.url: (server.status, list(server.given)) for server in self.servers
        }
        return ServerStanding(salt=self.salt, adapter=self.adapter, version=self.adapter_version, servers=servers)

    def follow(self, standing: ServerStanding) -> None:
        """Sample like the process that has published."""
        self.start(self._follow(standing)).result()

    async def _follow(self, standing: ServerStanding) -> None:
        self.salt, self.adapter, self.adapter_version = standing.salt, standing.adapter, standing.version
        for server in self.servers:
            status, given = standing.servers[server.url]
            server.status, server.given, server.failures = status, list(given), 0

    def _revive(self) -> bool:
        """Whether servers of ours had died and were started again; every rank hears of it."""
        if self.setup.start is None:
            return False
        return self.setup.ranks.broadcast(self._supervisor is not None and self._supervisor.revive())

    def close(self, session: str) -> None:
        """Forget a session; its server hears of it with the next request."""
        self._sessions.pop(session, None)
        server = self._at.pop(session, None)
        if server is not None and self.wire.kind == "turnwise":
            server.closing.append(session)

    def paused(self) -> AbstractContextManager[None]:
        """Servers have their own copy of the weights."""
        return nullcontext()

    def expect(self, requests: int | None) -> None:
        """Lock-step, on the one server of this rank."""
        self.in_lockstep = True
        self._loop.call_soon_threadsafe(self._expect, requests)

    def shutdown(self) -> None:
        """Tell the servers, end the thread and remove the published weights; requests still waiting fail."""
        if self._loop.is_closed():
            return
        with suppress(ServerError, TimeoutError):
            self.start(self._end()).result(timeout=3 * _GOODBYE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()
        self._publisher.remove()
        if self._supervisor is not None:
            self._supervisor.close()

    # Inside the loop.

    def start(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Run something in the loop."""
        if self._loop.is_closed():
            work.close()
            raise EngineError("the engine has stopped")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _generate(self, ask: Ask) -> Answer:
        self._waiting += 1
        self._since = time.perf_counter() if self._waiting == 1 else self._since
        try:
            return await self._try(ask)
        finally:
            self._waiting -= 1
            self._waited += time.perf_counter() - self._since if self._waiting == 0 else 0.0

    async def _try(self, ask: Ask) -> Answer:
        error, tried = ServerError(""), set[str]()
        for _ in range(_ATTEMPTS):
            server = self._server_of(ask.session, tried)
            if server is None:
                break
            tried.add(server.url)
            self._at[ask.session] = server
            await self.settle()  # a request that overtakes the number would be sampled at once, in a smaller batch
            adds = self._adds(server)
            label, since = self.adapter_version, len(server.given)
            try:
                answer = await server.ask(replace(ask, salt=self.salt, adapter=self.adapter), self._seconds, adds=adds)
                if self.adapter and self.wire.adapter_is_version:
                    answer = replace(answer, versions=[label] * len(answer.ids))
                answer = await server.trusted(answer, since=since)
                server.failures = 0
                return answer
            except ServerError as failure:
                if failure.blames_request:
                    raise EngineError(f"{server.url}: {failure}") from failure
                error = failure
                self._failed(server, failure)
        reasons = "; ".join(f"{server.url}: {server.why or 'not published to yet'}" for server in self.servers)
        raise EngineError(f"no engine server could continue the episode ({reasons})", timed_out=error.timed_out)

    def _server_of(self, session: str, tried: set[str]) -> Server | None:
        """The same for a session as long as it is up and not tried; another rank's only if none of this rank's is."""
        up = [server for server in self._own if server.status == "up"]
        up = up or [server for server in self.servers if server.status == "up"]
        up = [server for server in up if server.url not in tried] or up
        return max(up, key=lambda server: _weight(server.url, session), default=None)

    def _adds(self, server: Server) -> dict[str, Any]:
        """What our own server must know besides: the sessions that ended, and in lock-step whose request it is.

        In lock-step the engine stands still until all live episodes ask for tokens again. An ended session is named by
        one of the requests that it waits for, so it is forgotten at the same moment as in one process.
        """
        closing, server.closing = server.closing, []
        return ({"close": closing} if closing else {}) | ({"run": self.run} if self.in_lockstep else {})

    def _expect(self, requests: int | None) -> None:
        self._expected = [requests]
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        """Tell the server what lock-step expects, one message after the other, the newest number only."""
        (server,) = self._own
        while self._expected and server.status == "up":
            body = {"requests": self._expected.pop(), **self._adds(server)}
            try:
                await server.call(Call(path="/turnwise/expect", body=body), self._seconds)
            except ServerError as error:
                self._expected = self._expected or [body["requests"]]
                self._failed(server, error)

    def _failed(self, server: Server, error: ServerError) -> None:
        if server.failed(error):
            self.setup.note(f"engine server {server.url} is left out until the next publish: {error}")

    async def settle(self) -> None:
        """Wait until the server knows what lock-step expects."""
        if self._telling is not None:
            await asyncio.shield(self._telling)  # a cancelled request does not cancel the message

    def probe(self) -> Ask:
        """A fixed sequence to score, and a few tokens to sample after it."""
        params = SamplingParams(temperature=self.wire.probe_temperature, max_tokens=min(16, self.capacity - 1))
        return Ask(
            ids=probe_ids(self._vocabulary, self.capacity),
            params=params,
            seed=session_seed(self._seed, self.salt),
            salt=self.salt,
            adapter=self.adapter,
            scores_prompt=True,
            vocabulary=self._vocabulary,
        )

    def renew(self, count: int) -> None:
        """From now on requests say that they want other weights."""
        self.salt = f"{self.run}:{count}"

    async def _end(self) -> None:
        await self.settle()
        if self.wire.kind == "turnwise" and self.setup.ranks.rank == 0 and self.setup.role != "follows":
            goodbyes = [server.call(reset(""), _GOODBYE) for server in self.servers if server.status == "up"]
            await asyncio.gather(*goodbyes, return_exceptions=True)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self.servers:
            server.connections.close()


def _weight(url: str, session: str) -> bytes:
    return hashlib.blake2b(f"{url} {session}".encode(), digest_size=8).digest()
