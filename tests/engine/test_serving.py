"""The engine behind the contract: many coroutines at once, failures alone, nothing left behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.engine.shapes import small_model
from turnwise.engine.contract import Completion, Finish, SamplingParams
from turnwise.engine.serving import EngineServer, EngineThread
from turnwise.engine.torch_engine import TorchEngine

PARAMS = SamplingParams(max_tokens=6)


def fresh() -> TorchEngine:
    return TorchEngine(small_model("llama"), memory_bytes=2**24)


async def episode(engine: EngineServer, number: int) -> list[int]:
    name = f"e{number}"
    first = await engine.generate(name, [1, 2, 3], PARAMS)
    await asyncio.sleep(0.001 * (number % 5))  # an environment that takes its time
    second = await engine.generate(name, [4, 5], PARAMS)
    engine.close(name)
    return [*first.ids, *second.ids]


def test_concurrent_episodes_get_the_tokens_they_would_get_alone() -> None:
    async def together() -> list[list[int]]:
        with EngineServer(fresh()) as engine:
            return await asyncio.gather(*(episode(engine, n) for n in range(40)))

    plain = fresh()
    expected = []
    for n in range(40):
        first = plain.run([(f"e{n}", [1, 2, 3], PARAMS)])[0]
        second = plain.run([(f"e{n}", [4, 5], PARAMS)])[0]
        expected.append([*first.ids, *second.ids])
    assert asyncio.run(together()) == expected


def test_a_bad_request_fails_alone() -> None:
    async def run() -> Completion:
        with EngineServer(fresh()) as engine:
            good = asyncio.create_task(engine.generate("good", [1, 2], PARAMS))
            with pytest.raises(ValueError, match="empty prompt"):
                await engine.generate("bad", [], PARAMS)
            return await good

    assert asyncio.run(run()).finish is Finish.MAX_TOKENS


def test_cancelling_a_call_closes_its_session_and_harms_nobody() -> None:
    async def run() -> tuple[Completion, dict[str, int]]:
        with EngineServer(fresh()) as engine:
            doomed = asyncio.create_task(engine.generate("doomed", [1, 2], SamplingParams(max_tokens=150)))
            await asyncio.sleep(0.02)
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
            return await engine.generate("doomed", [7], PARAMS), engine.counts()

    completion, counts = asyncio.run(run())
    # The name is free again: a new session of one prompt token.
    assert len(completion.ids) == 6
    assert counts["prefilled"] == 3


def test_publish_tags_what_follows() -> None:
    async def run() -> list[Completion]:
        with EngineServer(fresh()) as engine:
            before = await engine.generate("a", [1], PARAMS)
            engine.publish(None, 5)
            return [before, await engine.generate("a", [2], PARAMS)]

    before, after = asyncio.run(run())
    assert (set(before.versions), set(after.versions)) == ({0}, {5})


def test_engines_that_share_a_thread_pause_expect_and_end_together() -> None:
    async def run() -> tuple[bool, bool, list[Completion]]:
        thread = EngineThread()
        first, second = EngineServer(fresh(), thread=thread), EngineServer(fresh(), thread=thread)
        first.expect(2)
        waiting = [asyncio.create_task(first.generate("a", [1, 2], PARAMS))]
        await asyncio.sleep(0.05)
        early = waiting[0].done()
        waiting.append(asyncio.create_task(second.generate("b", [1, 2], PARAMS)))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        second.expect(None)
        completions = await asyncio.gather(*waiting)
        with second.paused():
            held = asyncio.create_task(first.generate("a", [1], PARAMS))
            await asyncio.sleep(0.05)
            through = held.done()
        completions.append(await held)
        first.shutdown()
        with pytest.raises(RuntimeError, match="the engine has stopped"):
            await second.generate("c", [1], PARAMS)
        return early, through, completions

    early, through, completions = asyncio.run(run())
    assert (early, through) == (False, False)
    alone = fresh().run([("a", [1, 2], PARAMS)])[0]
    assert list(completions[0].ids) == list(alone.ids)


def test_shutdown_ends_the_thread_and_later_calls_are_refused() -> None:
    others = set(threading.enumerate())
    server = EngineServer(fresh())
    assert set(threading.enumerate()) > others
    server.shutdown()
    assert set(threading.enumerate()) <= others
    with pytest.raises(RuntimeError, match="the engine has stopped"):
        asyncio.run(server.generate("a", [1], PARAMS))


def test_a_request_that_was_cancelled_before_it_was_read_harms_nobody() -> None:
    async def run() -> Completion:
        engine = EngineServer(fresh())
        with engine.paused():
            gone = asyncio.create_task(engine.generate("gone", [], PARAMS))
            await asyncio.sleep(0.01)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            later = asyncio.create_task(engine.generate("later", [1], PARAMS))
            await asyncio.sleep(0.01)
        return await later

    assert len(asyncio.run(run()).ids) == 6


def test_nothing_is_sampled_while_the_engine_is_paused() -> None:
    async def run() -> tuple[bool, Completion]:
        with EngineServer(fresh()) as engine:
            with engine.paused():
                waiting = asyncio.create_task(engine.generate("a", [1, 2], PARAMS))
                await asyncio.sleep(0.05)
                early = waiting.done()
            return early, await waiting

    early, completion = asyncio.run(run())
    assert not early
    assert len(completion.ids) == 6


def test_requests_still_waiting_at_shutdown_fail() -> None:
    async def run() -> None:
        engine = EngineServer(fresh())
        waiting = asyncio.create_task(engine.generate("a", [1], SamplingParams(max_tokens=150)))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.shutdown)
        engine.close("a")
        with pytest.raises(RuntimeError, match="the engine has stopped"):
            await waiting

    asyncio.run(run())
