"""Answers requests of any dialect, whole or token by token."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from turnwise.dialects.asgi import RefusedError, Send, end_stream, send_json, send_part, start_stream
from turnwise.dialects.dialect import KEEP_ALIVE, Answered, Asked, Dialect, Scored
from turnwise.engine.contract import Completion
from turnwise.serve.chat_model import ChatModel, Continued
from turnwise.serve.growing_answer import GrowingAnswer, score, score_all
from turnwise.serve.service_metrics import ServiceMetrics

_ALIVE_SECONDS = 5.0
_Heard = tuple[int, float, Sequence[tuple[int, float]]]
"""A token, its log-prob, and the likeliest tokens in its place."""


class Answering:
    """One request: `await Answering(model, metrics, dialect, asked, id="1f").answer(send)`."""

    def __init__(self, model: ChatModel, metrics: ServiceMetrics, dialect: Dialect, asked: Asked, *, id: str) -> None:
        self._model, self._metrics, self._dialect, self._asked, self._id = model, metrics, dialect, asked, id
        self._began, self._created, self._has_tokens = time.perf_counter(), int(time.time()), False

    async def answer(self, send: Send) -> None:
        """Sample and send; a cancelled request leaves nothing in the engine."""
        prompts = await self._model.render(self._asked)
        answers = self._model.continued(self._asked, prompts, id=self._id)
        self._metrics.prompt_tokens += sum(map(len, prompts))
        if self._asked.stream:
            return await self._stream(answers, send)
        sampled = await _all([self._model.sample(self._asked, each) for each in answers])
        whole = [self._whole(one, completion) for one, completion in zip(answers, sampled, strict=True)]
        await send_json(send, 200, self._dialect.write(self._asked, *whole, id=self._id, created=self._created))

    def _whole(self, one: Continued, completion: Completion) -> Answered:
        self._metrics.completion_tokens += len(completion.ids)
        renderer = self._model.renderer
        scored = () if self._asked.logprobs is None else score_all(renderer, completion)
        return GrowingAnswer(self._asked, renderer).whole(completion, one.prompt_ids, scored)

    async def _stream(self, answers: Sequence[Continued], send: Send) -> None:
        writer = self._dialect.stream(self._asked, id=self._id, created=self._created)
        growing = [GrowingAnswer(self._asked, self._model.renderer) for _ in answers]
        tokens = _Tokens()
        sampling = asyncio.ensure_future(
            _all([self._model.sample(self._asked, one, partial(tokens.push, one.choice)) for one in answers])
        )
        sampling.add_done_callback(lambda _: tokens.wake())
        begun = False
        try:
            async for new in tokens.until(sampling):
                if not begun:
                    begun = True
                    await start_stream(send)
                    await send_part(send, writer.begin())
                self._note_first(new)
                written = "" if new else KEEP_ALIVE
                for choice, heard in new.items():
                    part = growing[choice].push([self._scored(each) for each in heard])
                    written += writer.delta(
                        part.text, reasoning=part.reasoning, choice=choice, ids=part.ids, logprobs=part.logprobs
                    )
                await send_part(send, written)
            sampled = await sampling
            whole = [self._whole(one, completion) for one, completion in zip(answers, sampled, strict=True)]
        except RefusedError as refusal:
            if not begun:
                raise
            await send_part(send, writer.fail(refusal.status, str(refusal)))
        else:
            await send_part(send, writer.end(*whole))
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sampling
        await end_stream(send)

    def _note_first(self, new: Mapping[int, object]) -> None:
        if new and not self._has_tokens:
            self._has_tokens = True
            self._metrics.first_token_seconds.add(time.perf_counter() - self._began)

    def _scored(self, heard: _Heard) -> Scored:
        if self._asked.logprobs is None:
            return Scored(id=heard[0], text="", logprob=heard[1])
        return score(self._model.renderer, *heard)


class _Tokens:
    """Tokens on their way from the engine's thread to the event loop."""

    def __init__(self) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._heard = deque[tuple[int, _Heard]]()

    def push(self, choice: int, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> None:
        """Called by the engine's thread."""
        self._heard.append((choice, (token, logprob, top)))
        with suppress(RuntimeError):  # the loop has ended, and with it everybody who listens
            self._loop.call_soon_threadsafe(self._news.set)

    def wake(self) -> None:
        """Nothing more will come."""
        self._news.set()

    async def until(self, sampling: asyncio.Future[list[Completion]]) -> AsyncIterator[dict[int, list[_Heard]]]:
        """New tokens by answer, until sampling is over; nothing for a while is an empty dictionary."""
        while True:
            over = sampling.done()
            self._news.clear()
            new: dict[int, list[_Heard]] = {}
            while self._heard:
                choice, heard = self._heard.popleft()
                new.setdefault(choice, []).append(heard)
            if new:
                yield new
            if over:
                return
            try:
                await asyncio.wait_for(self._news.wait(), _ALIVE_SECONDS)
            except TimeoutError:
                yield {}


async def _all(work: Sequence[Coroutine[Any, Any, Completion]]) -> list[Completion]:
    """All results; the first failure ends the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
