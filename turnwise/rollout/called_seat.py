"""One episode of a policy that a user's program calls: its conversations, their engine sessions, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from turnwise.dialects.dialect import Asked, Scored
from turnwise.dialects.model_call import ModelCall, answer_of, as_message
from turnwise.engine.contract import Completion, Finish, SamplingParams
from turnwise.policy.rendering import Renderer
from turnwise.rollout.call_branches import Branches, Placed, ProgramCall, Renderers
from turnwise.rollout.call_tree import CallTree
from turnwise.types import Turn


@dataclass(kw_only=True)
class CalledSeat:
    """The calls so far. Each sequence has its own engine session, so that a sub-agent does not disturb its caller."""

    branches: Branches
    tree: CallTree = field(default_factory=CallTree)
    sessions: dict[int, str] = field(default_factory=dict[int, str])
    """Engine sessions by sequence."""
    sequences: dict[int, int] = field(default_factory=dict[int, int])
    """Sequences by call."""

    @classmethod
    def of(cls, renderers: Renderers) -> CalledSeat:
        """A seat without any calls."""
        return cls(branches=Branches(renderers=renderers))

    def find(self, call: ModelCall) -> ProgramCall:
        """Where a call belongs."""
        return self.tree.find(call.number, call.asked, has_gone_on=self.branches.has_gone_on)

    def ask(self, call: ProgramCall, renderer: Renderer | None = None) -> Placed:
        """The tokens of a call."""
        placed = self.branches.ask(call, renderer)
        self.sequences[call.number] = placed.sequence
        return placed

    def answer(self, call: ModelCall, placed: Placed, completion: Completion) -> str:
        """Record what was sampled, and leave the answer in the call; its text."""
        prompt_ids, new = tuple(placed.whole), len(placed.prompt.ids)
        text = self.branches.answer(call.number, completion.ids)
        renderer, asked = self.branches.renderers.plain, call.asked
        call.answered = answer_of(
            text,
            asked,
            opening=renderer.opening,
            finish="stop" if completion.finish is Finish.STOP else "length",
            prompt_ids=prompt_ids,
            cached=len(prompt_ids) - new,
            ids=completion.ids,
            logprobs=_scored(renderer, completion) if asked.logprobs is not None else (),
        )
        self.tree.add(call.number, asked, as_message(call.answered))
        return text

    def arrange(self, turns: list[Turn]) -> None:
        """Lay the sequences end to end, in the order of their last calls.

        Turns come in the order of the calls. So the last turn, which earns the reward of the episode, stays the last.
        """
        last = {self.sequences[_number(turn)]: _number(turn) for turn in turns}
        turns.sort(key=lambda turn: (last[self.sequences[_number(turn)]], _number(turn)))
        before = None
        for place, turn in enumerate(turns):
            sequence = self.sequences[_number(turn)]
            turn.restarts = place > 0 and sequence != before
            before = sequence


def sampling_of(own: SamplingParams, asked: Asked) -> SamplingParams:
    """How a call is sampled: as the recipe says, and the client may only ask for less text."""
    most = int(min(own.max_tokens, asked.max_tokens or inf))
    return replace(own, max_tokens=most, stop_strings=tuple(dict.fromkeys((*own.stop_strings, *asked.stop))))


def _number(turn: Turn) -> int:
    assert turn.call is not None
    return turn.call["number"]


def _scored(renderer: Renderer, completion: Completion) -> Sequence[Scored]:
    pairs = zip(completion.ids, completion.logprobs, strict=True)
    return [Scored(id=id, text=renderer.decode([id]), logprob=logprob) for id, logprob in pairs]
