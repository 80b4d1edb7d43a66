import math
from pathlib import Path

import hypothesis.strategies as st
import tomlkit
from hypothesis import HealthCheck, given, settings

from vllm_slo.errors import ThresholdsError
from vllm_slo.settings import Settings
from vllm_slo.slo.limits import LIMIT_NAMES
from vllm_slo.slo.thresholds import Thresholds

VALID = {
    "meta": {"device": "d", "model": "m", "provenance": "reported", "source": "s"},
    "row": [
        {
            "scenario": "uniform",
            "settings": {"max_num_seqs": 8},
            "advisory": ["ttft_p99_ms"],
            "accept": ["roofline"],
            "concurrency": 8,
            "date": "2026-01-01",
            "headroom": 0.2,
            "samples": 9,
            "limits": {
                "ttft_p99_ms": 100,
                "preemptions": {"min": 1, "max": 2},
                "class": {"long": {"ttft_p99_ms": 100}},
            },
        },
        {"scenario": "mixed", "limits": {"goodput": 0.9}},
    ],
}
keys = st.sampled_from(
    ["meta", "row", "limits", "class", "min", "settings", "scenario", "date", "extra", *LIMIT_NAMES]
) | st.text(min_size=1, max_size=5)
scalars = (
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e308, 2**62, 10**400, True, ""])
    | st.integers(-(2**62), 2**62)
    | st.text(max_size=5)
    | st.dates()
    | st.datetimes()
    | st.times()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=5,
)


@st.composite
def broken(draw, node=None):
    """The valid document with one node, somewhere, put in another's place, added or left out."""
    node = VALID if node is None else node
    if isinstance(node, list):
        at = draw(st.integers(0, len(node) - 1))
        return [draw(broken(one)) if i == at else one for i, one in enumerate(node)]
    if not isinstance(node, dict) or draw(st.integers(0, 4)) == 0:
        return draw(values)
    what = draw(st.sampled_from([*node, *node, "another"]))
    if what == "another":
        return {**node, draw(keys): draw(values)}
    if draw(st.integers(0, 5)) == 0:
        return {key: value for key, value in node.items() if key != what}
    return {k: draw(broken(v)) if k == what else v for k, v in node.items()}


@given(broken())
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_file_says_it_is_read_or_refused_with_its_place(document):
    text = tomlkit.dumps(document) if isinstance(document, dict) else str(document)
    try:
        thresholds = Thresholds.parse(text, Path("t.toml"))
    except ThresholdsError as error:
        place, _, what = str(error).removeprefix("t.toml:").partition(": ")
        assert place.isdigit()
        assert what
        assert int(place) <= text.count("\n") + 1
        return
    for row in thresholds.rows:
        assert all(math.isfinite(limit.value) for limit in row.limits)
        assert all(limit.text for limit in row.limits)
        row.matches(Settings(max_num_seqs=8))
