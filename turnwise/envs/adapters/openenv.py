"""Environments of OpenEnv servers, by WebSocket: `make("openenv/127.0.0.1:8000")` while such a server runs there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from turnwise.envs.base import Env, Reset, Step
from turnwise.envs.faults import EpisodeError

_MOST_BYTES = 10_000_000
"""Of an answer."""
_SCHEMA_SECONDS = 30.0
_SHOWN = 400
_INVALID, _FULL = "VALIDATION_ERROR", "CAPACITY_REACHED"


class OpenEnv(Env):
    """One session of a server. Its rewards, its end and its words are the server's.

    The agent's text is the action's only text field, or else the one named by `action_field`; for an action with
    several fields the agent writes a JSON object. Of an observation the agent sees `observation_field`, or its only
    text, or all of it as JSON. A task is what `reset` of that environment takes, such as `{"index": 12}`.
    """

    execution = "thread"
    reward_range = (float("-inf"), float("inf"))

    def __init__(
        self,
        *,
        address: str,
        secure: bool = False,
        action_field: str = "",
        observation_field: str = "",
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        self._address, self._secure = address, secure
        self._action_field, self._observation_field = action_field, observation_field
        self._connection: ClientConnection | None = None

    async def reset(self, seed: int | None = None, task: Mapping[str, Any] | None = None) -> Reset:
        """Begin an episode; the session is opened with the first one."""
        super().reset(seed=seed)
        if task is not None and not isinstance(task, Mapping):
            raise ValueError(f"a task is what reset of {self._address} takes, such as {{'index': 3}}; got {task!r}")
        self._words = ["yes"]
        answer = await self._ask({"type": "reset", "data": {"seed": seed, **(task or {})}})
        return self._show(answer), {}

    async def step(self, action: str) -> Step:
        """Send the action; one that the server cannot read changes nothing."""
        try:
            answer = await self._ask({"type": "step", "data": self._read(action)})
        except _InvalidActionError as error:
            return f"invalid action : {error}", 0.0, False, False, {"valid": False}
        return self._show(answer), self._reward(answer), bool(answer.get("done")), False, {"valid": True}

    def sample_random_action(self) -> str:
        """A word of the last observation."""
        return self.rng.choice(self._words)

    def get_state(self) -> Mapping[str, Any]:
        """The state is the server's."""
        raise NotImplementedError("the state of the episode is at the server")

    async def close(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """End the session, which the server then forgets."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the server says to a message. If that fails, the session ends, and the next episode opens another."""
        try:
            return self._data(await self._exchange(message), message["type"])
        except _InvalidActionError:
            raise
        except BaseException:  # also a deadline's: an answer that comes late must not answer the next message
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.transport.abort()
            raise

    async def _exchange(self, message: Mapping[str, Any]) -> Any:
        try:
            if self._connection is None:
                scheme = "wss" if self._secure else "ws"
                self._connection = await connect(f"{scheme}://{self._address}/ws", max_size=_MOST_BYTES, proxy=None)
            with suppress(ConnectionClosed):  # a server that is full says so first and then closes
                await self._connection.send(json.dumps(message))
            return json.loads(await self._connection.recv())
        except (OSError, WebSocketException, ValueError, RecursionError) as error:
            raise EpisodeError(f"the OpenEnv server at {self._address} does not answer: {error}") from error

    def _data(self, answer: Any, asked: str) -> Mapping[str, Any]:
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise EpisodeError(f"the OpenEnv server at {self._address} answers with {_short(answer)}")
        if answer.get("type") == "error":
            text = _short(data.get("errors") or data.get("message"))
            if data.get("code") == _INVALID and asked == "step":
                raise _InvalidActionError(text)
            fix = "; raise its max_concurrent_envs or lower rollout.concurrency" if data.get("code") == _FULL else ""
            raise EpisodeError(f"the OpenEnv server at {self._address} says {data.get('code')}: {text}{fix}")
        if "observation" not in data:
            raise EpisodeError(f"the OpenEnv server at {self._address} answers with {_short(data)}")
        return data

    def _reward(self, answer: Mapping[str, Any]) -> float:
        reward = answer.get("reward")
        if not isinstance(reward, float | int | None):
            raise EpisodeError(f"the OpenEnv server at {self._address} pays {_short(reward)}, which is no number")
        return float(reward or 0.0)

    def _read(self, action: str) -> dict[str, Any]:
        text = action.encode("utf-8", "replace").decode("utf-8")
        if name := self._action_field or _only_text_field(self._address, self._secure):
            return {name: text}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise _InvalidActionError(f"write a JSON object with {_fields(self._address, self._secure)}")
        return value

    def _show(self, answer: Mapping[str, Any]) -> str:
        seen = answer.get("observation")
        seen = {name: value for name, value in seen.items() if name != "metadata"} if isinstance(seen, dict) else seen
        text = seen
        if isinstance(seen, dict):
            texts = [value for value in seen.values() if isinstance(value, str)]
            if self._observation_field:
                if self._observation_field not in seen:
                    raise EpisodeError(f"observation_field is {self._observation_field}; there are {', '.join(seen)}")
                text = seen[self._observation_field]
            elif len(texts) == len(seen) == 1:
                [text] = texts
        text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        self._words = text.split() or ["yes"]
        return text


class _InvalidActionError(Exception):
    """The server cannot read what the agent wrote."""


@cache
def _schema(address: str, secure: bool) -> dict[str, Any]:
    """The fields of an action; read once."""
    try:
        # Directly, as its WebSocket: a proxy of the environment's variables does not know this machine's addresses.
        ask = build_opener(ProxyHandler({})).open
        with ask(f"{'https' if secure else 'http'}://{address}/schema", timeout=_SCHEMA_SECONDS) as answer:
            schema = json.loads(answer.read(_MOST_BYTES))["action"]
        return {name: field for name, field in schema["properties"].items() if name != "metadata"}
    except (URLError, OSError, ValueError, LookupError, TypeError) as error:
        raise EpisodeError(f"{address} does not tell the schema of its actions ({error}); set action_field") from error


def _only_text_field(address: str, secure: bool) -> str:
    fields = _schema(address, secure)
    texts = [name for name, field in fields.items() if field.get("type") == "string"]
    return texts[0] if len(texts) == len(fields) == 1 else ""


def _fields(address: str, secure: bool) -> str:
    return ", ".join(f"{name} ({field.get('type', 'any')})" for name, field in _schema(address, secure).items())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
