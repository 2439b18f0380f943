"""Environments with one deliberate defect each; the doctor must find it. `Sound` is the same game without any."""

from __future__ import annotations

import random
import re
import time
from typing import Any

from turnwise.envs import Env


class Sound(Env):
    """Guess a digit from 0 to 4 within four turns."""

    def reset(self, seed=None, task=None) -> Any:
        super().reset(seed=seed)
        self.target, self.turn = self.draw(), 0
        return "Guess a digit from 0 to 4.", {}

    def draw(self) -> int:
        return self.rng.randrange(5)

    def parse(self, action: str) -> int | None:
        found = re.search(r"\\boxed\{([0-4])\}", action)
        return int(found[1]) if found else None

    def is_readable(self, number: int | None) -> bool:
        return number is not None

    def step(self, action) -> Any:
        self.turn += 1
        number = self.parse(action)
        if not self.is_readable(number):
            return r"Answer like \boxed{3}.", 0.0, False, self.turn == 4, {"valid": False}
        won = number == self.target
        text = "Right." if won else "Higher." if number < self.target else "Lower."  # type: ignore[operator]
        return text, float(won), won, self.turn == 4 and not won, {"success": won}

    def sample_random_action(self):
        return rf"\boxed{{{self.rng.randrange(5)}}}"

    def oracle(self):
        return rf"\boxed{{{self.target}}}"


class Slow(Sound):
    """Sound, but a step waits as if for a web page."""

    def step(self, action):
        time.sleep(0.05)
        return super().step(action)


class GlobalRandom(Sound):
    """Draws from the global generator."""

    def draw(self):
        return random.randrange(5)


class GlobalSeeding(Sound):
    """Seeds the global generator at reset and draws from it: repeatable alone, broken next to another."""

    def reset(self, seed=None, task=None):
        random.seed(seed)
        return super().reset(seed=seed)

    def draw(self):
        return random.randrange(5)


class LateGlobalRandom(Sound):
    """Uses the global generator only for the words of an answer."""

    def step(self, action):
        observation, *rest = super().step(action)
        return f"{observation} {random.random()}", *rest


class UnseededGenerator(Sound):
    """Names each game with a generator of its own that no seed reaches."""

    def reset(self, seed=None, task=None):
        observation, info = super().reset(seed=seed)
        return f"{observation} Game {random.Random().random()}.", info


class RewardTooLarge(Sound):
    """Pays ten where at most one was declared."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, 10 * reward, *rest


class LeakingState(Sound):
    """Forgets to start the turn counter again."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0

    def reset(self, seed=None, task=None):
        turn = self.turn
        answer = super().reset(seed=seed)
        self.turn = turn % 4
        return answer


class HangingStep(Sound):
    """Never answers."""

    def step(self, action):
        time.sleep(60)


class ThreeValues(Sound):
    """Returns the old gym form, and not even that."""

    def step(self, action):
        observation, reward, terminated, _, _ = super().step(action)
        return observation, reward, terminated


class NumberObservation(Sound):
    """Observes a number, not a text."""

    def step(self, action):
        return 3, *super().step(action)[1:]


class NotANumberReward(Sound):
    """Pays not-a-number."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class ZeroIsFalse(Sound):
    """Takes the guess 0 for an unreadable one."""

    def is_readable(self, number):
        return bool(number)

    def draw(self):
        return 1 + self.rng.randrange(4)


class QuietZeroIsFalse(ZeroIsFalse):
    """The same, and it does not say that the action was invalid."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return f"{observation} You said {action}.", reward, terminated, truncated, {}


class FailingOracle(Sound):
    """Its expert is wrong half the time."""

    def oracle(self):
        return rf"\boxed{{{self.target // 2}}}"


class RestlessOracle(Sound):
    """Asking its expert draws from the generator."""

    def oracle(self):
        return f"{self.rng.random()} {super().oracle()}"


class WrongSnapshot(Sound):
    """Its snapshot forgets the target."""

    def set_state(self, state):
        super().set_state({**state, "target": 0, "turn": 0})


class DoneAndCut(Sound):
    """Says that an episode which ended by itself was cut, too."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated or terminated, info


class FragileParser(Sound):
    """Raises on a number too long to convert."""

    def parse(self, action):
        return super().parse(action) if int("0" + "".join(re.findall(r"[0-9]", action))) >= 0 else None


class FragileClose(Sound):
    """Closing it twice raises."""

    def __init__(self) -> None:
        super().__init__()
        self.open = True

    def close(self):
        del self.open


class SoundGame(Env):
    """Two seats add one or two to a pile by turns; whoever reaches five wins what the other loses."""

    seats = ("first", "second")
    reward_range = (-1.0, 1.0)

    def reset(self, seed=None, task=None) -> Any:
        super().reset(seed=seed)
        self.pile, self.turn = 0, 0
        return "Say 1 or 2.", self.whose()

    def whose(self) -> dict[str, Any]:
        return {"seat": self.seats[self.turn % 2]}

    def payment(self) -> dict[str, float]:
        return {self.seats[self.turn % 2]: 1.0, self.seats[1 - self.turn % 2]: -1.0}

    def step(self, action) -> Any:
        self.pile += 2 if action == "2" else 1
        if self.pile >= 5:
            return "Five.", 1.0, True, False, {"rewards": self.payment()}
        self.turn += 1
        return f"{self.pile}.", 0.0, False, False, self.whose()

    def sample_random_action(self):
        return self.rng.choice("12")


class NamesNoSeat(SoundGame):
    """Never says whose turn it is."""

    def whose(self):
        return {}


class NamesUnknownSeat(SoundGame):
    """Gives the turn to somebody who does not play."""

    def whose(self):
        return {"seat": "third"}


class ForgetsASeat(SoundGame):
    """Only one of the two ever acts."""

    def whose(self):
        return {"seat": "first"}


class PaysAStranger(SoundGame):
    """Pays somebody who does not play."""

    def payment(self):
        return {"me": 1.0}


class RewardsDisagree(SoundGame):
    """The step's reward is not what the table gives the actor."""

    def payment(self):
        return dict.fromkeys(self.seats, 0.5)


class OtherSeatOutOfRange(SoundGame):
    """The seat that did not act loses more than was declared."""

    def payment(self):
        return {name: reward if reward > 0 else -100.0 for name, reward in super().payment().items()}


BROKEN: dict[type[Env], str] = {
    GlobalRandom: "determinism",
    GlobalSeeding: "global generators",
    LateGlobalRandom: "determinism",
    UnseededGenerator: "determinism",
    RewardTooLarge: "reward range",
    LeakingState: "reset leaks",
    HangingStep: "returns",
    ThreeValues: "returns",
    NumberObservation: "returns",
    NotANumberReward: "returns",
    ZeroIsFalse: "zero actions",
    QuietZeroIsFalse: "zero actions",
    FailingOracle: "oracle",
    RestlessOracle: "oracle",
    WrongSnapshot: "snapshots",
    FragileParser: "hostile actions",
    FragileClose: "returns",
    NamesNoSeat: "seats",
    NamesUnknownSeat: "seats",
    ForgetsASeat: "seats",
    PaysAStranger: "seats",
    RewardsDisagree: "seats",
    OtherSeatOutOfRange: "reward range",
}
"""Each broken environment and the check that must find it."""
