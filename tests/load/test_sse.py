"""The form of server-sent events, after the WHATWG specification."""

import pytest

from vllm_slo.load.sse import SseDecoder


def decoded(*reads: bytes) -> list[tuple[bytes, bytes]]:
    decoder = SseDecoder()
    return [event for read in reads for event in decoder.feed(read)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\n\n", [(b"", b"a")]),
        (b"data:  a\n\n", [(b"", b" a")]),
        (b"data\n\n", [(b"", b"")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"data: a\r\rdata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"event: ping\nid: 3\nretry: 10\ndata: a\n\n", [(b"ping", b"a")]),
        (b"event: ping\n\ndata: a\n\n", [(b"", b"a")]),
        (b": a comment\ndata: a\n\n", [(b"", b"a")]),
        (b"datax: a\n\n", []),
        (b" data: a\n\n", []),
        (b"\n\n\n", []),
        (b"data: a\n", []),
    ],
)
def test_events_of_a_stream_whole_and_byte_by_byte(stream, events):
    assert events == decoded(stream)
    assert events == decoded(*(stream[i : i + 1] for i in range(len(stream))))


def test_a_crlf_over_two_reads_is_one_line_end():
    decoder = SseDecoder()
    assert [[], [], [], [(b"", b"a\nb")], []] == [
        decoder.feed(read) for read in (b"data: a\r", b"\ndata: b\r", b"\n", b"\r", b"\n")
    ]


def test_the_rest_is_the_event_that_lacks_its_blank_line():
    decoder = SseDecoder()
    assert [] == decoder.feed(b"event: error\ndata: a")
    assert [(b"error", b"a")] == decoder.rest()
    assert [] == decoder.rest()
