"""Critics: which state a value belongs to, bootstraps of cut episodes, what the value loss may move."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.policy.shapes import RAGGED, make_batch, make_model
from turnwise.algorithm import compute_credit, compute_loss, preset
from turnwise.batch import TokenBatch
from turnwise.ops.values import histogram_mean
from turnwise.policy.critics import Bins, Critic
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn


def make_policy() -> TextPolicy:
    return TextPolicy(make_model("llama"))


def random_head(critic: Critic, *, seed: int = 3) -> Critic:
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in critic.head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=noise))
    return critic


def value_at(policy: TextPolicy, critic: Critic, ids: list[int]) -> float:
    """The value of the state after these tokens, computed from them alone."""
    batch = pack([Group(id="g", trajectories=[Trajectory(id="t", turns=[Turn(prompt_ids=ids)], stop=StopReason.DONE)])])
    hidden = policy.hidden(batch)[-1]
    return float((critic.head.weight @ hidden + critic.head.bias).detach()[0])


def test_the_value_at_a_token_is_that_of_the_state_before_it() -> None:
    policy, batch = make_policy(), make_batch([[(3, 2), (2, 4)], [(1, 3)]])
    critic = random_head(Critic.shared(policy))
    value_T = critic.assess(batch, policy).value_T
    assert value_T is not None
    ids = batch.ids_T.tolist()
    assert float(value_T[3]) == pytest.approx(value_at(policy, critic, ids[:3]), abs=1e-4)
    assert float(value_T[10]) == pytest.approx(value_at(policy, critic, ids[:10]), abs=1e-4)
    assert float(value_T[12]) == pytest.approx(value_at(policy, critic, ids[11:12]), abs=1e-4)
    assert not value_T[~batch.sampled_T].any()


def test_a_cut_episode_is_bootstrapped_after_its_last_token() -> None:
    policy = make_policy()
    critic = random_head(Critic.shared(policy))
    whole = Trajectory(id="whole", turns=[Turn(prompt_ids=[5, 6], sampled_ids=[7])], stop=StopReason.DONE)
    cut = Trajectory(
        id="cut",
        turns=[
            Turn(prompt_ids=[8], sampled_ids=[9, 10]),
            Turn(prompt_ids=[11, 12], sampled_ids=[13], restarts=True),
        ],
        stop=StopReason.MAX_TURNS,
        truncated=True,
        final_ids=[14, 15],
    )
    batch = critic.assess(pack([Group(id="g", trajectories=[whole, cut])]), policy)
    assert batch.bootstrap_S is not None
    expected = value_at(policy, critic, [11, 12, 13, 14, 15])
    assert batch.bootstrap_S.tolist() == pytest.approx([0.0, expected, expected], abs=1e-4)


def test_a_known_bootstrap_is_kept() -> None:
    policy, batch = make_policy(), make_batch(RAGGED, truncated=True)
    known = torch.arange(5.0)
    assert batch.bootstrap_S is None
    filled = Critic.shared(policy).assess(batch.with_(bootstrap_S=known), policy)
    assert filled.bootstrap_S is known


def test_only_the_bootstraps_that_wait_are_filled_in() -> None:
    policy, batch = make_policy(), make_batch(RAGGED, truncated=True)
    critic = random_head(Critic.shared(policy))
    own_S = critic.assess(batch, policy).bootstrap_S
    assert own_S is not None
    half_known = torch.tensor([9.0, math.nan, 9.0, math.nan, 9.0])
    filled = critic.assess(batch.with_(bootstrap_S=half_known), policy).bootstrap_S
    assert filled is not None
    assert filled.tolist() == [9.0, float(own_S[1]), 9.0, float(own_S[3]), 9.0]


def value_gradient(critic: Critic, policy: TextPolicy) -> Tensor | None:
    """What a value loss sends into the policy's first layer."""
    value_T = policy.score(make_batch(RAGGED), critic=critic).value_T
    assert value_T is not None
    (value_T - 1).square().sum().backward()
    return policy.model.get_parameter("model.layers.0.mlp.up_proj.weight").grad


