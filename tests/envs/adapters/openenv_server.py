"""A small OpenEnv server on a free port: `python openenv_server.py echo|move|one` prints its address."""

import asyncio
import os
import socket
import sys
import threading

import uvicorn
from openenv.core.env_server import (  # pyright: ignore[reportMissingImports]
    Action,
    Environment,
    Observation,
    State,
    create_fastapi_app,
)


class Words(Action):
    """An action with one text."""

    text: str


class Move(Action):
    """An action with two fields."""

    direction: str
    steps: int = 1


class Seen(Observation):
    """What the agent sees."""

    words: str = ""


class Echo(Environment):
    """Say the number backwards within three turns."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.number, self.turns = "", 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        """Begin."""
        self.number, self.turns = str(kwargs.get("number", 100 + (seed or 0))), 0
        return Seen(words=f"say {self.number} backwards")

    def step(self, action, timeout_s=None, **kwargs):
        """Judge."""
        self.turns += 1
        said = action.text if isinstance(action, Words) else f"{action.direction} {action.steps}"
        if said == "crash":
            raise RuntimeError("out of paper")
        right = said in (self.number[::-1], "north 2")
        return Seen(words=f"you said {said}", reward=float(right), done=right or self.turns == 3)

    @property
    def state(self):
        """Nothing to tell."""
        return State(step_count=self.turns)


def main() -> None:
    """Serve until standard input is closed."""
    listener = socket.create_server(("127.0.0.1", 0))
    most = 1 if sys.argv[1] == "one" else 16
    app = create_fastapi_app(Echo, Move if sys.argv[1] == "move" else Words, Seen, max_concurrent_envs=most)
    threading.Thread(target=_end_with_starter, daemon=True).start()
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off")).serve(sockets=[listener]))


def _end_with_starter() -> None:
    sys.stdin.read()  # until the test closes it, or is dead
    os._exit(0)


if __name__ == "__main__":
    main()
