"""Registrations of dialogues with a person who is upset: their feeling is the reward."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="feelings/talk",
        entry_point="turnwise.envs.feelings.feeling_model_user:make_talk",
        summary="Talk with somebody who is upset and hopes for one of eight things; every point has a written reason.",
    ),
    EnvSpec(
        id="feelings/brief",
        entry_point="turnwise.envs.feelings.feeling_talk:Talk",
        summary="The same in single words, for the smallest models.",
        kwargs={"language": "brief"},
    ),
)
