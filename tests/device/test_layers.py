"""A step composed of measured layer times, on a made-up GPU whose true times are known."""

import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from vllm_slo.device import LayerProfile, Step, device_model
from vllm_slo.errors import ProfileError

LAYERS = 4
MODEL = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
# True microseconds of each layer at n tokens (dense) or rows (per sequence).
DENSE: dict[str, Callable[[int], float]] = {
    "embedding": lambda n: 2 + 0.01 * n,
    "layernorm": lambda n: 3 + 0.02 * n,
    "qkv_proj": lambda n: 50 + 0.3 * n,
    "rotary_emb": lambda n: 2 + 0.01 * n,
    "o_proj": lambda n: 40 + 0.2 * n,
    "gate_up_proj": lambda n: 200 + 1.4 * n,
    "act_fn": lambda n: 3 + 0.08 * n,
    "down_proj": lambda n: 100 + 0.7 * n,
    "final_layernorm": lambda n: 3 + 0.02 * n,
}
PER_SEQUENCE: dict[str, Callable[[int], float]] = {
    "lm_head": lambda r: 1000 + 2.0 * r,
    "sampler": lambda r: 20 + 1.0 * r,
}
TOKENS = (1, 2, 4, 8, 16, 64, 128, 512, 1024)
ROWS = (1, 2, 8, 32, 64)
CHUNKS, CONTEXTS = (16, 64, 256, 1024), (0, 16, 128, 1024)
DECODES, KV = (1, 4, 16, 64), (16, 128, 1024)
LAUNCH = 10.0


def attention(chunk: int, context: float, decodes: int, kv: float) -> float:
    """True attention of one layer, in the forms the interpolation is exact for on the grid."""
    return LAUNCH + 2e-4 * chunk * context + 0.02 * decodes * kv + 1e-4 * chunk**2


def points() -> Iterable[tuple[int, int, int, int]]:
    yield from ((0, 0, n, kv) for n, kv in product(DECODES, KV))
    yield from ((k, c, 0, 0) for k, c in product(CHUNKS, CONTEXTS))
    yield from product(CHUNKS, CONTEXTS, DECODES, KV)


def write_profile(folder: Path, *, leave_out: Callable[..., bool] = lambda *_: False) -> Path:
    (folder / "model.json").write_text(json.dumps(MODEL))
    dense = [f"{name},{n},{true(n)}" for name, true in DENSE.items() for n in TOKENS]
    rows = [f"{name},{r},{true(r)}" for name, true in PER_SEQUENCE.items() for r in ROWS]
    kept = (point for point in points() if not leave_out(*point))
    grid = [",".join(map(str, (*point, attention(*point)))) for point in kept]
    _csv(folder / "dense.csv", "layer,tokens,time_us", dense)
    _csv(folder / "per_sequence.csv", "layer,sequences,time_us", rows)
    header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    _csv(folder / "attention.csv", header, grid)
    return folder


def _csv(path: Path, header: str, lines: list[str]) -> None:
    path.write_text("\n".join([header, *lines]) + "\n")


def outside_attention_ms(tokens: int, rows: int) -> float:
    per_step = ("embedding", "final_layernorm")
    block = sum(true(tokens) for name, true in DENSE.items() if name not in per_step)
    block += DENSE["layernorm"](tokens)  # a block has two
    once = DENSE["embedding"](tokens) + DENSE["final_layernorm"](tokens)
    return (LAYERS * block + once + sum(true(rows) for true in PER_SEQUENCE.values())) / 1e3


@pytest.fixture
def profile(tmp_path: Path) -> LayerProfile:
    model = device_model(str(write_profile(tmp_path)), scheduling="async")
    assert isinstance(model, LayerProfile)
    return model


def kernels_ms(profile: LayerProfile, step: Step) -> float:
    return profile.step_ms(step) - profile.host


def test_a_decode_step_is_the_sum_of_its_layers(profile: LayerProfile) -> None:
    step = Step(decodes=10, decode_context=10 * 500, sampled=10)
    expected = outside_attention_ms(10, 10) + LAYERS * attention(0, 0, 10, 500) / 1e3
    assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)
    assert profile.warnings == []


