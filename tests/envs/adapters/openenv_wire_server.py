"""The wire protocol of an OpenEnv server without its package: `python openenv_wire_server.py echo|move|one [PORT]`.

It prints its address, and plays what `openenv_server.py` plays. A few actions make it misbehave as servers do.
"""

import asyncio
import json
import os
import sys
import threading
from http import HTTPStatus

from pydantic import BaseModel, ConfigDict, ValidationError
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed


class Words(BaseModel):
    """An action with one text."""

    model_config = ConfigDict(extra="forbid")
    metadata: dict = {}
    text: str


class Move(BaseModel):
    """An action with two fields."""

    model_config = ConfigDict(extra="forbid")
    metadata: dict = {}
    direction: str
    steps: int = 1


FALSE_ANSWERS = {
    "not json": "{",
    "too deep": "[" * 100_000,
    "no object": "[]",
    "no observation": json.dumps({"type": "observation", "data": {"reward": 1.0}}),
    "no number": json.dumps({"type": "observation", "data": {"observation": {}, "reward": "much"}}),
    "too long": "x" * 10_000_001,
}
"""What it says to actions of these names."""


class Server:
    """Counts its sessions; `kind` is its environment."""

    def __init__(self, kind: str) -> None:
        self.action, self.most, self.sessions = Move if kind == "move" else Words, 1 if kind == "one" else 16, 0

    def tell(self, connection: ServerConnection, request):
        """What is asked for by HTTP."""
        if request.path == "/schema":
            return connection.respond(HTTPStatus.OK, json.dumps({"action": self.action.model_json_schema()}))
        if request.path == "/sessions":
            return connection.respond(HTTPStatus.OK, str(self.sessions))
        return None if request.path == "/ws" else connection.respond(HTTPStatus.NOT_FOUND, "")

    async def play(self, connection: ServerConnection) -> None:
        """One session."""
        if self.sessions >= self.most:
            return await connection.send(_error("CAPACITY_REACHED", f"{self.sessions} of {self.most} sessions"))
        self.sessions += 1
        try:
            session = Session(self.action)
            async for message in connection:
                await connection.send(await session.answer(json.loads(message)))
        except ConnectionClosed:
            pass
        finally:
            self.sessions -= 1


class Session:
    """Say the number backwards within three turns."""

    def __init__(self, action: type[Words | Move]) -> None:
        self.action, self.number, self.turns = action, "", 0

    async def answer(self, message) -> str:
        """To one message."""
        try:
            return await self._step(message["data"]) if message["type"] == "step" else self._reset(message["data"])
        except ValidationError as error:
            return _error("VALIDATION_ERROR", "Invalid message", errors=error.errors())
        except RuntimeError as error:
            return _error("EXECUTION_ERROR", str(error))

    def _reset(self, data) -> str:
        self.number, self.turns = str(data.get("number", 100 + (data.get("seed") or 0))), 0
        return _observation(f"say {self.number} backwards")

    async def _step(self, data) -> str:
        action = self.action.model_validate(data)
        self.turns += 1
        said = action.text if isinstance(action, Words) else f"{action.direction} {action.steps}"
        if said in FALSE_ANSWERS:
            return FALSE_ANSWERS[said]
        if said == "crash":
            raise RuntimeError("out of paper")
        if said == "die":
            os._exit(1)
        if said == "slowly":
            await asyncio.sleep(1.0)
        right = said in (self.number[::-1], "north 2")
        return _observation(f"you said {said}", reward=float(right), done=right or self.turns == 3)


def _observation(words: str, *, reward: float | None = None, done: bool = False) -> str:
    data = {"observation": {"metadata": {}, "words": words}, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


def _error(code: str, message: str, **more) -> str:
    return json.dumps({"type": "error", "data": {"message": message, "code": code, **more}})


async def main() -> None:
    """Serve until standard input is closed."""
    server = Server(sys.argv[1])
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    # It reads as long messages as uvicorn does.
    async with serve(server.play, "127.0.0.1", port, process_request=server.tell, max_size=1 << 24) as listening:
        threading.Thread(target=_end_with_starter, daemon=True).start()
        print(f"127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}", flush=True)
        await asyncio.get_running_loop().create_future()


def _end_with_starter() -> None:
    sys.stdin.read()  # until the test closes it, or is dead
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
