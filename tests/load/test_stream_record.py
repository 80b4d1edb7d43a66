"""Streams as servers send them, well and badly, and what the record must say of each."""

from collections.abc import Sequence
from typing import Any

import pytest

from vllm_slo.load import record_from_reads
from vllm_slo.load.chunk import excerpt
from vllm_slo.measure.record import RequestRecord

DONE = b"data: [DONE]\n\n"


def record(
    reads: Sequence[tuple[float, bytes]], *, plan: tuple[int, int] = (8, 4), **options: Any
) -> RequestRecord:
    """The record of reads at times in milliseconds, for (prompt, output) tokens planned."""
    defaults = {"api": "completions", "status": 200, "scheduled_s": 0.0, "sent_s": 0.0}
    return record_from_reads(
        [(at_ms / 1e3, body) for at_ms, body in reads],
        planned_prompt_tokens=plan[0],
        planned_output_tokens=plan[1],
        **(defaults | options),
    )


def ms(value: float | None) -> Any:
    return None if value is None else pytest.approx(1e3 * value)


def figures(one: RequestRecord) -> dict[str, Any]:
    return {
        "error": one.error,
        "ttft": ms(one.ttft_s),
        "tpot": ms(one.tpot_s),
        "e2e": ms(one.e2e_s),
        "tokens": None if one.event_tokens is None else one.event_tokens.tolist(),
        "output": one.output_tokens,
    }


# Good streams.


def test_a_token_an_event_gives_ttft_tpot_and_gaps(sse):
    reads = [
        (100, sse.text(" a", 1)),
        (120, sse.text(" b", 2)),
        (150, sse.text(" c", 3)),
        (160, sse.text(" d", 4, "length")),
        (161, sse.last(4)),
        (161, DONE),
    ]

    one = record(reads)

    expected = {"ttft": 100, "tpot": 20, "e2e": 161, "tokens": [1, 1, 1, 1], "output": 4}
    assert expected | {"error": None} == figures(one)
    assert [20, 30, 10] == pytest.approx((1e3 * one.itl_s).tolist())
    assert (8, "length", 200) == (one.prompt_tokens, one.finish_reason, one.status)


def test_times_count_from_the_schedule_and_not_from_the_sending(sse):
    reads = [(100, sse.text(" a", 1, "length")), (110, DONE)]

    one = record(reads, plan=(8, 1), scheduled_s=0.04, sent_s=0.09)

    assert (ms(0.06), ms(0.05), ms(0.07)) == (
        1e3 * one.ttft_s,
        1e3 * one.send_lag_s,
        1e3 * one.e2e_s,
    )


def test_one_token_has_a_ttft_and_no_tpot(sse):
    reads = [(90, sse.text(" a", 1, "length")), (91, sse.last(1)), (91, DONE)]

    expected = {"ttft": 90, "tpot": None, "e2e": 91, "tokens": [1], "output": 1, "error": None}
    assert expected == figures(record(reads, plan=(8, 1)))


def test_tokens_of_the_first_event_are_not_in_the_divisor_of_tpot(sse):
    reads = [
        (100, sse.text(" a b c", 3)),
        (120, sse.text(" d", 4)),
        (140, sse.text(" e", 5, "length")),
        (141, sse.last(5)),
        (141, DONE),
    ]

    expected = {"ttft": 100, "tpot": 20, "e2e": 141, "tokens": [3, 1, 1], "output": 5}
    assert expected | {"error": None} == figures(record(reads, plan=(8, 5)))


def test_a_gap_before_an_event_of_two_tokens_is_shared_by_them(sse):
    reads = [
        (100, sse.text(" a", 1)),
        (140, sse.text(" b c", 3)),
        (180, sse.text(" d e", 5, "length")),
        (181, sse.last(5)),
        (181, DONE),
    ]

    one = record(reads, plan=(8, 5))

    assert [20, 20] == pytest.approx((1e3 * one.itl_s).tolist())
    assert [1, 2, 2] == one.event_tokens.tolist()


