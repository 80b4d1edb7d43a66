"""Trace files: read exactly, refused with file and line, cut and scaled with nothing lost."""

import gzip
import json
from pathlib import Path

import pytest

from vllm_slo.errors import TraceError
from vllm_slo.traffic import read_trace, trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:58.1000001,374,44
2023-11-16 23:59:59.0000000,396,109
2023-11-16 23:59:59.0000000,879,55
2023-11-17 00:00:01.6000001,91,16
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 500, "input_length": 1100, "output_length": 26, "hash_ids": [46, 47, 49]},
    {"timestamp": 3500.5, "input_length": 300, "output_length": 1},
]


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def mooncake(write):
    return write("".join(json.dumps(line) + "\n" for line in MOONCAKE), "trace.jsonl")


def test_azure_times_are_exact_and_count_from_the_first_request(write):
    found = read_trace(write(AZURE))
    assert found.arrival_s.tolist() == pytest.approx([0, 0.8999999, 0.8999999, 3.5], abs=1e-9)
    assert found.input_tokens.tolist() == [374, 396, 879, 91]
    assert found.output_tokens.tolist() == [44, 109, 55, 16]
    assert found.hash_ids is None


@pytest.mark.parametrize(
    "text",
    [
        AZURE.replace("\n", "\r\n"),
        "\ufeff" + AZURE,
        AZURE.rstrip("\n"),
        AZURE + "\n\n",
        AZURE.replace("1000001,", "1000001+00:00,")
        .replace("0000000,", "0000000+00:00,")
        .replace("6000001,", "6000001+00:00,"),
        AZURE.replace(" 23", "T23").replace(" 00", "T00"),
        AZURE.replace("TIMESTAMP,Context", "timestamp, context"),
    ],
    ids=["crlf", "bom", "no last newline", "blank lines", "time zone", "T", "header case"],
)
def test_azure_variants_read_the_same(write, text):
    expected, found = read_trace(write(AZURE, "plain.csv")), read_trace(write(text, "other.csv"))
    assert found.arrival_s.tolist() == expected.arrival_s.tolist()
    assert found.input_tokens.tolist() == expected.input_tokens.tolist()


def test_azure_columns_are_found_by_name(write):
    text = "Model,GeneratedTokens,TIMESTAMP,ContextTokens\nm,7,2024-05-10 00:00:00,31\n"
    found = read_trace(write(text))
    assert (found.input_tokens.tolist(), found.output_tokens.tolist()) == ([31], [7])


def test_a_zone_other_than_utc_is_counted(write):
    text = AZURE.splitlines()[0] + (
        "\n2024-05-10 00:59:59.5+01:00,5,5\n2024-05-10 00:00:00.25+00:00,6,6\n"
    )
    assert read_trace(write(text)).arrival_s.tolist() == [0.0, 0.75]


def test_gzipped_traces_are_read(write, mooncake):
    azure = read_trace(write(gzip.compress(AZURE.encode()), "trace.csv.gz"))
    assert azure.input_tokens.tolist() == [374, 396, 879, 91]
    packed = read_trace(write(gzip.compress(mooncake.read_bytes()), "trace.jsonl.gz"))
    assert packed.input_tokens.tolist() == [1200, 1100, 300]


def test_mooncake_times_are_milliseconds(mooncake):
    found = read_trace(mooncake)
    assert found.arrival_s.tolist() == [0.0, 0.5, 3.5005]
    assert found.output_tokens.tolist() == [52, 26, 1]


def test_shared_hash_ids_share_tokens_in_blocks_of_512(mooncake):
    workload = trace(mooncake)
    first, second, third = (workload.prompt_ids(r, vocab_size=32_000) for r in workload.requests)
    assert [len(one) for one in (first, second, third)] == [1200, 1100, 300]
    assert first[:1024].tolist() == second[:1024].tolist()
    assert (first[1024:1034] != second[1024:1034]).any()
    assert workload.requests[2].segments == ()
    assert [s.tokens for s in workload.requests[0].segments] == [512, 512, 176]


