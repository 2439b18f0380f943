"""Episodes to read: observations, actions and rewards, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from turnwise.types import Trajectory, Turn
from turnwise.untrusted import printable
from turnwise.words import counted

LONGEST = 600
"""Maximum characters shown of one observation or action."""


def episode_text(trajectory: Trajectory, *, title: str = "") -> Text:
    """One episode for the terminal, as text in which nothing from a model or an environment is interpreted."""
    lines = [Text(printable(title), "bold")] if title else []
    for index, turn in enumerate(trajectory.turns, start=1):
        lines += _turn_lines(index, turn)
    if trajectory.final_observation:
        lines += _block("", trajectory.final_observation, "dim")
    return Text("\n").join([*lines, _end(trajectory)])


def _turn_lines(index: int, turn: Turn) -> Iterator[Text]:
    yield from _block(f"{index}", turn.observation, "dim")
    yield from _block(">", turn.action, "bold" if turn.valid else "bold red")
    notes = [f"reward {turn.reward:g}"] if turn.reward else []
    notes += [] if turn.valid else ["not a valid action"]
    if notes:
        yield Text(f"     [{', '.join(notes)}]", "green" if turn.reward > 0 else "red")


def _block(mark: str, text: str, style: str) -> Iterator[Text]:
    """The lines of a text, with a mark before the first."""
    for number, line in enumerate(_shortened(printable(text.strip())).splitlines() or ["(nothing)"]):
        yield Text(f"{mark if number == 0 else '':>4} ", "cyan") + Text(line, style)


def _shortened(text: str) -> str:
    """Both ends of a long text: instructions come first, and what matters now comes last."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _end(trajectory: Trajectory) -> Text:
    solved = trajectory.success and not trajectory.stop.is_failure
    verdict = "solved" if solved else "lost to a fault" if trajectory.stop.is_failure else "not solved"
    turns = counted(len(trajectory.turns), "turn")
    words = f"   = {verdict}: {turns}, reward {trajectory.reward:g}, stop: {trajectory.stop.value}"
    return Text(words, "bold green" if solved else "bold yellow")