@pytest.mark.parametrize(("chunk", "context"), [(256, 0), (256, 700), (1024, 1024), (16, 16)])
def test_a_prefill_step_is_the_sum_of_its_layers(
    profile: LayerProfile, chunk: int, context: int
) -> None:
    step = Step(prefills=[(chunk, context)], sampled=1)
    expected = outside_attention_ms(chunk, 1) + LAYERS * attention(chunk, context, 0, 0) / 1e3
    assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)


def test_a_chunk_between_measured_ones_follows_a_power_law(profile: LayerProfile) -> None:
    low, high = (attention(chunk, 0, 0, 0) for chunk in (256, 1024))
    step = Step(prefills=[(512, 0)], sampled=1)
    expected = outside_attention_ms(512, 1) + LAYERS * (low * high) ** 0.5 / 1e3
    assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)


def test_a_prefill_beside_decodes_is_looked_up_as_one(profile: LayerProfile) -> None:
    step = Step(decodes=8, decode_context=8 * 600, prefills=[(256, 500)], sampled=8)
    expected = outside_attention_ms(264, 8) + LAYERS * attention(256, 500, 8, 600) / 1e3
    assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)


def test_several_prefills_share_one_launch(profile: LayerProfile) -> None:
    step = Step(prefills=[(64, 128), (256, 0), (64, 0)], sampled=3)
    each = [attention(64, 128, 0, 0), attention(256, 0, 0, 0), attention(64, 0, 0, 0)]
    # The shortest measured attention stands for a launch.
    launch = min(attention(*point) for point in points())
    expected = outside_attention_ms(384, 3) + LAYERS * (sum(each) - 2 * launch) / 1e3
    assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)


def test_the_order_of_prefills_does_not_matter(profile: LayerProfile) -> None:
    forth = Step(decodes=2, decode_context=90, prefills=[(64, 0), (256, 16), (80, 3)], sampled=2)
    back = Step(decodes=2, decode_context=90, prefills=[(80, 3), (256, 16), (64, 0)], sampled=2)
    assert profile.step_ms(forth) == profile.step_ms(back)


@pytest.mark.parametrize(("decodes", "context"), [(1, 1), (3, 100), (64, 900), (200, 1500)])
def test_a_run_of_decodes_equals_its_steps(
    profile: LayerProfile, decodes: int, context: int
) -> None:
    run = profile.decode_run_ms(decodes=decodes, decode_context=decodes * context, steps=300)
    steps = [
        profile.step_ms(
            Step(decodes=decodes, decode_context=decodes * (context + i), sampled=decodes)
        )
        for i in range(300)
    ]
    assert run.shape == (300,)
    np.testing.assert_array_equal(run, steps)


def test_a_run_of_no_steps_is_empty(profile: LayerProfile) -> None:
    assert profile.decode_run_ms(decodes=2, decode_context=9, steps=0).shape == (0,)


def test_beyond_the_measured_points_the_trend_goes_on_and_says_so_once_a_kind(
    profile: LayerProfile,
) -> None:
    for _ in range(3):
        step = Step(decodes=128, decode_context=128 * 4096, sampled=128)
        expected = outside_attention_ms(128, 128) + LAYERS * attention(0, 0, 128, 4096) / 1e3
        assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)
        step = Step(prefills=[(1024, 0), (1024, 0)], sampled=2)
        each = attention(1024, 0, 0, 0)
        launch = min(attention(*point) for point in points())
        expected = outside_attention_ms(2048, 2) + LAYERS * (2 * each - launch) / 1e3
        assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)
    assert [warning.split(":")[0] for warning in profile.warnings] == [
        "attention",
        "per_sequence",
        "dense",
    ]
    assert all("extrapolated" in warning for warning in profile.warnings)


def test_two_models_of_one_profile_share_no_warnings(tmp_path: Path) -> None:
    folder = str(write_profile(tmp_path))
    first, second = device_model(folder), device_model(folder)
    first.step_ms(Step(prefills=[(5000, 0)], sampled=1))
    assert first.warnings
    assert second.warnings == []


