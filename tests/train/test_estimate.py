"""What a run will take: numbers by hand, and against what a model really does."""

from pathlib import Path

import pytest
import torch

from tests.model_families import FAMILIES, make_family
from turnwise.policy.packed import Layout, packed_hidden
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_lora import LoraSettings
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import ModelChoice
from turnwise.train.estimate import GIB, Rates, activation_bytes, estimate, measure
from turnwise.train.model_shape import read_shape

NANO = 3_737_856
RATES = Rates(learning=1e11, playing=1e10)
ON_CPU = {
    "device": "cpu",
    "env": "game/guess-number-easy",
    "rollout": {"episodes": 16, "max_turns": 2, "max_tokens": 10},
    "train": {"steps": 5},
}


def test_sizes_of_nano_come_from_its_config() -> None:
    shape = read_shape(ModelChoice())
    assert (shape.parameters, shape.trained, shape.multiplied) == (NANO, NANO, NANO)
    assert (shape.layers, shape.width, shape.inner_width, shape.context) == (4, 256, 704, 512)


def test_an_adapter_trains_two_thin_matrices_for_each_linear_layer() -> None:
    shape = read_shape(ModelChoice.model_validate({"name": "nano", "lora": {"rank": 8}}))
    attention, feed_forward = 4 * (256 + 256), 3 * (256 + 704)
    assert shape.trained == 4 * 8 * (attention + feed_forward)


