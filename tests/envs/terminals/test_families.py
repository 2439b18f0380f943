"""Families of terminal tasks: each is sound, hides its truth, and has as many commands as its complexity says."""

import json
import shutil
from base64 import b64encode
from dataclasses import replace

import pytest

from tests.sandboxes import needs_bubblewrap
from turnwise.envs.registry import make
from turnwise.envs.terminals.families.brief_family import BRIEF_WORDS
from turnwise.envs.terminals.families.family_table import (
    COMPLEXITIES,
    FAMILIES,
    FULL,
    draft_names,
    generated_tasks,
    make_task,
    task_name,
    usable,
)
from turnwise.envs.terminals.flawed_tasks import HIDDEN_FLAWS
from turnwise.envs.terminals.task_draft import FINAL_TEST
from turnwise.envs.terminals.terminal_protocol import write
from turnwise.envs.terminals.terminal_task import TerminalTask
from turnwise.envs.terminals.terminal_world import World
from turnwise.evaluate.terminal_stages import truth_texts
from turnwise.policy.pico_words import TERMINALS

CANARIES = ("a-canary-that-sings-in-the-truth", "a-canary-that-sings-in-the-test")
TELLING = 24
"""Characters of a text that is nowhere by chance."""
_SEARCH = """
import base64, os, stat, sys
hidden = [base64.b64decode(text) for text in sys.argv[1:]]
shared = {"/usr", "/python", "/proc", "/sys"}
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in shared]
    for path in (os.path.join(folder, name) for name in files):
        try:
            content = open(path, "rb").read() if stat.S_ISREG(os.lstat(path).st_mode) else b""
        except OSError:
            continue
        if any(text in content for text in hidden) or "final" in os.path.basename(path):
            print(path)
for name in os.listdir("/proc"):
    for file in ("cmdline", "environ") if name.isdigit() else ():
        try:
            content = open(f"/proc/{name}/{file}", "rb").read()
        except OSError:
            continue
        if any(text in content for text in hidden):
            print(name, content)
print("searched")
"""
"""An agent's program, which gets what it looks for in a code so that it does not find itself."""
COMMANDS = {1: (1, 1), 2: (2, 3), 3: (3, 4), 4: (4, 6), 5: (3, 4), 6: (5, 10)}
"""The fewest and the most for each complexity."""


def canary_task(family: str) -> TerminalTask:
    """A task with a known text in its truth and in its final test."""
    task = make_task(task_name(family, FAMILIES[family].complexities[-1], 7))
    in_the_truth, in_the_test = CANARIES
    return replace(task, truth={**task.truth, "note": in_the_truth}, final_test=f"# {in_the_test}\n{task.final_test}")


def hidden_texts(task: TerminalTask) -> list[str]:
    """What a task hides: long texts of its truth that neither its words nor its start files have, and its test."""
    told = task.instruction + task.setup
    texts = {text for text in truth_texts(task.truth) if len(text) >= TELLING and text not in told}
    return sorted({*texts, *CANARIES, task.final_test})


def test_there_are_sixteen_families_and_more():
    assert len(FULL) >= 16


@needs_bubblewrap
@pytest.mark.parametrize("family", FAMILIES)
def test_the_solution_solves_and_doing_nothing_does_not(family: str):
    if missing := FAMILIES[family].missing():
        pytest.skip(f"this machine has no {missing[0]}")
    task = make_task(task_name(family, FAMILIES[family].complexities[-1], 7))
    truth = json.dumps(dict(task.truth))
    with World.open(task.setup) as world:
        assert world.check(task.initial_test).ok
        assert not world.check(task.final_test, truth).ok
        shell = world.shell()
        for command in task.solution:
            shell.run(command, 60)
        check = world.check(task.final_test, truth)
    assert check.ok, check.output


def test_complexity_says_how_many_commands_a_task_needs():
    for name in draft_names(6 * 22 * 8, FULL, COMPLEXITIES):
        task = make_task(name)
        fewest, most = COMMANDS[task.complexity]
        assert fewest <= len(task.solution) <= most, name


def test_equal_names_make_equal_tasks_and_other_seeds_make_others():
    assert make_task("csv-c3-s17") == make_task("csv-c3-s17")
    assert len({make_task(task_name("csv", 3, seed)).instruction for seed in range(50)}) == 50


def test_no_start_file_is_what_a_task_asks_for():
    taken_away_by_the_setup = {"archives", "diff"}
    families = [name for name in FULL if name not in taken_away_by_the_setup]
    for name in draft_names(6 * len(families) * 4, families, COMPLEXITIES):
        task = make_task(name)
        wanted = [check["want"] for check in task.truth["checks"] if check["kind"] == "text"]
        assert not any(f"'END_OF_FILE'\n{text}END_OF_FILE" in task.setup for text in wanted), name


