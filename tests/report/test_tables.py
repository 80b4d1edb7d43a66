"""The terminal tables and the Markdown one, from results in plain values."""

import json
import math

import pytest

from vllm_slo.report.document import document, write_document
from vllm_slo.report.github import summary
from vllm_slo.report.result import LimitResult, Result
from vllm_slo.report.table import render


def limit(text="ttft p(99) < 852ms", outcome="PASS", **values):
    given = {"measured": 801.26, "samples": 1280, "interval": (790.0, 812.5)}
    return LimitResult(text=text, outcome=outcome, **given | values)


def result(**values):
    given = {
        "nodeid": "test_it.py::test_uniform[seqs8]",
        "row": "uniform",
        "row_title": "uniform max_num_seqs=8",
        "line": 7,
        "settings": "seqs8-batched2048",
        "engine": {
            "target": "gpu",
            "device": "a100-80gb",
            "model": "llama-3-8b",
            "vllm_version": "0.32.0",
            "server_log": "1.log",
        },
        "thresholds": "thresholds/a100-80gb/llama-3-8b.toml",
        "outcome": "PASS",
        "reasons": (),
        "limits": (limit(),),
        "figures": {"ttft_p50_ms": 400.4, "ttft_p99_ms": 801.26, "output_tok_s": 12345.6},
        "rounds": 5,
        "requests": 1280,
        "failed_requests": 0,
    }
    return Result(**given | values)


SWEEP = [
    result(settings=f"seqs{n}-batched2048-len4096-noprefix", figures={"ttft_p99_ms": 10.0**i})
    for i, n in enumerate((8, 16, 32, 64))
]


def test_figures_and_limits_are_a_line_each():
    text = render([result()], width=100, colour=False)
    assert (
        """\
a100-80gb, llama-3-8b, vLLM 0.32.0
                               TTFT    TTFT  output
scenario  settings           p50 ms  p99 ms   tok/s  requests  rounds  verdict
uniform   seqs8 batched2048     400     801  12,346     1,280       5  PASS

limit                       measured    interval  samples  effective  verdict
uniform, seqs8 batched2048
  ttft p(99) < 852ms             801  790 .. 812    1,280          -  PASS
"""
        == text
    )


def test_shared_settings_stand_once_and_numbers_line_up():
    lines = render(SWEEP, width=80, colour=False).splitlines()
    assert "all with batched2048 len4096 noprefix" == lines[1]
    rows = lines[4:8]
    assert ["seqs8", "seqs16", "seqs32", "seqs64"] == [row.split()[1] for row in rows]
    numbers = [row.split()[2] for row in rows]
    assert ["1", "10", "100", "1,000"] == numbers
    assert 1 == len({row.index(n) + len(n) for row, n in zip(rows, numbers, strict=True)})


@pytest.mark.parametrize("width", [20, 80, 100, 160])
def test_a_table_keeps_to_the_width_where_that_is_possible(width):
    odd = result(
        row="a scenario with a very long name that somebody chose",
        settings="seqs64-batchedunlimited-blocks1000-block32-len2048-noprefix",
        figures=dict.fromkeys(
            ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_tok_s"), 12345.6
        ),
    )
    text = render([odd, *SWEEP], width=width, colour=False)
    assert max(map(len, text.splitlines())) <= max(80, width)
    assert 5 * 2 == text.count("PASS")


def test_what_did_not_pass_is_put_in_words():
    text = render(
        [
            result(
                outcome="INVALID",
                reasons=("the client sent late",),
                limits=(limit(outcome="INVALID", message="the run is not valid"),),
                warnings=("prompts are texts",),
                notes={"ttft_p99_ms to uniform": 1.254},
            ),
            result(
                outcome="INCONCLUSIVE",
                limits=(
                    limit(outcome="INCONCLUSIVE", message="needs about 4 more rounds"),
                    limit("output >= 90 tok/s", "ADVISORY", message="not judged"),
                ),
            ),
        ],
        width=120,
        colour=False,
    )
    assert text.endswith(
        """\
uniform seqs8-batched2048
  the client sent late
  ttft_p99_ms to uniform: 1.25
  prompts are texts
uniform seqs8-batched2048
  ttft p(99) < 852ms: needs about 4 more rounds
"""
    )


def test_colour_is_only_where_it_is_wanted():
    assert "\x1b[" in render([result()], width=100, colour=True)
    assert "\x1b" not in render([result()], width=100, colour=False)


def test_simulated_and_emulated_are_labelled():
    for target, label in (("sim", "SIMULATED "), ("emulated", "EMULATED "), ("url", "")):
        one = result(engine={**result().engine, "target": target})
        first = render([one], width=100, colour=False).splitlines()[0]
        assert f"{label}a100-80gb, llama-3-8b, vLLM 0.32.0" == first


def test_square_brackets_are_text():
    text = render([result(row="[bold]x[/bold]", reasons=("[red]y",))], width=120, colour=False)
    assert "[bold]x[/bold]" in text
    assert "[red]y" in text


def test_markdown_cannot_be_broken_from_inside():
    text = summary([result(row="a|b\n<script>`x`", reasons=("x\ny",), outcome="INVALID")])
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert ["a\\|b &lt;script>'x'"] == [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert "- **INVALID** uniform max_num_seqs=8: x y" in text


def test_json_has_no_infinity_and_no_secret(tmp_path):
    one = result(
        limits=(limit(measured=math.nan, interval=(-math.inf, math.inf)),),
        figures={"ttft_p50_ms": math.inf},
        reasons=('says "hunter\\2hunter"',),
    )
    written = document(
        [one],
        target="gpu",
        options={},
        boots=1,
        exit_status=0,
        unused_rows=[],
        notices=[],
    )
    write_document(tmp_path / "a" / "slo.json", written, secrets=["hunter\\2hunter"])
    text = (tmp_path / "a" / "slo.json").read_text()
    (read,) = json.loads(text, parse_constant=pytest.fail)["results"]
    assert (None, [None, None], None) == (
        read["limits"][0]["measured"],
        read["limits"][0]["interval"],
        read["figures"]["ttft_p50_ms"],
    )
    assert ['says "***"'] == read["reasons"]


def test_a_result_crosses_processes_unchanged():
    one = result(notes={"x": 1.0}, server_died="why")
    assert one == Result.from_dict(one.to_dict())
