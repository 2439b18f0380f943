"""A bounded sample of episodes, token by token, for the trajectory browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from turnwise.report.columns import rounded
from turnwise.runs.disk import open_plain
from turnwise.runs.reading import Row, RunData


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """How much of the trajectories goes into a report."""

    steps: int = 3
    """Recorded steps, spread from the first to the last; also those nearest to the evaluations' ends and incidents."""
    episodes: int = 6
    """Episodes of one step."""
    tokens: int = 1500
    """Maximum tokens of one side of a turn; the page says how many more there are."""
    characters: int = 6000
    """Maximum characters of a text, shown if there is no tokenizer."""
    megabytes: float = 6.0
    """Of all runs together; each has an equal share."""


def sample_episodes(run: RunData, sample: Sample, *, budget: float, near: Sequence[int] = ()) -> dict[str, Any]:
    """Episodes of the chosen steps (and of those nearest to `near`) and of held-out tasks, with their tokens' texts."""
    steps = choose_steps(run.steps_with("step"), run.steps_with("tokens"), sample.steps, near)
    evaluated = choose_steps(run.steps_with("eval"), [], min(sample.steps, 2), ())
    chosen = [("step", step) for step in steps] + [("eval", step) for step in evaluated]
    return read_episodes(run, chosen, sample, budget=budget)


def read_episodes(run: RunData, chosen: Sequence[tuple[str, int]], sample: Sample, *, budget: float) -> dict[str, Any]:
    """Episodes of the chosen files, such as `("step", 120)` or `("eval", 100)`, with their tokens' texts."""
    tokenizer = _load_tokenizer(run) if chosen else None
    episodes: list[Row] = []
    spent = 0
    for kind, step in chosen:
        details = {str(row.get("id")): row for row in _token_rows(run, step)} if kind == "step" else {}
        for row in choose_rows(run.recorded(kind, step), sample.episodes):
            episode = _episode(row, step, details.get(str(row.get("id"))), sample, with_texts=tokenizer is None)
            episode["held_out"] = kind == "eval"
            spent += len(json.dumps(episode))
            if spent > budget:
                run.problems.append("The sample of episodes is smaller than asked for: it reached its size limit.")
                return _with_texts(episodes, tokenizer)
            episodes.append(episode)
    return _with_texts(episodes, tokenizer)


def choose_steps(recorded: Sequence[int], detailed: Sequence[int], count: int, near: Sequence[int]) -> list[int]:
    """The first and the last recorded step, steps spread evenly between, and the one nearest to each of `near`.

    Between the ends a step with token details is preferred.
    """
    if not recorded or count < 1:
        return []
    between = [step for step in detailed if step in set(recorded)] or recorded
    spread = [recorded[round((len(recorded) - 1) * place / max(count - 1, 1))] for place in range(count)]
    inner = [_nearest(between, step) for step in spread[1:-1]]
    return sorted({spread[0], spread[-1], *inner, *(_nearest(recorded, step) for step in near)})


def _nearest(steps: Sequence[int], step: int) -> int:
    return min(steps, key=lambda each: abs(each - step))


