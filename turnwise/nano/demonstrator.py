"""The mixed demonstrator: it knows the rules of the search task and plays them badly. The nano model imitates it.

It keeps notes of the documents it has seen and always knows which place to look up next. What it then does is
random, turn by turn, regardless of what would work:

- it words a query from a fixed list in which the wordings that find a country are rare (`WORDINGS`);
- it searches for something other than it should (`ASTRAY`), or writes a malformed turn (`CARELESS`);
- it gives up with a guess although searches are left (`GIVES_UP`);
- when it has read the fact it may give another one (`MISREADS`) or keep searching (`DOUBTS`);
- of two cities to compare it may look up only one (`SKIPS`).

So every step of a good plan occurs and is often right, but an episode follows one only by chance. In the real
environment it succeeds in 56% of the 1-hop, 35% of the 2-hop and 20% of the 3-hop questions (1,500 seeds each).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.protocol import LAST_TURN, SearchAction
from turnwise.nano.worlds import size

CARELESS, GIVES_UP, ASTRAY, MISREADS, DOUBTS, SKIPS = 0.03, 0.08, 0.1, 0.15, 0.1, 0.3

WORDINGS = {
    "{name}": 40,
    "{name} {fact}": 15,
    "{fact} of {name}": 15,
    "{fact} {name}": 6,
    "city {name}": 6,
    "where is {name}": 6,
    "country {name}": 6,
    "country {name} {fact}": 4,
    "{word}": 4,
}
"""Query wordings and how often each is used; `{word}` is one word of the name."""

# The facts that lead from the place named in the question to the place asked about.
_PATHS = {"name": (), "by capital": (), "by city": ("country",), "capital by city": ("country", "capital")}
_PATHS["by larger city"] = ("country",)
_DOCUMENT = re.compile(r"(.+?) : (city|country) in (.+)")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a question asks: `Goal(fact="capital", place="by city", names=("mahis",))`."""

    fact: str
    place: str
    names: tuple[str, ...]


def goal_of(task_id: str) -> Goal:
    """Read the goal from the id of a geo task, such as `geo-2hop/capital/by city/0.1/mahis`."""
    _, fact, place, _, names = task_id.split("/")
    return Goal(fact=fact, place=place, names=tuple(names.split("+")))


class Demonstrator:
    """Plays one search episode."""

    def __init__(self, goal: Goal, rng: Random) -> None:
        self.goal, self.rng = goal, rng
        self.notes: dict[str, dict[str, str]] = {}

    def act(self, observation: str) -> str:
        """The next turn."""
        self._read(observation)
        if self.rng.random() < CARELESS:
            return self._malformed()
        place, value = self._look_for()
        if LAST_TURN in observation or self.rng.random() < (1 - DOUBTS if value else GIVES_UP):
            return str(SearchAction(kind="answer", text=self._answer(place, value)))
        target = self.rng.choice(self._seen()) if self.rng.random() < ASTRAY else place
        return str(SearchAction(kind="search", text=self._word(target)))

    def _read(self, observation: str) -> None:
        for line in re.sub(r"</?information>", "", observation).splitlines():
            if found := _DOCUMENT.fullmatch(line):
                name, kind, rest = found.groups()
                first, *others = rest.split(" ; ")
                facts = {"country" if kind == "city" else "continent": first}
                facts |= {fact: value for fact, _, value in (field.partition(" ") for field in others)}
                self.notes.setdefault(name, {}).update(facts)

    def _look_for(self) -> tuple[str, str | None]:
        """The place to look up next, and the wanted fact about it if it has been read."""
        place = self._start()
        for fact in _PATHS[self.goal.place]:
            if fact not in self.notes.get(place, {}):
                return place, None
            place = self.notes[place][fact]
        return place, self.notes.get(place, {}).get(self.goal.fact)

    def _start(self) -> str:
        names = self.goal.names
        if self.goal.place == "by capital":
            ruled = [name for name, facts in self.notes.items() if facts.get("capital") == names[0]]
            return ruled[0] if ruled else names[0]
        read = [name for name in names if "population" in self.notes.get(name, {})]
        if len(names) == 1 or not read:
            return names[0]
        if len(read) < len(names) and self.rng.random() > SKIPS:
            return next(name for name in names if name not in read)
        return max(read, key=lambda name: size(self.notes[name]))

    def _answer(self, place: str, value: str | None) -> str:
        others = list(self.notes.get(place, {}).values()) if value else self._seen()
        return value if value and self.rng.random() > MISREADS else self.rng.choice(others)

    def _seen(self) -> list[str]:
        """Every name so far: those in the question, and those in the notes."""
        noted = [text for name, facts in self.notes.items() for text in (name, *facts.values())]
        return [*self.goal.names, *noted]

    def _word(self, name: str) -> str:
        wording = self.rng.choices(list(WORDINGS), list(WORDINGS.values()))[0]
        return wording.format(name=name, fact=self.goal.fact, word=self.rng.choice(name.split()))

    def _malformed(self) -> str:
        text = self.rng.choice(self._seen())
        return self.rng.choice(
            [text, f"<search>{text}", f"<think>{text}</think>", "<search></search>", f"{text}</answer>"]
        )


def play(env: SearchEnv, rng: Random, *, seed: int | None = None) -> tuple[list[tuple[str, str]], bool]:
    """One episode of the demonstrator in a search environment: its (observation, action) pairs, and its success."""
    observation, info = env.reset(seed=seed)
    demonstrator = Demonstrator(goal_of(info["task"]["id"]), rng)
    turns = list[tuple[str, str]]()
    while True:
        action = demonstrator.act(observation)
        turns.append((observation, action))
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return turns, bool(info["success"])
