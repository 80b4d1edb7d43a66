"""A run as JSON and back: nothing lost but half a microsecond, no secret kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

from vllm_slo.errors import SloError
from vllm_slo.measure import (
    ClientFacts,
    EmulationFacts,
    GpuFacts,
    run_from_dict,
    run_to_dict,
    summarise,
    validate,
)
from vllm_slo.settings import Settings
from vllm_slo.traffic import uniform


def there_and_back(run):
    return run_from_dict(json.loads(json.dumps(run_to_dict(run), allow_nan=False)))


def test_a_run_comes_back_as_it_was(random_run):
    found = there_and_back(random_run)
    assert (found.settings, found.engine) == (random_run.settings, random_run.engine)
    assert found.workload.name == random_run.workload.name
    assert found.workload.params == random_run.workload.params
    before, after = summarise(random_run), summarise(found)
    for metric, latency in before.latencies.items():
        assert after.latencies[metric].values_ms == pytest.approx(latency.values_ms, abs=0.0021)
        assert after.latencies[metric].without == latency.without
    assert after.failures == before.failures
    assert after.output_tok_s == pytest.approx(before.output_tok_s, rel=1e-5)
    assert [r.class_name for r in found.records] == [r.class_name for r in random_run.records]
    assert [r.event_tokens is None for r in found.records] == [
        r.event_tokens is None for r in random_run.records
    ]
    assert run_to_dict(found) == run_to_dict(random_run)


def test_facts_and_warnings_come_back(record, run_of):
    gpu = GpuFacts(
        samples=1,
        memory_used_mib_max=1.5,
        sm_utilisation_percent=2.5,
        sm_clock_mhz_min=3.5,
        sm_clock_mhz_max=4.5,
        power_w_mean=5.5,
        throttle_reasons=("sw_power_cap",),
        foreign_pids=(7, 8),
    )
    run = run_of(
        [record(at=0.25, first_answer_event_s=0.5, queued_s=0.01, preemptions=2)],
        workload=uniform(concurrency=3, seed=5),
        settings=Settings(max_num_seqs=8, extra={"kv_cache_dtype": "fp8", "seed": 3}),
        gpu=gpu,
        client=ClientFacts(send_lag_p99_s=0.001, offered_rps=5.0, warmup_requests=9),
        emulation=EmulationFacts(steps=5, overruns=1),
        warnings=("something",),
    )
    found = there_and_back(run)
    one, was = found.rounds[0], run.rounds[0]
    assert (one.gpu, one.client, one.emulation) == (was.gpu, was.client, was.emulation)
    assert (one.server, one.warnings, one.seed) == (was.server, was.warnings, was.seed)
    assert found.settings == run.settings
    assert (found.workload.concurrency, found.workload.seed) == (3, 5)
    again = found.records[0]
    assert (again.first_answer_event_s, again.queued_s, again.preemptions) == (0.5, 0.01, 2)


def test_rounding_keeps_times_in_order(record, run_of):
    rng = np.random.default_rng(3)
    records = [
        record(at=float(at), ttft=1e-7, gaps=rng.random(50) * 1e-6) for at in rng.random(200)
    ]
    run = run_of(sorted(records, key=lambda r: r.scheduled_s))
    assert "time order" not in [one.check for one in validate(there_and_back(run))]


def test_the_plan_that_comes_back_has_lengths_and_starts(record, run_of):
    run = run_of([record(at=0.5), record(at=1.5, gaps=(0.1,))])
    plan = there_and_back(run).workload.requests
    assert [(p.arrival_s, p.input_tokens, p.output_tokens) for p in plan] == [
        (0.5, 10, 4),
        (1.5, 10, 2),
    ]


def test_no_secret_is_written(record, run_of):
    secrets = {"api_key": "sk-1", "hf_token": "hf-1", "ssl_keyfile_password": "pw-1"}
    run = run_of([record()], settings=Settings(max_num_batched_tokens=512, extra=secrets))
    engine = replace(run.engine, config=(("api_key", "sk-2"), ("max_model_len", 4096)))
    written = run_to_dict(replace(run, engine=engine))
    text = json.dumps(written)
    assert not [secret for secret in (*secrets.values(), "sk-2") if secret in text]
    assert written["settings"]["max_num_batched_tokens"] == 512
    assert written["engine"]["config"]["max_model_len"] == 4096


def test_figures_that_json_does_not_have_become_null(record, run_of):
    run = run_of([record()], client=ClientFacts(offered_rps=float("inf")))
    assert there_and_back(run).rounds[0].client.offered_rps is None


def test_an_unknown_format_is_refused(random_run):
    with pytest.raises(SloError, match="format 99 cannot be read"):
        run_from_dict(run_to_dict(random_run) | {"format": 99})
    with pytest.raises(SloError, match="format None"):
        run_from_dict({})


@pytest.mark.parametrize("key", ["workload", "settings", "engine", "rounds"])
@pytest.mark.parametrize("value", [None, 3, [1]])
def test_a_malformed_run_is_refused(random_run, key, value):
    with pytest.raises(SloError, match="a recorded run is malformed"):
        run_from_dict(run_to_dict(random_run) | {key: value})


def test_a_missing_key_is_named(random_run):
    written = run_to_dict(random_run)
    del written["rounds"][1]["records"][0]["event_us"]
    with pytest.raises(SloError, match="malformed: KeyError 'event_us'"):
        run_from_dict(written)
