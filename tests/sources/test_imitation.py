"""Imitation: which demonstrations a step sees, and that learning from them makes unseen ones more likely."""

from collections import Counter

import pytest
import torch

from turnwise.algorithm import Need, compute_credit, compute_loss, preset, resolve
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import EnvChoice, Evaluate, Recipe, Sft, Train
from turnwise.rollout.packing import pack
from turnwise.sources.demonstrations import expert_groups
from turnwise.sources.imitation import IMITATION, Imitation, sft_recipe
from turnwise.types import Group, StopReason, Trajectory, Turn


def numbered(count):
    return [Group(id=str(number), trajectories=[]) for number in range(count)]


def names(groups):
    return [group.id for group in groups]


def test_an_epoch_shows_every_demonstration_once_in_an_order_of_its_own():
    imitation = Imitation(numbered(10), Sft(batch=4, epochs=3), seed=0)
    assert imitation.steps == 9
    batches = [names(imitation.groups(step)) for step in range(1, 10)]
    assert [len(batch) for batch in batches] == [4, 4, 2] * 3
    epochs = [[name for batch in batches[start : start + 3] for name in batch] for start in (0, 3, 6)]
    assert all(Counter(epoch) == Counter(map(str, range(10))) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_batch_is_a_function_of_seed_and_step_alone():
    sft = Sft(batch=3, epochs=4)
    straight = Imitation(numbered(8), sft, seed=5)
    forwards = [names(straight.groups(step)) for step in range(1, straight.steps + 1)]
    resumed = Imitation(numbered(8), sft, seed=5)
    backwards = [names(resumed.groups(step)) for step in range(resumed.steps, 0, -1)]
    assert backwards[::-1] == forwards
    assert forwards[0] == ["5", "1", "7"]  # and of nothing that changes from one process to the next
    other = Imitation(numbered(8), sft, seed=6)
    assert [names(other.groups(step)) for step in range(1, other.steps + 1)] != forwards


def test_a_batch_larger_than_all_demonstrations_takes_them_all():
    imitation = Imitation(numbered(3), Sft(batch=32, epochs=2), seed=0)
    assert imitation.steps == 2
    assert sorted(names(imitation.groups(2))) == ["0", "1", "2"]


@pytest.mark.parametrize("step", [0, 7])
def test_steps_beyond_the_stage_are_refused(step):
    with pytest.raises(ValueError, match=f"imitation has steps 1 to 6, not {step}"):
        Imitation(numbered(3), Sft(batch=1, epochs=2), seed=0).groups(step)


def test_no_demonstrations_are_refused_with_the_fix():
    with pytest.raises(ValueError, match="there are no demonstrations; raise"):
        Imitation([], Sft(), seed=0)


def test_the_stage_is_a_recipe_with_its_own_row_and_schedule_and_all_else_kept():
    recipe = Recipe(
        algorithm=preset("st-ppo"),
        train=Train(steps=40, learning_rate=3e-5, grad_clip=0.5),
        sft=Sft(learning_rate=2e-4, warmup=7, schedule="linear"),
        eval=Evaluate(every=3),
    )
    stage = sft_recipe(recipe, steps=12)
    assert stage.algorithm == IMITATION
    assert (stage.train.steps, stage.train.learning_rate, stage.train.warmup) == (12, 2e-4, 7)
    assert (stage.train.schedule, stage.train.grad_clip) == ("linear", 0.5)
    assert stage.stage == "imitation"
    changed = {"stage", "algorithm", "train"}
    assert stage.model_dump(exclude=changed) == recipe.model_dump(exclude=changed)
    assert Recipe.model_validate(stage.model_dump(mode="json")) == stage
    with pytest.raises(ValueError, match="the recipe has no imitation stage; add an sft section"):
        sft_recipe(recipe.model_copy(update={"sft": None}), steps=1)


def loss_of(policy, groups):
    """As the learner does it when nothing is known of an old policy: it is the policy itself."""
    batch = compute_credit(IMITATION, pack(groups))
    scores = policy.score(batch)
    return compute_loss(IMITATION, batch.with_(old_T=scores.logprob_T.detach()), scores)


def test_the_loss_is_the_mean_negative_log_prob_of_sampled_tokens_whatever_they_earned():
    policy = TextPolicy.load("nano")

    def groups(reward):
        turn = Turn(prompt_ids=[2, 50, 3], sampled_ids=[60, 61, 4], reward=reward)
        cut = Trajectory(id="cut", turns=[turn], stop=StopReason.MAX_TURNS, truncated=True)
        longer = Turn(prompt_ids=[2, 70, 3], sampled_ids=[71, 72, 73, 74, 4])
        whole = Trajectory(id="whole", turns=[longer], stop=StopReason.DONE, terminated=True)
        return [Group(id=one.id, trajectories=[one]) for one in (cut, whole)]

    batch = pack(groups(0.0))
    with torch.no_grad():
        expected = -policy.score(batch).logprob_T[batch.sampled_T].sum() / 8
        losses = [loss_of(policy, groups(reward)).total for reward in (0.0, 5.0)]
    torch.testing.assert_close(torch.stack(losses), expected.expand(2))
    assert resolve(IMITATION) == []
    assert not IMITATION.needs_critic
    assert not IMITATION.needs - {Need.OLD, Need.TOKEN_COUNT}  # of the ratio, which nll does not read, and of the mean
    assert IMITATION.updates_per_rollout == 1


def test_a_few_steps_make_demonstrations_about_unseen_places_much_likelier():
    pytest.importorskip("tantivy")
    policy = TextPolicy.load("nano")
    renderer, env = Renderer(policy.tokenizer), EnvChoice(id="search/geo-1hop")
    held_out_env = EnvChoice(id=env.id, kwargs=env.held_out)
    held_out = expert_groups(held_out_env, renderer, count=64, max_turns=8, seed=0)
    imitation = Imitation(expert_groups(env, renderer, count=128, max_turns=8, seed=0), Sft(batch=16, epochs=1), seed=0)
    with torch.no_grad():
        before = float(loss_of(policy, held_out).total)
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=3e-4, betas=(0.9, 0.999), weight_decay=0.0)
    for step in range(1, imitation.steps + 1):
        optimizer.zero_grad()
        loss_of(policy, imitation.groups(step)).total.backward()
        optimizer.step()
    with torch.no_grad():
        after = float(loss_of(policy, held_out).total)
    # Measured: 0.365 and 0.159 nats a token after eight steps of sixteen demonstrations.
    assert before > 0.3
    assert before - after > 0.15