def test_memory_of_st_ppo_has_a_critic_and_no_reference() -> None:
    memory = estimate(load_recipe(None, ON_CPU), rates=RATES).memory
    assert memory["weights"] == memory["gradients"] == memory["critic"] == 4 * NANO
    assert memory["AdamW"] == 8 * NANO
    assert memory["critic's learning"] == 12 * NANO
    assert (memory["reference"], memory["engine"]) == (0, GIB // 2)
    # 4 minibatches of 4 episodes with 40 tokens, for the policy and for its critic. Gradients take their place one by
    # one, so at least those of a layer are left.
    assert memory["activations"] == max(2 * 160 * 4 * 4 * (11 * 256 + 4 * 704) - 8 * NANO, 2 * 160 * 4 * 5632)


def test_activations_of_several_passes_come_on_top_of_gradients() -> None:
    memory = estimate(load_recipe(None, {**ON_CPU, "train": {"steps": 5, "micro_tokens": 100}}), rates=RATES).memory
    assert memory["activations"] == 2 * 100 * 4 * 4 * (11 * 256 + 4 * 704)


def test_memory_of_grpo_has_a_reference_and_no_critic() -> None:
    memory = estimate(load_recipe(None, {**ON_CPU, "algorithm": "grpo"}), rates=RATES).memory
    assert (memory["critic"], memory["critic's learning"], memory["reference"]) == (0, 0, 4 * NANO)


@pytest.mark.parametrize(
    ("train", "each"),
    [
        ({}, 10),
        ({"masters": "fp32"}, 12),
        ({"masters": "stochastic", "moments": "bf16"}, 4),
        ({"moments": "int8"}, 4 + 8 / 256),
    ],
)
def test_half_precision_halves_weights_and_keeps_what_they_lack(train: dict[str, str], each: float) -> None:
    changes = {"model": {"dtype": "bf16"}, "train": {"steps": 5, **train}}
    memory = estimate(load_recipe(None, {**ON_CPU, **changes}), rates=RATES).memory
    assert (memory["weights"], memory["AdamW"]) == (2 * NANO, int(each * NANO))


def test_an_engine_that_releases_its_memory_shares_it_with_learning() -> None:
    keeps, releases = (
        estimate(load_recipe(None, {**ON_CPU, "engine": {"memory_gib": 0.05, "options": {"release": on}}}), rates=RATES)
        for on in (False, True)
    )
    learning = sum(keeps.memory[part] for part in ("gradients", "activations", "logits"))
    assert keeps.memory_needed - releases.memory_needed == min(learning, int(0.05 * GIB))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_those_that_a_forward_pass_keeps(checkpointing: bool) -> None:
    policy, tokens, sequences = TextPolicy.load("nano"), 1024, 8
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            kept[place] = tensor
        return tensor

    # With checkpointing all layers keep their input, and one at a time is recomputed: one layer on top of the inputs.
    inputs = 4 * 256 * 4 if checkpointing else 0
    position_T = torch.arange(tokens) % (tokens // sequences)
    layout = Layout.of(torch.full((sequences,), tokens // sequences))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        packed_hidden(policy.model, torch.arange(tokens), position_T, layout)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens
    expected = inputs + measured / 4 if checkpointing else measured
    found = activation_bytes(read_shape(ModelChoice()), 4, checkpointing=checkpointing)
    assert found == pytest.approx(expected, rel=0.1)


def test_time_is_operations_over_rates() -> None:
    recipe = load_recipe(None, {**ON_CPU, "eval": {"episodes": 8, "tries": 2, "every": 2}})
    most = estimate(recipe, rates=RATES).most
    assert (most.episode_tokens, most.step_tokens) == (40, 16 * 40)
    # Policy and critic each score once and learn once, which is three times the work; then every token is played.
    step = 640 * 2 * NANO * (2 + 2 * 3) / 1e11 + 640 * 2 * NANO / 1e10
    assert most.step_seconds == pytest.approx(step)
    # Before, after, and after steps 2 and 4; 16 episodes of at most 40 tokens each.
    assert most.total_seconds == pytest.approx(5 * step + 4 * 640 * 2 * NANO / 1e10)


def test_imitation_adds_its_demonstrations() -> None:
    plain, imitating = (
        estimate(load_recipe(None, {**ON_CPU, "sft": sft}), rates=RATES).most.total_seconds
        for sft in (None, {"demonstrations": 10, "epochs": 3})
    )
    assert imitating - plain == pytest.approx(10 * 3 * 40 * 6 * NANO / 1e11)


def test_an_episode_is_no_longer_than_there_is_room_for() -> None:
    long = {"episodes": 1, "max_turns": 50, "max_tokens": 100}
    for rollout, most in ((long, 512), ({**long, "context": 300}, 300)):
        assert estimate(load_recipe(None, {**ON_CPU, "rollout": rollout}), rates=RATES).most.episode_tokens == most


def test_the_expert_tells_how_long_episodes_are() -> None:
    rollout = {"episodes": 16, "max_turns": 4, "max_tokens": 64}
    expert = estimate(load_recipe(None, {**ON_CPU, "rollout": rollout}), rates=RATES).expert
    assert expert is not None
    # The question has some 30 tokens, an answer and what it hears some 10 each; four guesses at most.
    assert 40 < expert.episode_tokens < 200
    assert expert.step_tokens == 16 * expert.episode_tokens


def test_the_lines_say_how_they_were_reckoned_and_when_memory_is_short() -> None:
    lines = estimate(load_recipe(None, ON_CPU), rates=RATES).lines()
    assert lines[0] == "model   nano: 3.74 M parameters, 3.74 M of them learn"
    assert "a bound from arithmetic; the first steps tell better" in lines[-1]
    assert "too much" not in lines[1]
    huge = estimate(load_recipe(None, {**ON_CPU, "engine": {"memory_gib": 1e6}}), rates=RATES).lines()
    assert "too much; lower" in huge[1]


def test_rates_are_measured_where_the_run_will_be() -> None:
    recipe = load_recipe(None, ON_CPU)
    rates = measure(recipe, read_shape(recipe.model), "cpu")
    assert 1e8 < rates.playing < 1e14
    assert 1e8 < rates.learning < 1e14


@pytest.mark.parametrize("name", ["no-such-model", "some/where"])
def test_a_missing_model_is_one_message_with_the_fix(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^model.name is '{name}', and there is no such model.*; give nano, smoll"):
        estimate(load_recipe(None, {"model": name, "device": "cpu"}), rates=RATES)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="a folder without a causal language model: "):
        estimate(load_recipe(None, {"model": str(tmp_path), "device": "cpu"}), rates=RATES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_an_estimate(family: str, tmp_path: Path) -> None:
    make_family(family).config.save_pretrained(tmp_path)
    recipe = load_recipe(None, {**ON_CPU, "model": {"name": str(tmp_path)}})
    found = estimate(recipe, rates=RATES)
    assert found.shape.parameters == sum(parameter.numel() for parameter in make_family(family).parameters())
    assert all(size >= 0 for size in found.memory.values())
    assert any("memory" in line for line in found.lines())


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "qwen3-moe", "opt"])
def test_an_adapter_of_any_family_is_as_large_as_estimated(family: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    make_family(family).config.save_pretrained(tmp_path)
    shape = read_shape(ModelChoice.model_validate({"name": str(tmp_path), "lora": {"rank": 4}}))
    policy = TextPolicy(make_family(family), lora=LoraSettings(rank=4))
    assert shape.trained == sum(parameter.numel() for parameter in policy.trainable().values())


def test_a_token_is_multiplied_by_the_experts_that_it_chooses(tmp_path: Path) -> None:
    make_family("qwen3-moe").config.save_pretrained(tmp_path)
    shape = read_shape(ModelChoice(name=str(tmp_path)))
    # Two of four experts of three 24 x 32 matrices, in each of two layers.
    assert shape.idle == 2 * 2 * 3 * 24 * 32
    assert (shape.inner_width, shape.multiplied) == (2 * 24, shape.parameters - shape.embedded - shape.idle)


def test_bounded_scores_cost_memory_for_every_pair_of_tokens(tmp_path: Path) -> None:
    make_family("gemma2").config.save_pretrained(tmp_path)
    shape = read_shape(ModelChoice(name=str(tmp_path)))
    short, long = (activation_bytes(shape, 4, checkpointing=False, length=length) for length in (0, 100))
    assert long - short == 2 * 4 * 100 * 8
