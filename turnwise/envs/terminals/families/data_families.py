"""Families about data: CSV, JSON, YAML, settings, SQLite."""

from __future__ import annotations

import json
import shlex
from typing import Any

from turnwise.envs.terminals.families.material import SERVICES, WORDS, Row, csv_text, lines, people, sample
from turnwise.envs.terminals.task_draft import Draft


def _table(draft: Draft) -> tuple[str, list[Row]]:
    rows = people(draft.rng, draft.rng.randint(8, 14))
    return draft.file(f"{draft.area()}/people.csv", csv_text(rows)), rows


_COLUMNS = "The columns of {path} are name,city,team,amount."


def one_column(draft: Draft) -> str:
    """A column without its header."""
    path, rows = _table(draft)
    place, name = draft.rng.choice(((1, "city"), (2, "team"), (3, "amount")))
    out = draft.output(name)
    return draft.write(
        out,
        lines([str(row[place]) for row in rows]),
        ask=f"{_COLUMNS.format(path=path)} Write the column {name} to {out}, without the header and in the order of "
        "the file.",
        solve=f"tail -n +2 {path} | cut -d, -f{place + 1} > {out}",
    )


def rows_of_team(draft: Draft) -> str:
    """Rows that fit, with the header."""
    path, rows = _table(draft)
    team = draft.rng.choice(rows)[2]
    out = draft.output("team", ".csv")
    return draft.write(
        out,
        csv_text([row for row in rows if row[2] == team]),
        ask=f"{_COLUMNS.format(path=path)} Write the header and all rows of team {team} to {out}, in the order of "
        "the file.",
        solve=f"awk -F, 'NR == 1 || $3 == \"{team}\"' {path} > {out}",
    )


def sum_of_city(draft: Draft) -> str:
    """A sum over some rows."""
    path, rows = _table(draft)
    city = draft.rng.choice(rows)[1]
    out = draft.output("sum")
    return draft.write(
        out,
        f"{sum(row[3] for row in rows if row[1] == city)}\n",
        ask=f"{_COLUMNS.format(path=path)} Write the sum of the amounts of all rows with city {city}, as a number "
        f"alone, to {out}.",
        solve=f"awk -F, '$2 == \"{city}\" {{sum += $4}} END {{print sum}}' {path} > {out}",
    )


def highest_amounts(draft: Draft) -> str:
    """Names by amount."""
    path, rows = _table(draft)
    most = draft.rng.randint(2, 4)
    out = draft.output("highest")
    ranked = sorted(rows, key=lambda row: -row[3])[:most]
    return draft.write(
        out,
        lines([row[0] for row in ranked]),
        ask=f"{_COLUMNS.format(path=path)} Write the names of the {most} rows with the highest amounts to {out}, "
        "highest first, one a line.",
        solve=f"tail -n +2 {path} | sort -t, -k4,4nr | head -n {most} | cut -d, -f1 > {out}",
    )


def _python(code: str) -> str:
    return f"python3 -c {shlex.quote(code)}"


def _document(draft: Draft) -> tuple[str, list[dict[str, Any]]]:
    rng = draft.rng
    entries: list[dict[str, Any]] = [
        {"id": place, "name": name, "active": rng.random() < 0.5, "limits": {"memory": rng.randint(1, 64) * 16}}
        for place, name in enumerate(sample(rng, WORDS, 5, 8), 1)
    ]
    entries[rng.randrange(len(entries))]["active"] = True
    return draft.file(f"{draft.area()}/services.json", json.dumps(entries, indent=1) + "\n"), entries


_ENTRIES = "{path} is a JSON list of objects with id, name, active and limits.memory."


def active_names(draft: Draft) -> str:
    """Names of entries that fit."""
    path, entries = _document(draft)
    out = draft.output("active")
    return draft.write(
        out,
        lines([entry["name"] for entry in entries if entry["active"]]),
        ask=f"{_ENTRIES.format(path=path)} Write the names of all active entries to {out}, one a line, in the order "
        "of the list.",
        solve=_python(f"import json; [print(e['name']) for e in json.load(open('{path}')) if e['active']]")
        + f" > {out}",
    )


