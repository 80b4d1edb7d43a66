"""`Invalid`: one reason why a run's numbers are not what they seem."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """A check that a run did not pass: what was found, what is allowed, what to change.

    `value` is `None` where a fact is missing that the target should have. A run with any of these
    is never PASS; with `fail_allowed` it may still be FAIL, because the fault cannot have made
    the numbers worse than the server deserves.
    """

    check: str
    value: float | None
    limit: float | None
    message: str
    fail_allowed: bool = False
