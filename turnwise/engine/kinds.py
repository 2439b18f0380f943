"""The available engines: the built-in one, servers in other processes, and user-defined ones as `module:Class`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from turnwise.call_options import mistake_in_options
from turnwise.engine.contract import Engine, EngineSetup, ServerStart
from turnwise.engine.remote import RemoteEngine
from turnwise.engine.serving import EngineServer, EngineThread
from turnwise.engine.supervisor import Supervisor
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


def check_engine(
    kind: str, options: Options, urls: Mapping[str, Sequence[str]] | None = None, *, starts: bool = False
) -> None:
    """ValueError if the engine does not load, or does not take these options or servers; `urls` are by policy."""
    for policy, servers in (urls or {}).items():
        if kind in WIRES and not servers and not starts:
            raise ValueError(
                f"engine.urls names no server for {policy}; with one policy write engine.urls=[http://127.0.0.1:8100], "
                f"with several {{{policy}: [http://127.0.0.1:8100], ...}}, or let engine.start=1 start one"
            )
        if kind in WIRES and servers and starts:
            raise ValueError("engine.urls names servers that run and engine.start starts some; remove one of the two")
        if kind not in WIRES and starts:
            raise ValueError(f"engine.start: {kind} is not a server; set engine.kind to one of {', '.join(WIRES)}")
        if kind == IN_PROCESS and servers:
            raise ValueError(
                f"engine.urls: torch samples in this process; set engine.kind to one of {', '.join(WIRES)}"
            )
    if kind not in ENGINES:
        if mistake := mistake_in_options(_outside(kind), options, handed=1):
            raise ValueError(f"engine.options: {kind} is made as Class(setup, **options): {mistake}")
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
        mixed=setup.mixed,
        routing=setup.routing,
        **options,
    )


def _remote_engines(wire: Callable[[], Wire], setups: Sequence[EngineSetup], options: Options) -> Engines:
    engines: Engines = {}
    try:
        for setup in setups:
            spoken = wire()
            supervisor = None
            if setup.start is not None:
                supervisor = _started(spoken.kind, setup, setup.start)
                setup = replace(setup, urls=setup.ranks.broadcast(() if supervisor is None else supervisor.urls))
            engines[setup.policy] = RemoteEngine(setup, wire=spoken, supervisor=supervisor, **options)
    except BaseException:
        for engine in engines.values():
            engine.shutdown()
        raise
    return engines


def _started(kind: str, setup: EngineSetup, start: ServerStart) -> Supervisor | None:
    """Servers on the machine of rank 0; if they fail to start there, all ranks say so."""
    supervisor, failure = None, ""
    if setup.ranks.rank == 0:
        try:
            supervisor = Supervisor(kind, setup, start)
        except ValueError as error:
            failure = str(error)
    if failure := setup.ranks.broadcast(failure):
        raise ValueError(failure)
    return supervisor


IN_PROCESS = "torch"
"""The engine that shares the learner's memory."""
WIRES: dict[str, Callable[[], Wire]] = {"turnwise": TurnwiseWire, "vllm": VllmWire, "sglang": SglangWire}
"""The servers that a remote engine can speak to."""
_OPTIONS = {IN_PROCESS: ("max_batch", "chunk_tokens", "share_prompts", "recompute", "release")}
_REMOTE_OPTIONS = ("seconds", "load_seconds", "dtype")
ENGINES: dict[str, Callable[[Sequence[EngineSetup], Options], Engines]] = {
    IN_PROCESS: _torch_engines,
    **{kind: partial(_remote_engines, wire) for kind, wire in WIRES.items()},
}
