"""Registrations of the classification tasks: one text, one answer in a tag."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="classify/files",
        entry_point="turnwise.envs.classify.labelled_texts:LabelledTexts",
        summary="Label the texts of a JSONL file (path=…), or give each a number; the answer is in a tag.",
    ),
    EnvSpec(
        id="classify/kinds",
        entry_point="turnwise.envs.classify.kinds_of_words:Kinds",
        summary="Which of four kinds are three words of? Half of them are made-up words, whose kind is random.",
    ),
)
