"""Many rounds of Dhumbal at one table, as fast as the rules go, and what each player did in each of them."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import correlation, fmean

from turnwise.envs.cards.dhumbal_heuristics import CardPlayer
from turnwise.envs.cards.dhumbal_rules import DhumbalRules, Pickup, Round, deal


@dataclass(frozen=True, kw_only=True)
class CallMade:
    """A call that a player made: the value of the hand, and whether it won."""

    value: int
    won: bool


@dataclass(kw_only=True)
class PlayerRecord:
    """What a player did: each list has one entry a round."""

    won: list[bool] = field(default_factory=list[bool])
    coins: list[int] = field(default_factory=list[int])
    discarded: list[int] = field(default_factory=list[int])
    """Cards."""
    seconds: list[float] = field(default_factory=list[float])
    slowest: list[float] = field(default_factory=list[float])
    """Seconds of the longest decision."""
    decisions: list[int] = field(default_factory=list[int])
    could_call: list[bool] = field(default_factory=list[bool])
    calls: list[CallMade | None] = field(default_factory=list["CallMade | None"])

    @property
    def made_calls(self) -> list[CallMade]:
        """All calls of all rounds."""
        return [call for call in self.calls if call is not None]

    def metrics(self) -> dict[str, float]:
        """The six numbers of the paper, its slowest decision, and in how many of the rounds where it could it called.

        What a player without calls has no value for is left out.
        """
        found = {
            "win_rate": fmean(self.won),
            "coins": fmean(self.coins),
            "discarded": fmean(self.discarded),
            "decision_ms": 1000 * sum(self.seconds) / max(1, sum(self.decisions)),
            "slowest_ms": 1000 * max(self.slowest),
        }
        calls = self.made_calls
        if any(self.could_call):
            found["call_rate"] = len(calls) / sum(self.could_call)
        if calls:
            found["call_success"] = fmean(call.won for call in calls)
            found["risk"] = _correlation([call.value for call in calls], [call.won for call in calls])
        return found


@dataclass(slots=True)
class _Doings:
    """What a player did in the round that is being played."""

    seconds: float = 0.0
    slowest: float = 0.0
    decisions: int = 0
    discarded: int = 0
    could_call: bool = False


def play_table(
    players: Mapping[str, CardPlayer],
    *,
    rounds: int,
    seed: int,
    pickup: Pickup = "previous",
    rotate: bool = True,
    max_turns: int = 100,
) -> dict[str, PlayerRecord]:
    """Play rounds in one sitting: coins carry over, and with `rotate` the next player begins the next round."""
    rules = DhumbalRules(players=len(players), pickup=pickup, max_turns=max_turns)
    rng, seated = random.Random(f"table:{seed}"), list(players.values())
    records = [PlayerRecord() for _ in seated]
    coins = [0] * len(seated)
    for number in range(rounds):
        played = deal(rules, rng, first=number % len(seated) if rotate else 0, coins=coins)
        _write_down(records, played, _play_round(played, seated, rng))
        assert played.outcome is not None
        coins = [sum(pair) for pair in zip(coins, played.outcome.coins, strict=True)]
    return dict(zip(players, records, strict=True))


def _play_round(played: Round, seated: Sequence[CardPlayer], rng: random.Random) -> list[_Doings]:
    doings = [_Doings() for _ in seated]
    while played.phase != "over":
        mover = played.mover
        done, known = doings[mover], played.known()
        began = time.perf_counter()
        decision = seated[mover].decide(known, rng)
        spent = time.perf_counter() - began
        done.seconds, done.slowest = done.seconds + spent, max(done.slowest, spent)
        done.decisions += 1
        if known.phase == "call":
            done.could_call = True
        elif known.phase == "discard":
            done.discarded += len(decision)
        played.decide(decision)
    return doings


def _write_down(records: Sequence[PlayerRecord], played: Round, doings: Sequence[_Doings]) -> None:
    outcome = played.outcome
    assert outcome is not None
    for player, (record, done) in enumerate(zip(records, doings, strict=True)):
        won = outcome.winner == player
        called = outcome.caller == player and not outcome.forced and bool(played.hands[player])
        record.won.append(won)
        record.coins.append(outcome.coins[player])
        record.discarded.append(done.discarded)
        record.seconds.append(done.seconds)
        record.slowest.append(done.slowest)
        record.decisions.append(done.decisions)
        record.could_call.append(done.could_call)
        record.calls.append(CallMade(value=outcome.values[player], won=won) if called else None)


def _correlation(values: Sequence[int], successes: Sequence[bool]) -> float:
    """Pearson's; 0 where one of them does not vary."""
    if len(set(values)) < 2 or len(set(successes)) < 2:
        return 0.0
    return correlation(values, successes)
