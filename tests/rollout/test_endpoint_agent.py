"""Chat models behind a real HTTP server as agents, with functions and without."""

import pytest

from tests.rollout.planner_server import planner
from turnwise.chat_endpoint import ChatEndpoint
from turnwise.rollout.endpoint_agent import EndpointAgent
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import Scheduler
from turnwise.types import StopReason, Trajectory
from turnwise.waiting import finish


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


def play(url: str, protocol: str, *, episodes: int = 4, tries: int = 1) -> list[Trajectory]:
    agent = EndpointAgent(ChatEndpoint(url, model="planner", tries=tries))
    specs = [EpisodeSpec(env="plans/order", kwargs={"protocol": protocol}, seed=seed) for seed in range(episodes)]

    async def run() -> list[Trajectory]:
        async with Scheduler(concurrency=2) as scheduler:
            return await scheduler.run(specs, agent)

    return finish(run())


@pytest.mark.parametrize("protocol", ["api", "react"])
def test_a_planner_behind_an_address_satisfies_every_request(protocol: str):
    with planner() as server:
        assert all(each.success for each in play(server.url, protocol))
        assert ("tools" in server.asked[0]) == (protocol == "api")


def test_several_calls_of_one_answer_are_made_one_after_the_other_without_asking_again():
    with planner(at_once=True) as server:
        (played,) = play(server.url, "api", episodes=1)
        assert (played.success, len(server.asked)) == (True, 1)
        assert len(played.turns) > 2


def test_results_of_calls_go_back_as_messages_of_the_tool():
    with planner() as server:
        play(server.url, "api", episodes=1)
        messages = server.asked[-1]["messages"]
    assert [message["role"] for message in messages[:4]] == ["user", "assistant", "tool", "assistant"]
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
    assert messages[2]["content"].endswith(" done")


def test_a_malformed_call_is_answered_and_ends_nothing():
    with planner() as server:
        plan = server.answer

        def answer(body: dict) -> dict:
            if len(server.asked) == 0:
                server.asked.append(body)
                return {"content": "", "tool_calls": [{"id": "1", "function": {"name": 7}}]}
            first = {**body, "messages": [body["messages"][0], *body["messages"][3:]]}
            return plan(first)

        server.answer = answer
        (played,) = play(server.url, "api", episodes=1)
    assert played.success
    assert not played.turns[0].valid


def test_an_address_without_an_answer_ends_the_episode_with_the_reason():
    with planner() as server:
        url = server.url
    (played,) = play(url, "api", episodes=1)
    assert played.stop is StopReason.ENV_ERROR
