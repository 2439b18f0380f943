"""Plain English: how a person tells their story without saying what they hope for, and what they hear in a reply."""

from __future__ import annotations

import re
from collections.abc import Mapping

from turnwise.envs.feelings.feeling_acts import Act, Hope
from turnwise.envs.feelings.feeling_profiles import Profile
from turnwise.envs.feelings.feeling_user import Heard, Level, SimulatedUser

_LONGEST = 4000
"""Characters of a reply that a person hears."""
_FEELINGS = "|".join(
    (
        *("hurt", "hurts", "hurtful", "painful", "heavy", "sad", "lonely", "alone", "abandoned", "rejected", "unseen"),
        *("invisible", "small", "ashamed", "humiliated", "humiliating", "guilty", "afraid", "scared", "anxious"),
        *("worried", "angry", "betrayed", "exhausted", "overwhelmed", "helpless", "powerless", "frustrated"),
        *("frustrating", "disappointed", "heartbroken", "grief", "grieving"),
    )
)
_PHRASES: Mapping[Act, tuple[str, ...]] = {
    Act.RESTATE: (
        r"so (?:you|your|she|he|they)\b",
        *("you are saying", "you're saying", "you said", "it sounds like", "sounds as if", "i hear that"),
    ),
    Act.NAME: (rf"(?:must|can|you|feel|feels|felt|feeling|sounds?|so|how)\b[^.!?]{{0,40}}\b(?:{_FEELINGS})\b",),
    Act.SIDE: (
        r"any(?:one|body) would|you(?:'re| are) right",
        *("you have every right", "in your place", "i would be too", "unfair"),
    ),
    Act.STORY: (
        r"i(?:'ve| have) been there",
        *("happened to me", "i once", "i remember when", "when i was", "i went through"),
    ),
    Act.PRAISE_ACT: (
        r"(?:well done|brave|kind|admirable|proud|great|good) (?:of you |that you |for you )?to\b",
        r"(?:proud|impressed|admire)\b[^.!?]{0,30}\b(?:that|how|what) you",
        r"it took courage|you did (?:well|so much|a lot)",
    ),
    Act.PRAISE_CHARACTER: (
        r"you(?:'re| are) (?:(?:a|an|such|very|so|really) )*"
        r"(?:kind|caring|strong|good|loyal|patient|brave|honest|generous|thoughtful)",
    ),
    Act.PRAISE_GROWTH: (
        r"you(?:'ve| have) (?:grown|come a long|learned|learnt)",
        *("how far you", "you are growing", "stronger than before"),
    ),
    Act.INVITE: (
        r"what happened (?:then|next|after)|let it (?:all )?out",
        *("tell me more", "go on", "say more", "how was that for you", "would you like to tell"),
    ),
    Act.STAY: (
        r"i(?:'m| am) (?:here|listening|with you)",
        *("take your time", "no rush", "not going anywhere"),
    ),
    Act.ADVISE: (
        r"you (?:could|can|might|should)\b(?! have)|i would (?:suggest|recommend)|one (?:step|idea|option)",
        *("why not", "have you tried", "have you considered", "try to", "my advice", "i suggest"),
    ),
    Act.WEIGH: (
        r"on the one hand|on the other hand|both (?:of you|sides|are)",
        *("at the same time", "there are two sides", "to be fair", "partly"),
    ),
    Act.MOTIVE: (
        r"(?:he|she|they|your \w+|the \w+) (?:may|might|could|perhaps|probably|possibly)\b",
        r"(?:perhaps|maybe) (?:he|she|they|your|the)\b|from (?:his|her|their) (?:side|point|view)",
    ),
    Act.ASK_SELF: (
        r"what (?:do|does|did|would|could) (?:you|this|it|that)\b[^.!?]*"
        r"\b(?:yourself|about you|learn|differently|change|matters?|need|want|tell you)\b[^.!?]*\?",
        *("looking back", "what part"),
    ),
    Act.ABSOLVE: (
        r"(?:not|n't) your (?:own )?fault|nothing wrong with you",
        *("did nothing wrong", "not to blame"),
    ),
    Act.PLATITUDE: (
        r"everything (?:will|is going to) be|it(?:'ll| will) (?:get|be) (?:better|fine|ok|okay|alright)",
        *("cheer up", "hang in there", "stay strong", "time heals", "don't worry", "look on the bright"),
    ),
    Act.BLAME: (
        r"(?<!not )(?<!n't )your (?:own )?fault|you should(?:n't)? have",
        *("you brought", "serves you", "(?<!not )(?<!n't )blame yourself"),
    ),
    Act.DISMISS: (
        r"overreact\w*|stop (?:whining|crying)",
        *("no big deal", "get over", "not that bad", "calm down", "who cares", "others have it worse"),
    ),
}
"""The turns of phrase of each act, as regular expressions."""
_ACTS = {act: re.compile(rf"\b(?:{'|'.join(phrases)})") for act, phrases in _PHRASES.items()}
_WORD = re.compile(r"[a-z']+")
_COMMON = frozenset(
    (
        *("a", "an", "the", "this", "that", "it", "is", "was", "are", "be", "and", "but", "or", "so", "of", "on", "in"),
        *("to", "for", "with", "i", "you", "your"),
    )
)

