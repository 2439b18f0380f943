"""What works on this machine: `turnwise doctor` tries everything that a run would use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from turnwise.envs.check import Finding
from turnwise.envs.check_play import Verdict
from turnwise.envs.registry import specs
from turnwise.words import counted

GIB = 2**30
ENOUGH_MEMORY, ENOUGH_DISK = 2.0, 2.0
"""GiB below which even the nano recipes may fail."""

GIVES = {
    "dev": "the tests and linters of turnwise itself",
    "lora": "training a small adapter instead of the whole model (model.lora)",
    "mcp": "tools of MCP servers",
    "smollm2": "the model smollm2-135m without a download",
    "worlds": "all the environments of other projects at once",
    "verl": "rows inside verl",
    "trl": "rows inside TRL",
    "agilerl": "rows inside AgileRL",
    "tinker": "rows as losses of Tinker",
}
"""What an extra is for, if the list of environments does not say it."""


def examine(runs: Path) -> Iterator[Finding]:
    """All checks worth running before training here; `runs` is where run folders will be."""
    yield _machine()
    yield _disk(runs)
    yield _finding("python", "pass", f"{sys.version.split()[0]} at {sys.executable}")
    yield _dependencies()
    yield _tried("torch", _torch)
    yield _tried("nano model", _nano)
    yield _tried("sandbox", _sandbox, failure="note")
    for extra in metadata("turnwise").get_all("Provides-Extra") or []:
        yield _extra(extra)


def _finding(check: str, verdict: Verdict, text: str) -> Finding:
    return Finding(check=check, verdict=verdict, text=text)


def _tried(check: str, attempt: Callable[[], str], *, failure: Verdict = "defect") -> Finding:
    """Run an attempt; the ways in which libraries and programs fail become findings."""
    try:
        return _finding(check, "pass", attempt())
    except (ValueError, OSError, ImportError, RuntimeError, subprocess.SubprocessError) as error:
        return _finding(check, failure, f"{type(error).__name__}: {error}")


def _machine() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = memory_bytes() / GIB
    text = f"{counted(cores, 'core')}, {memory:.1f} GiB of memory"
    if memory < ENOUGH_MEMORY:
        return _finding("machine", "note", f"{text}; lower engine.memory_gib and train.micro_tokens")
    return _finding("machine", "pass", text)


def memory_bytes() -> int:
    """Memory available to this process: of the machine, or of the container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def _disk(runs: Path) -> Finding:
    """Whether the nearest existing folder accepts a file: run folders will be created there."""
    place = next(path for path in (runs, *runs.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        text = f"cannot write in {place}: {error.strerror}; choose a folder that you can write to with --runs"
        return _finding("run folder", "defect", text)
    free = shutil.disk_usage(place).free / GIB
    text = f"{runs} can be written, {free:.1f} GiB free"
    return _finding("run folder", "pass" if free >= ENOUGH_DISK else "note", text)


def _dependencies() -> Finding:
    needed = [need for text in requires("turnwise") or [] if not (need := Requirement(text)).marker]
    if faults := [fault for need in needed if (fault := _fault(need))]:
        wanted = " ".join(f"'{need}'" for need in needed if _fault(need))
        return _finding("dependencies", "defect", f"{', '.join(faults)}: pip install {wanted}")
    return _finding("dependencies", "pass", ", ".join(f"{need.name} {version(need.name)}" for need in needed))


def _fault(need: Requirement) -> str:
    """What is wrong with an installed package; empty if nothing."""
    try:
        installed = version(need.name)
    except PackageNotFoundError:
        return f"{need.name} is missing"
    fits = need.specifier.contains(installed, prereleases=True)
    return "" if fits else f"{need.name} is {installed}, not {need.specifier}"


def _extra(extra: str) -> Finding:
    """Extras are optional, so a missing one is a note that says what it provides."""
    needed = list(_needs_of(extra))
    faults = [fault for need in needed if (fault := _fault(need))]
    if not faults:
        installed = ", ".join(f"{need.name} {version(need.name)}" for need in needed)
        return _finding(f"extra {extra}", "pass", f"{gives(extra)} ({installed})")
    missing = f"{', '.join(faults)}: pip install 'turnwise[{extra}]' for {gives(extra)}"
    return _finding(f"extra {extra}", "note", missing)


def _needs_of(extra: str) -> Iterator[Requirement]:
    """The packages of an extra, including those of other turnwise extras it names."""
    for need in map(Requirement, requires("turnwise") or []):
        if need.marker is None or not need.marker.evaluate({"extra": extra}):
            continue
        if need.name == "turnwise":
            for other in sorted(need.extras):
                yield from _needs_of(other)
        else:
            yield need


def gives(extra: str) -> str:
    """What an extra is for."""
    if extra in GIVES:
        return GIVES[extra]
    ids = [spec.id for spec in specs() if spec.extra == extra]
    more = f" and {len(ids) - 2} more" if len(ids) > 2 else ""
    return f"environments {', '.join(ids[:2])}{more}" if ids else f"what turnwise[{extra}] adds"


def _torch() -> str:
    import torch

    threads = counted(torch.get_num_threads(), "thread")
    if not torch.cuda.is_available():
        return f"{torch.__version__} on the CPU with {threads}; no CUDA device, which the nano recipes do not need"
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    names = ", ".join(f"{device.name} with {device.total_memory / GIB:.0f} GiB" for device in devices)
    return f"{torch.__version__} with CUDA {torch.version.cuda} on {names}; CPU with {threads}"


def _nano() -> str:
    """The shipped model loads, and our engine samples from it on the device that a run would use."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from turnwise.engine.contract import SamplingParams
    from turnwise.engine.torch_engine import TorchEngine
    from turnwise.policy.text import TextPolicy

    disable_progress_bar()  # of loading: it would write into the table
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = TextPolicy.load("nano", device=device)
    engine = TorchEngine(policy.model, tokenizer=policy.tokenizer, memory_bytes=2**24, seed=0)
    prompt = policy.tokenizer.encode("Which city")
    [completion] = engine.run([("doctor", prompt, SamplingParams(max_tokens=1))])
    size = sum(parameter.numel() for parameter in policy.model.parameters())
    return f"loads and samples on {device} ({size / 1e6:.1f} M parameters, first token {completion.ids[0]})"


def _sandbox() -> str:
    from turnwise.tools.sandbox import run_python_sync

    execution = run_python_sync("print(6 * 7)")
    if execution.stdout != "42\n":
        raise ValueError(f"a program in the sandbox did not run: {execution.stderr or execution}")
    return "bubblewrap runs programs isolated from this machine (6 * 7 = 42)"