def test_a_token_without_text_counts_where_usage_says_so(sse):
    reads = [
        (100, sse.text("", 1)),
        (130, sse.text(" 你", 2)),
        (160, sse.text(" 好", 3, "length")),
        (161, sse.last(3)),
        (161, DONE),
    ]

    expected = {"ttft": 100, "tpot": 30, "e2e": 161, "tokens": [1, 1, 1], "output": 3}
    assert expected | {"error": None} == figures(record(reads, plan=(8, 3)))


def test_text_without_a_new_token_is_no_token_event(sse):
    reads = [
        (100, sse.text(" a", 1)),
        (110, sse.text("!", 1)),
        (140, sse.text(" b", 2, "length")),
        (141, DONE),
    ]

    expected = {"ttft": 100, "tpot": 40, "e2e": 141, "tokens": [1, 1], "output": 2}
    assert expected | {"error": None} == figures(record(reads, plan=(8, 2)))


def test_a_finish_in_an_event_of_its_own_adds_nothing(sse):
    reads = [
        (100, sse.text(" a", 1)),
        (120, sse.text(" b", 2)),
        (150, sse.text("", 2, "length")),
        (151, sse.last(2)),
        (152, DONE),
    ]

    expected = {"ttft": 100, "tpot": 20, "e2e": 152, "tokens": [1, 1], "output": 2}
    assert expected | {"error": None} == figures(record(reads, plan=(8, 2)))


def test_an_event_takes_the_time_of_the_read_that_completes_it(sse):
    first = sse.text(" a", 1)
    reads = [
        (100, first[:20]),
        (101, first[20:-1]),
        (102, first[-1:]),
        (150, sse.text(" b", 2, "length") + sse.last(2) + DONE),
    ]

    expected = {"ttft": 102, "tpot": 48, "e2e": 150, "tokens": [1, 1], "output": 2}
    assert expected | {"error": None} == figures(record(reads, plan=(8, 2)))


def test_comments_and_crlf_are_part_of_the_form(sse):
    reads = [
        (10, b": keep-alive\r\n\r\n"),
        (100, sse.text(" a", 1).replace(b"\n", b"\r\n")),
        (110, b": ping\n\n"),
        (120, sse.text(" b", 2, "length")),
        (121, sse.last(2) + DONE),
    ]

    expected = {"ttft": 100, "tpot": 20, "e2e": 121, "tokens": [1, 1], "output": 2}
    assert expected | {"error": None} == figures(record(reads, plan=(8, 2)))


def test_what_follows_done_is_not_read(sse):
    reads = [(100, sse.text(" a", 1, "length")), (110, DONE + b"data: {x\n\n"), (900, DONE)]

    one = record(reads, plan=(8, 1))

    assert (None, ms(0.11)) == (one.error, 1e3 * one.e2e_s)


def test_done_without_its_blank_line_is_done(sse):
    one = record([(100, sse.text(" a", 1, "length")), (110, b"data: [DONE]")], plan=(8, 1))

    assert (None, ms(0.11)) == (one.error, 1e3 * one.e2e_s)


# Usage.


def test_without_usage_in_every_event_tokens_per_event_are_unknown(sse):
    reads = [
        (100, sse.text(" a", None)),
        (110, sse.text("", None)),
        (120, sse.text(" b c", None)),
        (140, sse.text("", None, "length")),
        (141, sse.last(4)),
        (141, DONE),
    ]

    one = record(reads)

    assert (None, None, 4) == (one.error, one.event_tokens, one.output_tokens)
    assert [100, 120] == pytest.approx((1e3 * one.event_s).tolist())


def test_usage_with_the_finish_alone_is_not_taken_for_tokens_of_that_event(sse):
    reads = [(100, sse.text(" a", None)), (160, sse.text(" b", 4, "length")), (161, DONE)]

    one = record(reads)

    assert (None, None, 4) == (one.error, one.event_tokens, one.output_tokens)
    assert 100 == pytest.approx(1e3 * one.ttft_s)


def test_a_count_that_grows_after_the_finish_is_nobodys_event(sse):
    reads = [
        (100, sse.text(" a", 1)),
        (120, sse.text(" b", 1)),
        (140, sse.text(" c", 1, "length")),
        (150, sse.last(3)),
        (150, DONE),
    ]

    one = record(reads, plan=(8, 3))

    assert (None, None, 3) == (one.error, one.event_tokens, one.output_tokens)
    assert [100, 120, 140] == pytest.approx((1e3 * one.event_s).tolist())


def test_null_usage_is_no_usage(sse):
    no_usage = {"index": 0, "text": " a", "finish_reason": None}
    reads = [
        (100, sse({"choices": [no_usage], "usage": None})),
        (120, sse.text(" b", None, "length")),
        (121, sse.last(2) + DONE),
    ]

    one = record(reads, plan=(8, 2))

    assert (None, None, 2) == (one.error, one.event_tokens, one.output_tokens)


def test_events_without_choices_in_mid_stream_are_passed_over(sse):
    reads = [
        (50, sse({"choices": []})),
        (60, sse({"id": "x"})),
        (100, sse.text(" a", 1)),
        (110, sse.last(1)),
        (120, sse.text(" b", 2, "length")),
        (121, DONE),
    ]

    expected = {"ttft": 100, "tpot": 20, "e2e": 121, "tokens": [1, 1], "output": 2}
    assert expected | {"error": None} == figures(record(reads, plan=(8, 2)))


# Chat.


def test_a_role_alone_is_no_token(sse):
    reads = [
        (5, sse.delta(0, role="assistant", content="")),
        (300, sse.delta(1, content="Hi")),
        (330, sse.delta(2, "length", content=" there")),
        (331, sse.last(2) + DONE),
    ]

    one = record(reads, plan=(8, 2), api="chat")

    expected = {"ttft": 300, "tpot": 30, "e2e": 331, "tokens": [1, 1], "output": 2}
    assert expected | {"error": None} == figures(one)
    assert one.ttft_s == one.first_answer_token_s


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_counts_and_the_first_answer_token_is_told_apart(sse, name):
    reads = [
        (80, sse.delta(1, **{name: "Let"})),
        (100, sse.delta(2, **{name: " me"})),
        (120, sse.delta(3, "length", content="Yes")),
        (121, sse.last(3) + DONE),
    ]

    one = record(reads, plan=(8, 3), api="chat")

    expected = {"ttft": 80, "tpot": 20, "e2e": 121, "tokens": [1, 1, 1], "output": 3}
    assert expected | {"error": None} == figures(one)
    assert 120 == pytest.approx(1e3 * one.first_answer_token_s)


def test_reasoning_without_an_answer_has_no_first_answer_token(sse):
    reads = [(80, sse.delta(1, "length", reasoning="Let")), (81, DONE)]

    one = record(reads, plan=(8, 1), api="chat")

    assert (None, None) == (one.error, one.first_answer_token_s)


@pytest.mark.parametrize("has_usage", [True, False])
def test_tool_calls_are_tokens(sse, has_usage):
    def call(arguments):
        return [{"index": 0, "function": {"arguments": arguments}}]

    reads = [
        (5, sse.delta(0 if has_usage else None, role="assistant")),
        (100, sse.delta(1 if has_usage else None, tool_calls=call("{"))),
        (120, sse.delta(2 if has_usage else None, "tool_calls", tool_calls=call("}"))),
        (121, sse.last(2) + DONE),
    ]

    one = record(reads, plan=(8, 2), api="chat")

    assert (None, [100, 120]) == (one.error, pytest.approx((1e3 * one.event_s).tolist()))


def test_a_template_may_add_to_the_prompt_where_lengths_are_not_exact(sse):
    reads = [(100, sse.delta(1, "length", content="Hi")), (101, DONE)]

    one = record(reads, plan=(3, 1), api="chat", exact_prompt=False)

    assert (None, 3, 8) == (one.error, one.planned_prompt_tokens, one.prompt_tokens)


# Failures: every one says why, and keeps what came.


def failure(reads, **options):
    one = record(reads, **options)
    assert not one.ok
    return one.error


def test_a_cut_stream_is_a_failure_that_keeps_its_tokens(sse):
    one = record([(100, sse.text(" a", 1)), (120, sse.text(" b", 2))])

    assert one.error == ("the stream was cut after 2 token events: no finish_reason, no [DONE]")
    assert (ms(0.1), ms(0.12), 2) == (1e3 * one.ttft_s, 1e3 * one.finished_s, one.output_tokens)


def test_a_stream_without_done_is_cut(sse):
    reads = [(100, sse.text(" a", 1, "length")), (101, sse.last(1))]
    assert "the stream was cut after 1 token events: no [DONE]" == failure(reads, plan=(8, 1))


def test_an_event_without_its_blank_line_is_not_an_event(sse):
    reads = [(100, sse.text(" a", 1)), (120, sse.text(" b", 2, "length").rstrip())]
    assert "after 1 token events: no finish_reason, no [DONE]" in failure(reads, plan=(8, 2))


def test_a_transport_fault_is_the_reason_and_says_how_far_it_came(sse):
    reads = [(100, sse.text(" a", 1))]

    one = record(reads, broken="the connection was cut: the server reset it", ended_s=0.3)

    assert "the connection was cut: the server reset it, after 1 token events" == one.error
    assert 0.3 == one.finished_s


def test_a_transport_fault_after_done_harms_nothing(sse):
    reads = [(100, sse.text(" a", 1, "length")), (101, DONE)]
    assert record(reads, plan=(8, 1), broken="the server reset it").ok


def test_no_response_at_all_is_a_failure_without_a_status():
    one = record([], status=None, broken="could not connect to h:1: connection refused")

    assert (None, "could not connect to h:1: connection refused") == (one.status, one.error)


def test_an_empty_200_is_a_failure():
    assert "no token: the body of the response is empty" == failure([])


def test_only_comments_are_no_token():
    error = failure([(10, b": ping\n\n")])
    assert "no token: the body is cut, or not a stream of events: : ping" == error


def test_a_stream_of_no_tokens_that_ends_well_is_a_failure(sse):
    reads = [(5, sse.text("", 0)), (6, sse.text("", 0, "stop")), (7, DONE)]
    assert "no token: no event of the stream carried one" == failure(reads)


def test_a_whole_json_answer_is_not_a_stream():
    error = failure([(90, b'{"id": "x", "choices": [{"text": " a"}]}')])
    assert 'not a stream of events: {"id": "x"' in error


def test_a_503_is_a_failure_with_the_servers_words():
    body = b'{"error":{"message":"queue limit reached","type":"ServiceUnavailable","code":503}}'

    one = record([(2, body)], status=503)

    assert ("HTTP 503: queue limit reached", 503, None) == (one.error, one.status, one.ttft_s)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": "out of slots"}', "out of slots"),
        (b'{"object": "error", "message": "bad model", "code": 404}', "bad model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<h1>Bad Gateway</h1>", "<h1>Bad Gateway</h1>"),
        (b"\xff\xfe\x1b[31m red", "\ufffd\ufffd [31m red"),
        (b"", "no message"),
        (b"[" * 100_000, "["),
    ],
)
def test_an_error_status_says_what_the_server_said(body, message):
    error = failure([(2, body[:7]), (3, body[7:])], status=404)
    assert error.startswith(f"HTTP 404: {message}")
    assert len(error) < 400


def test_a_redirect_is_a_failure_that_says_where_to_go():
    error = failure([], status=307, location="https://host/v1/completions")
    assert error == (
        "HTTP 307, a redirect to https://host/v1/completions:"
        " give the address it leads to as endpoint"
    )


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n', "EngineCore died"),
        (b'data: {"error": "EngineCore died"}\n\n', "EngineCore died"),
        (b'data: {"object": "error", "message": "EngineCore died"}\n\n', "EngineCore died"),
        (b"event: error\ndata: EngineCore died\n\n", "EngineCore died"),
        (b'event: error\ndata: {"why": 1}\n\n', '{"why": 1}'),
        (b'{"error": {"message": "EngineCore died"}}', "EngineCore died"),
        (b'data: {"error": {"message": "EngineCore died"}}', "EngineCore died"),
    ],
)
def test_an_error_in_a_200_is_a_failure_before_any_token(event, message):
    error = failure([(120, event)])
    assert f"the server reported an error: {message}" == error


def test_an_error_after_tokens_is_a_failure_that_keeps_them(sse):
    reads = [
        (100, sse.text(" a", 1)),
        (120, sse({"error": {"message": "EngineCore encountered an issue", "code": 500}})),
        (121, DONE),
    ]

    one = record(reads)

    assert "the server reported an error: EngineCore encountered an issue" == one.error
    assert (ms(0.1), 1) == (1e3 * one.ttft_s, one.output_tokens)


