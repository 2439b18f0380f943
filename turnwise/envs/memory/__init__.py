"""Registrations of dialogues with a memory: who keeps it, and who answers from it."""

from turnwise.envs.registry import EnvSpec

_ENTRY = "turnwise.envs.memory.memory_env:MemoryEnv"

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="memory/manage",
        entry_point=_ENTRY,
        kwargs={"seats": ["manager"], "memories": 8},
        summary="Add, update and delete memories of a long dialogue; a scripted reader answers from them.",
    ),
    EnvSpec(
        id="memory/answer",
        entry_point=_ENTRY,
        kwargs={"seats": ["answerer"]},
        summary="Choose from 60 memories of a long dialogue what matters for a question, and answer it.",
    ),
    EnvSpec(
        id="memory/both",
        entry_point=_ENTRY,
        summary="A manager who keeps the memories and an answerer who reads them; both earn the exact match.",
    ),
)
