"""What a round asks of its own process: no garbage collection, files enough, and the first turn."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_heap() -> Iterator[None]:
    """No garbage collection inside: a full one would stop the client for tens of milliseconds."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def many_files() -> Iterator[None]:
    """The soft limit of open files at its hard one: an open loop may need any number of sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def first_turn() -> Iterator[None]:
    """This thread runs before every ordinary one, where the system permits it; else as it was.

    A server on the same cores wakes with each request that is written, and would take the core
    from the client in the midst of a burst: 64 requests left up to 100 ms late beside vLLM on two
    cores. The client sleeps most of the time, so it takes little from anybody. Threads and
    processes that are started inside do not inherit it.
    """
    before, how = os.sched_getscheduler(0), os.sched_getparam(0)
    least = os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, least)
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, how)
