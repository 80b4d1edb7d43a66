"""Devices by name and path: what is measured, what is derived, what fits, what is refused."""

import json
from pathlib import Path

import pytest

from vllm_slo.device import (
    RooflineModel,
    Step,
    device_limits,
    device_model,
    device_names,
    device_spec,
    kv_blocks,
    model_names,
    model_shape,
    provenance,
)
from vllm_slo.device.profiles import derived_roofline
from vllm_slo.errors import ProfileError

DECODE = Step(decodes=16, decode_context=16 * 512, sampled=16)
PREFILL = Step(prefills=[(2048, 0)], sampled=1)


def test_llama_3_8b_has_the_published_bytes() -> None:
    shape = model_shape("llama-3-8b")
    assert round(shape.layer_bytes / 1e9, 2) == 13.96
    assert round(shape.head_bytes / 1e9, 2) == 1.05
    assert shape.kv_bytes_per_token == 131_072


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.55),
        ("llama-3.2-1b", 1.24),
        ("llama-3.2-3b", 3.21),
        ("mistral-7b-v0.3", 7.25),
        ("qwen2.5-7b", 7.62),
        ("qwen2.5-14b", 14.77),
        ("qwen2.5-32b", 32.76),
        ("qwen3-8b", 8.19),
    ],
)
def test_shapes_amount_to_the_models_published_parameters(model: str, billions: float) -> None:
    assert model_shape(model).resident_bytes / 2e9 == pytest.approx(billions, abs=0.006)


def test_deriving_for_the_reference_gives_the_reference_back() -> None:
    derived = derived_roofline(device_spec("a100-80gb"), model_shape("llama-3-8b"))
    assert device_model("a100-80gb") == derived


def test_more_bandwidth_decodes_faster_and_more_operations_prefill_faster() -> None:
    a100, h100, h200 = (device_model(name) for name in ("a100-80gb", "h100-80gb", "h200-141gb"))
    assert a100.step_ms(DECODE) > h100.step_ms(DECODE) > h200.step_ms(DECODE)
    assert a100.step_ms(PREFILL) > 1.8 * h100.step_ms(PREFILL)
    assert h100.step_ms(PREFILL) == pytest.approx(h200.step_ms(PREFILL), rel=0.05)


def test_a_larger_model_takes_the_longer_by_its_weights() -> None:
    small = device_model("h100-80gb", model="llama-3-8b")
    large = device_model("h100-80gb", model="qwen2.5-32b")
    assert isinstance(small, RooflineModel)
    assert isinstance(large, RooflineModel)
    ratio = model_shape("qwen2.5-32b").layer_bytes / model_shape("llama-3-8b").layer_bytes
    assert large.weights / small.weights == pytest.approx(ratio)
    assert large.token / small.token == pytest.approx(ratio)


def test_every_device_times_every_model() -> None:
    for device in device_names():
        for model in model_names():
            assert 0 < device_model(device, model=model).step_ms(DECODE) < 1e4


@pytest.mark.parametrize("device", ["h100-80gb", "h200-141gb"])
def test_what_is_derived_says_so_and_names_its_data_sheet(device: str) -> None:
    found = provenance(device)
    assert found.kind == "derived"
    assert "NVIDIA" in found.source
    assert "assumed" in found.source


def test_what_is_measured_says_so() -> None:
    assert provenance("a100-80gb").kind == "measured"
    assert provenance("a100-80gb", model="qwen3-8b").kind == "derived"
    assert provenance("a100-80gb", model="llama-3.1-8b").kind == "measured"


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "shape:llama-3-8b", "meta-llama/Meta-Llama-3-8B-Instruct"]
)
def test_a_model_goes_by_any_of_its_names(name: str) -> None:
    assert model_shape(name) == model_shape("llama-3-8b")
    assert device_model("a100-80gb", model=name) == device_model("a100-80gb")


def test_a_model_may_be_a_folder_with_its_config(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_shape(str(tmp_path)) == model_shape("llama-3-8b")
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ProfileError, match=r"config\.json: lacks vocab_size"):
        model_shape(str(tmp_path))


