"""Is the run valid? Judged before any SLO, from the facts that the run carries."""

import math
from collections.abc import Callable

import numpy as np

from vllm_slo.measure import metrics
from vllm_slo.measure.invalid import Invalid
from vllm_slo.measure.run import Round, Run
from vllm_slo.measure.sanity import sanity
from vllm_slo.measure.steadiness import steadiness
from vllm_slo.measure.table import Bools, Floats, Table, tabulate

LEAST_ACHIEVED_SHARE = 0.98
MOST_OVERRUNS_SHARE = 0.01
# The SM clock of a busy GPU moves by a few percent by itself.
LEAST_CLOCK_RATIO = 0.90
# NVML's names for a GPU that is not slowed down: it idles, or an operator fixed its clocks.
HARMLESS_THROTTLE_REASONS = frozenset({"gpu_idle", "applications_clocks_setting", "none"})
# A stall of the event loop delays a few events and no quantile; a long one, or a short limit,
# is another matter. Under 20 ms it is the garbage collector or the machine.
LEAST_LOOP_LAG_LIMIT_S = 0.020
LOOP_LAG_LIMIT_WITHOUT_TTFT_S = 0.050
MOST_STALLED_SHARE = 0.0025


def validate(
    run: Run,
    *,
    ttft_limit_ms: float | None = None,
    expect_preemptions: bool | None = None,
    expect_prefix_hits: bool | None = None,
) -> list[Invalid]:
    """Every reason why `run` does not show what it should; an empty list if there is none.

    `ttft_limit_ms` is the tightest TTFT limit, which sets how late the client may be.
    `expect_preemptions` asserts a regime. `expect_prefix_hits` of `None` takes hits as expected
    where the workload's prompts share tokens.
    """
    table = tabulate(run)
    if not len(table):
        text = "no request was sent: give the workload requests, and the run a round"
        return [Invalid(check="requests", value=0, limit=1, message=text)]
    died = _server_died(run)
    if died:
        return [died]  # what else is odd about the run follows from that
    found = [
        _send_lag(table, ttft_limit_ms),
        _loop_lag(run, ttft_limit_ms),
        _achieved_rate(run),
        _throttled_pool(run),
        _warm_up(run),
        _token_counts(run, table),
        _missing_facts(run),
        _prefix_hits(run, expect_prefix_hits),
        _regime(run, expect_preemptions),
        _overruns(run),
        _foreign_processes(run),
        _throttling(run),
        _clocks(run),
    ]
    return [one for one in found if one] + steadiness(run, table) + sanity(run, table)


def _server_died(run: Run) -> Invalid | None:
    for number, one in enumerate(run.rounds, start=1):
        if one.server_died is not None:
            return Invalid(
                check="server",
                value=number,
                limit=None,
                message=f"the server died in round {number}: {one.server_died}",
                fail_allowed=True,
            )
    return None


def _send_lag(table: Table, ttft_limit_ms: float | None) -> Invalid | None:
    limit_ms = max(1.0, 0.01 * (ttft_limit_ms or 0.0))
    lag_ms = float(np.quantile(metrics.send_lag_ms(table), 0.99))
    if lag_ms <= limit_ms:
        return None
    return Invalid(
        check="send lag",
        value=lag_ms,
        limit=limit_ms,
        message=f"the client sent late: p99 of send lag is {lag_ms:.1f} ms, at most "
        f"{limit_ms:.1f} ms is allowed. Free a CPU core for the client, or lower the load",
    )


def _loop_lag(run: Run, ttft_limit_ms: float | None) -> Invalid | None:
    limit_s = LOOP_LAG_LIMIT_WITHOUT_TTFT_S
    if ttft_limit_ms is not None:
        limit_s = max(LEAST_LOOP_LAG_LIMIT_S, 0.1 * ttft_limit_ms / 1e3)
    stalled = [one.client for one in run.rounds if one.client.loop_lag_max_s > limit_s]
    if not any(_disturbs(client.loop_stalled_share) for client in stalled):
        return None
    lag_s = max(client.loop_lag_max_s for client in stalled)
    return Invalid(
        check="event-loop lag",
        value=lag_s * 1e3,
        limit=limit_s * 1e3,
        message=f"the client's event loop stood still for {lag_s * 1e3:.0f} ms, at most "
        f"{limit_s * 1e3:.0f} ms is allowed. Free a CPU core for the client",
    )