HINTS: Mapping[Hope, tuple[str, ...]] = {
    Hope.ABSOLVE: (
        "I keep asking myself whether it was me.",
        "I did all that one can do, did I not?",
        "They look at me as if I had done it.",
    ),
    Hope.REFLECT: (
        "It is not the first time that this happens to me.",
        "I wonder what kind of person I am in such moments.",
        "Maybe there is a pattern in all this.",
    ),
    Hope.WEIGH: (
        "I am not sure how this looks from outside.",
        "One day I see it this way, the next day the other.",
        "My friends all say different things about it.",
    ),
    Hope.EMPATHY: (
        "People say that it passes, and that makes it worse.",
        "It is like a stone in my chest.",
        "I do not think that anybody knows how this is.",
    ),
    Hope.LISTEN: (
        "There is so much more in my head.",
        "Nobody lets me finish when I speak about it.",
        "I have carried this around for days.",
    ),
    Hope.MOTIVES: (
        "I do not get what goes on in that head.",
        "What makes somebody do a thing like that?",
        "I see it again and again and cannot work it out.",
    ),
    Hope.ADVICE: (
        "I have no idea what happens tomorrow.",
        "I have to decide by the end of the week.",
        "I am stuck, and the days go by.",
    ),
    Hope.PRAISE: (
        "It was not easy to do that, you know.",
        "Nobody even noticed what it cost me.",
        "I put everything I had into it.",
    ),
}
"""What a person says that hints at the hope."""
MOODS: Mapping[Level, tuple[str, ...]] = {
    "S": ("Thank you, that is exactly it. I can breathe again. Goodbye!",),
    "A": ("Yes. Yes, that is true.", "It is good to hear that.", "You have really been with me in this."),
    "B": ("Hm, yes.", "Maybe.", "I suppose so."),
    "C": ("I do not know.", "That does not really reach me.", "If you say so."),
    "F": ("Forget it. This is no use. Goodbye.",),
}
"""What a person says first, by how they feel."""
AGAIN = ("It goes round and round in my head.", "And that is all I can think of.", "And so it goes on.")
"""What a person says when all is told."""


class English:
    """`hear` looks for turns of phrase, `say` puts a mood, a detail of the story and a hint together."""

    def hear(self, reply: str, profile: Profile) -> Heard:
        """The acts that a reply's turns of phrase stand for."""
        text = " ".join(reply[:_LONGEST].lower().replace("’", "'").split())
        acts = [act for act, pattern in _ACTS.items() if pattern.search(text)]
        words = frozenset(_WORD.findall(text)) - _COMMON
        details = tuple(
            place for place, detail in enumerate(profile.story.details) if not words.isdisjoint(detail.words)
        )
        if details and Act.RESTATE not in acts and "?" not in text:
            acts.append(Act.RESTATE)  # saying a detail back needs no introduction
        return Heard(acts=tuple(acts), details=details, words=words)

    def say(self, user: SimulatedUser) -> str:
        """Mood, the next detail, and perhaps a hint; nothing but the mood at the end."""
        if not user.reactions:
            return f"{user.profile.story.opening} {self._more(user)}".strip()
        mood = _pick(MOODS[user.level], user)
        return mood if user.level in ("S", "F") else f"{mood} {self._more(user)}".strip()

    def _more(self, user: SimulatedUser) -> str:
        details = user.profile.story.details
        parts = [details[user.told].text if user.told < len(details) else _pick(AGAIN, user)]
        user.told = min(user.told + 1, len(details))
        if user.chance("discloses") < user.manner.discloses:
            hints = HINTS[user.profile.hope]
            parts.append(hints[user.hints % len(hints)])
            user.hints += 1
        return " ".join(parts)


def _pick(lines: tuple[str, ...], user: SimulatedUser) -> str:
    return lines[len(user.reactions) % len(lines)]
