"""`ltc/…`: who hears whom, what is paid, and what can be learned by heart."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.envs.registry import make


def test_the_actor_hears_the_thinker_and_nothing_else_and_both_are_paid():
    env: Any = make("ltc/dialogue", hops=(1,))
    _, info = env.reset(seed=3)
    assert info["seat"] == "thinker"
    thought = env.oracle()
    heard, reward, *_, info = env.step(thought)
    assert (heard, reward, info) == (thought, 0.0, {"seat": "actor", "heard": [thought]})
    assert env.oracle() == thought
    found, *_, info = env.step(thought)
    assert info["seat"] == "thinker"
    env.step(f"answer {found}")
    _, reward, over, _, info = env.step(f"answer {found}")
    assert (reward, over) == (1.0, True)
    assert info["rewards"] == {"thinker": 1.0, "actor": 1.0}
    assert info["success"] == {"thinker": True, "actor": True}


def test_a_teacher_solves_another_exercise_and_corrects():
    env: Any = make("ltc/teacher-student", rounds=2, exercises=1)
    question, info = env.reset(seed=5)
    right = env.oracle()
    seen, reward, over, _, info = env.step("answer")
    assert (seen, reward, over) == (f"{question} answer", 0.0, False)
    assert (info["seat"], info["rewards"], info["valid"]) == ("teacher", {"student": 0.0}, False)
    words = env.oracle()
    assert words.startswith("1 hops from ")
    assert words.endswith(f" wrong {right}")
    assert words == env.oracle()
    after, reward, _, _, info = env.step(words)
    assert after.startswith(f"{words} 1 hops from ")
    assert info == {"seat": "student", "heard": [words]}
    _, reward, over, _, info = env.step(env.oracle())
    assert (reward, over) == (0.5, True)
    assert info["success"]["student"] is True


def test_a_table_is_the_same_everywhere_and_none_is_drawn_for_every_episode():
    def facts(seed: int, **options: Any) -> dict[str, str]:
        env: Any = make("ltc/teacher-student", **options)
        env.reset(seed=seed)
        return dict(env.facts)

    assert facts(0) == facts(1) == facts(7, split="validation") != facts(0, table=1)
    assert facts(0, table=None) != facts(1, table=None)


def test_a_lesson_has_at_least_one_round():
    with pytest.raises(ValueError, match="a lesson has at least one"):
        make("ltc/teacher-student", rounds=0)
