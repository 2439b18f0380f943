"""Rendering of whole files: many texts are encoded at once, and what begins alike is rendered once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from turnwise.policy.rendering import Prompt, Renderer

Messages = Sequence[Mapping[str, Any]]


class AheadRenderer(Renderer):
    """A renderer that is told what comes next: the same tokens as the plain one's, several times as fast.

        ahead = AheadRenderer.of(renderer)
        ahead.prepare(prompts=[[{"role": "user", "content": "where is mahis ?"}]], replies=["egypt", "france"])

    Tokenizers are fastest with many texts in one call, which they spread over the cores. It counts no altered prompts.
    """

    _plain: Renderer
    _texts: dict[tuple[Any, ...], str]
    """What the template writes, by messages."""
    _ids: dict[str, list[int]]
    _spelt: dict[tuple[int, ...], str]

    @classmethod
    def of(cls, renderer: Renderer) -> Self:
        """One that renders as the given one does."""
        ahead = cls.__new__(cls)
        ahead.__dict__ |= copy.copy(renderer.__dict__)
        ahead._plain = renderer
        ahead._forget()
        return ahead

    def prepare(self, prompts: Sequence[Messages], replies: Sequence[str]) -> None:
        """Encode shielded prompts and replies of the model; what was prepared before is forgotten."""
        self._forget()
        texts = list[str]()
        for messages in prompts:
            with suppress(TemplateError):  # who reads this prompt names its line
                texts.append(self.render(messages))
        spoken = [self.shield(reply) for reply in replies]
        pieces = dict.fromkeys(piece for text in (*texts, *spoken) for piece in self._special.split(text) if piece)
        for marker in self._special_ids:
            pieces.pop(marker, None)
        if not pieces:
            return
        found = self._tokenizer(
            list(pieces), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False
        )
        self._ids = dict(zip(pieces, found["input_ids"], strict=True))
        if isinstance(self._tokenizer, PreTrainedTokenizerFast):
            replied = list(dict.fromkeys(tuple(self.encode(text)) for text in spoken))
            decoded = self._tokenizer.backend_tokenizer.decode_batch(
                list(map(list, replied)), skip_special_tokens=False
            )
            self._spelt = dict(zip(replied, decoded, strict=True))

    def render(self, messages: Messages) -> str:
        """The template's text, known if it was asked for before."""
        key = tuple(tuple(message.items()) for message in messages)
        try:
            return self._texts[key]
        except KeyError:
            return self._texts.setdefault(key, super().render(messages))
        except TypeError:  # tool calls have no hash
            return super().render(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens."""
        known = self._spelt.get(tuple(ids))
        return super().decode(ids) if known is None else known

    def count(self, prompt: Prompt, text: str) -> None:
        """Count it without comparing texts."""
        self.stats.prompts += 1
        self.stats.restarts += prompt.restarts

    def showing(self, tools: Sequence[Mapping[str, Any]]) -> Renderer:
        """A plain renderer: what is known here was rendered without tools."""
        return self._plain.showing(tools)

    def _encode_text(self, text: str) -> list[int]:
        known = self._ids.get(text)
        return super()._encode_text(text) if known is None else list(known)

    def _forget(self) -> None:
        self._texts, self._ids, self._spelt = {}, {}, {}
