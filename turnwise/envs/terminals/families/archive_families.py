"""Families about many files at once: archives and checksums."""

from __future__ import annotations

from turnwise.envs.terminals.families.file_families import file_tree, some_text
from turnwise.envs.terminals.families.material import WORDS, lines, sample
from turnwise.envs.terminals.final_state import digest
from turnwise.envs.terminals.task_draft import Draft


def pack_folder(draft: Draft) -> None:
    """A compressed archive."""
    area, files = file_tree(draft)
    out = draft.output("backup", ".tar.gz")
    draft.ask(
        f"Pack all files of {area}, with their sub-folders, into the gzip-compressed tar archive {out}; member "
        f"names are relative to {area}.",
        f"tar -czf {out} -C {area} .",
    )
    draft.check("archive", out, want={name: digest(text.encode()) for name, text in files.items()})


def _packed(draft: Draft) -> tuple[str, dict[str, str]]:
    """An archive whose files are not there unpacked."""
    area, files = file_tree(draft)
    path = f"{area}.tar.gz"
    draft.prepare(f"tar --sort=name --owner=0 --group=0 --mtime=@0 -czf {path} -C {area} . && rm -r {area}", path)
    draft.forget(*(f"{area}/{name}" for name in files))
    return path, files


def list_archive(draft: Draft) -> str:
    """Names of the files in an archive."""
    path, files = _packed(draft)
    out = draft.output("members")
    return draft.write(
        out,
        lines(sorted(files)),
        ask=f"Write the names of all files (not folders) in the archive {path} to {out}, one a line, without a "
        "leading ./ and sorted in byte order.",
        solve=f"tar -tzf {path} | grep -v '/$' | sed 's|^\\./||' | LC_ALL=C sort > {out}",
    )


def read_member(draft: Draft) -> str:
    """One file of an archive."""
    path, files = _packed(draft)
    name = draft.rng.choice([*files])
    out = draft.output("member")
    return draft.write(
        out,
        files[name],
        ask=f"Write the content of the file {name} in the archive {path} to {out}.",
        solve=f"tar -xzOf {path} ./{name} > {out}",
    )


def unpack(draft: Draft) -> None:
    """A whole archive into a new folder."""
    path, files = _packed(draft)
    target = draft.output("unpacked", "")
    draft.ask(
        f"Make the folder {target} and unpack the archive {path} into it.",
        f"mkdir {target} && tar -xzf {path} -C {target}",
    )
    for name, text in files.items():
        draft.check("content", f"{target}/{name}", want=digest(text.encode()))


def manifest(draft: Draft) -> str:
    """Checksums of all files."""
    area, files = file_tree(draft, folders=False)
    out = draft.output("manifest", ".sha256")
    return draft.write(
        out,
        lines([f"{digest(text.encode())}  {name}" for name, text in sorted(files.items())]),
        ask=f"Write the SHA-256 checksums of all files in {area} to {out}, in the form that sha256sum prints "
        "(CHECKSUM, two blanks, the bare file name), by name in byte order.",
        solve=f"(cd {area} && LC_ALL=C sha256sum *) > {out}",
    )


def damaged(draft: Draft) -> str:
    """Files that do not fit their checksums."""
    area, files = file_tree(draft, folders=False)
    bad = draft.rng.sample(sorted(files), draft.rng.randint(1, 3))
    listed = {name: f"{text}?" if name in bad else text for name, text in sorted(files.items())}
    rows = [f"{digest(text.encode())}  {name}" for name, text in listed.items()]
    manifest_path = draft.file(f"{area}.sha256", lines(rows))
    out = draft.output("damaged")
    return draft.write(
        out,
        lines(sorted(bad)),
        ask=f"{manifest_path} has SHA-256 checksums of the files in {area}. Write the names of the files that do "
        f"not match to {out}, one a line, in byte order.",
        solve=f"(cd {area} && sha256sum -c {manifest_path} 2> /dev/null) | sed -n 's/: FAILED$//p' > {out}",
    )


def duplicates(draft: Draft) -> str:
    """Files with the same content."""
    rng, area = draft.rng, draft.area()
    names = sample(rng, WORDS, 6, 8)
    text, twins = some_text(rng), names[:2]
    for name in names:
        draft.file(f"{area}/{name}.txt", text if name in twins else some_text(rng, 2, 5))
    out = draft.output("twins")
    return draft.write(
        out,
        lines(sorted(f"{name}.txt" for name in twins)),
        ask=f"Two files in {area} have the same content. Write their names to {out}, one a line, in byte order.",
        solve=f"cd {area} && md5sum * | LC_ALL=C sort | uniq -w32 -D | awk '{{print $2}}' | LC_ALL=C sort > {out}; "
        "cd - > /dev/null",
    )
