"""Names for environments: `register`, `make("search/geo-2hop")`, and a helpful answer when a name is unknown."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_origin

from turnwise.call_options import mistake_in_options
from turnwise.envs.base import Env
from turnwise.envs.foreign import adapted
from turnwise.envs.places import require_place
from turnwise.outside import NotImportedError, is_file_place, is_outside, load

ENTRY_POINT_GROUP = "turnwise.envs"
"""Installed packages declare `name = "module"` here; importing the module registers its environments."""

_PACKAGES = "games cards duels search tasks chat ltc classify feelings plans terminals memory adapters"
_BUILT_IN = (*(f"turnwise.envs.{package}" for package in _PACKAGES.split()), "turnwise.gateway")
_FIELD = re.compile(r"\{(\w+)(:int)?\}")
_ID, _PLACE = re.compile(r"\S+"), re.compile(r"[\w.]+:\w+")
_GATEWAY = "turnwise.gateway."
_AGENT_RUN = f"{_GATEWAY}agent_run:AgentRun"
_PROGRAM_ARGUMENTS = {"task": None, "base_url": "", "api_key": ""}
_INTEGER, _WORD = r"\d+", r"[\w.:+-]+"


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """One registered environment, or a family of them when the id has fields.

    `EnvSpec(id="rg/{name}", entry_point="pkg.module:Class")` resolves `make("rg/spell_backward")` to
    `Class(name="spell_backward")`; `{rooms:int}` is passed as an integer.
    """

    id: str
    entry_point: str | Callable[..., Env]
    summary: str
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extra: str | None = None
    """The optional dependencies that must be installed: `pip install 'turnwise[extra]'`."""
    example: str | None = None
    """A concrete id of a family, for listings and tests."""
    names: str | None = None
    """Where a family lists the names that its field takes: `module:collection`; None if they cannot be listed."""

    @property
    def runs_program(self) -> bool:
        """Whether the agent may be a program of the user's, and the environment only answers its calls."""
        return str(self.entry_point).startswith(_GATEWAY)

    @property
    def prefix(self) -> str:
        """The id up to its first field."""
        return self.id.partition("{")[0]

    def match(self, env_id: str) -> dict[str, Any] | None:
        """The field values if `env_id` is this environment, otherwise None."""
        *head, tail = _FIELD.split(self.id)
        pattern, integers = "", set[str]()
        for literal, name, integer in zip(*[iter(head)] * 3, strict=True):
            pattern += re.escape(literal) + f"(?P<{name}>{_INTEGER if integer else _WORD})"
            integers |= {name} if integer else set()
        found = re.fullmatch(pattern + re.escape(tail), env_id)
        if found is None:
            return None
        return {name: int(value) if name in integers else value for name, value in found.groupdict().items()}


_SPECS: dict[str, EnvSpec] = {}


def register(
    env_id: str,
    entry_point: str | Callable[..., Env],
    *,
    summary: str = "",
    kwargs: Mapping[str, Any] | None = None,
    extra: str | None = None,
    example: str | None = None,
) -> None:
    """Register an environment: `register("my/coin", Coin)` or `register("my/coin", "my_package.coin:Coin")`.

    Registering a different environment under a taken id is an error.
    """
    if not _ID.fullmatch(env_id):
        raise ValueError(f"an environment id is one word such as 'my/coin', got {env_id!r}")
    if not callable(entry_point) and not _PLACE.fullmatch(str(entry_point)):
        raise ValueError(f"{env_id} needs an Env class, a function or 'module:name' to build it, got {entry_point!r}")
    spec = EnvSpec(
        id=env_id, entry_point=entry_point, summary=summary, kwargs=kwargs or {}, extra=extra, example=example
    )
    add(spec)


def add(spec: EnvSpec) -> None:
    """Add a complete registration; a different one under a taken id is an error."""
    known = _SPECS.get(spec.id)
    if known is not None and known != spec:
        raise ValueError(f"environment id {spec.id!r} is already registered for {known.entry_point}; choose another id")
    _SPECS[spec.id] = spec


def specs() -> list[EnvSpec]:
    """All registered environments, sorted by id."""
    _load_all()
    return sorted(_SPECS.values(), key=lambda spec: spec.id)


def family_ids(spec: EnvSpec) -> list[str]:
    """Every id of a family, sorted; empty if it has no list of names. Imports the family's package."""
    if spec.names is None:
        return []
    module, _, collection = spec.names.partition(":")
    try:
        names = getattr(import_module(module), collection)
    except ModuleNotFoundError as error:
        raise _missing_extra(spec, spec.id, error) from error
    ids = (spec.prefix + str(name) for name in names)
    return sorted(each for each in ids if spec.match(each))  # some names contain characters that no id may have


def find(env_id: str) -> tuple[EnvSpec, dict[str, Any]]:
    """The spec for an id and the arguments from its fields; ValueError with the closest ids.

    `module:Class` needs no registration: it names the user's own environment, or `my_agent.py:run` their own agent.
    """
    if is_place(env_id) and env_id.partition(":")[0].endswith(".py"):
        return _unregistered(env_id), {}
    _load_all()
    exact = _SPECS.get(env_id)
    candidates = [exact] if exact else list(_SPECS.values())
    for spec in candidates:
        fields = spec.match(env_id)
        if fields is not None:
            return spec, fields
    if is_place(env_id):
        return _unregistered(env_id), {}
    raise ValueError(f"{_unknown(env_id)} Name your own environment module:Class, or your own agent my_agent.py:run")


