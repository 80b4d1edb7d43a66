"""The live clients against a server that stamps what it sends, and misbehaves on request."""

import socket
from collections import Counter
from dataclasses import replace

import pytest
from golden_server import (
    DONE,
    END,
    HEAD,
    Body,
    Close,
    Connection,
    GoldenServer,
    Raw,
    Wait,
    event,
    events,
    good_answer,
)

from vllm_slo.load import record_from_reads
from vllm_slo.load.connection import Connection as ClientConnection

CLIENTS = pytest.mark.parametrize("client", ["wire", "httpx"])


def errors(run) -> list[str]:
    return [record.error for record in run.records if not record.ok]


@CLIENTS
def test_a_record_is_what_the_reader_makes_of_what_the_server_sent(
    golden, target_at, closed_loop, client
):
    golden.answer = lambda served: good_answer(served, pause_s=0.002)

    run = target_at(golden.url, client=client).run(closed_loop(12, concurrency=3))

    by_prompt = {tuple(served.asked["prompt"]): served for served in golden.served}
    assert [] == errors(run)
    for planned, record in zip(run.workload.requests, run.records, strict=True):
        served = by_prompt[tuple(run.workload.prompt_ids(planned, vocab_size=512).tolist())]
        sent = record_from_reads(
            served.sent,
            api="completions",
            status=200,
            planned_prompt_tokens=planned.input_tokens,
            planned_output_tokens=planned.output_tokens,
            scheduled_s=0.0,
            sent_s=0.0,
        )
        assert sent.event_tokens.tolist() == record.event_tokens.tolist()
        assert (sent.output_tokens, sent.prompt_tokens) == (4, 8)
        assert (record.output_tokens, record.prompt_tokens, record.index) == (4, 8, planned.index)
        # One clock: nothing arrives before it was sent, and the gaps to the stamps never shrink
        # below the one with which the request itself had come.
        late_s = record.event_s - sent.event_s
        to_round_s = record.sent_s - served.received_s
        assert (late_s >= to_round_s).all()
        assert record.scheduled_s <= record.sent_s <= record.event_s[0] <= record.finished_s


@CLIENTS
def test_the_body_asks_for_exactly_what_is_planned(golden, target_at, closed_loop, client):
    run = target_at(golden.url, client=client).run(closed_loop(1, concurrency=1))

    prompt = run.workload.prompt_ids(run.workload.requests[0], vocab_size=512).tolist()
    assert {
        "model": "m",
        "prompt": prompt,
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    } == golden.served[0].asked


def test_connections_are_kept_one_for_each_slot(golden, target_at, closed_loop):
    run = target_at(golden.url).run(closed_loop(30, concurrency=3))

    assert [] == errors(run)
    assert 3 == len(golden.connections)


def test_a_slot_is_taken_again_when_its_answer_has_ended(golden, target_at, closed_loop):
    run = target_at(golden.url).run(closed_loop(30, concurrency=3))

    scheduled_s = sorted(record.scheduled_s for record in run.records)
    finished_s = sorted(record.finished_s for record in run.records)
    assert [0.0] * 3 == scheduled_s[:3]
    assert all(
        finished <= scheduled
        for finished, scheduled in zip(finished_s, scheduled_s[3:], strict=False)
    )


def steps_of(*data: bytes, end: tuple = (END,), head: Raw = HEAD) -> list:
    return [head, *(Body(one) for one in data), *end]


GOOD = events(tokens=4, prompt=8)
HALF = GOOD[:2]
PLAIN = Raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
LENGTH = Raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(b"".join(GOOD)))

GOOD_ANSWERS = {
    "chunked": steps_of(*GOOD),
    "an end before the chunked coding's": steps_of(*GOOD, end=(Close(),)),
    "closed after each answer": steps_of(
        *GOOD, head=Raw(HEAD.data[:-2] + b"Connection: close\r\n\r\n"), end=(END, Close())
    ),
    "HTTP/1.0, ended by the close": [PLAIN, *(Raw(one) for one in GOOD), Close()],
    "a content length": [LENGTH, *(Raw(one) for one in GOOD)],
    "100 Continue first": [Raw(b"HTTP/1.1 100 Continue\r\n\r\n"), *steps_of(*GOOD)],
    "103 Early Hints first": [
        Raw(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
        *steps_of(*GOOD),
    ],
    "byte by byte": [
        Raw(bytes([byte]))
        for byte in HEAD.data
        + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in GOOD)
        + END.data
    ],
    "all at once": [
        Raw(HEAD.data + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in GOOD) + END.data)
    ],
    "keep-alive comments": steps_of(b": ping\n\n", *GOOD),
}


@CLIENTS
@pytest.mark.parametrize("answer", GOOD_ANSWERS.values(), ids=GOOD_ANSWERS)
def test_every_legal_form_of_an_answer_is_read(golden, target_at, closed_loop, client, answer):
    golden.answer = lambda served: answer

    run = target_at(golden.url, client=client).run(closed_loop(4, concurrency=2))

    assert [] == errors(run)
    assert [4] * 4 == [record.output_tokens for record in run.records]


