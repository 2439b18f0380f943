"""From a recipe's seats to their players, with the extra models that these need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turnwise.algorithm import Need
from turnwise.call_options import mistake_in_options
from turnwise.cluster.cluster_player import ClusterPlayer
from turnwise.engine.kinds import IN_PROCESS
from turnwise.envs.cards.dhumbal_players import LEARNED
from turnwise.envs.faults import close_quietly
from turnwise.envs.registry import make
from turnwise.learn.extrapolation import make_mixture
from turnwise.outside import load_class
from turnwise.policy.sampling_copy import SamplingCopy
from turnwise.policy.text import TextPolicy
from turnwise.ranks import ALONE, Ranks
from turnwise.recipe.loading import newest_weights, one_model
from turnwise.recipe.schema import Recipe, SeatChoice
from turnwise.recipe.seating import check_env_seats, nearest_agent, policies_of, recipe_of, trained_policies
from turnwise.rollout.agents import Agent, OracleAgent, RandomAgent, ScriptedAgent
from turnwise.rollout.card_agents import CARD_AGENTS, CardAgent
from turnwise.runs.settings import META
from turnwise.sources.cast import Cast, Pool, Voice
from turnwise.sources.played import plays_in_lockstep
from turnwise.sources.player import Player, Playing
from turnwise.sources.silent_player import SilentPlayer
from turnwise.train.card_files import LearnedCards
from turnwise.train.setup import load_policy, make_renderer, plays_at_all
from turnwise.train.text_strategy import tree_of


def _learned(*, path: str) -> Agent:
    return CardAgent(LearnedCards(path))


_AGENTS: dict[str, Callable[..., Agent]] = {
    "random": RandomAgent,
    "oracle": OracleAgent,
    **CARD_AGENTS,
    LEARNED: _learned,
}


def make_cast(recipe: Recipe, policies: Mapping[str, TextPolicy], *, ranks: Ranks = ALONE) -> Cast:
    """Who plays which seat, with the extra models that this needs; before ranks shard the policies."""
    trained = trained_policies(recipe)
    sampled_here = recipe.engine.kind == IN_PROCESS and recipe.cluster is None
    sharded = {name for name in trained if ranks.size > 1 and recipe_of(recipe, name).train.ranks == "sharded"}
    speaking = {
        name: Voice(
            name=name,
            policy=policy,
            renderer=make_renderer(recipe_of(recipe, name), policy),
            learns=name in trained,
            copy=_sampling_copy(recipe, policy, needed=sampled_here and name in sharded),
            routing=name in trained and Need.ROUTING in recipe_of(recipe, name).algorithm.needs,
            mixture=make_mixture(recipe_of(recipe, name).algorithm, policy) if name in trained else None,
        )
        for name, policy in policies.items()
    }
    seats: dict[str, Voice | Pool | Agent] = {}
    for seat, choice in recipe.seats.items():
        if choice.agent is not None:
            seats[seat] = ScriptedAgent(make_agent(f"seats.{seat}", choice))
        elif choice.pool is not None:
            seats[seat] = _make_pool(recipe, seat, choice, speaking[choice.pool])
        elif choice.checkpoint is not None:
            seats[seat] = speaking.setdefault(choice.checkpoint, _load_voice(recipe, choice.checkpoint))
        else:
            assert choice.policy is not None
            seats[seat] = speaking[choice.policy]
    pooled = [place for player in seats.values() if isinstance(player, Pool) for place in player.places]
    return Cast(voices=[*speaking.values(), *pooled], seats=seats)


def make_player(
    recipe: Recipe,
    cast: Cast,
    *,
    note: Callable[[str], None] = lambda _: None,
    ranks: Ranks = ALONE,
    folder: Path | None = None,
) -> Playing:
    """What plays the recipe's episodes: this process, its cluster, or nobody. Servers find weights in `folder`."""
    if not plays_at_all(recipe):
        return SilentPlayer(cast, rollout=recipe.rollout, seed=recipe.seed)
    if recipe.cluster is not None:
        return ClusterPlayer(cast, recipe, build=build_far, note=note, ranks=ranks, folder=folder)
    return Player(
        cast,
        rollout=recipe.rollout,
        engine=recipe.engine,
        seed=recipe.seed,
        lockstep=plays_in_lockstep(recipe),
        ranks=ranks,
        folder=folder,
        note=note,
    )


