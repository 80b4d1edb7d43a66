"""Fits a roofline to measured steps, and says which of its coefficients the steps determine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vllm_slo.device.measured import MeasuredStep
from vllm_slo.device.roofline import RooflineModel
from vllm_slo.errors import ProfileError

# What is fitted. `constant` is host + fixed + head, which no step tells apart.
CONSTANT = "constant"
PARAMETERS = (
    CONSTANT,
    "weights",
    "token",
    "activation",
    "kv",
    "decode",
    "head_row",
    "prefill_token",
    "prefill_pair",
)
# Which to give up first among parameters that the steps do not tell apart at all: those that matter
# least in most steps.
_DISPENSABLE = (
    "prefill_token",
    "head_row",
    "decode",
    "activation",
    CONSTANT,
    "prefill_pair",
    "token",
    "kv",
    "weights",
)
# A coefficient whose standard error is more than this share of it is not determined.
DETERMINED = 0.25
FEWEST_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted model and how far to trust it.

    `standard_errors` (milliseconds, as the coefficients) has the parameters the steps determine;
    `undetermined` names the others, which keep the base model's values. Relative errors are
    |model - measured| / measured over all steps.
    """

    model: RooflineModel
    steps: int
    standard_errors: Mapping[str, float]
    undetermined: tuple[str, ...]
    median_error: float
    p95_error: float
    max_error: float


def calibrate(steps: Sequence[MeasuredStep], *, base: RooflineModel) -> Calibration:
    """Fits the roofline's coefficients to measured steps, none of them below zero.

    Least squares of the relative error, with a soft-L1 loss beyond three robust standard
    deviations, so that a garbage collection or a compilation among the steps does not bend the
    fit. A parameter is determined when its standard error, from the Jacobian at the solution, is
    within a quarter of its value. One that is not is given `base`'s value, the least determined
    first, and the others are fitted again: what cannot be told apart must not be shared out by
    chance.

    Raises:
        ProfileError: too few steps, or steps all alike.
    """
    if len(steps) < FEWEST_STEPS:
        raise ProfileError(
            f"{len(steps)} measured steps are too few: at least {FEWEST_STEPS} are needed, of "
            "different batch sizes, contexts and prefill lengths"
        )
    features = _Features(steps)
    start = _values(base)
    # A device twice as slow as the base is a better start than the base.
    start *= float(np.median(features.ms / features.predict(start, base)))
    scale = np.maximum(start, 1e-9)
    free = list(range(len(PARAMETERS)))
    values = start
    while True:
        values, errors = _fit(features, base, values, free, scale)
        shares = errors / np.maximum(values[free], 1e-12)
        if not free or shares.max() <= DETERMINED:
            break
        # At zero a share says nothing: a coefficient that is nothing next to the base's is found.
        nothing = errors < DETERMINED * _values(base)[free]
        shares[nothing & (values[free] < errors)] = 0.0
        if shares.max() <= DETERMINED:
            break
        worst = _least_determined(free, shares)
        free.remove(worst)
        values = values.copy()
        values[worst] = _values(base)[worst]
    if not free:
        raise ProfileError(
            "the measured steps determine no coefficient: they are all alike, or all noise"
        )
    relative = np.abs(features.predict(values, base) / features.ms - 1)
    return Calibration(
        model=_model(values, base),
        steps=len(steps),
        standard_errors={
            PARAMETERS[i]: float(error) for i, error in zip(free, errors, strict=True)
        },
        undetermined=tuple(name for i, name in enumerate(PARAMETERS) if i not in free),
        median_error=float(np.median(relative)),
        p95_error=float(np.quantile(relative, 0.95)),
        max_error=float(relative.max()),
    )


def _least_determined(free: Sequence[int], shares: NDArray[np.float64]) -> int:
    hopeless = [i for i, share in zip(free, shares, strict=True) if not np.isfinite(share)]
    if hopeless:
        return min(hopeless, key=lambda i: _DISPENSABLE.index(PARAMETERS[i]))
    return free[int(np.argmax(shares))]


