"""Registrations of the single-question tasks."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="math/arithmetic",
        entry_point="turnwise.envs.tasks.arithmetic:Arithmetic",
        summary="Generated arithmetic with + - *, one answer.",
    ),
    EnvSpec(
        id="math/gsm8k",
        entry_point="turnwise.envs.tasks.gsm8k:make_gsm8k",
        summary="Word problems from a GSM8K-style JSONL (questions=path), Python tool optional (python=true).",
    ),
)
