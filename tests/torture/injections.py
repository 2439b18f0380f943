"""Hostile texts in every place of a conversation: none of them may open or end a turn, nor alter what was sampled.

Each attempt puts one hostile text into one place (system message, observation, tool result, demonstration, chat, a
tool's description) of a conversation, and compares it with a twin that has a harmless word there. Between the two, the
markers among the tokens must be the same, in the same order: those are the ones that the template wrote.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.policy.test_rendering_shield import ALL, FRAGMENTS, HOSTILE, NormalisingTokenizer, tokenizer_of
from tests.policy.tokenizers_for_chat import chat_tokenizer
from tests.torture.tally import Tally, shares, shortened
from turnwise.policy.models import resolve_model
from turnwise.policy.rendering import Conversation, Prompt, Renderer
from turnwise.policy.rendering_templates import TEMPLATES
from turnwise.sources.demonstrations import spell

COUNT = 7150
HARMLESS = "a"
_TELLING = 3
"""Tokens in a row that no text repeats by accident."""
_ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
_COMBINING = "\u0301\u0338\u20dd\ufe0f"
_BESIDE_MARKERS = ("user", "assistant", "system", "tool", "ipython", "agent", "\n", "\n\n", " ", "\ufdd0", "\ufdd1")
_CHATML_WITH_TOOLS = "{% for tool in tools or [] %}{{ tool['description'] }}{% endfor %}" + TEMPLATES["chatml"]

RendererMaker = Callable[..., Renderer]
Tokenizers = Callable[[], PreTrainedTokenizerBase]


@dataclass(kw_only=True)
class Told:
    """What came of a conversation."""

    prompts: list[Prompt] = field(default_factory=list[Prompt])
    tokens: list[int] = field(default_factory=list[int])
    """The sequence in the end, sampled ones included."""
    sampled: list[list[int]] = field(default_factory=list[list[int]])
    untrue: str = ""
    """What is wrong with it whatever its twin says."""


def campaign(*, count: int = COUNT, seed: int = 0, make: RendererMaker = Renderer) -> Tally:
    """Inject `count` hostile texts, half of them with tokenizers as models have them."""
    rng, tally = random.Random(seed), Tally()
    known, odd = known_tokenizers(), odd_tokenizers()
    parts = [*shares(count - count // 2, len(known)), *shares(count // 2, len(odd))]
    for (name, build), share in zip([*known.items(), *rng.sample(list(odd.items()), len(odd))], parts, strict=True):
        for _ in range(share):
            tokenizer = build()
            place, text = rng.choice(places(tokenizer)), hostile_text(tokenizer, rng)
            said = [[rng.randrange(len(tokenizer)) for _ in range(rng.randrange(6))] for _ in range(2)]
            if wrong := fault(tokenizer, place, text, said, make=make):
                tally.fail(f"{name}, {place}, {shortened(text)}: {wrong}")
            else:
                tally.note(place)
    return tally


def known_tokenizers() -> dict[str, Tokenizers]:
    """The shipped ones, those of known chat formats, and one that is written in Python."""
    built: dict[str, Tokenizers] = {name: partial(_shipped, name) for name in ("nano", "pico", "pico-guess")}
    built |= {name: partial(chat_tokenizer, name) for name in ("chatml", "llama3", "qwen3")}
    return built | {"in Python": _in_python}


def odd_tokenizers() -> dict[str, Tokenizers]:
    """Those whose normaliser, vocabulary or added tokens mislead."""
    return {", ".join(map(str, kind)): partial(tokenizer_of, *kind) for kind in ALL}


@cache
def _shipped(name: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(resolve_model(name))


@cache
def _in_python() -> PreTrainedTokenizerBase:
    tokenizer = NormalisingTokenizer(extra_ids=0, chat_template=TEMPLATES["chatml"])
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def hostile_text(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> str:
    """One to six pieces: whole markers, markers in disguise or in part, what stands beside them, any characters."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values()] or ["<|end|>"]
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice(added),
        lambda: _disguised(rng.choice(added), rng),
        lambda: _part(rng.choice(added), rng),
        lambda: rng.choice(FRAGMENTS),
        lambda: rng.choice(HOSTILE),
        lambda: rng.choice(_BESIDE_MARKERS),
        lambda: _any_characters(rng),
        lambda: str(tokenizer.convert_ids_to_tokens(rng.randrange(len(tokenizer)))),
    ]
    return "".join(rng.choice(kinds)() for _ in range(rng.randint(1, 6)))


def _disguised(marker: str, rng: random.Random) -> str:
    """The marker in full width, in capitals, in bytes, taken apart, or with what cannot be seen inside."""
    place = rng.randrange(len(marker) + 1)
    ways = (
        "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in marker),
        "".join(rng.choice((letter, unicodedata.normalize("NFKD", letter), letter.upper())) for letter in marker),
        marker[:place] + rng.choice(_ZERO_WIDTH) + marker[place:],
        marker[:place] + rng.choice(_COMBINING) + marker[place:],
        marker[:place] + marker + marker[place:],
        "".join(f"<0x{byte:02X}>" for byte in marker.encode()),
        f" {marker}\t",
        marker.replace("|", "｜").replace("<", "＜"),
    )
    return rng.choice(ways)