def test_an_a100_holds_about_28_thousand_blocks_beside_llama_3_8b() -> None:
    assert 28_000 <= kv_blocks("a100-80gb") <= 29_000


def test_blocks_scale_with_their_size_and_grow_with_utilisation() -> None:
    assert kv_blocks("a100-80gb", block_size=32) == kv_blocks("a100-80gb") // 2
    assert kv_blocks("a100-80gb", utilisation=0.95) > kv_blocks("a100-80gb", utilisation=0.9)


def test_weights_that_do_not_fit_are_refused_with_the_sizes() -> None:
    with pytest.raises(ProfileError, match=r"no room for a KV cache: 131\.\d GiB of weights"):
        kv_blocks("a100-80gb", model="llama-3-70b")


@pytest.mark.parametrize("arguments", [{"utilisation": 0.0}, {"utilisation": 92.0}])
def test_a_utilisation_that_is_no_share_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ProfileError, match="gpu_memory_utilization must be in"):
        kv_blocks("a100-80gb", **arguments)  # type: ignore[arg-type]


def test_no_decode_is_faster_than_reading_the_weights_once() -> None:
    limits = device_limits("a100-80gb")
    assert limits.min_tpot_ms == pytest.approx((13.959 + 1.0507) / 2.039, rel=1e-3)
    assert limits.output_tok_s(max_num_seqs=8) == pytest.approx(1087, abs=1)
    for device in device_names():
        for model in ("llama-3-8b", "llama-3.2-1b", "qwen2.5-32b"):
            fastest = device_model(device, model=model, scheduling="async").step_ms(
                Step(decodes=1, decode_context=1, sampled=1)
            )
            assert fastest > device_limits(device, model=model).min_tpot_ms


def test_throughput_is_bound_by_operations_when_sequences_are_many() -> None:
    limits = device_limits("a100-80gb")
    assert limits.output_tok_s(max_num_seqs=10**6) == limits.max_decode_tok_s


def test_an_unknown_device_lists_those_that_exist() -> None:
    with pytest.raises(ProfileError, match=r"no device named 'a1000'.*a100-80gb, .*h200-141gb"):
        device_model("a1000")


def test_an_unknown_model_lists_those_that_exist() -> None:
    with pytest.raises(ProfileError, match=r"no model named 'gpt-9'.*llama-3-8b"):
        device_model("h100-80gb", model="gpt-9")


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(ProfileError, match="no such device profile"):
        device_model("./nothing.toml")


GOOD = 'device = "a100-80gb"\n[roofline]\nhost = 1.0\nweights = 9\ntoken = 0.05\n'
GOOD += "activation = 0.004\nkv = 8e-5\n"


def test_a_profile_file_stands_where_a_name_does(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    expected = RooflineModel(host=1.0, weights=9.0, token=0.05, activation=0.004, kv=8e-5)
    assert device_model(str(path)) == expected
    assert kv_blocks(str(path)) == kv_blocks("a100-80gb")
    assert provenance(str(path)).kind == "measured"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[roofline\n", r"mine\.toml: cannot be read as TOML: .*line 1"),
        ("", r"mine\.toml: has no \[roofline\] table"),
        (GOOD.replace("weights = 9\n", ""), r"\[roofline\]: lacks weights"),
        (GOOD + "weight = 3\n", r"\[roofline\]: unknown weight; coefficients are host, weights"),
        (GOOD.replace("= 9", "= -9"), r"weights must be a number of milliseconds >= 0, not -9"),
        (GOOD.replace("= 9", "= nan"), r"weights must be a number of milliseconds >= 0, not nan"),
        (GOOD.replace("= 9", "= '9'"), r"weights must be a number of milliseconds >= 0, not '9'"),
        (GOOD.replace('"a100-80gb"', "100"), r"device must be a name in quotes, not 100"),
    ],
)
def test_a_faulty_profile_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        device_model(str(path))


def test_a_profile_that_names_no_device_has_times_but_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.removeprefix('device = "a100-80gb"\n'))
    assert device_model(str(path)).step_ms(DECODE) > 9
    with pytest.raises(ProfileError, match="does not say which device it is of"):
        kv_blocks(str(path))
