"""Registrations of the tasks: single questions, and key lookup."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    *(
        EnvSpec(
            id=f"lookup/{name}",
            entry_point="turnwise.envs.tasks.lookup:Lookup",
            summary="Follow a chain of keys through a hidden table.",
            kwargs={"hops": hops},
        )
        for name, hops in {"2hop": (2,), "3hop": (3,), "mixed": (2, 3)}.items()
    ),
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