@needs_bubblewrap
@pytest.mark.parametrize("family", FAMILIES)
def test_an_agent_that_searches_the_file_system_finds_neither_truth_nor_final_test(family: str):
    if missing := FAMILIES[family].missing():
        pytest.skip(f"this machine has no {missing[0]}")
    task = canary_task(family)
    hidden = hidden_texts(task)
    assert len(hidden) > len(CANARIES)
    coded = " ".join(b64encode(text.encode()).decode() for text in hidden)
    with World.open(task.setup) as world:
        assert world.check(task.initial_test).ok
        assert not world.check(task.final_test, json.dumps(dict(task.truth))).ok
        shell = world.shell()
        command = f"cat > /tmp/search.py <<'END'\n{_SEARCH}END\npython3 /tmp/search.py {coded}"
        found = [shell.run(command, 60), shell.run(f"echo {CANARIES[0]} > /tmp/note; {command}", 60)]
    assert [each.text for each in found] == ["searched\n", "/tmp/note\nsearched\n"]


@needs_bubblewrap
def test_what_all_terminals_share_has_no_truth_and_no_final_test():
    tasks = [canary_task(family) for family in FAMILIES]
    lines = {max(text.splitlines(), key=len) for task in tasks for text in hidden_texts(task)}
    patterns = "\n".join(line for line in lines if len(line) >= TELLING)
    with World.open("") as world:
        search = "grep -rsalF -f patterns /python /usr/local"
        found = world.shell().run(f"cat > patterns <<'END'\n{patterns}\nEND\n{search}; {search} patterns", 600)
    assert (found.text, found.timed_out) == ("patterns\n", False)


_SIGNED_COMMIT = r"""
cd repository
git init -q && git config user.name Me && git config user.email me@example.invalid
printf '#!/bin/sh\necho ran > /home/user/trace.txt\n' > ../program.sh && chmod +x ../program.sh
git commit -q --allow-empty -m plain
signature='gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----'
{ git cat-file commit HEAD | sed '/^$/,$d'; printf "$signature\n\nsigned\n"; } > ../commit
git reset -q --hard "$(git hash-object -t commit -w ../commit)"
git config log.showSignature true && git config gpg.program /home/user/program.sh
"""


@needs_bubblewrap
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_final_test_runs_no_program_that_a_repository_names():
    asked = {"kind": "git", "path": "/home/user/repository", "ask": ["log", "-1", "--format=%s"], "want": "signed"}
    ran = {"kind": "text", "path": "/home/user/trace.txt", "want": "ran"}
    with World.open("mkdir repository") as world:
        traces = world.shell().run(f"{_SIGNED_COMMIT}git log -1 > ../log 2>&1; cd ..; cat trace.txt; rm trace.txt", 60)
        answers = [world.check(FINAL_TEST, json.dumps({"checks": checks})) for checks in ([asked], [asked, ran])]
    assert traces.text == "ran\n"  # by the agent's own git
    assert [answer.ok for answer in answers] == [True, False]


def test_every_request_ends_where_the_next_sentence_begins():
    for name in draft_names(len(FULL) * 30, FULL, [1]):
        opening, _, _ = make_task(name).instruction.partition(" End every line")
        assert opening.endswith((".", ")")), opening


def test_changing_another_input_file_is_a_failure():
    task = make_task("logs-c1-s0")
    kept = [check["path"] for check in task.truth["checks"] if check["kind"] == "content"]
    assert len(kept) == 1
    assert kept[0] in task.instruction


@pytest.mark.parametrize("name", ["csv-c7-s1", "nothing-c1-s1", "brief-c2-s1", "csv-c1", "csv-c1-s1-bent"])
def test_a_wrong_name_is_one_message(name: str):
    with pytest.raises(ValueError, match="write FAMILY-cCOMPLEXITY-sSEED"):
        make_task(name)


def test_a_family_whose_program_is_missing_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FAMILIES, "git", replace(FAMILIES["git"], programs=("no-such-program",)))
    assert usable(["csv", "git"]) == (["csv"], {"git": "needs no-such-program"})
    with pytest.raises(ValueError, match="choose from files, links"):
        usable(["gti"])


def test_brief_tasks_speak_the_words_of_pico_terminals_only():
    assert set(TERMINALS) == set(BRIEF_WORDS)
    for seed in range(100):
        task = make_task(task_name("brief", 1, seed))
        said = f"{task.instruction} {write(task.solution[0], think=False)}"
        assert set(said.split()) <= set(TERMINALS)


def test_every_second_task_of_a_flawed_pool_has_a_flaw():
    names = [task.name for task in generated_tasks("brief:flawed")]
    assert sum(name.endswith(HIDDEN_FLAWS) for name in names) == len(names) // 2
    assert not any(task.name.endswith(HIDDEN_FLAWS) for task in generated_tasks("brief"))
    with pytest.raises(ValueError, match="neither a folder of tasks"):
        generated_tasks("no-such-thing")


@needs_bubblewrap
def test_families_can_be_played():
    env = make("terminal/tasks", tasks="brief", turns=1, think=False, prompt="terse")
    reset = env.reset(seed=1)
    assert isinstance(reset, tuple)
    assert reset[0] == reset[1]["task"]["instruction"]
    step = env.step(env.oracle())
    assert isinstance(step, tuple)
    assert step[4]["success"]
    env.close()
