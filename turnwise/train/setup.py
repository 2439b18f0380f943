"""Prepare a run: everything that can be wrong is found here, before any file is written."""

from __future__ import annotations

import math
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from turnwise import __version__
from turnwise.adapter_folders import read_adapter_config
from turnwise.engine.kinds import IN_PROCESS, check_engine
from turnwise.engine.runners import cache_shape
from turnwise.envs.check import check_env
from turnwise.envs.check_memory import remember, was_sound
from turnwise.envs.process import EnvSource
from turnwise.envs.registry import find, make
from turnwise.envs.wrappers.named import native_tools
from turnwise.exactness import describe_arithmetic
from turnwise.policy.rendering import Renderer
from turnwise.policy.scalar_models import require_alike
from turnwise.policy.text import TextPolicy
from turnwise.policy.text_lora import LoraSettings, share_base
from turnwise.recipe.ingredients import Sft
from turnwise.recipe.schema import CONTEXT, EnvChoice, Recipe
from turnwise.recipe.seating import count_voices, policies_of, recipe_of, trained_policies
from turnwise.rollout.call_branches import NO_TOOLS, Renderers
from turnwise.runs.checkpoints import is_checkpoint, policy_folder, require_whole
from turnwise.sources.chat_lengths import Lengths
from turnwise.sources.chats import chat_groups
from turnwise.sources.demonstrations import expert_groups
from turnwise.sources.imitation import Imitation, require_sft
from turnwise.sources.splitting import split_held_out
from turnwise.torch_ranks import join, own_device
from turnwise.types import Group
from turnwise.words import counted, written

_DOCTOR_SEEDS, _DOCTOR_SECONDS = 2, 10.0
"""How much the env doctor plays before training, and its time limit, for training and evaluation each."""
_NOTICED = 1.0
"""Seconds after which a check reports its progress."""
_READABLE = 300
"""Characters of a command that a message repeats whole."""


def choose_device(recipe: Recipe) -> str:
    """The recipe's device; auto uses a GPU if there is one, and each rank its own."""
    if recipe.device == "auto":
        return own_device("cuda" if torch.cuda.is_available() else "cpu")
    if recipe.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {recipe.device!r} but torch sees no GPU; use device=cpu, or fix the driver")
    return own_device(recipe.device)


def load_policies(recipe: Recipe, checkpoint: Path | None = None) -> dict[str, TextPolicy]:
    """The policies of a recipe by name; those that learn as they are in a checkpoint, where there is one.

    With an adapter the base is loaded, into which the adapter is then put back. Frozen tensors are shared.
    """
    policies: dict[str, TextPolicy] = {}
    for name, choice in policies_of(recipe).items():
        kept = None if choice.frozen or choice.model.lora is not None else checkpoint
        source = None if kept is None else policy_folder(kept, name)
        policies[name] = load_policy(recipe_of(recipe, name), source, frozen=choice.frozen)
    if len(policies) > 1:
        share_base([policy.model for policy in policies.values()])
    return policies


def load_policy(recipe: Recipe, source: str | Path | None = None, *, frozen: bool = False) -> TextPolicy:
    """The recipe's policy, from its own model or from a folder that replaces it."""
    model = recipe.model
    if source is None and is_checkpoint(Path(model.name)):
        require_whole(Path(model.name))
    lora = _adapter_of(recipe, its_own=source is None or str(source) == model.name, frozen=frozen)
    device = choose_device(recipe)
    waits = not frozen and recipe.train.ranks == "sharded" and join().size > 1
    try:
        return TextPolicy.load(
            source or model.name,
            dtype=model.dtype,
            device="cpu" if waits else device,  # a part may fit where the whole does not
            home=device,
            lora=lora,
            train=[] if frozen else None,
            checkpointing=model.checkpointing,
            compile_layers=model.compile,
        )
    except OSError as error:
        raise ValueError(f"the model {str(source or model.name)!r} does not load: {error}") from error


def _adapter_of(recipe: Recipe, *, its_own: bool, frozen: bool) -> LoraSettings | None:
    """The adapter of a policy. One to begin with is on the recipe's own model; a checkpoint has it merged in."""
    lora = recipe.model.lora
    folder = lora.adapter if lora is not None and its_own else None
    if lora is None or (frozen and folder is None):
        return None
    if folder is None:
        return LoraSettings(rank=lora.rank, alpha=lora.alpha, seed=recipe.seed)
    config = read_adapter_config(Path(folder))
    for name, said, there in (("rank", lora.rank, config["r"]), ("alpha", lora.alpha, config["lora_alpha"])):
        if said != there:
            raise ValueError(f"model.lora.{name} is {said:g}, but the adapter in {folder} has {there:g}; leave it out")
    return LoraSettings(rank=lora.rank, alpha=lora.alpha, seed=recipe.seed, adapter=Path(folder))


