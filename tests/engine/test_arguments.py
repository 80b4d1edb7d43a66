import pytest

from tests.standin.fake import fake_environment
from vllm_slo.engine import find, probe
from vllm_slo.engine.arguments import asked_arguments, to_argv
from vllm_slo.errors import SettingsError
from vllm_slo.settings import Settings


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    return probe(find(fake_environment(folder / "engine").python), cache_dir=folder)


@pytest.fixture(scope="module")
def known_of_old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    fake = fake_environment(folder / "engine", version="0.8.5", old_arguments=True)
    return probe(find(fake.python), cache_dir=folder)


def argv(settings, known, **defaults):
    return to_argv(asked_arguments(settings, known, defaults=defaults), known)


def test_nothing_asked_is_nothing_given(known):
    assert [] == argv(Settings(), known)


def test_switches_have_two_forms_and_values_one(known):
    settings = Settings(
        enable_chunked_prefill=True,
        enable_prefix_caching=False,
        max_num_seqs=3,
        extra={"gpu_memory_utilization": 0.5},
    )
    assert [
        "--max-num-seqs",
        "3",
        "--enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--gpu-memory-utilization",
        "0.5",
    ] == argv(settings, known)


def test_a_mapping_is_given_as_json(known):
    settings = Settings(extra={"compilation_config": {"mode": 3, "a": [1]}})
    assert ["--compilation-config", '{"a": [1], "mode": 3}'] == argv(settings, known)


def test_unlimited_batched_tokens_are_seqs_times_length(known):
    settings = Settings(max_num_seqs=64, max_num_batched_tokens="unlimited", max_model_len=2048)
    assert ["--max-num-batched-tokens", "131072"] == argv(settings, known)[2:4]
    settings = Settings(max_num_batched_tokens="unlimited")
    assert ["--max-num-batched-tokens", "800"] == argv(
        settings, known, max_num_seqs=8, max_model_len=100
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            Settings(preemption="swap"),
            r'preemption="swap": vLLM 0\.32\.0 has no swapping; V1 recomputes',
        ),
        (
            Settings(extra={"preemption_mode": "swap"}),
            r"preemption_mode: vLLM 0\.32\.0 has no such argument; gone with the V0 engine",
        ),
        (
            Settings(extra={"num_scheduler_steps": 8}),
            r"num_scheduler_steps: .* gone since about 0\.10: use async_scheduling",
        ),
        (
            Settings(extra={"max_num_partial_prefills": 2}),
            r"max_num_partial_prefills: .* use long_prefill_token_threshold",
        ),
        (Settings(extra={"max_lora": 2}), r"max_lora: .* did you mean max_loras"),
        (
            Settings(extra={"disable_prefix_caching": True}),
            r"disable_prefix_caching: .* did you mean enable_prefix_caching\?",
        ),
        (Settings(extra={"qqqq": 2}), r"qqqq: .*\nlist what it has: vllm-slo engine probe"),
        (Settings(extra={"port": 80}), r"port: the launcher sets it itself"),
        (Settings(extra={"api_key": "x"}), r"api_key: the launcher sets it itself"),
        (Settings(extra={"hf_token": "x"}), r"hf_token: .* set HF_TOKEN instead"),
        (
            Settings(extra={"gpu_memory_utilization": "much"}),
            r"gpu_memory_utilization must be a number in vLLM 0\.32\.0, not 'much'",
        ),
        (Settings(extra={"seed": 1.5}), r"seed must be a whole number .* not 1\.5"),
        (Settings(extra={"seed": True}), r"seed must be a whole number .* not True"),
        (Settings(extra={"enforce_eager": 1}), r"enforce_eager must be true or false"),
        (Settings(extra={"load_format": 3}), r"load_format must be text"),
        (Settings(extra={"compilation_config": "{mode"}), r"compilation_config must be JSON"),
        (
            Settings(max_num_batched_tokens="unlimited"),
            r"max_num_seqs x max_model_len: set max_num_seqs too",
        ),
    ],
    ids=str,
)
def test_what_this_version_does_not_take_is_refused_by_name(known, settings, message):
    with pytest.raises(SettingsError, match=message):
        argv(settings, known)


def test_a_version_that_has_swapping_is_asked_for_it(known_of_old):
    settings = Settings(preemption="swap", extra={"swap_space": 8})
    assert ["--swap-space", "8", "--preemption-mode", "swap"] == argv(settings, known_of_old)


def test_a_choice_is_checked_where_the_engine_lists_them(known_of_old):
    policy = known_of_old.arguments["scheduling_policy"]
    assert ("fcfs", "priority") == policy.choices
