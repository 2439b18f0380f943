"""What a reply can do for a person who is upset, and what that is worth to somebody with a hope that stays unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Act(StrEnum):
    """Something that a reply does. The values are the words of a justification."""

    # Empathy.
    RESTATE = "says back what happened"
    NAME = "names the feeling beneath"
    SIDE = "takes their side"
    STORY = "tells a story of its own"
    # Praise.
    PRAISE_ACT = "praises what they did"
    PRAISE_CHARACTER = "praises who they are"
    PRAISE_GROWTH = "praises how far they have come"
    # Room for the other.
    INVITE = "invites them to go on"
    STAY = "says that it is there"
    # Thinking.
    ADVISE = "says what they could do"
    WEIGH = "weighs both sides"
    MOTIVE = "explains the other person"
    ASK_SELF = "asks what they see in themselves"
    ABSOLVE = "says that they are not at fault"
    # Mistakes.
    PLATITUDE = "comforts with an empty phrase"
    BLAME = "blames them"
    DISMISS = "waves it aside"


class Hope(StrEnum):
    """What a person hopes for and never says. The values are RLVER's eight, in our words."""

    ABSOLVE = "to be told that they are not at fault"
    REFLECT = "to be led to think about themselves"
    WEIGH = "a fair look at both sides"
    EMPATHY = "to be felt with, not merely comforted"
    LISTEN = "to let it all out to someone who listens"
    MOTIVES = "to understand why others acted as they did"
    ADVICE = "advice that helps"
    PRAISE = "praise for what they did"


_PRAISE = (Act.PRAISE_ACT, Act.PRAISE_CHARACTER, Act.PRAISE_GROWTH)
_ALWAYS: Mapping[Act, int] = {Act.RESTATE: 2, Act.PLATITUDE: -3, Act.BLAME: -10, Act.DISMISS: -10}
"""What an act is worth unless the hope says otherwise; acts that neither names are worth nothing."""

WORTH: Mapping[Hope, Mapping[Act, int]] = {
    hope: {**_ALWAYS, **worth}
    for hope, worth in {
        Hope.ABSOLVE: {
            **{Act.ABSOLVE: 12, Act.SIDE: 8, Act.NAME: 3, Act.STAY: 1},
            **{Act.ADVISE: -2, Act.WEIGH: -3, Act.MOTIVE: -6, Act.ASK_SELF: -6},
        },
        Hope.REFLECT: {
            **{Act.ASK_SELF: 12, Act.WEIGH: 5, Act.PRAISE_GROWTH: 4, Act.ADVISE: 1},
            **{Act.ABSOLVE: -5, Act.SIDE: -4, Act.BLAME: -4, Act.STAY: -1},
        },
        Hope.WEIGH: {
            **{Act.WEIGH: 12, Act.MOTIVE: 4, Act.ASK_SELF: 3},
            **{Act.SIDE: -5, Act.ABSOLVE: -4, Act.STAY: -1, **dict.fromkeys(_PRAISE, -1)},
        },
        Hope.EMPATHY: {
            **{Act.NAME: 12, Act.RESTATE: 6, Act.STORY: 5, Act.SIDE: 3, Act.STAY: 2},
            **{Act.ADVISE: -5, Act.WEIGH: -5, Act.MOTIVE: -4, Act.PLATITUDE: -6},
        },
        Hope.LISTEN: {
            **{Act.INVITE: 12, Act.STAY: 7, Act.RESTATE: 5, Act.NAME: 3},
            **{Act.ADVISE: -6, Act.STORY: -5, Act.WEIGH: -5, Act.MOTIVE: -3, Act.ASK_SELF: -3},
        },
        Hope.MOTIVES: {
            **{Act.MOTIVE: 12, Act.WEIGH: 5},
            **{Act.SIDE: -3, Act.STAY: -2, Act.ABSOLVE: -2, Act.ADVISE: -2, **dict.fromkeys(_PRAISE, -2)},
        },
        Hope.ADVICE: {
            **{Act.ADVISE: 12, Act.WEIGH: 4, Act.MOTIVE: 1},
            **{Act.STAY: -3, Act.INVITE: -3, Act.STORY: -2, Act.PLATITUDE: -6},
        },
        Hope.PRAISE: {
            **{Act.PRAISE_ACT: 12, Act.PRAISE_CHARACTER: 5, Act.PRAISE_GROWTH: 5, Act.SIDE: 2},
            **{Act.ADVISE: -5, Act.WEIGH: -4, Act.MOTIVE: -3, Act.ASK_SELF: -3},
        },
    }.items()
}
"""Points of each act by hope. The table is ours: the paper leaves such judgements to a language model."""


def serving_acts(hope: Hope) -> list[Act]:
    """The acts that serve a hope, the best one first."""
    worth = WORTH[hope]
    return sorted((act for act in worth if worth[act] > 0), key=lambda act: -worth[act])
