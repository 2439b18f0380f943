"""System calls that sandboxed code may not make: memory that no limit counts, and doors into the kernel."""

from __future__ import annotations

import platform
import struct

_CALLS = {
    # Shared memory and message queues live outside any process, anonymous files outside the size of /tmp.
    "shmget": {"x86_64": 29, "aarch64": 194},
    "semget": {"x86_64": 64, "aarch64": 190},
    "msgget": {"x86_64": 68, "aarch64": 186},
    "memfd_create": {"x86_64": 319, "aarch64": 279},
    "memfd_secret": {"x86_64": 447, "aarch64": 447},
    # Rarely needed, often the way an escape began.
    "add_key": {"x86_64": 248, "aarch64": 217},
    "keyctl": {"x86_64": 250, "aarch64": 219},
    "perf_event_open": {"x86_64": 298, "aarch64": 241},
    "bpf": {"x86_64": 321, "aarch64": 280},
    "userfaultfd": {"x86_64": 323, "aarch64": 282},
    "io_uring_setup": {"x86_64": 425, "aarch64": 425},
}
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FIRST_FOREIGN_CALL = 0x40000000
"""From here on x86_64 numbers the same calls anew, for a 32-bit mode."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _NOT_PERMITTED = 0x7FFF0000, 0x00050001


def forbidden_calls() -> bytes:
    """A filter in the kernel's own form: the calls above fail with EPERM, and so does every call of a foreign kind."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCHITECTURE:
        raise ValueError(f"the sandbox runs on {' and '.join(_AUDIT_ARCHITECTURE)}, not on {machine!r}")
    numbers = [number[machine] for number in _CALLS.values()]
    # Jumps count the instructions they skip; the last instruction refuses, the one before it allows.
    last = 5 + len(numbers)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 0, last - 2, _AUDIT_ARCHITECTURE[machine]),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, last - 4, 0, _FIRST_FOREIGN_CALL),
        *((_IF_EQUAL, last - place - 1, 0, number) for place, number in enumerate(numbers, start=4)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOT_PERMITTED),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