def memory_sum(draft: Draft) -> str:
    """A sum of nested values."""
    path, entries = _document(draft)
    out = draft.output("memory")
    return draft.write(
        out,
        f"{sum(entry['limits']['memory'] for entry in entries)}\n",
        ask=f"{_ENTRIES.format(path=path)} Write the sum of all limits.memory, as a number alone, to {out}.",
        solve=_python(f"import json; print(sum(e['limits']['memory'] for e in json.load(open('{path}'))))")
        + f" > {out}",
    )


def change_entry(draft: Draft) -> None:
    """One nested value of a new document."""
    path, entries = _document(draft)
    chosen, value = draft.rng.choice(entries), draft.rng.randint(100, 999)
    out = draft.output("services", ".json")
    code = (
        f"import json; d = json.load(open('{path}')); "
        f"[e['limits'].update(memory={value}) for e in d if e['id'] == {chosen['id']}]; print(json.dumps(d))"
    )
    draft.ask(
        f"{_ENTRIES.format(path=path)} Write the same list as JSON to {out} with limits.memory of the entry with id "
        f"{chosen['id']} set to {value}.",
        f"{_python(code)} > {out}",
    )
    changed = [{**entry, "limits": {"memory": value}} if entry is chosen else entry for entry in entries]
    draft.check("document", out, want=changed)


def _yaml(draft: Draft) -> tuple[str, dict[str, int], list[str]]:
    """A flat mapping and a list, as YAML."""
    rng = draft.rng
    ports = {name: rng.randint(1024, 9999) for name in rng.sample(SERVICES, rng.randint(3, 5))}
    hosts = [f"{word}.internal" for word in sample(rng, WORDS, 3, 6)]
    text = lines(
        [
            *("ports:", *(f"  {name}: {port}" for name, port in ports.items())),
            *("hosts:", *(f"  - {host}" for host in hosts)),
        ]
    )
    return draft.file(f"{draft.area()}/deploy.yaml", text), ports, hosts


def yaml_list(draft: Draft) -> str:
    """Items of a list."""
    path, _, hosts = _yaml(draft)
    out = draft.output("hosts")
    return draft.write(
        out,
        lines(hosts),
        ask=f"Write the items of the list hosts in the YAML file {path} to {out}, one a line, in their order.",
        solve=f"sed -n '/^hosts:/,$s/^  - //p' {path} > {out}",
    )


def yaml_value(draft: Draft) -> str:
    """One value of a mapping."""
    path, ports, _ = _yaml(draft)
    name = draft.rng.choice([*ports])
    out = draft.output("port")
    return draft.write(
        out,
        f"{ports[name]}\n",
        ask=f"Write the value of {name} under ports in the YAML file {path}, alone, to {out}.",
        solve=f"awk '$1 == \"{name}:\" {{print $2}}' {path} > {out}",
    )


def change_yaml(draft: Draft) -> None:
    """Another port, in place."""
    path, ports, _ = _yaml(draft)
    name, port = draft.rng.choice([*ports]), draft.rng.randint(10_000, 20_000)
    draft.changes(path)
    draft.ask(
        f"Change the value of {name} under ports in the YAML file {path} to {port}, in place, and nothing else.",
        f"sed -i 's/^  {name}: .*/  {name}: {port}/' {path}",
    )
    draft.check("text", path, want=draft.input_text(path).replace(f"{name}: {ports[name]}\n", f"{name}: {port}\n"))


def _settings(draft: Draft) -> tuple[str, dict[str, str]]:
    """A file of NAME=value lines with comments."""
    rng = draft.rng
    values = {word.upper(): f"{rng.choice(WORDS)}{rng.randint(1, 99)}" for word in sample(rng, WORDS, 5, 8)}
    rows = [f"{name}={value}" for name, value in values.items()]
    for place in sorted(rng.sample(range(len(rows)), 2), reverse=True):
        rows.insert(place, f"# {rng.choice(WORDS)}")
    return draft.file(f"{draft.area()}/service.env", lines(rows)), values


