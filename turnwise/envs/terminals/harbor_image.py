"""What a plain Dockerfile builds, as a bash script for our sandbox; images that need more are refused."""

from __future__ import annotations

import base64
import gzip
import io
import re
import shlex
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from shutil import which

from turnwise.envs.terminals.terminal_world import PATH

_PLAIN_BASES = re.compile(
    r"(?:docker\.io/)?(?:library/)?(?:ubuntu|debian|python)(?::[\w.-]+)?"
    r"|ghcr\.io/laude-institute/t-bench/(?:ubuntu|python)-[\w.:-]+"
)
_START_FOLDER = "/app"
"""Where the images of Terminal-Bench start; a bare image would start in the root folder, which is not writable here."""
_LARGEST = 4 * 2**20
_WITHOUT_EFFECT = frozenset({"tmux", "asciinema", "vim", "nano", "curl", "wget", "less", "ca-certificates", "procps"})
"""Packages that no task without a network and a screen needs."""
_PROGRAM_OF = {"build-essential": "gcc", "coreutils": "ls", "binutils": "strings"} | dict.fromkeys(
    ("python3-pip", "python3-dev", "python3-venv"), "python3"
)
_TOO_LARGE = frozenset({"nodejs", "npm", "default-jdk", "default-jre"})
"""Packages whose programs reserve more memory than the sandbox allows."""
_INSTALL = re.compile(r"apt(?:-get)?\s+(?:-\S+\s+)*install\b(.*)")
_UPKEEP = re.compile(r"apt(?:-get)?\s+(?:-\S+\s+)*(?:update|clean|upgrade)\b.*|rm -rf /var/lib/apt/\S*")
_NETWORK = re.compile(r"\b(?:pip3?|uv|curl|wget|npm|conda|git\s+clone)\b")
_COMMAND = re.compile(r'\[?\s*"?(?:/bin/)?(?:bash|sh)"?\s*\]?')


