"""DPO, IPO and KTO give the numbers of TRL's own trainers on the same model, reference and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, compute_credit, compute_loss, preset
from turnwise.batch import Scores, TokenBatch
from turnwise.policy.models import resolve_model
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

PAIRS = {
    "prompt": ["Name a city", "Count to three", "Why", "The key is"],
    "chosen": [" Paris, by the river", " one two three", " because", " under the mat"],
    "rejected": [" no", " one two", " I will not say why", " lost"],
}
ANSWERS = {
    "prompt": [*PAIRS["prompt"], *PAIRS["prompt"]],
    "completion": [*PAIRS["chosen"], *PAIRS["rejected"]],
    "label": [True] * 4 + [False] * 4,
}


def model(noise: float = 0.0) -> Any:
    """The shipped model, moved at random; a seed of its own for each size."""
    found = transformers.AutoModelForCausalLM.from_pretrained(resolve_model("nano"), dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(noise * torch.randn(weight.shape, generator=generator) * weight.std(correction=0))
    return found.eval()


def settings(folder: Path, size: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": size,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def trainer(folder: Path, kind: str, rows: dict[str, list[Any]], **options: Any) -> Any:
    """TRL's trainer with our shipped model and a reference that differs from it."""
    args = getattr(trl, f"{kind}Config")(**settings(folder, len(rows["prompt"])), **options)
    return getattr(trl, f"{kind}Trainer")(
        model=model(0.05),
        ref_model=model(),
        args=args,
        train_dataset=datasets.Dataset.from_dict(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(resolve_model("nano")),
    )


def log_probs(policy: Any, ids: Tensor, attention: Tensor) -> Tensor:
    """Of every token but the first, given those before it."""
    logits = policy(input_ids=ids, attention_mask=attention).logits[:, :-1]
    return logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)


def packed(batch: dict[str, Tensor], groups: list[list[tuple[int, float]]]) -> tuple[TokenBatch, list[int]]:
    """TRL's rows as groups of (row, reward), and the rows in the order of the batch."""
    mask = batch["completion_mask"].bool()

    def answer(row: int, reward: float) -> Trajectory:
        turn = Turn(sampled_ids=batch["input_ids"][row][mask[row]].tolist(), reward=reward)
        return Trajectory(id=f"{row}", turns=[turn], stop=StopReason.DONE, terminated=True)

    made = [Group(id=f"{place}", trajectories=[answer(*each) for each in group]) for place, group in enumerate(groups)]
    return pack(made), [row for group in groups for row, _ in group]


def our_loss(row: Algorithm, host: Any, batch: dict[str, Tensor], groups: list[list[tuple[int, float]]]) -> Tensor:
    """The row's loss on the log-probs that TRL's model and reference have for its batch."""
    token_batch, rows = packed(batch, groups)
    ids, attention = batch["input_ids"], batch["attention_mask"]
    mask = batch["completion_mask"].bool()[:, 1:]
    policy_logps = log_probs(host.model, ids, attention)
    with torch.no_grad():
        reference_logps = log_probs(host.ref_model, ids, attention)
    logprob_T = torch.cat([policy_logps[each][mask[each]] for each in rows])
    reference_T = torch.cat([reference_logps[each][mask[each]] for each in rows])
    credited = compute_credit(row, token_batch.with_(ref_T=reference_T, old_T=logprob_T.detach()))
    return compute_loss(row, credited, Scores(logprob_T=logprob_T)).total


def same_loss_and_gradient(ours: Tensor, theirs: Tensor, host: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    weights = list(host.model.parameters())
    found, wanted = (torch.autograd.grad(loss, weights, retain_graph=True) for loss in (ours, theirs))
    assert any(bool(each.any()) for each in wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()) + 1e-8)


@pytest.mark.parametrize(
    ("loss_type", "name", "surrogate"),
    [
        ("sigmoid", "dpo", {}),
        ("sigmoid_norm", "dpo", {"length": "mean"}),
        ("ipo", "ipo", {}),
    ],
)
def test_losses_of_pairs_are_trl_s(tmp_path: Path, loss_type: str, name: str, surrogate: dict[str, Any]) -> None:
    host = trainer(tmp_path, "DPO", PAIRS, loss_type=loss_type, beta=0.2)
    batch = next(iter(host.get_train_dataloader()))
    theirs = host.compute_loss(host.model, dict(batch))
    count = len(batch["input_ids"]) // 2
    groups = [[(place, 1.0), (place + count, 0.0)] for place in range(count)]
    row = preset(name).override({"surrogate": {"beta": 0.2, **surrogate}})
    same_loss_and_gradient(our_loss(row, host, batch, groups), theirs, host)


def test_label_smoothing_is_the_one_inside_trl_s_robust_loss(tmp_path: Path) -> None:
    """TRL's `robust` is (clean − flipped) / (1 − 2ε) of the two terms that ours adds."""
    host = trainer(tmp_path, "DPO", PAIRS, loss_type="robust", beta=0.2, label_smoothing=0.1)
    batch = next(iter(host.get_train_dataloader()))
    theirs = host.compute_loss(host.model, dict(batch))
    count = len(batch["input_ids"]) // 2
    groups = [[(place, 1.0), (place + count, 0.0)] for place in range(count)]
    surrogate = {"beta": 0.2}
    clean = our_loss(preset("dpo").override({"surrogate": surrogate}), host, batch, groups)
    smooth = our_loss(preset("dpo").override({"surrogate": {**surrogate, "label_smoothing": 0.1}}), host, batch, groups)
    flipped = smooth - 0.9 * clean  # ε times the term of the flipped label
    same_loss_and_gradient((0.9 * clean - flipped) / 0.8, theirs, host)


def test_kto_is_trl_s_at_its_anchor(tmp_path: Path) -> None:
    weights = {"desirable_weight": 1.5, "undesirable_weight": 0.7}
    host = trainer(tmp_path, "KTO", ANSWERS, beta=0.2, **weights)
    batch = next(iter(host.get_train_dataloader()))
    theirs = host.compute_loss(host.model, dict(batch))
    anchor = host._metrics["eval"]["kl"][-1]  # what TRL estimated; ours is a constant
    groups = [[(row, float(good))] for row, good in enumerate(batch["label"])]
    surrogate = {"beta": 0.2, "anchor": anchor, "desirable": 1.5, "undesirable": 0.7}
    ours = our_loss(preset("kto").override({"surrogate": surrogate}), host, batch, groups)
    same_loss_and_gradient(ours, theirs, host)
