"""Loggers: copies of a run's numbers, and of some episodes, elsewhere. The run folder has them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.runs.journal import read_journal

if TYPE_CHECKING:  # a recipe includes its algorithm, which needs torch
    from turnwise.recipe.schema import Log
    from turnwise.runs.folder import RunFolder

_EPISODES = "eval/episodes_played"
"""Under this name go the texts."""


class Logger(Protocol):
    """One destination for numbers."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        ...

    def episodes(self, step: int, texts: Sequence[str]) -> None:
        """Log some held-out episodes that were played after a step."""
        ...

    def close(self) -> None:
        """Flush what is still queued."""
        ...


class Loggers:
    """Every logger that the recipe asks for: `loggers.row({"step": 3, "rollout/success": 0.5})`."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = loggers

    @classmethod
    def of(cls, log: Log, folder: RunFolder) -> Loggers:
        """The loggers of the recipe, for a run that is new or was rewound to its checkpoint."""
        loggers: list[Logger] = []
        if log.tensorboard:
            loggers.append(TensorBoard(folder))
        if log.wandb:
            loggers.append(WeightsAndBiases(folder, project=log.wandb))
        if log.trackio:
            loggers.append(Trackio(folder, project=log.trackio))
        return cls(loggers)

    def row(self, row: Mapping[str, Any]) -> None:
        """Log a row of metrics.jsonl or evals.jsonl."""
        values = {name: float(value) for name, value in row.items() if name != "step" and _is_number(value)}
        for logger in self._loggers:
            logger.numbers(row["step"], values)

    def episodes(self, step: int, texts: Sequence[str]) -> None:
        """Log some held-out episodes as texts."""
        for logger in self._loggers if texts else ():
            logger.episodes(step, texts)

    def close(self) -> None:
        """Flush what is still queued."""
        for logger in self._loggers:
            logger.close()


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs`."""

    def __init__(self, folder: RunFolder) -> None:
        writer = _require("torch.utils.tensorboard", extra="tensorboard").SummaryWriter
        rows = read_journal(folder.metrics.path)
        # Drop later steps that an interrupted run had logged.
        purge_step = rows[-1]["step"] + 1 if rows else None
        self._writer = writer(log_dir=str(folder.path / "tensorboard"), purge_step=purge_step)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def episodes(self, step: int, texts: Sequence[str]) -> None:
        """Log some held-out episodes."""
        self._writer.add_text(_EPISODES, _as_code(texts), step)
        self._writer.flush()

    def close(self) -> None:
        """Flush what is still queued."""
        self._writer.close()


class WeightsAndBiases:
    """A Weights & Biases run with the recipe's name and the stage; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, folder: RunFolder, *, project: str) -> None:
        self._wandb = _require("wandb", extra="wandb")
        name, place = _name_and_place(folder)
        self._run = self._wandb.init(
            project=project,
            name=name,
            id=_identifier(f"{place}-{folder.meta.get('started', '')}"),
            resume="allow",
            dir=str(folder.path),
            config=folder.config,
        )

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        self._run.log(dict(values), step=step)

    def episodes(self, step: int, texts: Sequence[str]) -> None:
        """Log some held-out episodes."""
        rows = [[step, text] for text in texts]
        self._run.log({_EPISODES: self._wandb.Table(columns=["step", "episode"], data=rows)}, step=step)

    def close(self) -> None:
        """Flush what is still queued."""
        self._run.finish()


class Trackio:
    """A trackio run on this machine (`trackio show`); TRACKIO_SPACE_ID sends it to a Space instead."""

    def __init__(self, folder: RunFolder, *, project: str) -> None:
        self._trackio = _require("trackio", extra="trackio")
        name, place = _name_and_place(folder)
        self._run = self._trackio.init(
            project=project,
            name=f"{name} {place[:6]}",  # trackio knows runs by their names alone
            resume="allow",
            config=folder.config,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        self._run.log(dict(values), step=step)

    def episodes(self, step: int, texts: Sequence[str]) -> None:
        """Log some held-out episodes."""
        self._run.log({_EPISODES: self._trackio.Markdown(_as_code(texts))}, step=step)

    def close(self) -> None:
        """Flush what is still queued."""
        self._run.finish()


def _name_and_place(folder: RunFolder) -> tuple[str, str]:
    """What a run is called, and what tells it from others of that name: a resumed run keeps both."""
    stage = "sft" if folder.config["stage"] == "imitation" else "train"
    return f"{folder.config['name']} {stage}", sha256(str(folder.path.resolve()).encode()).hexdigest()[:16]


def _as_code(texts: Sequence[str]) -> str:
    """Markdown in which nothing that a model or an environment said is markup."""
    return "\n\n---\n\n".join("\n".join(f"    {line}" for line in text.splitlines()) for text in texts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _identifier(text: str) -> str:
    """With only the characters allowed in an id."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def _require(module: str, *, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"log.{extra} needs a package that is missing: pip install 'turnwise[{extra}]'") from None
