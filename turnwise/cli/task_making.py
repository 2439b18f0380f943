"""Commands that make tasks for terminals, and show a folder of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from turnwise.cli.common import Trust, bare_table, console, one_message
from turnwise.trust import trusting
from turnwise.untrusted import printable
from turnwise.words import counted

if TYPE_CHECKING:
    from turnwise.envs.terminals.terminal_task import TerminalTask
    from turnwise.evaluate.terminal_stages import Gate, Solver, TaskAuthor

app = typer.Typer(no_args_is_help=True, help="Make tasks, and look at them.")
_SECONDS = 120.0


@app.command()
def make(
    kind: Annotated[Literal["terminals"], typer.Argument(help="What the tasks are for.")],
    output: Annotated[Path, typer.Option(help="A folder; one that is not complete is continued.")] = Path(
        "tasks/terminals"
    ),
    count: Annotated[int, typer.Option(min=1, help="Tasks to draft; those that fail a stage are dropped.")] = 3000,
    families: Annotated[str, typer.Option(help="Names with commas; by default all with six complexities.")] = "",
    complexities: Annotated[str, typer.Option(help="1 (one command) to 6 (five to ten).")] = "1,2,3,4,5,6",
    endpoint: Annotated[
        str | None, typer.Option(help="A chat API whose model writes the tasks, in place of the families.")
    ] = None,
    solver: Annotated[
        str, typer.Option(metavar="scripted|RUN|MODEL|URL", help="Who tries to solve them for the last stage.")
    ] = "scripted",
    model: Annotated[str | None, typer.Option(help="The model to ask for at the endpoint.")] = None,
    solver_model: Annotated[
        str | None, typer.Option(help="The model to ask for at the solver's address; by default --model.")
    ] = None,
    noise: Annotated[float, typer.Option(help="How often the scripted solver leaves out a command.")] = 0.0,
    tries: Annotated[int, typer.Option(min=1, help="Tries of the solver; a task is kept if pass@k is above 0.")] = 16,
    learnable: Annotated[bool, typer.Option(help="Also drop tasks that every try solves.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The first seed of each family.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Drafts at once.")] = 2,
    trust: Trust = False,
) -> None:
    """Draft tasks and keep the sound ones: a tree as promised, a test that an idle agent fails, a solution."""
    with one_message(), trusting(trust):
        from turnwise.envs.terminals.families.family_table import FULL, draft_names, usable
        from turnwise.envs.terminals.terminal_world import check_worlds
        from turnwise.evaluate.terminal_stages import Stages, require_same_settings

        check_worlds()
        named = [name.strip() for name in families.split(",")] if families else FULL
        chosen, skipped = usable([*dict.fromkeys(named)])
        for name, reason in skipped.items():
            typer.echo(f"{name} is left out: it {reason}")
        if not chosen:
            raise ValueError("no family is left; install the programs that they need, or name others with --families")
        names = draft_names(count, chosen, _numbers(complexities), seed)
        settings = {"endpoint": endpoint, "solver": solver, "model": model, "noise": noise, "tries": tries}
        settings |= {"solver_model": solver_model, "learnable": learnable}
        author = _author(endpoint, model)
        with _solver(solver, solver_model or model, noise, scripted_can=endpoint is None) as solve:
            require_same_settings(output, settings)
            typer.echo(
                f"{counted(len(names), 'draft')} for {output}; the same command continues a folder that is cut short"
            )
            stages = Stages(author=author, solver=solve, tries=tries, k=tries, learnable=learnable)
            try:
                gates = stages.run(names, output, jobs=jobs)
            except ConnectionError as error:
                raise ValueError(f"{error}; the same command continues {output}") from error
    _show_counts(gates)
    kept = sum(gate.ok for gate in gates if gate.stage == "solve")
    typer.echo(f"{counted(kept, 'task')} in {output}")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `turnwise tasks make` wrote.")],
    name: Annotated[str | None, typer.Argument(help="Show this task.")] = None,
    names: Annotated[bool, typer.Option("--names", help="List every task: its name and split.")] = False,
) -> None:
    """Show what the stages let through, and how many tasks there are by family; all names; or one task in full."""
    with one_message():
        from turnwise.envs.terminals.terminal_task import read_task, read_tasks
        from turnwise.evaluate.terminal_stages import STAGES, read_log

        if name is not None:
            if not (folder / name).is_dir():
                close = get_close_matches(name, [each.parent.name for each in folder.glob("*/task.json")], n=1)
                raise ValueError(f"{folder} has no task {name}{f'; did you mean {close[0]}?' if close else ''}")
            task = read_task(folder / name)
            for title, text in (
                ("task", task.instruction),
                ("setup", task.setup),
                ("solution", "\n".join(task.solution)),
            ):
                console().print(Text(f"{title}:", style="bold"), Text(printable(text)), "", sep="\n")
            return
        if names:
            _list_names(read_tasks(folder))
            return
        gates = read_log(folder)
        all_removed = bool(gates) and not any(gate.ok for gate in gates if gate.stage == STAGES[-1])
        tasks = [] if all_removed else read_tasks(folder)
    _show_counts(gates)
    if not tasks:
        typer.echo(f"no draft in {folder} passed all stages")
        return
    cells = Counter((task.family, task.complexity) for task in tasks)
    levels = sorted({complexity for _, complexity in cells})
    table = bare_table("family", *(f"complexity {level}" for level in levels))
    for family in sorted({family for family, _ in cells}):
        table.add_row(printable(family), *(str(cells[family, level]) for level in levels))
    console().print(table)
    typer.echo(f"One task in full: turnwise tasks show {folder} {tasks[0].name}; --names lists all of them")


def _list_names(tasks: Sequence[TerminalTask]) -> None:
    from turnwise.envs.terminals.task_source import split_of_task

    width = max(len(task.name) for task in tasks)
    for task in tasks:
        typer.echo(f"{task.name:{width}}  {split_of_task(task)}")


def _numbers(complexities: str) -> list[int]:
    try:
        numbers = [*dict.fromkeys(int(each) for each in complexities.split(","))]
    except ValueError:
        numbers = [0]
    if not all(1 <= number <= 6 for number in numbers):
        raise ValueError(f"cannot read --complexities {complexities}; write numbers from 1 to 6 with commas: 1,2,3")
    return numbers


def _author(endpoint: str | None, model: str | None) -> TaskAuthor:
    if endpoint is None:
        from turnwise.envs.terminals.families.family_table import FamilyAuthor

        return FamilyAuthor()
    from turnwise.chat_endpoint import ChatEndpoint
    from turnwise.evaluate.chat_author import ChatAuthor

    return ChatAuthor(ChatEndpoint(endpoint, model=_named(endpoint, model), seconds=_SECONDS))


def _named(address: str, model: str | None) -> str:
    if model is None:
        raise ValueError(f"{address} needs the name of a model; add --model NAME")
    return model


@contextmanager
def _solver(who: str, model: str | None, noise: float, *, scripted_can: bool) -> Iterator[Solver]:
    from turnwise.evaluate.task_solvers import ENV, TURNS, playing_solver, scripted_solver

    if who == "scripted":
        if not scripted_can:
            raise ValueError("the scripted solver knows no solution of a chat model's tasks; add --solver URL or RUN")
        yield scripted_solver(noise)
    elif who.startswith(("http://", "https://")):
        from turnwise.chat_endpoint import ChatEndpoint
        from turnwise.evaluate.plan_tests import plays_endpoint

        chat = ChatEndpoint(who, model=_named(who, model), seconds=_SECONDS)
        yield playing_solver(plays_endpoint(chat, seconds=_SECONDS, concurrency=16, turns=TURNS))
    else:
        from turnwise.evaluate.plan_tests import plays_model
        from turnwise.recipe.loading import find_model
        from turnwise.train.stages import playing

        recipe, weights = find_model(who, {"rollout": {"max_turns": TURNS}})
        learned = recipe.env.kwargs if recipe.env.id == ENV else {}
        with playing(recipe, weights) as (player, _):
            yield playing_solver(plays_model(player), learned)


def _show_counts(gates: list[Gate]) -> None:
    from turnwise.evaluate.terminal_stages import count_gates

    table = bare_table("stage", "passed", "removed", "most frequent reason")
    for stage, counts in count_gates(gates).items():
        reasons = Counter(gate.reason.partition(":")[0] for gate in gates if gate.stage == stage and not gate.ok)
        reason = reasons.most_common(1)[0][0] if reasons else ""
        table.add_row(stage, str(counts["passed"]), str(counts["removed"]), printable(reason[:80]))
    console().print(table)
