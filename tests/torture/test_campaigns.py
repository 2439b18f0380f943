"""Every campaign in a small form, and the proof that each can fail."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.envs.terminals.test_harbor import write_harbor
from tests.sandboxes import needs_bubblewrap
from tests.torture import __main__ as command
from tests.torture import (
    actions,
    clients,
    conversations,
    corruptions,
    injections,
    kills,
    learning,
    payloads,
    programs,
    public_tasks,
    terminals,
)
from tests.torture.hostile_programs import PROGRAMS, SHELL_PROGRAMS
from tests.torture.tally import Tally, shares
from turnwise.algorithm import PRESETS
from turnwise.dialects.asgi import read_body
from turnwise.dialects.dialect import Asked
from turnwise.engine.serving import EngineServer
from turnwise.envs import Env
from turnwise.envs.process import EnvSource
from turnwise.gateway.agent_session import AgentSession
from turnwise.policy.rendering import Renderer
from turnwise.report import write_report
from turnwise.serve import model_server
from turnwise.tools.sandbox import Execution, SandboxLimits

FAST = [
    EnvSource(env=name) for name in ("game/hangman-easy", "game/guess-number-hard", "lookup/2hop", "math/arithmetic")
]


# Injections.


def test_hostile_texts_write_no_marker_and_leave_sampled_tokens_alone() -> None:
    tally = injections.campaign(count=100, seed=1)
    assert (tally.attempts, tally.failures) == (100, [])
    assert set(tally.outcomes) >= {"observation", "tool result", "system", "demonstration", "tool"}


class Unshielded(Renderer):
    """Hands texts to the tokenizer as they come."""

    def shield(self, text: str) -> str:
        return text


def test_a_renderer_that_does_not_shield_is_found() -> None:
    tally = injections.campaign(count=60, seed=1, make=Unshielded)
    assert tally.attempts == 60
    assert any("markers" in failure for failure in tally.failures)


# Hostile actions.


def test_hostile_actions_get_an_answer_in_the_contracts_form() -> None:
    tally = actions.campaign(count=200, seed=1, envs=FAST)
    assert (tally.attempts, tally.failures) == (200, [])
    assert min(tally.outcomes["went on"], tally.outcomes["ended"]) > 20


class Fragile(Env):
    """Believes that every action is a number."""

    def reset(self, seed: int | None = None, task: Any = None) -> Any:
        super().reset(seed=seed)
        return "A number, please.", {}

    def step(self, action: str) -> Any:
        return "Thank you.", float(action), False, False, {}


def test_an_environment_that_raises_or_pays_infinities_is_found() -> None:
    tally = actions.campaign(count=60, seed=1, envs=[EnvSource(env=Fragile)])
    assert len(tally.failures) > 20
    assert any("could not convert" in failure for failure in tally.failures)


# Conversations through the gateway.


def test_lossy_clients_train_what_was_sampled() -> None:
    tally = conversations.campaign(count=48, seed=1)
    assert (tally.attempts, tally.failures) == (48, [])
    played = {tuple(outcome.split()[:2]) for outcome in tally.outcomes}
    assert len(played) == len(conversations.CLIENTS) * len(conversations.KINDS)


def test_a_session_that_samples_retries_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    true_ask = AgentSession.ask

    def ask(self: AgentSession, asked: Asked, *, body_key: str, again: bool) -> Any:
        return true_ask(self, asked, body_key=body_key, again=False)

    monkeypatch.setattr(AgentSession, "ask", ask)
    tally = conversations.campaign(count=24, seed=1)
    assert any("answers were sampled for" in failure for failure in tally.failures)


# Clients of a served model.


def test_good_and_bad_clients_get_what_they_ask_for_and_leave_nothing() -> None:
    tally = clients.campaign(count=100, seed=1)
    assert (tally.attempts, tally.failures) == (100, [])
    assert set(tally.outcomes) == {
        *("answered", "streamed", "refused", "left", "talked rubbish", "sent 10 MB", "never read")
    }


def test_an_engine_that_keeps_what_clients_leave_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineServer, "close", lambda *_: None)
    tally = clients.campaign(count=20, seed=1, patience=0.5)
    assert any("stayed" in failure for failure in tally.failures)


@pytest.mark.skipif(clients._memory() == (0.0, 0.0), reason="this system does not tell what is in use")
def test_a_server_that_keeps_something_of_each_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[bytes]()

    async def keeping(receive: Any) -> bytes:
        kept.append(bytes(1 << 18))
        return await read_body(receive)

    monkeypatch.setattr(model_server, "read_body", keeping)
    tally = clients.campaign(count=100, seed=1)
    assert any("memory in use grew" in failure for failure in tally.failures)


# Corruptions.


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corruptions.make_run(tmp_path_factory.mktemp("corruptions") / "run")


def test_damaged_run_folders_are_refused_told_or_as_before(small_run: Path) -> None:
    tally = corruptions.campaign(count=2, seed=1, run=small_run)
    assert (tally.attempts, tally.failures) == (2, [])


def _believing(command: str, run: Path) -> corruptions.Outcome:
    """A reader that gives an answer whatever lies there, and raises where its file is gone."""
    if not (run / "config.yaml").is_file():
        return corruptions.Outcome(message="Traceback: FileNotFoundError")
    return corruptions.Outcome(code=0, result=corruptions._digest(run))


def test_a_reader_that_believes_a_damaged_folder_is_found(small_run: Path) -> None:
    tally = corruptions.campaign(count=20, seed=1, invoke=_believing, run=small_run)
    assert tally.attempts == 20
    assert len(tally.failures) > 10
    assert any("another result without a word" in failure for failure in tally.failures)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (
            corruptions.Outcome(code=2, message="turnwise: /tmp/turnwise-corruptions-x/run/meta.json is damaged"),
            "refused",
        ),
        (corruptions.Outcome(code=2, message="turnwise: something is wrong"), "!refused without the name of a file"),
        (corruptions.Outcome(code=2, message="Usage: turnwise\nno such command"), "!not one message"),
        (corruptions.Outcome(message="hung: no answer within 300 s"), "!hung"),
        (corruptions.Outcome(code=0, result=1, warned="checkpoint 2 is skipped"), "equal, older checkpoint"),
        (corruptions.Outcome(code=0, result=2), "!another result without a word"),
        (corruptions.Outcome(code=0, result=2, warned="checkpoint 2 is skipped"), "!another result"),
    ],
)
def test_only_what_is_refused_by_name_or_equal_passes(outcome: corruptions.Outcome, verdict: str) -> None:
    assert corruptions.judge("resume", outcome, corruptions.Outcome(code=0, result=1)).startswith(verdict)


# Sandbox programs.


@needs_bubblewrap
def test_hostile_programs_are_confined() -> None:
    quick = {name: PROGRAMS[name] for name in ("read the host's file", "fill the disk", "reach the host", "crash")}
    tally = programs.campaign(count=4, seed=1, programs=quick)
    assert (tally.attempts, tally.failures) == (4, [])


@needs_bubblewrap
def test_hostile_programs_are_confined_in_a_shell_too() -> None:
    chosen = ("read the host's file", "read the users", "read other processes", "fill the disk", "reach the host")
    quick = {name: SHELL_PROGRAMS[name] for name in chosen}
    tally = programs.shell_campaign(count=5, seed=1, programs=quick)
    assert (tally.attempts, tally.failures) == (5, [])


def _unconfined(code: str, limits: SandboxLimits) -> Execution:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return Execution(
        stdout=done.stdout, stderr=done.stderr, exit_code=done.returncode, timed_out=False, output_full=False
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("read the host's file", "it got out"),
        ("write the host's file", "it got out"),
        ("reach the host", "it got out"),
        ("read the users", "it got out"),
        ("read other processes", "it got out"),
    ],
)
def test_a_program_that_gets_out_is_found(name: str, found: str) -> None:
    (failure,) = programs.campaign(count=1, seed=1, run=_unconfined, programs={name: SHELL_PROGRAMS[name]}).failures
    assert failure.startswith(f"{name}: {found}")


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("open(@CANARY, 'w').close()", "the host's file was changed"),
        ("socket.create_connection(@ADDRESS)", "the host's listener was reached"),
    ],
)
def test_the_host_sees_for_itself_what_a_program_does_not_say(program: str, found: str) -> None:
    (failure,) = programs.campaign(count=1, seed=1, run=_unconfined, programs={"silent": program}).failures
    assert failure == f"silent: {found}"


# Terminal tasks.


@needs_bubblewrap
def test_flawed_tasks_are_removed_and_sound_ones_are_not() -> None:
    tally = terminals.campaign(count=6, seed=1)
    assert (tally.attempts, tally.failures) == (6, [])
    assert tally.outcomes["sound"] == 5


@needs_bubblewrap
def test_a_filter_that_lets_everything_through_is_found() -> None:
    tally = terminals.campaign(count=12, seed=1, solver=lambda task, tries: tries)
    assert tally.failures
    assert all("passed all gates" in failure for failure in tally.failures)


@needs_bubblewrap
def test_a_public_task_that_is_not_what_it_says_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = tmp_path / "collection"
    for name in ("sound", "solved", "unsolved"):
        write_harbor(collection / name)
    (collection / "unsolved" / "solution" / "solve.sh").write_text("true\n")
    (collection / "solved" / "tests" / "test_state.py").write_text("def test_nothing():\n    pass\n")
    monkeypatch.setenv("TURNWISE_TASK_DATA", str(tmp_path))
    tally = public_tasks.campaign(seed=1)
    assert (tally.attempts, tally.outcomes) == (3, {"solved by its solution alone": 1})
    assert sorted(tally.failures) == [
        "solved is solved before anybody does anything",
        "unsolved is not solved by its own solution",
    ]
    monkeypatch.setenv("TURNWISE_TASK_DATA", str(tmp_path / "nothing"))
    assert "nothing" in public_tasks.campaign().skipped


# Presets that learn.


def test_the_preset_of_the_shipped_recipe_teaches_the_shipped_agent() -> None:
    tally = learning.campaign(count=1, seed=1, presets=("st-ppo",))
    assert (tally.outcomes["learned"], tally.failures) == (1, [])


def test_a_preset_that_teaches_nothing_is_found() -> None:
    recipe = learning.recipe_of("reinforce")
    changes = {  # one turn is not enough for a search and an answer
        "rollout": recipe.rollout.model_copy(update={"max_turns": 1}),
        "train": recipe.train.model_copy(update={"steps": 1}),
        "eval": recipe.eval.model_copy(update={"episodes": 16}),
    }
    tally = learning.campaign(
        count=1, seed=1, presets=("reinforce",), recipe_of=lambda name: recipe.model_copy(update=changes)
    )
    assert tally.failures[0].startswith("reinforce ends at 0.")


# Report payloads.


def test_hostile_strings_stay_texts_in_a_report() -> None:
    tally = payloads.campaign(count=3, seed=1, browser=False)
    assert (tally.attempts, tally.failures) == (3, [])


def _careless(*arguments: Any, **options: Any) -> Path:
    """Writes the report with its data as they are."""
    page = write_report(*arguments, **options)
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"\\u003[ce]", lambda found: {"c": "<", "e": ">"}[found[0][-1]], text), encoding="utf-8")
    return page


def test_a_report_that_does_not_escape_is_found() -> None:
    tally = payloads.campaign(count=4, seed=1, write=_careless, browser=False)
    assert tally.attempts == 4
    assert tally.failures


# Kills, and all together.


@pytest.mark.parametrize("differences", [[], ["grpo seed=1: metrics.jsonl"]])
def test_kills_count_and_a_run_that_differs_from_its_twin_is_found(
    monkeypatch: pytest.MonkeyPatch, differences: list[str]
) -> None:
    def killed(folder: Path, *, kills: int, seed: int) -> Any:
        return kills_of_runs.Tally(kills=kills, differences=differences)

    kills_of_runs = kills.kills
    monkeypatch.setattr(kills_of_runs, "campaign", killed)
    tally = kills.campaign(count=5, seed=1)
    assert (tally.outcomes, tally.failures) == ({"killed and resumed": 5}, differences)


@contextmanager
def _campaigns(monkeypatch: pytest.MonkeyPatch, *tallies: Tally) -> Iterator[list[str]]:
    names = [f"campaign {place}" for place in range(len(tallies))]
    table = {name: ((lambda tally=tally, **_: tally), 10) for name, tally in zip(names, tallies, strict=True)}
    monkeypatch.setattr(command, "CAMPAIGNS", table)
    yield names


def test_the_command_prints_counts_and_fails_when_one_campaign_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = Tally(), Tally(failures=["it got out"])
    good.note("refused")
    with _campaigns(monkeypatch, good, bad) as names:
        assert command.run(names[:1], scale=1.0, seed=0)
        assert not command.run(names, scale=1.0, seed=0)
    printed = capsys.readouterr().out
    assert re.search(r"campaign 0 +1 +0 +0  refused 1\n", printed)
    assert printed.endswith("campaign 1: it got out\n")


def test_the_full_sizes_are_at_least_what_was_promised() -> None:
    sizes = {name: count for name, (_, count) in command.CAMPAIGNS.items()}
    least = {"kills": 200, "corruptions": 465, "injections": 7150, "actions": 26_000, "programs": 58, "payloads": 31}
    least |= {"shells": 58, "terminals": 1000, "harbor": 21, "learning": len(PRESETS), "clients": 10_000}
    least |= {"conversations": 10_000, "plans": 10_000}
    assert all(sizes[name] >= count for name, count in least.items())


def test_shares_add_up() -> None:
    assert shares(7, 3) == [3, 2, 2]
    assert shares(1, 3) == [1, 0, 0]
