"""Whether what a trainer has started ends with it."""

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import IO


def assert_ends_with_its_starter(script: str, *arguments: str, held: Path) -> None:
    """Run `script`, which starts what opens the pipe `held` for writing and prints a line; kill it; all ends close."""
    os.mkfifo(held)
    # As most people start Python: what is printed into a pipe waits for a flush.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": ""}
    starter = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, env=environment)
    with held.open("rb") as reader:  # opens once somebody holds the other end
        assert starter.stdout is not None
        assert _speaks(starter.stdout), "nothing was printed"
        assert starter.stdout.readline() == b"started\n"
        starter.kill()
        starter.wait(60)
        assert _speaks(reader), "something outlived the process that had started it"
        assert reader.read() == b""  # all ends are closed, those of its children too
    starter.stdout.close()


def _speaks(pipe: IO[bytes]) -> bool:
    """Whether something comes through it, or its end, within a generous time."""
    return bool(select.select([pipe], [], [], 60)[0])
