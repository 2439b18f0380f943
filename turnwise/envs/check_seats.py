"""The doctor's check of games with several seats, on what the other checks already played."""

from __future__ import annotations

from collections.abc import Iterator

from turnwise.envs.check_play import Moment, Outcome, Patient, Transcript
from turnwise.words import counted


async def seats(patient: Patient) -> Outcome:
    """Actors and reward keys are known seats, each gets a turn, and the step's reward is the actor's."""
    async with patient.instance() as host:
        names = await host.seats(deadline=patient.deadline)
    acted = set[str]()
    for transcript in patient.seen:
        for turn, (actor, moment) in enumerate(_turns(transcript, names), start=1):
            if (fault := _fault(actor, moment, names)) is not None:
                return "defect", f"seed {transcript.seed}, turn {turn}: {fault}"
            acted.add(actor)
    if missing := [name for name in names if name not in acted]:
        # Plain words or a time limit may end a game before everybody had a turn.
        verdict = "defect" if patient.can_sample and not patient.hurried else "note"
        return verdict, f"{', '.join(missing)} never got a turn in {counted(len(patient.seen), 'episode')}"
    return "pass", "one seat" if len(names) == 1 else f"each of {', '.join(names)} gets turns"


def _turns(transcript: Transcript, names: tuple[str, ...]) -> Iterator[tuple[str, Moment]]:
    """Each step with the seat that acted: the one named by the answer before it."""
    info, alone = transcript.info, names[0] if len(names) == 1 else ""
    for moment in transcript.moments:
        yield info.get("seat", alone), moment
        info = moment.info


def _fault(actor: str, moment: Moment, names: tuple[str, ...]) -> str | None:
    known, rewards = ", ".join(names), moment.info.get("rewards", {})
    if not actor:
        return f"no seat is named to act; set info['seat'] to one of {known}, at reset too"
    if actor not in names:
        return f"info['seat'] is {actor!r}, which is not one of the seats {known}"
    if strangers := [name for name in rewards if name not in names]:
        return f"info['rewards'] names {strangers[0]!r}, which is not one of the seats {known}"
    if abs(rewards.get(actor, moment.reward) - moment.reward) > 1e-9:
        return f"the reward is {moment.reward:g}, but info['rewards'] gives {actor!r}, who acted, {rewards[actor]:g}"
    return None
