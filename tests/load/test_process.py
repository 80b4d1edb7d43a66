"""What a round asks of its process, and gives back."""

import os

import pytest

from vllm_slo.load.process import first_turn


def test_the_client_has_the_first_turn_during_a_round_only():
    before = os.sched_getscheduler(0)
    with first_turn():
        during = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        assert during in (os.SCHED_RR, before)  # as it was where the system does not permit it
    assert os.sched_getscheduler(0) == before


def test_a_system_that_permits_no_priority_leaves_it_as_it_was(monkeypatch):
    def refuse(*_):
        raise PermissionError

    before = os.sched_getscheduler(0)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with first_turn():
        assert os.sched_getscheduler(0) == before


def test_a_fault_in_a_round_gives_the_turn_back():
    before = os.sched_getscheduler(0)
    with pytest.raises(KeyboardInterrupt), first_turn():
        raise KeyboardInterrupt
    assert os.sched_getscheduler(0) == before
