"""Environments: the contract, the registry and everything that comes built in."""

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.registry import EnvSpec, find, make, register, specs

__all__ = ["Env", "EnvSpec", "Info", "Reset", "Step", "find", "make", "register", "specs"]
