"""Families about work with tools: git, make, cron, patches."""

from __future__ import annotations

from turnwise.envs.terminals.families.material import WORDS, lines, sample, sentence
from turnwise.envs.terminals.task_draft import Draft

_AUTHOR = "-c user.name=Tester -c user.email=tester@example.invalid"
_DATE = "GIT_AUTHOR_DATE='2025-01-0{day}T12:00:00Z' GIT_COMMITTER_DATE='2025-01-0{day}T12:00:00Z'"


def _repository(draft: Draft) -> tuple[str, list[str], list[str]]:
    """A repository whose commits each add a file; subjects and names in order."""
    path, rng = draft.area(), draft.rng
    names = [f"{word}.txt" for word in sample(rng, WORDS, 3, 5)]
    subjects = [f"Add {name}" for name in names]
    draft.prepare(f"git init -q -b main {path}", f"{path}/.git")
    for day, (name, subject) in enumerate(zip(names, subjects, strict=True), 1):
        draft.file(f"{path}/{name}", lines([sentence(rng)]))
        dated = _DATE.format(day=day)
        draft.prepare(f"git -C {path} add {name} && {dated} git -C {path} {_AUTHOR} commit -q -m '{subject}'")
    draft.prepare(f"git -C {path} config user.name Tester && git -C {path} config user.email tester@example.invalid")
    return path, names, subjects


def commit_subjects(draft: Draft) -> str:
    """The history, oldest first."""
    path, _, subjects = _repository(draft)
    out = draft.output("history")
    return draft.write(
        out,
        lines(subjects),
        ask=f"Write the subject lines of all commits on the current branch of the git repository {path} to {out}, "
        "oldest first.",
        solve=f"git -C {path} log --reverse --format=%s > {out}",
    )


def commit_of_file(draft: Draft) -> str:
    """Which commit added a file."""
    path, names, subjects = _repository(draft)
    place = draft.rng.randrange(len(names))
    out = draft.output("subject")
    return draft.write(
        out,
        f"{subjects[place]}\n",
        ask=f"Write the subject line of the commit that added {names[place]} to the git repository {path} to {out}.",
        solve=f"git -C {path} log --diff-filter=A --format=%s -- {names[place]} > {out}",
    )


def make_branch(draft: Draft) -> None:
    """A branch at an earlier commit."""
    path, _, subjects = _repository(draft)
    name, back = f"topic-{draft.rng.choice(WORDS)}", draft.rng.randint(1, len(subjects) - 1)
    draft.ask(
        f"In the git repository {path} make a branch {name} at HEAD~{back}; stay on the current branch.",
        f"git -C {path} branch {name} HEAD~{back}",
    )
    draft.check("git", path, ask=["log", "-1", "--format=%s", name, "--"], want=subjects[-1 - back])
    draft.check("git", path, ask=["rev-parse", "--abbrev-ref", "HEAD"], want="main")


def commit_change(draft: Draft) -> None:
    """A change that is not committed yet."""
    path, _, subjects = _repository(draft)
    name, subject = f"{draft.rng.choice(WORDS)}.md", f"Write {sentence(draft.rng, 1, 2)}"
    draft.file(f"{path}/{name}", lines([sentence(draft.rng)]))
    draft.ask(
        f'Commit the untracked file {name} of the git repository {path} with the message "{subject}".',
        f"git -C {path} add {name} && git -C {path} commit -q -m '{subject}'",
    )
    draft.check("git", path, ask=["log", "-1", "--format=%s"], want=subject)
    draft.check("git", path, ask=["show", "--name-only", "--format=", "HEAD"], want=name)
    draft.check("git", path, ask=["rev-list", "--count", "HEAD"], want=str(len(subjects) + 1))


def _makefile(draft: Draft) -> tuple[str, dict[str, str]]:
    """A Makefile whose targets each write a file."""
    area, rng = draft.area(), draft.rng
    words = {f"{name}.out": sentence(rng, 2, 4) for name in sample(rng, WORDS, 3, 5)}
    rules = [f"{target}:\n\techo {text} > {target}\n" for target, text in words.items()]
    draft.file(f"{area}/Makefile", f"all: {' '.join(words)}\n\n" + "\n".join(rules))
    return area, words


def build_target(draft: Draft) -> None:
    """One target and no other."""
    area, words = _makefile(draft)
    target = draft.rng.choice([*words])
    draft.absent(f"{area}/{target}")
    draft.ask(
        f"Build the target {target} of {area}/Makefile with make, and no other target.", f"make -s -C {area} {target}"
    )
    draft.check("text", f"{area}/{target}", want=f"{words[target]}\n")
    draft.check("folder", area, want=["Makefile", target])


def list_targets(draft: Draft) -> str:
    """Names of all targets."""
    area, words = _makefile(draft)
    out = draft.output("targets")
    return draft.write(
        out,
        lines(sorted(["all", *words])),
        ask=f"Write the names of all targets that {area}/Makefile defines to {out}, one a line, in alphabetical order.",
        solve=f"grep -oE '^[a-z.]+:' {area}/Makefile | tr -d : | LC_ALL=C sort > {out}",
    )


