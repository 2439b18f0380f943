"""The two files that describe a run: its config as checksummed YAML, and its machine and software."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from turnwise.runs.disk import RunFolderError, explained, open_plain
from turnwise.runs.journal import plain

SCHEMA = 3
CONFIG, META = "config.yaml", "meta.json"

_SEAL = b"# sha256 of the lines above: "
_SHOWN = 5
"""Runs that a message names."""
_MOST = 16 * 2**20
"""Maximum size of either file in bytes."""


def runs_meant(path: Path) -> str:
    """What to name in place of a folder that is no run: runs in it, or one beside it that is spelled alike; or ""."""
    if inside := sorted(path.glob(f"*/{META}")):
        more = ", …" if len(inside) > _SHOWN else ""
        return f"it is a folder of runs: name one of {', '.join(str(each.parent) for each in inside[:_SHOWN])}{more}"
    beside = {each.parent.name: each.parent for each in path.parent.glob(f"*/{META}")}
    close = [] if path.exists() else get_close_matches(path.name, beside, n=1)
    return f"did you mean {beside[close[0]]}?" if close else ""


def to_yaml(config: Mapping[str, Any]) -> bytes:
    """The config with its checksum as the last line: a truncated file may still be valid YAML, of another run."""
    content = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).encode()
    return content + _seal(content)


def to_json(meta: Mapping[str, Any]) -> bytes:
    """The metadata with the version of the folder's layout."""
    return json.dumps(plain({**meta, "schema": SCHEMA}, lambda _: None), indent=1).encode() + b"\n"


def read_config(path: Path) -> dict[str, Any]:
    """The config; RunFolderError if it has changed since it was written."""
    content, seal, digest = _read(path).rpartition(_SEAL)
    if seal + digest != _seal(content):
        raise RunFolderError(
            f"{path} is damaged or was edited; restore it, and change settings with "
            f"`turnwise resume {path.parent} KEY=VALUE`"
        )
    return yaml.safe_load(content)


def read_meta(path: Path) -> dict[str, Any]:
    """The metadata; RunFolderError if it cannot be read or another version wrote it."""
    try:
        meta = json.loads(_read(path))
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise RunFolderError(f"{path} is damaged: it is not a JSON object; restore the file")
    if meta.get("schema") != SCHEMA:
        raise RunFolderError(
            f"{path} has schema {meta.get('schema')}, this version of turnwise reads {SCHEMA}; "
            "use the version that wrote the run"
        )
    return meta


def _seal(content: bytes) -> bytes:
    return _SEAL + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _read(path: Path) -> bytes:
    with explained("read", path), open_plain(path) as file:
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise RunFolderError(f"{path} has more than {_MOST} bytes, more than any run writes; restore the file")
    return content