def setting_names(draft: Draft) -> str:
    """Names without values and comments."""
    path, values = _settings(draft)
    out = draft.output("names")
    return draft.write(
        out,
        lines(sorted(values)),
        ask=f"{path} has lines NAME=value and comments that start with #. Write all names to {out}, one a line, in "
        "alphabetical order.",
        solve=f"grep -v '^#' {path} | cut -d= -f1 | LC_ALL=C sort > {out}",
    )


def setting_value(draft: Draft) -> str:
    """The value of one name."""
    path, values = _settings(draft)
    name = draft.rng.choice([*values])
    out = draft.output("value")
    return draft.write(
        out,
        f"{values[name]}\n",
        ask=f"{path} has lines NAME=value. Write the value of {name}, alone, to {out}.",
        solve=f"sed -n 's/^{name}=//p' {path} > {out}",
    )


def change_setting(draft: Draft) -> None:
    """Another value, in place."""
    path, values = _settings(draft)
    name, value = draft.rng.choice([*values]), f"{draft.rng.choice(WORDS)}{draft.rng.randint(100, 999)}"
    draft.changes(path)
    draft.ask(
        f"Set {name} to {value} in {path}, in place, and change nothing else.",
        f"sed -i 's/^{name}=.*/{name}={value}/' {path}",
    )
    draft.check("text", path, want=draft.input_text(path).replace(f"{name}={values[name]}\n", f"{name}={value}\n"))


_TABLE = "The SQLite database {path} has the table people(name, city, team, amount)."


def _database(draft: Draft) -> tuple[str, list[Row]]:
    rows = people(draft.rng, draft.rng.randint(8, 14))
    path = f"{draft.area()}/people.db"
    code = (
        f"import sqlite3; d = sqlite3.connect('{path}'); "
        "d.execute('create table people(name text, city text, team text, amount integer)'); "
        f"d.executemany('insert into people values (?, ?, ?, ?)', {rows!r}); d.commit()"
    )
    draft.prepare(_python(code), path)
    return path, rows


def _query(path: str, query: str) -> str:
    return _python(f"import sqlite3; [print(*r, sep='|') for r in sqlite3.connect('{path}').execute({query!r})]")


def query_team(draft: Draft) -> str:
    """Names of one team."""
    path, rows = _database(draft)
    team = draft.rng.choice(rows)[2]
    out = draft.output("team")
    return draft.write(
        out,
        lines(sorted(row[0] for row in rows if row[2] == team)),
        ask=f"{_TABLE.format(path=path)} Write the names of all people of team {team} to {out}, one a line, in "
        "alphabetical order.",
        solve=f"{_query(path, f'select name from people where team = {_quoted(team)} order by name')} > {out}",
    )


def query_sums(draft: Draft) -> str:
    """Sums by group."""
    path, rows = _database(draft)
    out = draft.output("sums")
    sums = {city: sum(row[3] for row in rows if row[1] == city) for city in sorted({row[1] for row in rows})}
    return draft.write(
        out,
        lines([f"{city}|{total}" for city, total in sums.items()]),
        ask=f"{_TABLE.format(path=path)} Write CITY|SUM of the amounts for every city to {out}, one a line, by city "
        "in alphabetical order.",
        solve=f"{_query(path, 'select city, sum(amount) from people group by city order by city')} > {out}",
    )


def update_rows(draft: Draft) -> None:
    """Change rows of the table."""
    path, rows = _database(draft)
    team, extra = draft.rng.choice(rows)[2], draft.rng.randint(5, 50)
    statement = f"update people set amount = amount + {extra} where team = {_quoted(team)}"
    code = f"import sqlite3; d = sqlite3.connect('{path}'); d.execute({statement!r}); d.commit()"
    draft.ask(
        f"{_TABLE.format(path=path)} Raise the amount of everyone in team {team} by {extra}; keep all else.",
        _python(code),
    )
    raised = [[*row[:3], row[3] + extra * (row[2] == team)] for row in rows]
    draft.check("rows", path, query="select name, city, team, amount from people order by rowid", want=raised)


def _quoted(value: str) -> str:
    return f"'{value}'"
