"""Minesweeper, sudoku, fifteen-puzzle, hanoi, 2048 and sokoban: rules and dense rewards by hand."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.envs.games.fifteen_puzzle import fifteen_puzzle
from turnwise.envs.games.game import Game, box
from turnwise.envs.games.hanoi import hanoi
from turnwise.envs.games.minesweeper import minesweeper
from turnwise.envs.games.minesweeper_deduction import neighbours, safe_cells
from turnwise.envs.games.sokoban import sokoban
from turnwise.envs.games.sudoku import sudoku
from turnwise.envs.games.sudoku_boards import completions
from turnwise.envs.games.twenty_forty_eight import twenty_forty_eight
from turnwise.envs.games.twenty_forty_eight_board import merge, slide

SOLVED = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]
WALL_OF_MINES = {(1, 2), (2, 2), (3, 2), (4, 2)}
EMPTY_ROW = (0, 0, 0, 0)


def arrange(env: Game, **position: Any) -> Game:
    """The game, dealt and then set to a position from which progress counts."""
    env.reset(seed=0)
    vars(env.rules).update(position)
    env.start = env.rules.progress()
    return env


def rewards(env: Game, *contents: str) -> list[float]:
    return [env.step(box(content))[1] for content in contents]


def refused(env: Game, *contents: str) -> bool:
    """Whether each action is against the rules, earns nothing and leaves the game running as it was."""
    before = env.rules.state_key()
    steps = [env.step(box(content)) for content in contents]
    return all(step[1:4] == (0.0, False, False) and not step[4]["valid"] for step in steps) and (
        env.rules.state_key() == before
    )


def test_minesweeper_opens_around_zeros_and_shows_counts():
    env = arrange(minesweeper(size=4, mines=4, max_turns=9), mines=WALL_OF_MINES, opened=set())
    observation, *_, info = env.step(box("1 4"))
    assert info["state_key"] == "# # 2 0\n# # 3 0\n# # 3 0\n# # 2 0"
    assert observation == info["state_key"] + "\nTurns left: 8."
    assert info["parsed_action"] == (1, 4)
    assert refused(env, "1 4", "0 1", "5 5", "1 -1")


def test_dense_minesweeper_pays_the_share_of_safe_cells_each_move_opens():
    env = arrange(minesweeper(size=4, mines=4, max_turns=9, dense=True), mines=WALL_OF_MINES, opened=set())
    assert rewards(env, "1 4", "1 1", "2 1", "3 1") == pytest.approx([8 / 12, 1 / 12, 1 / 12, 1 / 12])
    observation, reward, terminated, _, info = env.step(box("4,1"))
    assert observation == "2 # 2 0\n3 # 3 0\n3 # 3 0\n2 # 2 0\nCleared!"
    assert (reward, terminated, info["success"]) == (pytest.approx(1 / 12), True, True)


def test_minesweeper_is_lost_on_a_mine():
    env = arrange(minesweeper(size=4, mines=4, max_turns=9, dense=True), mines=WALL_OF_MINES, opened=set())
    _, reward, terminated, truncated, info = env.step(box("2 2"))
    assert (reward, terminated, truncated, info["valid"], info["success"]) == (0.0, True, False, True, False)


def test_deduction_subtracts_facts_and_never_guesses():
    a, b, c = (1, 1), (1, 2), (1, 3)
    assert safe_cells({(frozenset([a, b]), 0)}) == {a, b}
    assert safe_cells({(frozenset([a, b]), 1), (frozenset([a, b, c]), 1)}) == {c}
    assert safe_cells({(frozenset([a, b]), 2), (frozenset([b, c]), 1)}) == {c}
    assert safe_cells({(frozenset([a, b]), 1), (frozenset([b, c]), 1)}) == set()
    assert [len(neighbours(cell, 4)) for cell in ((1, 1), (1, 2), (2, 2))] == [3, 5, 8]


def test_sudoku_takes_right_digits_and_refuses_wrong_ones_without_spoiling_the_board():
    board = [0, *SOLVED[1:-1], 0]
    env = arrange(sudoku(block=2, clues=10, max_turns=12, dense=True), solution=SOLVED, board=board)
    assert refused(env, "1 2 1", "5 1 1", "0 1 1", "1 1 5")
    _, reward, *_, info = env.step(box("1 1 2"))
    assert (reward, info["valid"], info["state_key"]) == (0.0, True, ". 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 .")
    assert rewards(env, "1 1 1") == [0.5]
    assert env.step(box("4 4 1")) == (
        "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1\nSolved!",
        0.5,
        True,
        False,
        {"valid": True, "state_key": "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1", "parsed_action": (4, 4, 1), "success": True},
    )


def test_completions_finds_both_solutions_of_an_ambiguous_board():
    board = [0 if cell in (0, 1, 8, 9) else digit for cell, digit in enumerate(SOLVED)]
    swapped = [2, 1, *SOLVED[2:8], 1, 2, *SOLVED[10:]]
    assert list(completions(board, 2)) == [SOLVED, swapped]


def test_fifteen_puzzle_slides_tiles_into_the_gap():
    env = arrange(fifteen_puzzle(size=3, scramble=1, max_turns=9), tiles=[1, 2, 3, 4, 5, 6, 7, 0, 8], way_back=["left"])
    assert refused(env, "up")
    assert env.step(box("Down"))[4]["state_key"] == "1 2 3\n4 _ 6\n7 5 8"
    assert [env.oracle(), env.step(box("up"))[3], env.oracle()] == [box("up"), False, box("left")]
    assert env.step(box("left"))[:4] == ("1 2 3\n4 5 6\n7 8 _\nSolved!", 1.0, True, False)


def test_dense_fifteen_puzzle_pays_new_tiles_in_place():
    env = arrange(
        fifteen_puzzle(size=3, scramble=2, max_turns=9, dense=True),
        tiles=[1, 2, 3, 4, 5, 6, 0, 7, 8],
        way_back=["left", "left"],
    )
    assert rewards(env, "left", "right", "left", "left") == [0.5, 0.0, 0.0, 0.5]


def test_dense_fifteen_puzzle_pays_nothing_for_the_gap_in_place():
    env = arrange(fifteen_puzzle(size=3, scramble=2, max_turns=9, dense=True), tiles=[1, 2, 3, 4, 5, 6, 8, 0, 7])
    assert rewards(env, "left") == [0.0]
    assert env.rules.state_key() == "1 2 3\n4 5 6\n8 7 _"


def test_hanoi_refuses_a_larger_disk_on_a_smaller_one_and_an_empty_peg():
    env = arrange(hanoi(disks=3, max_turns=20), pegs=["A", "A", "A"])
    assert env.rules.state_key() == "A: 3 2 1\nB:\nC:"
    assert env.step(box("a -> c"))[4] == {"valid": True, "state_key": "A: 3 2\nB:\nC: 1", "parsed_action": "A C"}
    assert refused(env, "A C", "B A", "A A")


def test_dense_hanoi_pays_each_move_of_the_shortest_way_once():
    env = arrange(hanoi(disks=3, max_turns=20, dense=True), pegs=["A", "A", "A"])
    assert rewards(env, "A C", "C B", "B C") == pytest.approx([1 / 7, 0, 0])
    assert rewards(env, "A B", "C B", "A C", "B A", "B C", "A C") == pytest.approx([1 / 7] * 6)
    assert env.over


@pytest.mark.parametrize(
    ("row", "merged"),
    [
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((4, 2, 2, 0), (4, 4, 0, 0)),
        ((2, 0, 2, 4), (4, 4, 0, 0)),
        ((2, 2, 2, 0), (4, 2, 0, 0)),
        ((0, 0, 0, 2), (2, 0, 0, 0)),
        ((2, 4, 2, 4), (2, 4, 2, 4)),
    ],
)
def test_2048_row_merges_each_tile_once(row: tuple[int, ...], merged: tuple[int, ...]):
    assert merge(row) == merged


def test_2048_slides_in_all_four_directions():
    board = ((2, 0, 0, 2), EMPTY_ROW, EMPTY_ROW, (2, 0, 0, 0))
    assert slide(board, "left") == ((4, 0, 0, 0), EMPTY_ROW, EMPTY_ROW, (2, 0, 0, 0))
    assert slide(board, "right") == ((0, 0, 0, 4), EMPTY_ROW, EMPTY_ROW, (0, 0, 0, 2))
    assert slide(board, "up") == ((4, 0, 0, 2), EMPTY_ROW, EMPTY_ROW, EMPTY_ROW)
    assert slide(board, "down") == (EMPTY_ROW, EMPTY_ROW, EMPTY_ROW, (4, 0, 0, 2))


def test_2048_adds_one_tile_a_move_and_refuses_moves_that_change_nothing():
    env = arrange(twenty_forty_eight(target=64, max_turns=9), board=((2, 0, 0, 0), EMPTY_ROW, EMPTY_ROW, EMPTY_ROW))
    assert refused(env, "left", "up")
    tiles = env.step(box("right"))[4]["state_key"].split()
    assert len([tile for tile in tiles if tile != "."]) == 2
    assert tiles[3] == "2"


def test_dense_2048_pays_each_doubling_towards_the_target():
    rows = ((4, 4, 8, 16), (32, 0, 0, 0), EMPTY_ROW, EMPTY_ROW)
    env = arrange(twenty_forty_eight(target=64, max_turns=9, dense=True), board=rows)
    assert env.start == 0.75
    env = arrange(twenty_forty_eight(target=64, max_turns=9, dense=True), board=((4, 4, 0, 0), *[EMPTY_ROW] * 3))
    assert rewards(env, "left") == [0.25]
    vars(env.rules)["board"] = ((32, 32, 0, 0), *[EMPTY_ROW] * 3)
    assert env.step(box("left"))[:4] == (
        "64  .  .  .\n" + "\n".join([" .  .  .  ."] * 3) + "\nYou made 64!",
        0.75,
        True,
        False,
    )


def test_2048_is_lost_when_no_move_is_left():
    board = ((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 8), (4, 2, 8, 8))
    env = arrange(twenty_forty_eight(target=64, max_turns=9), board=board)
    observation, reward, terminated, truncated, info = env.step(box("left"))
    assert observation.endswith("No move is left. The game is lost.")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


def room(env: Game, drawing: str) -> Game:
    """Sokoban set to a drawn room."""
    cells = {(row, column): symbol for row, line in enumerate(drawing.split()) for column, symbol in enumerate(line)}
    (player,) = (cell for cell, symbol in cells.items() if symbol in "@+")
    return arrange(
        env,
        floor=frozenset(cell for cell, symbol in cells.items() if symbol != "#"),
        goals=frozenset(cell for cell, symbol in cells.items() if symbol in ".*+"),
        boxes=frozenset(cell for cell, symbol in cells.items() if symbol in "$*"),
        player=player,
        plan=None,
    )


def test_sokoban_walks_pushes_and_stops_at_walls():
    env = room(sokoban(size=5, boxes=1, pulls=3, max_turns=30), "##### #.--# #@$-# #---# #####")
    assert env.step(box("right"))[4]["state_key"] == "#####\n#.--#\n#-@$#\n#---#\n#####"
    assert refused(env, "right")
    assert env.step(box("left"))[4]["valid"]
    assert env.step(box("up"))[4]["state_key"] == "#####\n#+--#\n#--$#\n#---#\n#####"


def test_sokoban_refuses_to_push_two_boxes():
    env = room(sokoban(size=6, boxes=2, pulls=3, max_turns=30), "###### #@$$-# #--..# #----# #----# ######")
    assert refused(env, "right", "up", "left")


def test_sokoban_is_won_with_every_box_on_a_goal():
    env = room(sokoban(size=5, boxes=1, pulls=3, max_turns=30), "##### #@$.# #---# #---# #####")
    assert env.oracle() == box("right")
    assert env.step(box("right"))[:4] == ("#####\n#-@*#\n#---#\n#---#\n#####\nSolved!", 1.0, True, False)


def test_dense_sokoban_pays_the_share_of_boxes_at_home_at_the_limit_only():
    env = room(sokoban(size=6, boxes=2, pulls=3, max_turns=30, dense=True), "###### #@$.-# #----# #--$.# #----# ######")
    env.max_turns = 2
    assert rewards(env, "right") == [0.0]
    _, reward, terminated, truncated, info = env.step(box("down"))
    assert (reward, terminated, truncated, info["success"]) == (0.5, False, True, False)
