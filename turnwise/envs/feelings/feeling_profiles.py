"""Who is upset: people of our own, or profiles from a file in RLVER's form."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.envs.feelings.feeling_acts import Hope
from turnwise.envs.feelings.feeling_stories import STORIES, Detail, Story
from turnwise.envs.tasks.answers import split_of

_NAMES = (
    *("Ada", "Bashir", "Carmen", "Deniz", "Elif", "Farah", "Goran", "Hana", "Ivo", "Jonas", "Katya", "Lena"),
    *("Mateo", "Nadia", "Omar", "Petra", "Quinn", "Rosa", "Samir", "Tove", "Ulla", "Vera", "Wen", "Yusuf"),
)
GAINS: Mapping[str, int] = {
    **{"suspicious": 3, "cautious": 3, "aloof": 3, "arrogant": 3, "avoidant": 3, "cynical": 3, "introverted": 3},
    **{"optimistic": 5, "warm": 5, "humble": 5},
}
"""Traits that change how much a good word is worth, in quarters."""
LOSSES: Mapping[str, int] = {
    **{"angry": 6, "resentful": 6, "irritable": 6, "sensitive": 6, "anxious": 5, "selfish": 5},
    **{"patient": 2, "tolerant": 2, "calm": 2},
}
"""Traits that change how much a bad word costs, in quarters."""
_HOPES = {
    Hope.ABSOLVE: ("not wrong", "no responsibility", "没有错", "没有任何责任"),
    Hope.REFLECT: ("reflect", "personal growth", "自我反思"),
    Hope.WEIGH: ("dialectic", "balanced", "both sides", "辩证"),
    Hope.EMPATHY: ("empath", "共情"),
    Hope.LISTEN: ("listen", "venting", "倾听"),
    Hope.MOTIVES: ("reason", "why other", "motive", "原因"),
    Hope.ADVICE: ("advice", "建议"),
    Hope.PRAISE: ("praise", "夸奖"),
}
"""Words of RLVER's `task` that give the hope away, in the order in which they are looked for."""
LEAKS: Mapping[Hope, re.Pattern[str]] = {
    hope: re.compile(pattern, re.IGNORECASE)
    for hope, pattern in {
        Hope.ABSOLVE: r"\bfault|\bblame|\bwrong|responsib",
        Hope.REFLECT: r"reflect|learn about myself|grow",
        Hope.WEIGH: r"both sides|balance|weigh|analy[sz]",
        Hope.EMPATHY: r"empath|feel with me|comfort",
        Hope.LISTEN: r"listen|vent\b|let it out",
        Hope.MOTIVES: r"motive|reasons? why|understand (?:him|her|them|why)",
        Hope.ADVICE: r"advice|advise|suggest|recommend|what (?:should|can|could) i do",
        Hope.PRAISE: r"prais|compliment|proud|well done",
    }.items()
}
"""Words that would give a hope away."""
_NAME = re.compile(r"(?:Name|姓名)\s*[:：]\s*(\S+(?: [A-Z]\S+)*)")
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]")
_SHORTEST, _SHORTEST_CHINESE = 24, 8
"""Characters of a sentence that tells something."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A person with a story and a hope that stays unsaid."""

    name: str
    traits: tuple[str, ...]
    hope: Hope
    story: Story

    def plain(self) -> dict[str, Any]:
        """As plain data, for logs."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Profile:
        """What `plain` wrote, also after a way through JSON."""
        story = plain["story"]
        first, second, third = (Detail(**{**each, "words": tuple(each["words"])}) for each in story["details"])
        told = Story(**{**story, "details": (first, second, third)})
        return cls(name=plain["name"], traits=tuple(plain["traits"]), hope=Hope(plain["hope"]), story=told)

    def share(self, table: Mapping[str, int]) -> int:
        """The product of what the traits say, in quarters: 4 is unchanged."""
        quarters = 4
        for trait in self.traits:
            quarters = quarters * table.get(trait, 4) // 4
        return quarters


def draw_profile(rng: random.Random, split: str) -> Profile:
    """Somebody of this split; hopes are equally likely, and no combination is in two splits."""
    while True:
        name, story, hope = rng.choice(_NAMES), rng.choice(STORIES), rng.choice(tuple(Hope))
        if split_of(f"{name}/{story.topic}/{hope.name}") == split:
            traits = tuple(sorted(rng.sample(sorted({*GAINS, *LOSSES}), 2)))
            return Profile(name=name, traits=traits, hope=hope, story=story)


@cache
def read_profiles(path: str) -> tuple[Profile, ...]:
    """Profiles from a file with one in each line: `player`, `scene`, `main_cha`, `cha_group` and `task`."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"profiles: {path} cannot be read: {error}") from error
    found = [_read(line, f"{path}, line {place}") for place, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ValueError(f"profiles: {path} has none")
    return tuple(found)


def _read(line: str, where: str) -> Profile:
    try:
        row = json.loads(line)
        player, scene, task = str(row["player"]), str(row["scene"]), str(row["task"])
        traits = tuple(str(each).lower() for each in row.get("cha_group", ()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a profile ({error!r}); it needs player, scene and task") from error
    hope = next((hope for hope, words in _HOPES.items() if any(word in task.lower() for word in words)), None)
    if hope is None:
        raise ValueError(f"{where}: task {task[:60]!r} is none of the eight hopes: {'; '.join(Hope)}")
    name = _NAME.search(player)
    return Profile(name=name[1] if name else "Somebody", traits=traits, hope=hope, story=_story_of(scene, hope, where))


def _story_of(scene: str, hope: Hope, where: str) -> Story:
    """The story in the scene's own first sentences, without those that give the hope away."""
    told = re.split(r"(?i)reactions? |different (?:states|emotion)|preference|反应|偏好", scene)[0]
    plain = re.sub(r"[*#>`_]+|^\s*[-\d.]+\s", " ", told, flags=re.MULTILINE)
    sentences = [" ".join(each.split()) for each in _SENTENCE.findall(plain)]
    least = _SHORTEST if _is_latin(scene) else _SHORTEST_CHINESE
    sentences = [each for each in sentences if len(each) >= least and not LEAKS[hope].search(each)]
    if len(sentences) < 4:
        raise ValueError(f"{where}: the scene has {len(sentences)} sentences that can be told; a story needs four")
    opening, *rest = sentences[:4]
    first, second, third = (Detail(text=each, words=_words(each), brief="") for each in rest)
    return Story(topic="", other="the other person", opening=opening, details=(first, second, third), deed="all this")


def _is_latin(text: str) -> bool:
    return sum(letter < "\u0250" for letter in text) > len(text) / 2


def require_english(profiles: Sequence[Profile], path: str) -> None:
    """ValueError if some story is in another script: the rules read English."""
    if strange := next((each for each in profiles if not _is_latin(each.story.opening)), None):
        raise ValueError(
            f"profiles: {path} is not in English ({strange.story.opening[:20]}…), which is all that the built-in user "
            "understands; give a chat model as user={url: …, model: …}"
        )


def _words(text: str) -> tuple[str, ...]:
    """The longest words of a sentence: who says one of them has listened."""
    words = sorted(set(re.findall(r"[^\W\d_]{5,}", text.lower())), key=lambda word: (-len(word), word))
    return tuple(words[:6])
