"""An engine in another process: the same tokens, sessions that move, and weights that are proven."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engine.local_servers import GENERATE, learner, local_server, remote_engine
from turnwise.engine.contract import Completion, Finish, SamplingParams
from turnwise.engine.remote import RemoteEngine
from turnwise.engine.serving import EngineServer
from turnwise.engine.torch_engine import TorchEngine

PARAMS = SamplingParams(max_tokens=6, stop_ids=(3, 4))


async def converse(engine: Any, name: str) -> list[Completion]:
    first = await engine.generate(name, [1, 2, 3, len(name)], PARAMS)
    second = await engine.generate(name, [5, 6], PARAMS)
    engine.close(name)
    return [first, second]


async def together(engine: Any, count: int) -> list[list[Completion]]:
    return await asyncio.gather(*(converse(engine, f"e{number}") for number in range(count)))


def test_tokens_and_logprobs_are_those_of_the_engine_in_this_process(tmp_path: Path) -> None:
    with EngineServer(TorchEngine(learner(), memory_bytes=2**24)) as engine:
        expected = asyncio.run(together(engine, 12))
    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        engine.publish(None, 3)
        found = asyncio.run(together(engine, 12))
    for one, other in zip(found, expected, strict=True):
        assert [turn.ids for turn in one] == [turn.ids for turn in other]
        assert [turn.finish for turn in one] == [turn.finish for turn in other]
        for turn, same in zip(one, other, strict=True):
            assert turn.logprobs == pytest.approx(same.logprobs, abs=1e-4)  # other batches round differently
            assert set(turn.versions) == {3}


def test_a_turn_runs_only_its_new_tokens_and_a_closed_session_is_forgotten(tmp_path: Path) -> None:
    async def run(engine: RemoteEngine) -> None:
        first = await engine.generate("a", [1, 2, 3], SamplingParams(max_tokens=4))
        counts = dict(server.served._engine.counts())
        await engine.generate("a", [7, 8], SamplingParams(max_tokens=4))
        assert server.served._engine.counts()["prefilled"] - counts["prefilled"] == 3  # with the last sampled token
        assert server.unruly.requests[-1]["token_ids"] == [1, 2, 3, *first.ids, 7, 8]
        engine.close("a")
        await engine.generate("b", [1], SamplingParams(max_tokens=1))
        assert list(server.served._sessions) == ["b"]

    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        engine.publish(None, 0)
        asyncio.run(run(engine))


def test_a_full_context_ends_a_session_as_in_this_process(tmp_path: Path) -> None:
    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url, capacity=40) as engine:
        engine.publish(None, 0)
        cut = asyncio.run(engine.generate("a", [1] * 35, SamplingParams(max_tokens=16)))
        assert (len(cut.ids), cut.finish) == (5, Finish.CONTEXT_FULL)
        over = asyncio.run(engine.generate("b", [1] * 40, SamplingParams(max_tokens=16)))
        assert (list(over.ids), over.finish) == ([], Finish.CONTEXT_FULL)
        whole = asyncio.run(engine.generate("c", [1] * 35, SamplingParams(max_tokens=5)))
        assert whole.finish is Finish.MAX_TOKENS


def test_truncation_bans_and_likely_tokens_travel(tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=3, top_k=2, top_p=0.9, min_p=0.01, bad_ids=(5, 9), top_logprobs=2)
    with EngineServer(TorchEngine(learner(), memory_bytes=2**24)) as engine:
        expected = asyncio.run(engine.generate("a", [1, 2], params))
    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        engine.publish(None, 0)
        found = asyncio.run(engine.generate("a", [1, 2], params))
    assert found.ids == expected.ids
    assert [[token for token, _ in top] for top in found.top] == [[token for token, _ in top] for top in expected.top]


def test_lockstep_takes_requests_up_in_the_order_of_their_names(tmp_path: Path) -> None:
    """As many sessions as are expected, whatever the order in which they come."""

    async def run(engine: Any, names: list[str]) -> dict[str, list[float]]:
        engine.expect(len(names))
        tasks = {name: asyncio.create_task(engine.generate(name, [1, 2, len(name)], PARAMS)) for name in names}
        answers = {name: list((await task).logprobs) for name, task in tasks.items()}
        for name in names:
            engine.close(name)
        engine.expect(None)
        return dict(sorted(answers.items()))

    names = ["a", "bb", "ccc", "dddd", "eeeee"]
    with EngineServer(TorchEngine(learner(), memory_bytes=2**24)) as engine:
        expected = asyncio.run(run(engine, names))
    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        assert engine.lockstep
        engine.publish(None, 0)
        assert asyncio.run(run(engine, names[::-1])) == expected  # to the bit
        assert asyncio.run(run(engine, names)) == expected
        assert server.unruly.paths.count(GENERATE) == 11  # and the probe


def test_no_request_overtakes_the_number_that_lockstep_expects(tmp_path: Path) -> None:
    """Otherwise the server would sample the first ones without the others, and in another batch."""

    async def run(engine: RemoteEngine) -> None:
        engine.expect(2)
        await asyncio.gather(*(engine.generate(name, [1, 2], PARAMS) for name in "ab"))
        engine.expect(None)

    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        engine.publish(None, 0)
        server.unruly.paths.clear()
        server.unruly.delays["/turnwise/expect"] = 0.3
        asyncio.run(run(engine))
        assert server.unruly.paths[:3] == ["/turnwise/expect", GENERATE, GENERATE]


def test_a_cancelled_call_closes_its_session(tmp_path: Path) -> None:
    async def run(engine: RemoteEngine) -> None:
        doomed = asyncio.create_task(engine.generate("doomed", [1, 2], SamplingParams(max_tokens=150)))
        await asyncio.sleep(0.05)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        again = await engine.generate("doomed", [7], PARAMS)
        assert again.ids
        assert server.unruly.requests[-1]["token_ids"] == [7]

    with local_server(tmp_path) as server, remote_engine(tmp_path / "published", server.url) as engine:
        engine.publish(None, 0)
        asyncio.run(run(engine))
