"""The layers of a recipe: a file, the files it extends, and the command line; read, expanded and joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from turnwise.strict_yaml import parse, read_text

Choices = dict[str, Any]

RECIPES = Path(__file__).parents[1] / "recipes"
"""The recipes shipped with the package."""

_SHORT = {"model": "name", "env": "id", "guard": "mode", "algorithm": "preset", "engine": "kind", "judge": "kind"}
"""The key that a section's short form stands for: `model: nano` is `model: {name: nano}`."""

_FREE = frozenset({"kwargs", "held_out", "signals", "options"})
"""Mappings without fixed keys: an empty one is deliberate and clears the lower layers."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The choices of one file or of the command line, with every section expanded to a mapping."""

    choices: Choices
    file: Path | None = None

    @property
    def prefix(self) -> str:
        """Prefix of messages about this layer."""
        return "" if self.file is None else f"{self.file}: "


def read_layers(source: Path | None, overrides: Mapping[str, Any]) -> list[Layer]:
    """All layers, the weakest first."""
    files = [] if source is None else _file_layers(source)
    return [*files, Layer(choices=_sections(_without_kinds(overrides)))]


def is_recipe(file: Path) -> bool:
    """Whether a YAML file is the recipe of a run, not just of an algorithm."""
    found = _find(file, beside=Path())
    if file.suffix not in (".yaml", ".yml") or not found.is_file():
        return False
    return not {"algorithm", "extends", "env", "model", "train"}.isdisjoint(parse(read_text(found)))


def join(layers: list[Layer]) -> Choices:
    """One set of choices: a later layer wins, key by key."""
    joined: Choices = {}
    for layer in layers:
        if _id_of(layer.choices.get("env")) not in (None, _id_of(joined.get("env"))):
            joined.pop("env", None)  # arguments belong to the environment they were written for
        joined |= {key: _merge(joined.get(key), value) for key, value in layer.choices.items()}
    return joined


def _id_of(env: Any) -> Any:
    return env.get("id") if isinstance(env, Mapping) else None


def _merge(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, Mapping)):
        return above
    merged = dict(below)
    for key, value in above.items():
        cleared = key in _FREE and value == {}
        merged[key] = {} if cleared else _merge(below.get(key), value)
    return merged


def _file_layers(file: Path) -> list[Layer]:
    layers: list[Layer] = []
    chain: list[Path] = []
    following: Path | None = _find(file, beside=Path())
    while following is not None:
        if following.resolve() in [seen.resolve() for seen in chain]:
            raise ValueError(f"recipes extend each other in a circle: {' → '.join(map(str, (*chain, following)))}")
        chain.append(following)
        choices = _read(following, extended_by=chain[-2] if len(chain) > 1 else None)
        parent = choices.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise ValueError(f"{following}: extends is {parent!r}; it should be the path of one recipe")
        layers.append(Layer(choices=_sections(choices), file=following))
        following = None if parent is None else _find(Path(parent), beside=following.parent)
    return layers[::-1]


def shipped(file: Path, *, beside: Path = Path()) -> Path | None:
    """The shipped recipe that stands in for a file that does not exist; None if the file does, or there is no such."""
    ours = RECIPES.parent / file
    stands_in = file.parts[:1] == (RECIPES.name,) and ours.is_file() and not (beside / file).exists()
    return ours if stands_in else None


def _find(file: Path, *, beside: Path) -> Path:
    """The file at its path, or, if there is none, the shipped recipe of that name."""
    return shipped(file, beside=beside) or beside / file


def _nearest(file: Path) -> str:
    """The recipe beside a missing one, or the shipped one, that is spelled alike."""
    places = (file.parent, RECIPES) if file.parent.name == RECIPES.name else (file.parent,)
    close = get_close_matches(file.stem, [each.stem for place in places for each in place.glob("*.yaml")], n=1)
    if not close:
        return "give the path of one, such as recipes/search-nano.yaml"
    return f"did you mean {file.with_name(f'{close[0]}.yaml')}?"


def _read(file: Path, *, extended_by: Path | None) -> Choices:
    if not file.is_file():
        problem = f"{extended_by} extends {file}, which does not exist" if extended_by else f"there is no recipe {file}"
        raise ValueError(f"{problem}; {_nearest(file)}")
    try:
        return parse(read_text(file), shape="a recipe is a mapping of keys to choices, such as {model: nano, seed: 1}")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _sections(choices: Mapping[str, Any]) -> Choices:
    """The choices with short forms expanded."""
    written = {key: _section(key, value) for key, value in choices.items()}
    if isinstance(policies := written.get("policies"), Mapping):
        written["policies"] = {
            name: _sections(choice) if isinstance(choice, Mapping) else choice for name, choice in policies.items()
        }
    if isinstance(guard := written.get("guard"), dict):
        written["guard"] = {key: _without_switches(value) for key, value in guard.items()}
    return written


def _section(key: str, value: Any) -> Any:
    if key not in _SHORT or not isinstance(value, str | bool):
        return value
    # A single mode for the guard is the mode of every signal.
    return {_SHORT[key]: value, **({"signals": {}} if key == "guard" else {})}


def _without_switches(value: Any) -> Any:
    """Undo YAML, which reads a bare off as False."""
    if isinstance(value, dict):
        return {key: _without_switches(inner) for key, inner in value.items()}
    return "off" if value is False else value


def _without_kinds(overrides: Mapping[str, Any]) -> Choices:
    """On the command line a bare value next to options arrives as their `kind`: `guard=act guard.patience=2`."""
    written: Choices = {}
    for key, value in overrides.items():
        if key in _SHORT and isinstance(value, Mapping) and "kind" in value:
            options = {name: inner for name, inner in value.items() if name != "kind"}
            short = _section(key, value["kind"])
            value = {**short, **options} if isinstance(short, dict) else short
        written[key] = value
    return written
