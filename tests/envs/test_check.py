"""The env doctor: sound environments pass, every kind of broken one is found by the check that should find it."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.envs.broken import BROKEN, DoneAndCut, GlobalRandom, HangingStep, Slow, Sound, SoundGame
from tests.sandboxes import HAS_BUBBLEWRAP
from turnwise.envs import specs
from turnwise.envs.check import CHECKS, check_env
from turnwise.envs.wrappers import TurnLimit


def defects(report):
    return {finding.check: finding.text for finding in report.defects}


def test_a_sound_environment_passes_every_check():
    report = check_env(Sound, seeds=5)
    assert defects(report) == {}
    assert [finding.check for finding in report.findings] == list(CHECKS)
    verdicts = {finding.check: (finding.verdict, finding.text) for finding in report.findings}
    assert verdicts["oracle"] == ("pass", "success on 5 seeds, 1.0 turns on average")
    assert verdicts["zero actions"] == ("pass", "0 is understood")
    assert verdicts["group variance"][0] == "pass"


def test_a_game_of_two_seats_passes_every_check():
    report = check_env(SoundGame, seeds=3)
    assert defects(report) == {}
    findings = {finding.check: finding.text for finding in report.findings}
    assert findings["seats"] == "each of first, second gets turns"
    assert findings["reward range"] == "[-1, 1] within [-1, 1]"


def test_a_report_prints_one_line_a_finding_and_the_conclusion():
    lines = str(check_env(Sound, seeds=2)).splitlines()
    assert len(lines) == len(CHECKS) + 1
    assert lines[list(CHECKS).index("seats")] == "seats              pass    one seat"
    assert lines[-1] == "Sound: fit for training"


def test_the_doctor_works_where_an_event_loop_runs():
    async def in_a_notebook():
        return check_env(Sound, seeds=1)

    assert asyncio.run(in_a_notebook()).ok


def test_a_wrapped_environment_passes_and_its_random_tries_differ():
    report = check_env(lambda: TurnLimit(Sound(), max_turns=3), seeds=3)
    assert defects(report) == {}
    assert {finding.check: finding.verdict for finding in report.findings}["group variance"] == "pass"


class AsyncSound(Sound):
    """The sound environment with steps to wait for."""

    async def step(self, action):
        await asyncio.sleep(0)
        return super().step(action)


class AsyncHang(Sound):
    async def step(self, action):
        await asyncio.sleep(60)


def test_asynchronous_environments_are_examined_like_others():
    assert defects(check_env(AsyncSound, seeds=2)) == {}
    assert defects(check_env(AsyncHang, seeds=2, deadline=0.2)) == {"returns": "hangs: no answer within 0.2 s"}


@pytest.mark.parametrize(("env", "check"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", value))
def test_each_defect_is_found_by_its_check(env, check):
    report = check_env(env, seeds=4, deadline=0.3 if env is HangingStep else 5.0)
    assert not report.ok
    assert check in defects(report)


def test_an_environment_that_terminates_and_truncates_at_once_is_named():
    report = check_env(DoneAndCut, seeds=2)
    assert report.ok  # such an episode counts as terminated, so training it is sound
    endings = next(finding for finding in report.findings if finding.check == "endings")
    assert endings.verdict == "note"
    assert "both terminated and truncated" in endings.text
    assert {finding.check: finding.verdict for finding in check_env(Sound, seeds=2).findings}["endings"] == "pass"


def test_a_hang_is_called_a_hang():
    assert defects(check_env(HangingStep, seeds=1, deadline=0.2)) == {"returns": "hangs: no answer within 0.2 s"}


def test_the_doctor_leaves_the_global_generators_alone():
    random.seed(3)
    expected = random.Random(3).random()
    check_env(next(iter(BROKEN)), seeds=2)
    assert random.random() == expected


def test_a_slow_environment_is_played_less_and_the_report_says_so():
    heard: list[str] = []
    report = check_env(Slow, seeds=2, seconds=1.0, progress=heard.append)
    assert report.ok
    assert heard == list(CHECKS)
    assert [finding.check for finding in report.findings] == [*CHECKS, "time"]
    assert report.findings[-1].verdict == "note"
    assert report.findings[-1].text.startswith("cut short after 1 s")
    assert sum(finding.text.startswith("not finished") for finding in report.findings) < len(CHECKS)


def test_a_defect_is_found_in_little_time():
    assert "determinism" in defects(check_env(GlobalRandom, seeds=2, seconds=60.0))


def test_arguments_that_the_environment_refuses_are_the_callers_mistake():
    with pytest.raises(ValueError, match="Sound cannot be built: ValueError: unknown split 'tset'"):
        check_env(Sound, kwargs={"split": "tset"})


def test_unknown_ids_and_no_seeds_are_refused():
    with pytest.raises(ValueError, match="unknown environment 'no/such'"):
        check_env("no/such")
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        check_env(Sound, seeds=0)


DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = {
    "classify/files": {"path": DATA / "nlu" / "snips_train.jsonl"},
    "math/gsm8k": {"questions": DATA / "gsm8k" / "train.jsonl"},
    "search/qa": {
        "questions": DATA / "multihop" / "hotpotqa_train.json",
        "corpus": DATA / "multihop" / "hotpotqa_train_corpus.json",
    },
}
"""Environments that read the user's files, and real files for them."""
GIVEN = {
    "agent-run": {"program": "tests.gateway.raw_client:run"},
    "tasks/own": {
        "tasks": [{"question": f"what comes after {number} ?", "answer": str(number + 1)} for number in range(9)]
    },
}
"""Environments that play what the user gives them: a program, or tasks."""
PAID = {"tasks/own": [{"kind": "rewards", "functions": [{"function": "exact", "success": 1.0}]}]}
"""Environments that pay nothing by themselves."""


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.id)
def test_the_doctor_finds_nothing_wrong_with_a_built_in_environment(spec):
    env_id = spec.example or spec.id
    if "{" in env_id:
        pytest.skip("a family without an example: its members come from packages of the user")
    if env_id.startswith("openenv/"):
        pytest.skip("needs a server; tests/envs/adapters/test_openenv.py starts one")
    if env_id.startswith("terminal/") and not HAS_BUBBLEWRAP:
        pytest.skip("bubblewrap is not installed")
    files = FILES.get(env_id, {})
    if spec.runs_program:
        pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")
    if missing := [path for path in files.values() if not path.is_file()]:
        pytest.skip(f"{missing[0].name} is not beside the repository")
    arguments = {name: str(path) for name, path in files.items()} | GIVEN.get(env_id, {})
    try:
        # One seed where another package does the work: some of them take long to build an instance.
        report = check_env(
            env_id,
            kwargs=arguments,
            wrappers=PAID.get(env_id, ()),
            seeds=1 if spec.extra else 2,
            turns=6,
            deadline=60.0,
        )
    except ValueError as error:
        if "pip install 'turnwise[" not in str(error):
            raise
        pytest.skip(str(error))
    assert defects(report) == {}
