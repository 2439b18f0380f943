"""Whether a run's config may import code. docs/trust.md says what is trusted and why.

A run folder is data, but its config may name code outside turnwise, which resuming the run would import and call. So
the config of such a run is signed with a key that only this user on this machine has.
"""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from turnwise.outside import is_file_place, is_outside, reads

SIGNATURE = "config.signature"
"""The file next to a run's config that proves who wrote it."""
_META = "meta.json"
_KEY_BYTES = 32
_KEPT, _MOST = 9, 4096
"""Earlier signatures to keep, and bytes of them to read."""
_OTHERS = 0o077
"""The permissions of group and others."""
_trusts = ContextVar("trusts", default=False)


class NoKeyError(Exception):
    """This user's key cannot be read or created, for the given reason."""


@contextmanager
def trusting(given: bool = True) -> Iterator[None]:
    """Trust run folders from elsewhere: `with trusting(): resume("runs/of-a-friend")`."""
    token = _trusts.set(_trusts.get() or given)
    try:
        yield
    finally:
        _trusts.reset(token)


def is_trusting() -> bool:
    """Whether the user trusts run folders from elsewhere."""
    return _trusts.get()


def outside_names(choices: Mapping[str, Any]) -> list[str]:
    """The code outside turnwise that a recipe names; algorithm files count, because they may name more."""
    named_in_env = ("id", "wrappers", "rewards")
    envs = [[env.get(key) for key in named_in_env] if isinstance(env, Mapping) else env for env in _envs(choices)]
    engine = choices.get("engine")
    kind = engine.get("kind") if isinstance(engine, Mapping) else engine
    judge = choices.get("judge")
    judged_by = judge.get("kind") if isinstance(judge, Mapping) else judge
    agents = [seat.get("agent") for seat in _mappings(choices.get("seats"))]
    rows = [choices.get("algorithm"), *(policy.get("algorithm") for policy in _mappings(choices.get("policies")))]
    named = [text for text in _texts(rows) if is_outside(text) or text.endswith((".yaml", ".yml"))]
    return [*filter(is_outside, _texts([envs, kind, judged_by, agents])), *_argued(_arguments(choices)), *named]


def code_of(choices: Mapping[str, Any]) -> list[str]:
    """All code that a recipe would run: what it names outside turnwise, command lines of agents, harnesses."""
    return [*outside_names(choices), *_commands(_arguments(choices))]


def code_among(arguments: Any) -> list[str]:
    """The code that arguments of an environment would run, such as a scoring function or an agent's command line."""
    return [*_argued(arguments), *_commands(arguments)]


def _argued(arguments: Any) -> list[str]:
    """Names of code; addresses are none."""
    return [text for text in _texts(arguments) if is_outside(text) and ("/" not in text or is_file_place(text))]


def _commands(arguments: Any) -> list[str]:
    """Command lines of agents; harnesses and functions of verifiers, which it imports by other names than ours."""
    found = (table[key] for table in _tables(arguments) for key in ("command", "harness", "fn") if table.get(key))
    return [" ".join(_texts(each)) for each in found]


def _arguments(choices: Mapping[str, Any]) -> list[Any]:
    """Whatever may reach an environment as an argument; the stages of a curriculum have arguments too."""
    source = choices.get("source")
    of_envs = [env.get(key) for env in _envs(choices) if isinstance(env, Mapping) for key in ("kwargs", "held_out")]
    return [*of_envs, source.get("tasks") if isinstance(source, Mapping) else None]


def _envs(choices: Mapping[str, Any]) -> list[Any]:
    evaluated = choices.get("eval")
    return [choices.get("env"), evaluated.get("env") if isinstance(evaluated, Mapping) else None]


def require_trust(file: Path, layers: Iterable[Mapping[str, Any]]) -> None:
    """ValueError if a recipe is the config of a run from elsewhere and names code outside turnwise."""
    if is_trusting() or not reads() or not (file.parent / _META).is_file():
        return
    names = [name for choices in layers for name in code_of(choices)]
    if names and not _is_signed(file):
        raise ValueError(
            f"{file} names code outside turnwise ({', '.join(dict.fromkeys(names))}), and you did not write it on "
            "this machine; read that code, then pass --trust to run it (docs/trust.md)"
        )


def sign(file: Path, content: bytes, choices: Mapping[str, Any]) -> None:
    """Sign a config that is about to be written. Without a key it stays unsigned, which `why_unsigned` reports.

    Signatures of earlier contents stay, because a kill may come before the file is written.
    """
    if not code_of(choices):
        return  # nothing to trust
    with suppress(NoKeyError):
        known, place = _signatures(file), file.with_name(SIGNATURE)
        if (signature := _signature(content, _key(make=True))) not in known:
            place.unlink(missing_ok=True)
            with place.open("xb") as opened:  # a new file: an existing link would lead elsewhere
                opened.writelines(line + b"\n" for line in [*known[-_KEPT:], signature])


def why_unsigned(choices: Mapping[str, Any]) -> str | None:
    """Warning before a run that cannot be signed; None if all is well."""
    try:
        if code_of(choices):
            _key(make=True)
    except NoKeyError as error:
        return f"{error}; so this run looks like one from elsewhere, and resuming it will need --trust"
    return None


def _is_signed(file: Path) -> bool:
    try:
        return _signature(file.read_bytes(), _key(make=False)) in _signatures(file)
    except (OSError, NoKeyError):
        return False


def _signatures(file: Path) -> list[bytes]:
    place = file.with_name(SIGNATURE)
    if not place.is_file():
        return []
    with place.open("rb") as opened:
        return opened.read(_MOST).split()


def _signature(content: bytes, key: bytes) -> bytes:
    return hmac.new(key, content, "sha256").hexdigest().encode()


def _mappings(table: Any) -> list[Mapping[str, Any]]:
    """The sections of a table by name, those in short form left out."""
    return [each for each in table.values() if isinstance(each, Mapping)] if isinstance(table, Mapping) else []


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested mappings and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for inner in value.values() for text in _texts(inner))
    elif isinstance(value, list | tuple):
        yield from (text for inner in value for text in _texts(inner))


def _tables(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping in nested mappings and lists."""
    if isinstance(value, Mapping):
        yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    yield from (table for each in inner for table in _tables(each))


def _key(*, make: bool) -> bytes:
    """This user's key."""
    try:
        file = _key_file()
        if make and not file.exists():
            _make_key(file)
        status = file.stat()
        if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
            raise NoKeyError(f"{file} is readable by other users; remove it, and a new one will be made")
        return file.read_bytes()
    except (OSError, RuntimeError) as error:
        raise NoKeyError(f"your key for signing runs is missing ({error}); set XDG_STATE_HOME to a folder") from error


def _key_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "turnwise" / "key"


def _make_key(file: Path) -> None:
    """A new key, complete or not at all; if two processes make one at once, the first wins."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, draft = tempfile.mkstemp(dir=file.parent)  # readable only by its owner
    try:
        with open(descriptor, "wb") as draft_file:
            draft_file.write(secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        os.unlink(draft)
