"""Give new weights to all servers: write, pause, load, set the version, resume, and probe before any token counts.

A paused server answers nothing, so the probe comes after it goes on; what it samples in between is held back until the
verdict. Rank 0 does the work, and all ranks share the verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from turnwise.adapter_folders import adapter_of
from turnwise.engine.contract import Weights
from turnwise.engine.probing import ProbeGap, logprobs_of
from turnwise.engine.published import Published, has_adapter
from turnwise.engine.servers import Server, ServerError, Status
from turnwise.engine.wires import FACTS, Answer, Ask, reset

if TYPE_CHECKING:
    from turnwise.engine.remote import RemoteEngine

_MEET_SECONDS = 10.0
"""For the first word of a server that is new or was down: a dead one must not delay every publish."""


_Verdict = tuple[Status, str]
"""What all ranks must know about a server after a publish, with the reason; plain, because it is broadcast."""


class Publisher:
    """Publishes for one engine: `Publisher(engine, folder).publish(weights, 3)`."""

    def __init__(self, engine: RemoteEngine, folder: Path, *, seconds: float, dtype: str) -> None:
        self._engine, self._seconds = engine, seconds
        self._model, self._ranks = engine.setup.model, engine.setup.ranks
        self._note = engine.setup.note if self._ranks.rank == 0 else lambda _: None
        own = "bf16" if self._model.dtype == torch.bfloat16 else "fp32"
        self._dtype = "bf16" if "bf16" in (own, dtype) else "fp32"
        self._published = Published(folder, self._model) if self._ranks.rank == 0 else None
        self._adapts, self._count = has_adapter(self._model), 0

    def publish(self, weights: Weights | None, version: int) -> None:
        """Every server that can be used has the weights afterwards; ValueError if there is none."""
        weights = weights or Weights(named=lambda: iter(self._model.state_dict().items()))
        self._engine.start(self._doubt()).result()
        if self._adapts and self._attempt(weights, version, adapts=True):
            return
        if self._adapts:
            self._adapts = False
            self._engine.start(self._doubt(again=True)).result()
            self._note("no engine server samples with the adapter like the learner; merged weights are published")
        if not self._attempt(weights, version, adapts=False):
            reasons = "; ".join(f"{server.url}: {server.why}" for server in self._engine.servers)
            raise ValueError(f"no engine server can be used: {reasons}")

    def remove(self) -> None:
        """Remove what was published."""
        if self._published is not None:
            self._published.remove()

    def _attempt(self, weights: Weights, version: int, *, adapts: bool) -> bool:
        """Whether a server is up afterwards."""
        folder = self._write(weights, adapts=adapts)
        self._count += 1
        engine = self._engine
        engine.renew(self._count)
        engine.adapter = f"{engine.salt.replace(':', '-')}" if adapts else ""
        engine.adapter_version = str(version)
        ask, answers = engine.probe(), dict[str, Answer | ServerError]()
        if folder is not None:
            answers = engine.start(self._load_all(folder, version, ask)).result()
        verdicts = self._ranks.broadcast(self._judge(ask, answers))
        engine.start(self._decide(verdicts, str(version), final=not adapts)).result()
        return any(status == "up" for status, _ in verdicts.values())

    def _write(self, weights: Weights, *, adapts: bool) -> Path | None:
        """The new folder on rank 0; all ranks take part and fail together."""
        folder, fault = None, ""
        if self._published is None:
            for _ in adapter_of(self._model) if adapts else weights.named():
                pass  # gathering a sharded tensor needs every rank
        else:
            try:
                folder = self._published.write_adapter() if adapts else self._published.write(weights)
            except ValueError as error:  # such as a full disk
                fault = str(error)
        if fault := self._ranks.broadcast(fault):
            raise ValueError(fault)
        return folder

    def _judge(self, ask: Ask, answers: dict[str, Answer | ServerError]) -> dict[str, _Verdict]:
        """Compare with the learner; every rank runs the same sequences, because its module may be sharded."""
        sampled = {url: list(answer.ids) for url, answer in answers.items() if isinstance(answer, Answer)}
        learner = {url: self._score(ask, ids) for url, ids in self._ranks.broadcast(sampled).items()}
        verdicts: dict[str, _Verdict] = {}
        for url, answer in answers.items():
            if isinstance(answer, ServerError):
                verdicts[url] = "down", str(answer)
                continue
            gap = ProbeGap.between([*answer.prompt_logprobs, *answer.logprobs], learner[url])
            fault = gap.fault(self._dtype)
            verdicts[url] = "refused" if fault else "up", fault
        return verdicts

    def _score(self, ask: Ask, sampled: Sequence[int]) -> list[float]:
        """The learner's log-probs of the fixed sequence, and of what was sampled after it."""
        prompt = logprobs_of(self._model, ask.ids)
        temperature = ask.params.temperature
        whole = [*ask.ids, *sampled]
        return [*prompt, *logprobs_of(self._model, whole, temperature=temperature, start=len(ask.ids))]

    # Inside the engine's loop.

    async def _doubt(self, *, again: bool = False) -> None:
        """Until the verdict, no answer counts."""
        await self._engine.settle()
        for server in self._engine.servers:
            if server.verdict is None or again:
                server.verdict = asyncio.get_running_loop().create_future()

    async def _load_all(self, folder: Path, version: int, ask: Ask) -> dict[str, Answer | ServerError]:
        servers = [server for server in self._engine.servers if server.status != "refused"]
        answers = await asyncio.gather(*(self._load(server, folder, version, ask) for server in servers))
        return {server.url: answer for server, answer in zip(servers, answers, strict=True)}

    async def _load(self, server: Server, folder: Path, version: int, ask: Ask) -> Answer | ServerError:
        wire = self._engine.wire
        calls = wire.adapt(ask.adapter, folder, version) if ask.adapter else wire.publish(folder, version)
        try:
            if server.status != "up":
                await self._meet(server)
            if wire.kind == "turnwise" and (server.status != "up" or self._engine.in_lockstep):
                await server.call(reset(self._engine.run), self._seconds)
            try:
                for call in calls:
                    _require_success(await server.call(call, self._seconds))
            finally:
                if len(calls) > 1:
                    await server.call(wire.resume(), self._seconds)
            answer = await server.ask(ask, self._seconds)
            wrong = [label for label in answer.versions if label != str(version)]
            if wrong and not (ask.adapter and wire.adapter_is_version):
                return ServerError(f"it was given version {version} and answers with {wrong[0]!r}")
            return answer
        except ServerError as error:
            return error

    async def _meet(self, server: Server) -> None:
        """A server that is new or comes back must have room for an episode."""
        facts = await server.call(FACTS, _MEET_SECONDS)
        try:
            room = min(int(each.get("max_model_len") or 2**62) for each in facts["data"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ServerError("/v1/models answered in another form") from None
        if room < self._engine.capacity:
            raise ServerError(f"it has room for {room} tokens; rollout.context is {self._engine.capacity}")

    async def _decide(self, verdicts: dict[str, _Verdict], version: str, *, final: bool) -> None:
        """Use, leave out or refuse every server, and let what waited for it go on."""
        some = any(status == "up" for status, _ in verdicts.values())
        for server in self._engine.servers:
            verdict = verdicts.get(server.url)
            if verdict is not None:
                self._apply(server, verdict, version, final=final or some)
            if (final or some) and server.verdict is not None:
                server.verdict.set_result(None)
                server.verdict = None

    def _apply(self, server: Server, verdict: _Verdict, version: str, *, final: bool) -> None:
        before, (status, why) = server.status, verdict
        if status == "up":
            server.given.append(version)
            server.failures = 0
            if before == "down":
                self._note(f"engine server {server.url} is back")
        elif not final:
            return  # merged weights come next
        elif status == "refused":
            self._note(f"engine server {server.url} is refused: {why}")
        elif before != "down":
            self._note(f"engine server {server.url} is left out: {why}")
        server.status, server.why = status, why


def _require_success(answer: object) -> None:
    """SGLang says in the body of an answer that a load has failed."""
    if isinstance(answer, dict) and answer.get("success") is False:  # pyright: ignore[reportUnknownMemberType]
        raise ServerError(f"it did not load the weights: {answer.get('message', '')}")  # pyright: ignore[reportUnknownMemberType]
