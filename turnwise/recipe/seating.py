"""Who plays which seat: the policies of a recipe by name, and what is wrong with how it seats them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwise.algorithm import Algorithm, Need
from turnwise.envs.cards.dhumbal_players import LEARNED, PLAYERS
from turnwise.outside import is_outside
from turnwise.recipe.schema import PolicyChoice, Recipe, SeatChoice
from turnwise.runs.rows import AREAS
from turnwise.types import POLICY

AGENTS = ("random", "oracle", *PLAYERS, LEARNED)
"""Scripted agents that need no code of the user's own."""
_RESERVED = (*AREAS, "resume", "adapter")
"""Areas of metrics, and a folder of every checkpoint: a policy's name stands in the same places."""


def nearest_agent(name: str) -> str | None:
    """The scripted agent that a misspelt or shortened name means: `ismcts`, `dhumbal:agressive`."""
    spelled = {agent.rpartition(mark)[2]: agent for mark in ":/" for agent in AGENTS if mark in agent}
    spelled |= {agent: agent for agent in AGENTS}
    close = difflib.get_close_matches(name, spelled, n=1, cutoff=0.7)
    return spelled[close[0]] if close else None


def policies_of(recipe: Recipe) -> dict[str, PolicyChoice]:
    """The recipe's policies; the plain case is one that has no name of its own."""
    plain = PolicyChoice(model=recipe.model, algorithm=recipe.algorithm, train=recipe.train)
    return dict(recipe.policies) or {POLICY: plain}


def trained_policies(recipe: Recipe) -> list[str]:
    """The names of those that learn."""
    return [name for name, choice in policies_of(recipe).items() if not choice.frozen]


def recipe_of(recipe: Recipe, policy: str) -> Recipe:
    """The recipe as one of its policies sees it: with its own model, algorithm and train."""
    if not recipe.policies:
        return recipe
    choice = recipe.policies[policy]
    train = choice.train.model_copy(update={"steps": recipe.train.steps})
    return recipe.model_copy(update={"model": choice.model, "algorithm": choice.algorithm, "train": train})


def seats_of(recipe: Recipe, policy: str) -> frozenset[str] | None:
    """The seats that a policy plays; None: all of them."""
    if not recipe.seats:
        return None
    return frozenset(seat for seat, choice in recipe.seats.items() if choice.policy == policy)


def trained_seats(recipe: Recipe) -> frozenset[str] | None:
    """The seats of all that learn; None: all of them."""
    if not recipe.seats:
        return None
    trained = trained_policies(recipe)
    return frozenset(seat for seat, choice in recipe.seats.items() if choice.policy in trained)


