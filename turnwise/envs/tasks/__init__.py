"""Registrations of the tasks: single questions, your own, key lookup, letters to find, actions of unequal length."""

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
        id="actions/two-ways",
        entry_point="turnwise.envs.tasks.two_ways:TwoWays",
        summary="A short action that pays 0.9 and a long one that pays 1: which is learned depends on the discount.",
    ),
    EnvSpec(
        id="actions/microwave",
        entry_point="turnwise.envs.tasks.microwave:Microwave",
        summary="Open, put, close: three actions of unequal length in at most five turns.",
    ),
    EnvSpec(
        id="letters/tree",
        entry_point="turnwise.envs.tasks.letter_tree:LetterTree",
        summary="Three letters of four, with four right answers: does a policy keep giving all of them?",
    ),
    EnvSpec(
        id="letters/bank",
        entry_point="turnwise.envs.tasks.letter_bank:LetterBank",
        summary="64 keys and their letters, to be learned by heart; a beginner knows from 2% to 90% of the answers.",
    ),
    EnvSpec(
        id="tasks/own",
        entry_point="turnwise.envs.tasks.own_tasks:OwnTasks",
        summary="Questions from your own JSONL file or list (tasks=…), paid by the recipe's rewards (env.rewards).",
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
