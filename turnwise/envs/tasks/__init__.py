"""Registrations of the tasks environments."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = ()
