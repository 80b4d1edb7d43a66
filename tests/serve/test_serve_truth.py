"""What the server says it did is what it did: its log, its metrics, and what clients read."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllm_slo.engine.metrics import CANDIDATES, MetricsObserver, parse_metrics
from vllm_slo.load import Endpoint, HttpTarget, WarmUp
from vllm_slo.measure.run import EngineInfo, Round
from vllm_slo.settings import Settings
from vllm_slo.sim.serve.golden import prompt_crc32
from vllm_slo.traffic.workload import PlannedRequest, Segment, Workload

Start = Callable[..., Any]
VOCAB = 32_000


def _workload(*lengths: tuple[int, int], concurrency: int = 8, **fields: Any) -> Workload:
    plan = [
        PlannedRequest(index=n, input_tokens=i, output_tokens=o, **fields)
        for n, (i, o) in enumerate(lengths)
    ]
    return Workload(name="mix", plan=lambda _: plan, concurrency=concurrency)


def _drive(served: Any, workload: Workload, *, api: Any = "completions") -> Round:
    target = HttpTarget(
        endpoint=Endpoint(base_url=served.base_url, model="llama-3-8b", vocab_size=VOCAB, api=api),
        settings=Settings(),
        engine=EngineInfo(target="url", device="sim", model="llama-3-8b", vllm_version="sim"),
        observers=[MetricsObserver(served.base_url, interval_s=0.02)],
        warm_up=WarmUp(max_batches=0),
    )
    (one,) = target.run(workload).rounds
    assert [] == [record.error for record in one.records if record.error]
    return one


def _samples(served: Any) -> dict[str, float]:
    """Every sample, by its name and the labels beside model and engine."""
    found = {}
    for family in text_string_to_metric_families(served.client.get("/metrics").text):
        for sample in family.samples:
            rest = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found["|".join([sample.name, *rest.values()])] = sample.value
    return found


LENGTHS = tuple((5 + 7 * n % 90, 1 + 11 * n % 40) for n in range(40))


@pytest.mark.parametrize("is_async", [False, True])
def test_our_client_reads_what_the_log_says_was_sent(serve: Start, is_async: bool):
    served = serve(max_num_seqs=6, async_scheduling=is_async)
    workload = _workload(*LENGTHS)
    one = _drive(served, workload)
    golden = {record["prompt_crc32"]: record for record in served.golden()}
    offsets = []
    for planned, record in zip(workload.requests, one.records, strict=True):
        ids = workload.prompt_ids(planned, vocab_size=VOCAB)
        sent = golden[prompt_crc32(ids.tolist())]
        assert (planned.input_tokens, planned.output_tokens) == (
            record.prompt_tokens,
            record.output_tokens,
        )
        assert planned.input_tokens == sent["prompt_tokens"]
        assert planned.output_tokens == len(sent["token_s"]) == sent["sent_tokens"][-1]
        assert record.event_tokens is not None
        assert sent["sent_tokens"] == np.cumsum(record.event_tokens).tolist()
        assert "length" == sent["finish_reason"] == record.finish_reason
        assert sent["received_s"] <= sent["token_s"][0] <= sent["sent_s"][0]
        offsets += (record.event_s - np.array(sent["sent_s"])).tolist()
    # Both clocks are this machine's, the client's counts from the round's start: nothing is read
    # before it is sent, so the offsets have a floor that is the start.
    start_s = -min(offsets)
    first_received = min(record["received_s"] for record in golden.values())
    assert abs(start_s - first_received) < 1.0
    assert sum(o for _, o in LENGTHS) == len(offsets)


def test_metrics_are_what_was_sent(serve: Start):
    served = serve(max_num_seqs=6, enable_prefix_caching=False)
    one = _drive(served, _workload(*LENGTHS))
    prompt, output = (sum(column) for column in zip(*LENGTHS, strict=True))
    assert (prompt, output) == (one.server.prompt_tokens, one.server.generation_tokens)
    assert (0, 0) == (one.server.preemptions, one.server.prefix_cache_hit_tokens)
    assert one.server.running_max is not None
    assert one.server.running_max <= 6
    samples = _samples(served)
    golden = served.golden()
    assert {"length": float(len(LENGTHS))} == {
        name.split("|")[1]: value
        for name, value in samples.items()
        if name.startswith("vllm:request_success_total") and value
    }
    first = [record["token_s"][0] - record["received_s"] for record in golden]
    gaps = np.concatenate([np.diff(record["token_s"]) for record in golden])
    for name, expected in (
        ("time_to_first_token_seconds", first),
        ("inter_token_latency_seconds", gaps),
        ("e2e_request_latency_seconds", [r["finished_s"] - r["received_s"] for r in golden]),
        ("request_prompt_tokens", [i for i, _ in LENGTHS]),
        ("request_generation_tokens", [o for _, o in LENGTHS]),
        ("request_num_preemptions", [0] * len(LENGTHS)),
    ):
        assert len(expected) == samples[f"vllm:{name}_count"], name
        assert samples[f"vllm:{name}_sum"] == pytest.approx(float(np.sum(expected))), name
    # Every token was counted in one step, and every prompt in the step of its first token.
    assert prompt + output == samples["vllm:iteration_tokens_total_sum"]
    steps = {at for record in golden for at in record["token_s"]}
    assert len(steps) == samples["vllm:iteration_tokens_total_count"]


def test_histograms_are_cumulative_and_end_in_all(served: Any):
    served.complete(max_tokens=5)
    for family in text_string_to_metric_families(served.client.get("/metrics").text):
        if family.type != "histogram":
            continue
        buckets = [s for s in family.samples if s.name.endswith("_bucket")]
        bounds = [float(s.labels["le"]) for s in buckets]
        counts = [s.value for s in buckets]
        assert sorted(bounds) == bounds
        assert sorted(counts) == counts
        (total,) = [s.value for s in family.samples if s.name.endswith("_count")]
        assert (float("inf"), total) == (bounds[-1], counts[-1])


def test_every_figure_that_is_read_from_vllm_is_there(served: Any):
    snapshot = parse_metrics(served.client.get("/metrics").text)
    assert set(CANDIDATES) == set(snapshot.values)
    for family in text_string_to_metric_families(served.client.get("/metrics").text):
        for sample in family.samples:
            assert ("llama-3-8b", "0") == (sample.labels["model_name"], sample.labels["engine"])


def test_chats_are_read_by_our_client_too(serve: Start):
    served = serve(max_num_seqs=4)
    one = _drive(served, _workload(*LENGTHS[:10]), api="chat")
    assert [o for _, o in LENGTHS[:10]] == [record.output_tokens for record in one.records]
    # The user's role, and the role that answers.
    assert [i + 2 for i, _ in LENGTHS[:10]] == [record.prompt_tokens for record in one.records]


def test_shared_prefixes_are_hit_and_counted(serve: Start):
    served = serve(max_num_seqs=1)
    shared = (Segment(key=(2, 9), tokens=64), Segment(key=(1, 0), tokens=10))
    workload = _workload(*[(74, 3)] * 5, concurrency=1, segments=shared)
    one = _drive(served, workload)
    # Blocks of 16: the four of the shared prefix, and nothing of the first request.
    assert 4 * 64 == one.server.prefix_cache_hit_tokens
    assert [0, 64, 64, 64, 64] == [record["cached_tokens"] for record in served.golden()]
    assert 5 * 74 == _samples(served)["vllm:prefix_cache_queries_total"]


def test_preemptions_are_counted(serve: Start):
    served = serve(
        max_num_seqs=8, max_model_len=160, num_gpu_blocks_override=31, enable_prefix_caching=False
    )
    one = _drive(served, _workload(*[(16, 100)] * 16))
    assert one.server.preemptions is not None
    assert one.server.preemptions > 0
    preempted = [record["preemptions"] for record in served.golden()]
    assert one.server.preemptions == sum(preempted)
    assert _samples(served)["vllm:request_num_preemptions_sum"] == sum(preempted)
    assert 0.0 == served.health()["kv_cache_usage"]


def test_max_num_seqs_makes_the_others_wait(serve: Start):
    served = serve(max_num_seqs=2)
    one = _drive(served, _workload(*[(8, 40)] * 6, concurrency=6))
    assert (2, 4) == (one.server.running_max, one.server.waiting_max)
    assert one.server.queue_time_mean_s is not None
    golden = served.golden()
    first = sorted(record["token_s"][0] for record in golden)
    finished = sorted(record["finished_s"] for record in golden)
    assert first[1] <= finished[0] < first[2]


def test_urgent_requests_go_first_under_the_priority_policy(serve: Start):
    served = serve(max_num_seqs=1, scheduling_policy="priority")
    plan = [
        PlannedRequest(index=n, input_tokens=4, output_tokens=30, priority=p)
        for n, p in enumerate((0, 3, 2, 1))
    ]
    _drive(served, Workload(name="p", plan=lambda _: plan, concurrency=4))
    golden = sorted(served.golden(), key=lambda record: record["token_s"][0])
    # Whoever came first was alone; whatever came after it waits by priority.
    waiting = [record["priority"] for record in golden[1:]]
    assert sorted(waiting) == waiting


def test_a_full_queue_answers_503_in_vllms_words(serve: Start):
    served = serve(max_num_seqs=2, max_num_queued_reqs=3)
    refused = []

    def busy(*_: object) -> bool:
        return served.health()["running"] + served.health()["waiting"] == 3

    with httpx.Client(base_url=served.base_url, timeout=30) as client:
        streams = [_begun(served, max_tokens=5000) for _ in range(3)]
        served.wait_until(busy)
        response = client.post("/v1/completions", json={"prompt": "a"})
        refused.append(response.status_code)
        error = response.json()["error"]
        assert (503, "Service Unavailable") == (error["code"], error["type"])
        assert error["message"].startswith("The engine is currently busy and cannot accept new")
        assert 200 == client.get("/health").status_code
        for stream in streams:
            stream.close()
    served.wait_until(lambda health: health["running"] + health["waiting"] == 0)
    assert 200 == served.complete().status_code
    assert 1 == _samples(served)["vllm:admission_rejections_total|max_num_queued_reqs"]


def _begun(served: Any, **fields: Any) -> socket.socket:
    """A request on a socket of its own, of whose answer nothing has been read."""
    body = json.dumps({"prompt": "a b", "stream": True, **fields}).encode()
    parts = urlsplit(served.base_url)
    sock = socket.create_connection((parts.hostname, parts.port))
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    return sock


def test_a_client_that_goes_away_frees_its_place_and_its_blocks(serve: Start):
    served = serve(max_num_seqs=1)
    running, waiting = _begun(served, max_tokens=5000), _begun(served, max_tokens=5000)
    served.wait_until(lambda health: (1, 1) == (health["running"], health["waiting"]))
    waiting.close()
    served.wait_until(lambda health: (1, 0) == (health["running"], health["waiting"]))
    running.close()
    served.wait_until(lambda health: (0, 0, 0.0) == _load(health))
    assert ["abort", "abort"] == [record["finish_reason"] for record in served.golden()]
    assert 16 == served.complete().json()["usage"]["completion_tokens"]


def test_a_client_that_does_not_wait_for_a_whole_answer_is_noticed(serve: Start):
    served = serve()
    sock = _begun(served, max_tokens=5000, stream=False)
    served.wait_until(lambda health: health["running"] == 1)
    sock.close()
    served.wait_until(lambda health: (0, 0, 0.0) == _load(health))


def _load(health: dict[str, Any]) -> tuple[int, int, float]:
    return health["running"], health["waiting"], health["kv_cache_usage"]


def test_a_client_that_reads_slowly_loses_nothing_and_holds_up_nobody(serve: Start):
    served = serve(max_model_len=8192)
    parts = urlsplit(served.base_url)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.connect((parts.hostname, parts.port))
        # Long identifiers make large events: more than the socket's buffers hold.
        body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 400}).encode()
        slow.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"X-Request-Id: %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (b"i" * 15_000, len(body), body)
        )
        served.wait_until(lambda health: health["running"] == 1)
        assert 100 == served.complete(max_tokens=100).json()["usage"]["completion_tokens"]
        served.wait_until(lambda health: health["running"] == 0)
        slow.settimeout(10)
        read = b""
        while part := slow.recv(65536):
            read += part
    assert read.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert [f"t{n}" for n in range(1, 401)] == [
        json.loads(line.removeprefix(b"data: "))["choices"][0]["text"].strip()
        for line in read.split(b"\n")
        if line.startswith(b"data: {")
    ]


def test_the_log_forgets_the_oldest_and_says_so(serve: Start):
    served = serve(options={"golden_size": 2})
    for tokens in (1, 2, 3):
        served.complete(max_tokens=tokens)
    body = served.client.get("/golden/requests").json()
    assert (1, [2, 3]) == (body["dropped"], [r["max_tokens"] for r in body["requests"]])
    served.client.delete("/golden/requests")
    assert {"dropped": 0, "requests": []} == served.client.get("/golden/requests").json()


def test_an_answer_that_is_not_streamed_is_one_event_of_the_log(serve: Start):
    served = serve()
    served.complete(max_tokens=4)
    (record,) = served.golden()
    assert ([4], 4, False) == (record["sent_tokens"], len(record["token_s"]), record["stream"])
    assert prompt_crc32(["a", "b", "c"]) == record["prompt_crc32"]


def test_the_server_answers_while_it_streams(serve: Start):
    served = serve(max_num_seqs=64)
    streams = [_begun(served, max_tokens=2000) for _ in range(64)]
    served.wait_until(lambda health: health["running"] == 64)
    for _ in range(5):
        assert 200 == served.client.get("/health").status_code
        assert 64 == parse_metrics(served.client.get("/metrics").text)["running"]
    began = time.monotonic()
    for stream in streams:
        stream.close()
    served.wait_until(lambda health: (0, 0, 0.0) == _load(health))
    assert served.health()["steps"] > 0
    assert began <= max(record["finished_s"] for record in served.golden())
