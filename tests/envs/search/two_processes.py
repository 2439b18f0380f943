"""What a program prints in two processes whose hashes differ."""

import subprocess
import sys


def run_twice(program: str) -> tuple[str, str]:
    """The outputs of both; equal ones do not depend on the order of a set or a dict of strings."""

    def run(hash_seed: str) -> str:
        environment = {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    return run("1"), run("2")
