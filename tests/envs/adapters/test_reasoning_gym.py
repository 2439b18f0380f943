import random
import time

import numpy as np
import pytest

pytest.importorskip("reasoning_gym", reason="needs turnwise[reasoning-gym]")

from reasoning_gym.factory import DATASETS

from tests.envs.adapters.play import assert_contract, assert_snapshot_continues, assert_survives_hostile_actions, make
from turnwise.envs.adapters.evaluated_answers import EXPRESSION_FAMILIES, LITERAL_FAMILIES
from turnwise.envs.adapters.reasoning_gym import ReasoningGym

FAMILIES = sorted(set(DATASETS) - {"composite"})
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
    started = time.perf_counter()
    env.step("<answer>" * 125_000 + "</answer>")
    assert time.perf_counter() - started < 1.0


def test_settings_reach_the_family_and_an_unknown_family_names_the_closest():
    env = make("rg/chain_sum", settings={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    assert env.reset(seed=0)[0].count("+") + env.reset(seed=0)[0].count(" - ") <= 2
    with pytest.raises(ValueError, match="did you mean spell_backward"):
        make("rg/spell_backwards")
