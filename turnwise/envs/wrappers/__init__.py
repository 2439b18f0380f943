"""Wrappers: each adds one thing to any environment, and they stack: `TurnLimit(ToolEnv(env, tools), max_turns=8)`."""

from turnwise.envs.wrappers.episode_statistics import EpisodeStatistics
from turnwise.envs.wrappers.history import History
from turnwise.envs.wrappers.limits import TimeLimit, TokenBudget, TurnLimit, rough_token_count
from turnwise.envs.wrappers.shaping import PotentialReward, ShapedReward
from turnwise.envs.wrappers.tools import ToolEnv
from turnwise.envs.wrappers.weighted_rewards import Rewards
from turnwise.envs.wrappers.wrapper import Wrapper, then

__all__ = [
    "EpisodeStatistics",
    "History",
    "PotentialReward",
    "Rewards",
    "ShapedReward",
    "TimeLimit",
    "TokenBudget",
    "ToolEnv",
    "TurnLimit",
    "Wrapper",
    "rough_token_count",
    "then",
]
