"""However a stream is cut the numbers are the same, and no bytes make the reader raise."""

import json
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from vllm_slo.load import record_from_reads
from vllm_slo.measure.record import RequestRecord


def read(reads: list[tuple[float, bytes]], *, api: str, tokens: int) -> RequestRecord:
    return record_from_reads(
        reads,
        api=api,
        status=200,
        planned_prompt_tokens=8,
        planned_output_tokens=tokens,
        scheduled_s=0.0,
        sent_s=0.0,
    )


def timeless(one: RequestRecord) -> tuple[object, ...]:
    tokens = None if one.event_tokens is None else one.event_tokens.tolist()
    counts = (len(one.event_s), tokens, one.prompt_tokens, one.output_tokens)
    return (one.error, *counts, one.finish_reason)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, str, int]:
    """A valid stream, its API, and its number of tokens."""
    api = draw(st.sampled_from(["completions", "chat"]))
    steps = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(any))
    has_usage = draw(st.booleans())
    line_end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    ascii_only = draw(st.booleans())
    noise = st.sampled_from(["", ": ping", "event: message", "id: 7", "retry: 5"])
    tokens, lines = 0, ["\ufeff" if draw(st.booleans()) else ""]
    for number, step in enumerate(steps):
        tokens += step
        text = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8))
        name = draw(st.sampled_from(["content", "reasoning"]))
        choice = {"index": 0} | (
            {"text": text} if api == "completions" else {"delta": {name: text}}
        )
        choice["finish_reason"] = "length" if number == len(steps) - 1 else None
        event: dict[str, object] = {"choices": [choice]}
        if has_usage:
            event["usage"] = {"prompt_tokens": 8, "completion_tokens": tokens}
        data = json.dumps(event, ensure_ascii=ascii_only)
        comment = draw(noise)
        lines += [comment] if comment else []
        lines += [f"data:{draw(st.sampled_from(['', ' ']))}{data}", ""]
    last = {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens}}
    lines += [f"data: {json.dumps(last)}", "", "data: [DONE]", "", ""]
    if lines[0] == "":
        del lines[0]
    else:
        lines[0:2] = [lines[0] + lines[1]]
    return line_end.join(lines).encode(), api, tokens


@given(stream=streams(), cuts=st.lists(st.floats(0, 1), max_size=40))
def test_any_cut_of_a_stream_gives_the_same_numbers(stream, cuts):
    body, api, tokens = stream
    edges = sorted({0, len(body), *(int(cut * len(body)) for cut in cuts)})
    pieces = [body[a:b] for a, b in pairwise(edges)]
    reads = [(float(at_s), piece) for at_s, piece in enumerate(pieces, start=1)]

    whole = read([(1.0, body)], api=api, tokens=tokens)
    cut = read(reads, api=api, tokens=tokens)

    assert whole.error is None
    assert timeless(whole) == timeless(cut)
    # An event arrives with the read that holds its last byte, and reads only go forward.
    assert sorted(cut.event_s.tolist()) == cut.event_s.tolist()
    assert set(cut.event_s.tolist()) <= {at_s for at_s, _ in reads}


@given(stream=streams())
def test_the_tokens_of_the_events_add_up_to_the_output(stream):
    body, api, tokens = stream
    one = read([(1.0, body)], api=api, tokens=tokens)
    assert one.event_tokens is None or tokens == one.event_tokens.sum()


@given(stream=streams(), end=st.floats(0, 1, exclude_max=True))
def test_a_stream_that_lacks_its_end_is_never_good(stream, end):
    body, api, tokens = stream
    whole = body[: body.rindex(b"data: [DONE]") + len(b"data: [DONE]")]
    cut = whole[: int(end * len(whole))]
    assert not read([(1.0, cut)], api=api, tokens=tokens).ok


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "usage", "error", "delta", "text", "index", "message"])
            | st.sampled_from(["finish_reason", "completion_tokens", "prompt_tokens", "object"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
PIECES = (
    st.binary(max_size=20)
    | st.sampled_from([b"data: ", b"\n\n", b"\r", b"[DONE]", b"event: error\n", b"\xef\xbb\xbf"])
    | ANY_JSON.map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n")
)


@given(
    pieces=st.lists(PIECES, max_size=12),
    status=st.none() | st.integers(100, 599),
    api=st.sampled_from(["completions", "chat"]),
)
@example(pieces=[b'data: {"error": ' + b'{"a":' * 980 + b"1" + b"}" * 981], status=200, api="chat")
def test_no_bytes_make_it_raise(pieces, status, api):
    one = record_from_reads(
        [(float(at_s), piece) for at_s, piece in enumerate(pieces)],
        api=api,
        status=status,
        planned_prompt_tokens=8,
        planned_output_tokens=4,
        scheduled_s=0.0,
        sent_s=0.0,
    )
    assert one.ok or one.error.isprintable()
    assert one.ok or one.error == one.error.encode().decode()
