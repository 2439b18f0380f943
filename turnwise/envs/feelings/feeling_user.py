"""The simulated user: how a reply changes a person's feeling, by rules in whole numbers, with a reason for every point.

A dialogue is a function of (profile, manner, seed, replies), so every score can be derived again from its log.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from turnwise.envs.feelings.feeling_acts import WORTH, Act
from turnwise.envs.feelings.feeling_profiles import GAINS, LOSSES, Profile

Level = Literal["S", "A", "B", "C", "F"]
_LEVELS: Mapping[Level, int] = {"S": 100, "A": 70, "B": 40, "C": 10}
HIGHEST = 100
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
_MOST_ACTS, _ALIKE = 3, 0.7
"""Acts that one reply can hold; the share of its words in an earlier reply that makes it a repetition."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a reply says to the person: its acts, the details that it takes up, and its words."""

    acts: tuple[Act, ...]
    details: tuple[int, ...]
    words: frozenset[str]


class Language(Protocol):
    """How a person talks and understands."""

    def hear(self, reply: str, profile: Profile) -> Heard:
        """What a reply does."""
        ...

    def say(self, user: SimulatedUser) -> str:
        """The person's next words, after `user` has reacted."""
        ...


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How open a person is. `MANNERS` has RLVER's two kinds; the shares are ours."""

    accepts: float
    """The chance that a good reply is taken in; otherwise it is worth half."""
    discloses: float
    """The chance that the person's words hint at what they hope for."""
    start: int = 30
    """Feeling at the beginning: 30 in RLVER's training code, 40 in SAGE."""
    clip: int | None = None
    """The most that a turn can change: 10 in SAGE, no limit in RLVER's training code."""


MANNERS = {"mild": Manner(accepts=0.85, discloses=0.8), "challenging": Manner(accepts=0.5, discloses=0.4)}


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """One turn of the log: what was heard, each reason with its points, and the feeling that results."""

    turn: int
    action: str | None
    """All that the agent wrote, where a thought is asked for."""
    reply: str
    """What the person saw of it."""
    formed: bool
    """Whether it had its thought, where one is asked for."""
    acts: tuple[Act, ...]
    reasons: tuple[tuple[str, int], ...]
    change: int
    feeling: int
    level: Level

    @property
    def justification(self) -> str:
        """The reasons in one line: `names the feeling beneath: +12; says nothing that was told before: -6`."""
        return "; ".join(f"{reason}: {points:+d}" for reason, points in self.reasons) or "nothing in it matters: +0"


