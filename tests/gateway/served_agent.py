"""Plays a user's program through the real server, with a policy of a few words in place of a model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.policy.tokenizers_for_chat import chat_tokenizer
from tests.rollout.reference_engine import PlainEngine
from turnwise.engine.contract import Completion, Finish, SamplingParams
from turnwise.gateway.agent_run import AgentRun
from turnwise.policy.rendering import Renderer
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Scheduler
from turnwise.rollout.token_checks import check_ledger
from turnwise.types import Trajectory

CALL = '<tool_call>{"name": "search", "arguments": {"query": "mahis", "limit": 2}}</tool_call>'
_LONG = 60.0


class Sayer(PlainEngine):
    """Says `lines` one after the other, then only the last one; remembers the parameters of each call."""

    capacity = 10**6

    def __init__(self, lines: Sequence[str]) -> None:
        self.tokenizer: Any = chat_tokenizer("chatml")
        self.lines, self.asked = list(lines), list[SamplingParams]()
        self.sessions = set[str]()

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        line = self.lines[min(len(self.asked), len(self.lines) - 1)]
        self.asked.append(params)
        self.sessions.add(session)
        ids = self.tokenizer.encode(line, add_special_tokens=False)
        whole = len(ids) < params.max_tokens
        ids = [*ids, self.tokenizer.eos_token_id] if whole else ids[: params.max_tokens]
        finish = Finish.STOP if whole else Finish.MAX_TOKENS
        return Completion(ids=ids, logprobs=[math.log(0.5)] * len(ids), versions=[0] * len(ids), finish=finish)

    def close(self, session: str) -> None:
        self.sessions.discard(session)


def play_with(
    engine: Sayer,
    program: Callable[..., Any] | str = "",
    *,
    seeds: Sequence[int] = (0,),
    turns: int = 16,
    **settings: Any,
) -> list[Trajectory]:
    """One episode of the program per seed, all at once; every one of them is checked token by token."""
    kwargs = {"program": program, "patience": _LONG, **settings}
    return play_specs(engine, [EpisodeSpec(env=AgentRun, kwargs=kwargs, seed=seed) for seed in seeds], turns=turns)


def play_specs(engine: Sayer, specs: Sequence[EpisodeSpec], *, turns: int = 16) -> list[Trajectory]:
    """All of these episodes at once, checked token by token."""
    renderer = Renderer(engine.tokenizer)
    agent = PolicyAgent(engine=engine, renderer=renderer, sampling=SamplingParams(max_tokens=200))

    async def main() -> list[Trajectory]:
        async with Scheduler(limits=Limits(max_turns=turns), concurrency=max(len(specs), 1)) as scheduler:
            return await scheduler.run(specs, agent)

    trajectories = asyncio.run(main())
    for trajectory in trajectories:
        check_ledger(trajectory, renderer)
    return trajectories


def play(program: Callable[..., Any] | str, *lines: str, turns: int = 16, **settings: Any) -> Trajectory:
    """One episode of the program against a policy that says `lines`."""
    return play_with(Sayer(lines or ("yes",)), program, turns=turns, **settings)[0]
