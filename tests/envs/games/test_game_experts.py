"""Every expert wins, from the start and from positions that a player has spoilt."""

from __future__ import annotations

import random
from collections import Counter, deque
from itertools import islice, product
from typing import Any

import pytest

from turnwise.envs.games import SPECS
from turnwise.envs.games.game import Game
from turnwise.envs.games.guess_number import GuessNumber, guess_number
from turnwise.envs.games.hangman import Hangman, hangman
from turnwise.envs.games.hanoi import Hanoi
from turnwise.envs.games.minesweeper import Minesweeper
from turnwise.envs.games.sokoban import Sokoban
from turnwise.envs.games.sokoban_solver import beyond, solve
from turnwise.envs.games.sudoku import Sudoku
from turnwise.envs.games.sudoku_boards import completions
from turnwise.envs.games.word_list import words
from turnwise.envs.games.wordle import Wordle, wordle
from turnwise.envs.registry import make


def win(env: Game) -> tuple[bool, int]:
    """Let the expert finish: (success, turns it took)."""
    before, info = env.turn, dict[str, Any]()
    while not env.over:
        *_, info = env.step(env.oracle())
    return info["success"], env.turn - before


@pytest.mark.parametrize("env_id", [spec.id for spec in SPECS])
def test_expert_wins_two_hundred_games_of_two_hundred(env_id: str):
    env = make(env_id)
    assert isinstance(env, Game)
    results = Counter[bool]()
    for seed in range(200):
        env.reset(seed=seed)
        results[win(env)[0]] += 1
    assert results == {True: 200}


def test_guess_number_expert_needs_243_guesses_for_all_fifty_numbers():
    env = guess_number(high=50, max_turns=7)
    rules = env.rules
    assert isinstance(rules, GuessNumber)
    turns = Counter[int]()
    for target in range(1, 51):
        env.reset(seed=0)
        rules.target = target
        turns[win(env)[1]] += 1
    assert turns == {1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 19}
    assert sum(count * number for count, number in turns.items()) / 50 == 4.86


def test_wordle_expert_finds_every_listed_word_within_six_guesses():
    env = wordle(max_turns=6)
    rules = env.rules
    assert isinstance(rules, Wordle)
    turns = Counter[int]()
    for word in words(5):
        env.reset(seed=0)
        rules.word = word
        success, taken = win(env)
        assert success, word
        turns[taken] += 1
    assert sum(count * number for count, number in turns.items()) / len(words(5)) < 3.1


def test_hangman_expert_uncovers_every_listed_word_with_nine_lives():
    env = hangman(lengths=(4, 5, 6, 7, 8), lives=9, max_turns=17)
    rules = env.rules
    assert isinstance(rules, Hangman)
    for word in words(4, 5, 6, 7, 8):
        env.reset(seed=0)
        rules.word = word
        assert win(env)[0], word


def test_word_list_is_sorted_lower_case_and_large_enough():
    listed = words(4, 5, 6, 7, 8)
    assert list(listed) == sorted(set(listed))
    assert all(word.isascii() and word.isalpha() and word.islower() for word in listed)
    assert len(words(5)) >= 600
    assert len(listed) >= 1_500


@pytest.mark.parametrize("name", ["fifteen-puzzle-easy", "fifteen-puzzle-hard", "hanoi-hard", "sudoku-easy"])
def test_expert_wins_after_random_moves_of_a_player(name: str):
    env = make(f"game/{name}", max_turns=200)
    assert isinstance(env, Game)
    for seed in range(50):
        env.reset(seed=seed)
        for _ in range(15):
            if not env.over:
                env.step(env.sample_random_action())
        if not env.over:
            assert win(env)[0]


def test_minesweeper_expert_clears_the_field_after_lucky_openings_of_a_player():
    env = make("game/minesweeper-hard")
    assert isinstance(env, Game)
    rules = env.rules
    assert isinstance(rules, Minesweeper)
    for seed in range(30):
        env.reset(seed=seed)
        chance = random.Random(seed)
        closed = [cell for cell in product(range(1, 9), repeat=2) if cell not in rules.opened | rules.mines]
        for row, column in chance.sample(closed, min(4, len(closed) - 1)):
            if not env.over:
                env.step(f"\\boxed{{{row} {column}}}")
        if not env.over:
            assert win(env)[0]


