"""Registrations of the adapters environments."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = ()