class _Features:
    """The steps as columns, each of shape (steps,)."""

    def __init__(self, steps: Sequence[MeasuredStep]) -> None:
        self.ms = np.array([s.ms for s in steps])
        self.tokens = np.array([s.step.tokens for s in steps], dtype=np.float64)
        self.rows = np.array([s.step.sampled for s in steps], dtype=np.float64)
        self.any_decode = np.array([float(s.step.decodes > 0) for s in steps])
        self.context = np.array([float(s.step.decode_context) for s in steps])
        self.context *= self.any_decode
        self.chunks = np.array([float(sum(k for k, _ in s.step.prefills)) for s in steps])
        self.pairs = np.array(
            [float(sum(k * c + k * k / 2 for k, c in s.step.prefills)) for s in steps]
        )

    def predict(self, values: NDArray[np.float64], base: RooflineModel) -> NDArray[np.float64]:
        """Step times, as `RooflineModel.step_ms` of the model with these values."""
        p = dict(zip(PARAMETERS, values, strict=True))
        head = min(base.head, p[CONSTANT])
        total: NDArray[np.float64] = (
            p[CONSTANT]
            + np.hypot(p["weights"], p["token"] * self.tokens)
            + p["activation"] * self.tokens
            + np.maximum(p["head_row"] * self.rows - head, 0.0)
            + p["decode"] * self.any_decode
            + p["kv"] * self.context
            + p["prefill_token"] * self.chunks
            + p["prefill_pair"] * self.pairs
        )
        return total

    def slopes(self, values: NDArray[np.float64], base: RooflineModel) -> NDArray[np.float64]:
        """Derivatives of `predict` by each parameter, shape (steps, len(PARAMETERS))."""
        p = dict(zip(PARAMETERS, values, strict=True))
        products = np.maximum(np.hypot(p["weights"], p["token"] * self.tokens), 1e-300)
        over_head = (p["head_row"] * self.rows > min(base.head, p[CONSTANT])).astype(np.float64)
        columns = {
            CONSTANT: 1.0 - over_head * (p[CONSTANT] < base.head),
            "weights": p["weights"] / products,
            "token": p["token"] * self.tokens**2 / products,
            "activation": self.tokens,
            "kv": self.context,
            "decode": self.any_decode,
            "head_row": over_head * self.rows,
            "prefill_token": self.chunks,
            "prefill_pair": self.pairs,
        }
        return np.stack([columns[name] for name in PARAMETERS], axis=1)


def _values(model: RooflineModel) -> NDArray[np.float64]:
    constant = model.host + model.fixed + model.head
    return np.array([constant, *(getattr(model, name) for name in PARAMETERS[1:])])


def _model(values: NDArray[np.float64], base: RooflineModel) -> RooflineModel:
    """The model; its constant is given to the head and the fixed part first, as the base has
    them, and the rest to the host."""
    named = {name: float(value) for name, value in zip(PARAMETERS, values, strict=True)}
    constant = named.pop(CONSTANT)
    head = min(base.head, constant)
    fixed = min(base.fixed, constant - head)
    return replace(base, head=head, fixed=fixed, host=constant - head - fixed, **named)


def _fit(
    features: _Features,
    base: RooflineModel,
    start: NDArray[np.float64],
    free: Sequence[int],
    scale: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All values, the free ones fitted, and the standard errors of those, shape (len(free),)."""
    from scipy.optimize import least_squares

    places = np.array(free, dtype=np.intp)
    if not len(places):
        return start, np.zeros(0)

    def values(fraction: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = start.copy()
        moved[places] = fraction * scale[places]
        return moved

    def residuals(fraction: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(features.predict(values(fraction), base) / features.ms - 1)

    def jacobian(fraction: NDArray[np.float64]) -> NDArray[np.float64]:
        slopes = features.slopes(values(fraction), base)[:, places]
        return np.asarray(slopes * scale[places] / features.ms[:, None])

    first = np.maximum(start[places] / scale[places], 1e-3)
    plain = least_squares(residuals, first, jac=jacobian, bounds=(0.0, np.inf))
    spread = _spread(plain.fun)
    robust = least_squares(
        residuals, plain.x, jac=jacobian, bounds=(0.0, np.inf), loss="soft_l1", f_scale=3 * spread
    )
    errors = _standard_errors(jacobian(robust.x), _spread(residuals(robust.x)))
    return values(robust.x), errors * scale[places]


def _spread(residuals: NDArray[np.float64]) -> float:
    """The standard deviation by the median, which outliers do not move; 1e-6 at least."""
    return max(1.4826 * float(np.median(np.abs(residuals))), 1e-6)


def _standard_errors(jacobian: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """Square roots of the diagonal of spread^2 (J^T J)^-1; infinite where J does not determine."""
    _, singular, rotation = np.linalg.svd(jacobian, full_matrices=False)
    alive = singular > 1e-9 * max(float(singular.max()), 1e-300)
    variances = np.zeros(jacobian.shape[1])
    for value, direction, is_alive in zip(singular, rotation, alive, strict=True):
        if is_alive:
            variances += (direction / value) ** 2
        else:
            variances[np.abs(direction) > 1e-6] = np.inf
    return np.asarray(spread * np.sqrt(variances), dtype=np.float64)
