"""`chat/cory`: a pioneer answers, an observer who reads the answer answers too, and both earn both scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from turnwise.envs.base import Env, Info, Reset, Step, is_asynchronous
from turnwise.envs.chat.prompts import make_prompts

_PIONEER, _OBSERVER = "pioneer", "observer"
_TEMPLATE = "Reference: {answer}\n\n{query}"
_PLACES = ("{query}", "{answer}")


def make_cory(
    *,
    template: str = _TEMPLATE,
    transfer: bool = True,
    path: str | None = None,
    score: str | bool | None = None,
    require: float | None = None,
    split: str = "train",
) -> Env:
    """`make("chat/cory")`: the prompts of `chat/prompts`, its options included, for two."""
    return Cory(
        make_prompts(path=path, score=score, require=require, split=split), template=template, transfer=transfer
    )


class Cory(Env):
    """Two answer the same prompt, one after the other: CORY (2410.06101).

        review the style and the end of the film                 →  the pioneer:   the style of the film is good …
        Reference: the style of …  review the style and the end …  →  the observer:  the style of the film is great …

    Each answer is scored as if it were alone, and both seats earn the sum. The `template` puts the pioneer's answer and
    the prompt into what the observer reads; without `transfer` the observer reads the prompt alone. A seat succeeds by
    its own answer.
    """

    reward_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    shared: ClassVar[frozenset[str]] = frozenset({"template"})

    def __init__(self, prompts: Env, *, template: str = _TEMPLATE, transfer: bool = True) -> None:
        super().__init__(split=prompts.split)
        if missing := [place for place in _PLACES if place not in template]:
            raise ValueError(f"template is {template!r} and lacks {missing[0]}; it needs {' and '.join(_PLACES)}")
        assert not is_asynchronous(prompts)
        self.seats = (_PIONEER, _OBSERVER)
        self.prompts, self.template, self.transfer = prompts, template, transfer
        self.query, self.asked = "", dict[str, Any]()
        self.scored: list[tuple[float, bool]] = []
        """Reward and success of the answers so far."""

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """The pioneer reads a prompt; tasks are those of the prompts."""
        super().reset(seed=seed)
        reset = self.prompts.reset(seed=seed, task=task)
        assert isinstance(reset, tuple)
        self.query, self.asked, self.scored = reset[0], dict(self.prompts.get_state()), []
        return self.query, {"seat": _PIONEER}

    def list_tasks(self) -> Sequence[Any] | None:
        """Those of the prompts."""
        return self.prompts.list_tasks()

    def step(self, action: str) -> Step:
        """Score an answer. After the pioneer's the observer reads; after the observer's both are paid."""
        if len(self.scored) == len(self.seats):
            raise ValueError("no episode is running; call reset() first")
        self.prompts.set_state(self.asked)  # each answers as if alone
        step = self.prompts.step(action)
        assert isinstance(step, tuple)
        _, reward, _, _, info = step
        self.scored.append((reward, bool(info.get("success", reward > 0))))
        if len(self.scored) == 1:
            return self._shown(action), 0.0, False, False, self._to_observer(action)
        both = sum(reward for reward, _ in self.scored)
        return "", both, True, False, self._end(both)

    def sample_random_action(self) -> str:
        """One of the prompts."""
        return self.prompts.sample_random_action()

    def oracle(self) -> str:
        """The expert's answer to the prompt, at either seat."""
        state = self.prompts.get_state()
        self.prompts.set_state(self.asked)
        answer = self.prompts.oracle()
        self.prompts.set_state(state)
        return answer

    def has_oracle(self) -> bool:
        """Whether the prompts have an expert."""
        return self.prompts.has_oracle()

    def close(self) -> None:
        """Close the prompts."""
        self.prompts.close()

    def _shown(self, answer: str) -> str:
        if not self.transfer:
            return self.query
        before, _, after = self.template.partition("{answer}")  # an answer may have braces
        return before.replace("{query}", self.query) + answer + after.replace("{query}", self.query)

    def _to_observer(self, answer: str) -> Info:
        return {"seat": _OBSERVER, **({"heard": [answer]} if self.transfer else {})}

    def _end(self, both: float) -> Info:
        own: Mapping[str, tuple[float, bool]] = dict(zip(self.seats, self.scored, strict=True))
        return {
            "rewards": dict.fromkeys(self.seats, both),
            "success": {seat: success for seat, (_, success) in own.items()},
            "scores": {seat: reward for seat, (reward, _) in own.items()},
        }
