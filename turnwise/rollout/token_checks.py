"""Checks that tokens and log-probs are consistent; every message names the trajectory and the turn.

`check_completion` is cheap and runs on every sampled turn. The others are for the first batches of a run, for tests of
another engine, and for debugging: `verify` runs them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.batch import POLICY, Scores, TokenBatch
from turnwise.engine.contract import Completion
from turnwise.policy.rendering import Renderer
from turnwise.rollout.packing import pack
from turnwise.rollout.rereading import Rereader, as_made
from turnwise.types import Group, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """The result of replaying a trajectory's tokens."""

    turns: int
    restarts: int
    respelt: int
    """Turns that the tokenizer would spell with other tokens: what re-tokenising would have broken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Mean |mu − logprob|, sampler against trainer: over all sampled tokens, and in the worst turn."""

    mean: float
    worst: float
    place: str


def check_completion(completion: Completion, *, where: str) -> None:
    """ValueError unless there are equally many ids, log-probs and versions, and each is possible."""
    ids, logprobs, versions = completion.ids, completion.logprobs, completion.versions
    if not len(ids) == len(logprobs) == len(versions):
        raise ValueError(
            f"{where}: {len(ids)} sampled ids, {len(logprobs)} log-probs, {len(versions)} versions; "
            "an engine must report one of each per token"
        )
    for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        # Rounding may lift the log-prob of a token with probability 1 just above zero.
        if token < 0 or not math.isfinite(logprob) or logprob > 1e-4:
            raise ValueError(
                f"{where}, sampled token {place}: id {token} with log-prob {logprob}; the sampler is broken: "
                "look for overflowing logits, and drop the episode"
            )


def check_ledger(trajectory: Trajectory, renderer: Renderer) -> Ledger:
    """Replay a trajectory: its prompts must be what `renderer` gives, its actions what the sampled ids spell."""
    reader, restarts, respelt = Rereader(renderer), 0, 0
    sequences = dict[int, int]()
    for index in as_made(trajectory.turns):
        turn = trajectory.turns[index]
        where = f"trajectory {trajectory.id!r}, turn {index}"
        prompt = reader.prompt(turn)
        _require_equal(f"{where}: prompt", turn.prompt_ids, prompt.ids)
        if turn.call is not None:
            sequences[index] = reader.sequence(turn)
        elif turn.restarts != prompt.restarts:
            raise ValueError(f"{where}: restarts is {turn.restarts}, but the template says {prompt.restarts}")
        spoken = reader.record(turn, turn.sampled_ids)
        if spoken != turn.action:
            raise ValueError(f"{where}: the sampled ids spell {spoken!r}, but the action is {turn.action!r}")
        restarts += turn.restarts
        ended = bool(turn.sampled_ids) and turn.sampled_ids[-1] in renderer.stop_ids
        said = turn.sampled_ids[:-1] if ended else turn.sampled_ids
        respelt += renderer.encode(renderer.shield(spoken)) != list(said)
    _check_layout(trajectory, sequences)
    if trajectory.final_ids:
        final = reader.final(trajectory)
        _require_equal(f"trajectory {trajectory.id!r}, after the last turn: prompt", trajectory.final_ids, final.ids)
    return Ledger(turns=len(trajectory.turns), restarts=restarts, respelt=respelt)


def _check_layout(trajectory: Trajectory, sequences: Mapping[int, int]) -> None:
    """The calls of a sequence must follow each other: a turn's tokens continue those of the turn before."""
    finished, before = set[int](), None
    for index, sequence in sorted(sequences.items()):
        where = f"trajectory {trajectory.id!r}, turn {index}"
        opens = before is not None and sequence != before
        if trajectory.turns[index].restarts != opens:
            raise ValueError(f"{where}: restarts is {not opens}, but its call belongs to sequence {sequence}")
        if sequence in finished:
            raise ValueError(f"{where}: its call belongs to sequence {sequence}, which another one has interrupted")
        finished |= {before} if opens and before is not None else set()
        before = sequence