def build_far(plain: Mapping[str, Any]) -> tuple[Cast, Player]:
    """The cast and the player of a process elsewhere. Models load as they were; the weights come later."""
    recipe = Recipe.model_validate(plain)
    gpus = recipe.cluster is not None and recipe.cluster.gpus > 0
    recipe = recipe.model_copy(update={"device": "cuda" if gpus else "cpu"})
    if recipe.engine.kind == IN_PROCESS:
        policies = {
            name: load_policy(_as_published(recipe_of(recipe, name), frozen=choice.frozen), frozen=True)
            for name, choice in policies_of(recipe).items()
        }
    else:  # servers hold the weights
        models = {name: choice.model for name, choice in policies_of(recipe).items()}
        policies = {name: TextPolicy.without_weights(model.name, dtype=model.dtype) for name, model in models.items()}
    cast = make_cast(recipe, policies)
    engine, seed = recipe.engine, recipe.seed
    return cast, Player(cast, rollout=recipe.rollout, engine=engine, seed=seed, lockstep=False, role="follows")


def _as_published(recipe: Recipe, *, frozen: bool) -> Recipe:
    """Weights of a policy that learns come with the adapter merged in."""
    model = recipe.model if frozen else recipe.model.model_copy(update={"lora": None})
    return recipe.model_copy(update={"model": model})


def make_agent(key: str, choice: SeatChoice) -> Agent:
    """The scripted agent of a choice; mistakes are reported with the `key` that made it, such as `seats.white`."""
    assert choice.agent is not None
    made = _AGENTS.get(choice.agent) or _load_agent(key, choice.agent)
    if mistake := mistake_in_options(made, choice.options):
        raise ValueError(f"{key}.options: {choice.agent}: {mistake}")
    try:
        return made(**choice.options)
    except TypeError as error:
        raise ValueError(f"{key}.options: {choice.agent} cannot be made from them: {error}") from error


def _load_agent(key: str, name: str) -> Callable[..., Agent]:
    try:
        return load_class(name, key=f"{key}.agent", methods=("act", "end"))
    except ValueError as error:
        meant = nearest_agent(name)
        raise ValueError(f"{error}; did you mean {meant}?" if meant else str(error)) from error


def _sampling_copy(recipe: Recipe, policy: TextPolicy, *, needed: bool = False) -> SamplingCopy | None:
    """What to sample from in place of the policy; None: the policy itself."""
    precision = recipe.engine.precision
    return SamplingCopy(policy, precision) if needed or precision != "same" else None


def _make_pool(recipe: Recipe, seat: str, choice: SeatChoice, voice: Voice) -> Pool:
    places: list[Voice] = []
    for place in range(choice.keep):
        policy = voice.policy.twin()
        copied = _sampling_copy(recipe, policy)
        name, label = f"{seat}@{place}", f"{voice.name}@0"
        places.append(Voice(name=name, policy=policy, renderer=voice.renderer, label=label, copy=copied))
    return Pool(of=voice.name, every=choice.every, places=places, draw=choice.draw, held={0: places[0]})


def _load_voice(recipe: Recipe, folder: str) -> Voice:
    """A model from a checkpoint or a run, loaded like the recipe's own."""
    source = one_model(newest_weights(Path(folder))) if (Path(folder) / META).is_file() else Path(folder)
    policy = load_policy(recipe, source, frozen=True)
    renderer = make_renderer(recipe, policy)
    return Voice(name=folder, policy=policy, renderer=renderer, copy=_sampling_copy(recipe, policy))


def require_seats(recipe: Recipe) -> None:
    """ValueError if the environment lacks seats or a tree that the recipe needs, or agents cannot be made."""
    if recipe.eval.exploitability:
        tree_of(recipe.env.source(recipe.env.held_out))
    if not recipe.seats:
        return
    env = make(recipe.env.id, **recipe.env.kwargs)
    try:
        check_env_seats(recipe, tuple(env.seats))
    finally:
        close_quietly(env)
    for seat, choice in recipe.seats.items():
        if choice.agent is not None:
            make_agent(f"seats.{seat}", choice)
