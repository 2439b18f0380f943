"""Through Tinker's own `forward_backward_custom`: the gradient in the weights is that of the row's loss on the model.

A training client whose two remote passes run the shipped model in this process stands for the service.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plugins.rows_and_batches import GROUP, ST_GRPO, clipped
from turnwise.algorithm import Algorithm, preset
from turnwise.plugins.padded import Padded, padded_credit, padded_loss
from turnwise.policy.models import resolve_model

tinker = pytest.importorskip("tinker")
transformers = pytest.importorskip("transformers")
client_module = pytest.importorskip("tinker.lib.public_interfaces.training_client")
plugin = pytest.importorskip("turnwise.plugins.tinker")

ST_TINKER = ST_GRPO.override({"ratio": {"against": "mu"}})


class Loop:
    """An event loop in a thread, as Tinker's client holder has one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run_coroutine_threadsafe(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


@dataclass
class Done:
    """An answer that has arrived."""

    value: Any

    async def result_async(self, timeout: float | None = None) -> Any:
        return self.value


@dataclass
class LocalClient(client_module.TrainingClient):
    """Tinker's client with the two remote passes run on a model here."""

    model: Any
    holder: Any = field(default_factory=Loop)
    sent: list[Any] = field(default_factory=list)

    def log_probs(self, datum: Any) -> Tensor:
        ids, targets = (
            torch.tensor(each) for each in (datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].data)
        )
        return self.model(ids[None]).logits[0].log_softmax(-1)[torch.arange(len(targets)), targets.long()]

    async def forward_async(self, data: list[Any], loss_fn: str, loss_fn_config: Any = None) -> Done:
        with torch.no_grad():
            outputs = [{"logprobs": tinker.TensorData.from_torch(self.log_probs(datum))} for datum in data]
        return Done(tinker.ForwardBackwardOutput(loss_fn_output_type="", loss_fn_outputs=outputs))

    async def forward_backward_async(self, data: list[Any], loss_fn: str, loss_fn_config: Any = None) -> Done:
        assert loss_fn == "cross_entropy"
        self.sent = data
        weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
        loss = sum(-(self.log_probs(datum) * weight).sum() for datum, weight in zip(data, weights, strict=True))
        assert isinstance(loss, Tensor)
        loss.backward()
        metrics = {"loss:sum": float(loss.detach())}
        return Done(tinker.ForwardBackwardOutput(loss_fn_output_type="", loss_fn_outputs=[], metrics=metrics))


@pytest.fixture
def client() -> Any:
    name = resolve_model("nano")
    return LocalClient(model=transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32))


def made_data(client: Any) -> list[Any]:
    """Four sequences of several turns, sampled by a slightly different policy."""
    noise = torch.Generator().manual_seed(0)
    masks = ([0, 1, 1, 0, 1, 1], [1, 1, 1], [0, 1, 0, 1, 0], [1, 0, 0, 1, 1, 1, 1])
    data = list[Any]()
    for mask in masks:
        ids = torch.randint(5, 200, (len(mask) + 1,), generator=noise)
        inputs = {"target_tokens": ids[1:], "mask": torch.tensor(mask, dtype=torch.float32)}
        datum = tinker.Datum(model_input=tinker.ModelInput.from_ints(ids[:-1].tolist()), loss_fn_inputs=inputs)
        with torch.no_grad():
            sampler = client.log_probs(datum) + torch.randn(len(mask), generator=noise) * 0.3
        data.append(
            tinker.Datum(model_input=datum.model_input, loss_fn_inputs={**datum.loss_fn_inputs, "logprobs": sampler})
        )
    return data


def stacked(tensors: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def expected_gradients(client: Any, row: Algorithm, data: list[Any]) -> tuple[float, list[Tensor]]:
    """The row's loss on the model itself, without Tinker."""
    client.model.zero_grad()
    streams = {name: stacked([each.loss_fn_inputs[name].to_torch() for each in data]) for name in ("mask", "logprobs")}
    known = Padded(mask=streams["mask"].bool(), rewards=torch.tensor([1.0, 0.0, 0.25, 0.5]), groups=[0, 0, 1, 1])
    advantages, _ = padded_credit(row, known)
    padded = Padded(mask=known.mask, sampler=streams["logprobs"], advantages=advantages)
    loss, _ = padded_loss(row, padded, stacked([client.log_probs(datum) for datum in data]))
    loss.total.backward()
    return float(loss.total.detach()), taken_gradients(client)


def taken_gradients(client: Any) -> list[Tensor]:
    found = [weight.grad.clone() for weight in client.model.parameters() if weight.grad is not None]
    client.model.zero_grad()
    return found


@pytest.mark.parametrize(
    "row",
    [ST_TINKER, clipped(weights="turn-mean").override({"ratio": {"against": "mu"}}), preset("reinforce")],
    ids=["st-ppo's loss", "turn-mean", "reinforce"],
)
def test_the_gradient_through_tinker_is_that_of_the_loss(client: Any, row: Algorithm):
    loss, data = plugin.TinkerLoss(row), made_data(client)
    expected, wanted = expected_gradients(client, row, data)
    credited = loss.credited(data, rewards=[1.0, 0.0, 0.25, 0.5], groups=["a", "a", "b", "b"])
    result = client.forward_backward_custom(credited, loss).result()
    assert result.metrics["loss:sum"] == pytest.approx(expected, rel=1e-5, abs=1e-7)
    for gradient, other in zip(taken_gradients(client), wanted, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)
    outside = [datum.loss_fn_inputs["mask"].to_torch() == 0 for datum in data]
    sent = [datum.loss_fn_inputs["weights"].to_torch() for datum in client.sent]
    assert all(not weights[other].any() for weights, other in zip(sent, outside, strict=True))


def test_the_scale_of_a_step_is_a_factor_on_its_learning_rate(client: Any):
    loss, data = plugin.TinkerLoss(ST_TINKER), made_data(client)
    credited = loss.credited(data, rewards=[1.0, 0.0, 0.25, 0.5], groups=[0, 0, 1, 1])
    client.forward_backward_custom(credited, loss).result()
    assert 0 < loss.step_scale() < 1
    assert loss.step_scale() == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (preset("st-ppo"), "critic.level=token: Tinker trains no critic"),
        (ST_GRPO, "ratio=turn needs .* set ratio.against to mu and mismatch to none"),
        (preset("poad").override(GROUP), "regularizers=entropy needs the entropy .* set regularizers to"),
        (
            ST_TINKER.override({"regularizers": [{"kind": "kl", "estimator": "full"}]}),
            "regularizers=kl needs the full KL",
        ),
    ],
)
def test_a_row_that_tinker_cannot_run_is_refused_at_start(row: Algorithm, reason: str):
    with pytest.raises(ValueError, match=reason):
        plugin.TinkerLoss(row)


def test_a_datum_without_a_needed_field_is_named(client: Any):
    with pytest.raises(ValueError, match="no 'advantages' in datum 0, 1, 2, 3"):
        plugin.TinkerLoss(ST_TINKER)(made_data(client), [])
