"""TextArena games, for one player or several seats: `make("textarena/TicTacToe-v0")`."""

from __future__ import annotations

import re
from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY

from turnwise.envs.adapters.isolated_random import IsolatedRandom
from turnwise.envs.adapters.names import check_name
from turnwise.envs.base import ONE_SEAT, Env, Info, Reset, Step

MAX_PLAYERS = 15
MAX_ACTION_CHARACTERS = 4_000
"""Only the end of a longer action is kept: games echo actions to all players, and Python rejects longer numbers."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")


class TextArena(Env):
    """A TextArena game. An observation has what its seat has not read yet, so histories grow only by what is new.

    `players` defaults to the fewest the game accepts. With several players the seats are `player_0`, `player_1`, ...
    """

    reward_range = (-1.0, 1.0)
    # The games draw from the process-global generators: see `isolated_random`.
    execution = "process"

    def __init__(self, *, name: str, players: int | None = None, split: str = "train") -> None:
        super().__init__(split=split)
        check_name("TextArena game", name, ENV_REGISTRY)
        self.name = name
        self.random = IsolatedRandom(0)
        with self.random.swapped_in():
            self.game = _load(name)
            self.players = players or _fewest_players(self.game)
        self.seats = ONE_SEAT if self.players == 1 else tuple(f"player_{index}" for index in range(self.players))

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        """Start a game; the first seat reads its rules."""
        super().reset(seed=seed)
        number = self.rng.getrandbits(31)
        self.random = IsolatedRandom(number)
        with self.random.swapped_in():
            self.game = _load(self.name)
            self.game.reset(num_players=self.players, seed=number)
        self.observation = self._read()
        return self.observation, self._seat()

    def step(self, action: str) -> Step:
        """Make the acting seat's move; the next seat reads the answer."""
        state = self.game.state
        actor = state.current_player_id
        with self.random.swapped_in():
            done, _ = self.game.step(action[-MAX_ACTION_CHARACTERS:])
        valid = not (state.error_count or state.game_info[actor]["invalid_move"])
        if done:
            return self._finish(actor, valid)
        self.observation = self._read()
        return self.observation, 0.0, False, False, {"valid": valid, **self._seat()}

    def sample_random_action(self) -> str:
        """A bracketed move that the last observation mentions, or a bracketed number."""
        moves = [move for move in _MOVE.findall(self.observation) if not move.startswith(("[Player", "[GAME"))]
        return self.rng.choice([*moves, f"[{self.rng.randint(1, 9)}]"])

    def _finish(self, actor: int, valid: bool) -> Step:
        rewards, game_info = self.game.close()
        by_player = [_number(rewards.get(player, 0.0)) for player in range(self.players)]
        reason = str(game_info[actor].get("reason", "The game is over."))
        if self.seats == ONE_SEAT:
            return reason, by_player[0], True, False, {"valid": valid, "success": by_player[0] >= 1.0}
        by_seat = dict(zip(self.seats, by_player, strict=True))
        return reason, by_player[actor], True, False, {"valid": valid, "rewards": by_seat, "seat": self.seats[actor]}

    def _read(self) -> str:
        """What the acting player has not seen yet; its own moves are already in its history."""
        player, roles = self.game.state.current_player_id, self.game.state.role_mapping
        messages = self.game.state.get_current_player_observation()
        return "\n".join(
            message if sender == textarena.GAME_ID else f"[{roles.get(sender, f'Player {sender}')}] {message}"
            for sender, message, _ in messages
            if sender != player
        )

    def _seat(self) -> Info:
        return {} if self.seats == ONE_SEAT else {"seat": self.seats[self.game.state.current_player_id]}


def _load(name: str) -> Any:
    try:
        return textarena.make(name)
    except (ImportError, LookupError, OSError, SyntaxError) as error:
        raise ValueError(
            f"TextArena cannot load {name!r} here; make this available or choose another: {error}"
        ) from error


def _fewest_players(game: Any) -> int:
    """Games state their number of players only by rejecting others in `reset`; many do not reject a single player."""
    for players in range(1, MAX_PLAYERS + 1):
        try:
            game.reset(num_players=players, seed=0)
        except (AssertionError, ValueError):
            continue
        if players > 1 or isinstance(game.state, textarena.SinglePlayerState):
            return players
    raise ValueError(f"no number of players up to {MAX_PLAYERS} suits {game.env_id}; pass players=...")


def _number(reward: Any) -> float:
    """Some games return the reason of an invalid move in place of its reward; TextArena's default is -1."""
    return float(reward) if isinstance(reward, int | float) else -1.0
