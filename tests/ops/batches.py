"""Random ragged batches, made of real trajectories: several groups, turns of any length, restarts, cut episodes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from turnwise.batch import Moments, Remembered, Scores, TokenBatch
from turnwise.ops.diagnostics import TurnTable
from turnwise.ops.terms import Loss, Ratios, Terms
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

ragged = settings(derandomize=True, deadline=None, max_examples=60, database=None)
"""Hypothesis settings of every property here: the same examples on every machine."""


HISTORY = Remembered(returns=Moments(count=50, mean=0.3, variance=0.5), kl_coef=0.1)
"""What a learner might remember."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Trajectories, their float64 batch with all streams assigned, and the policy's log-probs now.

    Streams hold NaN on environment tokens: whoever reads them there shows it.
    """

    groups: list[Group]
    batch: TokenBatch
    logprob_T: Tensor

    def scores(self) -> Scores:
        """What a learner would say now, as leaves that can be differentiated."""
        return Scores(
            logprob_T=self.logprob_T.clone().requires_grad_(),
            entropy_T=torch.where(self.batch.sampled_T, self.logprob_T.abs() + 0.5, torch.nan),
            uniform_T=known(self.batch.old_uniform_T) * 1.1 - 0.2,
            value_T=(known(self.batch.value_T) * 0.9 + 0.05).requires_grad_(),
        )


@dataclass(frozen=True, kw_only=True)
class TurnShape:
    """What varies between turns."""

    prompt: int = 1
    sampled: int = 2
    reward: float = 0.0
    key: str | None = None
    restarts: bool = False


@dataclass(frozen=True, kw_only=True)
class EpisodeShape:
    """What varies between trajectories; `bootstrap` None: terminated, else cut with this value beyond."""

    turns: Sequence[TurnShape] = (TurnShape(),)
    bootstrap: float | None = None
    final: int = 0


Shapes = Sequence[Sequence[EpisodeShape]]


def make_groups(shapes: Shapes, *, seed: int = 0) -> list[Group]:
    """Trajectories of these shapes with random ids and sampler log-probs."""
    rng = random.Random(seed)
    return [
        Group(
            id=f"task-{number}",
            trajectories=[_trajectory(shape, f"task-{number}/{place}", rng) for place, shape in enumerate(group)],
        )
        for number, group in enumerate(shapes)
    ]


def make_case(shapes: Shapes, *, seed: int = 0) -> Case:
    """Pack such trajectories and assign every stream."""
    return assign(make_groups(shapes, seed=seed), seed=seed)


def assign(groups: list[Group], *, seed: int = 0) -> Case:
    """A case from given trajectories."""
    batch = pack(groups, dtype=torch.float64)
    none_T = torch.zeros(batch.tokens, 1, dtype=torch.float64)  # where no turn sampled anything
    batch = batch.with_(extra_T={"wins": none_T, **batch.extra_T}, history=HISTORY)
    noise = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        stream_T = torch.randn(batch.tokens, generator=noise, dtype=torch.float64) * scale
        return torch.where(batch.sampled_T, stream_T, torch.nan)

    mu_T = batch.mu_T if batch.mu_T is not None else torch.zeros(batch.tokens, dtype=torch.float64)
    old_T = mu_T + normal(0.2)
    return Case(
        groups=groups,
        batch=batch.with_(
            mu_T=mu_T,
            old_T=old_T,
            ref_T=old_T + normal(0.3),
            value_T=normal(0.7),
            advantage_T=normal(1.0),
            old_uniform_T=old_T - 2,
            old_kl_T=(0.3 * old_T).square(),
        ),
        logprob_T=old_T + normal(0.3),
    )


def random_case(seed: int, *, groups: int = 3, tries: int = 3, turns: int = 4) -> Case:
    """A ragged batch for tests that loop over seeds; bigger than what hypothesis draws."""
    rng = random.Random(seed)
    shapes = [[_random_episode(rng, turns) for _ in range(rng.randint(1, tries))] for _ in range(groups)]
    return make_case(shapes, seed=seed)


def known(stream: Tensor | None) -> Tensor:
    """A stream that this test has assigned."""
    assert stream is not None
    return stream


def terms_of(
    surrogate: Callable[..., Terms], ratios: Ratios, logprob_T: Tensor, advantage_T: Tensor, **options: Any
) -> Terms:
    """The surrogate's terms for loose tensors: one turn in which every token was sampled."""
    count = logprob_T.numel()
    turn = Turn(sampled_ids=list(range(count)), logprobs=[-1.0] * count)
    group = Group(id="g", trajectories=[Trajectory(id="t", turns=[turn], stop=StopReason.DONE, terminated=True)])
    batch = pack([group], dtype=logprob_T.dtype).with_(advantage_T=advantage_T)
    return surrogate(batch, Scores(logprob_T=logprob_T), ratios, **options)


