"""Registrations of the games environments."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = ()
