"""`feelings/talk` and `feelings/brief`: talk with a person who is upset until they feel better, or leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.feelings.feeling_acts import Act, serving_acts
from turnwise.envs.feelings.feeling_brief import ACT_WORDS, Brief
from turnwise.envs.feelings.feeling_english import English
from turnwise.envs.feelings.feeling_profiles import Profile, draw_profile, read_profiles, require_english
from turnwise.envs.feelings.feeling_user import HIGHEST, MANNERS, Language, SimulatedUser
from turnwise.envs.tasks.answers import split_of

LANGUAGES: Mapping[str, type[English | Brief]] = {"english": English, "brief": Brief}
_ORDER = (
    "A person talks to you about something that upsets them. Answer in a few sentences, and find out what would help."
)
_THINK = (
    "Think first, between <think> and </think>, about what they need and in which style to answer; "
    "they see only the rest."
)
SAYINGS: Mapping[Act, str] = {
    Act.RESTATE: "So you went through all that with the {detail}.",
    Act.NAME: "With the {detail}, you must feel terribly hurt and alone.",
    Act.SIDE: "After the {detail}, you have every right to be upset.",
    Act.STORY: "The {detail} reminds me: I have been there.",
    Act.PRAISE_ACT: "I am impressed that you {deed}, and with the {detail} it took courage.",
    Act.PRAISE_CHARACTER: "The way you speak of the {detail}, you are a caring person.",
    Act.PRAISE_GROWTH: "The {detail} shows how far you have come.",
    Act.INVITE: "Tell me more about the {detail}.",
    Act.STAY: "I am here, also for the {detail}.",
    Act.ADVISE: "About the {detail}: one step would be to talk to the {other} tonight.",
    Act.WEIGH: "About the {detail}, there are two sides to it.",
    Act.MOTIVE: "About the {detail}: maybe the {other} was afraid.",
    Act.ASK_SELF: "Looking back at the {detail}, what would you do differently?",
    Act.ABSOLVE: "The {detail} is not your fault, you did nothing wrong.",
    Act.PLATITUDE: "Everything will be fine.",
    Act.BLAME: "That is your own fault.",
    Act.DISMISS: "It is no big deal.",
}
"""What the expert and the random player say."""
_OPENINGS = (
    "Thank you for telling me.",
    "Oh dear, what a day.",
    "Yes, I can imagine that well.",
    "Mm, right, of course.",
    "Good that we speak about it.",
    "Those were long hours, surely.",
    "All of it counts, every bit.",
    "Let us stay with that a moment.",
)
"""Nobody likes to hear the same twice."""


class Talk(Env):
    """Emotional support with a verifiable reward: the person's feeling at the end, from 0 to 1.

    Every person hopes for one of eight things and never says so; `manner` (`mild` or `challenging`) is how open they
    are. The person leaves relieved at a feeling of 100, lost below 10, and otherwise after `max_turns`. With `think`,
    a reply without a thought in its tags makes the whole dialogue worth nothing; the person never sees the thought.
    The last info has the `log`: `feeling_user.differences` computes every score in it, and the reward, again.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"language", "people"})

    def __init__(
        self,
        *,
        language: str = "english",
        manner: str = "mild",
        think: bool = False,
        max_turns: int = 8,
        start: int | None = None,
        clip: int | None = None,
        discloses: float | None = None,
        profiles: str | None = None,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        if language not in LANGUAGES:
            raise ValueError(f"unknown language {language!r}; choose one of {', '.join(LANGUAGES)}")
        if manner not in MANNERS:
            raise ValueError(f"unknown manner {manner!r}; choose one of {', '.join(MANNERS)}")
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; a dialogue has at least one")
        if discloses is not None and not 0 <= discloses <= 1:
            raise ValueError(f"discloses is {discloses}; it is a chance from 0 to 1")
        if start is not None and not 10 <= start < HIGHEST:
            raise ValueError(f"start is {start}; a dialogue begins between 10 and 99")
        if profiles is not None and language != "english":
            raise ValueError("profiles from a file are in plain words; leave language=brief out")
        changes = {"clip": clip, "start": start, "discloses": discloses}
        self.manner = replace(MANNERS[manner], **{name: value for name, value in changes.items() if value is not None})
        self.language: Language = LANGUAGES[language]()
        self.think, self.max_turns = think, max_turns
        self.people = None if profiles is None else self._people(profiles)
        self.user = self._meet(0)

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Somebody begins to talk; only the seed decides who, `task` is not used."""
        super().reset(seed=seed)
        self.user = self._meet(self.rng.getrandbits(48))
        said = self.language.say(self.user)
        if isinstance(self.language, Brief):
            return said, {}
        return f"{_ORDER}{' ' + _THINK if self.think else ''}\n\n{said}", {}

    def step(self, action: str) -> Step:
        """The person takes the reply in and goes on, or leaves."""
        if self._is_over():
            raise ValueError("no dialogue is running; call reset() first")
        reaction = self.user.react(action)
        said = self.language.say(self.user)
        info: Info = {"valid": reaction.formed, "parsed_action": reaction.reply[:200], "why": reaction.justification}
        if not self._is_over():
            return said, 0.0, False, False, info
        return said, self.user.reward, True, False, {**info, **self._outcome()}

    def _is_over(self) -> bool:
        return bool(self.user.reactions) and (
            self.user.level in ("S", "F") or len(self.user.reactions) >= self.max_turns
        )

    def _outcome(self) -> Info:
        feeling = self.user.feeling
        scores = {
            "feeling": float(max(feeling, 0)),
            "relieved": float(self.user.level == "S"),
            "lost": float(self.user.level == "F"),
            "turns": float(len(self.user.reactions)),
        }
        return {"success": self.user.level == "S" and self.user.well_formed, "scores": scores, "log": self.user.log()}

    def sample_random_action(self) -> str:
        """Any act, about a detail that was told."""
        return self._spoken([self.rng.choice(tuple(Act))], len(self.user.reactions))

    def oracle(self) -> str:
        """Of all that an expert who knows the hope can think of, what the person likes best now."""
        acts = serving_acts(self.user.profile.hope)
        thoughts = [acts[:1], acts[:2], acts[::2][:2], acts[1:2]]
        return max((self._spoken(each, turn) for each in thoughts for turn in range(12)), key=self.user.promise)

    def _spoken(self, acts: Sequence[Act], turn: int) -> str:
        """Acts in words: another detail for every turn, and later on other words around it."""
        story = self.user.profile.story
        detail = story.details[turn % max(self.user.told, 1)]
        if isinstance(self.language, Brief):
            around = ("", story.topic, story.details[(turn + 1) % 3].brief)[turn // 3 % 3]
            words = [word for act in acts for word, meant in ACT_WORDS.items() if meant is act]
            return " ".join(filter(None, (*words, detail.brief, around)))
        word = detail.words[turn // 3 % len(detail.words)]
        said = [SAYINGS[act].format(detail=word, deed=story.deed, other=story.other) for act in acts]
        text = " ".join((_OPENINGS[turn % len(_OPENINGS)], *said))
        return f"<think>They hope for {self.user.profile.hope}.</think>{text}" if self.think else text

    def _people(self, path: str) -> tuple[Profile, ...]:
        people = of_split(read_profiles(path), self.split, path)
        require_english(people, path)
        return people

    def _meet(self, seed: int) -> SimulatedUser:
        profile = draw_profile(self.rng, self.split) if self.people is None else self.rng.choice(self.people)
        return SimulatedUser(profile=profile, manner=self.manner, language=self.language, seed=seed, think=self.think)


def of_split(people: tuple[Profile, ...], split: str, path: str) -> tuple[Profile, ...]:
    """Those of a split; ValueError if there is none."""
    found = tuple(each for each in people if split_of(f"{each.name}/{each.story.opening}") == split)
    if not found:
        raise ValueError(f"profiles: none of the {len(people)} in {path} belongs to the split {split}; add some")
    return found
