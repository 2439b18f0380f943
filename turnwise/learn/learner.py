"""The learner: turns groups of episodes into policy updates. It provides what parts declare they need."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial, reduce
from operator import add
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from turnwise.algorithm import Algorithm, Loss, Need, compute_credit, compute_loss, make_scale
from turnwise.batch import Scores, TokenBatch
from turnwise.learn.assessment import assess_pairs
from turnwise.learn.batches import minibatches, no_scores, nothing, passes, score_in_parts, share_of, split_idle
from turnwise.learn.extrapolation import make_extrapolation
from turnwise.learn.optimizer import Optimizer
from turnwise.learn.provision import require_provided, require_shardable, require_streams, require_wins
from turnwise.learn.reporting import Reading, Report, Update, badness, reading_of, report_of, summed
from turnwise.learn.run_history import RunHistory
from turnwise.learn.schedule import learning_rate_factor
from turnwise.learn.scoring import replay, scored
from turnwise.learn.selection import learnt_from
from turnwise.learn.texts import apart, learn_texts, with_texts
from turnwise.ops.step_scale import Scale
from turnwise.ops.weights import Counts
from turnwise.policy.critics import Bins
from turnwise.policy.learnable import Policy, Scorer
from turnwise.policy.mixed_policy import MixedPolicy
from turnwise.ranks import ALONE, Ranks, Reduce
from turnwise.recipe.schema import Train
from turnwise.rollout.packing import pack
from turnwise.types import POLICY, Group, NonFiniteError

Value = TypeVar("Value")
Allows = Callable[..., bool]
"""The guard's decision on one optimiser step: `allows(step=…, update=…, gradient_norm=…, loss=…)`."""


