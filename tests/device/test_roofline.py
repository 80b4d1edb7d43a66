"""The roofline formula, its coefficient sets and what is derived from them."""

import math

import numpy as np
import pytest

from vllm_slo.device import RooflineModel, Step, device_model

UNEVEN = RooflineModel(
    host=1.0,
    weights=3.0,
    token=0.1,
    activation=0.01,
    kv=2e-4,
    fixed=0.3,
    head=0.5,
    head_row=0.02,
    decode=0.7,
    prefill_token=1e-3,
    prefill_pair=1e-6,
)


def test_step_is_the_formula_term_by_term() -> None:
    step = Step(decodes=30, decode_context=9000, prefills=[(400, 0), (100, 700)], sampled=31)
    expected = (
        1.0
        + math.sqrt(3.0**2 + (0.1 * 530) ** 2)
        + 0.3
        + 0.01 * 530
        + max(0.5, 0.02 * 31)
        + 0.7
        + 2e-4 * 9000
        + (1e-3 * 400 + 1e-6 * (400 * 400 / 2))
        + (1e-3 * 100 + 1e-6 * (100 * 700 + 100 * 100 / 2))
    )
    assert UNEVEN.step_ms(step) == pytest.approx(expected, rel=1e-12)


def test_a_step_without_decodes_pays_nothing_for_decodes() -> None:
    both = UNEVEN.step_ms(Step(decodes=1, decode_context=0, sampled=1))
    none = UNEVEN.step_ms(Step(prefills=[(1, 0)], sampled=1))
    assert both - none == pytest.approx(0.7 - 1e-3 - 1e-6 / 2)


@pytest.mark.parametrize(
    ("step", "expected_ms"),
    [
        (Step(decodes=1, decode_context=1024, sampled=1), 11.7),
        (Step(decodes=64, decode_context=64 * 1024, sampled=64), 17.7),
        (Step(decodes=256, decode_context=256 * 512, sampled=256), 30.5),
        (Step(prefills=[(512, 0)], sampled=1), 33.5),
        (Step(prefills=[(2048, 0)], sampled=1), 127.5),
    ],
)
def test_a100_with_asynchronous_scheduling_takes_the_published_times(
    step: Step, expected_ms: float
) -> None:
    model = device_model("a100-80gb", scheduling="async")
    assert model.step_ms(step) == pytest.approx(expected_ms, abs=0.06)


def test_the_two_a100_sets_differ_where_their_sources_do() -> None:
    ours, vidur = device_model("a100-80gb"), device_model("a100-80gb-vidur")
    assert isinstance(ours, RooflineModel)
    assert isinstance(vidur, RooflineModel)
    assert (9.6, 0.0525, 0.0045, 8e-5) == (ours.weights, ours.token, ours.activation, ours.kv)
    assert (9.0, 0.0635, 0.0055, 8e-5) == (vidur.weights, vidur.token, vidur.activation, vidur.kv)


def test_synchronous_scheduling_shows_the_host() -> None:
    step = Step(decodes=8, decode_context=4096, sampled=8)
    sync = device_model("a100-80gb", scheduling="sync").step_ms(step)
    asynchronous = device_model("a100-80gb", scheduling="async").step_ms(step)
    assert sync - asynchronous == pytest.approx(1.25)


@pytest.mark.parametrize("decodes", [1, 7, 256, 1000])
def test_a_run_of_decodes_equals_its_steps(decodes: int) -> None:
    run = UNEVEN.decode_run_ms(decodes=decodes, decode_context=decodes * 513, steps=400)
    steps = [
        UNEVEN.step_ms(Step(decodes=decodes, decode_context=decodes * (513 + i), sampled=decodes))
        for i in range(400)
    ]
    assert run.shape == (400,)
    np.testing.assert_allclose(run, steps, rtol=1e-13)


def test_a_run_of_no_steps_is_empty() -> None:
    assert UNEVEN.decode_run_ms(decodes=3, decode_context=30, steps=0).shape == (0,)
