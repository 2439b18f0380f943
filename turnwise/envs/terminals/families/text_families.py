"""Families about lines of text: editing, sorting, patterns, logs."""

from __future__ import annotations

from collections import Counter

from turnwise.envs.terminals.families.material import LEVELS, SERVICES, WORDS, lines, log_rows, sample, sentence
from turnwise.envs.terminals.task_draft import Draft


def _note(draft: Draft, fewest: int = 6, most: int = 12) -> tuple[str, list[str]]:
    rows = [sentence(draft.rng) for _ in range(draft.rng.randint(fewest, most))]
    return draft.file(f"{draft.area()}/notes.txt", lines(rows)), rows


def line_range(draft: Draft) -> str:
    """Some lines in the middle."""
    path, rows = _note(draft, 10, 16)
    first = draft.rng.randint(2, 5)
    last = first + draft.rng.randint(1, 4)
    out = draft.output("part")
    return draft.write(
        out,
        lines(rows[first - 1 : last]),
        ask=f"Write lines {first} to {last} of {path} to {out}.",
        solve=f"sed -n '{first},{last}p' {path} > {out}",
    )


def replace_word(draft: Draft) -> str:
    """One word by another, everywhere."""
    path, rows = _note(draft)
    old = draft.rng.choice(rows[-1].split())
    new = f"{draft.rng.choice(WORDS)}{draft.rng.randint(10, 99)}"
    out = draft.output("edited")
    return draft.write(
        out,
        lines([" ".join(new if word == old else word for word in row.split()) for row in rows]),
        ask=f"Write {path} to {out} with every occurrence of the word {old} replaced by {new}.",
        solve=f"sed 's/\\b{old}\\b/{new}/g' {path} > {out}",
    )


def number_of_words(draft: Draft) -> str:
    """How many words a file has."""
    path, rows = _note(draft)
    out = draft.output("words")
    return draft.write(
        out,
        f"{sum(len(row.split()) for row in rows)}\n",
        ask=f"Count the words of {path} and write the number alone to {out}.",
        solve=f"wc -w < {path} > {out}",
    )


def drop_blank_lines(draft: Draft) -> None:
    """Edit a file in place."""
    rows = [sentence(draft.rng) for _ in range(draft.rng.randint(5, 9))]
    spaced = [part for row in rows for part in (row, *[""] * draft.rng.randint(0, 2))]
    path = draft.file(f"{draft.area()}/draft.txt", lines(["", *spaced]))
    draft.changes(path)
    draft.ask(f"Delete all empty lines from {path}, in place.", f"sed -i '/^$/d' {path}")
    draft.check("text", path, want=lines(rows))


def _words(draft: Draft) -> tuple[str, list[str]]:
    chosen = sample(draft.rng, WORDS, 5, 8)
    counts = draft.rng.sample(range(1, 12), len(chosen))  # no two words are equally frequent
    rows = [word for word, count in zip(chosen, counts, strict=True) for _ in range(count)]
    draft.rng.shuffle(rows)
    return draft.file(f"{draft.area()}/words.txt", lines(rows)), rows


def distinct(draft: Draft) -> str:
    """Sorted lines without repetitions."""
    path, rows = _words(draft)
    out = draft.output("distinct")
    return draft.write(
        out,
        lines(sorted(set(rows))),
        ask=f"Write the distinct lines of {path} to {out}, in alphabetical order.",
        solve=f"LC_ALL=C sort -u {path} > {out}",
    )


def most_frequent(draft: Draft) -> str:
    """The most frequent lines with their counts."""
    path, rows = _words(draft)
    most = draft.rng.randint(2, 4)
    out = draft.output("frequent")
    return draft.write(
        out,
        lines([f"{count} {word}" for word, count in Counter(rows).most_common(most)]),
        ask=f"Write the {most} most frequent lines of {path} to {out}, most frequent first, each as COUNT LINE with "
        "one blank between.",
        solve=f"sort {path} | uniq -c | sort -rn | head -n {most} | awk '{{print $1, $2}}' > {out}",
    )


def in_both(draft: Draft) -> str:
    """Lines that two files share."""
    area = draft.area()
    shared, first, second = (sample(draft.rng, words, 2, 5) for words in (WORDS[:11], WORDS[11:22], WORDS[22:]))
    paths: list[str] = []
    for name, own in (("first.txt", first), ("second.txt", second)):
        rows = [*shared, *own]
        draft.rng.shuffle(rows)
        paths.append(draft.file(f"{area}/{name}", lines(rows)))
    out = draft.output("shared")
    return draft.write(
        out,
        lines(sorted(shared)),
        ask=f"Write the lines that occur in both {paths[0]} and {paths[1]} to {out}, in alphabetical order.",
        solve=f"grep -Fxf {paths[0]} {paths[1]} | LC_ALL=C sort > {out}",
    )


