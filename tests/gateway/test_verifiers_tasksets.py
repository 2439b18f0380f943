"""Tasksets with tools, seats and hooks: verifiers plays them, and the gateway is its model."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

pytest.importorskip("verifiers.v1", reason="needs turnwise[verifiers]")
pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")

from typer.testing import CliRunner

from tests.gateway.raw_client import post
from tests.gateway.served_agent import Sayer, play_specs
from tests.gateway.verifiers_modules import installed
from tests.judges.test_chat_judge import Endpoint
from tests.serve.local_model import NAME, local_model
from turnwise.cli import app
from turnwise.envs import make
from turnwise.envs.adapters.verifiers import Verifiers
from turnwise.rollout.episode import EpisodeSpec
from turnwise.runs import read_journal
from turnwise.trust import require_trust
from turnwise.types import StopReason

TWO_CALLS = {"agent": {"max_turns": 2}}


@pytest.fixture(scope="module", autouse=True)
def tasksets(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("tasksets")):
        yield


class Shopper(Sayer):
    """Asks for the price that it is asked for, and repeats what it is told."""

    async def generate(self, session, new_ids, params):
        heard = self.tokenizer.decode(new_ids)
        fruit = re.search(r"Price of (x+)", heard)
        price = re.search(r"(\d+ coins)", heard)
        told = f"it costs {price[1]}" if price else "what ?"
        self.lines = [_call("shop_price", f'{{"fruit": "{fruit[1]}"}}') if fruit else told]
        return await super().generate(session, new_ids, params)


def _call(name, arguments):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def play(name, engine, *, tasks, turns=16, **settings):
    if name == "shop":  # equal settings share their tool server, which takes long to start
        settings = {"environment": TWO_CALLS}
    specs = [EpisodeSpec(env=f"verifiers/turnwise_{name}", kwargs=settings, task=task) for task in tasks]
    return play_specs(engine, specs, turns=turns)


def test_sessions_at_once_call_the_tools_of_their_taskset_and_earn_its_rewards():
    tasks = [{"index": number} for number in range(8)]
    trajectories = play("shop", Shopper([""]), tasks=tasks)
    for number, trajectory in enumerate(trajectories):
        fruit, replied = "x" * (number + 1), f"it costs {number + 1} coins"
        assert trajectory.stop is StopReason.DONE
        first, second = trajectory.turns
        assert first.observation == f"[system] Be brief.\n[user] Price of {fruit} ?"
        assert (second.observation, second.action) == (f"{number + 1} coins", replied)
        assert not second.restarts
        even = 0.5 * (len(replied) % 2 == 0)
        assert trajectory.reward_parts == {"right": 1.0, "even": even}
        assert (trajectory.reward, trajectory.success) == (1.0 + even, True)
        assert trajectory.scores == {"asked": 2.0}


def test_tasks_have_an_index_and_belong_to_one_split():
    listed = {
        split: make("verifiers/turnwise_shop", split=split).list_tasks() for split in ("train", "validation", "test")
    }
    assert {split: len(rows or ()) for split, rows in listed.items()} == {"train": 32, "validation": 4, "test": 4}
    assert listed["test"] == [{"index": index} for index in (9, 19, 29, 39)]
    (by_index,) = play("shop", Shopper([""]), tasks=[3])
    assert by_index.turns[0].observation.endswith("Price of xxxx ?")
    (missing,) = play("shop", Shopper([""]), tasks=[400])
    assert (missing.stop, "there is no task 400" in missing.info["error"]) == (StopReason.ENV_ERROR, True)
    spec = EpisodeSpec(env="verifiers/turnwise_shop", kwargs={"environment": TWO_CALLS}, seed=7)
    first, again = play_specs(Shopper([""]), [spec, replace(spec, group="again")])
    assert first.turns[0].observation == again.turns[0].observation


def test_an_episode_that_never_answers_ends_at_the_limits_of_either_side():
    asks = _call("shop_price", '{"fruit": "x"}')
    (ours,) = play("shop", Sayer([asks]), tasks=[0], turns=1)
    assert (ours.stop, len(ours.turns), ours.reward) == (StopReason.MAX_TURNS, 1, 0.0)
    (theirs,) = play("shop", Sayer([asks]), tasks=[0])  # scored, as verifiers scores what it has stopped
    assert (theirs.stop, len(theirs.turns), theirs.scores) == (StopReason.DONE, 2, {"asked": 2.0})


def test_tools_of_a_task_keep_its_state_and_hooks_run_around_the_conversation():
    lines = [_call("ledger_add", '{"amount": 5}'), _call("ledger_add", '{"amount": "many"}'), "done"]
    (trajectory,) = play("ledger", Sayer(lines), tasks=[2])
    heard = [turn.observation for turn in trajectory.turns]
    assert heard[:2] == ["add", "25"]
    assert "amount" in heard[2]  # the mistake is told to the model
    assert trajectory.reward == 5.0 + len("yes")


def test_mishaps_end_only_their_own_episode_with_one_message():
    limits = {"agent": {"timeout": {"finalize": 0.5}}}
    fine, setup, reward, stops, late = play("mishaps", Sayer(["yes"]), tasks=[0, 1, 3, 4, 5], environment=limits)
    assert (fine.stop, fine.reward) == (StopReason.DONE, 1.0)
    assert (setup.stop, reward.stop) == (StopReason.ENV_ERROR, StopReason.ENV_ERROR)
    assert re.fullmatch(r"verifiers: TaskError: .*the shop is closed", setup.info["error"])
    assert re.fullmatch(r"verifiers: TaskError: .*no such number", reward.info["error"])
    assert [(each.stop, each.reward) for each in (stops, late)] == [(StopReason.DONE, 1.0)] * 2
    (hangs,) = play("mishaps", Sayer(["yes"]), tasks=[2], patience=1.0)
    assert hangs.stop is StopReason.TIMEOUT
    assert "neither called the model nor ended within 1 s" in hangs.info["error"]


def test_seats_of_one_environment_are_sequences_of_one_trajectory_with_the_mean_of_their_rewards():
    (trajectory,) = play("duet", Sayer(["yes", "no"]), tasks=[0])
    assert [turn.action for turn in trajectory.turns] == ["yes", "no"]
    assert [turn.restarts for turn in trajectory.turns] == [False, True]
    assert trajectory.reward_parts == {"said": 0.5, "place": 0.5}
    assert trajectory.reward == 1.0


def test_a_user_is_played_by_a_model_of_its_own_and_never_trained():
    seats = {"id": "user-sim", "user": {"model": NAME, "max_turns": 2, "sampling": {"max_tokens": 8}}}
    with pytest.raises(ValueError, match=r"'user' .* is not trained, .*environment\.user to"):
        make("verifiers/turnwise_plain", environment=seats)
    with local_model() as local:
        seats["user"]["client"] = {"base_url": local.url, "api_key_var": "NO_KEY"}
        (trajectory,) = play("plain", Sayer(["I see"]), tasks=[1], environment=seats)
    assert trajectory.stop is StopReason.DONE, trajectory.info
    assert [turn.action for turn in trajectory.turns] == ["I see"] * 2
    assert (trajectory.reward, trajectory.scores) == (1.0, {"user_turns": 2.0})
    assert not any(
        turn.restarts for turn in trajectory.turns
    )  # the conversation is told again, and is still one sequence


def test_a_judge_asks_its_own_endpoint_and_is_refused_without_one(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    judge = {"id": "reference", "model": "judge", "answer_field": "answer"}
    with pytest.raises(ValueError, match=r"judge 'reference' .* has no model: set PRIME_API_KEY, or .*base_url"):
        make("verifiers/turnwise_plain", settings={"task": {"judges": [judge]}})
    endpoint = Endpoint(lambda body: "yes")
    try:
        judge |= {"base_url": endpoint.url, "api_key_var": "NO_KEY"}
        (trajectory,) = play("plain", Sayer(["yes"]), tasks=[1], settings={"task": {"judges": [judge]}})
        assert [request["model"] for request in endpoint.requests] == ["judge"]
        assert trajectory.reward_parts == {"long": 1.0, "reference": 1.0}, trajectory.info
    finally:
        endpoint.close()


def test_a_single_reply_needs_no_harness_and_may_have_one():
    assert isinstance(make("verifiers/turnwise_plain"), Verifiers)
    played = [play("plain", Sayer(["yes"]), tasks=[4], environment=given)[0] for given in (None, {})]
    assert [(each.turns[0].observation, each.reward) for each in played] == [("What is 4 + 1 ?", 1.0)] * 2
    assert [each.turns[0].call is None for each in played] == [True, False]


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        (
            "mishaps",
            {"settings": {"image": "ubuntu"}},
            r"needs a container, .*environment\.agent\.runtime\.type to docker",
        ),
        ("shop", {"harness": "codex"}, r"harness 'codex' needs a container"),
        ("shop", {"harness": "no-such-harness"}, r"harness 'no-such-harness' not found"),
        ("shop", {"environment": {"agent": {"max_turn": 1}}}, r"settings of verifiers/turnwise_shop: agent.max_turn"),
        ("shop", {"environment": {"id": "no-such-environment"}}, r"'no-such-environment' not found"),
        ("shop", {"settings": {"size": 1}}, r"settings of verifiers/turnwise_shop: size"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_fix(name, settings, text):
    with pytest.raises(ValueError, match=text) as refusal:
        make(f"verifiers/turnwise_{name}", **settings)
    assert "\n" not in str(refusal.value)


def test_a_key_is_found_in_the_header_that_a_proxy_leaves_free():
    said = []

    def run(task, base_url, api_key):
        body = b'{"model": "any", "messages": [{"role": "user", "content": "hi"}]}'
        said.append(post(base_url, api_key, body, x_api_key="EMPTY")[0])
        return 1.0

    (trajectory,) = play_specs(Sayer(["yes"]), [EpisodeSpec(env="agent-run", kwargs={"program": run})])
    assert (said, trajectory.reward) == ([200], 1.0)


def test_the_bash_harness_runs_in_a_process_of_its_own(tmp_path):
    _require_chat_program(tmp_path)
    lines = [_call("bash", '{"command": "expr 6 \\\\* 7"}'), "yes"]
    (trajectory,) = play("mishaps", Sayer(lines), tasks=[0], harness={"id": "bash", "edit": False})
    assert trajectory.stop is StopReason.DONE, trajectory.info
    assert trajectory.turns[1].observation.strip() == "42"
    assert trajectory.reward == 1.0


def _require_chat_program(folder):
    """Skip where uv is missing, or cannot install what the program imports."""
    from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE

    if shutil.which("uv") is None:
        pytest.skip("this harness is started by uv: pip install uv")
    program = folder / "program.py"
    program.write_text(CHAT_PROGRAM_SOURCE)
    prepared = subprocess.run(
        ["uv", "sync", "--script", str(program), "-q", "--no-config"], capture_output=True, timeout=120
    )
    if prepared.returncode != 0:
        pytest.skip("uv cannot install the requirements of verifiers' chat program here")


def test_a_taskset_with_tools_is_checked_trained_verified_and_evaluated(tmp_path):
    def turnwise(*arguments):
        ended = CliRunner().invoke(app, list(arguments))
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    given = 'environment={"agent": {"max_turns": 2}}'
    assert "fit for training" in turnwise("check-env", "verifiers/turnwise_shop", given, "--seeds", "1")
    run = str(tmp_path / "run")
    small = "rollout.episodes=8 rollout.max_turns=4 rollout.max_tokens=8 rollout.context=512 eval.episodes=2"
    turnwise(
        *("train", "model=nano", "env=verifiers/turnwise_shop", "algorithm=grpo", *small.split()),
        "env.kwargs.environment.agent.max_turns=2",
        *("engine.memory_gib=0.05", "train.steps=2", "--output", run, "--quiet"),
    )
    rows = read_journal(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert all({"rollout/reward_right", "rollout/reward_even", "rollout/score_asked"} <= row.keys() for row in rows)
    assert "2 steps checked: no defect" in turnwise("verify", run)
    assert "reward even" in turnwise("eval", run, "--episodes", "2")


def test_a_harness_from_elsewhere_needs_trust(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    plugged = {"settings": {"task": {"rewards": {"own": {"fn": "os.system"}}}}}
    for kwargs in ({"harness": "bash"}, {"environment": {"agent": {"harness": {"id": "bash"}}}}, plugged):
        with pytest.raises(ValueError, match="names code outside turnwise"):
            require_trust(tmp_path / "config.yaml", [{"env": {"id": "verifiers/turnwise_shop", "kwargs": kwargs}}])
    require_trust(tmp_path / "config.yaml", [{"env": {"id": "verifiers/turnwise_shop", "kwargs": {"settings": {}}}}])
