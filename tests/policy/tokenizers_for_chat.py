"""Small tokenizers with the special tokens of known chat formats, trained in a moment on a few sentences."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from turnwise.policy.rendering_templates import TEMPLATES

_SPECIAL = {
    "chatml": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "nano": ["<|user|>", "<|agent|>", "<|end|>"],
}
_END = {"chatml": "<|im_end|>", "qwen3": "<|im_end|>", "llama3": "<|eot_id|>", "nano": "<|end|>"}
_WORDS = {"qwen3": ["<think>", "</think>", "<tool_response>", "</tool_response>"], "nano": ["<search>", "</search>"]}
_TEXTS = ["the capital of the country where the river lies is the city of the user and the assistant in the system"] * 3


@cache
def chat_tokenizer(kind):
    """A byte-level BPE of about 320 tokens with the template `kind`."""
    return train_tokenizer(special=_SPECIAL[kind], words=_WORDS.get(kind, []), end=_END[kind], template=TEMPLATES[kind])


def train_tokenizer(*, special, words, end, template):
    """One with these special tokens and these whole words."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_TEXTS, trainer)
    core.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end, chat_template=template)


def by_letters(tokenizer, text):
    """Tokens that spell `text` as the tokenizer itself never would: byte by byte."""
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [tokenizer.convert_tokens_to_ids(symbol) for piece, _ in pieces for symbol in piece]
