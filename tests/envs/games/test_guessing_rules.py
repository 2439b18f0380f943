"""Guess-number, mastermind, wordle and hangman: rules and dense rewards by hand."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.envs.games import mastermind as mastermind_module
from turnwise.envs.games import wordle as wordle_module
from turnwise.envs.games.game import Game, box
from turnwise.envs.games.guess_number import guess_number
from turnwise.envs.games.hangman import hangman
from turnwise.envs.games.mastermind import mastermind
from turnwise.envs.games.wordle import wordle


def arrange(env: Game, **position: Any) -> Game:
    """The game, dealt and then set to a position."""
    env.reset(seed=0)
    vars(env.rules).update(position)
    return env


def rewards(env: Game, *contents: str) -> list[float]:
    return [env.step(box(content))[1] for content in contents]


def test_guess_number_says_higher_lower_and_right():
    env = arrange(guess_number(high=50, max_turns=7), target=20)
    assert env.step(box("10"))[0].startswith("My number is higher than 10.")
    assert env.step(box("30"))[0].startswith("My number is lower than 30.")
    assert env.step("so \\boxed{11}, no, \\boxed{20}") == (
        "20 is right!",
        1.0,
        True,
        False,
        {"valid": True, "state_key": "20-20", "parsed_action": 20, "success": True},
    )


def test_guess_of_zero_is_the_number_zero_and_out_of_range():
    env = arrange(guess_number(high=50, max_turns=7), target=20)
    for number in (0, -1, 51):
        _, reward, terminated, truncated, info = env.step(box(str(number)))
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert (info["parsed_action"], info["valid"], info["state_key"]) == (number, False, "1-50")


def test_guess_number_state_is_what_the_answers_leave_open():
    env = arrange(guess_number(high=50, max_turns=7), target=20)
    keys = [env.step(box(guess))[4]["state_key"] for guess in ("30", "10", "5", "40", "21")]
    assert keys == ["1-29", "11-29", "11-29", "11-29", "11-20"]


@pytest.mark.parametrize(("last", "reward"), [("27", 1 - 7 / 49), ("19", 1 - 1 / 49), ("50", 1 - 30 / 49), ("0", 0.0)])
def test_dense_guess_number_pays_closeness_of_the_last_guess_at_the_limit_only(last: str, reward: float):
    env = arrange(guess_number(high=50, max_turns=3, dense=True), target=20)
    assert rewards(env, "19", "21") == [0.0, 0.0]
    _, final, terminated, truncated, info = env.step(box(last))
    assert final == pytest.approx(reward)
    assert (terminated, truncated, info["success"]) == (False, True, False)


def test_dense_guess_number_win_on_the_last_turn_is_a_plain_win():
    env = arrange(guess_number(high=50, max_turns=2, dense=True), target=20)
    assert rewards(env, "19") == [0.0]
    assert env.step(box("20"))[1:4] == (1.0, True, False)


@pytest.mark.parametrize(
    ("guess", "code", "answer"),
    [("1234", "1234", (4, 0)), ("1234", "1243", (2, 2)), ("1234", "2341", (0, 4)), ("1234", "5678", (0, 0))],
)
def test_mastermind_counts_digits_in_place_and_elsewhere(guess: str, code: str, answer: tuple[int, int]):
    assert mastermind_module.compare(guess, code) == answer


def test_dense_mastermind_pays_each_new_best_count_of_digits_in_place():
    env = arrange(mastermind(length=4, digits=8, max_turns=30, dense=True), code="1234")
    observation, reward, *_, info = env.step(box("1 2, 5 6"))
    assert observation.startswith("1256: 2 in place, 0 elsewhere.")
    assert (reward, info["parsed_action"], info["state_key"]) == (0.5, "1256", "answers 1256:2+0")
    assert rewards(env, "1243", "5678", "1235", "1234") == [0.0, 0.0, 0.25, 0.25]
    assert env.over


@pytest.mark.parametrize("content", ["123", "12345", "1123", "1239", "0123"])
def test_mastermind_refuses_what_is_no_code(content: str):
    env = arrange(mastermind(length=4, digits=8, max_turns=30), code="1234")
    _, reward, terminated, _, info = env.step(box(content))
    assert (reward, terminated, info["valid"], info["parsed_action"]) == (0.0, False, False, content)
    assert info["state_key"] == "answers"


@pytest.mark.parametrize(
    ("guess", "word", "answer"),
    [
        ("eerie", "where", "Y-Y-G"),
        ("allow", "label", "YYY--"),
        ("speed", "erase", "Y-YY-"),
        ("stone", "stone", "GGGGG"),
        ("abbey", "kebab", "YYGY-"),
    ],
)
def test_wordle_answers_each_letter_of_the_word_once(guess: str, word: str, answer: str):
    assert wordle_module.compare(guess, word) == answer


def test_dense_wordle_pays_half_of_new_letters_in_place_and_the_rest_for_the_win():
    env = arrange(wordle(max_turns=6, dense=True), word="stone")
    assert env.step(box("STALE"))[0].startswith("stale: GG--G")
    assert rewards(env, "stale", "stove", "crane") == pytest.approx([0.0, 0.1, 0.0])
    assert env.step(box("stone"))[1:4] == (pytest.approx(0.6), True, False)


def test_wordle_refuses_other_lengths_and_is_lost_at_the_limit():
    env = arrange(wordle(max_turns=2), word="stone")
    assert env.step(box("ston"))[4]["valid"] is False
    _, reward, terminated, truncated, info = env.step(box("store"))
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert info["state_key"] == "answers store:GGG-G"


def test_hangman_uncovers_letters_and_refuses_repeated_ones():
    env = arrange(hangman(lengths=(5,), lives=2, max_turns=10), word="apple")
    assert env.step(box("P"))[4]["state_key"] == "_ p p _ _ wrong: none"
    assert env.step(box("p"))[4]["valid"] is False
    assert env.step(box("z"))[4]["state_key"] == "_ p p _ _ wrong: z"
    assert rewards(env, "a", "l") == [0.0, 0.0]
    assert env.step(box("e"))[:4] == ("apple is right!", 1.0, True, False)


def test_hangman_is_lost_with_the_last_life():
    env = arrange(hangman(lengths=(5,), lives=2, max_turns=10, dense=True), word="apple")
    assert rewards(env, "p", "z") == pytest.approx([0.5 * 2 / 5, 0.0])
    observation, reward, terminated, truncated, info = env.step(box("x"))
    assert observation == "No lives left. The word was apple."
    assert (reward, terminated, truncated, info["valid"], info["success"]) == (0.0, True, False, True, False)


def test_dense_hangman_pays_half_of_the_uncovered_places_and_the_rest_for_the_win():
    env = arrange(hangman(lengths=(5,), lives=2, max_turns=10, dense=True), word="apple")
    assert rewards(env, "p", "a", "l", "e") == pytest.approx([0.2, 0.1, 0.1, 0.6])
