"""Linting threshold files: what cannot be true together, or cannot be true at all."""

import datetime
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vllm_slo.errors import ProfileError, ThresholdsError
from vllm_slo.slo.findings import Finding, about
from vllm_slo.slo.laws import LITTLES_LAW, MONOTONY, QUANTILE_ORDER, ROOFLINE, SCHEMA, UNUSED
from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Row
from vllm_slo.slo.staleness import newest_vllm, staleness
from vllm_slo.slo.thresholds import Thresholds

# Limits of runs that measured noise may be out of order by that much.
MONOTONY_TOLERANCE = 0.05
_MODELLED = ("sim-", "emulated-")
# Settings under which a step does not read the whole model's weights, in bf16, from one device, or
# gives more than one token a sequence.
_OTHER_ROOFLINE = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "quantization",
    "dtype",
    "speculative_config",
)


def lint(
    paths: Sequence[Path],
    *,
    today: datetime.date,
    used: Mapping[str, Collection[str]] | None = None,
    vllm_version: str | None = None,
    driver: str | None = None,
) -> list[Finding]:
    """The findings about threshold files, by file and line.

    `paths` are files, or folders of which every `*.toml` counts. `used` has the titles of the rows
    that tests used, by "<device>/<model>"; it says nothing of other files. Measured rows are stale
    against `vllm_version` and `driver`; without a version, against the newest of these files.

    Raises:
        ThresholdsError: a path that is not there, or a folder without threshold files.
    """
    findings, files = [], []
    for path in _files(paths):
        try:
            files.append(Thresholds.load(path))
        except ThresholdsError as error:
            findings.append(_schema_finding(path, error))
    newest = vllm_version or newest_vllm(files)
    for file in files:
        findings += _physics(file)
        findings += _monotony(file)
        for row in file.rows:
            findings += _quantile_order(file.path, row)
            findings += _littles_law(file.path, row)
        findings += staleness(file, vllm_version=newest, driver=driver, today=today)
        findings += _place(file)
        if used is not None and f"{file.device}/{file.model}" in used:
            findings += [
                about(file.path, row, UNUSED, "no test used it: remove it", gates=False)
                for row in file.unused(used[f"{file.device}/{file.model}"])
            ]
    return sorted(findings, key=lambda one: (one.path, one.line))


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.rglob("*.toml")) if path.is_dir() else [path]
        if not inside:
            raise ThresholdsError(f"{path}: has no threshold files (<device>/<model>.toml)")
        if not path.exists():
            raise ThresholdsError(f"{path}: no such file or folder")
        found += inside
    return list(dict.fromkeys(found))


def _schema_finding(path: Path, error: ThresholdsError) -> Finding:
    text = str(error).removeprefix(f"{path}:").lstrip()
    number, _, rest = text.partition(":")
    line = int(number) if number.isdigit() else 1
    text = rest.strip() if number.isdigit() else text
    return Finding(
        path=path, line=line, law=SCHEMA, severity="error", text=text.replace("\n", "; ")
    )


def _place(file: Thresholds) -> Iterator[Finding]:
    """A session looks for a file by device and model, and finds it by its place."""
    if (file.path.parent.name, file.path.stem) != (file.device, file.model):
        text = (
            f"is for {file.device}/{file.model}, and no session finds it here: "
            f"move it to {file.device}/{file.model}.toml"
        )
        yield Finding(
            path=file.path, line=file.device_line, law=SCHEMA, severity="warning", text=text
        )


def _quantile_order(path: Path, row: Row) -> Iterator[Finding]:
    """A lower quantile is never above a higher one of the same metric."""
    of_metric: dict[tuple[str, str | None], list[Limit]] = {}
    for limit in row.limits:
        if limit.quantile is not None:
            of_metric.setdefault((limit.metric, limit.class_name), []).append(limit)
    for limits in of_metric.values():
        ordered = sorted(limits, key=lambda limit: limit.quantile or 0.0)
        for lower, higher in itertools.pairwise(ordered):
            if lower.value > higher.value:
                text = (
                    f"{lower.name} {lower.value:g} ms > {higher.name} {higher.value:g} ms: "
                    "a lower quantile cannot be above a higher one"
                )
                either = higher if higher.advisory else lower
                yield about(path, row, QUANTILE_ORDER, text, limit=either)