def show_recipe(draft: Draft) -> str:
    """What make would run."""
    area, words = _makefile(draft)
    target = draft.rng.choice([*words])
    out = draft.output("dry")
    return draft.write(
        out,
        f"echo {words[target]} > {target}\n",
        ask=f"Write the command that make would run for the target {target} of {area}/Makefile to {out}, as make -n "
        "prints it, without building it and without other lines.",
        solve=f"make -n --no-print-directory -C {area} {target} > {out}",
    )


def _schedule(draft: Draft) -> tuple[str, list[tuple[str, str]]]:
    """A crontab; (times, command)."""
    rng = draft.rng
    entries = [
        (f"{rng.randint(0, 59)} {rng.randint(0, 23)} * * {rng.choice('*12345')}", f"/opt/{name}.sh")
        for name in sample(rng, WORDS, 4, 7)
    ]
    return draft.file(f"{draft.area()}/crontab", lines(["# jobs", *(" ".join(entry) for entry in entries)])), entries


def scheduled_at(draft: Draft) -> str:
    """When one job runs."""
    path, entries = _schedule(draft)
    times, command = draft.rng.choice(entries)
    out = draft.output("times")
    return draft.write(
        out,
        f"{times}\n",
        ask=f"{path} is a crontab. Write the five time fields of the job {command}, with one blank between them, to "
        f"{out}.",
        solve=f"grep -F ' {command}' {path} | cut -d' ' -f1-5 > {out}",
    )


def scheduled_commands(draft: Draft) -> str:
    """All commands in order."""
    path, entries = _schedule(draft)
    out = draft.output("jobs")
    return draft.write(
        out,
        lines(sorted(command for _, command in entries)),
        ask=f"{path} is a crontab. Write the commands of all its jobs to {out}, one a line, in alphabetical order.",
        solve=f"grep -v '^#' {path} | cut -d' ' -f6 | LC_ALL=C sort > {out}",
    )


def add_job(draft: Draft) -> None:
    """A further line at the end."""
    path, _ = _schedule(draft)
    rng = draft.rng
    minute, hour, command = rng.randint(0, 59), rng.randint(0, 23), f"/opt/extra-{rng.choice(WORDS)}.sh"
    draft.changes(path)
    draft.ask(
        f"Add a job to the end of the crontab {path}, in its format, that runs {command} every day at "
        f"{hour:02}:{minute:02}; write numbers without leading zeros.",
        f"echo '{minute} {hour} * * * {command}' >> {path}",
    )
    draft.check("text", path, want=f"{draft.input_text(path)}{minute} {hour} * * * {command}\n")


def disable_job(draft: Draft) -> None:
    """Comment a line out."""
    path, entries = _schedule(draft)
    times, command = draft.rng.choice(entries)
    draft.changes(path)
    draft.ask(
        f"Disable the job {command} in the crontab {path} by a # directly before its line; change nothing else.",
        f"sed -i '\\| {command}$|s/^/#/' {path}",
    )
    draft.check("text", path, want=draft.input_text(path).replace(f"{times} {command}\n", f"#{times} {command}\n"))


def _versions(draft: Draft) -> tuple[str, list[str], list[str]]:
    """Two versions of a text: folder, old lines, new lines."""
    rng = draft.rng
    old = [sentence(rng) for _ in range(rng.randint(8, 12))]
    new = list(old)
    for place in rng.sample(range(len(old)), rng.randint(1, 3)):
        new[place] = f"{sentence(rng)} changed"
    return draft.area(), old, new


def added_lines(draft: Draft) -> str:
    """What the new version adds."""
    area, old, new = _versions(draft)
    first, second = draft.file(f"{area}/old.txt", lines(old)), draft.file(f"{area}/new.txt", lines(new))
    out = draft.output("added")
    return draft.write(
        out,
        lines([row for row in new if row not in old]),
        ask=f"Write the lines of {second} that are not in {first} to {out}, in their order.",
        solve=f"diff {first} {second} | sed -n 's/^> //p' > {out}",
    )


def apply_patch(draft: Draft) -> None:
    """A patch in unified form."""
    area, old, new = _versions(draft)
    path = draft.file(f"{area}/text.txt", lines(old))
    draft.file(f"{area}/.new", lines(new))
    change = f"{area}/change.patch"
    draft.prepare(
        f"(cd {area} && (diff -u --label text.txt --label text.txt text.txt .new > change.patch || true) && rm .new)",
        change,
    )
    draft.forget(f"{area}/.new")
    draft.changes(path)
    draft.ask(f"Apply the patch {change} to {path}.", f"patch -s {path} {change}")
    draft.check("text", path, want=lines(new))


def different_files(draft: Draft) -> str:
    """Which files of two folders differ."""
    area, rng = draft.area(), draft.rng
    names = [f"{word}.conf" for word in sample(rng, WORDS, 4, 7)]
    changed = sorted(rng.sample(names, rng.randint(1, 3)))
    for name in names:
        text = lines([sentence(rng)])
        draft.file(f"{area}/a/{name}", text)
        draft.file(f"{area}/b/{name}", text + "more\n" if name in changed else text)
    out = draft.output("different")
    return draft.write(
        out,
        lines(changed),
        ask=f"The folders {area}/a and {area}/b have files of the same names. Write the names of those that differ "
        f"to {out}, one a line, in byte order.",
        solve=f"diff -rq {area}/a {area}/b | sed -E 's|.*/b/(.*) differ|\\1|' | LC_ALL=C sort > {out}",
    )
