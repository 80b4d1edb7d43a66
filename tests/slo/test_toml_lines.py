import tomllib
from typing import Any

import hypothesis.strategies as st
import tomlkit
from hypothesis import given, settings

from vllm_slo.slo.lines import key_lines

EXAMPLE = '''\
# a comment with a [table] in it
[meta]
note = """
several [lines]
x = 1 \\""" not the end"""

[[row]]
scenario = "uniform # not a comment"   # a comment
"odd.key" = 'c:\\path'
settings = { max_num_seqs = 8, "x y" = [1, { z = 2 }] }
list = [
  "]",  # one
  "two",
]

  [row.limits]
  ttft_p99_ms = 852
  class.long.ttft_p99_ms = 900

[[row]]
scenario = "mixed"
[row.limits.class.short]
ttft_p99_ms = 1'''


def paths_of(value: Any, at: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    if isinstance(value, dict):
        below = value.items()
    elif isinstance(value, list):
        below = enumerate(value)
    else:
        below = ()
    found = {at} if at else set()
    for key, one in below:
        found |= paths_of(one, (*at, key))
    return found


def test_every_key_has_the_line_that_it_is_written_in():
    lines = key_lines(EXAMPLE)
    expected = {
        ("meta",): 2,
        ("meta", "note"): 3,
        ("row", 0): 7,
        ("row", 0, "scenario"): 8,
        ("row", 0, "odd.key"): 9,
        ("row", 0, "settings", "max_num_seqs"): 10,
        ("row", 0, "settings", "x y", 1, "z"): 10,
        ("row", 0, "list", 0): 12,
        ("row", 0, "list", 1): 13,
        ("row", 0, "limits"): 16,
        ("row", 0, "limits", "ttft_p99_ms"): 17,
        ("row", 0, "limits", "class", "long", "ttft_p99_ms"): 18,
        ("row", 1): 20,
        ("row", 1, "limits", "class", "short", "ttft_p99_ms"): 23,
    }
    assert expected == {path: lines[path] for path in expected}


def test_windows_line_ends_count_once():
    assert key_lines(EXAMPLE) == key_lines(EXAMPLE.replace("\n", "\r\n"))


names = st.one_of(st.sampled_from(["a", "limits", "row"]), st.text(min_size=1, max_size=4))
scalars = st.one_of(
    st.integers(-9, 9), st.booleans(), st.text(max_size=9), st.dates(), st.just(1.5)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=9,
)


@given(st.dictionaries(names, values, max_size=4))
@settings(deadline=None, max_examples=80)
def test_the_keys_are_those_that_tomllib_reads(document):
    text = tomlkit.dumps(document)
    assert paths_of(tomllib.loads(text)) == set(key_lines(text))