def test_minesweeper_expert_plays_the_same_when_the_mines_it_cannot_see_differ():
    rules = Minesweeper(size=4, mines=2)
    rules.opened = {(1, 1), (1, 2), (1, 3), (1, 4)}
    rules.mines = {(2, 1), (4, 1)}
    first = rules.oracle()
    rules.mines = {(2, 1), (4, 4)}
    assert rules.oracle() == first == "2 2"


def test_hanoi_expert_takes_a_shortest_way_from_every_position():
    rules = Hanoi(disks=3)
    rules.pegs = ["C"] * 3
    shortest = {"CCC": 0}
    queue = deque(["CCC"])
    while queue:  # moves are reversible, so distances from the goal are distances to it
        position = queue.popleft()
        for source, target in product("ABC", repeat=2):
            rules.pegs = list(position)
            if rules.play(f"{source} {target}").valid and "".join(rules.pegs) not in shortest:
                shortest["".join(rules.pegs)] = shortest[position] + 1
                queue.append("".join(rules.pegs))
    assert len(shortest) == 27
    assert shortest["AAA"] == 7
    for position, distance in shortest.items():
        rules.pegs = list(position)
        assert rules.progress() == 1 - distance / 7
        if distance:
            rules.play(rules.oracle())
            assert shortest["".join(rules.pegs)] == distance - 1


@pytest.mark.parametrize(("block", "clues"), [(2, 10), (3, 50)])
def test_sudoku_has_its_clues_and_one_solution(block: int, clues: int):
    rules = Sudoku(block=block, clues=clues)
    for seed in range(20):
        rules.deal(random.Random(seed))
        assert sum(digit > 0 for digit in rules.board) == clues
        assert list(islice(completions(rules.board, block), 2)) == [rules.solution]
        rows = [rules.solution[start : start + block**2] for start in range(0, block**4, block**2)]
        assert all(sorted(line) == list(range(1, block**2 + 1)) for line in [*rows, *zip(*rows, strict=True)])


def fewest_pushes(rules: Sokoban) -> int | None:
    """Breadth-first reference over single steps, pushes counted, walks free."""
    start = (rules.boxes, rules.player)
    pushes, queue = {start: 0}, deque([start])
    while queue:
        boxes, player = queue.popleft()
        if boxes == rules.goals:
            return pushes[boxes, player]
        for move in ("up", "down", "left", "right"):
            to, over = beyond(player, move), beyond(beyond(player, move), move)
            pushed = to in boxes
            if to not in rules.floor or (pushed and (over not in rules.floor or over in boxes)):
                continue
            after = (boxes - {to} | {over} if pushed else boxes, to)
            cost = pushes[boxes, player] + pushed
            if cost < pushes.get(after, 10**9):
                pushes[after] = cost
                queue.append(after) if pushed else queue.appendleft(after)
    return None


def test_sokoban_solver_needs_the_fewest_pushes_and_its_steps_solve_the_room():
    rules = Sokoban(size=6, boxes=2, pulls=8, longest=60)
    for seed in range(25):
        rules.deal(random.Random(seed))
        boxes, pushes = rules.boxes, 0
        plan = solve(rules.floor, rules.goals, rules.boxes, rules.player)
        best = fewest_pushes(rules)
        assert plan is not None
        for step in plan:
            assert rules.play(step).valid
            pushes, boxes = pushes + (rules.boxes != boxes), rules.boxes
        assert (rules.boxes, pushes) == (rules.goals, best)


def test_sokoban_expert_recovers_from_a_players_moves_wherever_the_room_is_still_solvable():
    env = make("game/sokoban-easy", max_turns=300)
    assert isinstance(env, Game)
    rules = env.rules
    assert isinstance(rules, Sokoban)
    recovered = dead = 0
    for seed in range(40):
        env.reset(seed=seed)
        for _ in range(8):
            if not env.over:
                env.step(env.sample_random_action())
        if env.over:
            continue
        if fewest_pushes(rules) is None:
            dead += 1
            assert solve(rules.floor, rules.goals, rules.boxes, rules.player) is None
            assert env.step(env.oracle())[4]["valid"]
        else:
            recovered += 1
            assert win(env)[0]
    assert recovered >= 10
    assert dead >= 3
