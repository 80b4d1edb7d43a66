"""`Limit`: one bound on one metric, and what a limit's name means."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from vllm_slo.errors import ThresholdsError
from vllm_slo.slo.reader import suggest

Bound = Literal["upper", "lower"]

LATENCIES = ("ttft", "tpot", "itl", "e2e")
_QUANTILE_NAME = re.compile(r"(?P<metric>[a-z0-9]+)_p(?P<digits>\d{1,6})_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A metric that is one figure a round: the bound that a bare number sets, and its text."""

    bound: Bound
    label: str
    unit: str = ""
    two_sided: bool = False
    per_class: bool = False
    zero_allowed: bool = False
    at_most: float = math.inf


# A bare sm_utilisation_percent is a lower bound: a GPU that is busy less than before gives away
# throughput. Preemptions can be bounded from below too: a scenario may be about having some.
_FIGURES = {
    "output_tok_s": _Kind(bound="lower", label="output", unit=" tok/s"),
    "total_tok_s": _Kind(bound="lower", label="total", unit=" tok/s"),
    # A share of 1 could be refuted and never shown, whatever the number of requests.
    "goodput": _Kind(bound="lower", label="goodput", per_class=True, at_most=0.99999),
    "preemptions": _Kind(
        bound="upper", label="preemptions", unit=" a round", two_sided=True, zero_allowed=True
    ),
    "preemptions_per_minute": _Kind(
        bound="upper", label="preemptions", unit="/min", two_sided=True, zero_allowed=True
    ),
    "sm_utilisation_percent": _Kind(
        bound="lower", label="sm utilisation", unit="%", two_sided=True, at_most=100.0
    ),
}
_MOST = 1e12

LIMIT_NAMES = (
    *(f"{metric}_p{q}_ms" for metric in LATENCIES for q in (50, 99)),
    *_FIGURES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One bound. `value` is in the unit that the name ends in; `line` is that of its file.

    `metric` is the name without its quantile: `ttft` for `ttft_p99_ms`, whose `quantile` is 0.99;
    where there is no quantile, `metric` is the name. `key` is the path below the row's `limits`,
    and what `advisory` lists. A limit with a `class_name` is on that traffic class alone. An
    `advisory` one is shown and not judged.
    """

    key: str
    name: str
    metric: str
    quantile: float | None
    bound: Bound
    value: float
    class_name: str | None = None
    advisory: bool = False
    line: int = 0

    @property
    def text(self) -> str:
        """The limit as k6 writes thresholds: `ttft p(99) < 852ms`, `goodput >= 0.99`."""
        subject = self.metric if self.quantile is not None else _FIGURES[self.name].label
        if self.class_name is not None:
            subject += f"{{class:{self.class_name}}}"
        if self.quantile is not None:
            return f"{subject} p({100 * self.quantile:g}) < {_digits(self.value)}ms"
        sign = "<=" if self.bound == "upper" else ">="
        return f"{subject} {sign} {_plain(self.value)}{_FIGURES[self.name].unit}"

    @property
    def most(self) -> float:
        """The largest value that the metric can have."""
        return _FIGURES[self.name].at_most if self.name in _FIGURES else math.inf

    def holds_for(self, value: float) -> bool:
        """Whether a figure is on the right side; the limit's own value is."""
        return value <= self.value if self.bound == "upper" else value >= self.value

    def is_looser_than(self, other: "Limit") -> bool:
        """Whether it lets pass what `other`, the same bound of the same metric, does not."""
        return self.value > other.value if self.bound == "upper" else self.value < other.value


def make_limit(
    name: str,
    value: float,
    *,
    bound: Bound | None = None,
    class_name: str | None = None,
    advisory: bool = False,
    line: int = 0,
) -> Limit:
    """A limit by its name in a threshold file; `bound` is given where the file says min or max.

    Raises:
        ThresholdsError: an unknown name, a percentile that is none, or a value that cannot bound
            this metric. The text does not name file and row: the reader of the file adds them.
    """
    quantile = quantile_of(name)
    kind = _FIGURES.get(name)
    if quantile is None and kind is None:
        raise ThresholdsError(f"is not a known limit{suggest(name, LIMIT_NAMES)}")
    if class_name is not None and kind is not None and not kind.per_class:
        raise ThresholdsError("is a figure of the whole server, which a traffic class has none of")
    if bound is not None and (kind is None or not kind.two_sided):
        raise ThresholdsError(
            f"has one direction only: write {name} = <number>, without min and max"
        )
    check_number(value, kind)
    given = "" if bound is None else ".min" if bound == "lower" else ".max"
    prefix = "" if class_name is None else f"class.{class_name}."
    return Limit(
        key=f"{prefix}{name}{given}",
        name=name,
        metric=name if quantile is None else name.split("_", 1)[0],
        quantile=quantile,
        bound=bound or (kind.bound if kind else "upper"),
        value=float(value),
        class_name=class_name,
        advisory=advisory,
        line=line,
    )


def quantile_of(name: str) -> float | None:
    """The quantile in a limit's name: 0.99 of `ttft_p99_ms`; `p999` is 99.9 %.

    `None` where the name is of another form.

    Raises:
        ThresholdsError: the digits are not those of a percentile.
    """
    found = _QUANTILE_NAME.fullmatch(name)
    if found is None or found["metric"] not in LATENCIES:
        return None
    digits = found["digits"]
    if digits.startswith("0") or (len(digits) > 2 and not digits.startswith("99")):
        raise ThresholdsError(
            "names no percentile: write p1 to p99, or p999 for 99.9 % and p9999 for 99.99 %"
        )
    if len(digits) > 2 and digits.endswith("0"):
        raise ThresholdsError("names a percentile with a 0 at its end: leave the 0 out")
    return int(digits) / 10 ** len(digits) if len(digits) > 1 else int(digits) / 100


def check_number(value: object, kind: _Kind | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ThresholdsError(f"must be a number, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ThresholdsError(f"must be a finite number, not {value}")
    if value > _MOST:
        raise ThresholdsError(f"must be at most {_MOST:g}: nothing takes or does so much")
    if value < 0:
        raise ThresholdsError(f"must not be negative: {value}")
    if value == 0 and not (kind and kind.zero_allowed):
        raise ThresholdsError(
            "must be more than 0: nothing meets, or everything meets, a limit of 0"
        )
    if kind and value > kind.at_most:
        raise ThresholdsError(f"must be at most {kind.at_most:g}, not {value}")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else _digits(value)


def _digits(value: float) -> str:
    """All digits that say something, and no exponent where there need be none."""
    return f"{value:.12g}"
