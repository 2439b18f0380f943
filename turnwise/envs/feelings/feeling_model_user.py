"""A chat model as the person who is upset, in RLVER's two steps: what the reply does to them, and what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnwise.chat_endpoint import ChatEndpoint
from turnwise.envs.base import Execution
from turnwise.envs.feelings.feeling_profiles import Profile, read_profiles
from turnwise.envs.feelings.feeling_talk import Talk, of_split
from turnwise.envs.feelings.feeling_user import Heard, Manner, Reaction, SimulatedUser, actions_of, compare
from turnwise.untrusted import parse_shallow, printable

_PLAN = """You simulate how a person feels in a conversation. The person is {name} ({traits}). What happened to them:
{story}
They hope for this and never say so: {hope}.
Their feeling is {feeling} of 100. Look at the last reply in the conversation: what does it say, does it serve what they
talk about and what they hope for, what goes on inside them? Answer with one JSON object and nothing else:
{{"content": "...", "purpose": "...", "inner": "...", "feeling": "...", "change": INTEGER}}
where change says by how much the feeling rises or falls."""
_SAY = """You are {name} ({traits}) and talk to somebody about what happened to you:
{story}
You feel like this: {inner} Your feeling is {feeling} of 100; {manner}
Say your next lines, at most three sentences, as a person speaks. Never say what you hope for, which is: {hope}.
If your feeling is 100, thank them and say goodbye; below 10, say goodbye."""
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_MOST, _LONGEST = 100, 10_000
"""The most that a plan can change, and the most characters of an answer that are read."""
_GOODBYE = re.compile(r"\b(?:good-?bye|bye)\b|再见", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the model says about a reply: its change, and why."""

    change: int
    why: str
    inner: str

    @classmethod
    def read(cls, answer: str) -> Plan:
        """The first object in an answer; ValueError if there is none with a whole number `change`."""
        found = _OBJECT.search(answer)
        try:
            said = parse_shallow(json.loads, found[0]) if found else {}
            change = int(said["change"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"the user model must answer with JSON that has a change, got {answer[:200]!r}") from error
        parts = [printable(str(said.get(key, ""))) for key in ("content", "purpose", "inner", "feeling")]
        return cls(change=max(-_MOST, min(_MOST, change)), why=" ".join(filter(None, parts)), inner=parts[2])


@dataclass(kw_only=True)
class ModelledUser(SimulatedUser):
    """A person whose feeling a chat model judges; the log keeps its answers, from which all scores follow."""

    endpoint: ChatEndpoint
    answers: list[str] = field(default_factory=list[str])
    """What the model said about each reply."""
    chat: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def react(self, action: str) -> Reaction:
        """Ask the model what the reply does."""
        self.chat.append({"role": "user", "content": printable(self.see(action)[0][:_LONGEST])})
        answer = self._ask(self._fill(_PLAN))
        self.answers.append(answer)
        return self.take(action, Plan.read(answer))

    def take(self, action: str, plan: Plan) -> Reaction:
        """Change the feeling as a plan says."""
        return self._change(action, acts=(), reasons=((plan.why, self._clipped(plan.change)),))

    def speak(self) -> str:
        """The person's next words."""
        if not self.chat:
            story = self.profile.story
            said = f"{story.opening} {story.details[0].text}"
        else:
            inner = self.reactions[-1].reasons[0][0]
            said = self._ask(self._fill(_SAY, inner=inner))
        self.chat.append({"role": "assistant", "content": said})
        return said

    def _ask(self, system: str) -> str:
        """The model's answer without its thought, as text that is safe in logs, prompts and terminals."""
        answer = self.endpoint.reply([{"role": "system", "content": system}, *self.chat])
        return printable(answer.rpartition("</think>")[2].strip()[:_LONGEST])

    def _fill(self, template: str, inner: str = "") -> str:
        story = self.profile.story
        return template.format(
            name=self.profile.name,
            traits=", ".join(self.profile.traits),
            story=" ".join((story.opening, *(detail.text for detail in story.details))),
            hope=self.profile.hope,
            feeling=self.feeling,
            inner=inner,
            manner="you open up easily." if self.manner.discloses > 0.5 else "you find it hard to open up.",
        )

    def log(self) -> dict[str, Any]:
        """All that decides the scores, and the scores."""
        return {**super().log(), "answers": list(self.answers)}


class _Spoken:
    """The language of a modelled user: the model hears for itself."""

    def hear(self, reply: str, profile: Profile) -> Heard:
        return Heard(acts=(), details=(), words=frozenset())

    def say(self, user: SimulatedUser) -> str:
        assert isinstance(user, ModelledUser)
        return user.speak()


def make_talk(*, user: Mapping[str, Any] | None = None, **options: Any) -> Talk:
    """`make("feelings/talk")`: a person who follows rules, or a chat model as the `user`."""
    return Talk(**options) if user is None else ModelTalk(user=user, **options)


class ModelTalk(Talk):
    """`make("feelings/talk", user={"url": "http://127.0.0.1:8000/v1", "model": "m"})`: a chat model is the person.

    `user` may also have `seconds` (for an answer) and `options` of every request; the temperature is 0 unless they say
    otherwise. A word of parting ends the dialogue, as the two limits of the feeling do.
    """

    execution: ClassVar[Execution] = "thread"
    shared: ClassVar[frozenset[str]] = Talk.shared | {"endpoint"}

    def __init__(self, *, user: Mapping[str, Any], **options: Any) -> None:
        said = {"seconds": 60.0, "options": {}, **user}
        if wrong := {"url", "model"} - said.keys() or said.keys() - {"url", "model", "seconds", "options"}:
            raise ValueError(f"user: {min(wrong)!r} is missing or unknown; it has url and model, seconds and options")
        self.endpoint = ChatEndpoint(
            said["url"], model=said["model"], seconds=said["seconds"], options={"temperature": 0, **said["options"]}
        )
        super().__init__(**options)
        self.language = _Spoken()

    def _people(self, path: str) -> tuple[Profile, ...]:
        return of_split(read_profiles(path), self.split, path)  # in any language

    def _meet(self, seed: int) -> SimulatedUser:
        plain = super()._meet(seed)
        return ModelledUser(
            profile=plain.profile,
            manner=plain.manner,
            language=_Spoken(),
            seed=seed,
            think=self.think,
            endpoint=self.endpoint,
        )

    def _is_over(self) -> bool:
        user = self.user
        assert isinstance(user, ModelledUser)
        spoke = user.reactions and user.chat[-1]["role"] == "assistant"
        return super()._is_over() or bool(spoke and _GOODBYE.search(user.chat[-1]["content"]))

    def has_oracle(self) -> bool:
        """Nobody knows what a model likes best."""
        return False


def differences_from_answers(log: Mapping[str, Any]) -> list[str]:
    """Where a log says something else than the model's own answers in it do: empty for a sound one."""
    user = ModelledUser(
        profile=Profile.from_plain(log["profile"]),
        manner=Manner(**log["manner"]),
        language=_Spoken(),
        seed=int(log["seed"]),
        think=bool(log["think"]),
        endpoint=ChatEndpoint("http://127.0.0.1", model="none"),
    )
    for action, answer in zip(actions_of(log), log["answers"], strict=True):
        user.take(action, Plan.read(answer))
    return compare(log, user)
