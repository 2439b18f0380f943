"""Key lookup: follow a chain of keys through a hidden table. The smallest task in which a turn depends on the last."""

from __future__ import annotations

from itertools import product
from typing import Any

from turnwise.envs.base import Env, Info, Reset, Step

SYMBOLS = "abcdefgh"
KEYS = tuple(f"{first} {second}" for first, second in product(SYMBOLS, SYMBOLS))
"""All 64 keys, two symbols each."""
GET, ANSWER, ERROR = "get", "answer", "error"
MAX_HOPS = 4


class Lookup(Env):
    """Where does a chain of keys end? `make("lookup/2hop")` draws a new hidden table, one to one, every episode.

    An episode of two hops, right in three turns:

        2 hops from c f  →  get c f
        a h              →  get a h
        e b              →  answer e b

    Only keys that were seen can be looked up: the first one, and what came back. Anything else is an error and uses up
    the turn. Every answer ends the episode, and so does the last turn: running out of turns is a loss like a wrong
    answer, not a cut of something that could continue.
    """

    def __init__(self, *, hops: tuple[int, ...] = (2,), max_turns: int = 5, split: str = "train") -> None:
        super().__init__(split=split)
        if not hops or not all(1 <= count <= MAX_HOPS for count in hops):
            raise ValueError(f"hops is {hops}; name one or more numbers from 1 to {MAX_HOPS}")
        if max_turns <= max(hops):
            raise ValueError(f"max_turns is {max_turns}; {max(hops)} hops and the answer take {max(hops) + 1}")
        self.hops, self.max_turns = tuple(hops), max_turns
        self.over = True

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Draw a table, a first key and a number of hops; only the seed decides which, `task` is not used."""
        super().reset(seed=seed)
        self.table = dict(zip(KEYS, self.rng.sample(KEYS, len(KEYS)), strict=True))
        self.start, self.count = self.rng.choice(KEYS), self.rng.choice(self.hops)
        self.known: dict[str, str] = {}
        self.turn, self.over = 0, False
        return f"{self.count} hops from {self.start}", {"state_key": self._state_key()}

    def step(self, action: str) -> Step:
        """Look a key up, or answer."""
        if self.over:
            raise ValueError("no episode is running; call reset() first")
        word, key = _parse(action)
        if word == GET and key not in self._seen():
            word = key = ""
        self.turn += 1
        right = word == ANSWER and key == self._chain()[-1]
        self.over = word == ANSWER or self.turn == self.max_turns
        if word == ANSWER:
            observation = "right" if right else "wrong"
        elif word == GET:
            observation = self.known[key] = self.table[key]
        else:
            observation = ERROR
        return observation, float(right), self.over, False, self._info(word, key, right)

    def sample_random_action(self) -> str:
        """Either word with a key that was seen."""
        return f"{self.rng.choice((GET, ANSWER))} {self.rng.choice(self._seen())}"

    def oracle(self) -> str:
        """Look up the first key of the chain that is not known yet, then answer."""
        *steps, end = self._chain()
        unknown = [key for key in steps if key not in self.known]
        return f"{GET} {unknown[0]}" if unknown else f"{ANSWER} {end}"

    def _seen(self) -> list[str]:
        return [self.start, *self.known.values()]

    def _chain(self) -> list[str]:
        """The keys from the first to the answer."""
        keys = [self.start]
        for _ in range(self.count):
            keys.append(self.table[keys[-1]])
        return keys

    def _info(self, word: str, key: str, right: bool) -> Info:
        parsed = f"{word} {key}" if word else None
        info: Info = {"valid": bool(word), "state_key": self._state_key(), "parsed_action": parsed}
        return {**info, "success": right} if self.over else info

    def _state_key(self) -> str:
        """The question and what has been looked up, in any order."""
        known = "".join(f", {key}: {value}" for key, value in sorted(self.known.items()))
        return f"{self.count} hops from {self.start}{known}"


def _parse(action: str) -> tuple[str, str]:
    """`get c f` as its word and its key; both empty if it cannot be read."""
    word, _, key = action.strip().partition(" ")
    return (word, key) if word in (GET, ANSWER) and key in KEYS else ("", "")
