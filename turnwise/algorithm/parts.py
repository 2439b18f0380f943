"""A part: one named choice on one axis, with its options checked against its function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_serializer, model_validator

from turnwise.algorithm.axes import AXES, Axis, Contract, axis_named
from turnwise.ops.facts import Fact, facts_of, has_declared
from turnwise.outside import is_unread, load


class Part(BaseModel):
    """A choice such as `gae` with `gamma=0.99`. In YAML: `gae`, or `{kind: gae, gamma: 0.99}`.

    A kind of the form `package.module:function` names a user-defined part.
    """

    model_config = ConfigDict(frozen=True)
    kind: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, Mapping) and "options" not in value:
            options: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
            return {"kind": options.pop("kind", None), "options": options}
        return value  # pyright: ignore[reportUnknownVariableType]

    @model_serializer
    def _to_yaml(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.options}

    def __str__(self) -> str:
        inner = ", ".join(f"{name}={value}" for name, value in self.options.items() if value is not None)
        return f"{self.kind}({inner})" if inner else self.kind


def bind(axis: Axis[Contract], part: Part) -> Contract:
    """The part as its axis calls it, with its options filled in."""
    return cast(Contract, partial(function_of(axis.name, part.kind), **part.options))


def facts(axis: str, part: Part) -> frozenset[Fact]:
    """What the part declares with its options: its needs and traits."""
    return frozenset() if is_unread(part.kind) else facts_of(function_of(axis, part.kind), part.options)


def is_silent(axis: str, part: Part) -> bool:
    """Whether the part declares nothing, as many user-defined parts do; the rules then skip it."""
    return is_unread(part.kind) or not has_declared(function_of(axis, part.kind))


def function_of(axis: str, kind: str) -> Callable[..., Any]:
    """The function behind a kind; ValueError names the axis and the choices."""
    table = AXES[axis]
    if kind in table:
        return table[kind]
    if ":" in kind:
        return _outside_function(axis, kind)
    close = difflib.get_close_matches(kind, table, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"{axis}: unknown kind {kind!r}; {hint}Choose one of {', '.join(table)}.")


def _outside_function(axis: str, kind: str) -> Callable[..., Any]:
    module, _, name = kind.partition(":")
    refusal = f"{axis}: cannot load {kind!r}"
    if not all(step.isidentifier() for step in (*module.split("."), name)) or module.endswith(".py"):
        raise ValueError(f"{refusal}; write it as package.module:function, without a path or .py")
    try:
        found = load(kind)
    except AttributeError as error:
        raise ValueError(f"{refusal}: {error}") from error
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = f"{module} is not importable from here; set PYTHONPATH to the folder that holds it" if missing else error
        raise ValueError(f"{refusal}: {why}") from error
    if not _is_function(axis, found):
        raise ValueError(f"{refusal}: {module} has no function {name!r} written in Python")
    return found


def _is_function(axis: str, found: Any) -> bool:
    """Check without calling it, because a recipe may name anything, even `os:system`. Scales may be classes."""
    is_scale = axis == "scale" and inspect.isclass(found) and hasattr(found, "observe") and hasattr(found, "finish")
    return inspect.isfunction(found) or is_scale


def _check_signature(axis: str, part: Part) -> None:
    """Check that a user-defined part takes its axis's positional parameters and only keyword-only options."""
    handed, function = axis_named(axis).handed, function_of(axis, part.kind)
    taken, kinds = _positional(function), {each.kind for each in inspect.signature(function).parameters.values()}
    if len(taken) < len(handed) or kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise ValueError(
            f"{axis}: {part.kind} is called with ({', '.join(handed)}) and options; it takes "
            f"{inspect.signature(function)}: name the positional parameters and every option"
        )
    if options := taken[len(handed) :]:
        raise ValueError(
            f"{axis}: {part.kind} is called with ({', '.join(handed)}); options must be keyword-only: "
            f"put a * before {options[0]!r}"
        )


def _positional(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds]


def complete(axis: str, part: Part) -> Part:
    """The part with every option checked and every default written out."""
    if is_unread(part.kind):
        return part
    if part.kind not in AXES[axis] and ":" in part.kind:
        _check_signature(axis, part)
    model = _options_model(function_of(axis, part.kind))
    unknown = [name for name in part.options if name not in model.model_fields]
    if unknown:
        takes = ", ".join(model.model_fields) or "no options"
        close = difflib.get_close_matches(unknown[0], model.model_fields, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"{axis}.{part.kind}: unknown option {unknown[0]!r}; {hint}It takes {takes}.")
    try:
        options = model.model_validate(part.options)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"{axis}.{part.kind}.{'.'.join(map(str, first['loc'][:1]))}: {first['msg']}, got {first['input']!r}"
        ) from None
    return Part(kind=part.kind, options=options.model_dump())


@cache
def _options_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model of the keyword-only parameters of a part."""
    target: Any = function
    hints = get_type_hints(target, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return create_model(target.__name__, __config__=ConfigDict(extra="forbid", strict=False), **fields)
