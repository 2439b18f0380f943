"""Recipes as files: YAML that builds on YAML, changed from the command line, and checked before anything runs."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from turnwise.algorithm import Algorithm, Part, find_algorithm, preset, resolve
from turnwise.algorithm.parts import function_of
from turnwise.algorithm.recipes import parse, read_text
from turnwise.envs.registry import check, find
from turnwise.train.config import EnvChoice, Recipe

Choices = dict[str, Any]

DEFAULT_ALGORITHM = "st-ppo"
"""What trains when nobody says what should."""

_SHORT = {"model": "name", "env": "id", "guard": "mode", "algorithm": "preset"}
"""The key that a section's short form stands for: `model: nano` is `model: {name: nano}`."""

_ABSENT = "absent"
_PLACE = re.compile(r"[\w.]+:\w+")  # module:Class, an environment of the user's own


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """The choices of one file or of the command line, every section written out as a mapping."""

    choices: Choices
    file: Path | None = None

    @property
    def said_in(self) -> str:
        return "" if self.file is None else f"{self.file}: "


def load_recipe(source: str | Path | None, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a file with changes on top; None starts from the defaults.

    `load_recipe("recipes/search-nano.yaml", {"algorithm": "grpo", "train": {"steps": 200}})`
    """
    layers = [] if source is None else _file_layers(Path(source))
    layers.append(_Layer(choices=_sections(_without_kinds(overrides or {}))))
    for layer in layers:
        _check_keys(layer, layer.choices, Recipe, ())
    algorithm = _algorithm(layers)
    try:
        recipe = Recipe.model_validate({**_joined(layers), "algorithm": algorithm})
    except ValidationError as error:
        raise ValueError("\n".join(_readable(item, layers) for item in error.errors())) from None
    _check_together(recipe)
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML, every default written out; `load_recipe` reads it back as it was."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(first: Recipe, second: Recipe) -> list[str]:
    """What changed from one recipe to another, such as `train.steps: 16 → 200`."""
    before, after = (dict(_leaves(recipe.model_dump(mode="json"))) for recipe in (first, second))
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


# Reading: a file and those that it extends, the oldest first.


def _file_layers(file: Path) -> list[_Layer]:
    layers: list[_Layer] = []
    chain: list[Path] = []
    following: Path | None = file
    while following is not None:
        if following.resolve() in [seen.resolve() for seen in chain]:
            raise ValueError(f"recipes extend each other in a circle: {' → '.join(map(str, (*chain, following)))}")
        chain.append(following)
        choices = _read(following)
        parent = choices.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise ValueError(f"{following}: extends is {parent!r}; it should be the path of one recipe")
        layers.append(_Layer(choices=_sections(choices), file=following))
        following = None if parent is None else following.parent / parent
    return layers[::-1]


def _read(file: Path) -> Choices:
    if not file.is_file():
        raise ValueError(f"there is no recipe {file}; give the path of one, such as recipes/search-nano.yaml")
    try:
        return parse(read_text(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _sections(choices: Mapping[str, Any]) -> Choices:
    """The choices with short forms written out."""
    written = {key: _section(key, value) for key, value in choices.items()}
    if isinstance(guard := written.get("guard"), dict):
        written["guard"] = {key: _without_switches(value) for key, value in guard.items()}
    return written


def _section(key: str, value: Any) -> Any:
    if key not in _SHORT or not isinstance(value, str | bool):
        return value
    # One mode for the guard is the mode of every signal.
    return {_SHORT[key]: value, **({"signals": {}} if key == "guard" else {})}


def _without_switches(value: Any) -> Any:
    """Modes as they were written: YAML reads a bare off as False."""
    if isinstance(value, dict):
        return {key: _without_switches(inner) for key, inner in value.items()}
    return "off" if value is False else value


def _without_kinds(overrides: Mapping[str, Any]) -> Choices:
    """On the command line a bare value beside options arrives as their `kind`: `guard=act guard.patience=2`."""
    written: Choices = {}
    for key, value in overrides.items():
        if key in _SHORT and isinstance(value, Mapping) and "kind" in value:
            options = {name: inner for name, inner in value.items() if name != "kind"}
            short = _section(key, value["kind"])
            value = {**short, **options} if isinstance(short, dict) else short
        written[key] = value
    return written


# Joining: a later layer wins key by key.


def _joined(layers: list[_Layer]) -> Choices:
    joined: Choices = {}
    for layer in layers:
        if _id_of(layer.choices.get("env")) not in (None, _id_of(joined.get("env"))):
            joined.pop("env", None)  # arguments belong to the environment that they were written for
        joined |= {key: _merge(joined.get(key), value) for key, value in layer.choices.items()}
    return joined


def _id_of(env: Any) -> Any:
    return env.get("id") if isinstance(env, Mapping) else None


def _merge(below: Any, above: Any) -> Any:
    # An empty mapping is said on purpose: it clears what was there.
    if not (isinstance(below, dict) and isinstance(above, Mapping) and above):
        return above
    return {**below, **{key: _merge(below.get(key), value) for key, value in above.items()}}


def _algorithm(layers: list[_Layer]) -> Algorithm:
    row: Algorithm | None = None
    for layer in layers:
        if "algorithm" in layer.choices:
            try:
                row = _changed(row, layer.choices["algorithm"], layer.file)
            except ValueError as error:
                raise ValueError(f"{layer.said_in}{_in_algorithm(str(error))}") from None
    return row or preset(DEFAULT_ALGORITHM)


def _changed(row: Algorithm | None, choice: Any, file: Path | None) -> Algorithm:
    """The row after a layer: a preset or a file starts anew, axes alone change what is there."""
    if not isinstance(choice, Mapping):
        raise ValueError(
            f"it is {choice!r}; write a preset, a YAML file, or axes such as {{preset: st-ppo, epochs: 4}}"
        )
    axes = {key: value for key, value in choice.items() if key != "preset"}
    if "preset" in choice:
        return _find(str(choice["preset"]), file).override(axes)
    if row is None and file is not None and "advantage" in axes:
        return Algorithm.of(axes)  # a row of its own, as a file of an algorithm is
    return (row or preset(DEFAULT_ALGORITHM)).override(axes)


def _find(name: str, file: Path | None) -> Algorithm:
    """A preset, or a file beside the recipe that names it."""
    if file is None or not name.endswith((".yaml", ".yml")):
        return find_algorithm(name)
    return find_algorithm(str(file.parent / name))


def _in_algorithm(message: str) -> str:
    return f"algorithm.{message}" if message.startswith(tuple(Algorithm.model_fields)) else f"algorithm: {message}"


# Checking: one line for each mistake, with the key, what was given and what is allowed.


def _check_keys(layer: _Layer, choices: Any, model: type[BaseModel], place: tuple[str, ...]) -> None:
    if not isinstance(choices, Mapping):
        return  # of the wrong type, which the types themselves say better
    extra = ("preset",) if model is Algorithm else ()
    for key, value in choices.items():
        if key not in model.model_fields and key not in extra:
            raise ValueError(layer.said_in + _unknown_key(str(key), [*model.model_fields, *extra], place))
        section = None if key in extra else _model_of(model.model_fields[key].annotation)
        if section is not None:
            _check_keys(layer, value, section, (*place, str(key)))


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The section behind a field's type, `Sft | None` included; parts of an algorithm check their own options."""
    options = [option for option in get_args(annotation) or (annotation,) if option is not NoneType]
    found = options[0] if len(options) == 1 else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) and found is not Part else None


