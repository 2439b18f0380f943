"""Registrations of the chats: free text in answer to prompts."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="chat/prompts",
        entry_point="turnwise.envs.chat.prompts:make_prompts",
        summary="Short reviews in a small language whose reward can be hacked, or prompts from a file (path=…).",
    ),
    EnvSpec(
        id="chat/prompts-rare",
        entry_point="turnwise.envs.chat.prompts:make_prompts",
        summary="The same, but only a perfect review counts: an imitator of the usual ones seldom writes one.",
        kwargs={"score": "success", "require": 1.0},
    ),
    EnvSpec(
        id="chat/cory",
        entry_point="turnwise.envs.chat.cory:make_cory",
        summary="Two answer the prompts of chat/prompts: a pioneer, and an observer who reads the pioneer's answer.",
    ),
)
