"""`LayerProfile`: the time of a step, composed of a GPU's measured layer times."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vllm_slo.device.attention import AttentionGrid
from vllm_slo.device.curve import Curve
from vllm_slo.device.shapes import shape_from_config
from vllm_slo.device.step import Step
from vllm_slo.device.tables import read_table
from vllm_slo.errors import ProfileError

# How often a layer of dense.csv runs in one step: per transformer layer, or in the whole step.
# Names are vLLM's module names for Llama-like models; a block has two norms of one name.
_PER_LAYER = {
    "layernorm": 2,
    "input_layernorm": 1,
    "post_attention_layernorm": 1,
    "qkv_proj": 1,
    "q_norm": 1,
    "k_norm": 1,
    "qk_norm": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
_PER_STEP = ("embedding", "final_layernorm", "lm_head", "sampler")

_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")

# The host's time between steps, in milliseconds, beside the kernels' times. Asynchronous scheduling
# prepares step k + 1 while k runs, so on a GPU that is the bottleneck none of it shows. Without,
# schedule, input preparation and output handling are in the open: what a synchronous engine loses
# against an asynchronous one, an assumption (1 to 1.5 ms).
HOST_MS: Mapping[str, float] = {"sync": 1.25, "async": 0.0}


class LayerProfile:
    """A step as the sum of its layers' measured times.

    n tokens, R sampled rows, L transformer layers::

        T = host + L * (sum of block layers at n + attention) + embedding and final norm at n
          + LM head and sampler at R

    Steps beyond the measured points extrapolate; `warnings` then says so, once per kind. The
    object keeps caches and warnings: take a fresh one for each run.
    """

    def __init__(
        self,
        *,
        layers: int,
        dense: Mapping[str, Curve],
        per_sequence: Mapping[str, Curve],
        attention: Mapping[tuple[int, ...], float],
        host: float,
    ) -> None:
        """`host` in milliseconds, the other times in microseconds; `attention` maps
        (prefill_chunk, kv_prefill, n_decode, kv_decode) to the time of one layer."""
        self.host = host
        self.layers = layers
        self.warnings: list[str] = []
        self._kinds: set[str] = set()
        self._attention = AttentionGrid(attention.items(), warn=self._warn)
        self._dense = dense
        self._per_sequence = per_sequence
        self._tokens_measured = min(curve.last for curve in dense.values())
        self._rows_measured = min(curve.last for curve in per_sequence.values())
        self._dense_ms = self._dense_table(np.arange(self._tokens_measured + 1))
        self._rows_ms = self._rows_table(np.arange(self._rows_measured + 1))
        for name in dense:
            if name not in _PER_LAYER and name not in _PER_STEP:
                self._warn(f"dense: {name}: not a known layer; taken to run once per block")

    @classmethod
    def read(cls, folder: Path, *, scheduling: Literal["sync", "async"] = "sync") -> "LayerProfile":
        """Reads `dense.csv`, `per_sequence.csv`, `attention.csv` and `model.json` of a folder.

        Raises:
            ProfileError: a file is missing or malformed; the text names file and line.
        """
        if scheduling not in HOST_MS:
            raise ProfileError(f'scheduling must be "sync" or "async", not {scheduling!r}')
        shape = shape_from_config(folder / "model.json")
        rows = read_table(folder / "attention.csv", whole=_ATTENTION)
        points = {tuple(int(count) for count in key): time for key, time in rows}
        try:
            return cls(
                layers=shape.layers,
                dense=_curves(folder / "dense.csv", count="tokens"),
                per_sequence=_curves(folder / "per_sequence.csv", count="sequences"),
                attention=points,
                host=HOST_MS[scheduling],
            )
        except ProfileError as error:
            where = "" if str(error).startswith(str(folder)) else f"{folder}: "
            raise ProfileError(f"{where}{error}") from None

    def step_ms(self, step: Step) -> float:
        """The time of one step, in milliseconds."""
        attention = self._attention.time(
            step.prefills, decodes=step.decodes, decode_context=step.decode_context
        )
        fixed = self._outside_attention_ms(step.tokens, step.sampled)
        return float(fixed + self.layers * attention / 1e3)

    def decode_run_ms(
        self, *, decodes: int, decode_context: int, steps: int
    ) -> NDArray[np.float64]:
        """The times of `steps` successive pure decode steps, shape (steps,), in milliseconds."""
        means = (decode_context + decodes * np.arange(steps)) / decodes
        if not steps:
            return means
        attention = self._attention.decode_times(decodes, means)
        fixed = self._outside_attention_ms(decodes, decodes)
        return np.asarray(fixed + self.layers * attention / 1e3, dtype=np.float64)

    def _outside_attention_ms(self, tokens: int, rows: int) -> float:
        if tokens < len(self._dense_ms):
            dense = self._dense_ms[tokens]
        else:
            self._warn(
                f"dense: {tokens} tokens in a step, measured up to {self._tokens_measured:.0f}; "
                "extrapolated"
            )
            dense = self._dense_table(np.array([float(tokens)]))[0]
        if rows < len(self._rows_ms):
            head = self._rows_ms[rows]
        else:
            self._warn(
                f"per_sequence: {rows} sampled rows in a step, measured up to "
                f"{self._rows_measured:.0f}; extrapolated"
            )
            head = self._rows_table(np.array([float(rows)]))[0]
        return float(self.host + dense + head)

    def _dense_table(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(len(counts))
        for name, curve in self._dense.items():
            times = 1 if name in _PER_STEP else _PER_LAYER.get(name, 1) * self.layers
            total += times * curve.at(counts)
        return total / 1e3

    def _rows_table(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(len(counts))
        for curve in self._per_sequence.values():
            total += curve.at(counts)
        return total / 1e3

    def _warn(self, text: str) -> None:
        """Keeps the first warning of each kind: the words before the first number."""
        kind = text.rstrip("0123456789")
        for place, letter in enumerate(text):
            if letter.isdigit():
                kind = text[:place]
                break
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.warnings.append(text)


def _curves(path: Path, *, count: str) -> dict[str, Curve]:
    points: dict[str, dict[int, float]] = {}
    for (layer, number), time in read_table(path, text=("layer",), whole=(count,)):
        points.setdefault(str(layer), {})[int(number)] = time
    curves = {}
    for layer, times in points.items():
        counts = np.array(sorted(times), dtype=np.float64)
        curves[layer] = Curve(counts, np.array([times[int(n)] for n in counts]))
    return curves