def _unknown_key(key: str, keys: list[str], place: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(key, keys, n=1)
    hint = f"did you mean {'.'.join((*place, close[0]))}? " if close else ""
    where = f"The keys of {'.'.join(place)}" if place else "The keys"
    return f"unknown key {'.'.join((*place, key))}; {hint}{where} are {', '.join(keys)}."


def _readable(item: Any, layers: list[_Layer]) -> str:
    """One mistake that the types found."""
    place = tuple(str(step) for step in item["loc"])
    said_in = next((layer.said_in for layer in reversed(layers) if _says(layer.choices, place)), "")
    given, message = f"{said_in}{'.'.join(place)} is {item['input']!r}", str(item["msg"])
    if item["type"] == "model_type":
        return f"{given}; it should be a mapping such as {{{_first_key(place)}: ...}}"
    return f"{given}; {message.replace('Input', 'it', 1)}"


def _says(choices: Any, place: tuple[str, ...]) -> bool:
    for step in place:
        if not isinstance(choices, Mapping) or step not in choices:
            return not isinstance(choices, Mapping)
        choices = choices[step]
    return True


def _first_key(place: tuple[str, ...]) -> str:
    model: type[BaseModel] | None = Recipe
    for step in place:
        model = _model_of(model.model_fields[step].annotation) if model else None
    return next(iter(model.model_fields)) if model else "key"


def _check_together(recipe: Recipe) -> None:
    """What only several keys together can get wrong, and needs no model to see."""
    resolve(recipe.algorithm)
    _check_groups(recipe)
    _check_env(recipe.env, evaluated=recipe.eval.episodes > 0)


def _check_groups(recipe: Recipe) -> None:
    sampling, episodes = recipe.algorithm.sampling, recipe.rollout.episodes
    size = function_of("sampling", sampling.kind)(**sampling.options).tries
    if episodes % size:
        below, above = episodes // size * size, (episodes // size + 1) * size
        nearest = f"{below} or {above}" if below else above
        raise ValueError(
            f"rollout.episodes is {episodes}, which does not hold whole groups of {size} tries (algorithm.sampling); "
            f"set it to {nearest}"
        )


def _check_env(env: EnvChoice, *, evaluated: bool) -> None:
    try:
        find(env.id)
    except ValueError as error:
        if _PLACE.fullmatch(env.id):
            return  # found when it is built
        raise ValueError(f"env.id: {error} An environment of your own is named module:Class") from None
    held_out = env.held_out if evaluated else {}
    for key, arguments in (("kwargs", env.kwargs), ("held_out", {**env.kwargs, **held_out})):
        try:
            check(env.id, arguments)
        except ValueError as error:
            raise ValueError(f"env.{key}: {error}") from None