class Learner:
    """Owns policy, critic, reference and optimisers.

    Example:

        learner = Learner(TextPolicy.load("nano"), preset("st-ppo"), Train(learning_rate=5e-4), seed=0)
        batch = learner.prepare(groups)              # filter, pack, score, credit
        report = learner.learn(batch, step=1)        # minibatches, losses, optimiser steps
    """

    def __init__(
        self,
        policy: Policy,
        row: Algorithm,
        settings: Train,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        reference: Scorer | None = None,
        ranks: Ranks = ALONE,
        name: str = POLICY,
        mixture: MixedPolicy | None = None,
    ) -> None:
        require_provided(row, policy.provides)
        sharded = settings.ranks == "sharded" and ranks.size > 1
        if sharded:
            require_shardable(row, policy, settings)
        self.name = name
        """The policy whose turns it learns from."""
        self.policy, self.row, self.settings, self.needs = policy, row, settings, row.needs
        self.seed, self.temperature, self.ranks = seed, temperature, ranks
        self.critic = None
        if row.needs_critic:
            shared, source = settings.critic == "shared", settings.critic_from
            self.critic = policy.make_critic(bins=Bins.of(row), shared=shared, source=source)
        self.reference = reference
        if row.needs_reference and reference is None:
            self.reference = policy.make_reference()
        self._in_step = ranks if sharded else ALONE
        if sharded:
            policy.shard(self.critic, self.reference)
        self.optimizer = self._adam(policy.trainable(), weight_decay=settings.weight_decay)
        self.critic_optimizer = None
        if self.critic is not None:
            self.critic_optimizer = self._adam(self.critic.trainable(), weight_decay=0.0)
        self.scale = make_scale(row)
        self.extrapolation = make_extrapolation(row, policy, self.optimizer, mixture)
        self.sampler = None if self.extrapolation is None else self.extrapolation.sampler
        """Who samples, if not the policy itself."""
        self.history = RunHistory(row)
        self.updates = 0
        """Optimiser steps so far; the critic's warm-up uses it."""
        self.rate_factor = 1.0
        """The guard's factor on the learning rates."""
        self.hold: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered while weights change, so that nothing samples from a half-finished step."""

    def prepare(self, groups: Sequence[Group]) -> TokenBatch | None:
        """Filter, pack, score and credit this rank's share; None if the filters drop everything.

        Every rank gets all groups, so that all reach the same answer.
        """
        groups, texts = apart(self, groups)
        kept = learnt_from(self.row, groups, self.name)
        if not kept:
            return None
        # Packed whole, because what a batch knows of its samplers and cuts must not depend on who has which group.
        batch = share_of(pack(kept, policy=self.name), self.ranks)
        require_streams(self.row, batch)
        if Need.WINS in self.needs:
            require_wins(self.row, kept)
        batch = self._together(lambda _: scored(self, batch.to(self.policy.device)))
        batch = self.history.told(batch, self.ranks)
        batch = self._together(lambda reduce: compute_credit(self.row, batch, reduce=reduce))
        self.history.keep(batch, self.ranks)
        return batch.with_(texts=texts)

    def learn(self, batch: TokenBatch, step: int, allows: Allows | None = None) -> Report:
        """All optimiser steps that the row takes on one batch."""
        rng = random.Random(f"{self.seed}:{step}:minibatches")
        parts = minibatches(batch, epochs=self.row.epochs, count=self.row.minibatches, rng=rng, ranks=self.ranks)
        parts = with_texts(self, parts, batch.texts, step)
        updates = [self._update(part, step, number, allows) for number, part in enumerate(parts)]
        report = report_of(self.row, batch, updates, rate=self._rate(step), ranks=self.ranks)
        if self.extrapolation is not None and any(update.taken for update in updates):
            with self.hold():
                report.metrics |= self.extrapolation.take(self.ranks)
        return report

    def score(self, batch: TokenBatch, policy: Scorer | None = None) -> Tensor:
        """Log-probs of the batch's tokens under the current policy, or under `policy`."""
        if policy is not None:
            return self.in_parts(batch, partial(policy.score, temperature=self.temperature))
        score = partial(self.policy.score, temperature=self.temperature)
        return self.in_parts(batch, lambda part: score(part, routing=replay(self.row, part)))

    def in_parts(self, batch: TokenBatch, score: Callable[[TokenBatch], Scores]) -> Tensor:
        """Log-probs of the whole batch, one micro-batch at a time."""
        return score_in_parts(score, batch, tokens=self.settings.micro_tokens, in_step=self._in_step)

    def assess(self, groups: Sequence[Group], *, against: Scorer | None = None) -> dict[str, float]:
        """What it makes of pairs, compared with the reference; without one, with itself when this was first asked."""
        return assess_pairs(self, groups, against or self.reference or self._first)

    @cached_property
    def _first(self) -> Any:
        return self._in_reach(self.policy.make_reference())

    def renew_reference(self, reference: Any) -> None:
        """Stay near another policy from now on."""
        self.reference = self._in_reach(reference)

    def _in_reach(self, reference: Any) -> Any:
        """Sharded, if the policy is."""
        if self._in_step.size > 1:
            reference.shard(self.policy.device)
        return reference

    def free_gradients(self) -> None:
        """Give back their memory until the next step."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    @property
    def in_step(self) -> Ranks:
        """The ranks that must make equal numbers of passes."""
        return self._in_step

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [each for each in (self.optimizer, self.critic_optimizer) if each is not None]

    def _together(self, work: Callable[[Reduce], Value]) -> Value:
        """Run work that may hit non-finite numbers. If one rank does, all raise: the others would wait for it.

        The work sums over ranks with the `reduce` that it is given, which first asks whether one has failed.
        """
        is_known = False

        def meet(error: NonFiniteError | None) -> None:
            nonlocal is_known
            if found := next(filter(None, self.ranks.gather(error)), None):
                is_known = True
                raise found

        def reduce(values: Tensor) -> Tensor:
            meet(None)
            return self.ranks.reduce(values)

        try:
            result = work(reduce)
        except NonFiniteError as error:
            if not is_known:
                meet(error)
            raise
        meet(None)
        return result

    # Optimiser steps.

    def _update(self, batch: TokenBatch, step: int, number: int, allows: Allows | None) -> Update:
        counts = Counts.of(batch).over_ranks(self.ranks.reduce)
        self.free_gradients()
        losses = self._together(lambda _: self._backward(batch, counts))
        for optimizer in self._optimizers:
            optimizer.sum_gradients(self.ranks)
        scale = None if self.scale is None else self.scale.finish(self.ranks.reduce)
        before = scale.value if scale is not None and scale.apply == "gradient" else 1.0
        norm = self.optimizer.clip(self.settings.grad_clip, scale=before, ranks=self.ranks)
        critic_norm = None
        if self.critic_optimizer is not None:
            critic_norm = self.critic_optimizer.clip(self.settings.grad_clip, ranks=self.ranks)
        mine = summed([numbers for numbers, _ in losses])
        everywhere = self.ranks.gather((mine, reduce(add, (table for _, table in losses))))
        added = summed([numbers for numbers, _ in everywhere])
        worst = norm if critic_norm is None else max(norm, critic_norm, key=badness)
        allowed = allows is None or allows(step=step, update=number, gradient_norm=worst, loss=added["total"])
        taken = self.ranks.broadcast(allowed)
        if taken:
            self._step(step, scale)
        return Update(
            loss=added,
            table=reduce(add, (table for _, table in everywhere)),
            gradient_norm=norm,
            critic_gradient_norm=critic_norm,
            scale=scale,
            taken=taken,
        )

    def _backward(self, batch: TokenBatch, counts: Counts) -> list[Reading]:
        """Add the gradient of each micro-batch; returns the parts of its loss and its diagnostics."""
        moving, idle = split_idle(batch) if self.row.moves_by_advantage_alone else (batch, None)
        readings, errors = self._run_passes(moving, counts)
        if not moving.tokens:
            bins = None if self.critic is None else self.critic.bins
            readings = [reading_of(self._loss(moving, no_scores(moving, bins=bins.count if bins else 0), counts))]
        with torch.no_grad():  # no gradient, but scales and diagnostics cover the whole minibatch
            more_readings, more_errors = self._run_passes(idle, counts)
        texts, text_errors = ([], []) if batch.texts is None else learn_texts(self, batch.texts)
        for error in errors + more_errors + text_errors:
            raise error
        (numbers, table), *others = readings + more_readings
        return [(summed([numbers, *texts]), table), *others]

    def _run_passes(self, batch: TokenBatch | None, counts: Counts) -> tuple[list[Reading], list[NonFiniteError]]:
        """Run and differentiate each micro-batch. Errors are returned, because other ranks may be in step."""
        parts, fillers = self.passes(batch)
        readings, errors = list[Reading](), list[NonFiniteError]()
        for part in parts:
            scores = self._scores(part)
            try:
                loss = self._loss(part, scores, counts)
                _differentiate(loss.total)
                readings.append(reading_of(loss))
            except NonFiniteError as error:
                _differentiate(nothing(scores))
                errors.append(error)
        for filler in fillers:
            _differentiate(nothing(self._scores(filler)))
        return readings, errors

    def passes(self, batch: TokenBatch | None) -> tuple[list[TokenBatch], list[TokenBatch]]:
        """Micro-batches, and fillers for ranks that must make equal numbers of passes."""
        parts, fillers = passes(batch, tokens=self.settings.micro_tokens, in_step=self._in_step)
        return parts, [filler.to(self.policy.device) for filler in fillers]

    def _loss(self, part: TokenBatch, scores: Scores, counts: Counts) -> Loss:
        """The loss of one micro-batch; the step's scale observes it."""
        if part.old_T is None:
            part = part.with_(old_T=scores.logprob_T.detach(), old_uniform_T=scores.uniform_T)
        loss = compute_loss(self.row, part, scores, counts=counts)
        if self.scale is not None:
            self.scale.observe(loss, scores, list(self.optimizer.parameters.values()))
        return loss

    def _scores(self, part: TokenBatch) -> Scores:
        full_kl = not self.needs.isdisjoint({Need.KL_TO_REFERENCE, Need.KL_FROM_REFERENCE})
        return self.policy.score(
            part,
            temperature=self.temperature,
            entropy=True,
            collision=Need.COLLISION in self.needs,
            reverse_kl=Need.KL_FROM_REFERENCE in self.needs,
            uniform=Need.VOCABULARY_MEAN in self.needs,
            reference=self.reference if full_kl else None,
            critic=self.critic,
            routing=replay(self.row, part),
        )

    def _adam(self, parameters: Mapping[str, nn.Parameter], *, weight_decay: float) -> Optimizer:
        settings = self.settings
        return Optimizer(
            parameters,
            betas=settings.betas,
            weight_decay=weight_decay,
            masters=settings.masters,
            moments=settings.moments,
            offload=settings.offload,
            seed=self.seed,
        )

    def _step(self, step: int, scale: Scale | None) -> None:
        with self.hold():
            if self.extrapolation is not None:
                self.extrapolation.before_update()
            if self.updates >= self.row.critic.warmup or self.critic is None:
                # Scale the optimiser's step, not its gradient: Adam would divide the factor out again.
                taken = scale.value if scale is not None and scale.apply == "step" else 1.0
                self.optimizer.step(self._rate(step) * taken)
            if self.critic_optimizer is not None:
                self.critic_optimizer.step(self.settings.critic_learning_rate * self._factor(step) * self.rate_factor)
        self.updates += 1

    def _rate(self, step: int) -> float:
        return self.settings.learning_rate * self._factor(step) * self.rate_factor

    def _factor(self, step: int) -> float:
        settings = self.settings
        return learning_rate_factor(step, total=settings.steps, warmup=settings.warmup, schedule=settings.schedule)

    # State, for checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """The state that is not in tensors."""
        scale = None if self.scale is None else self.scale.state_dict()
        return {"updates": self.updates, "scale": scale, "history": self.history.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict()`."""
        self.updates = int(state["updates"])
        self.history.load_state_dict(state.get("history", {}))
        if self.scale is not None and state["scale"] is not None:
            self.scale.load_state_dict(state["scale"])


def _differentiate(total: Tensor) -> None:
    if torch.is_grad_enabled():
        total.backward()
