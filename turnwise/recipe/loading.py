"""Recipes as files: YAML that extends YAML, changed from the command line, and checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from turnwise.algorithm import Algorithm, find_algorithm, preset
from turnwise.envs.registry import accepts
from turnwise.policy.models import is_small
from turnwise.recipe.checks import check_keys, check_together, explain_mistakes
from turnwise.recipe.first_checks import check_envs, check_pay
from turnwise.recipe.ingredients import SourceChoice
from turnwise.recipe.layers import Layer, join, read_layers
from turnwise.recipe.schema import EnvChoice, ModelChoice, Recipe
from turnwise.recipe.seating import AGENTS, written_out
from turnwise.runs.checkpoints import ADAPTER, Checkpoints, require_whole
from turnwise.runs.folder import CONFIG, META, RunFolder
from turnwise.runs.reading import read_run
from turnwise.runs.settings import runs_meant
from turnwise.strict_yaml import parse, read_text
from turnwise.trust import require_trust

DEFAULT_ALGORITHM = "turn-ppo-drift"
"""The row that trains when a recipe names none: it held in most of our runs (docs/stability.md)."""

_ABSENT = "absent"


def load_recipe(source: str | Path | None, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a file with changes on top; None means the defaults.

    `load_recipe("recipes/search-nano.yaml", {"algorithm": "grpo", "train": {"steps": 200}})`
    """
    layers = read_layers(None if source is None else Path(source), overrides or {})
    if source is not None:
        require_trust(Path(source), [layer.choices for layer in layers if layer.file is not None])
    for layer in layers:
        check_keys(layer)
    # A recorded run found all that it names when it began; to look at it, that need not be there.
    recorded = source is not None and (Path(source).parent / META).is_file()
    plays = not recorded or not layers[-1].choices.keys().isdisjoint(("env", "eval"))
    check_envs(join(layers), files=plays)
    if plays:
        check_pay(join(layers))
    algorithm = _algorithm(layers)
    try:
        recipe = Recipe.model_validate(_written_out(join([_dependent_defaults(join(layers)), *layers]), algorithm))
    except ValidationError as error:
        raise ValueError(explain_mistakes(error, layers)) from None
    recipe = _starting_from_weights(recipe)
    if recipe.source.prefers:
        recipe = recipe.model_copy(update={"stage": "preference"})
    check_together(recipe)
    return recipe


def read_env(choices: Mapping[str, Any], *, for_reward: bool) -> EnvChoice:
    """The section `env` of a recipe alone, with the same messages."""
    layer = Layer(choices={"env": dict(choices)})
    check_keys(layer)
    check_envs(layer.choices, files=True)
    if for_reward:
        check_pay(layer.choices)
    try:
        return EnvChoice.model_validate(choices)
    except ValidationError as error:
        raise ValueError(explain_mistakes(error, [layer])) from None


def _written_out(choices: Mapping[str, Any], algorithm: Algorithm) -> dict[str, Any]:
    """All that was said, with its rows of algorithms and the whole of each policy."""
    complete = {**choices, "algorithm": algorithm}
    policies = choices.get("policies")
    if isinstance(policies, Mapping) and all(isinstance(choice, Mapping) for choice in policies.values()):
        rows = {name: _row_of(name, choice, algorithm) for name, choice in policies.items()}
        complete["policies"] = written_out(policies, choices, rows)
    return complete


def _row_of(policy: str, choices: Mapping[str, Any], algorithm: Algorithm) -> Algorithm:
    choice = choices.get("algorithm")
    if choice is None:
        return algorithm
    try:
        whole = isinstance(choice, Mapping) and choice.keys() >= Algorithm.model_fields.keys()
        return Algorithm.of(choice) if whole else _changed(algorithm, choice, None)
    except ValueError as error:
        raise ValueError(f"policies.{policy}.{_in_algorithm(str(error))}") from None


def newest_weights(run: Path) -> Path:
    """The newest complete checkpoint of a run, or of its imitation stage if reinforcement has none yet."""
    for stage in (run, run / "sft"):
        if (checkpoint := Checkpoints(stage / "checkpoints").latest()) is not None:
            return checkpoint
    raise ValueError(f"{run} has no complete checkpoint yet; continue with `turnwise resume {run}`")


