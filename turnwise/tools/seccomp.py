"""System calls that sandboxed code may not make: memory that no limit counts, and ways into the kernel."""

from __future__ import annotations

import platform
import struct

_CALLS = {
    # Shared memory and message queues are outside any process, anonymous files outside the size of /tmp.
    "shmget": {"x86_64": 29, "aarch64": 194},
    "semget": {"x86_64": 64, "aarch64": 190},
    "msgget": {"x86_64": 68, "aarch64": 186},
    "mq_open": {"x86_64": 240, "aarch64": 180},
    "memfd_create": {"x86_64": 319, "aarch64": 279},
    "memfd_secret": {"x86_64": 447, "aarch64": 447},
    # What these store (rules, unread events) is charged to nobody.
    "landlock_create_ruleset": {"x86_64": 444, "aarch64": 444},
    "inotify_init": {"x86_64": 253},
    "inotify_init1": {"x86_64": 294, "aarch64": 26},
    "fanotify_init": {"x86_64": 300, "aarch64": 262},
    # One byte in a pipe or socket can hold a whole page, or two megabytes, that its owner has freed.
    "splice": {"x86_64": 275, "aarch64": 76},
    "tee": {"x86_64": 276, "aarch64": 77},
    "vmsplice": {"x86_64": 278, "aarch64": 75},
    # There is no network. A listening socket keeps the data of thousands of closed ones.
    "socket": {"x86_64": 41, "aarch64": 198},
    # Rarely needed, and often the start of an escape.
    "add_key": {"x86_64": 248, "aarch64": 217},
    "request_key": {"x86_64": 249, "aarch64": 218},
    "keyctl": {"x86_64": 250, "aarch64": 219},
    "ptrace": {"x86_64": 101, "aarch64": 117},
    "perf_event_open": {"x86_64": 298, "aarch64": 241},
    "bpf": {"x86_64": 321, "aarch64": 280},
    "userfaultfd": {"x86_64": 323, "aarch64": 282},
    "io_setup": {"x86_64": 206, "aarch64": 0},
    "io_uring_setup": {"x86_64": 425, "aarch64": 425},
}
_ATTRIBUTES = {
    # Attributes and access lists of files are charged to nobody either. `install` and `cp` go on without them where a
    # file system has none, so that is what they are told.
    "setxattr": {"x86_64": 188, "aarch64": 5},
    "lsetxattr": {"x86_64": 189, "aarch64": 6},
    "fsetxattr": {"x86_64": 190, "aarch64": 7},
    "setxattrat": {"x86_64": 463, "aarch64": 463},
}
_SOCKET_PAIR = {"x86_64": 53, "aarch64": 199}
_UNIX_FAMILY = 1
"""The only family whose pairs are allowed: event loops wake themselves through one."""
_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FIRST_FOREIGN_CALL = 0x40000000
"""From here on x86_64 repeats the same calls under new numbers, for a 32-bit mode."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _NOT_PERMITTED, _NOT_SUPPORTED = 0x7FFF0000, 0x00050001, 0x0005005F


def forbidden_calls() -> bytes:
    """A filter in the kernel's own format: the calls above, and any of a foreign architecture, fail.

    They fail with EPERM, those on attributes with EOPNOTSUPP.
    """
    machine = platform.machine()
    if machine not in _AUDIT_ARCHITECTURE:
        raise ValueError(f"the sandbox runs on {' and '.join(_AUDIT_ARCHITECTURE)}, not on {machine!r}")
    numbers = [number[machine] for number in _CALLS.values() if machine in number]
    attributes = [number[machine] for number in _ATTRIBUTES.values()]
    # Jumps count the instructions they skip; the last instruction rejects, the two before it say no softly and allow.
    soft = 8 + len(numbers) + len(attributes)
    reject = soft + 1
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 0, reject - 2, _AUDIT_ARCHITECTURE[machine]),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, reject - 4, 0, _FIRST_FOREIGN_CALL),
        *((_IF_EQUAL, reject - 1 - place, 0, number) for place, number in enumerate(numbers, start=4)),
        *((_IF_EQUAL, soft - 1 - place, 0, each) for place, each in enumerate(attributes, start=4 + len(numbers))),
        (_IF_EQUAL, 0, 2, _SOCKET_PAIR[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_IF_EQUAL, 0, 2, _UNIX_FAMILY),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOT_SUPPORTED),
        (_RETURN, 0, 0, _NOT_PERMITTED),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
