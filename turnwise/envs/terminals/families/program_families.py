"""Families about programs and what they print and read: processes, encodings, Markdown."""

from __future__ import annotations

import base64

from turnwise.envs.terminals.families.material import WORDS, lines, sample, sentence
from turnwise.envs.terminals.task_draft import Draft


def _program(draft: Draft) -> tuple[str, str, str, int]:
    """A script that writes to both streams and fails: path, output, errors, status."""
    rng = draft.rng
    said, complained, status = sentence(rng), sentence(rng), rng.randint(2, 99)
    # Encoded, so that a run shows the words and a look at the script does not.
    hidden = {name: base64.b64encode(text.encode()).decode() for name, text in (("out", said), ("err", complained))}
    body = lines(
        [
            "#!/bin/sh",
            f"echo {hidden['out']} | base64 -d; echo",
            f"(echo {hidden['err']} | base64 -d; echo) >&2",
            f"exit {status}",
        ]
    )
    return draft.file(f"{draft.area()}/job.sh", body, mode="755"), said, complained, status


def keep_errors(draft: Draft) -> str:
    """Standard error only."""
    path, _, complained, _ = _program(draft)
    out = draft.output("errors")
    return draft.write(
        out,
        f"{complained}\n",
        ask=f"Run {path} and write what it prints on standard error, and nothing else, to {out}.",
        solve=f"{path} 2> {out} > /dev/null",
    )


def keep_status(draft: Draft) -> str:
    """Its exit status."""
    path, _, _, status = _program(draft)
    out = draft.output("status")
    return draft.write(
        out,
        f"{status}\n",
        ask=f"Run {path} and write its exit status, as a number alone, to {out}.",
        solve=f"{path} > /dev/null 2>&1; echo $? > {out}",
    )


def stop_in_time(draft: Draft) -> str:
    """A program that hangs after it has said what it has to say."""
    said = sentence(draft.rng)
    hidden = base64.b64encode(f"{said}\n".encode()).decode()
    path = draft.file(f"{draft.area()}/hangs.sh", f"#!/bin/sh\necho {hidden} | base64 -d\nexec sleep 600\n", mode="755")
    out = draft.output("heard")
    return draft.write(
        out,
        f"{said}\n",
        ask=f"{path} prints one line and then hangs. Run it for at most one second and write its line to {out}.",
        solve=f"timeout 1 {path} > {out}",
    )


def busiest_processes(draft: Draft) -> str:
    """Process ids from a listing."""
    rng = draft.rng
    shares = rng.sample(range(1, 99), rng.randint(6, 10))
    processes = rng.sample(range(200, 9999), len(shares))
    rows = [f"{process} {share} {rng.choice(WORDS)}d" for process, share in zip(processes, shares, strict=True)]
    path = draft.file(f"{draft.area()}/ps.txt", lines(["PID CPU COMMAND", *rows]))
    limit = sorted(shares)[-3]
    out = draft.output("busy")
    return draft.write(
        out,
        lines([str(process) for process in sorted(p for p, s in zip(processes, shares, strict=True) if s >= limit)]),
        ask=f"{path} lists processes as PID CPU COMMAND. Write the ids of those whose CPU share is {limit} or more "
        f"to {out}, one a line, from low to high.",
        solve=f"awk 'NR > 1 && $2 >= {limit} {{print $1}}' {path} | sort -n > {out}",
    )


def decode(draft: Draft) -> str:
    """Base64 to text."""
    text = lines([sentence(draft.rng) for _ in range(draft.rng.randint(1, 4))])
    path = draft.file(f"{draft.area()}/message.b64", base64.encodebytes(text.encode()).decode())
    out = draft.output("decoded")
    return draft.write(out, text, ask=f"Decode the base64 file {path} to {out}.", solve=f"base64 -d {path} > {out}")


def unix_lines(draft: Draft) -> str:
    """Line breaks of another system."""
    rows = [sentence(draft.rng) for _ in range(draft.rng.randint(3, 6))]
    path = draft.file(f"{draft.area()}/windows.txt", "".join(f"{row}\r\n" for row in rows))
    out = draft.output("unix")
    return draft.write(
        out,
        lines(rows),
        ask=f"Write {path} to {out} with Unix line breaks (no carriage returns).",
        solve=f"tr -d '\\r' < {path} > {out}",
    )


def to_utf8(draft: Draft) -> str:
    """Latin-1 to UTF-8."""
    words = draft.rng.sample(
        ("caf\u00e9", "na\u00efve", "\u00fcber", "se\u00f1or", "gar\u00e7on", "\u00e5ngstr\u00f6m"), 3
    )
    text = lines([f"{word} {sentence(draft.rng, 2, 3)}" for word in words])
    path = f"{draft.area()}/latin1.txt"
    octal = "".join(f"\\{byte:03o}" for byte in text.encode("latin-1"))
    draft.prepare(f"printf '{octal}' > {path}", path)
    out = draft.output("utf8")
    return draft.write(
        out, text, ask=f"Convert {path} from ISO-8859-1 to UTF-8 and write it to {out}.",
        solve=f"iconv -f ISO-8859-1 -t UTF-8 {path} > {out}",
    )  # fmt: skip


def _page(draft: Draft) -> tuple[str, list[tuple[int, str]], list[str]]:
    """A Markdown page: headings with their levels, and targets of links."""
    rng = draft.rng
    headings = [(rng.randint(1, 3), sentence(rng, 1, 3)) for _ in range(rng.randint(4, 7))]
    headings[0] = (2, headings[0][1])
    targets = [f"{word}.html" for word in sample(rng, WORDS, 3, 5)]
    rows = [row for level, title in headings for row in (f"{'#' * level} {title}", "", sentence(rng), "")]
    rows += [f"See [{sentence(rng, 1, 2)}]({target})." for target in targets]
    return draft.file(f"{draft.area()}/page.md", lines(rows)), headings, targets


def headings_of(draft: Draft) -> str:
    """Titles of one level."""
    path, headings, _ = _page(draft)
    out = draft.output("headings")
    return draft.write(
        out,
        lines([title for level, title in headings if level == 2]),
        ask=f"Write the titles of all second-level headings (##) of the Markdown file {path} to {out}, without the "
        "marks, in their order.",
        solve=f"sed -n 's/^## //p' {path} > {out}",
    )


def link_targets(draft: Draft) -> str:
    """Where links lead."""
    path, _, targets = _page(draft)
    out = draft.output("links")
    return draft.write(
        out,
        lines(targets),
        ask=f"Write the targets of all links in the Markdown file {path} to {out}, one a line, in their order.",
        solve=f"grep -oE '\\]\\([^)]*' {path} | cut -c3- > {out}",
    )
