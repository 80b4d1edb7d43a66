"""A roofline fitted to measured steps, and the file it is read from and written to."""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vllm_slo.device import RooflineModel, Step, device_model, kv_blocks
from vllm_slo.device.calibrate import calibrate
from vllm_slo.device.commands import register
from vllm_slo.device.measured import MeasuredStep, read_steps
from vllm_slo.errors import ProfileError

TRUE = RooflineModel(
    host=1.2,
    weights=6.1,
    token=0.024,
    activation=0.0028,
    kv=5e-5,
    decode=0.3,
    prefill_token=8e-4,
    prefill_pair=1.2e-6,
)
BASE = device_model("a100-80gb")
assert isinstance(BASE, RooflineModel)


def steps_of(
    model: RooflineModel, *, count: int = 400, noise: float = 0.0, prefill_share: float = 0.6
) -> list[MeasuredStep]:
    rng = np.random.default_rng(5)
    steps = []
    for _ in range(count):
        decodes = int(rng.integers(0, 256))
        prefills: list[tuple[int, int]] = []
        if prefill_share and (rng.random() < prefill_share or not decodes):
            prior = (0, int(rng.integers(0, 8000)))
            prefills = [(int(rng.integers(16, 2048)), int(rng.choice(prior)))]
        decodes = decodes or int(not prefills)
        step = Step(
            decodes=decodes,
            decode_context=int(decodes * rng.integers(50, 4000)),
            prefills=prefills,
            sampled=decodes + len(prefills),
        )
        ms = model.step_ms(step) * (1 + noise * rng.standard_normal())
        steps.append(MeasuredStep(step=step, ms=ms))
    return steps


def test_exact_times_give_the_exact_coefficients_back() -> None:
    fitted = calibrate(steps_of(TRUE), base=BASE)
    assert fitted.undetermined == ()
    for name in RooflineModel.__slots__:
        assert getattr(fitted.model, name) == pytest.approx(getattr(TRUE, name), rel=1e-4), name
    assert fitted.max_error < 1e-6


def test_what_the_fit_predicts_is_what_the_model_answers() -> None:
    steps = steps_of(TRUE, noise=0.02)
    fitted = calibrate(steps, base=BASE)
    errors = [abs(fitted.model.step_ms(s.step) / s.ms - 1) for s in steps]
    assert fitted.median_error == pytest.approx(np.median(errors))
    assert fitted.p95_error == pytest.approx(np.quantile(errors, 0.95))
    assert fitted.max_error == pytest.approx(max(errors))


def test_noisy_times_give_coefficients_within_their_standard_errors() -> None:
    fitted = calibrate(steps_of(TRUE, count=3000, noise=0.01), base=BASE)
    for name in ("weights", "token", "kv", "prefill_pair"):
        off = abs(getattr(fitted.model, name) - getattr(TRUE, name))
        # What is held at the base's values shifts the others by more than their noise.
        assert off < 0.06 * getattr(TRUE, name), name
    assert abs(fitted.model.kv - TRUE.kv) < 4 * fitted.standard_errors["kv"]


def test_decodes_alone_do_not_determine_prefills() -> None:
    steps = steps_of(TRUE, prefill_share=0.0)
    fitted = calibrate(steps, base=BASE)
    assert {"prefill_token", "prefill_pair"} <= set(fitted.undetermined)
    assert fitted.model.prefill_token == BASE.prefill_token
    assert fitted.model.prefill_pair == BASE.prefill_pair
    assert fitted.model.kv == pytest.approx(TRUE.kv, rel=1e-3)
    assert fitted.p95_error < 1e-3


def test_one_batch_size_does_not_determine_weights_apart_from_the_constant() -> None:
    steps = [
        MeasuredStep(step=s, ms=TRUE.step_ms(s))
        for s in (
            Step(decodes=32, decode_context=32 * context, sampled=32)
            for context in range(100, 2000, 20)
        )
    ]
    fitted = calibrate(steps, base=BASE)
    assert {"constant", "token", "activation", "decode"} <= set(fitted.undetermined)
    assert set(fitted.standard_errors) == {"weights", "kv"}
    assert fitted.model.kv == pytest.approx(TRUE.kv, rel=1e-6)
    assert fitted.max_error < 1e-6


def test_a_few_wild_times_do_not_bend_the_fit() -> None:
    steps = steps_of(TRUE, count=600)
    wild = [replace(s, ms=s.ms * 40) if i % 50 == 0 else s for i, s in enumerate(steps)]
    fitted = calibrate(wild, base=BASE)
    assert fitted.model.weights == pytest.approx(TRUE.weights, rel=0.02)
    assert fitted.model.token == pytest.approx(TRUE.token, rel=0.02)
    assert fitted.max_error > 0.9


