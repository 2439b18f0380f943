"""The model card of a checkpoint, from its run: results with intervals, command, seed, recipe, and how to load it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from turnwise.runs.reading import Row, RunData
from turnwise.runs.rows import is_number
from turnwise.words import counted

_ENDS = ("_low", "_high")
_FIRST = ("eval/success", "eval/reward")
_UNSAID = ("eval/episodes", "eval/tasks", "eval/faults", "eval/nll_tokens")
_STAGES = {"imitation": "supervised fine-tuning", "preference": "preference learning"}


def write_card(run: RunData, *, repo: str, step: int, adapter: bool, base: str, base_on_hub: bool) -> str:
    """The card as Markdown. `run` has the numbers of one policy; `base` is the model that it began as."""
    head = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base} if base_on_hub else {}),
        "tags": ["turnwise", "reinforcement-learning" if _stage(run) == "reinforcement" else "fine-tuning"],
    }
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {repo.rpartition('/')[2]}",
        _summary(run, step=step, adapter=adapter, base=base),
        _results(run, step),
        _training(run),
        _use(repo, adapter=adapter, base=base),
        _recipe(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _stage(run: RunData) -> str:
    return str(run.config.get("stage", "reinforcement"))


def _section(run: RunData, name: str) -> Mapping[str, Any]:
    section = run.config.get(name)
    return section if isinstance(section, Mapping) else {}


def _summary(run: RunData, *, step: int, adapter: bool, base: str) -> str:
    how = f"`{run.algorithm}`" if _stage(run) == "reinforcement" else f"{_STAGES[_stage(run)]} (`{run.algorithm}`)"
    where = f" in the environment `{_section(run, 'env').get('id')}`" if _stage(run) == "reinforcement" else ""
    what = f"A LoRA adapter for `{base}`" if adapter else f"`{base}`"
    steps = counted(_section(run, "train").get("steps") or step, "step")
    return (
        f"{what}, trained with {how}{where}. This is the checkpoint after step {step} of {steps}, policy weights only."
    )


def _results(run: RunData, step: int) -> str:
    rows = [row for row in run.evals if row["step"] <= step]
    if not rows:
        return "## Held-out results\n\nNothing was evaluated."
    last, first = rows[-1], rows[0]
    columns = [last] if last is first else [first, last]
    heads = [f"step {row['step']}{' (before training)' if row['step'] == 0 else ''}" for row in columns]
    lines = [f"| metric | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    for name in _shown_metrics(columns):
        cells = " | ".join(_with_interval(row, name) for row in columns)
        lines.append(f"| {name.removeprefix('eval/')} | {cells} |")
    size = [f"{counted(round(last['eval/episodes']), 'episode')}"] if is_number(last.get("eval/episodes")) else []
    of = f" Measured on {size[0]} of held-out tasks." if size else ""
    return "## Held-out results\n\n" + "\n".join(lines) + f"\n\nBrackets are 95% intervals over tasks or texts.{of}"


def _shown_metrics(rows: Sequence[Row]) -> list[str]:
    names = {name for row in rows for name, value in row.items() if name.startswith("eval/") and is_number(value)}
    plain = {name for name in names if not (name.endswith(_ENDS) and name.rpartition("_")[0] in names)}
    return [*(name for name in _FIRST if name in plain), *sorted(plain - {*_FIRST, *_UNSAID})]


def _with_interval(row: Row, name: str) -> str:
    value, low, high = (row.get(name + end) for end in ("", *_ENDS))
    if not is_number(value):
        return "–"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]" if is_number(low) and is_number(high) else f"{value:.3f}"


def _training(run: RunData) -> str:
    commands = [row.get("command") for row in run.history] or [run.meta.get("command")]
    lines = list(dict.fromkeys(_command(each) for each in commands if isinstance(each, list)))
    facts = {
        "seed": run.config.get("seed"),
        "started": run.meta.get("started"),
        "turnwise": run.meta.get("turnwise"),
        "torch": run.meta.get("torch"),
        "device": run.meta.get("device"),
        "ranks": run.meta.get("ranks"),
    }
    said = "\n".join(f"- {name}: {value}" for name, value in facts.items() if value is not None)
    shown = "```\n" + "\n".join(lines) + "\n```\n\n" if lines else ""
    return f"## How it was trained\n\n{shown}{said}\n\nA run is a function of its recipe and its seed."


def _command(words: Sequence[Any]) -> str:
    """Without the place of the program on the machine."""
    return shlex.join(["turnwise", *map(str, words[1:])])


def _use(repo: str, *, adapter: bool, base: str) -> str:
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
    if adapter:
        lines = ["from peft import PeftModel", *lines, "", f'base = AutoModelForCausalLM.from_pretrained("{base}")']
        lines += [f'model = PeftModel.from_pretrained(base, "{repo}")']
    else:
        lines += ["", f'model = AutoModelForCausalLM.from_pretrained("{repo}")']
    lines += [f'tokenizer = AutoTokenizer.from_pretrained("{base if adapter else repo}")']
    return "## Use\n\n```python\n" + "\n".join(lines) + "\n```"


def _recipe(run: RunData) -> str:
    text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
    return f"## Recipe\n\n<details><summary>config.yaml</summary>\n\n```yaml\n{text}```\n\n</details>"