def _disturbs(stalled_share: float | None) -> bool:
    """Whether stalls can have moved a p99, which one request in a hundred decides.

    A single stall of a long round delays what arrives in it, and no quantile.
    """
    return stalled_share is None or stalled_share > MOST_STALLED_SHARE


def _achieved_rate(run: Run) -> Invalid | None:
    if run.workload.is_closed_loop:
        return None
    share = min(_achieved_share(one) for one in run.rounds)
    if share >= LEAST_ACHIEVED_SHARE:
        return None
    return Invalid(
        check="achieved rate",
        value=share,
        limit=LEAST_ACHIEVED_SHARE,
        message=f"only {share:.1%} of the offered rate was sent, at least "
        f"{LEAST_ACHIEVED_SHARE:.0%} is needed. Free a CPU core for the client, or offer less",
    )


def _achieved_share(one: Round) -> float:
    offered, achieved = one.client.offered_rps, one.client.achieved_rps
    if offered is None or achieved is None:
        # The rates from the first start to the last, as the records tell them.
        scheduled = [record.scheduled_s for record in one.records]
        sent = [record.sent_s for record in one.records]
        planned_s = max(scheduled, default=0.0) - min(scheduled, default=0.0)
        taken_s = max(sent, default=0.0) - min(sent, default=0.0)
        return planned_s / taken_s if taken_s > 0 else 1.0
    return achieved / offered if offered > 0 and math.isfinite(offered) else 1.0


def _throttled_pool(run: Run) -> Invalid | None:
    """A closed loop that the server does not see: something between them holds requests back."""
    slots = run.concurrency
    if slots is None:
        return None
    for one in run.rounds:
        most = one.server.running_max
        expected = min(slots, run.settings.max_num_seqs or slots, len(one.records))
        # Where requests wait at the server, it is the server that does not run more of them.
        if most is not None and most < expected and not one.server.waiting_max:
            return Invalid(
                check="throttled pool",
                value=most,
                limit=expected,
                message=f"the server never ran more than {most} requests while the client kept "
                f"{slots} in flight. A connection limit or a proxy holds them back: lift it",
            )
    return None


def _warm_up(run: Run) -> Invalid | None:
    unsettled = sum(not one.client.warmup_settled for one in run.rounds)
    if not unsettled:
        return None
    return Invalid(
        check="warm-up",
        value=unsettled,
        limit=0,
        message=f"step times had not settled before {unsettled} of {len(run.rounds)} rounds: the "
        "server still compiled or warmed up. Allow more warm-up requests",
    )


def _token_counts(run: Run, table: Table) -> Invalid | None:
    exact = np.array([one.client.exact_prompts for one in run.rounds])[table.round_index]
    prompts = exact & _differ(table.prompt_tokens, table.planned_prompt_tokens)
    outputs = _differ(table.output_tokens, table.planned_output_tokens)
    off = int((prompts | outputs).sum())
    if not off:
        return None
    return Invalid(
        check="token counts",
        value=off,
        limit=0,
        message=f"{off} of {len(table)} requests did not have the planned tokens "
        f"({int(prompts.sum())} prompts, {int(outputs.sum())} outputs). The server must honour "
        "prompts of token ids, min_tokens and ignore_eos, and max_model_len must hold both",
    )


def _differ(told: Floats, planned: Floats) -> Bools:
    differ: Bools = ~np.isnan(told) & (told != planned)
    return differ


def _missing_facts(run: Run) -> Invalid | None:
    """What a target of this kind always knows. A URL may know nothing."""
    target = run.engine.target
    if target not in ("sim", "emulated", "gpu"):
        return None
    wanted: dict[str, Callable[[Round], object]] = {
        "server.preemptions": lambda one: one.server.preemptions,
        "server.kv_use_max": lambda one: one.server.kv_use_max,
        "server.running_max": lambda one: one.server.running_max,
    }
    if target == "emulated":
        wanted["the padding worker's account"] = lambda one: one.emulation
    if target == "gpu":
        wanted["NVML samples"] = lambda one: (one.gpu and one.gpu.samples) or None
    missing = [
        name for name, fact in wanted.items() if any(fact(one) is None for one in run.rounds)
    ]
    if not missing:
        return None
    return Invalid(
        check="missing facts",
        value=None,
        limit=None,
        message=f"the {target} target did not tell {', '.join(missing)}, so the run cannot be "
        "checked. See the warnings of the run and the server log for why",
    )


