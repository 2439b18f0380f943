"""Commands to use what was trained: serve it to any client, and talk with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.common import Step, Trust, one_message, parse_settings
from turnwise.cli.engines import answer, require_serving
from turnwise.cli.training import key_in
from turnwise.trust import trusting
from turnwise.untrusted import printable

if TYPE_CHECKING:
    from turnwise.serve.model_server import ModelServer

KEY = "TURNWISE_API_KEY"
"""The environment variable with the key of our own servers."""
Context = Annotated[int | None, typer.Option(min=2, help="Tokens of a conversation; by default those of a recipe.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto takes a GPU if there is one.")]
Precision = Annotated[
    Literal["fp32", "bf16"] | None, typer.Option(help="What the model computes in; by default as it was trained.")
]


def serve(
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="A run folder, a model folder or a model name.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Of the engine: max_batch, chunk_tokens, share_prompts"),
    ] = None,
    step: Step = None,
    name: Annotated[
        str | None, typer.Option(help="What clients call the model; by default the last part of its path.")
    ] = None,
    host: Annotated[str, typer.Option(help="Other addresses than this machine's need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8000,
    context: Context = None,
    memory_gib: Annotated[float, typer.Option(help="Memory for keys and values.")] = 0.5,
    dtype: Precision = None,
    device: Device = "auto",
    api_key: Annotated[str, typer.Option(envvar=KEY, help="What clients must know.", show_default=False)] = "",
    trust: Trust = False,
) -> None:
    """Serve a model to any client of OpenAI's or Anthropic's formats: base_url=http://127.0.0.1:8000/v1."""
    with one_message(), trusting(trust):
        require_serving(host, api_key, f"set {KEY}, here and for the clients")
        changes = _changes(device=device, dtype=dtype)
        typer.echo(f"loading {printable(model)}{f' of step {step}' if step else ''}", err=True)
        settings = {"name": name, "context": context, "memory_gib": memory_gib, "key": api_key}
        with loaded(model, changes, step=step, engine=parse_settings(options), **settings) as (server, about):
            answer(server, about, host=host, port=port, base="/v1")


def chat(
    model: Annotated[
        str, typer.Argument(metavar="RUN|MODEL|URL", help="A run folder, a model, or the address of a chat API.")
    ],
    step: Step = None,
    at_address: Annotated[str | None, typer.Option("--model", help="The model to ask for at an address.")] = None,
    api_key_env: Annotated[str, typer.Option(help="The environment variable with the key of an address.")] = "",
    system: Annotated[str, typer.Option(help="The system prompt.")] = "",
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes answers repeatable.")] = None,
    context: Context = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Talk with a model; /reset forgets the conversation, /quit ends it. Without a terminal it reads lines."""
    with one_message(), trusting(trust):
        from turnwise.chat_endpoint import ChatEndpoint
        from turnwise.serve.chatting import HELP, Chat

        asked = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        sent = {key: value for key, value in asked.items() if value is not None}
        with _address(model, step=step, context=context, device=device) as (url, key):
            key = key or key_in(api_key_env)
            endpoint = ChatEndpoint(url, model=at_address or "", seconds=600.0, options=sent, key=key)
            if sys.stdin.isatty():
                typer.echo(f"{printable(endpoint.model)}: {HELP}", err=True)
            Chat(endpoint=endpoint, write=_write, remark=_remark, system=system).run(_lines())


@contextmanager
def loaded(
    model: str,
    changes: dict[str, Any],
    *,
    step: str | None = None,
    name: str | None = None,
    context: int | None = None,
    memory_gib: float = 0.5,
    key: str = "",
    engine: dict[str, Any] | None = None,
) -> Iterator[tuple[ModelServer, str]]:
    """The server of a model, and a line about it."""
    from turnwise.engine.kinds import IN_PROCESS, check_engine
    from turnwise.recipe.loading import at_step
    from turnwise.recipe.schema import CONTEXT
    from turnwise.serve.opening import opened
    from turnwise.train.entrants import load_voice

    check_engine(IN_PROCESS, engine or {})
    called = name or Path(model).name or model
    voice = load_voice(at_step(model, step) if step else model, name=called, changes=changes)
    capacity = context or min(voice.policy.room or CONTEXT, CONTEXT)
    about = f"{called} on {voice.policy.model.device}, {capacity} tokens a conversation,"
    with opened(
        voice.policy.model,
        voice.policy.tokenizer,
        voice.renderer,
        name=called,
        capacity=capacity,
        memory_gib=memory_gib,
        key=key,
        options=engine,
    ) as server:
        yield server, about


@contextmanager
def _address(model: str, *, step: str | None, context: int | None, device: str) -> Iterator[tuple[str, str]]:
    """Where to talk with a model, and the key: a model of ours gets a server of its own for as long as we talk."""
    if model.startswith(("http://", "https://")):
        yield model, ""
        return
    import secrets

    from turnwise.dialects.server_thread import ServerThread, require_server

    require_server("chat with a model")
    key = secrets.token_urlsafe(18)
    with loaded(model, _changes(device=device), step=step, context=context, key=key) as (application, _):
        server = ServerThread(application, name="chat")
        try:
            yield f"{server.origin}/v1", key
        finally:
            server.stop()


def _changes(*, device: str, dtype: str | None = None) -> dict[str, Any]:
    return {"device": device, **({"model": {"dtype": dtype}} if dtype else {})}


def _lines() -> Iterator[str]:
    """What the user types, or the lines of a pipe; Ctrl-C at the prompt ends it like /quit."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo("")
            return


def _write(text: str) -> None:
    sys.stdout.write(printable(text))
    sys.stdout.flush()


def _remark(text: str) -> None:
    typer.secho(printable(text), dim=True, nl=False)
