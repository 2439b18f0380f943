"""Experts recorded and replayed in the learner: the same experts exactly, the same bits where nothing else differs."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from tests.model_families import make_family
from tests.policy.shapes import RAGGED, make_batch
from turnwise.batch import TokenBatch
from turnwise.expert_routing import ExpertRecorder, ExpertReplay, follow_routing
from turnwise.policy.text import TextPolicy
from turnwise.types import ANY_EXPERT

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]
ROUTED = ["qwen3-moe", "mixtral", "olmoe", "qwen2-moe"]


class Watched(ExpertReplay):
    """A replay that notes which experts were used."""

    def __init__(self, experts_TE: Tensor) -> None:
        super().__init__(experts_TE)
        self.used: dict[int, Tensor] = {}

    def choose(self, first: int, chosen_Tk: Tensor) -> Tensor:
        self.used[first] = super().choose(first, chosen_Tk)
        return self.used[first]

    def experts(self) -> Tensor:
        return torch.cat([self.used[first] for first in sorted(self.used)], dim=1)


def recorded(policy: TextPolicy, batch: TokenBatch) -> Tensor:
    recording = ExpertRecorder()
    with torch.no_grad():
        policy.score(batch, routing=recording)
    return recording.experts()


def changed(family: str, *, by: float, checkpointing: bool = False, device: str = "cpu") -> TextPolicy:
    policy = TextPolicy(make_family(family, device=device), checkpointing=checkpointing)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += by * torch.randn(parameter.shape, generator=noise).to(device)
    return policy


def gradients(policy: TextPolicy, batch: TokenBatch, replay: ExpertReplay | None) -> tuple[Tensor, dict[str, Tensor]]:
    logprob_T = policy.score(batch, routing=replay).logprob_T
    logprob_T.sum().backward()
    return logprob_T.detach(), {name: each.grad for name, each in policy.trainable().items() if each.grad is not None}


def test_a_shared_critic_values_the_states_of_the_replayed_experts() -> None:
    batch = make_batch(RAGGED)
    before, after = changed("qwen3-moe", by=0.0), changed("qwen3-moe", by=0.3)
    replay = ExpertReplay(recorded(before, batch))
    critic = after.make_critic(bins=None, shared=True)
    torch.nn.init.normal_(critic.head.weight)
    value_T, free_T = critic.assess(batch, after, replay).value_T, critic.assess(batch, after).value_T
    updated_T = after.score(batch, critic=critic, routing=replay).value_T
    assert value_T is not None
    assert free_T is not None
    assert updated_T is not None
    assert torch.equal(value_T, updated_T.detach())
    assert not torch.equal(value_T, free_T)


@pytest.mark.parametrize("family", ROUTED)
def test_a_token_has_as_many_choices_as_layers_times_experts_per_token(family: str) -> None:
    policy, batch = TextPolicy(make_family(family)), make_batch(RAGGED)
    experts = recorded(policy, batch)
    assert follow_routing(policy.model) == 4
    assert (experts.shape, experts.dtype) == ((batch.tokens, 4), torch.int16)
    assert 0 <= int(experts.min()) <= int(experts.max()) < 4
    assert bool((experts[:, 0] != experts[:, 1]).all())


@pytest.mark.parametrize("family", ROUTED)
def test_replaying_its_own_experts_changes_no_bit(family: str) -> None:
    batch = make_batch(RAGGED)
    experts = recorded(TextPolicy(make_family(family)), batch)
    plain, plain_gradients = gradients(TextPolicy(make_family(family)), batch, None)
    found, found_gradients = gradients(TextPolicy(make_family(family)), batch, ExpertReplay(experts))
    assert torch.equal(plain, found)
    assert plain_gradients.keys() == found_gradients.keys()
    assert all(torch.equal(plain_gradients[name], found_gradients[name]) for name in plain_gradients)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ROUTED)
def test_other_weights_use_the_recorded_experts_and_their_router_still_learns(family: str, checkpointing: bool) -> None:
    batch = make_batch(RAGGED)
    experts = recorded(TextPolicy(make_family(family)), batch)
    policy = changed(family, by=0.1, checkpointing=checkpointing)
    own = recorded(policy, batch)
    assert 0.02 < float((own != experts).float().mean()) < 0.9
    watched = Watched(experts)
    replayed, grads = gradients(policy, batch, watched)
    assert torch.equal(watched.experts(), experts.long())
    assert not torch.allclose(replayed[batch.sampled_T], policy.score(batch).logprob_T.detach()[batch.sampled_T])
    routers = [name for name in grads if name.endswith("mlp.gate.weight")]
    assert len(routers) == 2
    assert all(bool(grads[name].any()) for name in routers)


@pytest.mark.parametrize("device", DEVICES)
def test_checkpointing_replays_in_the_backward_pass_too(device: str) -> None:
    batch, found = make_batch(RAGGED).to(device), list[dict[str, Tensor]]()
    experts = recorded(TextPolicy(make_family("qwen3-moe", device=device)), batch)
    for checkpointing in (False, True):  # on CUDA the backward pass has a thread of its own
        policy = changed("qwen3-moe", by=0.1, checkpointing=checkpointing, device=device)
        found.append(gradients(policy, batch, ExpertReplay(experts))[1])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5 if device == "cpu" else 1e-3)


def test_unknown_experts_are_chosen_by_the_router() -> None:
    batch, policy = make_batch(RAGGED), TextPolicy(make_family("qwen3-moe"))
    experts = recorded(policy, batch)
    unknown = torch.full_like(experts, ANY_EXPERT)
    assert torch.equal(policy.score(batch, routing=ExpertReplay(unknown)).logprob_T, policy.score(batch).logprob_T)
    other = (experts + 1) % 4
    other[batch.sequence_T != 1] = ANY_EXPERT
    watched = Watched(other)
    policy.score(batch, routing=watched)
    assert torch.equal(watched.experts()[batch.sequence_T == 1], other[batch.sequence_T == 1].long())
    assert torch.equal(watched.experts()[batch.sequence_T != 1], experts[batch.sequence_T != 1].long())


def test_parts_of_a_batch_replay_their_own_rows() -> None:
    batch, policy = make_batch(RAGGED), changed("qwen3-moe", by=0.1)
    experts = recorded(TextPolicy(make_family("qwen3-moe")), batch)
    batch = batch.with_(extra_T={"routing": experts})
    whole = policy.score(batch, routing=ExpertReplay(experts)).logprob_T
    part = batch.select([3, 1])
    found = policy.score(part, routing=ExpertReplay(part.extra_T["routing"])).logprob_T
    wanted = torch.cat([whole[batch.sequence_T == 3], whole[batch.sequence_T == 1]])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_a_replay_leaves_passes_of_other_threads_alone() -> None:
    batch, policy = make_batch(RAGGED), TextPolicy(make_family("qwen3-moe"))
    expected, found = policy.score(batch).logprob_T, list[Tensor]()

    def interrupt(*_: object) -> None:
        if not found and threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: found.append(policy.score(batch).logprob_T))
            other.start()
            other.join()

    policy.model.get_submodule("model.layers.0.mlp.gate").register_forward_pre_hook(interrupt)
    watched = Watched((recorded(policy, batch) + 1) % 4)
    found.clear()
    policy.score(batch, routing=watched)
    assert torch.equal(found[0], expected)


def test_a_copy_follows_and_hooks_are_set_once() -> None:
    batch, policy = make_batch(RAGGED), TextPolicy(make_family("qwen3-moe"))
    follow_routing(policy.model)
    layer = policy.model.get_submodule("model.layers.0")
    assert len(layer._forward_pre_hooks) == 1
    assert torch.equal(recorded(policy.twin(), batch), recorded(policy, batch))
    assert follow_routing(make_family("llama")) == 0