def find_model(name: str, changes: Mapping[str, Any]) -> tuple[Recipe, str | Path]:
    """The recipe and weights to play: those of a run, of one of its checkpoints, or of a model by name."""
    folder = Path(name)
    if is_scripted(name):
        raise ValueError(
            f"{name} is a scripted player, not a model; `turnwise eval {name} --env ENV` plays it, and so does "
            "`turnwise tournament`"
        )
    is_path = name.startswith((".", "/", "runs/")) or ("/" in name and folder.parent.is_dir())
    if is_path and not folder.exists():
        fix = runs_meant(folder) or "give a run folder, a model folder or a model name"
        raise ValueError(f"there is no folder {name}; {fix}")
    run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
    if (folder / "adapter_config.json").is_file():
        adapted = {"lora": {"adapter": name}, **_mapping(changes.get("model"))}
        recipe = load_recipe(None, {**changes, "model": adapted})
        return recipe, recipe.model.name
    if not (run / META).is_file():
        if folder.is_dir() and not (folder / "config.json").is_file() and (fix := runs_meant(folder)):
            raise ValueError(f"{name} is not a model: {fix}")
        return load_recipe(None, {**changes, "model": {"name": name, **_mapping(changes.get("model"))}}), name
    RunFolder.open(run)  # a damaged run raises its own message
    weights = newest_weights(run) if run == folder else require_whole(folder)
    return load_recipe(run / CONFIG, changes), weights


def is_scripted(name: str) -> bool:
    """Whether a name is that of a scripted agent, and of no folder."""
    return name in AGENTS and not Path(name).exists()


def env_of_run(name: str) -> EnvChoice | None:
    """Where a run, or the run of a checkpoint, was trained; None for any other model."""
    run = _run_of(Path(name))
    return None if run is None else EnvChoice.model_validate(RunFolder.open(run).config["env"])


def at_step(run: str, step: str) -> str:
    """The checkpoint of a run at a step, or at the best of its evaluations; a name for `find_model`."""
    folder = Path(run)
    if not (folder / META).is_file():
        raise ValueError(f"{run} is not a run folder, so it has no steps; leave --step out")
    checkpoints = Checkpoints(folder / "checkpoints")
    there = [number for number in checkpoints.steps() if checkpoints.find(number) is not None]
    if step == "best":
        rows = [row for row in read_run(folder).evals if row.get("step") in there]
        merit = next((name for name in ("eval/success", "eval/reward") if any(name in row for row in rows)), "")
        if not merit:
            raise ValueError(f"{run} has no evaluated checkpoint; name one with --step NUMBER")
        number = max((row for row in rows if merit in row), key=lambda row: (row[merit], row["step"]))["step"]
    elif not step.isdigit() or int(step) not in there:
        raise ValueError(f"{run} has no checkpoint of step {step}; it has {', '.join(map(str, there)) or 'none'}")
    else:
        number = int(step)
    return str(checkpoints.path(number))


def _mapping(model: Any) -> Mapping[str, Any]:
    """A choice of a model in full."""
    return {"name": model} if isinstance(model, str) else model or {}


def one_model(checkpoint: Path) -> Path:
    """The checkpoint as a model; ValueError where several policies learned, each in its own folder."""
    policies = sorted(path.parent.name for path in checkpoint.glob("*/config.json"))
    if not policies:
        return checkpoint
    raise ValueError(f"{checkpoint} has several policies; name the folder of one of {', '.join(policies)} in it")


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML with every default; `load_recipe` reads it back unchanged."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(first: Recipe, second: Recipe) -> list[str]:
    """What changed from one recipe to another, such as `train.steps: 16 → 200`."""
    return plain_differences(first.model_dump(mode="json"), second.model_dump(mode="json"))


