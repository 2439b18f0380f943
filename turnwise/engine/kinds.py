"""The available engines: the built-in one, and user-defined ones as `module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.engine.contract import Engine, EngineSetup
from turnwise.engine.serving import EngineServer, EngineThread
from turnwise.engine.torch_engine import TorchEngine
from turnwise.outside import load_class

Engines = dict[str, Engine]
Options = Mapping[str, Any]


def make_engines(kind: str, setups: Sequence[EngineSetup], options: Options) -> Engines:
    """An engine for every policy, by its name."""
    if kind in ENGINES:
        return ENGINES[kind](setups, options)
    make = _outside(kind)
    return {setup.policy: make(setup, **options) for setup in setups}


def check_engine(kind: str, options: Options) -> None:
    """ValueError if the engine does not load or does not take these options."""
    if kind not in ENGINES:
        try:
            inspect.signature(_outside(kind)).bind(None, **options)
        except TypeError as error:
            raise ValueError(f"engine.options: {kind} is made as Class(setup, **options): {error}") from error
    elif unknown := [name for name in options if name not in _TORCH_OPTIONS]:
        takes = ", ".join(_TORCH_OPTIONS)
        raise ValueError(f"engine.options: {kind} has no option {unknown[0]!r}; it takes {takes}")


def _outside(kind: str) -> Callable[..., Engine]:
    return load_class(kind, key="engine.kind", methods=("generate", "publish", "shutdown"))


def _torch_engines(setups: Sequence[EngineSetup], options: Options) -> Engines:
    """Engines on the learner's own modules, all driven by one thread in order of their names."""
    thread = EngineThread()
    try:
        return {
            setup.policy: EngineServer(_torch_engine(setup, options), thread=thread)
            for setup in sorted(setups, key=lambda setup: setup.policy)
        }
    except BaseException:
        thread.shutdown()
        raise


def _torch_engine(setup: EngineSetup, options: Options) -> TorchEngine:
    return TorchEngine(
        setup.model,
        tokenizer=setup.tokenizer,
        capacity=setup.capacity,
        memory_bytes=setup.memory_bytes,
        seed=setup.seed,
        **options,
    )


_TORCH_OPTIONS = ("max_batch", "chunk_tokens", "share_prompts", "recompute", "release")
ENGINES: dict[str, Callable[[Sequence[EngineSetup], Options], Engines]] = {"torch": _torch_engines}
