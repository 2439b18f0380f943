"""Plays held-out tasks with a chat model behind an OpenAI-compatible address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.evaluate.evaluation import evaluate
from turnwise.recipe.schema import Recipe
from turnwise.rollout.endpoint_agent import EndpointAgent
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.scheduler import Scheduler, in_groups
from turnwise.types import Group
from turnwise.waiting import finish


@dataclass(frozen=True, kw_only=True)
class EndpointPlayer:
    """Every seat is played by the model at the address."""

    endpoint: ChatEndpoint
    recipe: Recipe
    concurrency: int = 8
    """Episodes, and so requests, at once."""

    def play(
        self, specs: Sequence[EpisodeSpec], temperature: float | None = None, *, alone: str | None = None
    ) -> list[Group]:
        """All episodes, in the order of the specs."""
        return in_groups(finish(self._play(specs, temperature)))

    async def _play(self, specs: Sequence[EpisodeSpec], temperature: float | None) -> list[Any]:
        rollout = self.recipe.rollout
        options: dict[str, Any] = {"max_tokens": rollout.max_tokens}
        options |= {} if temperature is None else {"temperature": temperature}
        agent = EndpointAgent(
            self.endpoint,
            concurrency=self.concurrency,
            system=self.recipe.model.system,
            options=options,
            seeded=True,
        )
        limits = Limits(
            max_turns=rollout.max_turns,
            step_seconds=rollout.step_seconds,
            act_seconds=2 * self.endpoint.seconds * self.endpoint.tries,
        )
        async with Scheduler(concurrency=self.concurrency, limits=limits, seed=self.recipe.seed) as scheduler:
            return [episode async for episode in scheduler.episodes(specs, agent)]


def evaluate_endpoint(
    recipe: Recipe,
    endpoint: ChatEndpoint,
    *,
    concurrency: int = 8,
    watch: Callable[[list[Group]], None] | None = None,
) -> dict[str, float]:
    """The same numbers as for a model of ours, but for tokens, which an address does not show."""
    row = evaluate(EndpointPlayer(endpoint=endpoint, recipe=recipe, concurrency=concurrency), recipe, watch=watch)
    return {name: value for name, value in row.items() if name != "eval/tokens"}