def test_no_coefficient_is_fitted_below_zero() -> None:
    steps = steps_of(replace(TRUE, activation=0.0, prefill_token=0.0), noise=0.02)
    fitted = calibrate(steps, base=BASE)
    assert all(getattr(fitted.model, name) >= 0 for name in RooflineModel.__slots__)


def test_a_device_faster_than_the_base_in_every_part_is_fitted_too() -> None:
    fast = replace(TRUE, host=0.0, fixed=0.1, head=0.2, weights=1.0, decode=0.05)
    fitted = calibrate(steps_of(fast), base=BASE)
    assert fitted.p95_error < 0.02


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ProfileError, match="19 measured steps are too few: at least 20"):
        calibrate(steps_of(TRUE, count=19), base=BASE)


def write_steps(path: Path, steps: list[MeasuredStep]) -> None:
    lines = [
        json.dumps(
            {
                "decodes": s.step.decodes,
                "decode_context": s.step.decode_context,
                "prefills": s.step.prefills,
                "sampled": s.step.sampled,
                "ms": s.ms,
            }
        )
        for s in steps
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def command() -> Callable[..., int]:
    def run(*argv: str) -> int:
        parser = argparse.ArgumentParser()
        register(parser.add_subparsers())
        arguments = parser.parse_args(["calibrate", *argv])
        status: int = arguments.handler(arguments)
        return status

    return run


def test_the_command_writes_a_profile_that_stands_where_a_device_does(
    tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    steps, output = tmp_path / "steps.jsonl", tmp_path / "mine.toml"
    write_steps(steps, steps_of(TRUE))
    assert command(str(steps), "--output", str(output), "--device", "h100-80gb") == 0
    model = device_model(str(output))
    for step in (s.step for s in steps_of(TRUE, count=30)):
        assert model.step_ms(step) == pytest.approx(TRUE.step_ms(step), rel=0.005)
    assert kv_blocks(str(output)) == kv_blocks("h100-80gb")
    printed = capsys.readouterr().out
    assert "400 steps; relative error median 0.0" in printed
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_command_says_what_the_steps_do_not_determine(
    tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tmp_path / "steps.jsonl"
    write_steps(steps, steps_of(TRUE, prefill_share=0.0, noise=0.3))
    assert command(str(steps)) == 0
    printed = capsys.readouterr().out
    assert "The steps do not determine" in printed
    assert "prefill_pair" in printed
    assert "WARNING: p95 error above 10%" in printed


def test_csv_and_json_lines_are_the_same_steps(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(
        "decodes,decode_context,prefills,sampled,ms,note\n"
        '3,300,"[[512, 0], [16, 64]]",5,17.5,x\n'
        "1,20,[],1,11,y\n"
    )
    (tmp_path / "steps.jsonl").write_text(
        '{"decodes": 3, "decode_context": 300, "prefills": [[512, 0], [16, 64]], "sampled": 5, '
        '"ms": 17.5}\n\n'
        '{"decodes": 1, "decode_context": 20, "prefills": [], "sampled": 1, "ms": 11}\n'
    )
    assert read_steps(tmp_path / "steps.csv") == read_steps(tmp_path / "steps.jsonl")
    assert read_steps(tmp_path / "steps.csv")[0] == MeasuredStep(
        step=Step(decodes=3, decode_context=300, prefills=((512, 0), (16, 64)), sampled=5), ms=17.5
    )


GOOD = '{"decodes": 1, "decode_context": 20, "prefills": [], "sampled": 1, "ms": 11}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"jsonl:2: is not JSON"),
        ("[]", r"jsonl:2: expected an object with decodes"),
        (GOOD.replace('"ms": 11', '"us": 11'), r"jsonl:2: lacks ms"),
        (GOOD.replace("11}", "-1}"), r"jsonl:2: ms must be a number > 0, not -1"),
        (GOOD.replace("11}", "NaN}"), r"jsonl:2: ms must be a number > 0, not nan"),
        (GOOD.replace('"decodes": 1', '"decodes": 1.5'), r"jsonl:2: decodes must be a whole"),
        (GOOD.replace('"decodes": 1', '"decodes": true'), r"jsonl:2: decodes must be a whole"),
        (GOOD.replace("[]", "[[512]]"), r"jsonl:2: prefills must be pairs"),
        (GOOD.replace("[]", "[[512, -1]]"), r"jsonl:2: prefills must be pairs"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "steps.jsonl").write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ProfileError, match=message):
        read_steps(tmp_path / "steps.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("decodes,ms\n1,2\n", r"csv:2: lacks decode_context, prefills, sampled"),
        ("decodes,ms\n1\n", r"csv:2: not as many fields"),
        ("decodes,decode_context,prefills,sampled,ms\n1,2,x,1,4\n", r"csv:2: a field is not"),
    ],
)
def test_a_faulty_csv_row_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(ProfileError, match=message):
        read_steps(tmp_path / "steps.csv")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"nothing\.jsonl: cannot be read: No such file"):
        read_steps(tmp_path / "nothing.jsonl")
