"""The sections of a recipe that say which machines sample and play: engine, servers, cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from turnwise.frozen_settings import Settings
from turnwise.outside import is_outside


class StartChoice(Settings):
    """Servers to start on this machine. In YAML `start: 2` is short for `start: {servers: 2}`."""

    servers: int = Field(default=1, ge=1)
    """How many servers, each with a copy of the model."""
    python: str = ""
    """Python of the environment that has the server installed; empty: the trainer's own."""
    devices: tuple[str, ...] = ()
    """CUDA devices of each server, such as "1" or "2,3"; empty: all that the trainer sees."""
    arguments: tuple[str, ...] = ()
    """More arguments for the server's command."""
    env: dict[str, str] = {}
    """More environment variables for the server."""
    seconds: float = Field(default=600.0, gt=0)
    """How long a server may take until it answers."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"servers": value} if isinstance(value, int) and not isinstance(value, bool) else value


class EngineChoice(Settings):
    """What samples the tokens. In YAML `engine: torch` is short for `engine: {kind: torch}`."""

    kind: str = "torch"
    """torch samples in this process, from the learner's own weights; turnwise, vllm and sglang on servers; or a class
    as package.module:Class."""
    urls: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    """Servers such as http://127.0.0.1:8100; if several models play, a list for each model by name."""
    start: StartChoice | None = None
    """Start servers on this machine instead of using urls; they end with the run, however it ends."""
    precision: Literal["same", "bf16", "int8"] = "same"
    """What torch samples from: the learner's own weights, or a copy that every publish refreshes. bf16 computes in
    bf16; int8 rounds the rows of every matrix to 255 levels. Sampler and learner then differ as in large runs, and
    evaluations use that copy too."""
    memory_gib: float = Field(default=0.5, gt=0)
    """Memory for keys and values."""
    options: dict[str, Any] = {}
    """Arguments of the engine; torch takes max_batch, chunk_tokens, share_prompts, recompute and release (while no
    episode is open, the memory of keys and values is free for the learner); servers take seconds (for an answer),
    load_seconds (for new weights) and dtype (bf16 if they compute in it)."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("torch", "turnwise", "vllm", "sglang") and not is_outside(value):
            raise ValueError("choose torch, turnwise, vllm, sglang, or a class as package.module:Class")
        return value

    @model_validator(mode="after")
    def _own_precision(self) -> Self:
        if self.precision != "same" and self.kind != "torch":
            raise ValueError(
                f"precision={self.precision} is for kind torch; set the precision of {self.kind} on its side"
            )
        return self

    @field_validator("urls")
    @classmethod
    def _addresses(cls, value: Any) -> Any:
        named = [url for urls in value.values() for url in urls] if isinstance(value, dict) else list(value)
        if wrong := [url for url in named if not url.startswith(("http://", "https://"))]:
            raise ValueError(f"{wrong[0]!r} is not an address such as http://127.0.0.1:8100")
        if twice := [url for url in named if named.count(url) > 1]:
            raise ValueError(f"{twice[0]} is named twice; a server has one model")
        return value

    def urls_of(self, voices: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The servers of every model that plays; a plain list belongs to the only one."""
        if not isinstance(self.urls, dict):
            return {voice: self.urls if len(voices) == 1 else () for voice in voices}
        if unknown := [name for name in self.urls if name not in voices]:
            raise ValueError(f"engine.urls: {unknown[0]} plays nothing; those that play are {', '.join(voices)}")
        return {voice: self.urls.get(voice, ()) for voice in voices}


class ClusterChoice(Settings):
    """Who plays, on many machines. In YAML `cluster: 8` is short for `cluster: {players: 8}`. Needs turnwise[ray]."""

    players: int = Field(default=2, ge=1)
    """Processes that play episodes, on any machines of the Ray cluster."""
    address: str | None = None
    """Address of the cluster: host:port, or auto. None: RAY_ADDRESS if that is set, else Ray starts on this machine."""
    cpus: float = Field(default=1.0, gt=0)
    """CPUs that each player needs."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs that each player needs. With torch as the engine, a player samples from its own copy of the model."""
    at_once: int = Field(default=32, ge=1)
    """Episodes that one player plays at a time."""
    episode_seconds: float = Field(default=3600.0, gt=0)
    """A player that takes longer for one episode, or for new weights, is replaced."""
    start_seconds: float = Field(default=300.0, gt=0)
    """How long to wait while there is no player at all."""
    losses: int = Field(default=100, ge=0)
    """Lost players that are replaced before the run ends."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"players": value} if isinstance(value, int) and not isinstance(value, bool) else value
