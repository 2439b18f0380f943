"""Starts engine servers on this machine and ends them with the run, even after kill -9 of the trainer.

Every server runs under a keeper (`turnwise.keeper`). One that dies is started again, and gets the weights at the next
publish.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from turnwise.engine.contract import EngineSetup, ServerStart
from turnwise.engine.published import write_model
from turnwise.keeper import GRACE, keep

_RESTARTS = 3
"""How often each server may be started again."""
_NOTICED = 2.0
_HEALTH_SECONDS = 5.0
_QUOTED = 6
"""Lines of a server's log in an error message."""
_LOOPBACK = "127.0.0.1"
_CausalLM: Any = AutoModelForCausalLM  # its stubs lack `use_safetensors`
Command = Callable[["Launch"], list[str]]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a server is started with."""

    model: Path
    port: int
    setup: EngineSetup
    bf16: bool


@dataclass(kw_only=True)
class _Local:
    url: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[Any] = field(init=False)
    restarts: int = 0

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = keep(self.command, output=output, env=self.environment)

    def has_ended(self) -> bool:
        if self.process.poll() is None and not self.is_healthy():
            with suppress(subprocess.TimeoutExpired):  # the keeper may not have noticed yet
                self.process.wait(timeout=_NOTICED)
        return self.process.returncode is not None

    def is_healthy(self) -> bool:
        """Asks this machine directly, whatever proxy is set."""
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=_HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class Supervisor:
    """The servers of one policy: `supervisor.urls` are ready when it is made."""

    def __init__(self, kind: str, setup: EngineSetup, start: ServerStart) -> None:
        self._setup, self._folder = setup, Path(tempfile.mkdtemp(prefix="turnwise-engine-"))
        self._logs = self._folder if setup.folder is None else setup.folder.parent / "engine_logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._servers: list[_Local] = []
        self._seconds = start.seconds
        try:
            model = self._export()
            for number in range(start.servers):
                self._servers.append(self._prepare(kind, model, start, number))
                self._servers[-1].start()
            self._wait(self._seconds)
        except BaseException:
            self.close()
            raise

    @property
    def urls(self) -> tuple[str, ...]:
        """Where they answer."""
        return tuple(server.url for server in self._servers)

    def revive(self) -> bool:
        """Start those that have died again; returns whether there were any.

        Waits for them if no other server is left; otherwise they join a later publish.
        """
        dead = [server for server in self._servers if server.has_ended() and server.restarts < _RESTARTS]
        for server in dead:
            server.restarts += 1
            again = f"it is started again ({server.restarts} of {_RESTARTS})"
            code = server.process.returncode
            self._setup.note(f"engine server {server.url} ended with code {code}; {again}; its log is {server.log}")
            server.start()
        if dead and len(dead) == len(self._servers):
            self._wait(self._seconds)
        return bool(dead)

    def close(self) -> None:
        """End all servers and wait until they are gone."""
        for server in self._servers:
            _let_go(server.process)
        for server in self._servers:
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(timeout=2 * GRACE)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _export(self) -> Path:
        """The learner's model with its head apart, so that servers reload all of it."""
        folder, model = self._folder / "model", self._setup.model
        if self._setup.ranks.size > 1:  # each rank may hold a part only; the weights come with the first publish
            name, dtype = self._setup.model_name, model.dtype
            model = _CausalLM.from_pretrained(name, dtype=dtype, trust_remote_code=False, use_safetensors=True)
        folder.mkdir()
        write_model(folder, model, iter(model.state_dict().items()))
        if self._setup.tokenizer is not None:
            self._setup.tokenizer.save_pretrained(folder)
        return folder

    def _prepare(self, kind: str, model: Path, start: ServerStart, number: int) -> _Local:
        port = _free_port()
        bf16 = "bfloat16" in str(self._setup.model.dtype)
        launch = Launch(model=model, port=port, setup=self._setup, bf16=bf16)
        environment = {**os.environ, **_VARIABLES.get(kind, {}), **start.env}
        if start.devices:
            environment["CUDA_VISIBLE_DEVICES"] = start.devices[number % len(start.devices)]
        # Another interpreter must not find the trainer's packages.
        python = ["env", "-u", "PYTHONPATH", start.python] if start.python else [sys.executable]
        command = [*python, *COMMANDS[kind](launch), *start.arguments]
        log = self._logs / f"{self._setup.policy.replace('/', '_')}_{number}.log"
        return _Local(url=f"http://{_LOOPBACK}:{port}", command=command, environment=environment, log=log)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        waiting = list(self._servers)
        while waiting:
            for server in waiting:
                if (code := server.process.poll()) is not None:
                    raise ValueError(f"engine server {server.url} ended with code {code}{_end_of(server.log)}")
            waiting = [server for server in waiting if not server.is_healthy()]
            if waiting and time.monotonic() > until:
                log = waiting[0].log
                raise ValueError(
                    f"engine server {waiting[0].url} did not answer within {seconds:g} s (engine.start.seconds)"
                    f"{_end_of(log)}"
                )
            time.sleep(0.2)


def _turnwise(launch: Launch) -> list[str]:
    setup = launch.setup
    root = launch.model.parent if setup.folder is None else setup.folder.parent
    return [
        *("-m", "turnwise", "engine", "serve", str(launch.model), "--port", str(launch.port), "--root", str(root)),
        *("--context", str(setup.capacity), "--memory-gib", f"{setup.memory_bytes / 2**30:g}"),
        *("--dtype", "bf16" if launch.bf16 else "fp32"),
    ]


def _vllm(launch: Launch) -> list[str]:
    return [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", str(launch.model), "--served-model-name", "policy"),
        *("--host", _LOOPBACK, "--port", str(launch.port), "--max-model-len", str(launch.setup.capacity)),
        *("--dtype", "bfloat16" if launch.bf16 else "float32", "--enable-scale-out"),
        *("--logprobs-mode", "processed_logprobs"),
    ]


def _sglang(launch: Launch) -> list[str]:
    return [
        *("-m", "sglang.launch_server", "--model-path", str(launch.model), "--host", _LOOPBACK),
        *("--port", str(launch.port), "--context-length", str(launch.setup.capacity)),
        *("--dtype", "bfloat16" if launch.bf16 else "float32"),
    ]


COMMANDS: dict[str, Command] = {"turnwise": _turnwise, "vllm": _vllm, "sglang": _sglang}
"""How each kind of server is started."""
_VARIABLES = {"vllm": {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


def _let_go(process: subprocess.Popen[Any]) -> None:
    """The keeper ends its command once nobody holds its standard input."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def _end_of(log: Path) -> str:
    with log.open(errors="replace") as lines:
        last: Sequence[str] = deque(lines, maxlen=_QUOTED)
    return f"; the end of its log {log}:\n" + "".join(last).rstrip()
