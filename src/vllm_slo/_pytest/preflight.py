"""What is checked before the first server boots, since a boot takes minutes on a GPU."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from vllm_slo._pytest.servers import is_judged, settings_of
from vllm_slo._pytest.state import SloSession
from vllm_slo.errors import SloError


def check_before_boot(session: SloSession, items: Sequence[pytest.Item]) -> None:
    """Reads the threshold file where a test will be judged by it, and tries what will be written.

    Raises:
        pytest.UsageError: the file is missing or malformed, or a report cannot be written.
    """
    if session.json_path is not None and not session.is_worker:
        _check_writable("--slo-json", session.json_path)
    if not any(is_judged(item) for item in items):
        return
    try:
        check_thresholds(session)
    except SloError as error:
        raise pytest.UsageError(str(error)) from None
    if session.options["update"]:
        _check_writable("--slo-update", session.thresholds_path)


def check_thresholds(session: SloSession) -> None:
    """Reads the threshold file; with `--slo-update` there need not be one.

    Raises:
        SloError: it is missing or malformed.
    """
    if session.options["update"] and not session.thresholds_path.exists():
        return
    _ = session.thresholds


def check_before_test(session: SloSession, item: pytest.Item) -> None:
    """What has to hold before the test's fixtures run; its server is replaced if it has died.

    A pytest-xdist worker reads the threshold file here: an error of its own would end the worker
    without a word.

    Raises:
        SloError: as `check_thresholds`, or the server cannot be booted again.
    """
    if session.is_worker and is_judged(item):
        check_thresholds(session)
    settings = settings_of(item)
    if settings is not None:
        session.pool.revive(settings)


def _check_writable(flag: str, path: Path) -> None:
    from vllm_slo.files import check_writable

    try:
        check_writable(path)
    except OSError as error:
        raise pytest.UsageError(f"{flag}: {path} cannot be written: {error.strerror}") from None
