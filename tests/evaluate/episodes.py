"""Hand-made episodes for tests of evaluation."""

from turnwise.types import Group, StopReason, Trajectory, Turn


def episode(
    reward: float, *, turns: int = 1, valid: int | None = None, stop: StopReason = StopReason.DONE
) -> Trajectory:
    """An episode of turns with three sampled tokens each, paid on the last; the first `valid` of them are valid."""
    played = [Turn(sampled_ids=[1, 2, 3], valid=valid is None or turn < valid) for turn in range(turns)]
    played[-1].reward = reward
    return Trajectory(id="", turns=played, stop=stop, terminated=True)


def tasks(*rewards: list[float]) -> list[Group]:
    """One group per list of rewards."""
    return [Group(id=str(place), trajectories=[episode(reward) for reward in one]) for place, one in enumerate(rewards)]