def test_tokens_without_a_hash_id_are_the_requests_own(write):
    lines = [
        {"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [5]},
        {"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [5]},
    ]
    path = write("\n".join(map(json.dumps, lines)), "trace.jsonl")
    workload = trace(path)
    one, two = (workload.prompt_ids(r, vocab_size=32_000).tolist() for r in workload.requests)
    assert one[:512] == two[:512]
    assert one[512:520] != two[512:520]
    assert len(one) == 700


def test_clipped_prompts_keep_their_first_blocks(mooncake):
    workload = trace(mooncake, max_input_tokens=600)
    assert [s.tokens for s in workload.requests[0].segments] == [512, 88]


def test_reseeding_changes_the_prompts_only(mooncake):
    workload = trace(mooncake, seed=1)
    other = workload.reseeded(2)
    assert other.requests == workload.requests
    one, two = (w.prompt_ids(w.requests[0], vocab_size=32_000) for w in (workload, other))
    assert (one[:512] != two[:512]).any()


def test_a_piece_starts_at_its_own_zero(write):
    path = write(AZURE)
    piece = trace(path, start_s=0.5, duration_s=1.0, rate_scale=2.0)
    assert [r.arrival_s for r in piece.requests] == pytest.approx([0.2, 0.2], abs=1e-6)
    assert [r.input_tokens for r in piece.requests] == [396, 879]
    # The end is not part of the piece, the start is.
    assert len(trace(path, duration_s=3.5000000).requests) == 3
    assert [r.index for r in piece.requests] == [0, 1]


def test_a_piece_has_at_most_the_requests_asked_for(write):
    assert len(trace(write(AZURE), requests=2).requests) == 2
    assert len(trace(write(AZURE), requests=9).requests) == 4


def test_clipping_is_counted_and_said(write):
    workload = trace(write(AZURE), max_input_tokens=380, max_output_tokens=50)
    assert [r.input_tokens for r in workload.requests] == [374, 380, 380, 91]
    assert [r.output_tokens for r in workload.requests] == [44, 50, 50, 16]
    params = dict(workload.params)
    assert (params["clipped_inputs"], params["clipped_outputs"]) == (2, 2)
    assert params["trace"] == "trace.csv"


def test_a_trace_is_an_open_loop_at_its_own_rate(write):
    workload = trace(write(AZURE))
    assert not workload.is_closed_loop
    assert read_trace(write(AZURE)).scaled(2).rate == pytest.approx(2 * 4 / 3.5)


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = "2023-11-16 18:17:03.9799600,4808,10\n"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["empty"]),
        (HEADER, ["no requests"]),
        ("a,b,c\n1,2,3\n", ["line 1", "no column TIMESTAMP, ContextTokens", "has a, b, c"]),
        (HEADER + GOOD + "2023-11-16 18:17", ["line 3", "1 fields where the header has 3"]),
        (HEADER + GOOD + "2023-11-16 18:17:04.0,7", ["line 3", "2 fields"]),
        (HEADER + GOOD + "2023-11-16 18:17:04.0,7,\n", ["line 3", "GeneratedTokens", "''"]),
        (HEADER + GOOD.replace("4808", "nan"), ["line 2", "ContextTokens", "'nan'"]),
        (HEADER + GOOD.replace("4808", "-5"), ["line 2", "ContextTokens", "'-5'"]),
        (HEADER + GOOD.replace("4808", "0"), ["line 2", "from 1 to", "not 0"]),
        (HEADER + GOOD.replace("4808", "4.5"), ["line 2", "'4.5'"]),
        (HEADER + GOOD.replace("4808", "1_000"), ["line 2", "'1_000'"]),
        (HEADER + GOOD.replace("4808", "٣"), ["line 2", "ContextTokens"]),
        (HEADER + GOOD.replace("4808", "9" * 12), ["line 2", "from 1 to"]),
        (HEADER + GOOD.replace("4808", "9" * 9999), ["line 2", "ContextTokens"]),
        (HEADER + GOOD.replace("18:17", "25:17"), ["line 2", "TIMESTAMP", "25:17"]),
        (HEADER + GOOD.replace(".9799600", "."), ["line 2", "not a date and time"]),
        (HEADER + GOOD.replace(".9799600", ".97abc"), ["line 2", "not a date and time"]),
        (HEADER + "12.5,5,5\n", ["line 2", "not a date and time"]),
        (HEADER + GOOD + GOOD.replace("03.97", "03.96"), ["line 3", "earlier", "sort"]),
        (HEADER + GOOD + GOOD.replace("600,", "600+00:00,"), ["line 3", "time zone on some"]),
        (HEADER.encode() + b"\xff\xfe\x00,1,1\n", ["not UTF-8"]),
        (HEADER + GOOD + '"2023,1,1\n', ["line 3"]),
    ],
)
def test_bad_azure_files_are_refused_with_their_line(write, text, faults):
    path = write(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path, form="azure")
    for fault in (str(path), *faults):
        assert fault in str(caught.value)