def loss_of(*, bias: Tensor | None, bias_T: Tensor | None) -> Loss:
    """A loss of which only the clipping bias matters."""
    none = torch.zeros(())
    table = TurnTable(sums_IC=torch.zeros(0, 12), ratio_max_I=torch.zeros(0), known=frozenset())
    return Loss(total=none, policy=none, regularizers={}, value=None, bias=bias, bias_T=bias_T, table=table)


def close(actual: Tensor, expected: Sequence[float] | Tensor, *, where: Tensor | None = None) -> None:
    """Assert equality to float64 precision, over the tokens of the mask if there is one."""
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    actual = actual.detach()
    if where is not None:
        actual, wanted = actual[where], wanted[where]
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


def _trajectory(shape: EpisodeShape, name: str, rng: random.Random) -> Trajectory:
    cut = shape.bootstrap is not None
    turns = [_turn(turn, carried=_carried(shape.turns, place), rng=rng) for place, turn in enumerate(shape.turns)]
    for turn in [turn for turn in turns if turn.sampled_ids][-1:]:
        turn.streams = {"wins": [1 / (1 + math.exp(-sum(each.reward for each in turns)))]}
    return Trajectory(
        id=name,
        turns=turns,
        stop=StopReason.MAX_TURNS if cut else StopReason.DONE,
        terminated=not cut,
        truncated=cut,
        bootstrap=shape.bootstrap,
        final_ids=[rng.randrange(100) for _ in range(shape.final)],
    )


def _carried(turns: Sequence[TurnShape], place: int) -> bool:
    """Whether any token up to this turn can carry its reward."""
    return any(turn.sampled for turn in turns[: place + 1])


def _turn(shape: TurnShape, *, carried: bool, rng: random.Random) -> Turn:
    return Turn(
        prompt_ids=[rng.randrange(100) for _ in range(shape.prompt)],
        sampled_ids=[rng.randrange(100) for _ in range(shape.sampled)],
        logprobs=[-rng.uniform(0.05, 3.0) for _ in range(shape.sampled)],
        reward=shape.reward if carried else 0.0,
        state_key=shape.key,
        restarts=shape.restarts,
    )


def _random_episode(rng: random.Random, turns: int) -> EpisodeShape:
    shapes = [
        TurnShape(
            prompt=rng.randint(0, 3),
            sampled=rng.choice([0, 1, 1, 2, 3, 7]),
            reward=rng.choice([0.0, 0.0, 1.0, -0.5, 0.3]),
            key=rng.choice([None, "start", "door"]),
            restarts=rng.random() < 0.25,
        )
        for _ in range(rng.randint(1, turns))
    ]
    return EpisodeShape(turns=shapes, bootstrap=rng.choice([None, None, 0.6, -0.4]), final=rng.randint(0, 2))


_TURNS = st.builds(
    TurnShape,
    prompt=st.integers(0, 3),
    sampled=st.integers(0, 4),
    reward=st.sampled_from([0.0, 1.0, -0.5, 0.3]),
    key=st.sampled_from([None, "start", "door"]),
    restarts=st.booleans(),
)
_EPISODES = st.builds(
    EpisodeShape,
    turns=st.lists(_TURNS, max_size=4),
    bootstrap=st.sampled_from([None, 0.6, -0.4]),
    final=st.integers(0, 2),
)
cases = st.builds(
    make_case,
    st.lists(st.lists(_EPISODES, min_size=1, max_size=3), min_size=1, max_size=3),
    seed=st.integers(0, 10_000),
)
"""Any ragged batch: empty turns, no turns at all, one token, restarts, cut episodes with and without final tokens."""