def _pages(draft: Draft) -> tuple[str, list[str], list[str]]:
    """A text with addresses and ticket numbers in it."""
    rng = draft.rng
    mails = [f"{word}@{rng.choice(FOLDER_HOSTS)}" for word in sample(rng, WORDS, 3, 6)]
    tickets = [f"{rng.choice(('OPS', 'WEB'))}-{number}" for number in rng.sample(range(100, 9999), rng.randint(3, 6))]
    rows = [f"{sentence(rng, 2, 4)} {found} {sentence(rng, 1, 3)}" for found in (*mails, *tickets)]
    rng.shuffle(rows)
    return draft.file(f"{draft.area()}/inbox.txt", lines(rows)), mails, tickets


FOLDER_HOSTS = ("mail.test", "post.example", "corp.invalid")


def addresses(draft: Draft) -> str:
    """All mail addresses in a text."""
    path, mails, _ = _pages(draft)
    out = draft.output("addresses")
    return draft.write(
        out,
        lines(sorted(mails)),
        ask=f"Write all e-mail addresses that occur in {path} to {out}, one a line, in alphabetical order.",
        solve=f"grep -oE '[a-z]+@[a-z.]+' {path} | LC_ALL=C sort > {out}",
    )


def tickets(draft: Draft) -> str:
    """Numbers of one kind of ticket."""
    path, _, found = _pages(draft)
    kind = found[0].split("-")[0]
    numbers = sorted(int(each.split("-")[1]) for each in found if each.startswith(kind))
    out = draft.output("tickets")
    return draft.write(
        out,
        lines([str(number) for number in numbers]),
        ask=f"{path} mentions tickets such as {kind}-31. Write the numbers of all tickets whose prefix is {kind} to "
        f"{out}, one a line, from low to high.",
        solve=f"grep -oE '{kind}-[0-9]+' {path} | cut -d- -f2 | sort -n > {out}",
    )


def redact(draft: Draft) -> None:
    """Hide addresses in place."""
    path, mails, _ = _pages(draft)
    draft.changes(path)
    hidden = draft.input_text(path)
    for mail in mails:
        hidden = hidden.replace(mail, "[hidden]")
    draft.ask(
        f"Replace every e-mail address in {path} by [hidden], in place.",
        f"sed -i -E 's/[a-z]+@[a-z.]+/[hidden]/g' {path}",
    )
    draft.check("text", path, want=hidden)


def _log(draft: Draft) -> tuple[str, list[tuple[str, str, str, str]]]:
    rows = log_rows(draft.rng, draft.rng.randint(14, 24))
    return draft.file(f"{draft.area()}/app.log", lines([" ".join(row) for row in rows])), rows


def count_level(draft: Draft) -> str:
    """How often a level occurs."""
    path, rows = _log(draft)
    level = draft.rng.choice(LEVELS)
    out = draft.output("count")
    return draft.write(
        out,
        f"{sum(row[1] == level for row in rows)}\n",
        ask=f"Each line of {path} is TIME LEVEL SERVICE MESSAGE. Write the number of lines with level {level}, "
        f"alone, to {out}.",
        solve=f"awk '$2 == \"{level}\"' {path} | wc -l > {out}",
    )


def messages_of(draft: Draft) -> str:
    """Lines of one service."""
    path, rows = _log(draft)
    service = draft.rng.choice(SERVICES)
    out = draft.output("service", ".log")
    return draft.write(
        out,
        lines([" ".join(row) for row in rows if row[2] == service]),
        ask=f"Each line of {path} is TIME LEVEL SERVICE MESSAGE. Copy the lines of service {service} to {out}, "
        "unchanged and in their order.",
        solve=f"awk '$3 == \"{service}\"' {path} > {out}",
    )


def per_service(draft: Draft) -> str:
    """A table of counts."""
    path, rows = _log(draft)
    out = draft.output("summary")
    counts = Counter(row[2] for row in rows)
    return draft.write(
        out,
        lines([f"{service}={count}" for service, count in sorted(counts.items())]),
        ask=f"Each line of {path} is TIME LEVEL SERVICE MESSAGE. Write SERVICE=COUNT for every service to {out}, "
        "one a line, by service in alphabetical order.",
        solve=f"awk '{{print $3}}' {path} | LC_ALL=C sort | uniq -c | awk '{{print $2 \"=\" $1}}' > {out}",
    )
