"""The session's one server: booted once per distinct settings, replaced when it dies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from vllm_slo.errors import SloError
from vllm_slo.settings import Settings
from vllm_slo.targets import Served

SERVER_FIXTURE = "vllm_server"


@dataclass(slots=True)
class ServerPool:
    """Keeps one server at a time, since two would share a GPU and spoil each other's numbers.

    `boots` lists the settings of every boot, in order. A boot that failed is not tried again in
    this session: the tests that share its settings fail at once with the same reason.
    """

    open_with: Callable[[Settings], Served]
    say: Callable[[str], None]
    current: Served | None = None
    boots: list[Settings] = field(default_factory=list)
    failed: dict[Settings, SloError] = field(default_factory=dict)
    _told: int = 0

    def serve(self, settings: Settings) -> Served:
        """A live server with exactly these settings.

        Raises:
            SloError: it cannot be booted.
        """
        if self.current is not None:
            if self.current.settings == settings and self.current.alive():
                return self.current
            self.close()
        if settings in self.failed:
            raise self.failed[settings]
        self.say(f"boot {len(self.boots) + 1}: {settings}")
        self.boots.append(settings)
        try:
            self.current = self.open_with(settings)
        except SloError as error:
            self.failed[settings] = error
            raise
        return self.current

    def take_boots(self) -> int:
        """How many boots there were since the last call."""
        new = len(self.boots) - self._told
        self._told = len(self.boots)
        return new

    def close(self) -> None:
        """Stops the server there is; harmless without one."""
        if self.current is not None:
            self.say(f"stop: {self.current.settings}")
            current, self.current = self.current, None
            current.close()


def settings_of(item: pytest.Item) -> Settings | None:
    """The settings that a test's server is asked for, known at collection; `None` for no server.

    They are the test's one parameter that is a `Settings`, whichever fixture takes it.
    """
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        if isinstance(value, Settings):
            return value
    return Settings() if SERVER_FIXTURE in getattr(item, "fixturenames", ()) else None


def group_by_server(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same items, those of one server side by side, else in their order.

    Tests without a server keep their place before the first test that follows them.
    """
    first_seen: dict[Settings | None, int] = {}
    keyed = []
    for position, item in enumerate(items):
        settings = settings_of(item)
        group = position if settings is None else first_seen.setdefault(settings, position)
        keyed.append((group, position, item))
    return [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])]
