"""Certificates of the web are read when a connection needs them, not whenever a client is made.

Most programs make a client for each episode. Without this it reads over a hundred certificates, 13 ms of CPU, and then
talks plain HTTP to the gateway and never looks at one.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable
from typing import Any

_C: Any = ssl.SSLContext.__base__  # is written in C, so that only methods of the class that extends it can change
_READERS = ("_wrap_socket", "_wrap_bio", "get_ca_certs", "cert_store_stats")
CHANGED = ("load_verify_locations", *_READERS)
"""Methods of `ssl.SSLContext` that change."""
_WAITING = "_turnwise_waiting_files"
_reading = threading.Lock()


def read_certificates_late() -> None:
    """From now on every SSL context of this process reads its files of certificates at its first connection."""
    for name, method in {"load_verify_locations": _note_file, **{name: _reader(name) for name in _READERS}}.items():
        setattr(ssl.SSLContext, name, method)


def _note_file(context: Any, cafile: Any = None, capath: Any = None, cadata: Any = None) -> None:
    if capath is None and cadata is None and cafile is not None and os.access(cafile, os.R_OK):
        vars(context).setdefault(_WAITING, []).append(cafile)
    else:  # nothing to gain, or an error that should come now
        _C.load_verify_locations(context, cafile, capath, cadata)


def _reader(name: str) -> Callable[..., Any]:
    method = getattr(_C, name)

    def read_and_call(context: Any, *args: Any, **kwargs: Any) -> Any:
        with _reading:
            while waiting := vars(context).get(_WAITING):
                _C.load_verify_locations(context, waiting[0])
                del waiting[0]  # a file that cannot be read fails again at the next connection
        return method(context, *args, **kwargs)

    return read_and_call
