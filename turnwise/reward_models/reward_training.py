"""Training of a reward model: pairs in, a folder for transformers and a report on held-out pairs out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError

from turnwise.frozen_settings import Settings
from turnwise.learn.learner import Learner
from turnwise.policy.models import is_small
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_lora import LoraSettings
from turnwise.recipe.checks import explain_mistakes
from turnwise.recipe.schema import ModelChoice, Sft, Train
from turnwise.reward_models.answer_losses import row_of
from turnwise.reward_models.pair_report import PairReport, scored_pairs
from turnwise.reward_models.reward_policy import RewardPolicy, token_scores, turn_scores
from turnwise.runs.disk import draft_of, explained
from turnwise.runs.journal import Journal
from turnwise.sources.imitation import Imitation
from turnwise.sources.preferences import preference_groups
from turnwise.sources.splitting import split_held_out
from turnwise.types import Group

Note = Callable[[str], None]
_KEPT = ("loss/policy", "train/gradient_norm", "train/learning_rate", "train/sequences", "train/tokens")
_SMALL_RATE = 3e-4
"""The learning rate of nano and pico, as in recipes."""


class RewardTraining(Settings):
    """How a reward model is trained."""

    model: ModelChoice = ModelChoice()
    loss: Literal["bradley-terry", "regression"] = "bradley-terry"
    """From comparisons, or from the scores of answers."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the prompts whose pairs are kept for the report."""
    epochs: int = Field(default=1, ge=1)
    batch: int = Field(default=16, ge=1)
    """Lines of the file per optimiser step."""
    limit: int | None = Field(default=None, ge=2)
    """Take only the first lines of the file."""
    seed: int = 0
    device: str = "auto"
    train: Train = Train(warmup=5, schedule="cosine")
    """As in recipes; the number of steps follows from the file."""

    @classmethod
    def of(cls, choices: dict[str, Any]) -> RewardTraining:
        """From plain data; a mistake becomes one ValueError that names the key."""
        train = {"warmup": 5, "schedule": "cosine", **choices.get("train", {})}
        try:
            return cls.model_validate({**choices, "train": train})
        except ValidationError as error:
            raise ValueError(explain_mistakes(error, [])) from None


def train_reward_model(
    path: str | Path, output: Path, settings: RewardTraining, *, note: Note = lambda _: None
) -> PairReport:
    """Learn from the pairs of a file. The output folder appears whole at the end, or not at all."""
    if output.exists():
        raise ValueError(f"{output} exists, and nothing is overwritten; choose another folder with --output")
    policy, renderer = _load(settings)
    groups = preference_groups(path, renderer, limit=settings.limit, room=policy.room)
    training, held_out = split_held_out(groups, settings.held_out, name=str(path))
    note(f"{len(training)} lines to learn from, {len(held_out)} held out (no prompt is in both)")
    draft = draft_of(output)
    try:
        with explained("write", output):
            draft.mkdir(parents=True)
            report = _learn(path, draft, settings, RewardPolicy(policy, seed=settings.seed), training, held_out, note)
            draft.rename(output)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return report


def _load(settings: RewardTraining) -> tuple[TextPolicy, Renderer]:
    choice = settings.model
    if choice.system:
        raise ValueError("model.system is not saved with a reward model; write system messages into the file")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
    lora = choice.lora and LoraSettings(rank=choice.lora.rank, alpha=choice.lora.alpha, seed=settings.seed)
    if choice.lora is not None and choice.lora.adapter is not None:
        raise ValueError("model.lora.adapter is not read for a reward model; merge it into its base, and name that")
    policy = TextPolicy.load(
        choice.name, dtype=choice.dtype, device=device, lora=lora, checkpointing=choice.checkpointing
    )
    if choice.template is not None:
        policy.tokenizer.chat_template = choice.template  # it is saved with the model
    return policy, Renderer(policy.tokenizer)


def _learn(
    path: str | Path,
    folder: Path,
    settings: RewardTraining,
    policy: RewardPolicy,
    training: Sequence[Group],
    held_out: Sequence[Group],
    note: Note,
) -> PairReport:
    source = Imitation(training, Sft(batch=settings.batch, epochs=settings.epochs), seed=settings.seed)
    learner = Learner(policy, row_of(settings.loss), _train(settings, source.steps), seed=settings.seed)
    metrics, names = Journal(folder / "metrics.jsonl"), _sources(Path(path), {group.id for group in held_out})
    for step in range(1, source.steps + 1):
        batch = learner.prepare(source.groups(step))
        if batch is None:  # all answers of these lines are equally good
            continue
        found = learner.learn(batch, step).metrics
        metrics.append({"step": step, **{name: found[name] for name in _KEPT}})
        note(f"step {step}/{source.steps}  loss {found['loss/policy']:.4f}")
    learner.free_gradients()
    report = _judge(policy, held_out, names, tokens=settings.train.micro_tokens)
    (folder / "report.json").write_text(json.dumps(report.as_row(), indent=1))
    (folder / "training.json").write_text(
        json.dumps({"pairs": str(path), **settings.model_dump(mode="json")}, indent=1)
    )
    policy.save(folder)
    return report


def _train(settings: RewardTraining, steps: int) -> Train:
    changes: dict[str, Any] = {"steps": steps}
    if "learning_rate" not in settings.train.model_fields_set and is_small(settings.model.name):
        changes["learning_rate"] = _SMALL_RATE
    return settings.train.model_copy(update=changes)


def _judge(policy: RewardPolicy, groups: Sequence[Group], names: dict[str, str], *, tokens: int) -> PairReport:
    everyone = [each for group in groups for each in group.trajectories]
    found = iter(
        turn_scores(
            lambda part: token_scores(policy.policy.model, policy.head, part),
            everyone,
            tokens=tokens,
            device=policy.device,
        )
    )
    scores = [[next(found)[-1] for _ in group.trajectories] for group in groups]
    pairs = scored_pairs(groups, scores, [names.get(group.id, "") for group in groups])
    if not pairs:
        raise ValueError("the held-out lines have no two answers of different worth; raise held_out")
    return PairReport.of(pairs)


def _sources(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """The field `source` of the wanted groups' lines that have one; other lines may not even be JSON."""
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    named = {f"{path.name}:{number}": line for number, line in enumerate(lines, start=1)}
    rows = {name: json.loads(line) for name, line in named.items() if name in wanted}
    return {name: str(row["source"]) for name, row in rows.items() if "source" in row}
