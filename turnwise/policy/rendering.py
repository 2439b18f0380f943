"""From chat to token deltas: the template's own text decides what is new, and sampled tokens stay unchanged.

Every turn the whole conversation goes through the chat template *as text*. If that text begins with the text of the
tokens so far, the rest is the delta, and only the rest is tokenised. If it does not, the template has rewritten the
history (Qwen-3 drops old reasoning), and the conversation starts a new sequence, unless it is one that remembers. So
the prefix property is not assumed but checked. Special tokens come only from the template; what reads like one in a
message stays text.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from turnwise.policy.rendering_templates import TEMPLATES
from turnwise.policy.special_tokens import OTHER_TEMPLATE, choose_template, require_markers, special_ids, unknown_ids

# Two code points that Unicode reserves for internal use and that no text may contain. `_BREAK` splits what reads like a
# special token in a message; `_MARK` shows where a sampled turn ends in the template's text. Both prevent trimming.
_BREAK, _MARK = "\ufdd0", "\ufdd1"
_SHORTEST = 8
"""Optimistic characters per token: a text shorter than that is tokenised whole."""
_OPEN_REASONING = re.compile(r"<think>\s*\Z")
_NO_REASONING = re.compile(r"<think>\s*</think>\s*\Z")
"""What a generation prompt writes where the model must not think; templates drop it from earlier turns, too."""
_STAND_INS = ("\ufffd", "?", "")
"""Replacements for a character that a tokenizer reads as a whole special token: the first that is plain text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What to append before the next turn: `Prompt(ids=[7, 8])`; with `restarts` it is a whole prompt instead."""

    ids: list[int]
    restarts: bool = False


@dataclass(kw_only=True, slots=True)
class RenderStats:
    """What a renderer saw: how often a history was rewritten, and how often tokens do not spell the template's text."""

    prompts: int = 0
    restarts: int = 0
    altered: int = 0
    """Prompts whose tokens decode to a different text, as with tokenizers that normalise Unicode."""


