"""The pico models: of 60,000 parameters with a word or phrase per token, for studies of hundreds of runs.

| family | knows the words of |
|---|---|
| `pico` | `lookup/…` and `letters/…` |
| `pico-guess` | `game/guess-number-…` |
| `pico-games` | some other games |
| `pico-duels` | `duel/…` |
| `pico-chat` | `chat/prompts` |
| `pico-classify` | `classify/kinds` |
| `pico-actions` | `actions/…` |
| `pico-plans` | `plans/…` in terse form |
| `pico-feelings` | `feelings/brief` |
| `pico-terminals` | `terminal/tasks` of the family brief, in terse form |
| `pico-memory` | `memory/…` in terse form |

These are Llamas; `pico-moe` (a Qwen3-MoE) and `pico-mixtral` know the words of `pico` and have 8 experts in every
layer, of which a token goes through 2. They are not shipped but generated from a seed, in a second, and are untrained.
`pico` is seed 0 and `pico-7` is seed 7.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cache import cache_folder
from turnwise.policy import pico_words
from turnwise.policy.rendering_templates import NANO

if TYPE_CHECKING:  # a name such as `pico-7` is parsed without torch; making a model needs it
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_VERSION = "1"  # part of the folder's name: raise it when the model of a seed changes
_MARKERS = ("<|pad|>", "<|user|>", "<|agent|>", "<|end|>")
_UNKNOWN = "?"
_BLANK = "▁"  # stands before every word, so that words need no other separator


@dataclass(frozen=True, kw_only=True)
class Family:
    """What distinguishes one kind of pico model from another."""

    words: tuple[str, ...]
    """All that the model can say or read; any other word reads as a question mark."""
    context: int
    theta: float
    """Base of the rotary positions: it grows with the context, or else distant words cannot be found by content."""
    breaks: str | None = None
    """If tokens are phrases: a regular expression for the blanks and line breaks at which one begins. None: all
    blanks, so that tokens are words."""
    architecture: str = "llama"
    """Its name in transformers."""
    sizes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What its configuration has beside the sizes that all share."""


_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "intermediate_size": 32}
_MIXTRAL: Mapping[str, Any] = {**_EXPERTS, "num_local_experts": 8}
_QWEN3_MOE: Mapping[str, Any] = {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 12, "norm_topk_prob": True}
FAMILIES = {
    "pico": Family(words=pico_words.LOOKUP, context=96, theta=100.0),
    "pico-guess": Family(words=pico_words.GUESS, context=160, theta=10_000.0, breaks=r" (?=\d+\.|\\boxed)|(?<=\.) |\n"),
    "pico-games": Family(words=pico_words.GAMES, context=640, theta=10_000.0, breaks=r" (?!left:|place,)|\n"),
    "pico-chat": Family(words=pico_words.CHAT, context=160, theta=1000.0),
    "pico-classify": Family(words=pico_words.CLASSIFY, context=32, theta=100.0),
    "pico-actions": Family(words=pico_words.ACTIONS, context=96, theta=100.0),
    "pico-duels": Family(words=pico_words.DUELS, context=96, theta=100.0, breaks=r" (?=[A-C]=)|\n"),
    "pico-plans": Family(words=pico_words.PLANS, context=320, theta=1000.0),
    "pico-feelings": Family(words=pico_words.FEELINGS, context=128, theta=100.0),
    "pico-terminals": Family(words=pico_words.TERMINALS, context=48, theta=100.0),
    "pico-memory": Family(words=pico_words.MEMORY, context=448, theta=1000.0),
    "pico-moe": Family(
        words=pico_words.LOOKUP, context=96, theta=100.0, architecture="qwen3_moe", sizes={**_EXPERTS, **_QWEN3_MOE}
    ),
    "pico-mixtral": Family(
        words=pico_words.LOOKUP,
        context=96,
        theta=100.0,
        architecture="mixtral",
        sizes=_MIXTRAL,
    ),
}
_NAME = re.compile(rf"({'|'.join(sorted(FAMILIES, key=len, reverse=True))})(?:-(\d+))?")


def pico_seed(name: str) -> int | None:
    """The seed in a model's name: 0 for `pico`, 7 for `pico-7` and `pico-chat-7`, None for other models."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[2] or 0)


def pico_folder(name: str) -> Path:
    """The model of that name as a folder for `from_pretrained`, made in the cache on first use."""
    found = _NAME.fullmatch(name)
    assert found is not None
    family, seed = found[1], int(found[2] or 0)
    folder = cache_folder() / f"{family}-{seed}-{_VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            _save(build_model(seed, FAMILIES[family]), draft)
            build_tokenizer(FAMILIES[family]).save_pretrained(draft)
            draft.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another process was faster, and its copy is the same
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def _save(model: PreTrainedModel, folder: Path) -> None:
    """As `save_pretrained` does, without its progress bar."""
    from safetensors.torch import save_file
    from transformers.core_model_loading import revert_weight_conversion

    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    weights = {
        name: tensor.contiguous() for name, tensor in revert_weight_conversion(model, model.state_dict()).items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def build_tokenizer(family: Family = FAMILIES["pico"]) -> PreTrainedTokenizerFast:
    """One token for each of the family's words, and the chat markers."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = [*_MARKERS, *(_BLANK + word.replace(" ", _BLANK) for word in (_UNKNOWN, *family.words))]
    core = Tokenizer(models.WordLevel({token: id for id, token in enumerate(vocabulary)}, unk_token=_BLANK + _UNKNOWN))
    by_word = family.breaks is None
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_BLANK, prepend_scheme="always", split=by_word)
    decoding = [decoders.Replace(_BLANK, " "), decoders.Fuse(), decoders.Replace(Regex(r"(?:\A|(?<=\|>)) "), "")]
    if family.breaks is not None:
        breaks = pre_tokenizers.Split(Regex(family.breaks), behavior="merged_with_next")
        core.pre_tokenizer = pre_tokenizers.Sequence([breaks, core.pre_tokenizer])
        decoding.append(decoders.Replace(" \n", "\n"))
    core.decoder = decoders.Sequence(decoding)
    core.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in _MARKERS])
    pad, user, agent, end = _MARKERS
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=pad,
        eos_token=end,
        unk_token=_BLANK + _UNKNOWN,
        additional_special_tokens=[user, agent],
        clean_up_tokenization_spaces=False,
        chat_template=NANO,
    )


def build_model(seed: int, family: Family = FAMILIES["pico"]) -> Any:
    """A model with random weights that depend only on the seed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": len(_MARKERS) + 1 + len(family.words),
        "hidden_size": 48,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": family.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": family.theta},
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "pad_token_id": _MARKERS.index("<|pad|>"),
        "bos_token_id": None,
        "eos_token_id": _MARKERS.index("<|end|>"),
        **family.sizes,
    }
    config = AutoConfig.for_model(family.architecture, **sizes)
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
