"""Where the engine package keeps its files."""

import os
from pathlib import Path


def cache_folder(cache_dir: Path | None = None) -> Path:
    """The cache folder: the one given, else `$SLO_CACHE`, else `~/.cache/pytest-vllm-slo`."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser().absolute()
    from_environment = os.environ.get("SLO_CACHE")
    if from_environment:
        return Path(from_environment).expanduser().absolute()
    return Path.home() / ".cache" / "pytest-vllm-slo"
