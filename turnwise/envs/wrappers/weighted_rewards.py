"""Named, weighted rewards around any environment, as a recipe lists them in `env.rewards`."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, ClassVar

from turnwise.envs.base import Env, Execution, Info, Reset, Step
from turnwise.envs.wrappers.reward_functions import RewardFunction, check_rewards
from turnwise.envs.wrappers.shaping import INFINITE
from turnwise.envs.wrappers.wrapper import Wrapper, then
from turnwise.types import ENVIRONMENT

Values = Sequence[tuple[RewardFunction, float | None]]


class Rewards(Wrapper):
    """Adds functions of what was said to the environment's reward, each times its weight.

        Rewards(env, functions=[{"function": "my.py:right"}, {"function": "my.py:short", "weight": 0.1}])

    The environment's own reward counts once unless `{"function": "environment", "weight": …}` says otherwise. The parts
    stay visible in `info["reward_parts"]`; what a function with another weight than 1 gave is in `info["scores"]`.
    Functions of the episode are asked at its end, also where a limit cuts it (`cut`). Half an answer, which a limit of
    tokens or context cut, never succeeds.
    """

    shared: ClassVar[frozenset[str]] = Wrapper.shared | {"functions"}

    def __init__(self, env: Env, *, functions: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(env)
        if len(env.seats) > 1:
            raise ValueError(
                f"rewards are for one agent, and this game has the seats {', '.join(env.seats)}; let the game itself "
                "pay them, in info['rewards']"
            )
        check_rewards(functions)
        own = [choice for choice in functions if choice["function"] == ENVIRONMENT]
        self.own_weight = float(own[0].get("weight", 1.0)) if own else 1.0
        self.functions = tuple(RewardFunction.of(choice) for choice in functions if choice not in own)
        self._begin(None, "")

    @property
    def reward_range(self) -> tuple[float, float]:
        """A function may give anything."""
        return INFINITE

    @property
    def execution(self) -> Execution:
        """Where the environment runs; with functions that wait, not in the event loop of all."""
        waits = any(function.waits for function in self.functions)
        return "thread" if waits and self.env.execution == "inline" else self.env.execution

    def reset(self, seed: int | None = None, task: Any = None) -> Reset | Awaitable[Reset]:
        """Reset the environment, and remember the task."""
        self._begin(task, "")
        return super().reset(seed=seed, task=task)

    def on_reset(self, reset: Reset) -> Reset:
        """A new chat."""
        observation, info = reset
        self._begin(info.get("task", self.task), observation)
        return observation, self._marked(info)

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Step the environment, then ask the functions."""
        return then(self.env.step(action), lambda step: self._pay(action, self._of_the_seat(step)))

    def cut(self, action: str) -> Step | Awaitable[Step]:
        """A limit ends the episode: what that earns. `action` is the turn that was cut, or empty."""
        paid = self._pay(action, ("", 0.0, False, True, {}), cut=True)
        return then(paid, _unsolved) if action else paid

    def _of_the_seat(self, step: Step) -> Step:
        """The step with the reward that counts: a table of rewards by seat takes precedence over the step's own."""
        observation, reward, terminated, truncated, info = step
        rewards = info.get("rewards", {})
        told: Info = {name: value for name, value in info.items() if name != "rewards"}
        return observation, float(rewards.get(self.seats[0], reward)), terminated, truncated, told

    def _begin(self, task: Any, observation: str) -> None:
        self.task, self.own_reward = task, 0.0
        self.messages = [{"role": "user", "content": observation}]
        self.given: dict[str, float] = {}
        """What each function has given so far, unweighted."""

    def _marked(self, info: Info) -> Info:
        """The info with the promise that `cut` says what a cut earns."""
        paid = {"cut_reward": self.own_weight * float(info["cut_reward"])} if "cut_reward" in info else {}
        return {**info, **paid, "pays_cuts": True}

    def _pay(self, action: str, step: Step, *, cut: bool = False) -> Step | Awaitable[Step]:
        observation, reward, terminated, truncated, _ = step
        self.own_reward += reward
        acted = bool(action) or not cut
        if acted:
            self.messages.append({"role": "assistant", "content": action})
        over = terminated or truncated
        due = [each for each in self.functions if (each.per == "turn" and acted) or (each.per == "episode" and over)]
        asked = [(each, each.ask(self._known(each, step, cut=cut))) for each in due]
        if not cut:
            self.messages.append({"role": "user", "content": observation})
        if any(isawaitable(value) for _, value in asked):
            return self._wait(asked, step)
        return self._paid([(each, each.read(value)) for each, value in asked], step)

    async def _wait(self, asked: Sequence[tuple[RewardFunction, Any]], step: Step) -> Step:
        return self._paid([(each, each.read(await each.wait(value))) for each, value in asked], step)

    def _known(self, function: RewardFunction, step: Step, *, cut: bool) -> dict[str, Any]:
        """What a function may ask for; copies, because it may change them."""
        observation, reward, _, _, info = step
        answers = [message["content"] for message in self.messages if message["role"] == "assistant"]
        return {
            "task": copy.deepcopy(self.task),
            "messages": [dict(message) for message in self.messages],
            "answer": answers[-1] if answers else "",
            "answers": answers,
            "observation": observation,
            "info": dict(info),
            "reward": self.own_reward if function.per == "episode" else reward,
            "cut": cut,
        }

    def _paid(self, values: Values, step: Step) -> Step:
        observation, reward, terminated, truncated, info = step
        own = info.get("reward_parts") or ({ENVIRONMENT: reward} if reward else {})
        parts = {name: self.own_weight * part for name, part in own.items()}
        reward *= self.own_weight
        for function, value in values:
            if value is not None:
                parts[function.name] = parts.get(function.name, 0.0) + function.weight * value
                self.given[function.name] = self.given.get(function.name, 0.0) + value
                reward += function.weight * value
        paid: Info = {**info, "reward_parts": parts} if parts else dict(info)
        if not (terminated or truncated):
            return observation, reward, terminated, truncated, self._marked(paid)
        return observation, reward, terminated, truncated, {**paid, **self._verdict(info)}

    def _verdict(self, info: Info) -> Info:
        """What the functions say of the whole episode."""
        said = {each.name: self.given[each.name] for each in self.functions if each.name in self.given}
        scores = {each.name: said[each.name] for each in self.functions if each.weight != 1 and each.name in said}
        verdict: Info = {"scores": {**info.get("scores", {}), **scores}} if scores else {}
        if judges := [each for each in self.functions if each.success is not None]:
            verdict["success"] = all(said.get(each.name, -float("inf")) >= (each.success or 0.0) for each in judges)
        return verdict


def _unsolved(step: Step) -> Step:
    return *step[:4], {**step[4], "success": False}