def learns_at(recipe: Recipe, policy: str, step: int) -> bool:
    """Whether it is the policy's turn to learn."""
    chosen = recipe.in_turn
    if chosen is None or policy not in chosen.policies:
        return True
    return chosen.policies[(step - 1) // chosen.every % len(chosen.policies)] == policy


def prefix_of(recipe: Recipe, policy: str) -> str:
    """What the names of a policy's metrics begin with: nothing where only one learns."""
    return f"{policy}/" if len(trained_policies(recipe)) > 1 else ""


def count_voices(recipe: Recipe) -> int:
    """Models that play, each with its own engine."""
    others = {choice.checkpoint for choice in recipe.seats.values() if choice.checkpoint is not None}
    pooled = sum(choice.keep for choice in recipe.seats.values() if choice.pool is not None)
    return len(policies_of(recipe)) + len(others) + pooled


def check_seats(recipe: Recipe) -> None:
    """ValueError with the fix when policies and seats do not fit each other."""
    policies = policies_of(recipe)
    _check_names(policies)
    if not recipe.seats and len(policies) > 1:
        raise ValueError(f"say in seats which of {', '.join(policies)} plays which seat, such as {{white: NAME}}")
    for seat, choice in recipe.seats.items():
        _check_seat(seat, choice, policies)
    played = {choice.policy for choice in recipe.seats.values()}
    if idle := [name for name in policies if recipe.seats and name not in played]:
        raise ValueError(f"policies.{idle[0]} plays no seat; give it one in seats, or leave it out")
    if not trained_policies(recipe):
        raise ValueError("every policy is frozen, so nothing would learn; set frozen: false for one of them")
    for name in trained_policies(recipe):
        _check_shared(recipe, name)
    if recipe.policies and (recipe.source.expert or not all(part.plays for part in recipe.source.mix)):
        key = "expert" if recipe.source.expert else "mix"
        raise ValueError(f"source.{key} teaches one policy and cannot say which of several; leave it or policies out")
    if (recipe.policies or recipe.seats) and recipe.sft is not None:
        raise ValueError(
            "sft imitates with one policy that plays every seat; imitate first with `turnwise sft`, and name the "
            "folder of that run as the model of a policy"
        )


def check_exchange(recipe: Recipe) -> None:
    """ValueError with the fix when the recipe's exchange does not fit its policies."""
    if recipe.exchange is None:
        return
    if len(recipe.exchange.policies) != 2:
        raise ValueError("exchange.policies names two policies that learn, such as [pioneer, observer]; write it so")
    first, second = recipe.exchange.policies
    trained = trained_policies(recipe) if recipe.policies else []
    if unfit := [name for name in (first, second) if name not in trained]:
        known = ", ".join(trained) or "none, because policies names none"
        raise ValueError(f"exchange.policies: {unfit[0]!r} is not a policy that learns; those are {known}")
    if first == second:
        raise ValueError(f"exchange.policies names {first} twice; name two policies")
    for key in ("model.dtype", "model.lora", "train.masters", "train.moments", "train.critic", "algorithm.critic"):
        section, _, field = key.partition(".")
        mine, yours = (getattr(getattr(recipe_of(recipe, name), section), field) for name in (first, second))
        if mine != yours:
            raise ValueError(f"exchange: {first} and {second} differ in {key}; set it to the same for both")
    if recipe.algorithm.max_lag:
        raise ValueError("an exchange changes who said what was played ahead; set algorithm.max_lag=0")
    momentum = Need.PREVIOUS_POLICY, Need.PREVIOUS_WEIGHTS
    for row in (recipe_of(recipe, name).algorithm for name in (first, second)):
        if not row.needs.isdisjoint(momentum):
            raise ValueError(
                f"algorithm.extrapolate={row.extrapolate.kind} continues from the weights of the step before, which an "
                "exchange moves to another policy; set algorithm.extrapolate=none, or leave exchange out"
            )


def check_in_turn(recipe: Recipe) -> None:
    """ValueError with the fix when the recipe's turns do not fit its policies."""
    if recipe.in_turn is None:
        return
    named, trained = recipe.in_turn.policies, trained_policies(recipe) if recipe.policies else []
    if len(set(named)) != len(named) or len(named) < 2:
        raise ValueError("in_turn.policies names two or more policies, each once, such as [manager, answerer]")
    if unfit := [name for name in named if name not in trained]:
        known = ", ".join(trained) or "none, because policies names none"
        raise ValueError(f"in_turn.policies: {unfit[0]!r} is not a policy that learns; those are {known}")


def check_env_seats(recipe: Recipe, there: Sequence[str]) -> None:
    """ValueError when the recipe's seats are not those of its environment."""
    named, env = list(recipe.seats), recipe.env.id
    if unknown := [seat for seat in named if seat not in there]:
        raise ValueError(f"seats.{unknown[0]}: {env} has no such seat; its seats are {', '.join(there)}")
    if recipe.seats and (missing := [seat for seat in there if seat not in named]):
        raise ValueError(f"seats: nobody plays {missing[0]}; the seats of {env} are {', '.join(there)}")


def _check_names(policies: Iterable[str]) -> None:
    for name in policies:
        if not re.fullmatch(r"[A-Za-z][\w-]*", name) or name in _RESERVED:
            raise ValueError(
                f"policies.{name} needs another name: letters, digits, - and _, not {', '.join(_RESERVED)}"
            )


def _check_seat(seat: str, choice: SeatChoice, policies: Mapping[str, PolicyChoice]) -> None:
    name = choice.policy or choice.pool
    if name is not None and name not in policies:
        near = difflib.get_close_matches(name, policies, n=1)
        fix = f"did you mean {near[0]}?" if near else f"the policies are {', '.join(policies)}"
        raise ValueError(f"seats.{seat}: there is no policy {name!r}; {fix}")
    if choice.pool is not None and policies[choice.pool].frozen:
        raise ValueError(
            f"seats.{seat}: {choice.pool} is frozen and has no earlier selves; write {seat}: {choice.pool}"
        )
    if choice.agent is not None and choice.agent not in AGENTS and not is_outside(choice.agent):
        meant, names = nearest_agent(choice.agent), ", ".join(AGENTS)
        fix = f"did you mean {meant}?" if meant else f"choose {names}, or a class as package.module:Class"
        raise ValueError(f"seats.{seat}: agent is {choice.agent!r}; {fix}")


def _check_shared(recipe: Recipe, name: str) -> None:
    """All policies play the same episodes of the same run: what decides those is the recipe's own."""
    own, policy = recipe_of(recipe, name), f"policies.{name}"
    for axis in ("sampling", "max_lag"):
        if getattr(own.algorithm, axis) != getattr(recipe.algorithm, axis):
            raise ValueError(
                f"{policy}.algorithm.{axis} is not that of algorithm.{axis}: all policies play the same episodes; set "
                "`algorithm` to the row that says how these are played"
            )
    steps = policies_of(recipe)[name].train.steps
    if steps != recipe.train.steps:
        raise ValueError(f"{policy}.train.steps is {steps}; all policies take train.steps={recipe.train.steps}")
    if recipe.algorithm.max_lag and any(choice.pool for choice in recipe.seats.values()):
        raise ValueError("a pool changes between steps, so nothing may be played ahead; set algorithm.max_lag=0")


def written_out(
    policies: Mapping[str, Any], recipe: Mapping[str, Any], rows: Mapping[str, Algorithm]
) -> dict[str, dict[str, Any]]:
    """The choices of the policies, what they leave unsaid taken from the recipe's own."""
    return {
        name: {
            **choices,
            "algorithm": rows[name],
            **{section: _over(recipe.get(section), choices.get(section)) for section in ("model", "train")},
        }
        for name, choices in policies.items()
    }


def _over(below: Any, above: Any) -> Any:
    """A policy's section over the recipe's."""
    if above is None:
        return {} if below is None else below
    return {**below, **above} if isinstance(below, Mapping) and isinstance(above, Mapping) else above
