"""`Trace`: recorded traffic, cut, scaled and clipped, as a plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vllm_slo.errors import TraceError
from vllm_slo.traffic.lengths import Empirical
from vllm_slo.traffic.tracefile import Rows, read_azure, read_mooncake, sniff
from vllm_slo.traffic.workload import OWN, TRACE_BLOCK, PlannedRequest, Segment

TraceForm = Literal["azure", "mooncake"]
BLOCK_TOKENS = 512  # Mooncake's hash ids each stand for a block of 512 tokens (FAST'25 trace)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Arrival times in seconds from the start, sorted, and lengths in tokens, all of shape (n,).

    `hash_ids` name the blocks of 512 tokens that each prompt begins with, where the trace says
    so. `clipped_inputs` and `clipped_outputs` count the requests that `clipped` shortened. As a
    plan it ignores the random stream: a reseeded workload changes its prompts only.
    """

    path: str
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    hash_ids: tuple[tuple[int, ...], ...] | None = None
    clipped_inputs: int = 0
    clipped_outputs: int = 0

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate(self) -> float:
        """Mean requests/s from the start to the last arrival; inf where all start at once."""
        last = float(self.arrival_s[-1])
        return len(self) / last if last > 0 else math.inf

    def cut(self, *, start_s: float = 0.0, duration_s: float | None = None) -> "Trace":
        """The piece from `start_s` on, up to but not including `start_s + duration_s`.

        Raises:
            TraceError: there is no request in it.
        """
        if not (math.isfinite(start_s) and start_s >= 0):
            raise TraceError(f"{self.path}: start_s must be a number >= 0, not {start_s!r}")
        if duration_s is not None and not duration_s > 0:
            raise TraceError(f"{self.path}: duration_s must be over 0, not {duration_s!r}")
        end_s = math.inf if duration_s is None else start_s + duration_s
        first, past = np.searchsorted(self.arrival_s, (start_s, end_s), side="left").tolist()
        if first == past:
            raise TraceError(
                f"{self.path}: no request between {start_s:g} s and {end_s:g} s; "
                f"the trace has {len(self)} over {self.arrival_s[-1]:g} s"
            )
        return self._rows(slice(first, past), self.arrival_s[first:past] - start_s)

    def first(self, n: int) -> "Trace":
        """The first `n` requests; all of them where there are fewer."""
        if n < 1:
            raise TraceError(f"{self.path}: requests must be >= 1, not {n}")
        return self._rows(slice(0, n), self.arrival_s[:n])

    def scaled(self, rate_scale: float) -> "Trace":
        """The same requests, `rate_scale` times as many a second."""
        if not (math.isfinite(rate_scale) and rate_scale > 0):
            raise TraceError(f"{self.path}: rate_scale must be a number over 0, not {rate_scale!r}")
        return replace(self, arrival_s=self.arrival_s / rate_scale)

    def clipped(
        self, *, max_input_tokens: int | None = None, max_output_tokens: int | None = None
    ) -> "Trace":
        """The same requests with longer lengths cut to these, and counted."""
        inputs, over_inputs = self._clip(self.input_tokens, "max_input_tokens", max_input_tokens)
        outputs, over_outputs = self._clip(
            self.output_tokens, "max_output_tokens", max_output_tokens
        )
        return replace(
            self,
            input_tokens=inputs,
            output_tokens=outputs,
            clipped_inputs=self.clipped_inputs + over_inputs,
            clipped_outputs=self.clipped_outputs + over_outputs,
        )

    def input_lengths(self) -> Empirical:
        return Empirical(tuple(self.input_tokens.tolist()))

    def output_lengths(self) -> Empirical:
        return Empirical(tuple(self.output_tokens.tolist()))

    def __call__(self, rng: np.random.Generator) -> Sequence[PlannedRequest]:
        rows = zip(
            self.arrival_s.tolist(),
            self.input_tokens.tolist(),
            self.output_tokens.tolist(),
            strict=True,
        )
        whole_blocks: dict[int, Segment] = {}  # shared: a trace names some blocks very often
        return [
            PlannedRequest(
                index=i,
                input_tokens=size,
                output_tokens=answer,
                arrival_s=arrival,
                segments=()
                if self.hash_ids is None
                else _segments(self.hash_ids[i], i, size, whole_blocks),
            )
            for i, (arrival, size, answer) in enumerate(rows)
        ]

    def _rows(self, rows: slice, arrival_s: NDArray[np.float64]) -> "Trace":
        return replace(
            self,
            arrival_s=arrival_s,
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            hash_ids=None if self.hash_ids is None else self.hash_ids[rows],
        )

    def _clip(
        self, lengths: NDArray[np.int64], name: str, most: int | None
    ) -> tuple[NDArray[np.int64], int]:
        if most is None:
            return lengths, 0
        if most < 1:
            raise TraceError(f"{self.path}: {name} must be >= 1, not {most}")
        return np.minimum(lengths, most), int((lengths > most).sum())


def read_trace(path: str | PathLike[str], *, form: TraceForm | None = None) -> Trace:
    """A trace in the Azure CSV or the Mooncake JSONL form, also gzipped (`.gz`).

    Azure: columns TIMESTAMP, ContextTokens, GeneratedTokens. Mooncake: one object a line with
    timestamp (ms), input_length, output_length and perhaps hash_ids. `form` is told from the
    first character where it is not given. The first arrival of an Azure trace is time zero; a
    Mooncake trace has its own.

    Raises:
        TraceError: the file, the line, what is wrong with it.
    """
    file = Path(path)
    if form is None:
        form = sniff(file)
    rows: Rows = read_azure(file) if form == "azure" else read_mooncake(file)
    if not rows.arrival_s:
        raise TraceError(f"{file}: no requests in it")
    return Trace(
        path=str(file),
        arrival_s=np.array(rows.arrival_s, dtype=np.float64),
        input_tokens=np.array(rows.input_tokens, dtype=np.int64),
        output_tokens=np.array(rows.output_tokens, dtype=np.int64),
        hash_ids=tuple(rows.hash_ids) if any(rows.hash_ids) else None,
    )


def _segments(
    hash_ids: tuple[int, ...], index: int, tokens: int, whole_blocks: dict[int, Segment]
) -> tuple[Segment, ...]:
    """The prompt's blocks in order; what no hash id names is the request's own."""
    if not hash_ids:
        return ()
    segments = []
    left = tokens
    for block in hash_ids:
        if left >= BLOCK_TOKENS:
            if block not in whole_blocks:
                whole_blocks[block] = Segment(key=(TRACE_BLOCK, block), tokens=BLOCK_TOKENS)
            segments.append(whole_blocks[block])
            left -= BLOCK_TOKENS
        elif left:
            segments.append(Segment(key=(TRACE_BLOCK, block), tokens=left))
            left = 0
    if left:
        segments.append(Segment(key=(OWN, index), tokens=left))
    return tuple(segments)
