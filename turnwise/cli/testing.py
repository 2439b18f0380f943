"""The command that tests how well an agent plans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from turnwise.cli.common import Trust, bare_table, console, one_message, parse_settings
from turnwise.trust import trusting

if TYPE_CHECKING:
    from turnwise.evaluate.plan_tests import Play, SizeResult


def examine(
    agent: Annotated[
        str, typer.Argument(metavar="RUN|MODEL|URL", help="A run folder, a model, or the address of a chat API.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of plans/order: protocol=react timed=true"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for at an address.")] = None,
    sizes: Annotated[str, typer.Option(help="Numbers of actions.")] = "3,4,5",
    tests: Annotated[
        int | None, typer.Option(min=1, help="Requests of each size; by default min(300, 20·C(n, 2)), as in the paper.")
    ] = None,
    tries: Annotated[int, typer.Option(min=0, help="Variants that look for the cause of a failure; 0: none.")] = 3,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one turn.")] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time for one request at an address.")] = 180.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once at an address.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Which requests are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Test an agent's planning on requests that have a plan: error rates by size, kinds of errors and their causes."""
    with one_message(), trusting(trust):
        options, limits = parse_settings(settings), {"temperature": temperature, "max_tokens": max_tokens}
        numbers = _numbers(sizes)
        from turnwise.evaluate.plan_tests import PlanSuite, try_planner

        if agent.startswith(("http://", "https://")):
            if model is None:
                raise ValueError(f"{agent} needs the name of a model; add --model NAME")
            opened = _endpoint(agent, model, options, limits, seconds=seconds, concurrency=concurrency)
        else:
            opened, seconds = _policy(agent, options, limits), float("inf")
        with opened as (play, options):
            suite = PlanSuite(sizes=numbers, tests=tests, options=options, tries=tries, seconds=seconds, seed=seed)
            results = try_planner(play, suite)
    if as_json:
        typer.echo(json.dumps({"options": options, "sizes": [each.as_dict() for each in results]}))
        return
    _show(results)


def _numbers(sizes: str) -> list[int]:
    try:
        return [int(size) for size in sizes.split(",")]
    except ValueError:
        raise ValueError(f"cannot read --sizes {sizes}; write numbers with commas: 3,4,5") from None


Opened = tuple["Play", dict[str, Any]]


@contextmanager
def _endpoint(
    url: str, model: str, options: dict[str, Any], limits: dict[str, Any], *, seconds: float, concurrency: int
) -> Iterator[Opened]:
    """An agent behind an address; without a protocol it gets the tools as functions."""
    from turnwise.chat_endpoint import ChatEndpoint
    from turnwise.evaluate.plan_tests import plays_endpoint

    options = {"protocol": "api", **options}
    sent = {name: value for name, value in limits.items() if value is not None}
    if options["protocol"] == "react":
        sent["stop"] = ["\nObservation:"]
    endpoint = ChatEndpoint(url, model=model, seconds=seconds, options=sent)
    yield plays_endpoint(endpoint, seconds=seconds, concurrency=concurrency), options


@contextmanager
def _policy(name: str, options: dict[str, Any], limits: dict[str, Any]) -> Iterator[Opened]:
    """A model of ours; a run that learned to plan is tested in the form that it learned."""
    from turnwise.envs.registry import find, make
    from turnwise.evaluate.plan_tests import ENV, FAMILY, TURNS, plays_model
    from turnwise.recipe.loading import find_model
    from turnwise.train.stages import playing

    tokens = {"max_tokens": limits["max_tokens"]} if limits["max_tokens"] is not None else {}
    recipe, weights = find_model(name, {"rollout": {"max_turns": TURNS, **tokens}})
    learned = {"protocol": "calls"}
    if recipe.env.id.startswith(FAMILY):
        # The suite plays plans/order, where "timed" is an option.
        learned = {**find(recipe.env.id)[0].kwargs, **recipe.env.kwargs}
    make(ENV, **{**learned, **options})  # a wrong option is told before a model is loaded
    with playing(recipe, weights) as (player, _):
        yield plays_model(player, temperature=limits["temperature"]), {**learned, **options}


def _show(results: Sequence[SizeResult]) -> None:
    """Error rates by size, then kinds and causes of all errors together."""
    table = bare_table("actions", "tests", "errors", "rate", "95% interval", "random order")
    for each in results:
        row = each.as_dict()
        rate, low, high, blind = (
            f"{row[name]:.1%}" for name in ("error_rate", "error_rate_low", "error_rate_high", "random_error_rate")
        )
        table.add_row(str(each.size), str(each.tests), str(each.failures), rate, f"{low} to {high}", blind)
    console().print(table)
    kinds = Counter[str]()
    causes = Counter[str]()
    for each in results:
        kinds.update({str(kind): count for kind, count in each.errors.items()})
        causes.update({str(cause): count for cause, count in each.causes.items()})
    for title, counts in {"errors": kinds, "causes": causes}.items():
        if total := counts.total():
            parts = ", ".join(f"{name} {count / total:.1%}" for name, count in counts.most_common())
            console().print(Text(f"{title}: {parts}"))
