"""Registrations of the search environments."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = ()
