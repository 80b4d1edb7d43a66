"""What a round asks of its own process: no garbage collection, and files enough."""

import gc
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