def is_place(env_id: str) -> bool:
    """Whether an id names something outside: `module:Class`, or `folder/my_agent.py:run`."""
    return bool(_PLACE.fullmatch(env_id)) or is_file_place(env_id)


def make(env_id: str, **kwargs: Any) -> Env:
    """Build the environment named `env_id`; keyword arguments override those of its registration."""
    spec, fields = find(env_id)
    try:
        factory, arguments = entry_of(spec), {**spec.kwargs, **fields, **kwargs}
        check_arguments(env_id, factory, arguments)
        env = adapted(factory(**arguments))
        if missing := [name for name in ("reset", "step", "close") if not callable(getattr(env, name, None))]:
            raise ValueError(
                f"{env_id} is not an environment: it has no {missing[0]}; derive it from turnwise.envs.Env"
            )
        return env
    except ModuleNotFoundError as error:
        raise _missing_extra(spec, env_id, error) from error


def _missing_extra(spec: EnvSpec, env_id: str, error: ModuleNotFoundError) -> Exception:
    """The error for a missing package: how to install it, if one of our extras has it."""
    if spec.extra is None or (error.name or "").startswith("turnwise"):
        return error
    return ValueError(
        f"{env_id} needs the package {error.name!r}; install it with: pip install 'turnwise[{spec.extra}]'"
    )


def check_arguments(name: str, factory: Callable[..., Env], arguments: Mapping[str, Any]) -> None:
    """ValueError with the accepted names if `factory(**arguments)` cannot be called."""
    if mistake := mistake_in_options(factory, arguments):
        raise ValueError(f"cannot build {name}: {mistake}")


def check(env_id: str, kwargs: Mapping[str, Any]) -> None:
    """ValueError if `make(env_id, **kwargs)` has an unknown id or wrong arguments; builds nothing."""
    spec, fields = find(env_id)
    with suppress(ImportError):  # building it says which extra to install
        check_arguments(env_id, entry_of(spec), {**spec.kwargs, **fields, **kwargs})


def accepts(env_id: str, argument: str) -> bool:
    """Whether `make(env_id, **{argument: …})` works; ValueError for an unknown id."""
    spec, _ = find(env_id)
    try:
        parameters = inspect.signature(entry_of(spec)).parameters
    except (ImportError, ValueError):  # a package is missing, or a function in C has no signature
        return True
    return argument in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def is_ours(env_id: str) -> bool:
    """Whether the environment is part of turnwise; ValueError for an unknown id."""
    entry_point = find(env_id)[0].entry_point
    return isinstance(entry_point, str) and not is_outside(entry_point) and not is_outside(env_id)


def entry_of(spec: EnvSpec) -> Callable[..., Env]:
    """What builds it: a class, or a function; ImportError if it cannot be loaded now."""
    if callable(spec.entry_point):
        return spec.entry_point
    entry = load(spec.entry_point)
    if not _makes_environments(entry):
        raise ValueError(
            f"{spec.entry_point} is not an environment; name a class with reset and step, a function "
            "annotated to return one (-> Env), or an agent: run(task, base_url, api_key)"
        )
    return entry


def _makes_environments(entry: Any) -> bool:
    """Checked without a call, because a recipe may name anything, even `os:system`."""
    made = entry
    if inspect.isfunction(entry):
        try:
            made = inspect.get_annotations(entry, eval_str=True).get("return")
        except (AttributeError, NameError, SyntaxError, TypeError):  # an annotation that only a type checker can read
            return False
    made = get_origin(made) or made  # gymnasium.Env[Any, Any] is not a class itself
    return inspect.isclass(made) and all(callable(getattr(made, name, None)) for name in ("reset", "step"))


def is_agent(entry: Any) -> bool:
    """Whether it is a program: a function that takes task, base_url and api_key. Decided without a call."""
    if not inspect.isfunction(entry):
        return False
    parameters = inspect.signature(entry).parameters
    try:
        inspect.signature(entry).bind(**_PROGRAM_ARGUMENTS)
    except TypeError:
        return False
    return parameters.keys() >= _PROGRAM_ARGUMENTS.keys()


def _unregistered(place: str) -> EnvSpec:
    spec = EnvSpec(id=place, entry_point=place, summary="")
    try:
        if is_agent(load(place)):
            return replace(spec, entry_point=_AGENT_RUN, kwargs={"program": place}, extra="serve")
        entry_of(spec)
    except NotImportedError:
        pass  # reported when it is built
    except (ModuleNotFoundError, AttributeError) as error:
        try:
            require_place(place)  # the module or the name may be missing
        except ValueError as missing:
            # Callers look at the cause: a module may be found where the environment is built, a file is found now.
            raise missing from None if is_file_place(place) else error
        raise ValueError(f"cannot import {place}: {error}; run this in the folder that contains the module") from error
    return spec


@cache
def _load_all() -> None:
    for module in _BUILT_IN:
        for spec in import_module(module).SPECS:
            add(spec)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        point.load()


def _unknown(env_id: str) -> str:
    known = [spec.example or spec.id for spec in _SPECS.values()]
    close = difflib.get_close_matches(env_id, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else "`turnwise envs` lists them all."
    return f"unknown environment {env_id!r}: {hint}"
