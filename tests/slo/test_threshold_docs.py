import re
from pathlib import Path

from vllm_slo.slo.laws import LAWS, SCHEMA
from vllm_slo.slo.thresholds import Thresholds

DOCS = Path(__file__).parents[2] / "docs/thresholds.md"


def test_the_example_of_the_documentation_is_a_threshold_file():
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    rows = Thresholds.parse(example, DOCS).rows
    titles = ["uniform max_num_seqs=32", "preemption max_num_seqs=64,num_gpu_blocks_override=1000"]
    assert titles == [row.title for row in rows]


def test_every_lint_rule_is_documented():
    named = set(re.findall(r"^\| `([a-z-]+)` \|", DOCS.read_text(), flags=re.MULTILINE))
    assert {*LAWS, SCHEMA} <= named
