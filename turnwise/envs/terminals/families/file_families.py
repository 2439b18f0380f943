"""Families about files themselves: places, links, sizes, permissions."""

from __future__ import annotations

from random import Random

from turnwise.envs.terminals.families.material import WORDS, lines, sample, sentence
from turnwise.envs.terminals.final_state import digest
from turnwise.envs.terminals.task_draft import Draft

_ENDINGS = (".txt", ".log", ".csv", ".md")


def some_text(rng: Random, fewest: int = 1, most: int = 4) -> str:
    return lines([sentence(rng) for _ in range(rng.randint(fewest, most))])


def file_tree(draft: Draft, *, folders: bool = True) -> tuple[str, dict[str, str]]:
    """Files with several endings, some in sub-folders; relative names and texts."""
    rng, area = draft.rng, draft.area()
    names = sample(rng, WORDS, 6, 9)
    files: dict[str, str] = {}
    for place, name in enumerate(names):
        inside = f"{rng.choice(('old', 'new', 'raw'))}/" if folders and place % 2 else ""
        ending = _ENDINGS[place] if place < len(_ENDINGS) else rng.choice(_ENDINGS)
        files[f"{inside}{name}{ending}"] = some_text(rng)
    for name, text in files.items():
        draft.file(f"{area}/{name}", text)
    return area, files


def find_ending(draft: Draft) -> str:
    """Where files of one kind are."""
    area, files = file_tree(draft)
    ending = draft.rng.choice(_ENDINGS)
    out = draft.output("found")
    return draft.write(
        out,
        lines(sorted(f"{area}/{name}" for name in files if name.endswith(ending))),
        ask=f"Write the absolute paths of all files under {area} whose names end in {ending} to {out}, one a line, "
        "sorted in byte order.",
        solve=f"find {area} -type f -name '*{ending}' | LC_ALL=C sort > {out}",
    )


def move_ending(draft: Draft) -> None:
    """Collect files of one kind in a new folder."""
    area, files = file_tree(draft, folders=False)
    ending = draft.rng.choice(_ENDINGS)
    target = draft.absent(f"{area}/sorted")
    moved = [name for name in files if name.endswith(ending)]
    draft.changes(*(f"{area}/{name}" for name in moved))
    draft.ask(
        f"Make the folder {target} and move all files of {area} whose names end in {ending} into it.",
        f"mkdir {target} && mv {area}/*{ending} {target}/",
    )
    draft.check("folder", target, want=moved)
    for name in moved:
        draft.check("absent", f"{area}/{name}")
        draft.check("content", f"{target}/{name}", want=digest(files[name].encode()))


def delete_ending(draft: Draft) -> None:
    """Delete files of one kind in all sub-folders."""
    area, files = file_tree(draft)
    ending = draft.rng.choice(_ENDINGS)
    gone = [f"{area}/{name}" for name in files if name.endswith(ending)]
    draft.changes(*gone)
    draft.ask(
        f"Delete all files under {area}, also in its sub-folders, whose names end in {ending}.",
        f"find {area} -type f -name '*{ending}' -delete",
    )
    for path in gone:
        draft.check("absent", path)


def files_with(draft: Draft) -> str:
    """Which files mention a word."""
    area, files = file_tree(draft)
    word = draft.rng.choice(draft.rng.choice([*files.values()]).split())
    out = draft.output("matching")
    return draft.write(
        out,
        lines(sorted(f"{area}/{name}" for name, text in files.items() if word in text.split())),
        ask=f"Write the absolute paths of all files under {area} that contain the word {word} to {out}, one a line, "
        "sorted in byte order.",
        solve=f"grep -rlw {word} {area} | LC_ALL=C sort > {out}",
    )


def make_link(draft: Draft) -> None:
    """A name for the newest release."""
    rng, area = draft.rng, draft.area()
    versions = [f"{rng.randint(1, 3)}.{minor}" for minor in rng.sample(range(10, 40), 3)]
    for version in versions:
        draft.file(f"{area}/app-{version}/VERSION", f"{version}\n")
    link, chosen = draft.absent(f"{area}/current"), rng.choice(versions)
    draft.ask(f"Make {link} a symbolic link to the folder {area}/app-{chosen}.", f"ln -s {area}/app-{chosen} {link}")
    draft.check("link", link, want=f"{area}/app-{chosen}")


def _links(draft: Draft) -> tuple[str, dict[str, str], list[str]]:
    """A folder of links; some lead nowhere."""
    rng, area = draft.rng, draft.area()
    names = sample(rng, WORDS, 5, 8)
    dead = names[: rng.randint(2, 3)]
    targets = {name: f"{area}/data/{name}.bin" for name in names}
    for name, target in targets.items():
        if name not in dead:
            draft.file(target, some_text(rng))
        draft.prepare(f"ln -s {target} {area}/{name}", f"{area}/{name}")
    return area, targets, dead


def dead_links(draft: Draft) -> str:
    """Links that lead nowhere."""
    area, _, dead = _links(draft)
    out = draft.output("dead")
    return draft.write(
        out,
        lines(sorted(f"{area}/{name}" for name in dead)),
        ask=f"Write the absolute paths of all symbolic links in {area} whose target does not exist to {out}, one a "
        "line, sorted in byte order.",
        solve=f"find {area} -xtype l | LC_ALL=C sort > {out}",
    )


