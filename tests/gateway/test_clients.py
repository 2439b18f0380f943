"""Programs with the real clients of OpenAI and Anthropic, over the real server."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.gateway.served_agent import CALL, Sayer, play, play_with
from turnwise.types import StopReason

openai = pytest.importorskip("openai", reason="needs the openai client")
anthropic = pytest.importorskip("anthropic", reason="needs the anthropic client")
pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "number"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "search", "description": "Find.", "parameters": PARAMETERS}}
MESSAGES_TOOL = {"name": "search", "description": "Find.", "input_schema": PARAMETERS}
QUESTION = {"role": "user", "content": "where is mahis ?"}
SAID = ["I look it up.", "benin"]


@pytest.fixture(scope="module")
def connections():
    with httpx.Client(verify=False) as pool:
        yield pool


@pytest.fixture(scope="module")
def clients():
    """One pool for all clients of a kind, because each of them loads all certificates of the web."""
    with openai.DefaultHttpxClient() as ours, anthropic.DefaultHttpxClient() as theirs:
        yield SimpleNamespace(
            openai=lambda base_url, api_key: openai.OpenAI(base_url=base_url, api_key=api_key, http_client=ours),
            anthropic=lambda base_url, api_key: anthropic.Anthropic(
                base_url=base_url, api_key=api_key, http_client=theirs
            ),
        )


def sequences(trajectory):
    """The numbers of the calls of each sequence."""
    found = []
    for turn in trajectory.turns:
        found += [[]] if turn.restarts or not found else []
        found[-1].append(turn.call["number"])
    return found


def test_chat_with_tools_is_one_sequence_and_its_reward_is_on_the_last_turn(clients):
    def run(task, base_url, api_key):
        client, messages = clients.openai(base_url, api_key), [QUESTION]
        first = client.chat.completions.create(model="any", messages=messages, tools=[CHAT_TOOL]).choices[0]
        assert first.finish_reason == "tool_calls"
        call = first.message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("search", {"query": "mahis", "limit": 2})
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "mahis : city in benin"}]
        last = client.chat.completions.create(model="any", messages=messages, tools=[CHAT_TOOL])
        assert last.usage.prompt_tokens_details.cached_tokens > 0
        return {
            "reward": 0.5,
            "success": last.choices[0].message.content == "benin",
            "parts": {"right": 0.25, "format": 0.25},
        }

    trajectory = play(run, SAID[0] + CALL, SAID[1])
    assert trajectory.stop is StopReason.DONE
    assert sequences(trajectory) == [[0, 1]]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.5]
    assert trajectory.success
    assert trajectory.turns[1].observation == "mahis : city in benin"


def test_responses_with_tools_is_one_sequence(clients):
    def run(task, base_url, api_key):
        client, items = clients.openai(base_url, api_key), [QUESTION]
        tool = {"type": "function", **CHAT_TOOL["function"]}
        first = client.responses.create(model="any", input=items, instructions="Be short.", tools=[tool])
        call = next(item for item in first.output if item.type == "function_call")
        items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "in benin"}]
        last = client.responses.create(model="any", input=items, instructions="Be short.", tools=[tool])
        return float(last.output_text == "benin")

    trajectory = play(run, SAID[0] + CALL, SAID[1])
    assert (sequences(trajectory), trajectory.reward) == ([[0, 1]], 1.0)


def test_messages_with_tools_is_one_sequence_and_tokens_are_counted_without_a_call(clients):
    def run(task, base_url, api_key):
        client, messages = clients.anthropic(base_url, api_key), [QUESTION]
        assert client.messages.count_tokens(model="any", messages=messages).input_tokens > 0
        asked = {"model": "any", "max_tokens": 100, "system": "Be short.", "tools": [MESSAGES_TOOL]}
        first = client.messages.create(messages=messages, **asked)
        assert first.stop_reason == "tool_use"
        use = next(block for block in first.content if block.type == "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "in benin"}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        return float(client.messages.create(messages=messages, **asked).content[0].text == "benin")

    trajectory = play(run, SAID[0] + CALL, SAID[1])
    assert (sequences(trajectory), trajectory.reward) == ([[0, 1]], 1.0)


def test_streams_are_replayed_in_each_format(clients):
    def run(task, base_url, api_key):
        ours, theirs = clients.openai(base_url, api_key), clients.anthropic(base_url, api_key)
        chunks = ours.chat.completions.create(model="any", messages=[QUESTION], stream=True)
        chat = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        with ours.responses.stream(model="any", input="where ?") as stream:
            responses = stream.get_final_response().output_text
        with theirs.messages.stream(model="any", max_tokens=99, messages=[QUESTION]) as stream:
            messages = stream.get_final_text()
        assert [chat, responses, messages] == ["one", "two", "three"]
        return 1.0

    trajectory = play(run, "one", "two", "three")
    assert (len(trajectory.turns), trajectory.reward) == (3, 1.0)


def test_a_retry_gets_the_answer_of_the_first_attempt_and_is_not_sampled_again(connections):
    def run(task, base_url, api_key):
        def post(**headers):
            head = {"authorization": f"Bearer {api_key}", **headers}
            answer = connections.post(f"{base_url}/chat/completions", json=body, headers=head)
            return answer.json()["choices"][0]["message"]["content"]

        body = {"model": "any", "messages": [QUESTION]}
        first, again = post(), post(**{"x-stainless-retry-count": "1"})
        keyed = [post(**{"idempotency-key": "a"}) for _ in range(2)]
        assert (first, again, keyed, post()) == ("one", "one", ["two", "two"], "three")
        return 1.0

    engine = Sayer(["one", "two", "three", "four"])
    [trajectory] = play_with(engine, run)
    assert (len(trajectory.turns), len(engine.asked), trajectory.reward) == (3, 3, 1.0)
    assert trajectory.info["retried_calls"] == 2


def test_a_client_that_times_out_and_tries_again_gets_one_answer(clients):
    """The real client's own retry: the policy is slower than its patience."""

    def run(task, base_url, api_key):
        client = clients.openai(base_url, api_key).with_options(timeout=0.3, max_retries=40)
        return float(client.chat.completions.create(model="any", messages=[QUESTION]).choices[0].message.content == "x")

    class Slow(Sayer):
        async def generate(self, session, new_ids, params):
            import asyncio

            await asyncio.sleep(1.0)
            return await super().generate(session, new_ids, params)

    engine = Slow(["x", "y"])
    [trajectory] = play_with(engine, run)
    assert (len(engine.asked), trajectory.reward) == (1, 1.0)
    assert trajectory.info["retried_calls"] >= 1