def test_a_hole_is_filled_along_the_decodes_and_said(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, leave_out=lambda k, c, n, kv: k > 0 and n == 64)
    profile = LayerProfile.read(folder, scheduling="async")
    step = Step(decodes=64, decode_context=64 * 128, prefills=[(256, 128)], sampled=64)
    expected = outside_attention_ms(320, 64) + LAYERS * attention(256, 128, 64, 128) / 1e3
    assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)
    assert len(profile.warnings) == 1
    assert "in a hole" in profile.warnings[0]


def test_without_mixed_points_the_two_kinds_add_up(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, leave_out=lambda k, c, n, kv: k > 0 and n > 0)
    profile = LayerProfile.read(folder, scheduling="async")
    step = Step(decodes=4, decode_context=4 * 128, prefills=[(256, 16)], sampled=4)
    launch = min(attention(*point) for point in points())
    both = attention(256, 16, 0, 0) + attention(0, 0, 4, 128) - launch
    expected = outside_attention_ms(260, 4) + LAYERS * both / 1e3
    assert kernels_ms(profile, step) == pytest.approx(expected, rel=1e-9)
    assert "added up" in profile.warnings[0]


def test_a_staircase_goes_on_with_its_slope_and_not_with_its_last_step(tmp_path: Path) -> None:
    folder = write_profile(tmp_path)
    stairs = [f"down_proj,{n},{100 * -(-n // 256)}" for n in range(16, 2049, 16)]
    _csv(folder / "dense.csv", "layer,tokens,time_us", stairs)
    profile = LayerProfile.read(folder)

    def at(tokens: int) -> float:
        alone = Step(prefills=[(16, 0)] * (tokens // 16), sampled=1)
        return profile._outside_attention_ms(alone.tokens, 1)

    assert at(4096) - at(2048) == pytest.approx(LAYERS * 800 / 1e3, rel=0.01)


def test_an_unknown_layer_counts_once_per_block_and_is_named(tmp_path: Path) -> None:
    folder = write_profile(tmp_path)
    before = LayerProfile.read(folder).step_ms(Step(decodes=1, decode_context=16, sampled=1))
    with (folder / "dense.csv").open("a") as file:
        file.write("".join(f"moe_router,{n},1000\n" for n in TOKENS))
    profile = LayerProfile.read(folder)
    after = profile.step_ms(Step(decodes=1, decode_context=16, sampled=1))
    assert after - before == pytest.approx(LAYERS * 1.0)
    assert profile.warnings == ["dense: moe_router: not a known layer; taken to run once per block"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("dense.csv", "qkv_proj,4,", "qkv_proj,four,", r"dense\.csv:22: tokens must be a whole"),
        ("dense.csv", "qkv_proj,4,51.2", "qkv_proj,4,-1", r"dense\.csv:22: time_us must be a n"),
        ("dense.csv", "qkv_proj,4,51.2", "qkv_proj,4,nan", r"dense\.csv:22: .*not 'nan'"),
        ("dense.csv", "qkv_proj,4,51.2", "qkv_proj,4", r"dense\.csv:22: 2 fields"),
        ("dense.csv", "qkv_proj,4,", "qkv_proj,2,", r"dense\.csv:22: the same point as in line 21"),
        ("dense.csv", "tokens", "n", r"dense\.csv:1: lacks the column tokens"),
        ("per_sequence.csv", "sampler,8", "sampler,-8", r"per_sequence\.csv:9: sequences must be"),
        ("attention.csv", "time_us", "us", r"attention\.csv:1: lacks the column time_us"),
        ("model.json", '"num_hidden_layers": 4', '"num_hidden_layers": 0', r"model\.json: .*laye"),
        ("model.json", "{", "", r"model\.json: cannot be read"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(
    tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    path = write_profile(tmp_path) / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ProfileError, match=message):
        LayerProfile.read(tmp_path)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    folder = write_profile(tmp_path)
    (folder / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n")
    with pytest.raises(ProfileError, match=r"attention\.csv: has no rows"):
        LayerProfile.read(folder)
    (folder / "attention.csv").unlink()
    with pytest.raises(ProfileError, match=r"attention\.csv: cannot be read: No such file"):
        LayerProfile.read(folder)


def test_a_grid_without_decodes_is_refused(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, leave_out=lambda k, c, n, kv: k == 0)
    with pytest.raises(ProfileError, match="no measured point with prefill_chunk = 0"):
        LayerProfile.read(folder)
