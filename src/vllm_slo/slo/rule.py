"""Which rule judges a run, and after which rounds it looks."""

from dataclasses import dataclass
from typing import Literal

LOOKS = (5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a run is judged.

    `rounds`: intervals with the rounds as clusters; a row's FAIL is wrong at most `fail_error` of
    the time and its PASS `pass_error`, over all limits and all `looks` together.
    `pooled`: the quantile of all rounds' samples against the limit; no error is stated.

    `looks` are the numbers of rounds after which the first looks, fixed before the run.
    """

    kind: Literal["rounds", "pooled"]
    looks: tuple[int, ...] = LOOKS
    fail_error: float = 0.01
    pass_error: float = 0.05

    @property
    def least_rounds(self) -> int:
        """Fewer rounds than this never PASS."""
        return 5 if self.kind == "rounds" else 2


def rule_for(target: str, *, rounds: int | None = None) -> Rule:
    """The rule of a target, within a budget of `rounds`; the one place where it is chosen.

    The cluster-adjusted rule wants 5 to 20 rounds. `sim` has them for nothing and a GPU gate has
    to pay for them. `emulated` runs at a tenth of a GPU's token rate on a CPU, in wall time: five
    rounds of every row are most of an hour, so there the pooled quantile decides, and the output
    says that no error is stated.
    """
    if target == "emulated":
        return Rule(kind="pooled", looks=())
    return Rule(kind="rounds", looks=looks_within(rounds))


def looks_within(rounds: int | None) -> tuple[int, ...]:
    """The looks that a budget allows: 5, 10 and 20 rounds, the budget's end in place of the next.

    A budget under five rounds has one look, at its end, which cannot PASS.
    """
    if rounds is None:
        return LOOKS
    within = tuple(look for look in LOOKS if look <= rounds)
    return within if within and (within[-1] == rounds or rounds > LOOKS[-1]) else (*within, rounds)
