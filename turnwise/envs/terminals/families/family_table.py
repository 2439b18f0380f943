"""All families by name, and how a task is put together from their jobs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from turnwise.envs.terminals.families import archive_families as archives
from turnwise.envs.terminals.families import data_families as data
from turnwise.envs.terminals.families import file_families as files
from turnwise.envs.terminals.families import program_families as programs
from turnwise.envs.terminals.families import text_families as texts
from turnwise.envs.terminals.families import tool_families as tools
from turnwise.envs.terminals.families.brief_family import BRIEF_JOBS
from turnwise.envs.terminals.families.follow_ups import FOLLOW_UPS
from turnwise.envs.terminals.flawed_tasks import FLAWS, HIDDEN_FLAWS
from turnwise.envs.terminals.task_draft import Draft
from turnwise.envs.terminals.terminal_task import TerminalTask

COMPLEXITIES = (1, 2, 3, 4, 5, 6)
POOL = 1200
"""Tasks of a family where none are named."""
_PLACES = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, kw_only=True)
class TaskFamily:
    """`writers` ask for a text file, from which further steps can start; `doers` ask for another change."""

    writers: tuple[Callable[[Draft], str], ...]
    doers: tuple[Callable[[Draft], None], ...] = ()
    programs: tuple[str, ...] = ()
    """What it needs beside bash, coreutils and Python."""
    brief: bool = False
    """Whether the words are the bare request, for one command."""

    @property
    def complexities(self) -> tuple[int, ...]:
        """Those that it has tasks of."""
        return COMPLEXITIES[:1] if self.brief else COMPLEXITIES

    def missing(self) -> list[str]:
        """Programs that this machine lacks."""
        needed = ("find", "grep", "sed", "awk", "tac", "gzip", *self.programs)
        return [name for name in needed if shutil.which(name, path=_PLACES) is None]


FAMILIES = {
    "files": TaskFamily(writers=(files.find_ending, files.files_with), doers=(files.move_ending, files.delete_ending)),
    "links": TaskFamily(
        writers=(files.dead_links, files.link_target), doers=(files.make_link, files.delete_dead_links)
    ),
    "disk": TaskFamily(writers=(files.largest, files.total_size), doers=(files.delete_large,)),
    "permissions": TaskFamily(
        writers=(files.list_mode, files.mode_table), doers=(files.tighten, files.make_executable)
    ),
    "archives": TaskFamily(
        writers=(archives.list_archive, archives.read_member),
        doers=(archives.pack_folder, archives.unpack),
        programs=("tar", "gzip"),
    ),
    "checksums": TaskFamily(writers=(archives.manifest, archives.damaged, archives.duplicates)),
    "text": TaskFamily(
        writers=(texts.line_range, texts.replace_word, texts.number_of_words), doers=(texts.drop_blank_lines,)
    ),
    "sorting": TaskFamily(writers=(texts.distinct, texts.most_frequent, texts.in_both)),
    "patterns": TaskFamily(writers=(texts.addresses, texts.tickets), doers=(texts.redact,)),
    "logs": TaskFamily(writers=(texts.count_level, texts.messages_of, texts.per_service)),
    "csv": TaskFamily(writers=(data.one_column, data.rows_of_team, data.sum_of_city, data.highest_amounts)),
    "json": TaskFamily(writers=(data.active_names, data.memory_sum), doers=(data.change_entry,)),
    "yaml": TaskFamily(writers=(data.yaml_list, data.yaml_value), doers=(data.change_yaml,)),
    "settings": TaskFamily(writers=(data.setting_names, data.setting_value), doers=(data.change_setting,)),
    "sqlite": TaskFamily(writers=(data.query_team, data.query_sums), doers=(data.update_rows,)),
    "git": TaskFamily(
        writers=(tools.commit_subjects, tools.commit_of_file),
        doers=(tools.make_branch, tools.commit_change),
        programs=("git",),
    ),
    "make": TaskFamily(
        writers=(tools.list_targets, tools.show_recipe), doers=(tools.build_target,), programs=("make",)
    ),
    "cron": TaskFamily(
        writers=(tools.scheduled_at, tools.scheduled_commands), doers=(tools.add_job, tools.disable_job)
    ),
    "diff": TaskFamily(
        writers=(tools.added_lines, tools.different_files), doers=(tools.apply_patch,), programs=("diff", "patch")
    ),
    "processes": TaskFamily(
        writers=(programs.keep_errors, programs.keep_status, programs.stop_in_time, programs.busiest_processes)
    ),
    "encodings": TaskFamily(writers=(programs.decode, programs.unix_lines, programs.to_utf8), programs=("iconv",)),
    "markdown": TaskFamily(writers=(programs.headings_of, programs.link_targets)),
    "brief": TaskFamily(writers=BRIEF_JOBS, brief=True),
}
FULL = tuple(name for name, family in FAMILIES.items() if not family.brief)
"""Families with tasks of all complexities."""
_NAME = re.compile(rf"(?P<sound>(?P<family>[a-z]+)-c(?P<complexity>[1-6])-s\d+)(?:-(?P<flaw>{'|'.join(FLAWS)}))?")
_ORDER = {
    4: "Do the following steps; each needs the one before.",
    5: "Do the following; the parts do not depend on each other.",
}


def task_name(family: str, complexity: int, seed: int) -> str:
    """`csv-c3-s17`: the name says how the task is made."""
    return f"{family}-c{complexity}-s{seed}"


def draft_names(count: int, families: Sequence[str], complexities: Sequence[int], first_seed: int = 0) -> list[str]:
    """Names of so many tasks, families and complexities in turn."""
    kinds = [(name, each) for each in complexities for name in families if each in FAMILIES[name].complexities]
    if not kinds:
        raise ValueError(f"{', '.join(families)} has no tasks of complexity {', '.join(map(str, complexities))}")
    return [task_name(*kinds[place % len(kinds)], first_seed + place // len(kinds)) for place in range(count)]


def make_task(name: str) -> TerminalTask:
    """The task of a name such as `csv-c3-s17`; equal names give equal tasks.

    `csv-c3-s17-wrong-truth` is the same task with a flaw (`FLAWS`).
    """
    found = _NAME.fullmatch(name)
    if found is None or int(found["complexity"]) not in _complexities(found["family"]):
        raise ValueError(f"{name} does not name a generated task; write FAMILY-cCOMPLEXITY-sSEED such as csv-c3-s17")
    family, complexity = found["family"], int(found["complexity"])
    draft = Draft(Random(found["sound"]))
    _fill(draft, FAMILIES[family], complexity)
    order = None if FAMILIES[family].brief else _ORDER.get(complexity, "Do the following.")
    task = draft.finish(name=name, family=family, complexity=complexity, order=order)
    return FLAWS[found["flaw"]](task) if found["flaw"] else task


def _complexities(family: str) -> tuple[int, ...]:
    return FAMILIES[family].complexities if family in FAMILIES else ()


def names_families(named: str) -> bool:
    """Whether `csv,logs:flawed` names families alone. They win over files of the same name, which `./csv` names."""
    return all(family in FAMILIES and kind in ("", "flawed") for family, kind in _entries(named))


def _entries(named: str) -> list[tuple[str, str]]:
    parts = (entry.strip().partition(":") for entry in named.split(","))
    return [(family, kind) for family, _, kind in parts]


@lru_cache(maxsize=8)
def generated_tasks(named: str) -> tuple[TerminalTask, ...]:
    """The tasks of a file with a name a line, or some of each family of `csv,logs`.

    Of `csv:flawed` every second task has a flaw that shows only when it is played, as in a pool that nobody filtered.
    """
    if not names_families(named) and Path(named).is_file():
        return tuple(make_task(name) for name in Path(named).read_text(encoding="utf-8").split())
    if not names_families(named):
        raise ValueError(
            f"tasks: {named!r} is neither a folder of tasks, nor a file of their names, nor families; families are "
            f"{', '.join(FAMILIES)}, each also as {next(iter(FAMILIES))}:flawed"
        )
    tasks: list[TerminalTask] = []
    for family, kind in _entries(named):
        names = draft_names(POOL, [family], FAMILIES[family].complexities)
        if kind:
            names = [f"{name}-{HIDDEN_FLAWS[n % len(HIDDEN_FLAWS)]}" if n % 2 else name for n, name in enumerate(names)]
        tasks += map(make_task, names)
    return tuple(tasks)


class FamilyAuthor:
    """Writes the tasks that names such as `csv-c3-s17` stand for, whole at once."""

    def describe(self, name: str) -> TerminalTask:
        """The whole task."""
        return make_task(name)

    def prepare(self, task: TerminalTask) -> TerminalTask:
        """It has its setup already."""
        return task

    def examine(self, task: TerminalTask) -> TerminalTask:
        """It has its final test already."""
        return task


def _fill(draft: Draft, family: TaskFamily, complexity: int) -> None:
    """Jobs, one command each, and steps that follow from their files."""
    rng = draft.rng
    jobs, follow_ups = {
        1: (1, 0),
        2: rng.choice(((1, 1), (1, 2), (2, 0), (2, 1))),
        3: rng.choice(((2, 1), (2, 2), (3, 1), (3, 0))),
        4: (1, rng.randint(3, 5)),
        5: (rng.randint(3, 4), 0),
        6: (rng.randint(3, 4), rng.randint(2, 5)),
    }[complexity]
    written: list[str] = []
    for place in range(jobs):
        if (follow_ups and place == 0) or rng.random() < len(family.writers) / _jobs(family):
            written.append(rng.choice(family.writers)(draft))
        else:
            rng.choice(family.doers)(draft)
    path = written[-1] if written else ""
    for follow_up in _different(rng, follow_ups):
        path = follow_up(draft, path)


def _jobs(family: TaskFamily) -> int:
    return len(family.writers) + len(family.doers)


def _different(rng: Random, count: int) -> Sequence[Callable[[Draft, str], str]]:
    return rng.sample(FOLLOW_UPS, count)


def usable(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Families that can run here, and for each of the others why it cannot; ValueError for unknown names."""
    if unknown := [name for name in names if name not in FAMILIES]:
        raise ValueError(f"there is no family {unknown[0]!r} of terminal tasks; choose from {', '.join(FAMILIES)}")
    lacking = {name: FAMILIES[name].missing() for name in names}
    skipped = {name: f"needs {', '.join(missing)}" for name, missing in lacking.items() if missing}
    return [name for name in names if name not in skipped], skipped