GOOD_LINE = '{"timestamp": 5, "input_length": 600, "output_length": 7}\n'


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"timestamp": 9, "input_le', "not JSON"),
        ("[1, 2, 3]", "an object is wanted"),
        ("{}", "no timestamp, input_length, output_length; it has nothing"),
        ('{"timestamp": 9, "input_length": 4}', "no output_length"),
        (GOOD_LINE.replace("5,", "NaN,"), "timestamp must be"),
        (GOOD_LINE.replace("5,", "Infinity,"), "timestamp must be"),
        (GOOD_LINE.replace("5,", "-1,"), "timestamp must be"),
        (GOOD_LINE.replace("5,", '"5",'), "timestamp must be"),
        (GOOD_LINE.replace("5,", "1" + "0" * 400 + ","), "timestamp must be"),
        (GOOD_LINE.replace("5,", "4,"), "earlier"),
        (GOOD_LINE.replace("600", "0"), "input_length must be from 1"),
        (GOOD_LINE.replace("600", "true"), "input_length must be a whole number"),
        (GOOD_LINE.replace("600", "6.5"), "input_length must be a whole number"),
        (GOOD_LINE.replace("7}", "-7}"), "output_length must be from 1"),
        (GOOD_LINE.replace("7}", "9" * 5000 + "}"), "not JSON that can be read"),
        (GOOD_LINE.replace("7}", '7, "hash_ids": [1, 2, 3]}'), "more blocks of 512"),
        (GOOD_LINE.replace("7}", '7, "hash_ids": [-1]}'), "hash_ids must be"),
        (GOOD_LINE.replace("7}", '7, "hash_ids": "1"}'), "hash_ids must be"),
    ],
)
def test_bad_mooncake_lines_are_refused_with_their_line(write, line, fault):
    path = write(GOOD_LINE + "\n" + line, "trace.jsonl")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert fault in str(caught.value)


def test_files_that_cannot_be_read_are_refused(write, tmp_path):
    half = gzip.compress(AZURE.encode() * 50)[:-20]
    for path in (
        tmp_path / "missing.csv",
        tmp_path,
        write("  \n", "blank.csv"),
        write(half, "half.csv.gz"),
        write(AZURE, "not.gz"),
    ):
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"start_s": 100.0}, "no request between 100 s"),
        ({"start_s": -1.0}, "start_s must be"),
        ({"start_s": float("nan")}, "start_s must be"),
        ({"duration_s": 0.0}, "duration_s must be"),
        ({"rate_scale": 0.0}, "rate_scale must be"),
        ({"rate_scale": float("inf")}, "rate_scale must be"),
        ({"requests": 0}, "requests must be"),
        ({"max_input_tokens": 0}, "max_input_tokens must be"),
    ],
)
def test_pieces_that_make_no_sense_are_refused(write, options, fault):
    with pytest.raises(TraceError) as caught:
        trace(write(AZURE), **options)
    assert fault in str(caught.value)
