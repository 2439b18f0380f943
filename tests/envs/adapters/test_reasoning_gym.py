import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("reasoning_gym", reason="needs turnwise[reasoning-gym]")

from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS

from tests.envs.adapters.play import assert_contract, assert_snapshot_continues, assert_survives_hostile_actions, make
from turnwise.envs.adapters.evaluated_answers import EXPRESSION_FAMILIES, LITERAL_FAMILIES
from turnwise.envs.adapters.reasoning_gym import ReasoningGym
from turnwise.tools import sandbox


def has_sandbox():
    try:
        sandbox.check_sandbox()
    except ValueError:
        return False
    return True


needs_sandbox = pytest.mark.skipif(not has_sandbox(), reason="needs bubblewrap, in which the programs run")
FAMILIES = sorted(set(DATASETS) - {"composite"} - (set() if has_sandbox() else {"codeio"}))
WITHOUT_GOLD = {"boxnet", "rush_hour"}


def test_the_gold_answer_of_every_family_scores_one():
    without_gold, wrong = set(), {}
    for family in FAMILIES:
        env = ReasoningGym(name=family)
        observation, _ = env.reset(seed=1)
        assert "<answer>" in observation
        if not env.has_oracle():
            without_gold.add(family)
            continue
        _, score, terminated, truncated, info = env.step(env.oracle())
        if (score, terminated, truncated, info["success"]) != (1.0, True, False, True):
            wrong[family] = score
    assert wrong == {}
    assert without_gold == WITHOUT_GOLD


def test_a_family_that_seeds_numpy_leaves_the_process_generators_alone():
    env = make("rg/pool_matrix")
    random_state, numpy_state = random.getstate(), repr(np.random.get_state())
    env.reset(seed=0)
    assert random.getstate() == random_state
    assert repr(np.random.get_state()) == numpy_state


READER = """
import os, pathlib
def main_solution(name):
    pathlib.Path(name).write_text("left by a program")
    pathlib.Path("/tmp", name).write_text("left by a program")
    return {"process": os.getpid(), "home": os.environ.get("HOME"), "users": len([*pathlib.Path("/home").glob("*")])}
"""
CHOOSER = "def generate_inputs(rng): return {'name': f'left-{rng.randint(0, 9)}.txt'}"


@needs_sandbox
def test_programs_of_a_data_set_run_confined_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = ReasoningGym(name="codeio")
    env.reset(seed=0)
    asked, answered = env.dataset._generate_io_pair(READER, CHOOSER, random.Random(1))
    assert asked["name"].startswith("left-")
    assert answered["process"] != os.getpid()
    assert (answered["home"], answered["users"]) == (None, 0)
    assert list(tmp_path.iterdir()) == []
    assert not Path("/tmp", asked["name"]).exists()


@needs_sandbox
def test_composites_run_programs_confined_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = [DatasetSpec(name="codeio", weight=1, config={})]
    env = ReasoningGym(name="composite", settings={"datasets": parts})
    env.reset(seed=0)
    inner = env.dataset.datasets["codeio"]
    assert inner._generate_io_pair(READER, CHOOSER, random.Random(1))[1]["process"] != os.getpid()
    assert list(tmp_path.iterdir()) == []


@needs_sandbox
def test_questions_about_programs_depend_on_the_seed_alone_and_have_an_answer(capfd):
    first, second = ([ReasoningGym(name="codeio").reset(seed=seed)[0] for seed in range(3)] for _ in range(2))
    assert first == second
    assert len(set(first)) == 3
    assert not any("following input:\n\n{}" in question for question in first)
    assert capfd.readouterr() == ("", "")


@needs_sandbox
@pytest.mark.parametrize("program", ["1 / 0", "print('x' * 10**6)", "import numpy", "while True: pass", "]"])
def test_a_program_that_fails_asks_nothing(program):
    env = ReasoningGym(name="codeio")
    env.reset(seed=0)
    code = f"{program}\ndef main_solution(name): return name"
    assert env.dataset._generate_io_pair(code, CHOOSER, random.Random(0)) == ({}, {})


def test_without_a_sandbox_programs_are_refused_with_the_reason(monkeypatch):
    sandbox.check_sandbox.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match=r"rg/codeio runs programs of its data set.*apt install bubblewrap"):
        ReasoningGym(name="codeio")
    ReasoningGym(name="chain_sum").reset(seed=0)


def test_equal_seeds_equal_questions_and_splits_apart():
    assert_contract(lambda split="train": make("rg/chain_sum", split=split))
    env = make("rg/chain_sum")
    assert len({env.reset(seed=seed)[0] for seed in range(50)}) == 50


def test_hostile_answers_and_snapshots():
    assert_survives_hostile_actions(make("rg/prime_factorization"))
    assert_snapshot_continues(make("rg/spell_backward"))


def test_the_last_pair_of_tags_counts_and_an_unclosed_one_is_invalid():
    env = make("rg/spell_backward")
    env.reset(seed=0)
    gold = env.oracle()
    assert env.step(f"<answer>no</answer> or rather {gold}")[1] == 1.0
    assert env.step(gold.removesuffix("</answer>"))[4]["valid"] is False


@pytest.mark.parametrize("family", sorted(LITERAL_FAMILIES | EXPRESSION_FAMILIES))
def test_an_answer_is_never_run_as_code(family, tmp_path):
    target = tmp_path / "written"
    env = make(f"rg/{family}")
    for code in (f"open({str(target)!r}, 'w')", f"[open({str(target)!r}, 'w')]", f"exec({'+'.join(_letters(target))})"):
        env.reset(seed=0)
        assert env.step(f"<answer>{code}</answer>")[1] == 0.0
        assert not target.exists()


def _letters(target) -> list[str]:
    return [f"chr({ord(letter)})" for letter in f"open({str(target)!r},'w')"]


def test_a_megabyte_of_open_tags_is_read_in_linear_time():
    env = make("rg/spell_backward")
    env.reset(seed=0)
    started = time.thread_time()
    env.step("<answer>" * 125_000 + "</answer>")
    assert time.thread_time() - started < 3.0


def test_settings_reach_the_family_and_an_unknown_family_names_the_closest():
    env = make("rg/chain_sum", settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    assert env.reset(seed=0)[0].count("+") + env.reset(seed=0)[0].count(" - ") <= 2
    with pytest.raises(ValueError, match="did you mean spell_backward"):
        make("rg/spell_backwards")