def choose_rows(rows: Sequence[Row], count: int) -> list[Row]:
    """Failures and successes alternately, in the order of the file, so that a small sample shows both."""
    won = [row for row in rows if _succeeded(row)]
    lost = [row for row in rows if not _succeeded(row)]
    half = min(len(lost), max(count - len(won), (count + 1) // 2))
    kept = {id(row) for row in [*lost[:half], *won[: count - half]]}
    return [row for row in rows if id(row) in kept]


def _token_rows(run: RunData, step: int) -> list[Row]:
    return run.recorded("tokens", step) if step in run.steps_with("tokens") else []


def _succeeded(row: Row) -> bool:
    verdict = _info(row).get("success")
    return bool(verdict) if verdict is not None else _reward(row) > 0


def _info(row: Row) -> Row:
    info = row.get("info")
    return info if isinstance(info, dict) else {}


def _reward(row: Row) -> float:
    return sum(rounded(turn.get("reward")) or 0 for turn in _turns(row))


def _turns(row: Row) -> list[Row]:
    turns = row.get("turns")
    return [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []


def _episode(row: Row, step: int, detail: Row | None, sample: Sample, *, with_texts: bool) -> Row:
    turns: list[Row] = []
    start = 0
    for turn in _turns(row):
        end = start + len(_ids(turn, "sampled_ids"))
        turns.append(_turn(turn, _slice(detail, start, end), sample, with_texts=with_texts))
        start = end
    return {
        "step": step,
        "id": str(row.get("id")),
        "seat": str(row.get("seat", "agent")),
        "stop": str(row.get("stop", "")),
        "error": _short(_info(row).get("error"), sample.characters),
        "success": _succeeded(row),
        "reward": rounded(_reward(row)),
        "task": _short(row.get("task"), sample.characters),
        "final": _short(row.get("final_observation"), sample.characters),
        "turns": turns,
    }


def _turn(turn: Row, streams: dict[str, list[Any]], sample: Sample, *, with_texts: bool) -> Row:
    prompt, sampled = _ids(turn, "prompt_ids"), _ids(turn, "sampled_ids")
    shown: Row = {
        "reward": rounded(turn.get("reward")) or 0,
        "valid": bool(turn.get("valid", True)),
        "restarts": bool(turn.get("restarts", False)),
        "version": turn.get("policy_version"),
        "prompt": prompt[-sample.tokens :],  # the newest part of a long prompt matters most
        "sampled": sampled[: sample.tokens],
        "left_out": [max(0, len(prompt) - sample.tokens), max(0, len(sampled) - sample.tokens)],
        "sampler": _numbers(turn.get("logprobs"), sample.tokens),
        **{name: _numbers(values, sample.tokens) for name, values in streams.items()},
    }
    if with_texts or not (prompt or sampled):  # without token texts the page shows the turn's own text
        shown["observation"] = _short(turn.get("observation"), sample.characters)
        shown["action"] = _short(turn.get("action"), sample.characters)
    return shown


def _slice(detail: Row | None, start: int, end: int) -> dict[str, list[Any]]:
    """This turn's part of the streams over all sampled tokens of a trajectory."""
    streams = {name: (detail or {}).get(name) for name in ("old", "new", "advantage", "clipped")}
    return {name: values[start:end] for name, values in streams.items() if isinstance(values, list)}


def _ids(turn: Row, name: str) -> list[int]:
    ids = turn.get(name)
    return [token for token in ids if isinstance(token, int)] if isinstance(ids, list) else []


def _numbers(values: Any, most: int) -> list[float | int | None] | None:
    return [rounded(value) for value in values[:most]] if isinstance(values, list) else None


def _short(value: Any, most: int) -> str:
    text = (
        "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    )
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"


def _with_texts(episodes: list[Row], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The episodes, and each token's text once."""
    sides = ("prompt", "sampled")
    ids = sorted({token for episode in episodes for turn in episode["turns"] for side in sides for token in turn[side]})
    if tokenizer is None:
        return {"episodes": episodes, "texts": None}
    return {"episodes": episodes, "texts": {str(token): _text(tokenizer, token) for token in ids}}


def _text(tokenizer: Tokenizer, token: int) -> str:
    """A token's own text; its vocabulary spelling if it is only a part of a character."""
    # Decoders drop a space at the start of a text, so the token is decoded after a letter.
    letter = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
    before = tokenizer.decode(letter, skip_special_tokens=False)
    text = tokenizer.decode([*letter, token], skip_special_tokens=False).removeprefix(before)
    return text if text and "\ufffd" not in text else tokenizer.id_to_token(token) or f"[{token}]"


def _load_tokenizer(run: RunData) -> Tokenizer | None:
    files = sorted((run.path / "checkpoints").glob("step_*/tokenizer.json"))
    if not files:
        run.problems.append("No checkpoint has a tokenizer: episodes are shown as texts, without token colours.")
        return None
    return _read_tokenizer(run, files[-1])


def _read_tokenizer(run: RunData, file: Path) -> Tokenizer | None:
    try:
        with open_plain(file) as opened:
            return Tokenizer.from_str(opened.read().decode())
    except Exception as error:  # the reader raises the bare class, whatever is wrong with the file
        run.problems.append(
            f"The tokenizer of {file.parent.name} could not be read ({error}); episodes are shown as texts."
        )
        return None
