"""Ways to damage a run folder: what disks, copies, editors and strangers do to files."""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_DEEP = 100_000
_HUGE = 20 * 2**20
_MAIN = 0.7
"""Share of damages in what most commands read: the run's own files and its newest checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A file of a run folder that is to be damaged, and what lies about it."""

    run: Path
    path: Path
    outside: Path
    """A folder that no command may touch."""
    rng: random.Random

    @property
    def name(self) -> str:
        """Where the file lies in its run."""
        return self.path.relative_to(self.run).as_posix()


def choose_file(run: Path, rng: random.Random) -> Path:
    """A file of the run; each kind of file comes as often, however many there are of it."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    newest = max((run / "checkpoints").glob("step_*"))
    main = [path for path in files if path.parent in (run, run / "rollouts") or path.is_relative_to(newest)]
    kinds: defaultdict[str, list[Path]] = defaultdict(list)
    for path in main if rng.random() < _MAIN else files:
        kinds[path.name.split("_")[0]].append(path)
    return rng.choice(kinds[rng.choice(sorted(kinds))])


def flip_bits(victim: Victim) -> None:
    content = bytearray(victim.path.read_bytes())
    for _ in range(victim.rng.choice((1, 1, 8)) if content else 0):
        content[victim.rng.randrange(len(content))] ^= 1 << victim.rng.randrange(8)
    victim.path.write_bytes(content)


def truncate(victim: Victim) -> None:
    os.truncate(victim.path, victim.rng.randrange(victim.path.stat().st_size + 1))


def empty(victim: Victim) -> None:
    victim.path.write_bytes(b"")


def delete(victim: Victim) -> None:
    victim.path.unlink()


def zero_a_block(victim: Victim) -> None:
    content = bytearray(victim.path.read_bytes())
    start = victim.rng.randrange(len(content) + 1)
    content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    victim.path.write_bytes(content)


def append_garbage(victim: Victim) -> None:
    with victim.path.open("ab") as file:
        file.write(victim.rng.choice((b"\0", b"\n", b"\xff" * 100, b"{}\n", b"step: 7\n", victim.rng.randbytes(5000))))


def edit_a_number(victim: Victim) -> None:
    """What a text editor would do: a digit becomes another, and the file stays well-formed."""
    content = bytearray(victim.path.read_bytes())
    digits = [place for place, byte in enumerate(content) if byte in b"0123456789"] or [0]
    place = victim.rng.choice(digits)
    content[place : place + 1] = victim.rng.choice(b"123456789").to_bytes(1, "big")
    victim.path.write_bytes(content)


def repeat_a_line(victim: Victim) -> None:
    lines = victim.path.read_bytes().splitlines(keepends=True) or [b""]
    place = victim.rng.randrange(len(lines))
    victim.path.write_bytes(b"".join([*lines[:place], lines[place], *lines[place:]]))


def swap_with_another(victim: Victim) -> None:
    other = choose_file(victim.run, victim.rng)
    mine, theirs = victim.path.read_bytes(), other.read_bytes()
    victim.path.write_bytes(theirs)
    other.write_bytes(mine)


def make_a_folder_of_it(victim: Victim) -> None:
    victim.path.unlink()
    victim.path.mkdir()
    (victim.path / "inside").write_text("x")


def make_a_pipe_of_it(victim: Victim) -> None:
    victim.path.unlink()
    os.mkfifo(victim.path)


def link_outside(victim: Victim) -> None:
    """A link to an equal file elsewhere: whoever writes here writes there."""
    target = victim.outside / "linked"
    shutil.move(victim.path, target)
    victim.path.symlink_to(target)


def link_to_nothing(victim: Victim) -> None:
    victim.path.unlink()
    victim.path.symlink_to(victim.outside / "nothing")


def link_the_folder_outside(victim: Victim) -> None:
    folder = victim.path.parent if victim.path.parent != victim.run else victim.run / "rollouts"
    target = victim.outside / "folder"
    shutil.move(folder, target)
    folder.symlink_to(target)


def nest_without_end(victim: Victim) -> None:
    opening = victim.rng.choice((b"[", b'{"a":', b"- ", b"? "))
    victim.path.write_bytes(opening * _DEEP)


def blow_up(victim: Victim) -> None:
    victim.path.write_bytes(b'{"a": [' + b"1, " * (_HUGE // 3) + b"1]}")


def leave_a_stray(victim: Victim) -> None:
    names = ("zz.safetensors", "model.bin", "x.draft", "step_999999", "step_000001.old.draft", "notes.txt", ".hidden")
    stray = victim.path.with_name(victim.rng.choice(names))
    if not stray.exists():
        stray.write_bytes(victim.rng.choice((b"", victim.path.read_bytes())))


DAMAGES: tuple[Callable[[Victim], None], ...] = (
    *(flip_bits, flip_bits, truncate, truncate, empty, delete, zero_a_block, append_garbage, edit_a_number),
    *(repeat_a_line, swap_with_another, make_a_folder_of_it, make_a_pipe_of_it, link_outside, link_to_nothing),
    *(link_the_folder_outside, nest_without_end, blow_up, leave_a_stray),
)
