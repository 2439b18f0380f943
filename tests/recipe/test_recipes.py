"""Recipes: what layers of YAML and settings add up to."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import step_specs
from turnwise.algorithm import PRESETS, preset
from turnwise.cli.common import parse_settings
from turnwise.envs import Env
from turnwise.evaluate.evaluation import play_specs
from turnwise.recipe.loading import differences, dump_recipe, load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.runs import RunFolder
from turnwise.runs.disk import write_whole

ROOT = Path(__file__).parent.parent.parent
SHIPPED = sorted((ROOT / "recipes").glob("*.yaml"))


class NoSplit(Env):
    """All its tasks are alike to it."""

    def __init__(self, level: int = 1) -> None:
        super().__init__()
        self.level = level


def write(folder: Path, **files: str) -> Path:
    """Files of that name and text; returns the first."""
    paths = [folder / f"{name}.yaml" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    return paths[0]


def changed(*settings: str, source: Path | None = None) -> Recipe:
    return load_recipe(source, parse_settings(list(settings)))


def test_nothing_said_is_the_defaults_with_turn_ppo_drift_and_the_rates_of_nano() -> None:
    usual = Recipe(algorithm=preset("turn-ppo-drift"))
    rates = usual.train.model_copy(update={"learning_rate": 3e-4, "critic_learning_rate": 1e-3})
    assert load_recipe(None) == usual.model_copy(update={"train": rates})


def test_rates_that_are_not_said_follow_the_model_and_those_that_are_said_stay() -> None:
    def rates(**choices: Any) -> tuple[float, float]:
        train = load_recipe(None, choices).train
        return train.learning_rate, train.critic_learning_rate

    assert rates(model="pico-3") == (3e-4, 1e-3)
    assert rates(model="some/other-model") == (1e-5, 1e-4)
    assert rates(train={"learning_rate": 1e-6}) == (1e-6, 1e-3)


@pytest.mark.parametrize("seed", [0, 1999, 2000, 2148, 10**12])
def test_an_environment_without_splits_is_judged_on_seeds_that_training_never_uses(seed: int) -> None:
    recipe = load_recipe(None, {"env": f"{__name__}:NoSplit", "eval": {"episodes": 10_000}, "seed": seed})
    assert recipe.env.held_out == {}
    trained = {spec.seed for step in range(1, recipe.train.steps + 1) for spec in step_specs(recipe, step)}
    assert len(trained) == recipe.train.steps * recipe.rollout.episodes
    assert max(trained) < min(held_out := {spec.seed for spec in play_specs(recipe)})
    assert max(held_out) < 2**31
    assert load_recipe(None, {"env": "search/geo-1hop"}).env.held_out == {"split": "validation"}


@pytest.mark.parametrize("name", PRESETS)
def test_the_dump_of_every_preset_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    recipe = changed(f"algorithm={name}", "algorithm.epochs=3", "model.lora.rank=4", "sft={}", "guard=off", "seed=7")
    assert load_recipe(write(tmp_path, config=dump_recipe(recipe))) == recipe


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_shipped_recipe_loads_reads_back_and_opens_with_what_it_does(file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(file)
    assert recipe.name == file.stem
    assert load_recipe(write(tmp_path, config=dump_recipe(recipe))) == recipe
    comments = file.read_text().split("\n\n")[0].splitlines()
    assert [line.split(".")[0] for line in comments] == [f"# {number + 1}" for number in range(len(comments))]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_the_variations_that_a_shipped_recipe_names_load(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    commands = [
        shlex.split(line.partition("turnwise train ")[2]) for line in file.read_text().splitlines() if "train r" in line
    ]
    assert len(commands) >= 3
    for recipe, *settings in commands:
        assert changed(*settings, source=ROOT / recipe) != load_recipe(file)


def test_where_there_is_no_checkout_the_shipped_recipes_go_by_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe(Path("recipes/search-nano.yaml")) == load_recipe(ROOT / "recipes/search-nano.yaml")
    own = write(tmp_path, own="extends: recipes/search-nano.yaml\nseed: 7\n")
    assert (load_recipe(own).seed, load_recipe(own).env.id) == (7, "search/geo-2hop")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/search-nano.yaml").write_text("seed: 3\n")
    assert load_recipe(Path("recipes/search-nano.yaml")).seed == 3  # what is there comes first


def test_make_train_is_the_proven_loop() -> None:
    recipe = load_recipe(ROOT / "recipes/search-nano.yaml")
    assert recipe.algorithm == preset("st-ppo")
    assert (recipe.model.name, recipe.env.id, recipe.train.critic) == ("nano", "search/geo-2hop", "separate")
    assert (recipe.rollout.episodes, recipe.rollout.max_turns, recipe.rollout.max_tokens) == (128, 6, 48)
    assert (recipe.train.steps, recipe.train.learning_rate, recipe.train.critic_learning_rate) == (24, 3e-4, 1e-3)
    assert (recipe.eval.episodes, recipe.eval.temperature, recipe.checkpoint.every) == (256, 1.0, 4)


def test_the_command_line_wins_over_the_file_and_the_file_over_what_it_extends(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    write(tmp_path / "base", root="train: {steps: 1, warmup: 1}\nseed: 1\n", middle="extends: root.yaml\nseed: 2\n")
    top = write(tmp_path, top="extends: base/middle.yaml\ntrain: {steps: 3}\n")
    recipe = changed("train.grad_clip=4", source=top)
    assert (recipe.seed, recipe.train.warmup, recipe.train.steps, recipe.train.grad_clip) == (2, 1, 3, 4.0)


def test_recipes_that_extend_each_other_are_refused_with_the_chain(tmp_path: Path) -> None:
    first = write(tmp_path, a="extends: b.yaml\n", b="extends: c.yaml\n", c="extends: a.yaml\n")
    with pytest.raises(ValueError, match=r"circle: \S*a\.yaml → \S*b\.yaml → \S*c\.yaml → \S*a\.yaml$"):
        load_recipe(first)


def test_naming_an_algorithm_replaces_the_row_and_axes_alone_change_it(tmp_path: Path) -> None:
    file = write(tmp_path, top="algorithm: {preset: st-ppo, epochs: 4}\n")
    assert changed(source=file).algorithm == preset("st-ppo").override({"epochs": 4})
    assert changed("algorithm=grpo", source=file).algorithm == preset("grpo")
    assert changed("algorithm=grpo", "algorithm.epochs=2", source=file).algorithm.epochs == 2
    row = changed("algorithm.surrogate.high=0.28", "algorithm.max_lag=2", source=file).algorithm
    assert row == preset("st-ppo").override({"epochs": 4, "surrogate": {"high": 0.28}, "max_lag": 2})


def test_an_algorithm_may_be_a_file_beside_the_recipe_or_a_row_of_its_own(tmp_path: Path) -> None:
    row = "name: mine\nadvantage: return-to-go\nsurrogate: reinforce\n"
    named = load_recipe(write(tmp_path, top="algorithm: row.yaml\n", row=row))
    indented = "".join(f"  {line}\n" for line in row.splitlines())
    written = load_recipe(write(tmp_path, other=f"algorithm:\n{indented}"))
    assert named.algorithm == written.algorithm
    assert (named.algorithm.name, named.algorithm.critic.level, named.algorithm.scale.kind) == ("mine", "none", "none")


@pytest.mark.parametrize(
    ("settings", "section", "expected"),
    [
        (("model=smollm2-135m", "model.dtype=bf16"), "model", {"name": "smollm2-135m", "dtype": "bf16"}),
        (("env.kwargs.hops=3", "env=search/geo-2hop"), "env", {"id": "search/geo-2hop", "kwargs": {"hops": 3}}),
        (("guard=act", "guard.patience=2"), "guard", {"mode": "act", "signals": {}, "patience": 2}),
        (("guard=off",), "guard", {"mode": "off", "signals": {}}),
        (("guard.mode=off",), "guard", {"mode": "off", "signals": {"non-finite": "act"}}),
    ],
)
def test_short_forms_go_together_with_options(
    settings: tuple[str, ...], section: str, expected: dict[str, Any]
) -> None:
    found = getattr(changed(*settings), section).model_dump()
    assert {key: found[key] for key in expected} == expected


def test_another_environment_drops_the_arguments_of_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, top="env: {id: search/geo-2hop, kwargs: {top_k: 2}}\n")
    assert changed("env.kwargs.hops=3", source=file).env.kwargs == {"top_k": 2, "hops": 3}
    assert changed("env=game/guess-number-easy", source=file).env.kwargs == {}


def test_an_empty_mapping_clears_arguments_but_not_a_section(tmp_path: Path) -> None:
    file = write(tmp_path, top="env: {kwargs: {top_k: 2}}\nsft: {demonstrations: 9}\n")
    recipe = changed("env.kwargs={}", "env.held_out={}", "sft={}", source=file)
    assert (recipe.env.kwargs, recipe.env.held_out) == ({}, {})
    assert recipe.sft is not None
    assert recipe.sft.demonstrations == 9
    assert changed("sft=null", source=file).sft is None


def test_differences_name_the_keys_that_changed() -> None:
    found = differences(load_recipe(None), changed("train.steps=200", "algorithm.surrogate.high=0.28", "guard=warn"))
    assert found == [
        "algorithm.surrogate.high: 0.2 → 0.28",
        "train.steps: 100 → 200",
        'guard.signals.non-finite: "act" → absent',
        "guard.signals: absent → {}",
    ]
    assert differences(load_recipe(None), load_recipe(None)) == []


def make_run(folder: Path, *, model: str, steps: list[int]) -> Path:
    run = RunFolder.create(folder, {"model": {"name": model}}, {})
    for step in steps:
        run.checkpoints.write(step, lambda draft: write_whole(draft / "model.safetensors", b"weights"))
    return folder


def test_a_run_folder_as_the_model_stands_for_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model="nano", steps=[1, 2])
    (run / "checkpoints/step_000002/manifest.json").unlink()
    with pytest.warns(UserWarning, match="is skipped"):
        recipe = load_recipe(None, {"model": str(run)})
    assert recipe.model.name == str(run / "checkpoints/step_000001")
    again = make_run(tmp_path / "again", model=recipe.model.name, steps=[5])
    recipe = load_recipe(None, {"model": str(again)})
    assert recipe.train.learning_rate == 3e-4  # of nano, where it all began


def test_a_run_that_only_imitated_so_far_stands_for_that_stage(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model="nano", steps=[])
    with pytest.raises(ValueError, match="has no complete checkpoint yet; continue with `turnwise resume"):
        load_recipe(None, {"model": str(run)})
    make_run(run / "sft", model="nano", steps=[3])
    assert load_recipe(None, {"model": str(run)}).model.name == str(run / "sft/checkpoints/step_000003")
