"""The worker's account, and what the observer makes of it over a round."""

from pathlib import Path

import pytest

from vllm_slo.engine.worker import EmulationObserver
from vllm_slo.engine.worker.account import Account, AccountWriter, read_account
from vllm_slo.errors import EngineEnvironmentError
from vllm_slo.measure.run import EmulationFacts


def test_counts_are_readable_while_they_are_written(tmp_path: Path) -> None:
    writer = AccountWriter(tmp_path / "account")
    assert read_account(tmp_path / "account") == Account(steps=0, overruns=0)
    writer.count()
    writer.count(overrun_ms=1.5)
    writer.count(overrun_ms=0.5)
    assert read_account(tmp_path / "account") == Account(steps=3, overruns=2, late_ms=(1.5, 0.5))


def test_the_latest_overruns_are_kept(tmp_path: Path) -> None:
    writer = AccountWriter(tmp_path / "account")
    for i in range(5000):
        writer.count(overrun_ms=float(i))
    account = read_account(tmp_path / "account")
    assert account.overruns == 5000
    assert account.late_ms == tuple(float(i) for i in range(5000 - 4096, 5000))


def test_a_round_is_the_difference(tmp_path: Path) -> None:
    writer = AccountWriter(tmp_path / "account")
    writer.count(overrun_ms=99.0)
    observer = EmulationObserver(tmp_path / "account")
    observer.begin()
    for _ in range(10):
        writer.count()
    writer.count(overrun_ms=0.7)
    writer.count(overrun_ms=0.4)
    expected = EmulationFacts(steps=12, overruns=2, worst_overrun_ms=0.7)
    assert observer.end() == {"emulation": expected}


def test_a_round_without_overruns_has_no_worst_one(tmp_path: Path) -> None:
    writer = AccountWriter(tmp_path / "account")
    writer.count(overrun_ms=99.0)
    observer = EmulationObserver(tmp_path / "account")
    observer.begin()
    writer.count()
    assert observer.end() == {"emulation": EmulationFacts(steps=1, overruns=0)}


def test_an_engine_that_booted_again_counts_from_zero(tmp_path: Path) -> None:
    writer = AccountWriter(tmp_path / "account")
    for _ in range(5):
        writer.count(overrun_ms=9.0)
    observer = EmulationObserver(tmp_path / "account")
    observer.begin()
    AccountWriter(tmp_path / "account").count(overrun_ms=2.0)
    expected = EmulationFacts(steps=1, overruns=1, worst_overrun_ms=2.0)
    assert observer.end() == {"emulation": expected}


def test_no_account_means_no_padding_worker(tmp_path: Path) -> None:
    with pytest.raises(EngineEnvironmentError, match="no account of the padding worker"):
        EmulationObserver(tmp_path / "account").begin()
    (tmp_path / "account").write_text("something else")
    with pytest.raises(EngineEnvironmentError, match="not an account"):
        EmulationObserver(tmp_path / "account").begin()
