"""A language of single words for the smallest models: `boss report blank low` is a person, `name report` a reply."""

from __future__ import annotations

from turnwise.envs.feelings.feeling_acts import Act, Hope
from turnwise.envs.feelings.feeling_profiles import Profile
from turnwise.envs.feelings.feeling_stories import STORIES
from turnwise.envs.feelings.feeling_user import Heard, Level, SimulatedUser

ACT_WORDS = {
    **{"so": Act.RESTATE, "feel": Act.NAME, "unfair": Act.SIDE, "me": Act.STORY},
    **{"bravely": Act.PRAISE_ACT, "kind": Act.PRAISE_CHARACTER, "grown": Act.PRAISE_GROWTH},
    **{"go-on": Act.INVITE, "here": Act.STAY, "try": Act.ADVISE, "both": Act.WEIGH, "because": Act.MOTIVE},
    **{
        "yourself": Act.ASK_SELF,
        "innocent": Act.ABSOLVE,
        "fine": Act.PLATITUDE,
        "guilty": Act.BLAME,
        "nothing": Act.DISMISS,
    },
}
"""The word of each act."""
HINT_WORDS = {
    Hope.ABSOLVE: ("accused", "suspected"),
    Hope.REFLECT: ("again", "pattern"),
    Hope.WEIGH: ("unsure", "torn"),
    Hope.EMPATHY: ("stone", "unseen"),
    Hope.LISTEN: ("full", "interrupted"),
    Hope.MOTIVES: ("puzzled", "how-come"),
    Hope.ADVICE: ("stuck", "tomorrow"),
    Hope.PRAISE: ("effort", "unnoticed"),
}
MOOD_WORDS: dict[Level, str] = {"S": "relieved", "A": "better", "B": "hm", "C": "low", "F": "leaving"}
STORY_WORDS = tuple(
    dict.fromkeys(word for story in STORIES for word in (story.topic, *(d.brief for d in story.details)))
)
BRIEF_WORDS = tuple(
    dict.fromkeys(
        (*ACT_WORDS, *(word for words in HINT_WORDS.values() for word in words), *MOOD_WORDS.values(), *STORY_WORDS)
    )
)
"""All words of the language."""
_LONGEST = 200


class Brief:
    """Every word is an act, a detail, or nothing."""

    def hear(self, reply: str, profile: Profile) -> Heard:
        """The acts and details that are named."""
        words = reply[:_LONGEST].split()
        acts = tuple(dict.fromkeys(ACT_WORDS[word] for word in words if word in ACT_WORDS))
        named = {detail.brief: place for place, detail in enumerate(profile.story.details)}
        details = tuple(sorted({named[word] for word in words if word in named}))
        return Heard(acts=acts, details=details, words=frozenset(words))

    def say(self, user: SimulatedUser) -> str:
        """Topic or mood, the next detail, and perhaps a hint."""
        story = user.profile.story
        words = [MOOD_WORDS[user.level] if user.reactions else story.topic]
        if user.reactions and user.level in ("S", "F"):
            return words[0]
        if user.told < len(story.details):
            words.append(story.details[user.told].brief)
            user.told += 1
        if user.chance("discloses") < user.manner.discloses:
            words.append(HINT_WORDS[user.profile.hope][user.hints % 2])
            user.hints += 1
        return " ".join(words)
