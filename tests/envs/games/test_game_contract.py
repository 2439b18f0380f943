"""What holds for every game: boxes, limits, rewards, seeds, snapshots and hostile text."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.games import SPECS
from turnwise.envs.games.game import FORMAT_ERROR, Game, box, draw_until, integer, integers, last_box
from turnwise.envs.registry import make

IDS = [spec.id for spec in SPECS]
HOSTILE = {
    "empty": "",
    "no box": "the answer is 7",
    "megabyte of text": "x" * 1_000_000,
    "megabyte in a box": box(" " * 1_000_000),
    "a move, a megabyte of spaces, a move": box("A" + " " * 1_000_000 + "B"),
    "megabyte of opened boxes": "\\boxed{" * 140_000,
    "control characters": box("\x00\x1b[2J\r\n\t\x7f"),
    "huge integer": box("9" * 100_000),
    "huge negative integer": box("-" + "9" * 100_000),
    "unicode digits": box("\u0663 \u0664"),
    "lone surrogate": box("\ud800"),
    "nested boxes": box(box(box("zzz"))),
    "unclosed box": "\\boxed{1",
    "closed first": "}\\boxed{",
    "not a number": box("nan inf 1e3"),
    "many integers": box("1 " * 30),
}


def game(env_id: str, **options: Any) -> Game:
    env = make(env_id, **options)
    assert isinstance(env, Game)
    return env


def play(env: Game, turns: int, *, expert: bool = False) -> list[Any]:
    """The steps of up to `turns` turns of random or expert play."""
    steps: list[Any] = []
    while len(steps) < turns and not env.over:
        action = env.oracle() if expert else env.sample_random_action()
        steps.append((action, env.step(action)))
    return steps


def fingerprint(env: Game) -> Any:
    """Everything that can change in a game."""
    rules = {name: value for name, value in vars(env.rules).items() if name != "rng"}
    return {**vars(env), "rules": rules, "rng": env.rng.getstate()}


def test_ten_games_come_in_two_levels():
    guessing = ["guess-number", "mastermind", "minesweeper", "wordle", "hangman"]
    names = [*guessing, "sudoku", "fifteen-puzzle", "hanoi", "2048", "sokoban"]
    assert [f"game/{name}-{level}" for name in names for level in ("easy", "hard")] == IDS


def test_games_import_without_torch():
    script = (
        "import sys; from turnwise.envs import make; from turnwise.envs.games import SPECS\n"
        "for spec in SPECS: make(spec.id)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("I say \\boxed{7}.", "7"),
        ("\\boxed{1} or rather \\boxed{ 2 }", "2"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed{4} and \\boxed{5", "4"),
        ("\\boxed{}", ""),
        ("boxed{6}", None),
        ("", None),
    ],
)
def test_last_closed_box_is_the_action(text: str, content: str | None):
    assert last_box(text) == content


def test_integers_are_plain_ascii_and_zero_is_one_of_them():
    assert [integer(text) for text in ("0", "-3", "+4", "007")] == [0, -3, 4, 7]
    assert [integer(text) for text in ("", "1.0", "x", "\u0663", "1_0", "9" * 5000)] == [None] * 6
    assert integers("2, 3", 2) == integers("2 3", 2) == integers("2,3", 2) == (2, 3)
    assert integers("0 0 0", 3) == (0, 0, 0)
    assert [integers(text, 2) for text in ("", "1", "1 2 3", "1 x", "1 2 x")] == [None] * 5


@pytest.mark.parametrize("env_id", IDS)
def test_reply_without_readable_action_costs_a_tenth_and_ends_the_game(env_id: str):
    for reply in ("no idea", box("?!")):
        env = game(env_id)
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step(reply)
        assert (reward, terminated, truncated) == (-0.1, True, False)
        assert (info["valid"], info["parsed_action"], info["success"]) == (False, None, False)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_reply_has_a_defined_result(env_id: str, reply: str):
    env = game(env_id, dense=True)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(reply)
    assert reward in (FORMAT_ERROR, 0.0)
    assert terminated == (reward == FORMAT_ERROR)
    assert not truncated
    assert info["valid"] is False
    assert len(observation) < 2_000


@pytest.mark.parametrize("env_id", IDS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(reply=st.text(max_size=30), boxed=st.booleans())
def test_any_reply_leaves_a_game_that_goes_on_or_is_over(env_id: str, reply: str, boxed: bool):
    env = game(env_id)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(box(reply) if boxed else reply)
    assert -0.1 <= reward <= 1.0
    assert env.over == (terminated or truncated) == ("success" in info)


@pytest.mark.parametrize("env_id", IDS)
def test_opening_is_short_and_names_the_form_of_an_action(env_id: str):
    observation, info = game(env_id).reset(seed=0)
    assert "\\boxed{" in observation
    assert "Turns left: " in observation
    assert len(observation) < 500
    assert info["state_key"]


@pytest.mark.parametrize("env_id", IDS)
def test_every_step_reports_validity_state_and_action_and_only_the_last_one_success(env_id: str):
    env = game(env_id)
    env.reset(seed=3)
    *earlier, last = [info for _, (*_, info) in play(env, 1_000, expert=True)]
    assert all({"valid", "state_key", "parsed_action"} == info.keys() for info in earlier)
    assert {"valid", "state_key", "parsed_action", "success"} == last.keys()
    assert all(info["valid"] and info["parsed_action"] is not None for info in [*earlier, last])


@pytest.mark.parametrize("env_id", IDS)
def test_turn_limit_truncates_without_success(env_id: str):
    env = game(env_id, max_turns=1)
    if "sokoban" in env_id:  # its rooms must be solvable within the limit, so shorten it afterwards
        env = game(env_id)
        env.max_turns = 1
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        assert observation.endswith("Turns left: 1.")
        *_, reward, terminated, truncated, info = env.step(env.oracle())
        if terminated:
            assert info["success"]
        else:
            assert (reward, truncated, info["success"]) == (0.0, True, False)


def test_playing_on_after_the_end_or_before_the_start_names_the_fix():
    env = game("game/guess-number-easy")
    with pytest.raises(ValueError, match=r"call reset\(\) first"):
        env.step(box("1"))
    env.reset(seed=0)
    env.step("")
    with pytest.raises(ValueError, match=r"call reset\(\) first"):
        env.step(box("1"))


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("game/guess-number-easy", {"high": 1}),
        ("game/guess-number-easy", {"max_turns": 0}),
        ("game/mastermind-easy", {"length": 7, "digits": 6}),
        ("game/minesweeper-easy", {"mines": 7}),
        ("game/hangman-easy", {"lengths": (12,)}),
        ("game/sudoku-easy", {"clues": 16}),
        ("game/fifteen-puzzle-easy", {"size": 2}),
        ("game/hanoi-easy", {"disks": 0}),
        ("game/2048-easy", {"target": 100}),
        ("game/sokoban-easy", {"boxes": 5}),
        ("game/sokoban-easy", {"split": "trian"}),
    ],
)
def test_impossible_settings_are_refused_at_construction(env_id: str, options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"choose|needs at least|nothing to guess"):
        make(env_id, **options)


def test_settings_that_never_yield_a_solvable_game_are_reported_not_searched_for_ever():
    with pytest.raises(ValueError, match="no solvable game in 1000 draws; choose fewer mines"):
        draw_until(lambda: False, "choose fewer mines")


@pytest.mark.parametrize("env_id", IDS)
def test_equal_seeds_give_equal_games_when_instances_interleave(env_id: str):
    first, second, other = game(env_id), game(env_id), game(env_id)
    assert first.reset(seed=5) == second.reset(seed=5)
    other.reset(seed=6)
    while not first.over:
        action = first.sample_random_action()
        assert second.sample_random_action() == action
        if not other.over:
            other.step(other.sample_random_action())
        assert first.step(action) == second.step(action)
    assert second.over


@pytest.mark.parametrize("env_id", IDS)
def test_reset_forgets_the_game_before(env_id: str):
    used, fresh = game(env_id), game(env_id)
    used.reset(seed=1)
    play(used, 5)
    assert used.reset(seed=2) == fresh.reset(seed=2)
    assert play(used, 20) == play(fresh, 20)


@pytest.mark.parametrize("env_id", IDS)
def test_snapshot_continues_exactly_and_stays_usable(env_id: str):
    env, restored = game(env_id), game(env_id)
    env.reset(seed=7)
    play(env, 1)
    snapshot = env.get_state()
    future = play(env, 30)
    for _ in range(2):
        restored.set_state(snapshot)
        assert play(restored, 30) == future


@pytest.mark.parametrize("env_id", IDS)
def test_splits_draw_different_games(env_id: str):
    def hidden(split: str) -> list[Any]:
        env = game(env_id, split=split)
        games: list[Any] = []
        for seed in range(12):
            env.reset(seed=seed)
            games.append(str({name: value for name, value in vars(env.rules).items() if name != "rng"}))
        return games

    train, validation, test = map(hidden, ("train", "validation", "test"))
    assert train != validation != test != train


@pytest.mark.parametrize("env_id", IDS)
def test_asking_the_expert_changes_nothing(env_id: str):
    env = game(env_id)
    env.reset(seed=8)
    play(env, 1)
    if not env.over:
        before = fingerprint(env)
        assert env.oracle() == env.oracle()
        assert fingerprint(env) == before


@pytest.mark.parametrize("env_id", IDS)
def test_random_play_is_well_formed_and_dense_rewards_stay_in_range(env_id: str):
    env = game(env_id, dense=True)
    low, high = env.reward_range
    assert (low, high) == (-0.1, 1.0)
    for seed in range(10):
        env.reset(seed=seed)
        steps = play(env, 400)
        rewards = [reward for _, (_, reward, *_) in steps]
        assert all(0 <= reward <= high for reward in rewards)
        assert sum(rewards) <= 1 + 1e-9
        assert all(info["parsed_action"] is not None for _, (*_, info) in steps)
        assert all(info["valid"] for _, (*_, info) in steps)


@pytest.mark.parametrize("env_id", IDS)
def test_won_game_totals_one_whether_dense_or_sparse(env_id: str):
    for dense in (False, True):
        env = game(env_id, dense=dense)
        env.reset(seed=9)
        rewards = [reward for _, (_, reward, *_) in play(env, 400, expert=True)]
        assert sum(rewards) == pytest.approx(1.0)
        assert dense or rewards[:-1] == [0.0] * (len(rewards) - 1)