def link_target(draft: Draft) -> str:
    """What a link leads to."""
    area, targets, _ = _links(draft)
    name = draft.rng.choice([*targets])
    out = draft.output("target")
    return draft.write(
        out,
        f"{targets[name]}\n",
        ask=f"Write the target of the symbolic link {area}/{name}, as it is stored in the link, to {out}.",
        solve=f"readlink {area}/{name} > {out}",
    )


def delete_dead_links(draft: Draft) -> None:
    """Remove links that lead nowhere, and no other."""
    area, targets, dead = _links(draft)
    draft.ask(
        f"Delete all symbolic links in {area} whose target does not exist; keep the others.",
        f"find {area} -xtype l -delete",
    )
    for name, target in targets.items():
        if name in dead:
            draft.check("absent", f"{area}/{name}")
        else:
            draft.check("link", f"{area}/{name}", want=target)


def _sized(draft: Draft) -> tuple[str, dict[str, int]]:
    """Files with sizes that differ."""
    rng, area = draft.rng, draft.area()
    sizes = dict(zip(sample(rng, WORDS, 5, 8), rng.sample(range(200, 6000), 8), strict=False))
    for name, size in sizes.items():
        path = f"{area}/{name}.dat"
        draft.prepare(f"head -c {size} /dev/zero | tr '\\0' {name[0]} > {path}", path)
    return area, sizes


def largest(draft: Draft) -> str:
    """The largest files."""
    area, sizes = _sized(draft)
    most = draft.rng.randint(2, 4)
    ranked = sorted(sizes, key=lambda name: -sizes[name])[:most]
    out = draft.output("largest")
    return draft.write(
        out,
        lines([f"{sizes[name]} {name}.dat" for name in ranked]),
        ask=f"Write the {most} largest files of {area} to {out}, largest first, each as BYTES NAME.",
        solve=f"find {area} -type f -printf '%s %f\\n' | sort -rn | head -n {most} > {out}",
    )


def total_size(draft: Draft) -> str:
    """Bytes of all files together."""
    area, sizes = _sized(draft)
    out = draft.output("total")
    return draft.write(
        out,
        f"{sum(sizes.values())}\n",
        ask=f"Write the sum of the sizes of all files in {area}, in bytes and as a number alone, to {out}.",
        solve=f"cat {area}/* | wc -c > {out}",
    )


def delete_large(draft: Draft) -> None:
    """Free space."""
    area, sizes = _sized(draft)
    limit = sorted(sizes.values())[len(sizes) // 2]
    draft.ask(
        f"Delete all files of {area} that have more than {limit} bytes.",
        f"find {area} -type f -size +{limit}c -delete",
    )
    draft.check("folder", area, want=[f"{name}.dat" for name, size in sizes.items() if size <= limit])


def _guarded(draft: Draft) -> tuple[str, dict[str, str]]:
    """Files with different permissions; every mode occurs."""
    rng, area = draft.rng, draft.area()
    modes = ("644", "600", "755", "666", "640")
    chosen = {f"{name}.sh": modes[place % 5] for place, name in enumerate(sample(rng, WORDS, 6, 9))}
    for name, mode in chosen.items():
        draft.file(f"{area}/{name}", f"#!/bin/sh\necho {name}\n", mode=mode)
    return area, chosen


def list_mode(draft: Draft) -> str:
    """Files with one mode."""
    area, modes = _guarded(draft)
    wanted = draft.rng.choice([*modes.values()])
    out = draft.output("listed")
    return draft.write(
        out,
        lines(sorted(f"{area}/{name}" for name, mode in modes.items() if mode == wanted)),
        ask=f"Write the absolute paths of all files in {area} whose permissions are exactly {wanted} to {out}, one "
        "a line, sorted in byte order.",
        solve=f"find {area} -type f -perm {wanted} | LC_ALL=C sort > {out}",
    )


def mode_table(draft: Draft) -> str:
    """Names with their modes."""
    area, modes = _guarded(draft)
    out = draft.output("modes")
    return draft.write(
        out,
        lines([f"{name} {mode}" for name, mode in sorted(modes.items())]),
        ask=f"Write NAME MODE for every file in {area} to {out}, one a line, by name in byte order, the mode in "
        "octal such as 644.",
        solve=f"cd {area} && stat -c '%n %a' * | LC_ALL=C sort > {out}; cd - > /dev/null",
    )


def tighten(draft: Draft) -> None:
    """No file may be writable for everyone."""
    area, modes = _guarded(draft)
    draft.ask(
        f"Take the permission to write from group and others for all files in {area}; change no other permission.",
        f"chmod go-w {area}/*",
    )
    for name, mode in modes.items():
        draft.check("mode", f"{area}/{name}", want=f"{int(mode, 8) & ~0o022:03o}")


def make_executable(draft: Draft) -> None:
    """One file gets one mode."""
    area, modes = _guarded(draft)
    name = draft.rng.choice([*modes])
    wanted = draft.rng.choice([each for each in ("700", "750", "500") if each != modes[name]])
    draft.ask(f"Give {area}/{name} the permissions {wanted}.", f"chmod {wanted} {area}/{name}")
    draft.check("mode", f"{area}/{name}", want=wanted)