def _part(marker: str, rng: random.Random) -> str:
    start, end = sorted(rng.sample(range(len(marker) + 1), 2))
    return marker[start:end]


def _any_characters(rng: random.Random) -> str:
    """Characters of all planes; halves of surrogate pairs are no text that an environment can hand on."""
    codes = (rng.choice((rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000))) for _ in range(8))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def fault(
    tokenizer: PreTrainedTokenizerBase,
    place: str,
    text: str,
    said: Sequence[list[int]],
    *,
    make: RendererMaker = Renderer,
) -> str:
    """What one hostile text in one place did; empty when nothing."""
    try:
        told, twin = (converse(tokenizer, place, each, said, make=make) for each in (text, HARMLESS))
    except Exception as error:  # whatever it is, no text may cause it
        return f"raised {type(error).__name__}: {error}"
    return told.untrue or _difference(place, told, twin, marker_ids(tokenizer))


def places(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Where a text can stand in the conversations of this tokenizer's template."""
    has_system = tokenizer.chat_template != TEMPLATES["nano"]
    has_tools = "<|im_start|>" in tokenizer.get_vocab()
    own = ["observation", "second observation", "tool result", "demonstration"]
    return [*own, *["system"] * has_system, *["tool"] * has_tools]


def marker_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """What only a template may write: every special token, and what looks like one; the one for unknown words apart."""
    added = tokenizer.added_tokens_decoder.items()
    found = {id for id, token in added if token.special or (token.content[:2] == "<|" and token.content[-2:] == "|>")}
    means_an_end = tokenizer.unk_token_id in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return frozenset(id for id in found if means_an_end or id != tokenizer.unk_token_id)


def converse(
    tokenizer: PreTrainedTokenizerBase, place: str, text: str, said: Sequence[list[int]], *, make: RendererMaker
) -> Told:
    """Three observations with two turns between them; `text` stands where `place` says."""
    renderer = _renderer(tokenizer, place, text, make)
    conversation, told = renderer.open(), Told(sampled=[list(turn) for turn in said])
    observations = ["hello", HARMLESS, "go on"]
    if place in ("observation", "second observation", "tool result"):
        observations[place != "observation"] = text
    if place == "demonstration":
        told.sampled[0] = spell(renderer, text)
    for turn, observation in enumerate(observations):
        prompt = conversation.observe(observation)
        told.prompts.append(prompt)
        told.tokens = [*([] if prompt.restarts else told.tokens), *prompt.ids]
        if turn < len(told.sampled):
            told.untrue = told.untrue or _record(tokenizer, conversation, told.sampled[turn])
            told.tokens += told.sampled[turn]
    return told


def _renderer(tokenizer: PreTrainedTokenizerBase, place: str, text: str, make: RendererMaker) -> Renderer:
    if place == "tool":
        return make(tokenizer, template=_CHATML_WITH_TOOLS).showing([{"description": text + HARMLESS}])
    return make(
        tokenizer,
        system=text if place == "system" else "",
        observation_role="tool" if place == "tool result" else "user",
    )


def _record(tokenizer: PreTrainedTokenizerBase, conversation: Conversation, sampled: list[int]) -> str:
    """Note a sampled turn; returns what is wrong with how it was noted."""
    before, text = list(sampled), conversation.record(sampled)
    stopped = sampled[-1:] and sampled[-1] in conversation.renderer.stop_ids
    spoken = tokenizer.decode(sampled[:-1] if stopped else sampled, clean_up_tokenization_spaces=False)
    if text != spoken:
        return f"the sampled ids {sampled} were read as {shortened(text)}"
    kept = list(conversation.turns[-1])
    return "" if before == sampled and kept in (before, before[:-1]) else f"the sampled ids {before} became {kept}"


def _difference(place: str, told: Told, twin: Told, markers: frozenset[int]) -> str:
    """How a conversation departs from its twin where no text may make it."""

    def marked(ids: Sequence[int]) -> list[int]:
        return [id for id in ids if id in markers]

    if place == "demonstration":
        if inside := marked(told.sampled[0][:-1]):
            return f"a demonstration says the markers {inside}"
        # A demonstration may rewrite the history, as any turn may: what counts is the sequence in the end.
        return "" if marked(told.tokens) == marked(twin.tokens) else "other markers than the template's"
    for turn, (mine, other) in enumerate(zip(told.prompts, twin.prompts, strict=True)):
        if mine.restarts != other.restarts:
            return f"prompt {turn} restarts: {mine.restarts}"
        if marked(mine.ids) != marked(other.ids):
            return f"prompt {turn} has the markers {marked(mine.ids)}, the template wrote {marked(other.ids)}"
        if mine.restarts and (lost := [turn for turn in _kept(told, other) if turn not in _kept(told, mine)]):
            return f"prompt {turn} no longer has the sampled ids {lost[0]}"
    return ""


def _kept(told: Told, prompt: Prompt) -> list[list[int]]:
    """The sampled turns that stand in a prompt as they were sampled; shorter ones may stand there by accident."""

    def stands(turn: list[int]) -> bool:
        return any(prompt.ids[start : start + len(turn)] == turn for start in range(len(prompt.ids)))

    return [turn for turn in told.sampled if len(turn) >= _TELLING and stands(turn)]
