"""`AttentionGrid`: measured attention times, interpolated over batch and context."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from vllm_slo.device.curve import FAR, continued
from vllm_slo.errors import ProfileError

_LOG, _LINEAR = True, False


class AttentionGrid:
    """Attention time of one layer over (prefill chunk, its context, decodes, their mean context).

    Three tables: decodes only, one prefill only, one prefill with decodes. Time is close to linear
    in either context and in the number of decodes, so those axes are interpolated linearly; it
    bends from linear to quadratic in the chunk, so that axis is interpolated as a power law
    between neighbours. Below the first point of an axis its time holds, above the last the trend
    goes on. Points that were not measured are filled along the number of decodes first, then the
    other axes. `warn` is told about each kind of point that was not within the measured ones.
    """

    def __init__(
        self, points: Iterable[tuple[Sequence[int], float]], *, warn: Callable[[str], None]
    ) -> None:
        """`points` are ((prefill_chunk, kv_prefill, n_decode, kv_decode), time).

        Raises:
            ProfileError: no point of decodes only, or none of one prefill only.
        """
        decode: dict[tuple[int, ...], float] = {}
        prefill: dict[tuple[int, ...], float] = {}
        mixed: dict[tuple[int, ...], float] = {}
        for (chunk, context, decodes, kv), time in points:
            if chunk and decodes:
                mixed[chunk, context, decodes, kv] = time
            elif chunk:
                prefill[chunk, context] = time
            elif decodes:
                decode[decodes, kv] = time
        for table, name in ((decode, "prefill_chunk = 0"), (prefill, "n_decode = 0")):
            if not table:
                raise ProfileError(f"attention: no measured point with {name}")
        self._decode = _Table(decode, scales=(_LINEAR, _LINEAR))
        self._prefill = _Table(prefill, scales=(_LOG, _LINEAR))
        self._mixed = _Table(mixed, scales=(_LOG, _LINEAR, _LINEAR, _LINEAR)) if mixed else None
        self._launch = min(min(decode.values()), min(prefill.values()))
        self._warn = warn
        self._rows: dict[int, tuple[NDArray[np.float64], bool]] = {}

    def decode_times(self, decodes: int, contexts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Times of decode-only attention at mean contexts, same shape as `contexts`."""
        if decodes not in self._rows:
            self._rows[decodes] = self._decode.row(decodes)
        row, is_measured = self._rows[decodes]
        kv = self._decode.axes[1]
        if not is_measured or contexts[-1] > kv[-2]:
            self._warn(
                f"attention: {decodes} decodes of {contexts[-1]:.0f} tokens is beyond the "
                f"measured {self._decode.reach()}; extrapolated"
            )
        return np.asarray(np.interp(contexts, kv, row), dtype=np.float64)

    def time(
        self, prefills: Sequence[tuple[int, int]], *, decodes: int, decode_context: int
    ) -> float:
        """Time of one layer's attention over a whole step.

        Attention runs as one kernel over all requests. Only one prefill at a time is measured;
        the largest is looked up together with the decodes, and each other adds its own time less
        one kernel launch.
        """
        if not prefills:
            mean = np.array([decode_context / decodes])
            return float(self.decode_times(decodes, mean)[0])
        first, *others = sorted(prefills, key=_pairs, reverse=True)
        if decodes:
            total = self._beside(first, decodes, decode_context / decodes)
        else:
            total = self._lookup(self._prefill, first, "a prefill (chunk, context)")
        for other in others:
            alone = self._lookup(self._prefill, other, "a prefill (chunk, context)")
            total += max(alone - self._launch, 0.0)
        return total

    def _beside(self, prefill: tuple[int, int], decodes: int, kv: float) -> float:
        if self._mixed is not None:
            point = (*prefill, decodes, kv)
            return self._lookup(self._mixed, point, "a prefill with decodes")
        self._warn(
            "attention: no step of a prefill with decodes was measured; the two are added up"
        )
        alone = self._lookup(self._prefill, prefill, "a prefill (chunk, context)")
        return alone + float(self.decode_times(decodes, np.array([kv]))[0]) - self._launch

    def _lookup(self, table: "_Table", point: Sequence[float], what: str) -> float:
        time, is_measured = table.at(point)
        if not is_measured:
            shown = ", ".join(f"{value:.0f}" for value in point)
            self._warn(
                f"attention: {what} of ({shown}) is beyond the measured {table.reach()}, or in a "
                "hole; extrapolated"
            )
        return time


