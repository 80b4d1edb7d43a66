"""What is checked before the first server boots, since a boot takes minutes on a GPU."""

from collections.abc import Sequence

import pytest

from vllm_slo._pytest.state import SloSession
from vllm_slo.errors import SloError

SLO_FIXTURE = "slo"


def check_before_boot(session: SloSession, items: Sequence[pytest.Item]) -> None:
    """Reads the threshold file where a test will be judged by it.

    Raises:
        pytest.UsageError: the file is missing or malformed.
    """
    judged = any(
        SLO_FIXTURE in item.fixturenames for item in items if isinstance(item, pytest.Function)
    )
    if not judged:
        return
    try:
        _ = session.thresholds
    except SloError as error:
        if not session.options["update"]:
            raise pytest.UsageError(str(error)) from None
