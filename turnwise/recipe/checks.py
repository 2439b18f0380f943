"""What is wrong with a recipe: one line per mistake, with the key, the value given and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from turnwise.algorithm import Algorithm, Need, Part, Trait, resolve
from turnwise.algorithm.parts import function_of
from turnwise.envs.registry import check, find
from turnwise.envs.wrappers.named import check_wrappers
from turnwise.envs.wrappers.reward_functions import check_rewards
from turnwise.guard.guard import Guard
from turnwise.outside import is_unread
from turnwise.recipe.layers import Layer
from turnwise.recipe.schema import EnvChoice, Recipe
from turnwise.recipe.seating import check_exchange, check_in_turn, check_seats, recipe_of, trained_policies
from turnwise.words import counted

_ALIKE = 0.7
"""How similar a key must be to one of another section to suggest it."""

_TRIES = "'algorithm.sampling={kind: group, size: 8}'"
_OTHER_NAMES = {
    "group_size": _TRIES,
    "num_generations": _TRIES,
    "batch_size": "rollout.episodes",
    "lr": "train.learning_rate",
    "max_new_tokens": "rollout.max_tokens",
    "gamma": "algorithm.advantage.gamma",
    "lam": "algorithm.advantage.lam",
}
"""What other trainers call our keys."""


def check_keys(layer: Layer) -> None:
    """Reject an unknown key, at any depth."""
    _check_keys(layer, layer.choices, Recipe, ())


def explain_mistakes(error: ValidationError, layers: list[Layer]) -> str:
    """What the types found, one line each, with the last file that set it."""
    return "\n".join(_readable(item, layers) for item in error.errors())


def check_together(recipe: Recipe) -> None:
    """Check keys that are wrong only in combination and need no model to check."""
    from turnwise.sources.checking import check_source  # here, because it imports torch

    resolve(recipe.algorithm)
    Guard(recipe.guard)  # it validates its signals
    check_seats(recipe)
    check_exchange(recipe)
    check_in_turn(recipe)
    for policy in trained_policies(recipe):
        resolve(recipe_of(recipe, policy).algorithm)
        _check_sampler(recipe, recipe_of(recipe, policy).algorithm)
        _check_critic(recipe_of(recipe, policy))
    _check_groups(recipe)
    check_source(recipe)
    _check_env(recipe.env, evaluated=recipe.eval.episodes > 0 and recipe.eval.env is None)
    if recipe.eval.env is not None:
        _check_env(recipe.eval.env, evaluated=True, key="eval.env")
        if recipe.judge is not None and len(trained_policies(recipe)) > 1:
            raise ValueError("a judge compares each answer with that of one first policy; leave eval.env or judge out")


def _check_sampler(recipe: Recipe, row: Algorithm) -> None:
    """A mixture of two policies is sampled where both are in memory, and only our engine reports experts."""
    from turnwise.engine.kinds import IN_PROCESS, WIRES  # here, because it imports torch

    if Need.ROUTING in row.needs and recipe.source.plays and recipe.engine.kind in WIRES:
        raise ValueError(
            f"algorithm.routing={row.routing.kind} needs the experts that the sampler chose, which "
            f"engine.kind={recipe.engine.kind} does not report; set engine.kind=torch, or algorithm.routing=old"
        )
    if Need.PREVIOUS_POLICY in row.needs and recipe.engine.precision != "same":
        raise ValueError(
            f"algorithm.extrapolate={row.extrapolate.kind} samples from the weights of two policies, not from rounded "
            "copies; set engine.precision=same"
        )
    if Need.PREVIOUS_POLICY in row.needs and (recipe.engine.kind != IN_PROCESS or recipe.cluster is not None):
        raise ValueError(
            f"algorithm.extrapolate={row.extrapolate.kind} samples from two policies at once, which only the engine in "
            "this process does; set engine.kind=torch without a cluster, or algorithm.extrapolate=parameters"
        )


def _check_critic(recipe: Recipe) -> None:
    """A reward model has a trunk of its own and one scalar head."""
    source, row = recipe.train.critic_from, recipe.algorithm
    if source is None:
        return
    why = {
        f"{row.name} has no critic; remove it, or choose an algorithm with one": not row.needs_critic,
        "a shared critic is a head on the policy; set train.critic=separate": recipe.train.critic == "shared",
        f"critic.loss={row.critic.loss.kind} needs bins and a reward model has one number; use mse": (
            Trait.CATEGORICAL in row.facts("value_loss")
        ),
        "all of a reward model trains, and model.lora asks for less; remove one of them": recipe.model.lora is not None,
    }
    for reason, applies in why.items():
        if applies:
            raise ValueError(f"train.critic_from={source}: {reason}")


def find_doubts(recipe: Recipe, *, context: int | None = None) -> list[str]:
    """Settings that are allowed but probably not meant; `context` is the maximum number of tokens per episode."""
    return [*_training_doubts(recipe), *evaluation_doubts(recipe), *_room_doubts(recipe, context)]


def evaluation_doubts(recipe: Recipe) -> Iterator[str]:
    """The same for how held-out tasks are played."""
    evaluate = recipe.eval
    if evaluate.tries > 1 and evaluate.temperature == 0 and evaluate.episodes:
        yield (
            f"eval.tries={evaluate.tries} at eval.temperature=0 plays the same episode {evaluate.tries} times; set "
            "eval.tries=1 or a temperature above 0"
        )


def _training_doubts(recipe: Recipe) -> Iterator[str]:
    train = recipe.train
    if train.warmup >= train.steps:
        yield (
            f"train.warmup={train.warmup} covers all {counted(train.steps, 'step')}: none has the full learning rate; "
            "lower it"
        )
    if recipe.algorithm.cut == "bootstrap" and not recipe.algorithm.needs_critic:
        yield (
            f"algorithm.cut=bootstrap needs a critic, and {recipe.algorithm.name} has none: "
            "it does nothing; set algorithm.cut=lost, or choose an algorithm with a critic"
        )


def _room_doubts(recipe: Recipe, context: int | None) -> Iterator[str]:
    most = recipe.rollout.max_tokens
    if context is not None and most >= context and recipe.stage != "preference":
        yield f"rollout.max_tokens={most} fills a whole episode ({context} tokens); lower it"


def _check_keys(layer: Layer, choices: Any, model: type[BaseModel], place: tuple[str, ...]) -> None:
    if not isinstance(choices, Mapping):
        return  # wrong type: the types themselves give a better message
    extra = ("preset",) if model is Algorithm else ()
    for key, value in choices.items():
        if key not in model.model_fields and key not in extra:
            raise ValueError(layer.prefix + _unknown_key(str(key), [*model.model_fields, *extra], place))
        annotation = None if key in extra else model.model_fields[key].annotation
        if (section := section_of(annotation)) is not None:
            _check_keys(layer, value, section, (*place, str(key)))
        elif (table := _table_of(annotation)) is not None and isinstance(value, Mapping):
            for name, inner in value.items():
                _check_keys(layer, inner, table, (*place, str(key), str(name)))


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section behind a field's type, including `Sft | None`; parts of an algorithm check their own options."""
    options = [option for option in get_args(annotation) or (annotation,) if option is not NoneType]
    found = options[0] if len(options) == 1 else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) and found is not Part else None


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """The section behind every name of a table, as in `policies` and `seats`."""
    return section_of(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def _unknown_key(key: str, keys: list[str], place: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(key, keys, n=1)
    elsewhere = _in_a_section(key)  # a key of a section, word for word, is a better guess than one that is spelt alike
    elsewhere = elsewhere or _other_name(key, keys, place)
    nearest = elsewhere if elsewhere and not place else ".".join((*place, close[0])) if close else elsewhere
    hint = f"did you mean {nearest}? " if nearest else ""
    where = f"The keys of {'.'.join(place)}" if place else "The keys"
    return f"unknown key {'.'.join((*place, key))}; {hint}{where} are {', '.join(keys)}."


def _other_name(key: str, keys: list[str], place: tuple[str, ...]) -> str:
    """Our key for what other trainers call it, rather in the same section."""
    ours = _OTHER_NAMES.get(key, "")
    last = ours.rpartition(".")[2]
    return ".".join((*place, last)) if last in keys else ours


def _in_a_section(key: str) -> str:
    """The key of another section to suggest: `train.steps` for `steps`, `engine.memory_gib` for `engine_gib`."""
    sections = {name: section_of(field.annotation) for name, field in Recipe.model_fields.items()}
    keys = [f"{name}.{inner}" for name, section in sections.items() if section for inner in section.model_fields]
    near = difflib.get_close_matches(key, keys, n=1, cutoff=_ALIKE)
    return next((name for name in keys if name.endswith(f".{key}")), near[0] if near else "")


def _readable(item: Any, layers: list[Layer]) -> str:
    """One mistake that the types found."""
    place = tuple(str(step) for step in item["loc"])
    prefix = next((layer.prefix for layer in reversed(layers) if _says(layer.choices, place)), "")
    given, message = f"{prefix}{'.'.join(place)} is {item['input']!r}", str(item["msg"])
    if item["type"] == "extra_forbidden":
        return f"{prefix}{'.'.join(place)} is an unknown key; check its spelling, or remove it"
    if item["type"] == "model_type":
        return f"{given}; it should be a mapping such as {{{_first_key(place)}: ...}}"
    return f"{given}; {message.replace('Input', 'it', 1).removeprefix('Value error, ')}"


def _says(choices: Any, place: tuple[str, ...]) -> bool:
    for step in place:
        if not isinstance(choices, Mapping) or step not in choices:
            return not isinstance(choices, Mapping)
        choices = choices[step]
    return True


def _first_key(place: tuple[str, ...]) -> str:
    model: type[BaseModel] | None = Recipe
    for step in place:
        model = section_of(model.model_fields[step].annotation) if model else None
    return next(iter(model.model_fields)) if model else "key"


def _check_groups(recipe: Recipe) -> None:
    sampling, episodes = recipe.algorithm.sampling, recipe.rollout.episodes
    if is_unread(sampling.kind):
        return
    size = function_of("sampling", sampling.kind)(**sampling.options).tries
    if episodes % size:
        below, above = episodes // size * size, (episodes // size + 1) * size
        nearest = f"{below} or {above}" if below else above
        raise ValueError(
            f"rollout.episodes is {episodes}, which is not a multiple of the group size {size} (algorithm.sampling); "
            f"set it to {nearest}"
        )


def _check_env(env: EnvChoice, *, evaluated: bool, key: str = "env") -> None:
    try:
        check_wrappers(env.wrappers)
    except ValueError as error:
        raise ValueError(f"{key}.wrappers: {error}") from None
    try:
        check_rewards([choice.model_dump(exclude_none=True) for choice in env.rewards])
    except ValueError as error:
        raise ValueError(f"{key}.rewards: {error}") from None
    try:
        find(env.id)
    except ValueError:  # the user's own
        return
    held_out = env.held_out if evaluated else {}
    for field, arguments in (("kwargs", env.kwargs), ("held_out", {**env.kwargs, **held_out})):
        try:
            check(env.id, arguments)
        except ValueError as error:
            raise ValueError(f"{key}.{field}: {error}") from None
