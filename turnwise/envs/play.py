"""Play an environment in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from turnwise.envs.base import Env, Info, Reset, listed_tasks, won
from turnwise.envs.faults import EpisodeError
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Host, Workers
from turnwise.envs.wrappers.named import Choice, check_wrappers
from turnwise.untrusted import printable
from turnwise.waiting import LoopRunner

_PATIENCE_SECONDS = 600.0
_BOX = r"\boxed"


def play_in_terminal(
    env: str | Callable[..., Env],
    kwargs: Mapping[str, Any],
    *,
    seed: int,
    task: str | None = None,
    wrappers: Sequence[Choice] = (),
    read: Callable[[str], str] = input,
    write: Callable[[str], None] = print,
) -> None:
    """Play one episode, one line per turn, until it ends or the player leaves (end of input, Ctrl-C).

    `task` names one that the environment lists, or is its place in the list from 0; without it the seed decides.
    The environment's text is escaped so that it cannot control the terminal.
    """
    source = EnvSource(env=env, kwargs=kwargs, wrappers=wrappers)
    check_wrappers(wrappers)
    _ = source.spec  # an unknown id raises before anything starts
    with LoopRunner() as runner:
        host: Host | None = None
        try:
            host = runner.run(Workers(execution="inline").open(source, deadline=_PATIENCE_SECONDS))
            chosen = None
            if task is not None:
                chosen = _find_task(runner.run(host.call(listed_tasks, deadline=_PATIENCE_SECONDS)), task)
            opening = runner.run(host.reset(seed, chosen, deadline=_PATIENCE_SECONDS))
            _play(runner, host, opening, read, write)
        except EpisodeError as error:
            raise ValueError(f"{source.name}: {error}") from error
        except (EOFError, KeyboardInterrupt):
            write("\nYou left the game.")
        finally:
            if host is not None:
                with suppress(EpisodeError):  # the game is over
                    runner.run(host.close(deadline=_PATIENCE_SECONDS))


def _find_task(tasks: Sequence[Any] | None, wanted: str) -> Any:
    """The task of that name, or at that place."""
    if tasks is None:
        raise ValueError(f"it makes tasks from seeds and has no list of them, so there is no task {wanted}; use --seed")
    named = {task: task for task in tasks if isinstance(task, str)}
    named |= {task["name"]: task for task in tasks if isinstance(task, Mapping) and isinstance(task.get("name"), str)}
    if wanted in named:
        return named[wanted]
    if wanted.isdecimal() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    close = get_close_matches(wanted, named, n=1)
    hint = f"did you mean {close[0]}? Or " if close else ""
    raise ValueError(
        f"there is no task {wanted} in this split; {hint}choose another name, a number from 0 to {len(tasks) - 1}, or "
        "another split: split=validation"
    )


def _play(
    runner: LoopRunner, host: Host, opening: Reset, read: Callable[[str], str], write: Callable[[str], None]
) -> None:
    # Lines are read outside the event loop: inside it, Ctrl-C would not interrupt the wait.
    first, *others = runner.run(host.seats(deadline=_PATIENCE_SECONDS))
    observation, info = opening
    wants_box, totals, terminated, truncated = _BOX in observation, dict.fromkeys([first, *others], 0.0), False, False
    while not (terminated or truncated):
        write(printable(observation))
        actor = info.get("seat", first)
        line = read(f"{actor if others else ''}> ")
        action = _boxed(line, write) if wants_box else line
        observation, reward, terminated, truncated, info = runner.run(host.step(action, deadline=_PATIENCE_SECONDS))
        for name, earned in {actor: reward, **info.get("rewards", {})}.items():
            totals[name] = totals.get(name, 0.0) + earned
        write(f"[reward {reward:g}]")
    write(printable(observation))
    write(_result(totals, info, "terminated" if terminated else "truncated"))


def _boxed(line: str, write: Callable[[str], None]) -> str:
    """Add a missing box: people forget it, and many games end at an action without one."""
    if _BOX in line:
        return line
    boxed = rf"{_BOX}{{{line.strip()}}}"
    write(f"[sent as {boxed}]")
    return boxed


def _result(totals: Mapping[str, float], info: Info, end: str) -> str:
    if len(totals) > 1:
        return f"Over ({end}), total reward: {', '.join(f'{name} {total:g}' for name, total in totals.items())}."
    [total] = totals.values()
    return f"{'Won' if won(info, total) else 'Over'} ({end}), total reward {total:g}."