def make_renderer(recipe: Recipe, policy: TextPolicy) -> Renderer:
    """How the recipe's conversations become tokens."""
    model = recipe.model
    return Renderer(policy.tokenizer, template=model.template, system=model.system, prefix=model.prefix)


def plays_at_all(recipe: Recipe) -> bool:
    """Whether the run needs its environment and an engine; one that only learns from files needs neither."""
    imitates_file = recipe.stage == "imitation" and recipe.sft is not None and recipe.sft.chats is not None
    return recipe.eval.episodes > 0 or not (recipe.stage == "preference" or imitates_file)


def require_sound_env(recipe: Recipe, *, note: Callable[[str], None] | None = None) -> None:
    """Let the env doctor check the environment; raise ValueError with its findings if it is unfit.

    A pass is remembered while the code is the same; `note` receives the progress of a long check.
    """
    if not plays_at_all(recipe):
        return
    other = recipe.eval.env
    _require_sound(recipe.env, recipe, also_held_out=other is None, note=note)
    if other is not None:
        _require_sound(other, recipe, also_held_out=True, note=note)


def _require_sound(env: EnvChoice, recipe: Recipe, *, also_held_out: bool, note: Callable[[str], None] | None) -> None:
    sources = [env.source(), *([env.source(env.held_out)] if also_held_out else [])]
    for source in sources:
        source.check()
    if find(env.id)[0].runs_program and make(env.id, **sources[0].kwargs).execution == "loop":
        return  # a program may do anything with what the doctor says to it; `turnwise check-env` runs it when asked
    different = [source for place, source in enumerate(sources) if source not in sources[:place]]
    waiting = [each for each in different if env.check and not was_sound(env.id, each.kwargs, each.wrappers)]
    tell = None if note is None or not waiting else _telling(note, env.id, seconds=_DOCTOR_SECONDS * len(waiting))
    for source in waiting:
        kwargs, wrappers = source.kwargs, source.wrappers
        report = check_env(
            env.id,
            kwargs=kwargs,
            wrappers=wrappers,
            seeds=_DOCTOR_SEEDS,
            deadline=recipe.rollout.step_seconds,
            seconds=_DOCTOR_SECONDS,
            progress=tell,
        )
        remember(report, kwargs, wrappers)
        hurried = [finding.text for finding in report.findings if finding.check == "time"]
        if note is not None and hurried:
            note(f"env doctor: {hurried[0]}; `{_doctor_command(source)}` runs every check")
        if not report.ok:
            found = "; ".join(f"{defect.check}: {defect.text}" for defect in report.defects)
            raise ValueError(
                f"{env.id} is unfit for training: {found}. See `{_doctor_command(source)}`; "
                "env.check=false trains on it anyway"
            )


def _doctor_command(source: EnvSource) -> str:
    """The command that checks it alone; arguments that are too long to read are left out."""
    arguments = [f"{name}={written(value)}" for name, value in source.kwargs.items()]
    wraps = [word for wrapper in source.wrappers for word in ("--wrap", written(wrapper))]
    command = shlex.join(["turnwise", "check-env", str(source.env), *arguments, *wraps])
    return command if len(command) <= _READABLE else f"turnwise check-env {source.env}"


def _telling(note: Callable[[str], None], env_id: str, *, seconds: float) -> Callable[[str], None]:
    """Report that a check starts, and which check is running once it takes long enough to notice."""
    started = time.monotonic()
    note(f"env doctor: checking {env_id} for about {seconds:g} s at most (env.check=false skips it)")

    def tell(check: str) -> None:
        if (passed := time.monotonic() - started) > _NOTICED:
            note(f"env doctor: {check}, after {passed:.0f} s")

    return tell


def context_of(recipe: Recipe, policy: TextPolicy) -> int:
    """Maximum tokens per episode; ValueError if the recipe asks for more than the model has."""
    room, asked = policy.room, recipe.rollout.context
    if asked is not None and room is not None and asked > room:
        raise ValueError(f"rollout.context is {asked}, but {recipe.model.name} has room for {room} tokens; lower it")
    return asked or min(room or CONTEXT, CONTEXT)


def require_models(recipe: Recipe, policies: Mapping[str, TextPolicy]) -> None:
    """ValueError when the models of a recipe cannot do what it asks of them."""
    require_templates(recipe, policies)
    require_engine(recipe, policies)
    require_critics(recipe, policies)
    _require_exchange(recipe, policies)


def require_templates(recipe: Recipe, policies: Mapping[str, TextPolicy]) -> None:
    """ValueError when a policy has no chat template."""
    for name, policy in policies.items():
        make_renderer(recipe_of(recipe, name), policy)


def _require_exchange(recipe: Recipe, policies: Mapping[str, TextPolicy]) -> None:
    """ValueError when the two policies of an exchange have other weights than each other."""
    if recipe.exchange is None:
        return
    first, second = recipe.exchange.policies
    shapes = [{name: each.shape for name, each in policies[one].trainable().items()} for one in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"exchange: {first} and {second} have weights of different shapes; give both the same model and LoRA"
        )


