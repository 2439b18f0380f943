"""Renders the texts of a recorded trajectory again, turn by turn, in the order in which the turns were made."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.policy.rendering import Conversation, Prompt, Renderer
from turnwise.rollout.call_branches import Branches, ProgramCall, Renderers
from turnwise.types import Trajectory, Turn


def as_made(turns: Sequence[Turn]) -> list[int]:
    """The places of the turns in the order in which they were made: a program's calls may be interleaved."""
    return sorted(range(len(turns)), key=lambda place: place if (call := turns[place].call) is None else call["number"])


class Rereader:
    """`prompt(turn)` is what the renderer gives before a turn; then `record` what the policy said."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._conversation: Conversation = renderer.open()
        self._branches: Branches | None = None

    def sequence(self, turn: Turn) -> int:
        """The sequence of a call that has been asked and not yet recorded."""
        assert self._branches is not None
        assert turn.call is not None
        return self._branches.sequence_of(turn.call["number"])

    def prompt(self, turn: Turn) -> Prompt:
        """The tokens before the turn; ValueError if its call does not fit those before it."""
        if turn.call is None:
            return self._conversation.observe(turn.observation)
        self._branches = self._branches or Branches(renderers=Renderers(self._renderer))
        try:
            return self._branches.ask(ProgramCall.of(turn)).prompt
        except (KeyError, TypeError) as error:
            raise ValueError(f"the call {turn.call} does not fit those before it ({error!r})") from error

    def record(self, turn: Turn, sampled_ids: Sequence[int]) -> str:
        """The text of what the policy sampled in this turn."""
        if turn.call is None:
            return self._conversation.record(sampled_ids)
        assert self._branches is not None
        return self._branches.answer(turn.call["number"], sampled_ids)

    def final(self, trajectory: Trajectory) -> Prompt:
        """The tokens of an observation that nobody answered."""
        last = trajectory.final_observation
        if self._branches is None:
            return self._conversation.observe(last)
        return self._branches.ask(ProgramCall.from_env(len(trajectory.turns), last, trajectory.info)).prompt