def test_a_shared_critic_moves_the_trunk_unless_detached() -> None:
    shared = make_policy()
    gradient = value_gradient(random_head(Critic.shared(shared)), shared)
    assert gradient is not None
    assert float(gradient.abs().sum()) > 0
    apart = make_policy()
    assert value_gradient(random_head(Critic.shared(apart, detached=True)), apart) is None


def test_a_separate_critic_starts_from_the_policy_and_shares_nothing() -> None:
    policy, batch = make_policy(), make_batch(RAGGED)
    shared, separate = random_head(Critic.shared(policy)), random_head(Critic.separate(policy.model))
    values = [policy.score(batch, critic=critic).value_T for critic in (shared, separate)]
    torch.testing.assert_close(values[0], values[1])
    assert value_gradient(separate, policy) is None
    assert separate.get_parameter("trunk.layers.0.mlp.up_proj.weight").grad is not None
    assert len(separate.trainable()) > len(shared.trainable()) == 2
    assert not {*separate.parameters()} & {*policy.model.parameters()}


def test_a_new_critic_values_everything_alike() -> None:
    policy, batch = make_policy(), make_batch(RAGGED)
    scalar = policy.score(batch, critic=Critic.shared(policy)).value_T
    assert scalar is not None
    assert not scalar.any()
    bins = Bins(low=-1.0, high=3.0, count=8)
    categorical = policy.score(batch, critic=Critic.shared(policy, bins=bins)).value_T
    assert categorical is not None
    assert categorical[batch.sampled_T].tolist() == pytest.approx([1.0] * int(batch.sampled_T.sum()))


def test_a_categorical_critic_reports_its_logits_and_their_mean() -> None:
    policy, batch = make_policy(), make_batch(RAGGED)
    critic = random_head(Critic.shared(policy, bins=Bins(low=0.0, high=2.0, count=5)))
    scores = policy.score(batch, critic=critic)
    assert scores.value_T is not None
    assert scores.value_logits_TB is not None
    assert scores.value_logits_TB.shape == (batch.tokens, 5)
    mean_T = histogram_mean(scores.value_logits_TB, low=0.0, high=2.0)
    torch.testing.assert_close(scores.value_T[batch.sampled_T], mean_T[batch.sampled_T])


def test_bins_must_span_something() -> None:
    with pytest.raises(ValueError, match="low < high"):
        Bins(low=1.0, high=1.0)
    with pytest.raises(ValueError, match="at least two"):
        Bins(count=1)


def test_a_row_gives_its_critic_the_bins_that_it_trains() -> None:
    loss = {"kind": "hl-gauss", "low": -1.0, "high": 3.0, "bins": 8}
    assert Bins.of(preset("ppo").override({"critic": {"loss": loss}})) == Bins(low=-1.0, high=3.0, count=8)
    assert Bins.of(preset("ppo")) is None


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize("loss", ["mse", "hl-gauss"])
def test_a_critic_learns_returns_through_the_row(loss: str, level: str) -> None:
    policy = make_policy()
    row = preset("ppo").override(
        {"critic": {"level": level, "loss": {"kind": loss}}, "advantage": "gae" if level == "token" else "turn-gae"}
    )
    critic = Critic.separate(policy.model, bins=Bins.of(row))
    batch = critic.assess(first_token_tells(), policy)
    batch = compute_credit(row, batch.with_(old_T=policy.score(batch).logprob_T.detach()))
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        compute_loss(row, batch, policy.score(batch, critic=critic)).total.backward()
        optimizer.step()
    value_T = critic.assess(batch, policy).value_T
    assert value_T is not None
    opens = [1, 4]  # the first sampled token of each trajectory
    assert value_T[opens].tolist() == pytest.approx([0.0, 1.0], abs=0.1)


def first_token_tells() -> TokenBatch:
    """Two trajectories of three tokens whose returns, 0 and 1, depend on the prompt."""
    trajectories = [
        Trajectory(
            id=f"t{label}",
            turns=[Turn(prompt_ids=[2 + label], sampled_ids=[9, 9], logprobs=[-1, -1], reward=float(label))],
            stop=StopReason.DONE,
            terminated=True,
        )
        for label in (0, 1)
    ]
    return pack([Group(id="g", trajectories=trajectories)])