def test_what_follows_an_answer_unasked_costs_the_connection_only(golden, target_at, closed_loop):
    unasked = Raw(END.data + b"HTTP/1.1 408 Timeout\r\nContent-Length: 2\r\n\r\nhm")
    golden.answer = lambda served: steps_of(*GOOD, end=(unasked,))

    run = target_at(golden.url).run(closed_loop(6, concurrency=1))

    assert [] == errors(run)
    assert 6 == len(golden.connections)


FAULTS = {
    "closed mid-stream": (steps_of(*HALF, end=(Close(),)), "closed it inside its answer, after 2"),
    "cut before the last event": (
        steps_of(*GOOD[:-1]),
        "the stream was cut after 4 token events: no [DONE]",
    ),
    "reset mid-stream": (
        [HEAD, Body(GOOD[0]), Wait(0.05), Close(reset=True)],
        "reset it inside its answer",
    ),
    "closed before any answer": ([Close()], "connection was cut"),
    "closed in the head": ([Raw(HEAD.data[:30]), Close()], "closed it inside its answer"),
    "503": (
        [Raw(b'HTTP/1.1 503 Busy\r\nContent-Length: 18\r\n\r\n{"error": "queue"}')],
        "HTTP 503: queue",
    ),
    "error after 200": (
        steps_of(*HALF, b'data: {"error": {"message": "EngineCore died"}}\n\n', DONE),
        "the server reported an error: EngineCore died",
    ),
    "short output": (
        steps_of(GOOD[0], event(text="b", tokens=2, prompt=8, finish="stop"), DONE),
        "output tokens: 2 of 4 came",
    ),
    "empty 200": ([Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")], "no token"),
    "empty 200, ended by the close": (
        [Raw(b"HTTP/1.0 200 OK\r\n\r\n"), Close()],
        "no token: the body of the response is empty",
    ),
    "204": ([Raw(b"HTTP/1.1 204 No Content\r\n\r\n")], "no token"),
    "not HTTP": ([Raw(b"SSH-2.0-OpenSSH_9.2\r\n"), Close()], "the answer is not HTTP/1.1"),
    "broken chunk": ([HEAD, Raw(b"zz\r\nnonsense\r\n"), Close()], "a broken response"),
    "redirect": (
        [Raw(b"HTTP/1.1 308 Moved\r\nLocation: https://h/v1\r\nContent-Length: 0\r\n\r\n")],
        "HTTP 308, a redirect to https://h/v1",
    ),
    "switched protocol": (
        [Raw(b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")],
        "another protocol",
    ),
    "silence": ([HEAD, Body(GOOD[0]), Wait(None)], "timeout: the answer had not ended 1 s"),
    "utter silence": ([Wait(None)], "timeout: the answer had not ended 1 s"),
}


@pytest.mark.parametrize(("answer", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_a_record_and_the_next_request_is_served(
    golden, target_at, closed_loop, answer, message
):
    faulty = closed_loop(3, concurrency=1).requests[1]
    workload = closed_loop(3, concurrency=1)
    prompt = workload.prompt_ids(faulty, vocab_size=512).tolist()
    golden.answer = lambda s: answer if s.asked["prompt"] == prompt else good_answer(s)

    limit_s = 1.0 if "timeout" in message else 60.0
    run = target_at(golden.url, request_timeout_s=limit_s).run(workload)

    assert [True, False, True] == [record.ok for record in run.records]
    assert message in run.records[1].error
    assert run.records[1].finished_s is not None


@pytest.mark.parametrize(
    "fault", [name for name in FAULTS if name not in ("switched protocol", "utter silence")]
)
def test_httpx_makes_records_of_faults_too(golden, target_at, closed_loop, fault):
    answer, message = FAULTS[fault]
    workload = closed_loop(3, concurrency=1)
    prompt = workload.prompt_ids(workload.requests[1], vocab_size=512).tolist()
    golden.answer = lambda s: answer if s.asked["prompt"] == prompt else good_answer(s)

    limit_s = 1.0 if "timeout" in message else 60.0
    run = target_at(golden.url, client="httpx", request_timeout_s=limit_s).run(workload)

    assert [True, False, True] == [record.ok for record in run.records]


@CLIENTS
def test_a_server_that_is_away_makes_records_and_no_exception(target_at, closed_loop, client):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]

    target = target_at(f"http://127.0.0.1:{port}", client=client)
    run = target.run(closed_loop(2000 if client == "wire" else 20, concurrency=4))

    assert 1 == len(set(errors(run)))
    assert f"could not connect to {'' if client == 'wire' else 'http://'}127.0.0.1:{port}: " in (
        run.records[0].error
    )
    assert not any(record.ok for record in run.records)


def test_an_unknown_host_makes_records(target_at, closed_loop):
    run = target_at("http://no-such-host.invalid:9").run(closed_loop(2, concurrency=1))

    assert run.records[0].error.startswith("could not connect to no-such-host.invalid:9: ")


def test_a_server_that_dies_in_mid_round_fails_the_rest(target_at, closed_loop):
    server = GoldenServer()

    def die_at_the_fifth(served):
        if len(server.served) == 5:
            server._server.close()
            return [HEAD, Body(GOOD[0]), Close(reset=True)]
        return good_answer(served)

    server.answer = die_at_the_fifth
    with server.in_thread():
        run = target_at(server.url).run(closed_loop(20, concurrency=1))

    kinds = Counter((record.error or "ok").split(":")[0] for record in run.records)
    assert 4 == kinds["ok"]
    assert {"ok": 4, "the connection was cut": 1} == {
        kind: n for kind, n in kinds.items() if not kind.startswith("could not connect")
    }


def test_an_idle_connection_that_the_server_closed_is_opened_anew(golden, target_at, open_loop):
    def cut_the_idle(served):
        yield from good_answer(served)
        for connection in golden.connections:
            connection.transport.close()

    golden.answer = cut_the_idle
    run = target_at(golden.url).run(open_loop([0.0, 0.05, 0.1, 0.15]))

    assert [] == errors(run)


def test_idle_connections_are_kept_warm(golden, target_at, open_loop, monkeypatch):
    """Two are opened, both are closed by the server, both are there again before the next start."""
    monkeypatch.setattr("vllm_slo.load.wire._REOPEN_AFTER_S", 0.0)

    def cut_once(served):
        yield from good_answer(served)
        if len(golden.served) == 1:
            for connection in golden.connections:
                connection.transport.close()

    golden.answer = cut_once
    run = target_at(golden.url).run(open_loop([0.0, 0.3]))

    assert [] == errors(run)
    assert 4 == len(golden.connections)


def test_a_request_lost_to_an_idle_close_is_sent_once_more_and_said(golden, target_at, closed_loop):
    seen = Counter()

    def close_the_first_try(served):
        seen[tuple(served.asked["prompt"])] += 1
        is_first = seen[tuple(served.asked["prompt"])] == 1
        return [Close()] if is_first and len(golden.served) > 1 else good_answer(served)

    golden.answer = close_the_first_try
    run = target_at(golden.url).run(closed_loop(3, concurrency=1))

    assert [] == errors(run)
    assert (
        "2 requests were sent twice: the server cut the idle connection that they left on,"
        " before any answer"
    ) in run.rounds[0].warnings


def test_a_request_is_not_sent_a_third_time(golden, target_at, closed_loop):
    golden.answer = lambda served: [Close()]

    run = target_at(golden.url).run(closed_loop(1, concurrency=1))

    assert ["the connection was cut: the server closed it before any answer"] == errors(run)
    assert 2 == len(golden.served)


def test_a_large_request_goes_out_whole(golden, target_at, closed_loop):
    """Over the socket's buffer: the rest follows as the server reads."""
    workload = closed_loop(2, concurrency=2, input_tokens=1_500_000)

    run = target_at(golden.url).run(workload)

    assert [] == errors(run)
    assert [1_500_000] * 2 == [record.prompt_tokens for record in run.records]


def test_an_answer_before_the_whole_request_costs_the_connection_only(
    golden, target_at, closed_loop
):
    """The server refuses at the head and never reads the rest, as a proxy does with a 413."""
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 7\r\n\r\ntoo big"

    class RefusesLarge(Connection):
        def on_headers_complete(self) -> None:
            if int(self.headers["content-length"]) > 1_000_000:
                self.transport.pause_reading()
                self.transport.write(refusal)

    golden.connection_class = RefusesLarge
    large = closed_loop(1, concurrency=1, input_tokens=2_000_000).requests[0]
    small = closed_loop(2, concurrency=1).requests[1]
    workload = replace(closed_loop(2, concurrency=1), plan=lambda _: [large, small])

    run = target_at(golden.url).run(workload)

    assert ["HTTP 413: too big", None] == [record.error for record in run.records]


def test_a_server_that_hangs_up_on_everyone_makes_records(golden, target_at, closed_loop):
    class HangsUp(Connection):
        def connection_made(self, transport) -> None:
            super().connection_made(transport)
            self.cut(reset=True)

    golden.connection_class = HangsUp

    run = target_at(golden.url).run(closed_loop(20, concurrency=4))

    assert 20 == len(errors(run))


def test_a_connection_that_is_lost_as_it_opens_is_not_used(
    golden, target_at, closed_loop, monkeypatch
):
    class LostAtOnce(ClientConnection):
        def connection_made(self, transport) -> None:
            super().connection_made(transport)
            self.close()

    monkeypatch.setattr("vllm_slo.load.wire.Connection", LostAtOnce)

    run = target_at(golden.url).run(closed_loop(2, concurrency=1))

    assert [f"could not connect to {golden.url[7:]}: connection reset by peer"] * 2 == errors(run)
