"""The scenarios: uniform, mixed, any mixture, and a recorded trace."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic.arrivals import Arrivals, ClosedLoop
from vllm_slo.traffic.lengths import Fixed, Lengths, as_lengths
from vllm_slo.traffic.mixes import (
    LEAST_REQUESTS,
    OPEN_LOOP_REQUESTS,
    REQUESTS_PER_SLOT,
    MixPlan,
    TrafficClass,
)
from vllm_slo.traffic.trace import TraceForm, read_trace
from vllm_slo.traffic.workload import Workload

GivenLengths = int | tuple[int, int] | Lengths


def uniform(
    *,
    input_tokens: GivenLengths = 512,
    output_tokens: GivenLengths = 256,
    requests: int | None = None,
    concurrency: int | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
) -> Workload:
    """Requests that are all alike: 512 tokens in, 256 out.

    By default a closed loop with as many slots as the server's max_num_seqs; `concurrency` sets
    another number, `arrivals` another process. `requests` a round default to 4 a slot and at
    least 64, or to 300 in an open loop.

    Raises:
        WorkloadError: lengths, rates or counts that make no sense.
    """
    one = TrafficClass("all", as_lengths(input_tokens), as_lengths(output_tokens))
    return _workload("uniform", (one,), requests, concurrency, arrivals, seed)


def mixed(
    *,
    input_tokens: GivenLengths = 512,
    output_tokens: GivenLengths = (64, 1024),
    requests: int | None = None,
    concurrency: int | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
) -> Workload:
    """As `uniform`, with outputs that vary: any length from 64 to 1,024, equally likely."""
    one = TrafficClass("all", as_lengths(input_tokens), as_lengths(output_tokens))
    return _workload("mixed", (one,), requests, concurrency, arrivals, seed)


def mix(
    classes: Sequence[TrafficClass],
    *,
    name: str = "mix",
    requests: int | None = None,
    concurrency: int | None = None,
    arrivals: Arrivals | None = None,
    seed: int = 0,
) -> Workload:
    """Several classes of requests side by side; the other arguments are those of `uniform`."""
    return _workload(name, tuple(classes), requests, concurrency, arrivals, seed)


def trace(
    path: str | PathLike[str],
    *,
    start_s: float = 0.0,
    duration_s: float | None = None,
    rate_scale: float = 1.0,
    requests: int | None = None,
    max_input_tokens: int | None = None,
    max_output_tokens: int | None = None,
    form: TraceForm | None = None,
    name: str = "trace",
    seed: int = 0,
) -> Workload:
    """A recorded trace, replayed at its own times: an open loop.

    `start_s` and `duration_s` cut a piece out, in the trace's own seconds from its first request;
    time zero of a round is the start of the piece. `rate_scale` 2 plays it twice as fast.
    `requests` keeps the first so many. Lengths over `max_input_tokens` or `max_output_tokens` are
    clipped, and `params` says how many were. `reseeded` changes the prompts, nothing else.

    Raises:
        TraceError: a file that cannot be read, with its line, or a piece with no requests.
    """
    piece = read_trace(path, form=form).cut(start_s=start_s, duration_s=duration_s)
    if requests is not None:
        piece = piece.first(requests)
    piece = piece.scaled(rate_scale)
    piece = piece.clipped(max_input_tokens=max_input_tokens, max_output_tokens=max_output_tokens)
    params: dict[str, object] = {"trace": Path(path).name, "requests": len(piece)}
    if start_s:
        params["start_s"] = start_s
    if duration_s is not None:
        params["duration_s"] = duration_s
    if rate_scale != 1.0:
        params["rate_scale"] = rate_scale
    params |= {
        "input_tokens": str(piece.input_lengths()),
        "output_tokens": str(piece.output_lengths()),
    }
    if max_input_tokens is not None:
        params |= {"max_input_tokens": max_input_tokens, "clipped_inputs": piece.clipped_inputs}
    if max_output_tokens is not None:
        params |= {"max_output_tokens": max_output_tokens, "clipped_outputs": piece.clipped_outputs}
    return Workload(name=name, plan=piece, seed=seed, params=tuple(params.items()))


def _workload(
    name: str,
    classes: tuple[TrafficClass, ...],
    requests: int | None,
    concurrency: int | None,
    arrivals: Arrivals | None,
    seed: int,
) -> Workload:
    if concurrency is not None and arrivals is not None:
        raise WorkloadError(f"{name}: give concurrency=... or arrivals=..., not both")
    if arrivals is None:
        arrivals = ClosedLoop() if concurrency is None else ClosedLoop(concurrency)
    plan = MixPlan(classes=classes, requests=requests)
    params = _described(classes)
    if not isinstance(arrivals, ClosedLoop):
        count = OPEN_LOOP_REQUESTS if requests is None else requests
        params |= {"arrivals": str(arrivals), "requests": count}
        plan = replace(plan, arrivals=arrivals, requests=count)
        return Workload(name=name, plan=plan, seed=seed, params=tuple(params.items()))
    if arrivals.slots is not None:
        plan = plan.sized(arrivals.slots)
    count_text = f"{REQUESTS_PER_SLOT} x concurrency, at least {LEAST_REQUESTS}"
    params["concurrency"] = str(arrivals) if arrivals.slots is None else arrivals.slots
    params["requests"] = count_text if plan.count is None else plan.count
    return Workload(
        name=name,
        plan=plan,
        seed=seed,
        concurrency=arrivals.slots,
        concurrency_per_seq=arrivals.slots_per_seq,
        params=tuple(params.items()),
    )


def _described(classes: tuple[TrafficClass, ...]) -> dict[str, object]:
    if len(classes) > 1:
        return {"classes": "; ".join(str(c) for c in classes)}
    (one,) = classes

    def plain(lengths: Lengths) -> object:
        return lengths.tokens if isinstance(lengths, Fixed) else str(lengths)

    described: dict[str, object] = {
        "input_tokens": plain(one.input),
        "output_tokens": plain(one.output),
    }
    if one.priority:
        described["priority"] = one.priority
    if one.shared_prefix_tokens:
        described["shared_prefix_tokens"] = one.shared_prefix_tokens
    return described