def test_looking_around_is_answered_and_not_recorded(clients, connections):
    def run(task, base_url, api_key):
        client = clients.openai(base_url, api_key)
        assert [model.id for model in client.models.list()] == ["policy"]
        assert client.models.retrieve("any").id == "policy"
        assert connections.get(f"{base_url}/files").status_code == 404
        client.chat.completions.create(model="any", messages=[QUESTION])
        return 1.0

    assert len(play(run).turns) == 1


def test_parallel_calls_and_sub_agents_are_sequences_of_one_trajectory(clients):
    def run(task, base_url, api_key):
        client = clients.openai(base_url, api_key)

        def ask(messages):
            said = client.chat.completions.create(model="any", messages=messages).choices[0].message.content
            return [*messages, {"role": "assistant", "content": said}]

        main = ask([QUESTION])
        threads = [threading.Thread(target=ask, args=([{"role": "user", "content": f"part {n}"}],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ask([*main, {"role": "user", "content": "all parts are done"}])
        return 1.0

    engine = Sayer(["yes"])
    [trajectory] = play_with(engine, run)
    # The main conversation ends last, so it is the last sequence and has the reward.
    assert sequences(trajectory) == [[1], [2], [3], [4], [0, 5]]
    assert [turn.reward for turn in trajectory.turns] == [0.0] * 5 + [1.0]
    assert not engine.sessions  # all are closed


def test_a_compacted_history_opens_a_sequence_and_goes_on_there(clients):
    def run(task, base_url, api_key):
        client = clients.openai(base_url, api_key)

        def ask(*messages):
            said = client.chat.completions.create(model="any", messages=messages).choices[0].message.content
            return [*messages, {"role": "assistant", "content": said}]

        so_far = ask(*ask(QUESTION), {"role": "user", "content": "and then ?"})
        summary = ask({"role": "user", "content": f"so far {len(so_far)} messages"})
        ask(*summary, {"role": "user", "content": "go on"})
        return 1.0

    assert sequences(play(run)) == [[0, 1], [2, 3]]


def test_sampling_is_the_recipes_and_what_was_asked_for_is_noted(clients):
    def run(task, base_url, api_key):
        client = clients.openai(base_url, api_key)
        asked = {"temperature": 0.1, "top_p": 0.5, "presence_penalty": 1.0, "seed": 3, "max_tokens": 2}
        answer = client.chat.completions.create(model="any", messages=[QUESTION], stop=["."], **asked)
        assert answer.choices[0].finish_reason == "length"
        return 1.0

    engine = Sayer(["a long answer that is cut"])
    [trajectory] = play_with(engine, run)
    [params] = engine.asked
    assert (params.temperature, params.top_p, params.max_tokens, params.stop_strings) == (1.0, 1.0, 2, (".",))
    assert trajectory.info["ignored"] == {"temperature": 0.1, "top_p": 0.5, "seed": 3, "presence_penalty": True}


def test_a_session_that_calls_too_often_ends_at_the_limit(clients):
    refused = list[str]()

    def run(task, base_url, api_key):
        client = clients.openai(base_url, api_key)
        try:
            for number in range(1_000):
                client.chat.completions.create(model="any", messages=[{"role": "user", "content": str(number)}])
        except openai.PermissionDeniedError as error:
            refused.append(str(error))
        return 1.0

    trajectory = play(run, turns=3)
    assert (trajectory.stop, len(trajectory.turns), trajectory.reward) == (StopReason.MAX_TURNS, 3, 0.0)


def test_the_example_of_the_page_runs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    file = tmp_path / "my_agent.py"
    file.write_text(page.partition("```python\n")[2].partition("```")[0])
    trajectory = play(f"{file}:run", "2", "1")
    assert (sequences(trajectory), trajectory.reward) == ([[0, 1]], 1.0)
