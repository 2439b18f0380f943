"""The built-in engine over HTTP, in the form of vLLM's routes, so that one client serves both.

Sessions are named by the header X-Session-ID. A request always has the whole sequence: if it extends what the server
holds of that session, only its new tokens are run; otherwise the session starts afresh.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from transformers import PreTrainedModel

from turnwise.connected import ClientLeftError, while_connected
from turnwise.doorkeeping import is_token, names_loopback
from turnwise.engine.bodies import (
    AdapterBody,
    ExpectBody,
    FromTrainer,
    GenerateBody,
    Nothing,
    ResetBody,
    RpcBody,
    VersionBody,
)
from turnwise.engine.contract import Completion, Finish
from turnwise.engine.probing import logprobs_of
from turnwise.engine.reloading import Reloader
from turnwise.engine.serving import EngineServer
from turnwise.engine.torch_engine import TorchEngine

MAX_BODY = 16 * 2**20
"""Bytes of a request; a million tokens need half of it."""
MAX_OPEN, MAX_SESSIONS = 4096, 65536
"""Requests that wait at once, and sessions that are remembered; the longest unused is forgotten."""
_UNPUBLISHED = -1
"""The version of the weights that the server was started with: no trainer publishes it."""
_FINISH = {Finish.STOP: "stop", Finish.CANCELLED: "abort"}
Body = TypeVar("Body", bound=BaseModel)


class _StrangerError(ValueError):
    """Lock-step with a trainer that this server does not know."""


class Served:
    """The application: `uvicorn.run(Served(engine, model, name="nano", root=Path("runs")).app)`."""

    def __init__(
        self, engine: TorchEngine, model: PreTrainedModel, *, name: str, root: Path | None = None, token: str = ""
    ) -> None:
        self._engine, self._model, self._name, self._token = EngineServer(engine), model, name, token
        self._capacity, self._root = engine.capacity, None if root is None else root.resolve()
        self._reloader, self._adapters = Reloader(model), {name}
        self._eos = _eos_of(model)
        self._clears, self._is_paused, self._open = False, False, 0
        engine.version = _UNPUBLISHED
        self._version = str(_UNPUBLISHED)
        self._sessions = OrderedDict[str, None]()
        self._run = ""
        post = self._post
        routes = [
            post("/inference/v1/generate", GenerateBody, self._generate),
            post("/pause", Nothing, self._pause),
            post("/resume", Nothing, self._resume),
            post("/collective_rpc", RpcBody, self._call),
            post("/update_weight_version", VersionBody, self._set_version),
            post("/v1/load_lora_adapter", AdapterBody, self._load_adapter),
            post("/turnwise/expect", ExpectBody, self._expect),
            post("/turnwise/close", ResetBody, self._reset),
            *(Route(path, self._answer(path), methods=["GET"]) for path in self._facts()),
        ]
        self.app = Starlette(routes=routes)

    @property
    def engine(self) -> EngineServer:
        """The engine, for applications that offer more of it than tokens."""
        return self._engine

    def shutdown(self) -> None:
        """End the engine; requests that still wait fail."""
        self._engine.shutdown()

    # Requests: who may ask, how much, and in which order.

    def _facts(self) -> dict[str, Callable[[], dict[str, Any]]]:
        model = {"id": self._name, "object": "model", "max_model_len": self._capacity, "owned_by": "turnwise"}
        return {
            "/health": lambda: {"status": "ok"},
            "/is_paused": lambda: {"is_paused": self._is_paused},
            "/weight_info": lambda: {"weight_version": self._version},
            "/v1/models": lambda: {"object": "list", "data": [model]},
        }

    def _answer(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return self._refusal(request) or _json(self._facts()[path]())

        return answer

    def _post(self, path: str, kind: type[Body], work: Callable[[Request, Body], Awaitable[dict[str, Any]]]) -> Route:
        async def answer(request: Request) -> Response:
            if (refusal := self._refusal(request)) is not None:
                return refusal
            content = await _read(request)
            if content is None:
                return _problem(413, f"a request may have {MAX_BODY:,} bytes")
            try:
                done = work(request, kind.model_validate_json(content or b"{}"))
                return _json(await while_connected(request.receive, done))
            except ClientLeftError:
                return _problem(499, "the client has left")  # nobody reads it
            except ValidationError as error:
                return _problem(400, "; ".join(f"{each['loc']}: {each['msg']}" for each in error.errors()[:3]))
            except _StrangerError as error:
                return _problem(409, str(error))
            except (ValueError, KeyError) as error:  # what the request asks for cannot be done
                return _problem(400, str(error))
            except RuntimeError as error:  # the engine has stopped
                return _problem(503, str(error))

        return Route(path, answer, methods=["POST"])

    def _refusal(self, request: Request) -> Response | None:
        """Web pages must not reach a server on this machine, nor anybody without the token."""
        if "origin" in request.headers:
            return _problem(403, "browsers are not answered")
        if self._token:
            if not is_token(request.headers.get("authorization", ""), f"Bearer {self._token}"):
                return _problem(401, "give the server's token as Authorization: Bearer TOKEN")
        elif not names_loopback(request.headers.get("host", "")):
            return _problem(403, "a server without a token answers this machine only")
        return _problem(503, "too many requests wait") if self._open >= MAX_OPEN else None

    def _require_run(self, body: FromTrainer) -> None:
        """In lock-step the requests of one trainer are counted; a restarted server has never heard of it."""
        if body.run is not None and body.run != self._run:
            raise _StrangerError("it waits for another trainer, or was restarted; it must be published to first")

    # Tokens.

    async def _generate(self, request: Request, body: GenerateBody) -> dict[str, Any]:
        if body.model is not None and body.model not in self._adapters:
            raise ValueError(f"there is no model {body.model!r} here")
        self._require_run(body)
        params, named = body.sampling_params.params(self._eos), request.headers.get("x-session-id", "")
        seed = body.sampling_params.seed
        prompt = None
        if body.sampling_params.prompt_logprobs is not None:
            prompt = await asyncio.wrap_future(self._engine.between_steps(lambda _: self._score(body.token_ids)))
        session = named or f"once:{secrets.token_hex(8)}"
        self._open += 1
        try:
            self._close(body.close)
            answer = self._engine.generate_whole(
                session, body.token_ids, params, seed=secrets.randbits(63) if seed is None else seed
            )
            self._remember(session)
            completion = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self._close([session])
            raise
        finally:
            self._open -= 1
        if not named:
            self._close([session])
        return {"choices": [_choice(completion)], **({} if prompt is None else {"prompt_logprobs": prompt})}

    def _score(self, ids: list[int]) -> list[dict[str, Any] | None]:
        if len(ids) > self._capacity:
            raise ValueError(f"{len(ids)} tokens are more than the server's {self._capacity}")
        if not all(0 <= token < int(self._model.config.get_text_config().vocab_size) for token in ids):
            raise ValueError("an id is outside the vocabulary")
        found = logprobs_of(self._model, ids)
        return [None, *({str(token): {"logprob": value}} for token, value in zip(ids[1:], found, strict=True))]

    def _remember(self, session: str) -> None:
        self._sessions[session] = None
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._close([next(iter(self._sessions))])

    def _close(self, sessions: Sequence[str]) -> None:
        for session in sessions:
            self._sessions.pop(session, None)
            self._engine.close(session)

    async def _expect(self, request: Request, body: ExpectBody) -> dict[str, Any]:
        self._require_run(body)
        self._close(body.close)
        self._engine.expect(body.requests)
        return {}

    async def _reset(self, request: Request, body: ResetBody) -> dict[str, Any]:
        """A trainer begins: nothing of an earlier one remains."""
        self._run = body.run
        self._engine.expect(None)
        self._sessions.clear()
        await asyncio.wrap_future(self._engine.between_steps(TorchEngine.clear))
        return {}

    # Weights.

    async def _pause(self, request: Request, body: Nothing) -> dict[str, Any]:
        if (mode := request.query_params.get("mode", "keep")) != "keep":
            raise ValueError(f"mode is {mode!r}; this server can only keep requests")
        self._clears = request.query_params.get("clear_cache", "true") != "false"
        await asyncio.to_thread(self._engine.hold, True)
        self._is_paused = True
        return {"status": "paused"}

    async def _resume(self, request: Request, body: Nothing) -> dict[str, Any]:
        await asyncio.to_thread(self._engine.hold, False)
        self._is_paused = False
        return {"status": "resumed"}

    async def _call(self, request: Request, body: RpcBody) -> dict[str, Any]:
        if body.method != "reload_weights":
            raise ValueError(f"method is {body.method!r}; this server knows reload_weights")
        folder = self._below_root(str(body.kwargs["weights_path"]))
        await asyncio.wrap_future(self._engine.between_steps(lambda _: self._reloader.load(folder)))
        return {"results": [None]}

    async def _load_adapter(self, request: Request, body: AdapterBody) -> dict[str, Any]:
        folder = self._below_root(body.lora_path)
        await asyncio.wrap_future(self._engine.between_steps(lambda _: self._reloader.load_adapter(folder)))
        self._adapters.add(body.lora_name)
        return {"status": "loaded"}

    async def _set_version(self, request: Request, body: VersionBody) -> dict[str, Any]:
        version, clears = int(body.new_version), self._clears
        await asyncio.wrap_future(self._engine.between_steps(lambda e: e.publish(version, recompute=clears)))
        self._version = body.new_version
        return {"weight_version": body.new_version}

    def _below_root(self, path: str) -> Path:
        if self._root is None:
            raise ValueError("this server was started without --root, so it loads no weights")
        folder = Path(path).resolve()
        if not folder.is_relative_to(self._root) or not folder.is_dir():
            raise ValueError(f"{path} is not a folder below the server's --root {self._root}")
        return folder


def _choice(completion: Completion) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"token_id": token, "logprob": logprob}
        for token, logprob in zip(completion.ids, completion.logprobs, strict=True)
    ]
    for entry, top in zip(content, completion.top, strict=False):
        entry["top_logprobs"] = [{"token_id": token, "logprob": logprob} for token, logprob in top]
    return {
        "index": 0,
        "token_ids": list(completion.ids),
        "logprobs": {"content": content},
        "finish_reason": _FINISH.get(completion.finish, "length"),
        "weight_versions": _spans(completion.versions),
        "oldest_version": completion.oldest_version,
    }


def _spans(versions: Sequence[int]) -> list[dict[str, Any]]:
    """Per-token versions as runs: `[{version: "3", start: 0, end: 17}]`."""
    spans: list[dict[str, Any]] = []
    for place, version in enumerate(versions):
        if not spans or spans[-1]["version"] != str(version):
            spans.append({"version": str(version), "start": place})
        spans[-1]["end"] = place + 1
    return spans


def _eos_of(model: PreTrainedModel) -> list[int]:
    found = getattr(model.generation_config, "eos_token_id", None)
    return [found] if isinstance(found, int) else list(found or ())


async def _read(request: Request) -> bytes | None:
    """The body; None if it is too long."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY:
            return None
    return bytes(content)


def _json(content: dict[str, Any]) -> Response:
    return Response(json.dumps(content, separators=(",", ":")), media_type="application/json")


def _problem(status: int, message: str) -> Response:
    content = json.dumps({"error": {"message": message, "code": status}})
    return Response(content, status_code=status, media_type="application/json")
