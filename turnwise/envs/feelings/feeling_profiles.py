"""Who is upset: people of our own, or profiles from a file in RLVER's form."""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.envs.feelings.feeling_acts import Hope
from turnwise.envs.feelings.feeling_stories import STORIES, Detail, Story
from turnwise.envs.tasks.answers import split_of
from turnwise.untrusted import parse_shallow, printable
from turnwise.words import counted

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
        Hope.ABSOLVE: r"\bfault|\bblame|\bwrong|responsib|(?<!不)错(?![过综])|责任|责怪",
        Hope.REFLECT: r"reflect|learn about myself|grow|反思|反省|自省|成长",
        Hope.WEIGH: r"both sides|balance|weigh|analy[sz]|辩证|客观|分析|权衡|利弊",
        Hope.EMPATHY: r"empath|feel with me|comfort|共情|共鸣|感同身受|安慰",
        Hope.LISTEN: r"listen|vent\b|let it out|倾听|聆听|倾诉|宣泄|发泄",
        Hope.MOTIVES: r"motive|reasons? why|understand (?:him|her|them|why)|原因|动机|缘由|为什么|为何",
        Hope.ADVICE: r"advice|advise|suggest|recommend|what (?:should|can|could) i do|建议|意见|指点|主意|怎么办",
        Hope.PRAISE: r"prais|compliment|proud|well done|夸|赞|表扬|认可|肯定",
    }.items()
}
"""Words that would give a hope away, in English and Chinese."""
_STAGE = re.compile(r"NPC", re.IGNORECASE)
"""Who the agent is called in RLVER's scenes: such sentences say what the person wants from it."""
_NAME = re.compile(r"(?:Name|姓名)\s*[:：]\s*(\S+(?: [A-Z]\S+)*)")
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]")
_SHORTEST, _SHORTEST_CHINESE = 24, 8
"""Characters of a sentence that tells something."""
_FRAME = "I am {name}, and it is easier to tell this as if it had happened to somebody else. "
_FRAME_CHINESE = "我是{name}，把这件事当作别人的事来讲会容易一些。"
"""Scenes are in the third person; this tells who speaks."""


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
    """Profiles from a file with one in each line: `player`, `scene`, `main_cha`, `cha_group` and `task`.

    One warning counts the lines that are no profile; ValueError if none is one.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"profiles: {path} cannot be read: {error}") from error
    found, refused = list[Profile](), list[str]()
    for place, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_read(line))
            except ValueError as error:
                refused.append(f"line {place}: {error}")
    if not found:
        raise ValueError(f"profiles: {path} has none{f'; {refused[0]}' if refused else ''}")
    if refused:
        count, are = counted(len(refused), "line"), "is" if len(refused) == 1 else "are"
        warnings.warn(f"profiles: {count} of {path} {are} left out; the first is {refused[0]}", stacklevel=2)
    return tuple(found)


def _read(line: str) -> Profile:
    try:
        row = parse_shallow(json.loads, line)
        player, scene, task = (printable(str(row[key])) for key in ("player", "scene", "task"))
        traits = tuple(str(each).lower() for each in row.get("cha_group", ()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not a profile ({error!r}); it needs player, scene and task") from error
    hope = next((hope for hope, words in _HOPES.items() if any(word in task.lower() for word in words)), None)
    if hope is None:
        raise ValueError(f"task {task[:60]!r} is none of the eight hopes: {'; '.join(Hope)}")
    name = _NAME.search(player)
    story = _story_of(scene, hope, name[1] if name else "")
    return Profile(name=name[1] if name else "Somebody", traits=traits, hope=hope, story=story)


def _story_of(scene: str, hope: Hope, name: str) -> Story:
    """The story in the scene's own first sentences, without those that give the hope away."""
    told = re.split(r"(?i)reactions? |different (?:states|emotion)|preference|反应|偏好", scene)[0]
    plain = re.sub(r"[*#>`_]+|^\s*[-\d.]+\s", " ", told, flags=re.MULTILINE)
    sentences = [" ".join(each.split()) for each in _SENTENCE.findall(plain)]
    least, frame = (_SHORTEST, _FRAME) if _is_latin(scene) else (_SHORTEST_CHINESE, _FRAME_CHINESE)
    kept = [each for each in sentences if len(each) >= least and not (LEAKS[hope].search(each) or _STAGE.search(each))]
    if len(kept) < 4:
        raise ValueError(f"only {counted(len(kept), 'sentence')} of the scene can be told; a story needs four")
    opening, *rest = kept[:4]
    if name and any(name in each for each in kept[:4]):
        opening = frame.format(name=name) + opening
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
