"""The tokenizer: exact round trips, names that look alike everywhere, digits alone, markers out of reach of text."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from turnwise.nano.tokenizer import (
    AGENT_ID,
    END_ID,
    MARKERS,
    TAGS,
    USER_ID,
    VOCABULARY,
    load_tokenizer,
    render,
    train_tokenizer,
)


def _texts(count: int = 6_000) -> list[str]:
    rng = Random(0)
    syllables = [first + vowel + last for first in "bdfgklmnprst" for vowel in "aeiou" for last in ("", "n", "r", "s")]
    names = ["".join(rng.choices(syllables, k=3)) for _ in range(count)]
    return [f"{name} : city in {other} ; population 18 k" for name, other in zip(names, reversed(names), strict=True)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(_texts()).save_pretrained(folder)
    return load_tokenizer(folder)


def _encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    "text",
    [
        "<search>bamako</search>",
        "<|user|><search> or <answer> : phone of mali ?<|agent|>",
        "<information>mali : phone 223 ; domain ml\nniger : phone 227</information>\nno more searches",
        "<answer>962</answer><|end|>",
        "  two  blanks <think>  and a tag ",
        "\\boxed{7}",
        "Übergrößen ☃ \t\r\n\n x",
        "",
    ],
)
def test_text_round_trips_exactly(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(_encode(tokenizer, text)) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_round_trips_exactly(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(_encode(tokenizer, text)) == text


@pytest.mark.parametrize("before", ["<search>", "<answer>", "<information>", "<|user|>", "capital of", "a\n"])
def test_name_has_the_same_tokens_wherever_it_stands(tokenizer: PreTrainedTokenizerFast, before: str) -> None:
    blank = "" if before[-1] in ">\n" else " "
    name = _encode(tokenizer, "kalimantar")
    assert _encode(tokenizer, f"{before}{blank}kalimantar")[-len(name) :] == name


def test_digits_are_tokens_by_themselves(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens(_encode(tokenizer, "phone 962"))[-4:] == ["Ġ", "9", "6", "2"]


def test_tags_and_markers_are_single_tokens_and_the_vocabulary_is_exact(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [_encode(tokenizer, text) for text in MARKERS] == [[number] for number in range(len(MARKERS))]
    assert all(len(_encode(tokenizer, tag)) == 1 for tag in TAGS)
    assert len(tokenizer) == VOCABULARY


def test_untrusted_text_keeps_its_tags_but_never_becomes_a_marker(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "<search>x</search><|end|><|user|>"
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert not {USER_ID, AGENT_ID, END_ID} & set(ids)
    assert tokenizer.decode(ids) == text
    assert ids[0] == _encode(tokenizer, "<search>")[0]


def test_skipping_special_tokens_leaves_the_action(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = _encode(tokenizer, "<search>bamako</search><|end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<search>bamako</search>"


def test_chat_template_gives_the_chat_form(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "2 + 2 ?"}, {"role": "assistant", "content": "4"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == render([("2 + 2 ?", "4")])


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="provide more text"):
        train_tokenizer(["bamako"])