def require_critics(recipe: Recipe, policies: Mapping[str, TextPolicy]) -> None:
    """ValueError if a critic should begin as a reward model that does not fit its policy."""
    for name in trained_policies(recipe):
        if (source := recipe_of(recipe, name).train.critic_from) is not None:
            require_alike(Path(source), policies[name].model, policies[name].tokenizer)


def require_engine(recipe: Recipe, policies: Mapping[str, TextPolicy]) -> None:
    """ValueError if the engine cannot be made, or has too little memory for a single episode of some policy."""
    if not plays_at_all(recipe):
        return
    engine, shared = recipe.engine, count_voices(recipe)
    check_engine(engine.kind, engine.options)
    for name, policy in policies.items():
        context = context_of(recipe_of(recipe, name), policy)
        needed, there = cache_shape(policy.model).bytes_per_slot(context), engine.memory_gib * 2**30 / shared
        if engine.kind != IN_PROCESS or there >= needed:
            continue
        least = math.ceil(shared * needed / 2**30 * 1e3) / 1e3
        raise ValueError(
            f"engine.memory_gib is {engine.memory_gib:g}, too little for one episode of {context} tokens; set it to "
            f"{least:g} or more, or lower rollout.context"
        )


def note_tools(recipe: Recipe, policies: Mapping[str, TextPolicy], note: Callable[[str], None]) -> None:
    """Say so if tools are left to a chat template that shows none."""
    tools = native_tools(recipe.env.wrappers)
    for name, policy in policies.items() if tools else ():
        if not Renderers(make_renderer(recipe_of(recipe, name), policy)).shows(tools):
            note(f"{recipe_of(recipe, name).model.name}: {NO_TOOLS}")


def require_loggers(recipe: Recipe) -> None:
    """ValueError if a logger that the recipe asks for is not installed."""
    for extra, wanted in (("tensorboard", recipe.log.tensorboard), ("wandb", recipe.log.wandb is not None)):
        if wanted and find_spec(extra) is None:
            raise ValueError(f"log.{extra} needs a package that is missing: pip install 'turnwise[{extra}]'")


def make_imitation(
    recipe: Recipe, renderer: Renderer, *, room: int | None = None, note: Callable[[str], None] | None = None
) -> Imitation:
    """The demonstrations of the imitation stage, each within `room` tokens; `note` receives what was left out."""
    sft, held = require_sft(recipe), list[Group]()
    tell = note or (lambda _: None)
    if sft.chats is not None:
        room = _room_for_chats(sft, room)
        groups = _read_chats(sft, sft.chats, renderer, limit=sft.demonstrations, room=room, note=tell)
        if isinstance(sft.held_out, str):
            held = _read_chats(sft, sft.held_out, renderer, limit=None, room=room, note=tell)
    else:
        groups = expert_groups(
            recipe.env,
            renderer,
            count=sft.demonstrations,
            max_turns=recipe.rollout.max_turns,
            seed=recipe.seed,
            room=room,
            note=note,
        )
    if isinstance(sft.held_out, float):
        groups, held = split_held_out(groups, sft.held_out, name=sft.chats or recipe.env.id)
    imitation = Imitation(groups, sft, seed=recipe.seed, held_out=held)
    if sft.warmup >= imitation.steps:
        tell(f"sft.warmup={sft.warmup} covers all {counted(imitation.steps, 'step')}: none has the full rate; lower it")
    return imitation


def _room_for_chats(sft: Sft, room: int | None) -> int | None:
    if sft.context is not None and room is not None and sft.context > room:
        raise ValueError(f"sft.context is {sft.context}, but the model has room for {room} tokens; lower it")
    return sft.context or room


def _read_chats(
    sft: Sft, path: str, renderer: Renderer, *, limit: int | None, room: int | None, note: Callable[[str], None]
) -> list[Group]:
    lengths = Lengths(rule=sft.too_long, room=room)
    groups = chat_groups(Path(path), renderer, limit=limit, lengths=lengths, note=note)
    if said := lengths.told(path):
        note(said)
    return groups


def circumstances(device: str, *, ranks: int = 1) -> dict[str, str | int]:
    """What must match for two runs to be equal bit for bit, besides the recipe and the number of threads."""
    device = device if ranks == 1 else device.partition(":")[0]
    software: dict[str, str | int] = {"turnwise": __version__, "torch": torch.__version__, "device": device}
    return {**software, **describe_arithmetic(), "ranks": ranks}


def describe_run(recipe: Recipe, *, ranks: int = 1) -> Mapping[str, Any]:
    """What `meta.json` records about machine and software."""
    return {
        **circumstances(choose_device(recipe), ranks=ranks),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }
