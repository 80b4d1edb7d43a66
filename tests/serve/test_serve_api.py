"""The API: forms of answers, ends of answers, refusals in vLLM's words."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest


def _events(response: httpx.Response) -> list[Any]:
    """The events of a stream, `[DONE]` as itself."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    datas = [part.removeprefix("data: ") for part in parts]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
    }


def test_a_completion_is_counted_exactly(served):
    body = served.complete([5, 6, 7, 8], max_tokens=3).json()
    assert _usage(4, 3) == body["usage"]
    (choice,) = body["choices"]
    assert ("t1 t2 t3", "length") == (choice["text"], choice["finish_reason"])
    assert "text_completion" == body["object"]


def test_a_text_has_as_many_tokens_as_words(served):
    assert _usage(4, 16) == served.complete("four words, not\n five").json()["usage"]


def test_a_list_of_prompts_is_a_choice_each(served):
    for prompts in (["a b", "c"], [[1, 2], [3]]):
        body = served.complete(prompts, max_tokens=2).json()
        assert [0, 1] == [choice["index"] for choice in body["choices"]]
        assert _usage(3, 4) == body["usage"]


def test_a_stream_of_two_prompts_counts_each_and_then_all(served):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, last, done = _events(
        served.complete(["a b", "c"], max_tokens=2, stream=True, stream_options=options)
    )
    assert "[DONE]" == done
    assert ([], _usage(3, 4)) == (last["choices"], last["usage"])
    seen = {
        (e["choices"][0]["index"], e["usage"]["prompt_tokens"], e["usage"]["completion_tokens"])
        for e in events
    }
    assert {(0, 2, 1), (0, 2, 2), (1, 1, 1), (1, 1, 2)} == seen


def test_a_stream_without_options_has_no_usage(served):
    *events, done = _events(served.complete(max_tokens=3, stream=True))
    assert "[DONE]" == done
    assert ["t1", " t2", " t3"] == [e["choices"][0]["text"] for e in events]
    assert [None, None, "length"] == [e["choices"][0]["finish_reason"] for e in events]
    assert not any("usage" in event for event in events)


def test_usage_comes_once_and_last_unless_it_is_continuous(served):
    options = {"include_usage": True}
    *events, last, done = _events(
        served.complete(max_tokens=3, stream=True, stream_options=options)
    )
    assert "[DONE]" == done
    assert not any("usage" in event for event in events)
    assert ([], _usage(3, 3)) == (last["choices"], last["usage"])


def test_continuous_usage_counts_every_event(served):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, last, _ = _events(served.complete(max_tokens=3, stream=True, stream_options=options))
    assert [_usage(3, n) for n in (1, 2, 3)] == [event["usage"] for event in events]
    assert _usage(3, 3) == last["usage"]


def test_continuous_usage_alone_is_none_as_in_vllm(served):
    options = {"continuous_usage_stats": True}
    *events, _ = _events(served.complete(max_tokens=2, stream=True, stream_options=options))
    assert not any("usage" in event for event in events)


def test_a_chat_begins_with_a_role_that_carries_no_token(served):
    options = {"include_usage": True, "continuous_usage_stats": True}
    first, *events, last, done = _events(
        served.chat(max_tokens=2, stream=True, stream_options=options)
    )
    assert {"role": "assistant", "content": ""} == first["choices"][0]["delta"]
    # The role of the message, its three words, the role that answers.
    assert _usage(5, 0) == first["usage"]
    assert ["t1", " t2"] == [event["choices"][0]["delta"]["content"] for event in events]
    assert "length" == events[-1]["choices"][0]["finish_reason"]
    assert ([], _usage(5, 2)) == (last["choices"], last["usage"])
    assert "[DONE]" == done
    assert {"chat.completion.chunk"} == {event["object"] for event in (first, *events, last)}


def test_a_chat_reads_parts_and_goes_on_to_the_models_length(serve):
    served = serve(max_model_len=12)
    body = served.chat([{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]).json()
    assert _usage(5, 7) == body["usage"]
    assert "t1 t2 t3 t4 t5 t6 t7" == body["choices"][0]["message"]["content"]
    assert 3 == served.chat(max_completion_tokens=3).json()["usage"]["completion_tokens"]


def test_an_answer_has_the_id_that_the_header_asks_for(served):
    response = served.client.post(
        "/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": 'mine-100%"'}
    )
    assert 'cmpl-mine-100%"' == response.json()["id"]
    streamed = served.client.post(
        "/v1/completions",
        json={"prompt": "a", "stream": True, "max_tokens": 3},
        headers={"X-Request-Id": 'mine-100%"'},
    )
    assert {'cmpl-mine-100%"'} == {event["id"] for event in _events(streamed)[:-1]}


# Where an answer ends.


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(served, stream, is_kept):
    response = served.complete(
        max_tokens=50, stop=["zzz", "t3 t4"], include_stop_str_in_output=is_kept, stream=stream
    )
    if stream:
        *events, _ = _events(response)
        text = "".join(event["choices"][0]["text"] for event in events)
        last = events[-1]["choices"][0]
        assert 4 == len(events)
    else:
        last = response.json()["choices"][0]
        text = last["text"]
        assert 4 == response.json()["usage"]["completion_tokens"]
    assert ("stop", "t3 t4") == (last["finish_reason"], last["stop_reason"])
    assert ("t1 t2 t3 t4" if is_kept else "t1 t2 ") == text


def test_text_that_may_begin_a_stop_string_is_held_back(served):
    *events, _ = _events(served.complete(max_tokens=3, stop=" t9", stream=True))
    # Two characters wait for the next token; the last token brings what is left.
    assert ["", "t1 ", "t2 t3"] == [event["choices"][0]["text"] for event in events]


def test_stop_strings_wait_for_min_tokens(served):
    choice = served.complete(max_tokens=9, min_tokens=4, stop="t").json()["choices"][0]
    assert ("stop", "t1 t2 t3 t4 ") == (choice["finish_reason"], choice["text"])


def test_answers_end_by_themselves_where_the_model_is_given_a_mean(serve):
    served = serve(options={"mean_output_tokens": 4.0, "seed": 7})
    bodies = [served.complete(max_tokens=100).json() for _ in range(30)]
    counts = [body["usage"]["completion_tokens"] for body in bodies]
    assert {"stop"} == {body["choices"][0]["finish_reason"] for body in bodies}
    assert len(set(counts)) > 3
    assert 2 < sum(counts) / len(counts) < 8
    # The end-of-sequence token counts and has no text.
    assert [n - 1 for n in counts] == [len(b["choices"][0]["text"].split()) for b in bodies]
    forced = served.complete(max_tokens=40, min_tokens=40).json()
    assert 40 == forced["usage"]["completion_tokens"]
    ignoring = served.complete(max_tokens=40, ignore_eos=True).json()
    assert "length" == ignoring["choices"][0]["finish_reason"]


def test_stream_interval_joins_tokens_but_the_first_and_the_last(serve):
    options = {"include_usage": True, "continuous_usage_stats": True}
    served = serve(stream_interval=3)
    *events, _, _ = _events(served.complete(max_tokens=8, stream=True, stream_options=options))
    assert [1, 4, 7, 8] == [event["usage"]["completion_tokens"] for event in events]
    assert ["t1", " t2 t3 t4", " t5 t6 t7", " t8"] == [e["choices"][0]["text"] for e in events]
    (record,) = served.golden()
    assert [1, 4, 7, 8] == record["sent_tokens"]


# Refusals.


def _error(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert response.status_code == error["code"]
    assert {"message", "type", "param", "code"} == set(error)
    return dict(error)


def test_a_prompt_over_the_models_length_is_refused_in_vllms_words(serve):
    served = serve(max_model_len=32)
    error = _error(served.complete([1] * 40, max_tokens=1))
    assert (400, "BadRequestError", "input_tokens") == (
        error["code"],
        error["type"],
        error["param"],
    )
    assert (
        "This model's maximum context length is 32 tokens. However, your prompt contains 40 input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the "
        "length of the input prompt."
    ) == error["message"]
    assert "at least 33 input tokens" in _error(served.complete([1] * 33))["message"]
    full = _error(served.complete([1] * 32, max_tokens=1))
    assert "The decoder prompt (length 32) plus the number of requested output" in full["message"]
    long = _error(served.complete([1], max_tokens=33))
    assert "max_tokens=33 cannot be greater than max_model_len=32" in long["message"]


def test_the_output_is_cut_to_the_models_length(serve):
    served = serve(max_model_len=32)
    assert 2 == served.complete([1] * 30, max_tokens=20).json()["usage"]["completion_tokens"]
    error = _error(served.complete([1] * 30, max_tokens=20, min_tokens=20))
    assert "min_tokens must be less than or equal to max_tokens=2, got 20." == error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"echo": True}, "echo"),
        ({"logprobs": 0}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(served, fields, param):
    error = _error(served.complete(**fields))
    assert (400, param) == (error["code"], error["param"])
    assert f"`{param}` is not supported by the simulator" in error["message"]


def test_harmless_forms_of_the_same_fields_are_taken(served):
    fields = {"n": 1, "echo": False, "logprobs": None, "temperature": 0.5, "top_p": 0.9, "seed": 3}
    assert 200 == served.complete(**fields, user="u", stop=[], stop_token_ids=[7]).status_code
    assert 200 == served.chat(logprobs=False, max_tokens=1, tool_choice="auto").status_code


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1, -2]},
        {"prompt": [1, True]},
        {"prompt": [1, "a"]},
        {"prompt": [[1], "a"]},
        {"prompt": {"a": 1}},
        {"prompt": 7},
        {"prompt": [1.5]},
        {"max_tokens": "many"},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"max_tokens": 10**30},
        {"min_tokens": -1},
        {"stream": "yes"},
        {"stop": [1]},
        {"stop": ""},
        {"model": 7},
        {"stream_options": [1], "stream": True},
        {"priority": "high"},
        {"stream_interval": 0},
    ],
)
def test_malformed_fields_are_refused(served, fields):
    response = served.client.post("/v1/completions", json={"prompt": "a", **fields})
    assert 400 == _error(response)["code"]


@pytest.mark.parametrize("fields", [{}, {"prompt": None}, {"prompt": ""}])
def test_no_prompt_is_refused(served, fields):
    error = _error(served.client.post("/v1/completions", json=fields))
    assert "Either prompt or prompt_embeds must be provided and non-empty." == error["message"]


@pytest.mark.parametrize("prompt", [[], [[]], "   ", ["a", " "]])
def test_an_empty_prompt_is_refused(served, prompt):
    assert "The decoder prompt cannot be empty" == _error(served.complete(prompt))["message"]
    assert 0 == served.health()["running"]


@pytest.mark.parametrize("max_tokens", [0, -3])
def test_an_output_of_no_tokens_is_refused(served, max_tokens):
    error = _error(served.complete(max_tokens=max_tokens))
    assert f"max_tokens must be at least 1, got {max_tokens}." == error["message"]


@pytest.mark.parametrize(
    "messages", [None, "hi", [], ["hi"], [{}], [{"role": "user", "content": 3}]]
)
def test_malformed_messages_are_refused(served, messages):
    response = served.client.post("/v1/chat/completions", json={"messages": messages})
    assert 400 == _error(response)["code"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(served, body):
    response = served.client.post(
        "/v1/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert 400 == _error(response)["code"]
    assert 200 == served.complete().status_code


def test_another_media_type_is_refused(served):
    response = served.client.post("/v1/completions", content=b'{"prompt":"a"}')
    assert "Only 'application/json' is allowed" in _error(response)["message"]


def test_an_unknown_model_is_not_found(served):
    error = _error(served.complete(model="gpt-9"))
    assert (404, "NotFoundError", "model") == (error["code"], error["type"], error["param"])
    assert "The model `gpt-9` does not exist." == error["message"]


def test_stream_options_need_a_stream(served):
    error = _error(served.complete(stream_options={"include_usage": True}))
    assert "Stream options can only be defined when `stream=True`." == error["message"]


def test_unknown_paths_and_methods(served):
    assert 404 == _error(served.client.get("/v1/nothing"))["code"]
    assert 405 == _error(served.client.get("/v1/completions"))["code"]
    assert 405 == _error(served.client.post("/health"))["code"]


def test_health_models_and_version(serve):
    served = serve(options={"served_model_name": "mine"}, max_model_len=100)
    assert (200, b"") == (
        served.client.get("/health").status_code,
        served.client.get("/health").content,
    )
    (card,) = served.client.get("/v1/models").json()["data"]
    assert ("mine", 100) == (card["id"], card["max_model_len"])
    assert served.client.get("/version").json()["version"].endswith("+sim")
    assert "mine" == served.complete(model="mine").json()["model"]


def test_an_api_key_guards_the_api_and_the_log_as_vllm_does(serve: Callable[..., Any]):
    served = serve(options={"api_key": "secret"})
    assert 401 == served.complete().status_code
    assert 401 == served.client.get("/golden/requests").status_code
    assert 200 == served.client.get("/health").status_code
    assert 200 == served.client.get("/metrics").status_code
    for given, status in (("Bearer secret", 200), ("Bearer wrong", 401), ("secret", 401)):
        answer = served.client.get("/v1/models", headers={"Authorization": given})
        assert status == answer.status_code
