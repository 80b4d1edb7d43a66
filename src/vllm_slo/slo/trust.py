"""Whether a run can be judged by a row at all: its validity, seen from the row's limits."""

from dataclasses import dataclass

from vllm_slo.measure.run import Run
from vllm_slo.measure.validity import validate
from vllm_slo.slo.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """`invalid` forbid any verdict; `overload` forbids PASS alone. Both are empty for a run that
    can be trusted."""

    invalid: tuple[str, ...] = ()
    overload: tuple[str, ...] = ()


def trust(
    run: Run,
    row: Row,
    *,
    expect_preemptions: bool | None = None,
    expect_prefix_hits: bool | None = None,
) -> Doubts:
    """The doubts about `run`, for `judge(run, row, invalid=..., overload=...)`.

    The tightest TTFT limit that gates sets how late the client may be; the expectations are
    those of `validate`.
    """
    ttft_limits = [limit.value for limit in row.judged if limit.metric == "ttft"]
    found = validate(
        run,
        ttft_limit_ms=min(ttft_limits, default=None),
        expect_preemptions=expect_preemptions,
        expect_prefix_hits=expect_prefix_hits,
    )
    return Doubts(
        invalid=tuple(one.message for one in found if not one.fail_allowed),
        overload=tuple(one.message for one in found if one.fail_allowed),
    )
