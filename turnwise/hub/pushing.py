"""Put a checkpoint on a hub: `push(prepare(Path("runs/a"), "me/a"))`. Preparing reads files only; pushing uploads."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.hub.model_card import write_card
from turnwise.runs.checkpoints import ADAPTER, JOURNALS, MANIFEST, Checkpoints, policy_folder, step_of
from turnwise.runs.reading import RunData, read_whole_run

CARD = "README.md"
_ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class Package:
    """What goes to the hub: the files by their names there, each a file here or the content itself."""

    repo: str
    step: int
    checkpoint: Path
    files: dict[str, Path | bytes]

    @property
    def card(self) -> str:
        """The model card."""
        content = self.files[CARD]
        assert isinstance(content, bytes)
        return content.decode()

    def size(self, name: str) -> int:
        """Bytes of a file."""
        content = self.files[name]
        return len(content) if isinstance(content, bytes) else content.stat().st_size


def prepare(
    run: Path,
    repo: str,
    *,
    step: int | None = None,
    adapter: bool = False,
    base: str | None = None,
    policy: str | None = None,
) -> Package:
    """The newest checkpoint of a run, or that of `step`; its whole model, or only its adapter. Nothing is uploaded.

    `base` is the name on the hub of the model under the adapter; `policy` says which of several.
    """
    if repo.count("/") > 1 or not all(repo.split("/")):
        raise ValueError(f"{repo!r} is no name of a repository; write one such as my-name/my-model")
    data = read_whole_run(run)
    checkpoint = _checkpoint(data.path, step)
    data, folder = _of_policy(data, checkpoint, policy)
    its_base, files = str(_mapping(data.config.get("model")).get("name", "")), _model_files(folder)
    if adapter:
        its_base, files = _adapter_files(folder, base)
    elif base is not None:
        its_base = base
    number = step_of(checkpoint)
    card = write_card(
        data, repo=repo, step=number, adapter=adapter, base=its_base, base_on_hub=base is not None or _on_hub(its_base)
    )
    return Package(repo=repo, step=number, checkpoint=checkpoint, files={CARD: card.encode(), **files})


def push(package: Package, *, private: bool = True) -> str:
    """Upload it in one commit, and return its address; ValueError with the fix if the hub does not take it.

    A repository that does not exist is made, `private` or not; one that exists stays as visible as it is.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import HFValidationError

    endpoint = os.environ.get("HF_ENDPOINT")
    if get_token() is None:
        raise ValueError(
            "there is no token for the hub; make one that may write, in your settings there, then run `hf auth login` "
            "or set HF_TOKEN"
        )
    api = HfApi(endpoint=endpoint)
    client: Any = HfHubHTTPError.__bases__  # errors of whichever HTTP client the package uses
    unreachable: tuple[type[Exception], ...] = (OSError, *client)
    try:
        url = api.create_repo(package.repo, private=private, exist_ok=True)
        additions = [
            CommitOperationAdd(
                path_in_repo=name, path_or_fileobj=content if isinstance(content, bytes) else str(content)
            )
            for name, content in package.files.items()
        ]
        api.create_commit(url.repo_id, additions, commit_message=f"Checkpoint of step {package.step}")
    except HFValidationError as error:
        raise ValueError(f"{package.repo!r} is no name of a repository: {error}") from None
    except HfHubHTTPError as error:
        raise ValueError(_refused(package, error)) from error
    except unreachable as error:
        raise ValueError(
            f"the hub at {api.endpoint} cannot be reached ({_first_line(error)}); {package.checkpoint} is as it was: "
            "run the same command again later, or set HF_ENDPOINT to another hub"
        ) from error
    return str(url)


def _refused(package: Package, error: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    fix = "run the same command again later"
    if status in (401, 403):
        fix = f"the token must be valid and may write to {package.repo.partition('/')[0]}: run `hf auth login` again"
    elif status == 404:
        fix = "there is no such account or repository: check its name"
    return f"the hub refused {package.repo} (status {status}: {_first_line(error)}); {fix}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _checkpoint(run: Path, step: int | None) -> Path:
    for stage in (run, run / "sft"):
        checkpoints = Checkpoints(stage / "checkpoints")
        if step is not None and checkpoints.steps():
            return checkpoints.at(step)
        if step is None and (newest := checkpoints.latest()) is not None:
            return newest
    raise ValueError(f"{run} has no complete checkpoint to push; train first, or continue with `turnwise resume {run}`")


def _of_policy(data: RunData, checkpoint: Path, policy: str | None) -> tuple[RunData, Path]:
    parts = {part.policy: part for part in data.by_policy()}
    if list(parts) == [""]:
        if policy is not None:
            raise ValueError(f"{data.path} has one policy without a name; leave out --policy")
        return data, checkpoint
    if policy not in parts:
        raise ValueError(f"{data.path} has several policies; name one with --policy: {', '.join(parts)}")
    return parts[policy], policy_folder(checkpoint, policy)


def _model_files(folder: Path) -> dict[str, Path | bytes]:
    """The model and its tokenizer; what is for resuming stays here."""
    left_out = (MANIFEST, JOURNALS, CARD)
    found = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {path.name: path for path in found if path.name not in left_out}


def _adapter_files(folder: Path, base: str | None) -> tuple[str, dict[str, Path | bytes]]:
    """The adapter, with the name of its base on the hub."""
    if not (folder / ADAPTER).is_dir():
        raise ValueError(f"{folder} has no adapter: the whole model was trained; leave out --adapter")
    config = json.loads((folder / ADAPTER / _ADAPTER_CONFIG).read_text())
    base = base or str(config.get("base_model_name_or_path"))
    if not _on_hub(base):
        raise ValueError(
            f"the adapter's base is {base}, a folder of this machine that nobody else has; say which model of the hub "
            "it is with --base, or push the merged weights without --adapter"
        )
    content = json.dumps({**config, "base_model_name_or_path": base}, indent=1, sort_keys=True).encode()
    files: dict[str, Path | bytes] = {path.name: path for path in sorted((folder / ADAPTER).iterdir())}
    return base, {**files, _ADAPTER_CONFIG: content}


def _on_hub(name: str) -> bool:
    """Whether a model's name can be that of a repository: `account/model`, and no folder here."""
    return name.count("/") == 1 and not name.startswith((".", "/")) and not Path(name).exists()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