def _pairs(prefill: tuple[int, int]) -> float:
    chunk, context = prefill
    return chunk * context + chunk * chunk / 2


class _Table:
    """A full grid over the points' coordinates, its holes filled, each axis continued far."""

    def __init__(self, points: dict[tuple[int, ...], float], *, scales: Sequence[bool]) -> None:
        columns = list(zip(*points, strict=True))
        axes = [np.array(sorted(set(column)), dtype=np.float64) for column in columns]
        grid = np.full([len(axis) for axis in axes], np.nan)
        places = [{int(value): i for i, value in enumerate(axis)} for axis in axes]
        for key, time in points.items():
            grid[tuple(place[value] for place, value in zip(places, key, strict=True))] = time
        measured = ~np.isnan(grid)
        order = [2, 3, 1, 0] if len(axes) == 4 else [0, 1]
        _fill(grid, axes, order)
        for i, axis in enumerate(axes):
            moved = np.moveaxis(grid, i, -1)
            longer, times = continued(axis, moved)
            grid = np.moveaxis(times, -1, i)
            pad = [(0, int(j == i)) for j in range(len(axes))]
            measured = np.pad(measured, pad, constant_values=False)
            axes[i] = longer
        self.axes = axes
        self._lists = [axis.tolist() for axis in axes]
        self._grid = grid
        self._measured = measured
        self._scales = scales

    def at(self, point: Sequence[float]) -> tuple[float, bool]:
        """The time at a point, and whether every corner it comes from was measured."""
        corners: list[list[tuple[int, float]]] = []
        for values, value in zip(self._lists, point, strict=True):
            corners.append(_bracket(values, value))
        is_measured = all(
            self._measured[tuple(i for i, _ in corner)] for corner in product(*corners)
        )
        if not self._scales[0]:
            return self._linear(corners), is_measured
        outer = corners[0]
        times = [self._linear([[(i, 1.0)], *corners[1:]]) for i, _ in outer]
        if len(outer) == 1:
            return times[0], is_measured
        low, high = (self._lists[0][i] for i, _ in outer)
        if high == FAR:
            weight = outer[1][1]
            return times[0] * (1 - weight) + times[1] * weight, is_measured
        share = float(np.log(point[0] / low) / np.log(high / low))
        return float(times[0] ** (1 - share) * times[1] ** share), is_measured

    def _linear(self, corners: list[list[tuple[int, float]]]) -> float:
        total = 0.0
        for corner in product(*corners):
            weight = 1.0
            for _, share in corner:
                weight *= share
            total += weight * float(self._grid[tuple(i for i, _ in corner)])
        return total

    def row(self, first: int) -> tuple[NDArray[np.float64], bool]:
        """Of a table of two axes: the times along the second at a value of the first."""
        corners = _bracket(self._lists[0], first)
        row = sum(share * self._grid[i] for i, share in corners)
        is_measured = all(bool(self._measured[i, :-1].all()) for i, _ in corners)
        return np.asarray(row, dtype=np.float64), is_measured

    def reach(self) -> str:
        return " x ".join(f"{axis[0]:.0f}-{axis[-2]:.0f}" for axis in self.axes)


def _bracket(values: list[float], value: float) -> list[tuple[int, float]]:
    """The neighbours of a value on an axis, and their shares; one where it is on a point."""
    if value <= values[0]:
        return [(0, 1.0)]
    right = bisect_right(values, value)
    left = right - 1
    if values[left] == value:
        return [(left, 1.0)]
    share = (value - values[left]) / (values[right] - values[left])
    return [(left, 1.0 - share), (right, share)]


def _fill(
    grid: NDArray[np.float64], axes: Sequence[NDArray[np.float64]], order: Sequence[int]
) -> None:
    """Fills the holes of a grid in place, line by line along each axis in turn."""
    for axis in (*order, *order):
        if not np.isnan(grid).any():
            return
        moved = np.moveaxis(grid, axis, -1)
        for index in np.ndindex(*moved.shape[:-1]):
            line = moved[index]
            known = ~np.isnan(line)
            if known.any() and not known.all():
                x, y = continued(axes[axis][known], line[known])
                line[~known] = np.interp(axes[axis][~known], x, y)
