"""The nano model's tokenizer: a small byte-level BPE in which a name has the same tokens everywhere.

Three rules, for copying or for exact text:

1. Every piece of text between tags or line breaks starts with one extra blank, which decoding removes again. So
   `<search>bamako` and ` bamako` share their tokens, and every text round-trips exactly.
2. A digit is always a separate token, and so is the blank before a number: ` 962` is four tokens, and decoding
   adds no blanks.
3. The protocol's tags are single tokens but *not* special ones: an observation may contain them. Only the chat markers
   are special, and `split_special_tokens=True` keeps untrusted text from becoming one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, BEGIN, USER, AGENT, END = "<|pad|>", "<|begin|>", "<|user|>", "<|agent|>", "<|end|>"
MARKERS = (PAD, BEGIN, USER, AGENT, END)
"""Their ids are their positions in this tuple. `BEGIN` opens text that is not a chat; a chat starts with `USER`."""
PAD_ID, BEGIN_ID, USER_ID, AGENT_ID, END_ID = range(len(MARKERS))

TAGS = tuple(f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/"))
LINE_BREAK = "\n"
VOCABULARY = 2048

_SINGLE = (*TAGS, LINE_BREAK)
_PIECES = r"[0-9]|Ġ?[A-Za-z]+|Ġ?[^Ġ0-9A-Za-z]+|Ġ"  # the byte alphabet writes a blank as Ġ
_OWN_BLANK = "(?:" + "|".join([r"\A", *(f"(?<={re.escape(text)})" for text in (*MARKERS, *_SINGLE))]) + ") "


def train_tokenizer(texts: Iterable[str], *, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A tokenizer with exactly `vocabulary` tokens, trained on these texts."""
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.Prepend(" ")
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
        ]
    )
    core.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex(_OWN_BLANK), "")])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(_SINGLE),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(marker, normalized=False, special=True) for marker in MARKERS],
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in _SINGLE])
    if core.get_vocab_size() != vocabulary:
        raise ValueError(f"the texts give only {core.get_vocab_size()} of {vocabulary} tokens; provide more text")
    return _for_transformers(core)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in a folder."""
    return PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False)


def render(turns: Iterable[tuple[str, str]]) -> str:
    """The chat form: `render([("2 + 2 ?", "4")])` is `<|user|>2 + 2 ?<|agent|>4<|end|>`."""
    return "".join(f"{USER}{observation}{AGENT}{action}{END}" for observation, action in turns)


def _for_transformers(core: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[USER, AGENT],
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )


_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] + '<|agent|>' }}{% endif %}"
    "{% endfor %}"
)
