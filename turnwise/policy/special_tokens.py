"""What a tokenizer's special tokens are, and which chat template speaks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from turnwise.policy.rendering_templates import TEMPLATES

MARKER = re.compile(r"<[|｜][^|｜<>]+[|｜]>")
OTHER_TEMPLATE = f"choose one of the templates {', '.join(TEMPLATES)}, or give jinja text (model.template in a recipe)"


def choose_template(tokenizer: PreTrainedTokenizerBase, template: str | None) -> str:
    """The jinja text: the tokenizer's own, one of ours by its name, or the given one; ValueError with the fix."""
    if template is None:
        own = tokenizer.chat_template
        if not isinstance(own, str):
            raise ValueError(f"the tokenizer has no chat template; {OTHER_TEMPLATE}")
        return own
    if template not in TEMPLATES and "{" not in template:
        raise ValueError(f"unknown template {template!r}; {OTHER_TEMPLATE}")
    return TEMPLATES.get(template, template)


def require_markers(name: str, known: Mapping[str, int]) -> None:
    """ValueError if one of our templates writes special tokens that the tokenizer lacks."""
    missing = sorted(set(MARKER.findall(TEMPLATES[name])) - known.keys())
    if missing:
        raise ValueError(
            f"template {name!r} needs the special tokens {', '.join(missing)}, which the tokenizer lacks; add them "
            "with tokenizer.add_special_tokens and train their embeddings, or choose another template"
        )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Special tokens by their text, and those that look like it: some tokenizers do not mark theirs as special."""
    added = tokenizer.added_tokens_decoder.items()
    return {token.content: id for id, token in added if token.special or MARKER.fullmatch(token.content)}


def unknown_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The token of unknown words, which ordinary text may contain, unless it also begins or ends a text."""
    unknown = tokenizer.unk_token_id
    return frozenset([unknown] if isinstance(unknown, int) and unknown not in _ends(tokenizer) else [])


def _ends(tokenizer: PreTrainedTokenizerBase) -> tuple[object, object]:
    return tokenizer.bos_token_id, tokenizer.eos_token_id
