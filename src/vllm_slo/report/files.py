"""Files that appear whole or not at all."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Writes beside `path`, then renames: a reader sees the old file or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as sink:
            sink.write(text)
            sink.flush()
            os.fsync(sink.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """`document` as JSON; figures that are not finite are refused, since JSON has none."""
    write_atomically(path, json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")