def _littles_law(path: Path, row: Row) -> Iterator[Finding]:
    """Output tokens per second are at most the sequences that decode, over the time of a token.

    Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961): L is at
    most max_num_seqs, and at most the closed loop's concurrency.
    """
    throughput, tpot = row.limit("output_tok_s"), row.limit("tpot_p50_ms")
    slots = _slots(row)
    if throughput is None or tpot is None or slots is None:
        return
    count, name = slots
    bound = count / tpot.value * 1e3
    if throughput.value <= bound:
        return
    text = (
        f"output_tok_s cannot be {throughput.value:,.0f} where tpot_p50_ms is {tpot.value:g}: "
        f"{count} / {tpot.value:g} ms = {bound:,.0f} tok/s < {throughput.value:,.0f} "
        f"(Little's law, {name} = {count})"
    )
    is_target = row.provenance.kind == "target"
    if is_target:
        # An SLO's TPOT is a bound, which a run may well be under.
        text += f"; it takes a TPOT of {count / throughput.value * 1e3:.2f} ms"
    either = tpot if tpot.advisory else throughput
    yield about(path, row, LITTLES_LAW, text, limit=either, gates=not is_target)


def _slots(row: Row) -> tuple[int, str] | None:
    """How many sequences decode at most, and which setting says so."""
    settings = dict(row.settings)
    if "data_parallel_size" in settings:
        return None
    known = [(settings.get("max_num_seqs"), "max_num_seqs"), (row.concurrency, "concurrency")]
    given = [(n, name) for n, name in known if isinstance(n, int)]
    return min(given, key=lambda one: one[0], default=None)


def _physics(file: Thresholds) -> Iterator[Finding]:
    """No decode step is quicker than one reading of the weights at the data sheet's bandwidth."""
    from vllm_slo.device import device_limits

    device = file.device
    for prefix in _MODELLED:
        device = device.removeprefix(prefix)
    try:
        bounds = device_limits(device, model=file.model)
    except ProfileError as error:
        text = f"the roofline is not checked: {error}"
        yield Finding(
            path=file.path, line=file.device_line, law=ROOFLINE, severity="warning", text=text
        )
        return
    for row in file.rows:
        if any(name in _OTHER_ROOFLINE for name, _ in row.settings):
            continue
        for limit in row.limits:
            if limit.metric == "tpot" and limit.value < bounds.min_tpot_ms:
                text = (
                    f"{limit.name} {limit.value:g} ms < {bounds.min_tpot_ms:.2f} ms: no step of "
                    f"{file.model} on {device} is quicker than one reading of its weights"
                )
                yield about(file.path, row, ROOFLINE, text, limit=limit)
        throughput, slots = row.limit("output_tok_s"), _slots(row)
        if throughput is None or slots is None:
            continue
        most = bounds.output_tok_s(max_num_seqs=slots[0])
        if throughput.value > most:
            text = (
                f"output_tok_s {throughput.value:,.0f} > {most:,.0f}: {slots[0]} sequences, one "
                f"token each per reading of the weights ({bounds.min_tpot_ms:.2f} ms of "
                f"{file.model} on {device}), or the device's peak operations, allow no more"
            )
            yield about(file.path, row, ROOFLINE, text, limit=throughput)


def _monotony(file: Thresholds) -> Iterator[Finding]:
    """Rows that differ in max_num_seqs alone: a larger batch is slower a token, and gives more.

    TTFT rises too where the closed loop grows with max_num_seqs: that many prompts start together.
    """
    for smaller, larger in _neighbours(file.rows):
        grows = all(
            row.concurrency == dict(row.settings)["max_num_seqs"] for row in (smaller, larger)
        )
        for limit in larger.limits:
            rises = limit.name in ("output_tok_s", "total_tok_s") or limit.metric == "tpot"
            if not rises and not (limit.metric == "ttft" and grows):
                continue
            before = smaller.limit(limit.name, limit.class_name)
            if before is None or limit.value >= before.value * (1 - MONOTONY_TOLERANCE):
                continue
            text = (
                f"{limit.name} falls from {before.value:,g} (line {before.line}, {smaller.title}) "
                f"to {limit.value:,g}: with more sequences it rises"
            )
            yield about(file.path, larger, MONOTONY, text, limit=limit, gates=False)


def _neighbours(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Rows of one scenario and provenance, side by side in the order of max_num_seqs."""
    groups: dict[str, list[tuple[int, Row]]] = {}
    for row in rows:
        others = dict(row.settings)
        seqs = others.pop("max_num_seqs", None)
        if isinstance(seqs, int):
            key = f"{row.scenario} {row.provenance.kind} {sorted(others.items())}"
            groups.setdefault(key, []).append((seqs, row))
    for group in groups.values():
        ordered = [row for _, row in sorted(group, key=lambda one: one[0])]
        yield from itertools.pairwise(ordered)
