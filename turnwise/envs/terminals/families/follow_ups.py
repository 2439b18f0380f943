"""Steps that start from the text file that an earlier step wrote."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable

from turnwise.envs.terminals.families.material import lines
from turnwise.envs.terminals.task_draft import Draft

_UPPER = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
FollowUp = Callable[[Draft, str], str]


def digest_of(draft: Draft, path: str) -> str:
    """Its checksum."""
    out = draft.output("digest", ".sha256")
    value = hashlib.sha256(draft.texts[path].encode()).hexdigest()
    return draft.write(
        out,
        f"{value}  {path}\n",
        ask=f"Write the SHA-256 checksum of {path} to {out}, in the form that sha256sum prints for that absolute path.",
        solve=f"sha256sum {path} > {out}",
    )


def size_of(draft: Draft, path: str) -> str:
    """Its number of bytes."""
    out = draft.output("bytes")
    return draft.write(
        out,
        f"{len(draft.texts[path].encode())}\n",
        ask=f"Write the size of {path} in bytes, as a number alone, to {out}.",
        solve=f"wc -c < {path} > {out}",
    )


def numbered(draft: Draft, path: str) -> str:
    """Its lines with numbers."""
    out = draft.output("numbered")
    rows = [f"{place}: {row}" for place, row in enumerate(draft.texts[path].splitlines(), 1)]
    return draft.write(
        out,
        lines(rows),
        ask=f"Copy {path} to {out} with the line number, a colon and a blank before each line (1: …).",
        solve=f"awk '{{print NR \": \" $0}}' {path} > {out}",
    )


def backwards(draft: Draft, path: str) -> str:
    """Its lines from last to first."""
    out = draft.output("backwards")
    return draft.write(
        out,
        lines(draft.texts[path].splitlines()[::-1]),
        ask=f"Write the lines of {path} to {out} from last to first.",
        solve=f"tac {path} > {out}",
    )


def upper_case(draft: Draft, path: str) -> str:
    """Its text in capitals."""
    out = draft.output("upper")
    return draft.write(
        out,
        draft.texts[path].translate(_UPPER),
        ask=f"Write {path} to {out} with every letter from a to z in upper case.",
        solve=f"tr a-z A-Z < {path} > {out}",
    )


def read_only(draft: Draft, path: str) -> str:
    """A copy that nobody may write."""
    out = draft.output("final")
    draft.check("mode", out, want="444")
    return draft.write(
        out,
        draft.texts[path],
        ask=f"Copy {path} to {out} and give the copy the permissions 444.",
        solve=f"cp {path} {out} && chmod 444 {out}",
    )


def packed(draft: Draft, path: str) -> str:
    """A gzip file of it; what follows starts from the text again."""
    out = draft.output("packed", ".gz")
    draft.ask(f"Compress {path} with gzip to {out} and keep the original.", f"gzip -c {path} > {out}")
    draft.check("compressed", out, want=draft.texts[path])
    return path


FOLLOW_UPS: tuple[FollowUp, ...] = (digest_of, size_of, numbered, backwards, upper_case, read_only, packed)
