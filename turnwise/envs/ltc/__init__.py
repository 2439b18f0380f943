"""Registrations of dialogues in which several agents learn from what the others say (LTC, 2310.01444)."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="ltc/dialogue",
        entry_point="turnwise.envs.ltc.dialogue:Dialogue",
        summary="A key lookup by two: a thinker who sees the table's answers, and an actor who hears the thinker.",
    ),
    EnvSpec(
        id="ltc/teacher-student",
        entry_point="turnwise.envs.ltc.teaching:Teaching",
        summary="A student answers from memory, and a teacher corrects it.",
    ),
)