def check_batch(batch: TokenBatch) -> None:
    """ValueError unless the tokens that count as sampled are those that came from the policy."""
    wrong_T = batch.sampled_T != (batch.source_T == POLICY)
    if bool(wrong_T.any()):
        token = int(wrong_T.nonzero()[0])
        raise ValueError(
            f"mask and source disagree at {batch.place(token)} ({int(wrong_T.sum())} tokens in all); "
            "the mask is shifted or was edited: build batches with pack() and split them with select()"
        )


def check_logprob_gap(batch: TokenBatch, scores: Scores, *, tolerance: float = 0.05, version: int | None = None) -> Gap:
    """ValueError if a turn's mean |mu − logprob| exceeds `tolerance`, naming the worst turn and a likely cause.

    `version` is the trainer's policy version. Score with the weights and the temperature that sampled: in float32 gaps
    are about 1e-6, in bfloat16 about 1e-2. With `scores.entropy_T` the diagnosis is more reliable.
    """
    if batch.mu_T is None:
        raise ValueError("the batch has no sampler log-probs (mu_T); pack trajectories that an engine sampled")
    batch.require_finite("mu_T", batch.mu_T)
    batch.require_finite("logprob_T", scores.logprob_T)
    compared = _Compared(batch, batch.mu_T, scores)
    if not bool(batch.sampled_T.any()):
        return Gap(mean=0.0, worst=0.0, place="no sampled tokens")
    token = int(torch.where(batch.sampled_T, compared.gap_K[batch.turn_T.clamp_min(0)], -1.0).argmax())
    gap = Gap(
        mean=float(compared.gap_T[batch.sampled_T].mean()),
        worst=float(compared.gap_K[batch.turn_T[token]]),
        place=batch.place(token),
    )
    if gap.worst > tolerance:
        raise ValueError(
            f"sampler and trainer disagree at {gap.place}: mean |mu − logprob| is {gap.worst:.4g} in that turn and "
            f"{gap.mean:.4g} over the batch (tolerance {tolerance:g}). "
            f"Likely cause: {_cause(compared, tolerance, version)}"
        )
    return gap


def verify(
    groups: Sequence[Group],
    renderer: Renderer,
    score: Callable[[TokenBatch], Scores],
    *,
    tolerance: float = 0.05,
    version: int | None = None,
) -> Gap:
    """All checks on collected groups: tokens against texts, mask against sources, sampler against trainer."""
    for group in groups:
        for trajectory in group.trajectories:
            check_ledger(trajectory, renderer)
    batch = pack(groups)
    check_batch(batch)
    return check_logprob_gap(batch, score(batch), tolerance=tolerance, version=version)


def _require_equal(what: str, recorded: Sequence[int], rendered: Sequence[int]) -> None:
    if list(recorded) == list(rendered):
        return
    pairs = enumerate(zip(recorded, rendered, strict=False))
    place = next((place for place, (left, right) in pairs if left != right), min(len(recorded), len(rendered)))
    raise ValueError(
        f"{what} tokens differ from the rendered observation at token {place} ({len(recorded)} recorded, "
        f"{len(rendered)} rendered); the history was re-tokenised or edited, or another renderer made it: "
        "record the ids the engine saw"
    )


class _Compared:
    """Sampler and trainer side by side, token by token."""

    def __init__(self, batch: TokenBatch, mu_T: Tensor, scores: Scores) -> None:
        self.batch, self.mu_T, self.logprob_T = batch, mu_T.double(), scores.logprob_T.detach().double()
        self.entropy_T = None if scores.entropy_T is None else scores.entropy_T.detach().double()
        self.gap_T = torch.where(batch.sampled_T, (self.mu_T - self.logprob_T).abs(), 0.0)
        self.gap_K = self.per_turn(self.gap_T)

    def per_turn(self, values_T: Tensor) -> Tensor:
        """Mean over the tokens of each turn."""
        sampled_T, zeros_K = self.batch.sampled_T, self.gap_T.new_zeros(self.batch.turns)
        turn = self.batch.turn_T[sampled_T]
        total_K = zeros_K.index_add(0, turn, values_T[sampled_T])
        return total_K / zeros_K.index_add(0, turn, torch.ones_like(values_T[sampled_T])).clamp_min(1)


_SHIFT_FITS = 0.25  # a shift is the cause if it leaves at most this share of the gap
_FEWEST_TOKENS = 8  # with fewer, any line fits
_SLOPE_EXPLAINS, _RELATED = 0.6, 0.8  # a temperature is, if it explains this share and the two still correlate


