"""Which tokens of a prompt repeat what other agents said."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from turnwise.policy.rendering import Renderer


def heard_spans(renderer: Renderer, ids: Sequence[int], texts: Sequence[str]) -> list[list[int]]:
    """The spans of tokens that spell these texts, in the order in which they stand in the prompt.

    A token that spells a part of a text and more counts as heard. A text that cannot be found has no span.
    """
    if not texts:
        return []
    whole, spans, done = renderer.decode(ids), list[list[int]](), 0

    def written(tokens: int) -> int:
        return len(renderer.decode(ids[:tokens]))

    for text in texts:
        # As the tokenizer spells it: unknown words and other alphabets may read otherwise.
        spelt = renderer.decode(renderer.encode(renderer.shield(text))).strip()
        start = whole.find(spelt, done) if spelt else -1
        if start < 0:
            continue
        done, tokens = start + len(spelt), range(1, len(ids) + 1)
        spans.append([bisect_right(tokens, start, key=written), bisect_left(tokens, done, key=written) + 1])
    return spans
