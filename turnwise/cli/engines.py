"""Commands about engines in other processes: serve one, and write a model in the form that servers reload exactly."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from turnwise.cli.common import one_message, parse_settings
from turnwise.doorkeeping import address_of, from_elsewhere, is_loopback, listen

app = typer.Typer(no_args_is_help=True, help="Engines in other processes: serve a model, export one for a server.")

Model = Annotated[str, typer.Argument(help="nano, a folder, or a name that transformers knows.")]
Precision = Annotated[Literal["fp32", "bf16"], typer.Option(help="What the model computes in.")]
_TOKEN = "TURNWISE_ENGINE_TOKEN"
_KEEP_ALIVE = 600
"""Seconds that an idle connection stays open: longer than a trainer learns between two steps."""


@app.command()
def serve(
    model: Model,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="max_batch, chunk_tokens, share_prompts, recompute"),
    ] = None,
    host: Annotated[str, typer.Option(help="Other addresses than this machine's need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8100,
    root: Annotated[
        Path | None, typer.Option(help="Weights are loaded from folders below this one only, such as runs.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a session; by default those of a recipe.")] = None,
    memory_gib: Annotated[float, typer.Option(help="Memory for keys and values.")] = 0.5,
    dtype: Precision = "fp32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto takes a GPU if there is one.")] = "auto",
    token: Annotated[str, typer.Option(envvar=_TOKEN, help="What callers must know.", show_default=False)] = "",
) -> None:
    """Serve a model to trainers: engine: {kind: turnwise, urls: [http://127.0.0.1:8100]} in their recipe."""
    with one_message():
        require_serving(host, token, f"set {_TOKEN}, here and for the trainer")
        settings = parse_settings(options)
        served, about = _load(
            model, settings, root=root, context=context, memory=memory_gib, dtype=dtype, device=device, token=token
        )
        answer(served.app, about, host=host, port=port, at_end=served.shutdown)


@app.command()
def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    dtype: Precision = "fp32",
) -> None:
    """Write a model with its head apart from its embedding: servers such as vLLM then reload all of it."""
    with one_message():
        if folder.exists():
            raise ValueError(f"{folder} exists already; choose a new folder")
        from turnwise.engine.published import write_model
        from turnwise.policy.text_loading import load_model

        loaded, tokenizer = load_model(model, dtype=dtype, device="cpu")
        folder.mkdir(parents=True)
        write_model(folder, loaded, iter(loaded.state_dict().items()))
        tokenizer.save_pretrained(folder)
        typer.echo(f"{folder} holds {model} with its head apart from its embedding")


def _load(
    model: str,
    options: dict[str, Any],
    *,
    root: Path | None,
    context: int | None,
    memory: float,
    dtype: Literal["fp32", "bf16"],
    device: str,
    token: str,
) -> tuple[Any, str]:
    """The application, and a line about it."""
    import torch

    from turnwise.engine.kinds import IN_PROCESS, check_engine
    from turnwise.engine.served import Served
    from turnwise.engine.torch_engine import TorchEngine
    from turnwise.policy.text import TextPolicy
    from turnwise.recipe.schema import CONTEXT

    check_engine(IN_PROCESS, options)
    if root is not None and not root.is_dir():
        raise ValueError(f"--root {root} is not a folder; create it, or name another")
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    policy = TextPolicy.load(model, dtype=dtype, device=where, train=[])
    capacity = context or min(policy.room or CONTEXT, CONTEXT)
    engine = TorchEngine(
        policy.model, tokenizer=policy.tokenizer, capacity=capacity, memory_bytes=int(memory * 2**30), **options
    )
    about = f"{model} in {dtype} on {where}, {capacity} tokens a session, weights from {root or 'nowhere else'}"
    return Served(engine, policy.model, name=model, root=root, token=token), about


def require_serving(host: str, secret: str, advice: str) -> None:
    """ValueError unless servers are installed, and whoever can reach this one must know a secret."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ValueError("serving needs packages that are missing: pip install 'turnwise[serve]'")
    if not is_loopback(host) and not secret:
        raise ValueError(f"{host} can be reached from other machines; {advice}")


def answer(
    application: Any,
    about: str,
    *,
    host: str,
    port: int,
    base: str = "",
    at_end: Callable[[], None] = lambda: None,
) -> None:
    """Answer until a signal ends the process; `base` is where the routes begin, for clients that ask for it."""
    import uvicorn

    with listen(host, port) as listener:
        typer.echo(f"serving {about} at {address_of(listener, host)}{base}{from_elsewhere(host)}")
        config = uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=2,
            ws="none",
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            at_end()
