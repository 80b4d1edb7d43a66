"""A trace of a production service's form through one simulated A100."""

from vllm_slo.measure import summarise
from vllm_slo.settings import Settings
from vllm_slo.sim import open_sim
from vllm_slo.traffic import trace

# Made up, in the form of the Azure LLM inference trace of 2023: long prompts, short answers, and
# a burst in the third minute.
ARRIVALS_S = [*range(0, 120, 3), *(120 + 0.1 * i for i in range(60)), *range(130, 240, 3)]


def write_trace(path):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for i, at in enumerate(ARRIVALS_S):
        clock = f"2023-11-16 18:{int(at) // 60:02d}:{at % 60:010.7f}"
        lines.append(f"{clock},{200 + 397 * i % 3900},{1 + 89 * i % 700}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_runs_to_its_end_at_the_rate_that_is_asked_for(tmp_path):
    path = write_trace(tmp_path / "service.csv")
    whole = open_sim(Settings()).run(trace(path))
    assert (len(ARRIVALS_S), 0) == (len(whole.records), summarise(whole).failed)
    assert ARRIVALS_S[-1] < whole.rounds[0].window_s[1] < ARRIVALS_S[-1] + 20
    half = open_sim(Settings()).run(trace(path, rate_scale=0.5))
    assert 2 * ARRIVALS_S[-1] < half.rounds[0].window_s[1]
    # The burst is what makes the tail, and half the rate takes much of it away.
    assert summarise(whole).value("ttft_p99_ms") > 3 * summarise(half).value("ttft_p99_ms")


def test_requests_too_long_for_the_model_fail_and_the_others_are_served(tmp_path):
    path = write_trace(tmp_path / "service.csv")
    run = open_sim(Settings(max_model_len=2048)).run(trace(path))
    fits = [r.planned_prompt_tokens + r.planned_output_tokens <= 2048 for r in run.records]
    assert fits == [record.ok for record in run.records]
    assert {400} == {record.status for record in run.records if not record.ok}
