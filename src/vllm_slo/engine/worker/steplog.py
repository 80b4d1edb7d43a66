"""`StepLog`: one JSON line per step, in the form that `vllm-slo calibrate` reads."""

import json
from pathlib import Path

from vllm_slo.device.step import Step

_FLUSH_EVERY_S = 0.5


class StepLog:
    """Appends steps to a file through a buffer; what is buffered is at most half a second old
    when the next step ends."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1 << 16)
        self._flushed_s = 0.0

    def add(self, step: Step, *, ms: float, at_s: float) -> None:
        line = {
            "decodes": step.decodes,
            "decode_context": step.decode_context,
            "prefills": step.prefills,
            "sampled": step.sampled,
            "ms": round(ms, 4),
        }
        self._file.write(json.dumps(line) + "\n")
        if at_s - self._flushed_s > _FLUSH_EVERY_S:
            self._file.flush()
            self._flushed_s = at_s

    def close(self) -> None:
        self._file.close()