def _prefix_hits(run: Run, expected: bool | None) -> Invalid | None:
    hits = sum(one.server.prefix_cache_hit_tokens or 0 for one in run.rounds)
    if hits and expected is None:
        # Which class shares tokens does not depend on the server: any size of plan shows it.
        workload = run.workload.for_server(run.settings.max_num_seqs or 1)
        expected = any(request.segments for request in workload.requests)
    if expected or not hits:
        return None
    return Invalid(
        check="prefix-cache hits",
        value=hits,
        limit=0,
        message=f"{hits} prompt tokens came from the prefix cache, though no prompts share any: "
        "prompts were sent before with the same seed. Boot anew or use another --slo-seed",
    )


def _regime(run: Run, expect_preemptions: bool | None) -> Invalid | None:
    if expect_preemptions is None:
        return None
    counts = [one.server.preemptions for one in run.rounds]
    if any(count is None for count in counts):
        text = "the test expects preemptions or none, but the server does not count them"
        return Invalid(check="regime", value=None, limit=None, message=text)
    total = sum(count for count in counts if count is not None)
    if (total > 0) == expect_preemptions:
        return None
    remedy = (
        "the KV cache is too large for this load: lower num_gpu_blocks_override or raise the load"
        if expect_preemptions
        else "the KV cache is too small for this load: give it more blocks or lower the load"
    )
    wanted = "some" if expect_preemptions else "none"
    return Invalid(
        check="regime",
        value=total,
        limit=1 if expect_preemptions else 0,
        message=f"{total} preemptions where {wanted} are expected: {remedy}",
    )


def _overruns(run: Run) -> Invalid | None:
    accounts = [one.emulation for one in run.rounds if one.emulation is not None]
    if not accounts:
        return None
    steps = sum(account.steps for account in accounts)
    overruns = sum(account.overruns for account in accounts)
    share = overruns / steps if steps else 1.0
    if share <= MOST_OVERRUNS_SHARE:
        return None
    worst_ms = max(account.worst_overrun_ms for account in accounts)
    return Invalid(
        check="overruns",
        value=share,
        limit=MOST_OVERRUNS_SHARE,
        message=f"{overruns} of {steps} steps took longer than the modelled device would (worst "
        f"by {worst_ms:.0f} ms), at most {MOST_OVERRUNS_SHARE:.0%} may. Free the machine's CPUs",
    )


def _foreign_processes(run: Run) -> Invalid | None:
    pids = sorted({pid for one in run.rounds if one.gpu for pid in one.gpu.foreign_pids})
    if not pids:
        return None
    return Invalid(
        check="foreign processes",
        value=len(pids),
        limit=0,
        message=f"other processes were on the GPU: {', '.join(map(str, pids))}. Stop them, or "
        "take another GPU with CUDA_VISIBLE_DEVICES",
    )


def _throttling(run: Run) -> Invalid | None:
    reasons = {reason for one in run.rounds if one.gpu for reason in one.gpu.throttle_reasons}
    slowed = sorted(r for r in reasons if r.lower() not in HARMLESS_THROTTLE_REASONS)
    if not slowed:
        return None
    return Invalid(
        check="throttling",
        value=len(slowed),
        limit=0,
        message=f"the GPU slowed itself down: {', '.join(slowed)}. Cool it, or lower its clocks "
        "with nvidia-smi --lock-gpu-clocks to what it can hold",
    )


def _clocks(run: Run) -> Invalid | None:
    gpus = [one.gpu for one in run.rounds if one.gpu and one.gpu.samples]
    if not gpus:
        return None
    fastest = max(gpu.sm_clock_mhz_max for gpu in gpus)
    slowest = min(gpu.sm_clock_mhz_min for gpu in gpus)
    if slowest >= LEAST_CLOCK_RATIO * fastest:
        return None
    return Invalid(
        check="clocks",
        value=slowest,
        limit=LEAST_CLOCK_RATIO * fastest,
        message=f"the SM clock moved between {slowest:.0f} and {fastest:.0f} MHz. Fix it with "
        "nvidia-smi --lock-gpu-clocks",
    )