def test_null_errors_are_none(sse):
    choice = {"index": 0, "text": " a", "finish_reason": "length"}
    event = {"choices": [choice], "error": None, "usage": sse.usage(1)}
    assert record([(100, sse(event)), (101, DONE)], plan=(8, 1)).ok


def test_a_missing_usage_is_a_failure_and_not_a_guess(sse):
    reads = [(100, sse.text(" a", None)), (120, sse.text(" b", None, "length")), (121, DONE)]

    one = record(reads, plan=(8, 2))

    assert "no usage.completion_tokens: the token count is unknown" in one.error
    assert (None, None, ms(0.1)) == (one.output_tokens, one.event_tokens, 1e3 * one.ttft_s)


def test_too_few_tokens_are_a_failure(sse):
    reads = [(100, sse.text(" a", 1)), (120, sse.text(" b", 2, "stop")), (121, DONE)]
    assert "output tokens: 2 of 4 came, finish_reason 'stop'" in failure(reads)


def test_another_prompt_length_is_a_failure(sse):
    sse.prompt = 40
    reads = [(100, sse.text(" a", 1, "length")), (121, DONE)]
    error = failure(reads, plan=(8, 1))
    assert "prompt tokens: the server counted 40, 8 were sent" in error


def test_both_counts_off_are_both_named(sse):
    sse.prompt = 40
    error = failure([(100, sse.text(" a", 1, "stop")), (121, DONE)])
    assert ["output tokens", "prompt tokens"] == [part.split(":")[0] for part in error.split("; ")]


def test_no_finish_reason_is_a_failure(sse):
    reads = [(100, sse.text(" a", 1)), (121, DONE)]
    assert "no finish_reason in the stream" == failure(reads, plan=(8, 1))


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_request_that_the_server_gave_up_is_a_failure(sse, finish):
    reads = [(100, sse.text(" a", 1, finish)), (121, DONE)]
    expected = f"the server gave the request up: finish_reason is '{finish}'"
    assert expected == failure(reads, plan=(8, 1))


def test_a_usage_that_goes_backwards_is_a_failure(sse):
    reads = [(100, sse.text(" a", 2)), (120, sse.text(" b", 1, "length")), (121, DONE)]
    expected = "usage.completion_tokens went backwards, from 2 to 1"
    assert expected == failure(reads, plan=(8, 2))


@pytest.mark.parametrize(
    "choices",
    [
        [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}],
        [{"index": 1, "text": "b"}],
        [{"text": "a"}, {"text": "b"}],
    ],
)
def test_more_than_one_choice_is_refused(sse, choices):
    assert "ask for n=1" in failure([(100, sse({"choices": choices}))])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"data: {half\n\n", "not JSON: {half"),
        (b"data: 7\n\n", "not a JSON object: 7"),
        (b"data: [" + b"[" * 100_000 + b"\n\n", "not JSON: [[["),
        (b'data: {"choices": 3}\n\n', "`choices` is not a list of objects: 3"),
        (b'data: {"choices": [3]}\n\n', "`choices` is not a list of objects"),
        (b'data: {"usage": 3}\n\n', "`usage` is not an object: 3"),
        (b'data: {"usage": {"completion_tokens": -1}}\n\n', "is not a count: -1"),
        (b'data: {"usage": {"completion_tokens": 1.5}}\n\n', "is not a count: 1.5"),
        (b'data: {"usage": {"completion_tokens": true}}\n\n', "is not a count: True"),
        (b'data: {"usage": {"prompt_tokens": 1e999}}\n\n', "is not a count: inf"),
        (b'data: {"usage": {"completion_tokens": 99999999999999999999}}\n\n', "not a count"),
    ],
)
def test_an_event_that_makes_no_sense_is_quoted(data, message):
    assert message in failure([(100, data)])


def test_a_value_too_deep_to_print_is_named_so():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert "something nested too deeply to print" == excerpt(deep)


def test_an_unknown_api_is_the_callers_error():
    with pytest.raises(ValueError, match='"completions" or "chat", not \'messages\''):
        record([], api="messages")
