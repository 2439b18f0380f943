"""Text that the policy did not play and imitates in the same optimiser steps, if the row has a loss for it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from turnwise.algorithm import Need, compute_text_loss
from turnwise.batch import TokenBatch
from turnwise.learn.batches import minibatches, nothing, share_of
from turnwise.learn.provision import unmet
from turnwise.learn.selection import has_turns_of
from turnwise.learn.spoken_words import others_words, successes
from turnwise.ops.weights import Counts
from turnwise.rollout.packing import pack
from turnwise.types import Group, NonFiniteError

if TYPE_CHECKING:
    from turnwise.learn.learner import Learner

Numbers = dict[str, float]


def apart(learner: Learner, groups: Sequence[Group]) -> tuple[list[Group], TokenBatch | None]:
    """The groups that get credit, and this rank's share of the text that the row imitates beside them.

    That is groups that the policy did not play, which then get no credit; or words of those that it did play. Rows
    without a loss for text give credit to all groups.
    """
    if Need.TEXTS not in learner.needs:
        return list(groups), _of_episodes(learner, groups)
    played = [any(trajectory.is_own for trajectory in group.trajectories) for group in groups]
    texts = [group for group, is_played in zip(groups, played, strict=True) if not is_played]
    texts = [group for group in texts if has_turns_of(learner.name, group)]
    if not texts:
        raise ValueError(unmet(learner.row, Need.TEXTS, "these groups have none: add demonstrations to source.mix"))
    return [group for group, is_played in zip(groups, played, strict=True) if is_played], _packed(learner, texts)


def _of_episodes(learner: Learner, groups: Sequence[Group]) -> TokenBatch | None:
    """Words of the step's own episodes; None if the row asks for none, or nobody has said any."""
    if Need.OTHERS_WORDS in learner.needs:
        chosen = others_words
    elif Need.SUCCESSES in learner.needs:
        chosen = successes
    else:
        return None
    texts = [text for group in groups if (text := chosen(group, learner.name)).trajectories]
    return _packed(learner, texts) if texts else None


def _packed(learner: Learner, texts: Sequence[Group]) -> TokenBatch:
    return share_of(pack(texts, policy=learner.name), learner.ranks).to(learner.policy.device)


def with_texts(
    learner: Learner, parts: Iterator[TokenBatch], texts: TokenBatch | None, step: int
) -> Iterator[TokenBatch]:
    """Each minibatch with its share of the text; with less text than minibatches some comes again."""
    if texts is None:
        yield from parts
        return
    row, rng = learner.row, random.Random(f"{learner.seed}:{step}:texts")
    dealt = minibatches(texts, epochs=row.epochs, count=row.minibatches, rng=rng, ranks=learner.ranks)
    for part, share in zip(parts, cycle(dealt), strict=False):
        yield part.with_(texts=share)


def learn_texts(learner: Learner, texts: TokenBatch) -> tuple[list[Numbers], list[NonFiniteError]]:
    """Add the gradient of the losses on text. Errors are returned, because other ranks may be in step."""
    counts = Counts.of(texts).over_ranks(learner.ranks.reduce)
    parts, fillers = learner.passes(texts)
    found, errors = list[Numbers](), list[NonFiniteError]()
    for part in parts:
        scores = learner.policy.score(part)  # nobody sampled it, so it has no temperature
        try:
            losses = compute_text_loss(learner.row, part, scores, counts=counts)
            total = sum(losses.values(), torch.zeros(()).to(scores.logprob_T))
            total.backward()
            likelihood = float(scores.logprob_T.detach()[part.sampled_T].sum()) / counts.tokens
            terms = {f"{kind}_term": float(loss.detach()) for kind, loss in losses.items()}
            found.append({"total": float(total.detach()), **terms, "loss/ptx": -likelihood})
        except NonFiniteError as error:
            nothing(scores).backward()
            errors.append(error)
    for filler in fillers:
        nothing(learner.policy.score(filler)).backward()
    return found, errors
