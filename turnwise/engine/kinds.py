"""The available engines: the built-in one, servers in other processes, and user-defined ones as `module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from turnwise.engine.contract import Engine, EngineSetup
from turnwise.engine.remote import RemoteEngine
from turnwise.engine.serving import EngineServer, EngineThread
from turnwise.engine.torch_engine import TorchEngine
from turnwise.engine.wires import SglangWire, TurnwiseWire, VllmWire, Wire
from turnwise.outside import load_class

Engines = dict[str, Engine]
Options = Mapping[str, Any]


def make_engines(kind: str, setups: Sequence[EngineSetup], options: Options) -> Engines:
    """An engine for every policy, by its name."""
    if kind in ENGINES:
        return ENGINES[kind](setups, options)
    make = _outside(kind)
    return {setup.policy: make(setup, **options) for setup in setups}


def check_engine(kind: str, options: Options, urls: Mapping[str, Sequence[str]] | None = None) -> None:
    """ValueError if the engine does not load, or does not take these options or servers; `urls` are by policy."""
    for policy, servers in (urls or {}).items():
        if kind in WIRES and not servers:
            raise ValueError(
                f"engine.urls names no server for {policy}; with one policy write engine.urls=[http://127.0.0.1:8100], "
                f"with several {{{policy}: [http://127.0.0.1:8100], ...}}"
            )
        if kind == IN_PROCESS and servers:
            raise ValueError(
                f"engine.urls: torch samples in this process; set engine.kind to one of {', '.join(WIRES)}"
            )
    if kind not in ENGINES:
        try:
            inspect.signature(_outside(kind)).bind(None, **options)
        except TypeError as error:
            raise ValueError(f"engine.options: {kind} is made as Class(setup, **options): {error}") from error
    elif unknown := [name for name in options if name not in _OPTIONS.get(kind, _REMOTE_OPTIONS)]:
        takes = ", ".join(_OPTIONS.get(kind, _REMOTE_OPTIONS))
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


def _remote_engines(wire: Callable[[], Wire], setups: Sequence[EngineSetup], options: Options) -> Engines:
    engines: Engines = {}
    try:
        for setup in setups:
            engines[setup.policy] = RemoteEngine(setup, wire=wire(), **options)
    except BaseException:
        for engine in engines.values():
            engine.shutdown()
        raise
    return engines


IN_PROCESS = "torch"
"""The engine that shares the learner's memory."""
WIRES: dict[str, Callable[[], Wire]] = {"turnwise": TurnwiseWire, "vllm": VllmWire, "sglang": SglangWire}
"""The servers that a remote engine can speak to."""
_OPTIONS = {IN_PROCESS: ("max_batch", "chunk_tokens", "share_prompts", "recompute")}
_REMOTE_OPTIONS = ("seconds", "load_seconds", "dtype")
ENGINES: dict[str, Callable[[Sequence[EngineSetup], Options], Engines]] = {
    IN_PROCESS: _torch_engines,
    **{kind: partial(_remote_engines, wire) for kind, wire in WIRES.items()},
}