def plain_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The same for two recipes as stored in `config.yaml`."""
    before, after = dict(_leaves(dict(first))), dict(_leaves(dict(second)))
    return [
        f"{key}: {before.get(key, _ABSENT)} → {after.get(key, _ABSENT)}"
        for key in dict.fromkeys((*before, *after))
        if before.get(key, _ABSENT) != after.get(key, _ABSENT)
    ]


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if not (isinstance(value, dict) and value):
        yield place, json.dumps(value, ensure_ascii=False)
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{place}.{key}" if place else key)


def _starting_from_weights(recipe: Recipe) -> Recipe:
    """Replace each run folder given as a model by its newest weights, because that run may continue."""
    policies = {
        name: choice.model_copy(update={"model": _with_weights(choice.model)})
        for name, choice in recipe.policies.items()
    }
    return recipe.model_copy(update={"model": _with_weights(recipe.model), "policies": policies})


def _with_weights(model: ModelChoice) -> ModelChoice:
    model = _with_adapter(model)
    folder = Path(model.name)
    if not (folder / META).is_file():
        return model
    return model.model_copy(update={"name": str(one_model(newest_weights(folder)))})


def _with_adapter(model: ModelChoice) -> ModelChoice:
    """What the adapter to begin with says of itself, where the recipe does not: its rank, its alpha and its base."""
    lora = model.lora
    if lora is None or lora.adapter is None or lora.model_fields_set >= {"rank", "alpha"}:
        return model
    from turnwise.adapter_folders import read_adapter_config  # only here: it imports torch

    folder = Path(lora.adapter)
    if (folder / META).is_file():
        folder = one_model(newest_weights(folder)) / ADAPTER
    config = read_adapter_config(folder)
    own = {"rank": config["r"], "alpha": config["lora_alpha"], "adapter": str(folder)}
    told = {key: value for key, value in own.items() if key == "adapter" or key not in lora.model_fields_set}
    base = config.get("base_model_name_or_path")
    named = {} if "name" in model.model_fields_set or not base else {"name": base}
    return model.model_copy(update={"lora": lora.model_copy(update=told), **named})


def _dependent_defaults(choices: Mapping[str, Any]) -> Layer:
    """Defaults that depend on other choices: rates of our small models, no split if the environment takes none,
    no play where preferences are all."""
    model, env = _text(choices, "model", "name", ModelChoice().name), _text(choices, "env", "id", "")
    usual: dict[str, Any] = {}
    if is_small(_origin(model)):
        usual["train"] = {"learning_rate": 3e-4, "critic_learning_rate": 1e-3}
    if not env and _prefers(choices.get("source")):
        usual["eval"] = {"episodes": 0}  # nobody named an environment to play
    with suppress(ValueError):  # an unknown environment is reported later
        if not accepts(env, "split"):
            usual["env"] = {"id": env, "held_out": {}}
    return Layer(choices=usual)


def _prefers(source: Any) -> bool:
    """Whether a source is nothing but files of preferences; wrong types are reported later."""
    with suppress(ValidationError):
        return SourceChoice.model_validate(source or {}).prefers
    return False


def _origin(model: str) -> str:
    """The model that a run or one of its checkpoints started from; any other model is its own origin."""
    seen: list[str] = []
    while model not in seen and (run := _run_of(Path(model))) is not None:
        seen.append(model)
        with suppress(OSError, ValueError):  # a damaged run is reported when it is loaded
            model = _text(parse(read_text(run / CONFIG)), "model", "name", model)
    return model


def _run_of(folder: Path) -> Path | None:
    """The run that a folder is, or is a checkpoint of."""
    owners = (folder, folder.parent.parent if folder.parent.name == "checkpoints" else folder)
    return next((owner for owner in owners if (owner / META).is_file()), None)


def _text(choices: Mapping[str, Any], section: str, key: str, default: str) -> str:
    """A text in a section; wrong types are reported later."""
    content = choices.get(section)
    text = content.get(key, default) if isinstance(content, Mapping) else default
    return text if isinstance(text, str) else default


def _algorithm(layers: list[Layer]) -> Algorithm:
    row: Algorithm | None = None
    for layer in layers:
        if "algorithm" in layer.choices:
            try:
                row = _changed(row, layer.choices["algorithm"], layer.file)
            except ValueError as error:
                raise ValueError(f"{layer.prefix}{_in_algorithm(str(error))}") from None
    return row or preset(DEFAULT_ALGORITHM)


def _changed(row: Algorithm | None, choice: Any, file: Path | None) -> Algorithm:
    """The row after a layer: a preset or a file replaces it, axes alone change it."""
    if not isinstance(choice, Mapping):
        raise ValueError(
            f"it is {choice!r}; write a preset, a YAML file, or axes such as {{preset: st-ppo, epochs: 4}}"
        )
    axes = {key: value for key, value in choice.items() if key != "preset"}
    if "preset" in choice:
        return _find(str(choice["preset"]), file).override(axes)
    # On the command line an axis changes the default row; a row with a name is the user's own.
    if row is None and "advantage" in axes and (file is not None or "name" in axes):
        return Algorithm.of(axes)  # a complete row, like an algorithm file
    return (row or preset(DEFAULT_ALGORITHM)).override(axes)


def _find(name: str, file: Path | None) -> Algorithm:
    """A preset, or a file next to the recipe that names it."""
    if file is None or not name.endswith((".yaml", ".yml")):
        return find_algorithm(name)
    return find_algorithm(str(file.parent / name))


def _in_algorithm(message: str) -> str:
    message = message.replace("Input should", "it should")
    return f"algorithm.{message}" if message.startswith(tuple(Algorithm.model_fields)) else f"algorithm: {message}"
