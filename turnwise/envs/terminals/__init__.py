"""Registrations of the terminal environments."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="terminal/tasks",
        entry_point="turnwise.envs.terminals.terminal_env:Terminal",
        summary="Work in a real bash shell until a hidden test of the files passes.",
    ),
)
