"""`Curve`: one measured quantity over one count, interpolated; the ends are continued."""

import numpy as np
from numpy.typing import NDArray


class Curve:
    """Times over whole-number counts, linear between the measured points.

    Below the first point its time holds: the smallest kernel launch is as short as they get.
    Above the last, the line from the point nearest half of it goes on: a GPU's curve is a
    staircase, and the last two points alone may lie on one step.
    """

    def __init__(self, counts: NDArray[np.float64], times: NDArray[np.float64]) -> None:
        """`counts` ascending, shape (n,); `times` of the same shape."""
        self.last = float(counts[-1])
        x, y = continued(counts, times[None, :])
        self._counts, self._times = x, y[0]

    def at(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.interp(counts, self._counts, self._times), dtype=np.float64)


FAR = 2.0**40


def continued(
    axis: NDArray[np.float64], times: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The axis and times with one far point more, so that interpolation reaches beyond the last.

    `axis` has shape (n,), `times` (..., n). A slope is never taken to be negative, nor from one
    point alone.
    """
    if len(axis) == 1:
        slope = np.zeros(times.shape[:-1])
    else:
        half = min(int(np.argmin(np.abs(axis - axis[-1] / 2))), len(axis) - 2)
        rise = (times[..., -1] - times[..., half]) / (axis[-1] - axis[half])
        slope = np.maximum(rise, 0.0)
    far = times[..., -1] + slope * (FAR - axis[-1])
    return np.append(axis, FAR), np.concatenate([times, far[..., None]], axis=-1)