class Renderer:
    """Turns conversations into tokens by a chat template: the tokenizer's own, a name in `TEMPLATES`, or jinja text.

    Example:

        conversation = Renderer(tokenizer, system="Answer in <answer> tags.").open()
        first = conversation.observe("Capital of France?")      # Prompt(ids=[1, 5, 6]): the whole first prompt
        text = conversation.record([40, 41, 2])                 # "Lyon": the sampled turn without its end token
        second = conversation.observe("Wrong, try again.")      # Prompt(ids=[7, 8]): only what is new
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template: str | None = None,
        system: str = "",
        observation_role: str = "user",
        prefix: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`observation_role` is the role of every observation but the first (Qwen-3 keeps its reasoning before "tool");
        `prefix` begins every turn in place of the model (`<Judgement>`); `options` are variables of the template, such
        as `{"enable_thinking": False}`."""
        self.stats = RenderStats()
        self.system, self.observation_role = system, observation_role
        self._tokenizer, self._options = tokenizer, dict(options or {})
        self._template = choose_template(tokenizer, template)
        self._special_ids = special_ids(tokenizer)
        self._forbidden_ids = frozenset(self._special_ids.values()) - unknown_ids(tokenizer)
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        self._special = re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")
        self._prefix = self.shield(prefix)
        if template in TEMPLATES:
            require_markers(template, self._special_ids)
        self.end_text, self.opening = self._probe()
        if not self.stop_ids:
            raise ValueError("neither the template nor the tokenizer has a token that ends a turn; set its eos_token")

    @property
    def end_id(self) -> int | None:
        """The token with which the template ends a turn."""
        return self._special_ids.get(self.end_text)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Sampling any of these ends a turn."""
        ends = (self.end_id, self._tokenizer.eos_token_id)
        return tuple(sorted({end for end in ends if isinstance(end, int)}))

    def open(self) -> Conversation:
        """A new conversation, with the system message if there is one."""
        conversation = Conversation(renderer=self)
        if self.system:
            conversation.messages.append({"role": "system", "content": self.shield(self.system)})
        return conversation

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens, including special ones."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def shield(self, text: str) -> str:
        """The text with everything that reads like a special token broken up, so that it stays text."""
        text = text.replace(_BREAK, "").replace(_MARK, "")
        return self._special.sub(lambda found: found[0][0] + _BREAK + found[0][1:], text)

    def shield_all(self, value: Any) -> Any:
        """The same value with every text in it shielded: for the structured parts of messages."""
        if isinstance(value, str):
            return self.shield(value)
        if isinstance(value, Mapping):
            return {self.shield(str(key)): self.shield_all(each) for key, each in value.items()}
        return [self.shield_all(each) for each in value] if isinstance(value, list) else value

    def surely_exceeds(self, text: str, tokens: int) -> bool:
        """Whether the text needs more than this many tokens, without reading all of a very long one.

        True only if a prefix of it needs twice as many: where a text is cut, its last word may be split
        differently, but no text has half the tokens of its own prefix.
        """
        size = _SHORTEST * tokens
        while size < len(text):
            if len(self._encode_text(text[:size])) > 2 * tokens:
                return True
            size *= 4
        return False

    def for_another_thread(self) -> Renderer:
        """The same renderer with its own tokenizer: a tokenizer used by two threads at once may raise."""
        twin = copy.copy(self)
        twin._tokenizer = copy.deepcopy(self._tokenizer)
        return twin

    def with_tokenizer_of(self, other: Renderer) -> Renderer:
        """The same renderer with another's tokenizer, such as one for another thread."""
        twin = copy.copy(self)
        twin._tokenizer = other._tokenizer
        return twin

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The template's own text for shielded messages."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=True,
            **self._options,
        )
        assert isinstance(text, str)
        return text + self._prefix

    def showing(self, tools: Sequence[Mapping[str, Any]]) -> Renderer:
        """The same renderer with tools for the template to show; ValueError if it shows none."""
        other = copy.copy(self)
        other._options = {**self._options, "tools": [self.shield_all(tool) for tool in tools]}
        probe = [{"role": "user", "content": "?"}]
        if other.render(probe) == self.render(probe):
            raise ValueError("the chat template shows no tools; describe them in the system message instead")
        return other

    def encode(self, text: str) -> list[int]:
        """Tokens of rendered text: special tokens come from the template, shielded text is plain."""
        ids: list[int] = []
        for piece in self._special.split(text):
            if piece in self._special_ids:
                ids.append(self._special_ids[piece])
            else:
                ids += self._encode_plain(piece)
        return ids

    def encode_keeping(self, text: str, turns: Sequence[Sequence[int]]) -> list[int]:
        """Tokens of a rewritten conversation; what is still visible of earlier turns keeps its sampled tokens."""
        *spoken, rest = text.split(_MARK)
        if len(spoken) != len(turns):  # the template dropped whole turns: nothing says which
            return self.encode(text.replace(_MARK, ""))
        ids: list[int] = []
        for part, turn in zip(spoken, turns, strict=True):
            kept, kept_text = self._visible(part, turn)
            ids += self.encode(part[: len(part) - len(kept_text)]) + kept
        return ids + self.encode(rest)

    def count(self, prompt: Prompt, text: str) -> None:
        """Update the statistics by comparing the text of the tokens with the template's."""
        self.stats.prompts += 1
        self.stats.restarts += prompt.restarts
        self.stats.altered += self.decode(prompt.ids) != text.replace(_BREAK, "")

    def _encode_plain(self, piece: str) -> list[int]:
        """Tokens of text without any special one; ordinary text is encoded whole, as the tokenizer would."""
        ids = self._encode_text(piece.replace(_BREAK, ""))
        return ids if self._is_plain(ids) else self._encode_apart(piece.split(_BREAK))

    def _encode_apart(self, parts: Sequence[str]) -> list[int]:
        """Tokens of parts that are cut until none of them reads like a special token.

        A tokenizer may find more markers than a message spells: it can normalise Unicode or case first, keep its
        markers in its vocabulary, or not call them special, so that it cannot be told to ignore them.
        """
        ids, waiting = list[int](), [*reversed(parts)]
        while waiting:
            part = waiting.pop()
            spelt = self._encode_text(part)
            if self._is_plain(spelt):
                ids += spelt
            elif len(part) == 1:
                ids += next(other for text in _STAND_INS if self._is_plain(other := self._encode_text(text)))
            else:
                waiting += reversed(self._cut(part))
        return ids

    def _cut(self, text: str) -> list[str]:
        """The text in two or more parts, cut inside every special token that the tokenizer finds in it."""
        places = set[int]()
        for start, end in self._special_spans(text):
            places |= {(start + end) // 2} if end - start > 1 else {start, end}
        inside = sorted(places - {0, len(text)}) or [len(text) // 2]
        return [text[start:end] for start, end in pairwise([0, *inside, len(text)])]

    def _special_spans(self, text: str) -> list[tuple[int, int]]:
        if not self._tokenizer.is_fast:  # tokenizers in Python do not report offsets
            return []
        found = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
        return [
            span
            for id, span in zip(found["input_ids"], found["offset_mapping"], strict=True)
            if id in self._forbidden_ids
        ]

    def _is_plain(self, ids: Sequence[int]) -> bool:
        return self._forbidden_ids.isdisjoint(ids)

    def _encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) if text else []

    def _visible(self, part: str, turn: Sequence[int]) -> tuple[list[int], str]:
        """The longest end of a sampled turn that `part` of the template's text ends with."""
        whole = self.decode(turn)

        def after(start: int) -> str:
            # Cut from the whole text, because some tokenizers decode a blank differently at the start of a text.
            return self.shield(whole.removeprefix(self.decode(turn[:start])))

        # Shorter ends fit wherever longer ones do, so bisection finds the longest; at worst nothing is kept.
        start = bisect_left(range(len(turn)), True, key=lambda start: part.endswith(after(start)))
        return list(turn[start:]), after(start) if start < len(turn) else ""

    def _probe(self) -> tuple[str, str]:
        """What ends a turn (a special token or nothing), and what the generation prompt writes for the model
        (`<think>` if a template starts the reasoning, and the prefix)."""
        messages = [{"role": "system", "content": self.shield(self.system)}] if self.system else []
        messages += [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!" + _MARK}]
        messages += [{"role": self.observation_role, "content": "?"}]
        try:
            _, mark, tail = self.render(messages).partition(_MARK)
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(
                f"the chat template rejects a conversation of {roles} ({error}); leave the system message empty "
                f"(model.system in a recipe), or {OTHER_TEMPLATE}"
            ) from error
        if not mark:
            raise ValueError(f"the chat template drops what the model said; {OTHER_TEMPLATE}")
        end, opening = self._special.match(tail), _OPEN_REASONING.search(tail.removesuffix(self._prefix))
        return end[0] if end else "", (opening[0] if opening else "") + self._prefix


@dataclass(kw_only=True)
class Conversation:
    """One seat's conversation: observations in, sampled turns in, token deltas out."""

    renderer: Renderer
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    turns: list[Sequence[int]] = field(default_factory=list[Sequence[int]])
    """The sampled tokens of every turn, without the end token."""
    text: str = ""
    """What the tokens of the current sequence spell, shielded."""
    remembers: bool = False
    """Whether a turn that the template rewrites stays in the sequence as it was sampled. If the template rewrites
    anything else, the conversation restarts all the same."""
    lead_ins: list[str] = field(default_factory=list[str])
    """What the template wrote before each turn, without the reasoning that it began for the model."""

    def observe(self, observation: str) -> Prompt:
        """Tokens of what comes before the next turn."""
        role = self.renderer.observation_role if self.turns else "user"
        return self.extend([{"role": role, "content": observation}])

    def extend(self, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """Tokens of several messages of any role; a system message that comes first replaces the renderer's own.

        An assistant's message among them is context: others said it, or a rewritten history says so.
        """
        renderer = self.renderer
        if not self.text and messages and messages[0]["role"] == "system":
            self.messages.clear()
        self.messages += [renderer.shield_all(dict(message)) for message in messages]
        rendered = renderer.render(self.messages)
        text = rendered.replace(_MARK, "")
        restarts = not text.startswith(self.text)
        new = text if restarts else text[len(self.text) :]
        if restarts and self.remembers and (following := self._after_last_turn(rendered)) is not None:
            restarts, new, text = False, following, self.text + following
        ids = renderer.encode_keeping(rendered, self.turns) if restarts else renderer.encode(new)
        prompt = Prompt(ids=ids, restarts=restarts)
        renderer.count(prompt, new)
        self.text = text
        lead_in = rendered.rpartition(_MARK)[2].removesuffix(renderer.opening)
        self.lead_ins[len(self.turns) :] = [_NO_REASONING.sub("", lead_in)]
        return prompt

    def _after_last_turn(self, rendered: str) -> str | None:
        """What the template writes after the last turn; None if it has rewritten more than turns."""
        *spoken, following = rendered.split(_MARK)
        if len(spoken) != len(self.turns) or not following.startswith(end := self.renderer.end_text):
            return None
        # Not strict: a prompt that no turn has answered yet has left one lead-in more than there are turns.
        if not all(part.startswith(lead_in) for part, lead_in in zip(spoken, self.lead_ins, strict=False)):
            return None
        return following.removeprefix(end) if self.text.endswith(end) else following

    def fork(self) -> Conversation:
        """The same conversation, to be continued differently."""
        return replace(self, messages=[*self.messages], turns=[*self.turns], lead_ins=[*self.lead_ins])

    def record(self, sampled_ids: Sequence[int]) -> str:
        """Record a sampled turn; returns its text without the token that ended it."""
        renderer = self.renderer
        ended = bool(sampled_ids) and sampled_ids[-1] == renderer.end_id
        spoken = sampled_ids[:-1] if ended else sampled_ids
        text = renderer.decode(spoken)
        shielded = renderer.shield(text)
        if shielded[:1].isspace():  # a template may trim; sampled text stays
            shielded = _BREAK + shielded
        self.turns.append(spoken)
        self.messages.append({"role": "assistant", "content": renderer.opening + shielded + _MARK})
        self.text += shielded + (renderer.end_text if ended else "")
        stopped = bool(sampled_ids) and sampled_ids[-1] in renderer.stop_ids
        return renderer.decode(sampled_ids[:-1]) if stopped and not ended else text
