"""Plays episodes with the policy as it is now: the engine on the learner's own weights, and the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from turnwise.engine.contract import Engine, EngineSetup, SamplingParams, Weights
from turnwise.engine.kinds import make_engines
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import CONTEXT, EngineChoice, Rollout
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Finished, Scheduler, in_groups
from turnwise.types import Group
from turnwise.waiting import LoopRunner

POLICY = "policy"
"""The name of a recipe's only policy."""


class Player:
    """Plays any number of episodes at once.

    Example: `Player(policy, rollout=recipe.rollout, renderer=renderer, seed=0).play(specs, temperature=0.0)`.
    """

    def __init__(
        self,
        policy: TextPolicy,
        *,
        rollout: Rollout,
        renderer: Renderer,
        seed: int,
        engine: EngineChoice | None = None,
        lockstep: bool = True,
    ) -> None:
        self._policy = policy
        self.engine = _make_engine(policy, rollout, engine or EngineChoice(), seed)
        if rollout.lockstep and not self.engine.lockstep:
            raise ValueError("rollout.lockstep is true, but the engine (engine.kind) cannot wait for every episode")
        self.renderer, self.lockstep = renderer, lockstep and self.engine.lockstep
        self._rollout, self._seed = rollout, seed
        self._sampling = SamplingParams(max_tokens=rollout.max_tokens, temperature=rollout.temperature)
        self.scheduler = self.make_scheduler()
        # One event loop for the whole run: worker processes of environments belong to it.
        self._runner = LoopRunner()
        self.publish(0)

    def make_scheduler(self) -> Scheduler:
        """A scheduler with the recipe's limits; each event loop needs its own."""
        limits = Limits(max_turns=self._rollout.max_turns, step_seconds=self._rollout.step_seconds)
        return Scheduler(concurrency=self._rollout.concurrency, limits=limits, seed=self._seed)

    def agent(self, temperature: float | None = None) -> PolicyAgent:
        """The policy as an agent; by default it samples as in training."""
        sampling = self._sampling if temperature is None else replace(self._sampling, temperature=temperature)
        return PolicyAgent(engine=self.engine, renderer=self.renderer, sampling=sampling)

    def play(self, specs: Sequence[EpisodeSpec], temperature: float | None = None) -> list[Group]:
        """All episodes, in the order of the specs."""
        return in_groups(self._runner.run(self._play(specs, self.agent(temperature))))

    def publish(self, version: int) -> None:
        """The weights have changed."""
        self.engine.publish(Weights(named=self._policy.named_weights), version)

    @property
    def busy_seconds(self) -> float:
        """Time that the engine has spent running the model."""
        return self.engine.busy_seconds

    def paused(self) -> AbstractContextManager[None]:
        """Nothing is sampled meanwhile."""
        return self.engine.paused()

    def close(self) -> None:
        """End the engine and the workers of the environments."""
        self.engine.shutdown()
        self.scheduler.close()
        self._runner.close()

    async def _play(self, specs: Sequence[EpisodeSpec], agent: PolicyAgent) -> list[Finished]:
        finished: list[Finished] = []
        self._expect(len(specs))
        try:
            async for episode in self.scheduler.episodes(specs, agent):
                finished.append(episode)
                self._expect(len(specs) - len(finished))
        finally:
            if self.lockstep:
                self.engine.expect(None)
        return finished

    def _expect(self, unfinished: int) -> None:
        if self.lockstep:
            self.engine.expect(min(unfinished, self._rollout.concurrency))


def _make_engine(policy: TextPolicy, rollout: Rollout, choice: EngineChoice, seed: int) -> Engine:
    setup = EngineSetup(
        policy=POLICY,
        model_name=policy.model.name_or_path or "",
        model=policy.model,
        tokenizer=policy.tokenizer,
        capacity=rollout.context or min(policy.room or CONTEXT, CONTEXT),
        memory_bytes=int(choice.memory_gib * 2**30),
        seed=seed,
    )
    return make_engines(choice.kind, [setup], choice.options)[setup.policy]