def _cause(compared: _Compared, tolerance: float, version: int | None) -> str:
    """The most likely of the known causes, from the pattern of the gaps."""
    return (
        _stale(compared, version)
        or _later_turns_only(compared, tolerance)
        or _shifted(compared, tolerance)
        or _not_sampled(compared, tolerance)
        or _other_temperature(compared, tolerance)
        or "stale weights: the sampler does not run the trainer's weights; call publish() after every optimiser step"
    )


def _stale(compared: _Compared, version: int | None) -> str | None:
    sampled_by = int(compared.batch.version_K[compared.gap_K.argmax()])
    if version is None or sampled_by == version:
        return None
    return f"stale weights: the turn was sampled by version {sampled_by}, and the trainer is at version {version}"


def _later_turns_only(compared: _Compared, tolerance: float) -> str | None:
    first_K = compared.batch.index_K == 0
    bad_K = compared.gap_K > tolerance
    if not bool(first_K.any()) or bool((bad_K & first_K).any()):
        return None
    return (
        "re-tokenised history: first turns agree and later ones do not, so the sampler saw other tokens before them "
        "than were recorded; record the sampled ids, never tokens of their text"
    )


def _shifted(compared: _Compared, tolerance: float) -> str | None:
    """Compare each token's mu with its neighbours' log-probs inside the same turn."""
    turn_T = compared.batch.turn_T
    bad_T = _bad(compared, tolerance)
    inside_T = bad_T[1:] & bad_T[:-1] & (turn_T[1:] == turn_T[:-1])
    if not bool(inside_T.any()):
        return None
    mu_T, logprob_T = compared.mu_T, compared.logprob_T
    straight = (mu_T[1:] - logprob_T[1:])[inside_T].abs().mean()
    later = (mu_T[:-1] - logprob_T[1:])[inside_T].abs().mean()
    earlier = (mu_T[1:] - logprob_T[:-1])[inside_T].abs().mean()
    if torch.minimum(later, earlier) > _SHIFT_FITS * straight:
        return None
    return "shifted by one: the log-probs fit those of the neighbouring token; entry t must belong to token t itself"


def _not_sampled(compared: _Compared, tolerance: float) -> str | None:
    """No sampler reports exactly zero for a token that the trainer finds uncertain: that token was never sampled."""
    zero_T = compared.batch.sampled_T & (compared.mu_T == 0)
    without_K = compared.per_turn(torch.where(zero_T, 0.0, compared.gap_T))
    if bool((without_K > tolerance).any()):
        return None
    return "shifted mask: tokens without a sampler's log-prob count as sampled; build batches with pack()"


def _other_temperature(compared: _Compared, tolerance: float) -> str | None:
    """To first order log p changes by Δ(1/temperature) · (log p + entropy): see whether that explains the gaps."""
    bad_T = _bad(compared, tolerance)
    if int(bad_T.sum()) < _FEWEST_TOKENS:
        return None
    mu, logprob = compared.mu_T[bad_T], compared.logprob_T[bad_T]
    difference, surprise = mu - logprob, logprob
    if compared.entropy_T is None:  # then one entropy stands for all
        difference, surprise = difference - difference.mean(), surprise - surprise.mean()
    else:
        surprise = surprise + compared.entropy_T[bad_T]
    slope = float((difference * surprise).sum() / surprise.square().sum().clamp_min(1e-12))
    left = float((difference - slope * surprise).square().sum() / difference.square().sum().clamp_min(1e-12))
    related = float(torch.corrcoef(torch.stack([mu, logprob]))[0, 1])
    if not (1 - left >= _SLOPE_EXPLAINS and related >= _RELATED):  # also if equal values make it NaN
        return None
    colder = "lower" if slope > 0 else "higher"
    return (
        f"another temperature: the sampler's was {colder}, by a factor of about {1 / max(1 + slope, 0.1):.2f}; "
        "score with the temperature that sampled"
    )


def _bad(compared: _Compared, tolerance: float) -> Tensor:
    """The sampled tokens of all turns beyond the tolerance."""
    batch = compared.batch
    return batch.sampled_T & (compared.gap_K > tolerance)[batch.turn_T.clamp_min(0)]
