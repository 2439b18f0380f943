"""Are two versions of the package equal to the bit? Losses, gradients and weights of every preset, and a short run.

    python -m tests.goldens record before.json      # in the old tree
    python -m tests.goldens record after.json       # in the new one, on the same machine
    python -m tests.goldens compare before.json after.json

Bits depend on the CPU and its matrix library, so a file is compared with one from the same machine. Only `load_recipe`
and `train` are called: everything else comes from the run folder. Adam's first moment after one step is the gradient.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from turnwise.algorithm import PRESETS
from turnwise.train import load_recipe, train

_SMALL: dict[str, Any] = {
    "model": "nano",
    "env": {"id": "search/geo-1hop", "check": False},
    "rollout": {"episodes": 16, "max_turns": 3, "max_tokens": 24, "context": 512},
    "train": {"steps": 3, "learning_rate": 5e-4, "critic_learning_rate": 1e-3, "micro_tokens": 1024},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 1, "keep": 5},
}
_VARIANTS: dict[str, dict[str, Any]] = {
    "exact bias": {"algorithm": {"preset": "st-ppo", "scale": {"estimator": "exact"}}},
    "logit bias": {"algorithm": {"preset": "st-ppo", "scale": {"estimator": "logit"}}},
    "gradient scale": {"algorithm": {"preset": "st-ppo", "scale": {"apply": "gradient"}}},
    "clipped share": {"algorithm": {"preset": "turn-ppo-drift", "scale": {"measure": "clips"}}},
    "full KL": {"algorithm": {"preset": "grpo", "regularizers": [{"kind": "kl", "estimator": "full"}]}},
    "truncated": {"algorithm": {"preset": "grpo", "mismatch": "truncated", "minibatches": 2}},
    "masked": {"algorithm": {"preset": "grpo", "mismatch": {"kind": "masked", "level": "turn"}}},
    "veto": {"algorithm": {"preset": "grpo", "mismatch": "veto"}},
    "dual clip": {"algorithm": {"preset": "ppo", "surrogate": {"dual": 3.0}, "epochs": 2}},
    "shared critic": {"algorithm": "st-ppo", "train": {"critic": "shared"}},
    "categorical critic": {"algorithm": {"preset": "ppo", "critic": {"loss": {"kind": "hl-gauss"}, "warmup": 2}}},
    "adapter": {"algorithm": "grpo", "model": {"name": "nano", "lora": {"rank": 4}}},
    "half precision": {"algorithm": "st-ppo", "model": {"name": "nano", "dtype": "bf16"}},
    "imitation first": {"algorithm": "grpo", "sft": {"demonstrations": 24, "batch": 8, "epochs": 1}},
    "new references": {"algorithm": "grpo", "train": {"reference_every": 1}},
    "guarded": {"algorithm": "st-ppo", "guard": "act", "train": {"learning_rate": 0.02}},
}
_JUDGED: dict[str, Any] = {"judge": "reward"}
_ROUTED: dict[str, Any] = {
    "model": "pico-moe",
    "env": {"id": "lookup/2hop"},
    "rollout": {"max_turns": 5, "max_tokens": 8, "context": 96},
    "engine": {"precision": "int8"},
}
_NEEDED: dict[str, dict[str, Any]] = {"sppo": _JUDGED, "apo-sppo": _JUDGED, "grao": {"source": {"expert": 1}}}
_NEEDED |= dict.fromkeys(("minirl-r2", "minirl-r3"), _ROUTED)
"""What a preset needs beside itself."""
_TRAINING: dict[str, Any] = {"train": {"steps": 3}, "eval": {"episodes": 32}}


def recipes() -> dict[str, tuple[str | None, dict[str, Any]]]:
    """What is run: every preset and some of their options in a small form, and the first steps of `make train`."""
    small = {name: {"algorithm": name, **_NEEDED.get(name, {})} for name in PRESETS} | _VARIANTS
    return {
        **{name: (None, _merged(_SMALL, changes)) for name, changes in small.items()},
        "make train": ("recipes/search-nano.yaml", _TRAINING),
    }


def record(file: Path, *only: str) -> None:
    """Run everything and write down what came of it."""
    found: dict[str, Any] = {}
    for name, (base, changes) in recipes().items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as place:
            run = Path(place) / "run"
            recipe = load_recipe(base, changes)
            train(recipe, run)
            found[name] = {
                str(stage.relative_to(run)): _contents(stage) for stage in (run, run / "sft") if stage.is_dir()
            }
        file.write_text(json.dumps(found, indent=1))


def compare(before: Path, after: Path) -> int:
    """Print what differs; the exit status says whether anything does."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    worst = 0
    for name in old:
        if name not in new:
            print(f"{name}: not in {after}")
            worst = 1
            continue
        differences = list(_differences(old[name], new[name]))
        print(f"{name}: {'equal' if not differences else f'{len(differences)} differences'}")
        for difference in differences[:6]:
            print(f"    {difference}")
        worst |= bool(differences)
    return worst


def _contents(run: Path) -> dict[str, Any]:
    """Metrics by step and turn, and a digest of every tensor of every checkpoint; times are left out."""
    journals = {name: _lines(run / f"{name}.jsonl") for name in ("metrics", "turns", "evals")}
    tensors = {
        f"{checkpoint.name}/{name}": digest
        for checkpoint in sorted((run / "checkpoints").iterdir())
        for name, digest in _digests(checkpoint)
    }
    return {**journals, "tensors": tensors}


def _digests(checkpoint: Path) -> list[tuple[str, str]]:
    # Names of files may change, those of tensors do not; policy and critic may have tensors of the same name.
    found: list[tuple[str, str]] = []
    for file in sorted(checkpoint.rglob("*.safetensors")):
        of_critic = "critic." if "critic" in file.name else ""
        for name, tensor in load_file(file).items():
            content = tensor.contiguous().view(-1).view(dtype=torch.uint8).numpy().tobytes()
            found.append((of_critic + name, hashlib.sha256(content).hexdigest()[:16]))
    return sorted(found)


def _lines(file: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def _differences(old: Any, new: Any, place: str = "") -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}, key=str):
            if key not in old or key not in new:
                yield f"{place}/{key}: only {'before' if key in old else 'after'}"
            else:
                yield from _differences(old[key], new[key], f"{place}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (first, second) in enumerate(zip(old, new, strict=True)):
            yield from _differences(first, second, f"{place}[{number}]")
    elif old != new:
        yield f"{place}: {old!r} became {new!r}"


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        present = merged.get(key)
        merged[key] = _merged(present, value) if isinstance(present, dict) and isinstance(value, dict) else value
    return merged


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "record":
        record(Path(sys.argv[2]), *sys.argv[3:])
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
    else:
        sys.exit(__doc__)
