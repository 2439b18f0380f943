"""Feature policies: densities by hand, gradients, and learning through the same row as language models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from turnwise.algorithm import Algorithm, compute_credit, compute_loss, preset
from turnwise.batch import TokenBatch
from turnwise.policy.features import ACTIONS, FEATURES, LEGAL, Discrete, FeaturePolicy, Gaussian
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn

PPO = preset("ppo").override({"weights": "token-mean", "minibatches": 1})


def one_step(features: Tensor, actions: Tensor, rewards: list[float]) -> TokenBatch:
    """Every row an episode of one action."""
    ids = actions.tolist() if actions.dim() == 1 else [0] * len(actions)
    trajectories = [
        Trajectory(
            id=f"t{number}",
            turns=[Turn(sampled_ids=[action], reward=reward)],
            stop=StopReason.DONE,
            terminated=True,
        )
        for number, (action, reward) in enumerate(zip(ids, rewards, strict=True))
    ]
    batch = pack([Group(id="g", trajectories=trajectories)])
    streams = {FEATURES: features} if actions.dim() == 1 else {FEATURES: features, ACTIONS: actions}
    return batch.with_(extra_T=streams)


def learn(policy: FeaturePolicy, optimizer: torch.optim.Optimizer, row: Algorithm, batch: TokenBatch) -> None:
    """One PPO iteration of four epochs."""
    batch = policy.assess(batch)
    batch = compute_credit(row, batch.with_(old_T=policy.score(batch).logprob_T.detach()))
    for _ in range(4):
        optimizer.zero_grad()
        compute_loss(row, batch, policy.score(batch, entropy=True)).total.backward()
        optimizer.step()


def test_discrete_scores_are_log_softmax_of_the_network() -> None:
    policy = FeaturePolicy.mlp(3, actions=Discrete(count=4), hidden=(8,), seed=1)
    features = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    actions = torch.tensor([0, 3, 1, 2, 2])
    scores = policy.score(
        one_step(features, actions, [0.0] * 5), temperature=0.5, entropy=True, collision=True, uniform=True
    )
    log_p = (policy.head(policy.body(features)) / 0.5).log_softmax(-1)
    torch.testing.assert_close(scores.logprob_T, log_p[torch.arange(5), actions])
    assert scores.entropy_T is not None
    torch.testing.assert_close(scores.entropy_T, torch.distributions.Categorical(logits=log_p).entropy())
    assert scores.collision_T is not None
    torch.testing.assert_close(scores.collision_T, log_p.exp().square().sum(-1))
    assert scores.uniform_T is not None
    torch.testing.assert_close(scores.uniform_T, log_p.mean(-1))


def test_actions_that_are_not_legal_are_never_taken_and_have_no_share() -> None:
    policy = FeaturePolicy.mlp(3, actions=Discrete(count=4), hidden=(8,), seed=1)
    features = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    legal = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(500, 4)
    chosen = policy.act(features, generator=torch.Generator().manual_seed(1), legal_NA=legal)
    assert set(chosen.chosen_N.tolist()) == {0, 2}
    batch = one_step(features, chosen.chosen_N, [0.0] * 500)
    batch = batch.with_(extra_T={**batch.extra_T, LEGAL: legal})
    scores = policy.score(batch, entropy=True, collision=True, uniform=True)
    pair = policy.head(policy.body(features))[:, [0, 2]].log_softmax(-1)
    torch.testing.assert_close(scores.logprob_T, pair.gather(1, chosen.chosen_N[:, None] // 2).squeeze(1))
    torch.testing.assert_close(scores.logprob_T.detach(), chosen.logprob_N)
    torch.testing.assert_close(scores.entropy_T, torch.distributions.Categorical(logits=pair).entropy())
    torch.testing.assert_close(scores.collision_T, pair.exp().square().sum(-1))
    torch.testing.assert_close(scores.uniform_T, pair.mean(-1))
    scores.logprob_T.sum().backward()
    gradient = policy.head.weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert (gradient[[1, 3]] == 0).all()


def test_a_state_without_a_legal_action_is_refused() -> None:
    policy = FeaturePolicy.mlp(1, actions=Discrete(count=2))
    with pytest.raises(ValueError, match="no action is legal"):
        policy.act(torch.zeros(1, 1), generator=torch.Generator(), legal_NA=torch.zeros(1, 2))


def test_gaussian_scores_are_normal_densities() -> None:
    policy = FeaturePolicy.mlp(3, actions=Gaussian(size=2), seed=1)
    assert policy.log_spread is not None
    with torch.no_grad():
        policy.log_spread.copy_(torch.tensor([0.3, -0.7]))
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    actions = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    scores = policy.score(one_step(features, actions, [0.0] * 6), temperature=4.0, entropy=True)
    normal = torch.distributions.Normal(policy.head(policy.body(features)), 2.0 * policy.log_spread.exp())
    torch.testing.assert_close(scores.logprob_T, normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(scores.entropy_T, normal.entropy().sum(-1))


@pytest.mark.parametrize("actions", [Discrete(count=3), Gaussian(size=2)])
def test_chosen_actions_carry_the_log_probs_that_are_scored(actions: Discrete | Gaussian) -> None:
    policy = FeaturePolicy.mlp(3, actions=actions, seed=2)
    features = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    chosen = policy.act(features, generator=torch.Generator().manual_seed(1), temperature=1.7)
    again = policy.act(features, generator=torch.Generator().manual_seed(1), temperature=1.7)
    assert torch.equal(chosen.chosen_N, again.chosen_N)
    scores = policy.score(one_step(features, chosen.chosen_N, [0.0] * 200), temperature=1.7)
    torch.testing.assert_close(scores.logprob_T.detach(), chosen.logprob_N)


def test_a_fresh_policy_is_nearly_uniform_and_equal_for_equal_seeds() -> None:
    first, second = (FeaturePolicy.cnn((3, 7, 5), actions=Discrete(count=4), value=True, seed=9) for _ in range(2))
    pictures = torch.randn(10, 3, 7, 5, generator=torch.Generator().manual_seed(0))
    batch = one_step(pictures, torch.zeros(10, dtype=torch.long), [0.0] * 10)
    scores = first.score(batch)
    assert torch.equal(scores.logprob_T, second.score(batch).logprob_T)
    assert scores.logprob_T.tolist() == pytest.approx([-math.log(4)] * 10, abs=0.05)
    scores.logprob_T.sum().backward()
    assert all(p.grad is not None for name, p in first.named_parameters() if not name.startswith("value"))


def test_cut_episodes_are_bootstrapped_from_their_last_observation() -> None:
    policy = FeaturePolicy.mlp(2, actions=Discrete(count=2), value=True, seed=4)
    cut = Trajectory(
        id="cut",
        turns=[Turn(sampled_ids=[1]), Turn(sampled_ids=[0])],
        stop=StopReason.MAX_TURNS,
        truncated=True,
        final_ids=[0],
    )
    batch = pack([Group(id="g", trajectories=[cut])])
    features = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    filled = policy.assess(batch.with_(extra_T={FEATURES: features}))
    assert policy.value is not None
    values = policy.value(features).squeeze(1).detach()
    assert filled.bootstrap_S is not None
    assert filled.bootstrap_S.tolist() == pytest.approx([float(values[2])])
    torch.testing.assert_close(filled.value_T, values)


def test_a_cut_episode_without_its_last_observation_is_refused() -> None:
    policy = FeaturePolicy.mlp(2, actions=Discrete(count=2), value=True)
    cut = Trajectory(id="cut", turns=[Turn(sampled_ids=[1])], stop=StopReason.MAX_TURNS, truncated=True)
    batch = pack([Group(id="g", trajectories=[cut])]).with_(extra_T={FEATURES: torch.zeros(1, 2)})
    with pytest.raises(ValueError, match=r"trajectory 'cut', turn 0.*final id"):
        policy.assess(batch)


def test_missing_parts_are_named() -> None:
    batch = pack(
        [Group(id="g", trajectories=[Trajectory(id="t", turns=[Turn(sampled_ids=[0])], stop=StopReason.DONE)])]
    )
    policy = FeaturePolicy.mlp(2, actions=Gaussian(size=1))
    with pytest.raises(ValueError, match="no 'features'"):
        policy.score(batch)
    batch = batch.with_(extra_T={FEATURES: torch.zeros(1, 2)})
    with pytest.raises(ValueError, match="no 'actions'"):
        policy.score(batch)
    with pytest.raises(ValueError, match="value=True"):
        policy.assess(batch)
    with pytest.raises(ValueError, match="discrete"):
        policy.score(batch.with_(extra_T={**batch.extra_T, ACTIONS: torch.zeros(1, 1)}), collision=True)
    with pytest.raises(ValueError, match="temperature must be positive"):
        policy.score(batch.with_(extra_T={**batch.extra_T, ACTIONS: torch.zeros(1, 1)}), temperature=0.0)


def test_ppo_learns_a_bandit_with_context() -> None:
    policy = FeaturePolicy.mlp(3, actions=Discrete(count=3), hidden=(16,), value=True, seed=0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    noise = torch.Generator().manual_seed(0)
    success: list[float] = []
    for _ in range(25):
        context = torch.randint(0, 3, (128,), generator=noise)
        features = torch.nn.functional.one_hot(context, 3).float()
        actions = policy.act(features, generator=noise).chosen_N
        won = (actions == context).float()
        success.append(float(won.mean()))
        learn(policy, optimizer, PPO, one_step(features, actions, won.tolist()))
    assert success[0] < 0.5
    assert success[-1] > 0.95


def test_ppo_learns_to_aim_with_gaussian_actions() -> None:
    policy = FeaturePolicy.mlp(1, actions=Gaussian(size=2), hidden=(16,), value=True, seed=0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    noise = torch.Generator().manual_seed(0)
    misses: list[float] = []
    for _ in range(40):
        context = torch.rand(256, 1, generator=noise) * 2 - 1
        actions = policy.act(context, generator=noise).chosen_N
        miss = (actions - torch.cat([context, 1 - context], dim=1)).square().sum(-1)
        misses.append(float(miss.mean()))
        learn(policy, optimizer, PPO, one_step(context, actions, (-miss).tolist()))
    assert misses[0] > 2
    assert misses[-1] < 0.5


def walk(policy: FeaturePolicy, noise: torch.Generator, *, episodes: int) -> tuple[TokenBatch, float]:
    """A corridor of seven places, from the middle; 1 for reaching the right end, 0 at the left, cut after 12 steps."""
    trajectories: list[Trajectory] = []
    features: list[Tensor] = []
    for number in range(episodes):
        place, turns = 3, list[Turn]()
        while 0 < place < 6 and len(turns) < 12:
            features.append(torch.nn.functional.one_hot(torch.tensor(place), 7).float())
            action = int(policy.act(features[-1][None], generator=noise).chosen_N)
            place += 1 if action else -1
            turns.append(Turn(sampled_ids=[action], reward=float(place == 6)))
        cut = 0 < place < 6
        if cut:
            features.append(torch.nn.functional.one_hot(torch.tensor(place), 7).float())
        trajectories.append(
            Trajectory(
                id=f"t{number}",
                turns=turns,
                stop=StopReason.MAX_TURNS if cut else StopReason.DONE,
                terminated=not cut,
                truncated=cut,
                final_ids=[0] if cut else [],
            )
        )
    batch = pack([Group(id="g", trajectories=trajectories)])
    return batch.with_(extra_T={FEATURES: torch.stack(features)}), sum(t.reward for t in trajectories) / episodes


def test_ppo_learns_a_corridor_of_many_steps() -> None:
    policy = FeaturePolicy.mlp(7, actions=Discrete(count=2), hidden=(16,), value=True, seed=0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    noise = torch.Generator().manual_seed(0)
    _, before = walk(policy, noise, episodes=64)
    for _ in range(8):
        batch, _ = walk(policy, noise, episodes=32)
        learn(policy, optimizer, PPO, batch)
    _, after = walk(policy, noise, episodes=64)
    assert before < 0.7
    assert after > 0.95