@dataclass(kw_only=True)
class PlainImage:
    """The image of `PlainImage.read(context, dockerfile_text)`: a bash script, and where its shell starts."""

    context: Path
    folder: str
    now: PurePosixPath = field(default_factory=lambda: PurePosixPath(_START_FOLDER))
    """The folder in which the next instruction runs."""
    lines: list[str] = field(default_factory=lambda: ["set -e"])

    @classmethod
    def read(cls, context: Path, text: str) -> PlainImage:
        """Follow the instructions; ValueError, with the reason, at the first that needs more than our sandbox."""
        instructions = _instructions(text)
        folders = [rest.strip() for word, rest in instructions if word == "WORKDIR"]
        image = cls(context=context, folder=folders[-1].rstrip("/") if folders else _START_FOLDER)
        for word, rest in instructions:
            step = _STEPS.get(word)
            if step is None:
                raise ValueError(f"its image has the instruction {word}")
            step(image, rest)
        return image

    @property
    def setup(self) -> str:
        """The script, which starts in `folder`."""
        return "\n".join(self.lines) + "\n"

    def start_from(self, base: str) -> None:
        """FROM."""
        if not _PLAIN_BASES.fullmatch(base.strip()):
            raise ValueError(f"its image starts from {base.strip()}, not from a plain Debian, Ubuntu or Python")

    def enter(self, folder: str) -> None:
        """WORKDIR."""
        self.now = self._inside(folder.strip())
        self.lines.append(f"mkdir -p {shlex.quote(str(self.now))} && cd {shlex.quote(str(self.now))}")

    def copy(self, rest: str) -> None:
        """COPY."""
        *patterns, to = [word for word in shlex.split(rest) if not word.startswith("--chown")]
        target = self._inside(to)
        sources = [found for pattern in patterns for found in self._find(pattern)]
        as_folder = to.endswith("/") or len(sources) > 1 or str(target) == self.folder or to == "."
        archive = _pack(sources)
        into = target if as_folder or sources[0].is_dir() else target.parent
        name = "" if into == target else target.name
        unpack = f"mkdir -p {into} && base64 -d <<'END_OF_FILES' | tar xzf - -C {into}"
        rename = f"\nmv {into}/{sources[0].name} {into}/{name}" if name and name != sources[0].name else ""
        self.lines.append(f"{unpack}\n{archive}\nEND_OF_FILES{rename}")

    def run(self, rest: str) -> None:
        """RUN."""
        commands = [part.strip() for part in re.split(r"&&|;", rest) if part.strip()]
        kept: list[str] = []
        for command in commands:
            if installed := _INSTALL.fullmatch(command):
                _require_packages(installed[1].split())
            elif _NETWORK.search(command):
                raise ValueError(f"its image needs a network to run `{command[:60]}`")
            elif not _UPKEEP.fullmatch(command):
                kept.append(command)
        # Untouched where nothing is left out: a `;` may be part of a loop or of a text.
        if kept:
            self.lines.append(f"( {rest if kept == commands else ' && '.join(kept)}\n)")

    def set_variable(self, rest: str) -> None:
        """ENV."""
        if not rest.startswith("DEBIAN_FRONTEND"):
            raise ValueError(f"its image sets the variable {rest.split('=')[0].strip()}")

    def start(self, rest: str) -> None:
        """CMD and ENTRYPOINT."""
        if not _COMMAND.fullmatch(rest.strip()):
            raise ValueError(f"its image starts a program of its own, {rest.strip()[:60]}")

    def _inside(self, path: str) -> PurePosixPath:
        target = PurePosixPath(self.now, path)
        if ".." in target.parts or not (str(target) + "/").startswith((self.folder + "/", "/home/user/", "/tmp/")):
            raise ValueError(f"its image writes to {target}, outside of {self.folder}")
        return target

    def _find(self, pattern: str) -> list[Path]:
        pattern = pattern.removeprefix("./").strip("/") or "."
        if ".." in PurePosixPath(pattern).parts:
            raise ValueError(f"its image copies {pattern} from outside of its folder")
        found = [self.context] if pattern == "." else sorted(self.context.glob(pattern))
        if not found:
            raise ValueError(f"its image copies {pattern}, which is not there")
        return found


_STEPS = {
    **{"FROM": PlainImage.start_from, "WORKDIR": PlainImage.enter, "COPY": PlainImage.copy, "RUN": PlainImage.run},
    **{"ENV": PlainImage.set_variable, "CMD": PlainImage.start, "ENTRYPOINT": PlainImage.start},
}


def _instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction and the rest of its lines, without comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n\s*", " ", "\n".join(lines))
    parts = [line.split(maxsplit=1) for line in joined.splitlines()]
    return [(word.upper(), " ".join(rest).strip()) for word, *rest in parts]


def _pack(sources: list[Path]) -> str:
    """Files, and the contents of folders, as base64 that is equal for equal files."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        for source in sources:
            base = source if source.is_dir() else source.parent
            listed = sorted(source.rglob("*")) if source.is_dir() else [source]
            for each in (path for path in listed if path.is_file() or path.is_dir()):
                file.add(each, arcname=str(each.relative_to(base)), recursive=False, filter=_anonymous)
    content = gzip.compress(archive.getvalue(), mtime=0)
    if len(content) > _LARGEST:
        raise ValueError(f"its files take {len(content) >> 20} MiB; at most {_LARGEST >> 20} are supported")
    return base64.encodebytes(content).decode().rstrip("\n")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o600
    entry.mtime = 0
    return entry


def _require_packages(words: list[str]) -> None:
    for package in (word.partition("=")[0] for word in words if not word.startswith("-")):
        program = _PROGRAM_OF.get(package, package)
        if package in _TOO_LARGE:
            raise ValueError(f"its image installs {package}, which needs more memory than the sandbox allows")
        if package not in _WITHOUT_EFFECT and which(program, path=PATH) is None:
            raise ValueError(f"its image installs {package}, which this machine does not have")
