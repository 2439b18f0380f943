"""One-command tasks in few words, for the smallest models: `count eagle /home/user/a.txt into /home/user/y.txt`."""

from __future__ import annotations

from collections.abc import Callable

from turnwise.envs.terminals.families.material import lines
from turnwise.envs.terminals.task_draft import Draft
from turnwise.envs.terminals.terminal_task import HOME

NOUNS = ("eagle", "falcon", "heron", "ibis", "kite", "lark", "owl", "robin")
INPUTS = tuple(f"{HOME}/{name}.txt" for name in "abcd")
OUTPUTS = tuple(f"{HOME}/{name}.txt" for name in "wxyz")
NUMBERS = ("2", "3", "4")
_COMMANDS: dict[str, tuple[str, Callable[[list[str], str], list[str]]]] = {
    "count": ("grep -c {what} {path}", lambda rows, word: [str(sum(word in row for row in rows))]),
    "keep": ("grep {what} {path}", lambda rows, word: [row for row in rows if word in row]),
    "drop": ("grep -v {what} {path}", lambda rows, word: [row for row in rows if word not in row]),
    "first": ("head -n {what} {path}", lambda rows, number: rows[: int(number)]),
    "last": ("tail -n {what} {path}", lambda rows, number: rows[-int(number) :]),
    "flip": ("tac {path}", lambda rows, _: rows[::-1]),
    "order": ("sort {path}", lambda rows, _: sorted(rows)),
    "copy": ("cat {path}", lambda rows, _: rows),
}
"""By verb: the command, and what it prints."""


def _job(verb: str) -> Callable[[Draft], str]:
    command, expected = _COMMANDS[verb]

    def job(draft: Draft) -> str:
        rng = draft.rng
        rows = [" ".join(rng.sample(NOUNS, 2)) for _ in range(rng.randint(6, 8))]
        word = rng.choice(rows[0].split())
        rows.append(" ".join(rng.sample([noun for noun in NOUNS if noun != word], 2)))  # a line is left to keep or drop
        what = "" if "{what}" not in command else rng.choice(NUMBERS) if "-n" in command else word
        path, out = draft.file(rng.choice(INPUTS), lines(rows)), draft.absent(rng.choice(OUTPUTS))
        return draft.write(
            out,
            lines(expected(rows, what)),
            ask=" ".join(f"{verb} {what} {path} into {out}".split()),
            solve=f"{command.format(what=what, path=path)} > {out}",
        )

    return job


BRIEF_JOBS = tuple(_job(verb) for verb in _COMMANDS)
BRIEF_WORDS = tuple(
    dict.fromkeys(
        (
            *(*_COMMANDS, "into", ">", "-c", "-v", "-n", *NOUNS, *NUMBERS, *INPUTS, *OUTPUTS),
            *(f"<command>{command.split()[0]}" for command, _ in _COMMANDS.values()),
            *(f"{path}</command>" for path in OUTPUTS),
        )
    )
)
"""All words of these tasks and of the turns that solve them."""