@dataclass(kw_only=True)
class SimulatedUser:
    """A person in a dialogue: `react` to a reply, then `language.say`."""

    profile: Profile
    manner: Manner
    language: Language
    seed: int
    think: bool = False
    """Whether replies must have a thought, which the person never sees."""
    feeling: int = -1
    told: int = 0
    """Details that the person has told so far."""
    hints: int = 0
    """Times that the person has hinted at the hope."""
    reactions: list[Reaction] = field(default_factory=list[Reaction])
    _heard: list[Heard] = field(default_factory=list[Heard])

    def __post_init__(self) -> None:
        self.feeling = self.manner.start

    @property
    def level(self) -> Level:
        """From S, relieved, to F, lost."""
        return level_of(self.feeling)

    @property
    def well_formed(self) -> bool:
        """Whether all replies so far had the form that is asked for."""
        return all(each.formed for each in self.reactions)

    @property
    def reward(self) -> float:
        """What the dialogue is worth: the feeling, from 0 to 1, or nothing if a thought was missing."""
        return max(self.feeling, 0) / HIGHEST if self.well_formed else 0.0

    def chance(self, what: str) -> float:
        """A number from 0 to 1 that depends on seed and turn alone."""
        return random.Random(f"{self.seed}:{len(self.reactions)}:{what}").random()

    def react(self, action: str) -> Reaction:
        """Take a reply in: the feeling changes, and the log says why."""
        heard = self.language.hear(self.see(action)[0], self.profile)
        reaction = self._change(action, acts=heard.acts, reasons=tuple(self._reasons(heard)))
        self._heard.append(heard)
        return reaction

    def promise(self, action: str) -> int:
        """By how much a reply would change the feeling."""
        heard = self.language.hear(self.see(action)[0], self.profile)
        return self._clipped(sum(points for _, points in self._reasons(heard)))

    def see(self, action: str) -> tuple[str, bool]:
        """What the person sees of an agent's words, and whether these have the form that is asked for."""
        return _without_thought(action) if self.think else (action, True)

    def _change(self, action: str, *, acts: tuple[Act, ...], reasons: tuple[tuple[str, int], ...]) -> Reaction:
        reply, formed = self.see(action)
        change = self._clipped(sum(points for _, points in reasons))
        self.feeling = min(self.feeling + change, HIGHEST)
        reaction = Reaction(
            turn=len(self.reactions),
            action=action if self.think else None,
            reply=reply,
            formed=formed,
            acts=acts,
            reasons=reasons,
            change=change,
            feeling=self.feeling,
            level=self.level,
        )
        self.reactions.append(reaction)
        return reaction

    def _clipped(self, change: int) -> int:
        clip = self.manner.clip
        return change if clip is None else max(-clip, min(clip, change))

    def _reasons(self, heard: Heard) -> list[tuple[str, int]]:
        worth = WORTH[self.profile.hope]
        gains = sorted(((worth[act], act) for act in heard.acts if worth.get(act, 0) > 0), reverse=True)
        reasons: list[tuple[str, int]] = []
        for place, (points, act) in enumerate(gains[:2]):
            reasons.append((str(act), points if place == 0 else points // 2))
        gained = sum(points for _, points in reasons)
        for what, left in self._doubts(heard, gained):
            reasons.append((what, left - gained))
            gained = left
        if gained and heard.details:
            reasons.append(("takes up what was told", 2))
        losses = [(str(act), worth[act]) for act in heard.acts if worth.get(act, 0) < 0]
        if (extra := len(heard.acts) - _MOST_ACTS) > 0:
            losses.append(("says many things at once", -2 * extra))
        if self._repeats(heard):
            losses.append(("says what it said before", -3))
        if not heard.words:
            losses.append(("says nothing", -5))
        lost = sum(points for _, points in losses)
        if (share := self.profile.share(LOSSES)) != 4 and lost:
            losses.append(("by temper", -(-lost * share // 4) - lost))
        return reasons + losses

    def _doubts(self, heard: Heard, gained: int) -> list[tuple[str, int]]:
        """What makes good words worth less, each with what is then left."""
        left, doubts = gained, list[tuple[str, int]]()

        def reduce(what: str, quarters: int) -> None:
            nonlocal left
            left = left * quarters // 4
            doubts.append((what, left))

        if not gained:
            return []
        if self._repeats(heard):
            reduce("heard it already", 0)
        elif self._heard and self.told and not heard.details:
            reduce("could be said to anybody", 2)
        if (share := self.profile.share(GAINS)) != 4:
            reduce("by temper", share)
        if self.chance("accepts") >= self.manner.accepts:
            reduce("does not take it in", 2)
        return doubts

    def _repeats(self, heard: Heard) -> bool:
        """Whether most words of a reply were in one earlier reply."""
        return any(len(heard.words & before.words) > _ALIKE * len(heard.words) for before in self._heard)

    def log(self) -> dict[str, Any]:
        """All that decides the scores, and the scores, as plain data."""
        return {
            "profile": self.profile.plain(),
            "manner": asdict(self.manner),
            "seed": self.seed,
            "think": self.think,
            "reactions": [asdict(each) | {"why": each.justification} for each in self.reactions],
            "reward": self.reward,
        }


def _without_thought(action: str) -> tuple[str, bool]:
    found = _THOUGHT.fullmatch(action)
    if found is None or not found[1].strip() or not found[2].strip() or "<think>" in found[2]:
        return action.rpartition("</think>")[2].replace("<think>", ""), False
    return found[2].strip(), True


def level_of(feeling: int) -> Level:
    """The level of a feeling: 70 is A."""
    reached: list[Level] = [level for level, least in _LEVELS.items() if feeling >= least]
    return reached[0] if reached else "F"


def derive(log: Mapping[str, Any], language: Language) -> SimulatedUser:
    """The same dialogue again, from the profile, the manner, the seed and the agent's words in a log alone."""
    user = SimulatedUser(
        profile=Profile.from_plain(log["profile"]),
        manner=Manner(**log["manner"]),
        language=language,
        seed=int(log["seed"]),
        think=bool(log["think"]),
    )
    language.say(user)
    for action in actions_of(log):
        user.react(action)
        language.say(user)
    return user


def actions_of(log: Mapping[str, Any]) -> list[str]:
    """What the agent wrote, turn by turn."""
    return [str(each["action"] if log["think"] else each["reply"]) for each in log["reactions"]]


def differences(log: Mapping[str, Any], language: Language) -> list[str]:
    """Where a log says something else than its own replies do: empty for a sound one."""
    return compare(log, derive(log, language))


def compare(log: Mapping[str, Any], user: SimulatedUser) -> list[str]:
    """Where a log differs from the same dialogue that was played again."""
    found: list[str] = []
    for said, again in zip(log["reactions"], user.reactions, strict=True):
        if (said["change"], said["feeling"], said["why"]) != (again.change, again.feeling, again.justification):
            found.append(f"turn {again.turn}: the log says {said['feeling']}, its replies give {again.feeling}")
        if (said["reply"], said["formed"]) != (again.reply, again.formed):
            form = "well-formed" if again.formed else "malformed"
            found.append(f"turn {again.turn}: what the agent wrote is {form} and shows {again.reply[:40]!r}")
    if log["reward"] != user.reward:
        found.append(f"the log says a reward of {log['reward']}, its replies give {user.reward}")
    return found
