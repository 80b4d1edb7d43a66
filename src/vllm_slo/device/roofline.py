"""`RooflineModel`: the time of a step in closed form, from eleven coefficients."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vllm_slo.device.step import Step

_COUNT = np.arange(4096, dtype=np.float64)
_COUNT.flags.writeable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineModel:
    """A device and model as a smoothed roofline. Every coefficient is in milliseconds.

    With n tokens in the step, R sampled rows, C the summed context of the decodes, and (k, c) the
    chunk and prior context of each prefill::

        T = host + sqrt(weights^2 + (token n)^2) + fixed + activation n + max(head, head_row R)
          + [any decode] decode + kv C
          + sum over prefills (prefill_token k + prefill_pair (k c + k^2 / 2))

    `host` is the host's time between two steps (T0), `weights` the reading of the layers' weights
    (what a step costs however small), `token` the matrix products of one token, `head` the reading
    of the LM head, `kv` the reading of one context token's keys and values.

    The root of squares smooths the corner where reading the weights and multiplying by them take
    equally long; a real device's curve is a staircase around it.
    """

    host: float
    weights: float
    token: float
    activation: float
    kv: float
    fixed: float = 0.4
    head: float = 0.65
    head_row: float = 0.004
    decode: float = 0.45
    prefill_token: float = 1.45e-3
    prefill_pair: float = 2.75e-6

    @property
    def warnings(self) -> list[str]:
        """Always empty: a formula has no edge to be outside of."""
        return []

    def step_ms(self, step: Step) -> float:
        """The time of one step, in milliseconds."""
        tokens = step.decodes
        prefill = 0.0
        for chunk, context in step.prefills:
            tokens += chunk
            prefill += self.prefill_token * chunk
            prefill += self.prefill_pair * (chunk * context + chunk * chunk / 2)
        ms = self._dense_ms(tokens, step.sampled)
        if step.decodes:
            ms += self.decode + self.kv * step.decode_context
        return ms + prefill

    def decode_run_ms(
        self, *, decodes: int, decode_context: int, steps: int
    ) -> NDArray[np.float64]:
        """The times of `steps` successive pure decode steps, shape (steps,), in milliseconds."""
        counted = _COUNT[:steps] if steps <= len(_COUNT) else np.arange(steps, dtype=np.float64)
        ms: NDArray[np.float64] = counted * decodes
        ms += decode_context
        ms *= self.kv
        ms += self.decode
        ms += self._dense_ms(decodes, decodes)
        return ms

    def _dense_ms(self, tokens: int, rows: int) -> float:
        products = math.hypot(self.weights, self.token * tokens)
        head = self.head_row * rows
        if head < self.head:
            head = self.head
        return self.host + products + self.fixed + self.activation * tokens + head
