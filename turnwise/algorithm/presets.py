"""Known algorithms as rows: each lists only its differences from the defaults of `Algorithm`.

Constants that our sources do not settle carry one of the `MARKS` of notes.py; treat them as starting points.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.algorithm.row import Algorithm
from turnwise.strict_yaml import file_of, parse, read_text

Row = Mapping[str, Any]

_TOKEN_CRITIC: Row = {"critic": {"level": "token"}}
_GROUP: Row = {"sampling": {"kind": "group", "size": 8}, "advantage": "group-mean"}
_ZERO_VARIANCE = ["errored", "zero-variance"]

# The four rows of the ST-PPO paper differ in ratio and scale only. γ = λ = 1, clip 0.2 and the 1/|y| of its objective
# (trajectory-mean) [I]; whitening and the unclipped critic as in our pilot.
_PPO: Row = {
    **_TOKEN_CRITIC,
    "advantage": "gae",
    "normalizer": "batch-tokens",
    "weights": "trajectory-mean",
    "minibatches": 4,
}
# Every trick is one key. ptx needs text beside what is played, so recipes add it (notes.py).
_PPO_MAX: Row = {
    "critic": {"level": "token", "loss": {"kind": "mse", "clip": 0.2}, "warmup": 16},
    "reward": [{"kind": "running", "clip": 0.8}, {"kind": "token-kl", "coef": 0.05}],
    "advantage": {"kind": "gae", "lam": 0.9},
    "minibatches": 4,
}
# How many minibatches make an epoch is ours.
_CORY: Row = {
    "critic": {"level": "token", "loss": {"kind": "mse", "clip": 0.2}, "coef": 0.1},
    "reward": [{"kind": "token-kl", "coef": 0.3, "estimator": "full"}],
    "advantage": {"kind": "gae", "lam": 0.95},
    "normalizer": "batch-tokens",
    "epochs": 4,
}
_ENDLESS_TERMINALS: Row = {
    "sampling": {"kind": "group", "size": 16},
    "critic": {"level": "token", "loss": {"kind": "mse", "clip": 0.2}},
    "advantage": "gae",
    "normalizer": "batch-tokens",
    "surrogate": {"kind": "ppo-clip", "low": 0.2, "high": 0.28},
    "weights": "sequence-mean",
    "epochs": 2,
}
_GRPO: Row = {**_GROUP, "normalizer": "group-std", "weights": "trajectory-mean"}
_RLVER: Row = {"regularizers": [{"kind": "entropy", "coef": 0.001}]}
_POAD: Row = {
    "critic": {"level": "token", "loss": {"kind": "mse", "clip": 0.2}},
    "normalizer": "batch-tokens",
    "scale": {"kind": "drift", "target": 0.02, "drop": True},
    "regularizers": [{"kind": "entropy", "coef": 0.01}],
    "minibatches": 4,
}

_PAIRS: Row = {
    "sampling": {"kind": "group", "size": 2},
    "filters": ["errored", "ties"],
    "surrogate": "dpo",
    "weights": "unit-mean",
}
_ITERATED: Row = {
    **_PAIRS,
    "sampling": {"kind": "group", "size": 4},
    "filters": ["errored", "extremes"],
    "minibatches": 4,
}
_ITERATIVE_DPO: Row = {**_ITERATED, "surrogate": {"kind": "dpo", "against": "old"}}
_SPPO: Row = {**_ITERATED, "surrogate": "sppo"}
_APO: Row = {"extrapolate": {"kind": "parameters", "alpha": 0.3}}

_P3O: Row = {
    "sampling": {"kind": "group", "size": 2},
    "reward": [{"kind": "token-kl", "coef": 0.001}],
    "surrogate": "p3o",
    "weights": "unit-mean",
    "minibatches": 4,
}

_MINIRL: Row = {
    "sampling": {"kind": "group", "size": 16},
    "advantage": "group-mean",
    "ratio": {"kind": "token", "against": "mu"},
    "surrogate": "mask",
    "weights": "trajectory-sum",
    "minibatches": 2,
}
_DARS: Row = {
    "sampling": {"kind": "dars", "size": 8, "schedule": "et", "most": 32},
    "filters": _ZERO_VARIANCE,
    "advantage": "group-mean",
    "epochs": 2,
    "minibatches": 2,
}

PRESETS: Mapping[str, tuple[str, Row]] = {
    "ppo": ("Token-level PPO with a token critic", _PPO),
    "ppo-max": ("PPO with normalised, clipped rewards, a token KL, a critic trained first", _PPO_MAX),
    "cory": ("PPO with the exact KL from the first policy in the reward", _CORY),
    "endless-terminals": ("PPO with a higher upper clip, and sixteen tries at a task", _ENDLESS_TERMINALS),
    "rlver-ppo": (
        "PPO on whole dialogues, without a KL [I]",
        {
            **_RLVER,
            "critic": {"level": "token", "loss": {"kind": "mse", "clip": 0.5}},
            "advantage": "gae",
            "normalizer": "batch-tokens",
        },
    ),
    "rlver-grpo": (
        "Four dialogues with the same person, no critic, no KL [I]",
        {
            **_RLVER,
            "sampling": {"kind": "group", "size": 4},
            "advantage": "group-mean",
            "normalizer": "group-std",
        },
    ),
    "turn-ppo": ("PPO with one geometric-mean ratio per turn", {**_PPO, "ratio": "turn"}),
    "s-ppo": ("PPO with steps scaled by the token-level clipping bias", {**_PPO, "scale": "clip-bias"}),
    "st-ppo": (
        "Turn-level ratio plus steps scaled by the turn-level clipping bias",
        {**_PPO, "ratio": "turn", "scale": "clip-bias"},
    ),
    "turn-ppo-drift": (
        "Turn-level ratio plus steps scaled by the drift from the sampler",
        {**_PPO, "ratio": "turn", "scale": "drift"},
    ),
    "grpo": ("Group-relative advantages, no critic", {**_GRPO, "regularizers": [{"kind": "kl", "coef": 0.001}]}),
    "so-grpo": (
        "GRPO with the turn ratio and the clipping-bias scale of ST-PPO [I]",
        {
            **_GRPO,
            "ratio": "turn",
            "scale": "clip-bias",
            "minibatches": 4,
            "regularizers": [{"kind": "kl", "coef": 0.001}],
        },
    ),
    "dr-grpo": ("GRPO without its two biases: no std, constant length", {**_GROUP, "weights": "constant"}),
    "dapo": (
        "Clip-higher, dynamic sampling, token mean, soft overlong punishment",
        {
            "sampling": {"kind": "group", "size": 16, "refill": 4},
            "filters": _ZERO_VARIANCE,
            "reward": ["overlong"],
            "advantage": "group-mean",
            "normalizer": "group-std",
            "surrogate": {"kind": "ppo-clip", "low": 0.2, "high": 0.28},
        },
    ),
    "gspo": (
        "Sequence-level ratio with narrow bounds",
        {
            **_GRPO,
            "ratio": "sequence",
            "surrogate": {"kind": "ppo-clip", "low": 3e-4, "high": 4e-4},
            "minibatches": 4,
        },
    ),
    "cispo": (
        "Clipped weights that keep every token's gradient",
        {**_GRPO, "surrogate": "cispo", "weights": "token-mean"},
    ),
    "rloo": (
        "REINFORCE with the other tries as baseline",
        {
            "sampling": {"kind": "group", "size": 4},
            "reward": [{"kind": "token-kl", "coef": 0.001}],
            "advantage": "leave-one-out",
            "surrogate": "reinforce",
            "weights": "trajectory-sum",
        },
    ),
    "reinforce": (
        "The plain policy gradient with turn returns",
        {"advantage": "return-to-go", "surrogate": "reinforce", "weights": "trajectory-sum"},
    ),
    "reinforce++": (
        "Token returns whitened over the batch, KL in the reward",
        {
            "reward": [{"kind": "token-kl", "coef": 0.001}],
            "advantage": {"kind": "return-to-go", "level": "token"},
            "normalizer": "batch-tokens",
        },
    ),
    "rebn": (
        "Turn returns whitened over all turns of the batch (GEM)",
        {
            "advantage": {"kind": "return-to-go", "gamma": 0.9},
            "normalizer": "batch-turns",
            "weights": "constant",
            "epochs": 2,
        },
    ),
    "minirl": (
        "Weights against the sampler, mask against the old policy",
        _MINIRL,
    ),
    "minirl-r2": (
        "MiniRL that replays the experts of the old policy",
        {**_MINIRL, "routing": "old"},
    ),
    "minirl-r3": (
        "MiniRL that replays the experts of the sampler",
        {**_MINIRL, "routing": "recorded"},
    ),
    "nlu-ppo": (
        "Token PPO on single answers, with the KL from the first policy in the reward",
        {
            **_PPO,
            "reward": [{"kind": "token-kl", "coef": 0.2, "target": 6.0, "gain": 0.01}],
            "weights": "token-mean",
        },
    ),
    "poad": (
        "Discount between turns, none inside a turn",
        {**_POAD, "advantage": {"kind": "split-gae", "gamma_turn": 0.95, "lam_turn": 0.95, "lam_token": 0.95}},
    ),
    "ntpo": (
        "The flat counterpart of POAD: every token is discounted",
        {**_POAD, "advantage": {"kind": "gae", "gamma": 0.95, "lam": 0.95}},
    ),
    "turn-gae": (
        "PPO with a turn critic and GAE over turns",
        {
            "critic": {"level": "turn"},
            "advantage": {"kind": "turn-gae", "lam": 0.95},
            "normalizer": "batch-turns",
            "minibatches": 4,
        },
    ),
    "bilevel-gae": (
        "GAE over turns, then inside each turn (VAGEN)",
        {**_PPO, "weights": "token-mean", "advantage": {"kind": "bilevel-gae", "gamma_turn": 0.95}},
    ),
    "dual-discount": (
        "GAE with one discount inside turns and one between them (Verlog)",
        {**_PPO, "weights": "token-mean", "advantage": {"kind": "split-gae", "lam_token": 1.0}},
    ),
    "gigpo": (
        "Group comparison of episodes and of turns from the same state",
        {"sampling": {"kind": "group", "size": 8}, "advantage": "anchor-state", "weights": "trajectory-mean"},
    ),
    "dars-et": ("Further tries lift every hard task to the weight of a medium one", _DARS),
    "dars-hw": (
        "Further tries give harder tasks more weight",
        {**_DARS, "sampling": {"kind": "dars", "size": 8, "schedule": "hw", "most": 64}},
    ),
    "dars-b": ("dars-et with whole batches, which want to be large", {**_DARS, "minibatches": 1}),
    "rover": (
        "Fits the values of the uniformly random policy; no ratio, no clip",
        {**_GROUP, "surrogate": "rover", "minibatches": 4},
    ),
    "dpo": ("The better answer of a pair against the worse, near a reference", _PAIRS),
    "iterative-dpo": (
        "DPO on the best and the worst of its own samples, against their sampler",
        _ITERATIVE_DPO,
    ),
    "apo-dpo": ("Iterative DPO with momentum between iterations [M]", {**_ITERATIVE_DPO, **_APO}),
    "ipo": ("A margin between the answers of a pair that is met, not exceeded", {**_PAIRS, "surrogate": "ipo"}),
    "kto": ("Good answers more likely, bad ones less, without pairs", {"surrogate": "kto", "weights": "unit-mean"}),
    "tdpo1": (
        "DPO with the exact KL along both answers",
        {**_PAIRS, "surrogate": {"kind": "tdpo", "alpha": 1.0, "detach": False}},
    ),
    "tdpo2": ("DPO that keeps the worse answer's distributions near the reference", {**_PAIRS, "surrogate": "tdpo"}),
    "sppo": ("Every answer to its own target, set by how often it wins", _SPPO),
    "apo-sppo": ("SPPO with momentum between iterations [M]", {**_SPPO, **_APO}),
    "p3o-v1": ("Policy gradient of pairs with sequence ratios, clipped one by one [M]", _P3O),
    "p3o-v2": (
        "Policy gradient of pairs with sequence ratios, clipped together [M]",
        {**_P3O, "surrogate": {"kind": "p3o", "clip": "joint"}},
    ),
    "superhf": (
        "Imitate the best of its own samples, with the exact KL from the base",
        {
            "sampling": {"kind": "group", "size": 16},
            "filters": ["errored", "best"],
            "surrogate": "nll",
            "regularizers": [{"kind": "kl", "coef": 0.35, "estimator": "full-reverse"}],
        },
    ),
    "grao": (
        "Own samples and a reference answer in one group",
        {
            **_GROUP,
            "normalizer": {"kind": "group-std", "population": True},
            "surrogate": "grao",
            "weights": "unit-mean",
        },
    ),
}


def preset(name: str) -> Algorithm:
    """The named algorithm, as a row that can be overridden."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown algorithm {name!r}; {hint}There are {', '.join(PRESETS)}.")
    _, row = PRESETS[name]
    return Algorithm.of({"name": name, **row})


def load(recipe: str | Path) -> Algorithm:
    """An algorithm from YAML, given as text or as a file. `preset: NAME` starts from a preset."""
    file = file_of(recipe)
    try:
        choices = parse(str(recipe) if file is None else read_text(file))
        name = choices.pop("preset", None)
        return Algorithm.of(choices) if name is None else preset(str(name)).override(choices)
    except ValueError as error:
        raise ValueError(f"{error}" if file is None else f"{file}: {error}") from None


def find_algorithm(name: str) -> Algorithm:
    """A preset by its name, or a row from a YAML file."""
    if not name.endswith((".yaml", ".yml")):
        return preset(name)
    file = Path(name)
    if not file.is_file():
        raise ValueError(f"there is no file {name!r}; give a YAML file or one of {', '.join(PRESETS)}")
    return load(file)
