"""Reward models: a number for every answer, learnt from preferences or scores."""

from turnwise.reward_models.reward_model import RewardModel
from turnwise.reward_models.reward_training import RewardTraining, train_reward_model

__all__ = ["RewardModel", "RewardTraining", "train_reward_model"]
