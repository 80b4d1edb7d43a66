"""The session's one server: booted once per distinct settings, replaced when it dies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from vllm_slo.errors import SloError
from vllm_slo.settings import Settings

if TYPE_CHECKING:
    from vllm_slo.targets import Served

SERVE_FIXTURE = "serve"
SERVER_FIXTURE = "vllm_server"
SLO_FIXTURE = "slo"


@dataclass(slots=True)
class ServerPool:
    """Keeps one server at a time, since two would share a GPU and spoil each other's numbers.

    `boots` lists the settings of every boot, in order. A boot that failed is not tried again in
    this session: the tests that share its settings fail at once with the same reason.
    """

    open_with: "Callable[[Settings], Served]"
    say: Callable[[str], None]
    current: "Served | None" = None
    boots: list[Settings] = field(default_factory=list)
    failed: dict[Settings, SloError] = field(default_factory=dict)
    _told: int = 0

    def serve(self, settings: Settings) -> "Served":
        """A live server with exactly these settings.

        Where the one at hand has died, it stands for a new one from now on, so that a fixture that
        holds it holds the new one.

        Raises:
            SloError: it cannot be booted.
        """
        held = self.current
        if held is not None and held.settings == settings:
            if held.alive():
                return held
            self.close()
            held.become(self._boot(settings))
            self.current = held
            return held
        self.close()
        self.current = self._boot(settings)
        return self.current

    def revive(self, settings: Settings) -> None:
        """Boots anew if the server at hand has these settings and is dead; else does nothing.

        Raises:
            SloError: it cannot be booted.
        """
        if self.current is not None and self.current.settings == settings:
            self.serve(settings)

    def take_boots(self) -> int:
        """How many boots there were since the last call."""
        new = len(self.boots) - self._told
        self._told = len(self.boots)
        return new

    def close(self) -> None:
        """Stops the server there is; harmless without one.

        Raises:
            SloError: it does not end.
        """
        if self.current is not None:
            self.say(f"stop: {self.current.settings}")
            current, self.current = self.current, None
            current.close()

    def _boot(self, settings: Settings) -> "Served":
        if settings in self.failed:
            raise again(self.failed[settings])
        self.say(f"boot {len(self.boots) + 1}: {settings}")
        self.boots.append(settings)
        try:
            return self.open_with(settings)
        except SloError as error:
            self.failed[settings] = error
            raise


def again(error: SloError) -> SloError:
    """What failed and why, without the log's lines: the whole was said when it happened.

    A new exception: one that is raised again would grow by every traceback.
    """
    lines = str(error).splitlines()
    kept = lines if len(lines) <= 3 else [*lines[:2], lines[-1]]
    return type(error)("\n".join([*kept, "(not tried again in this session)"]))


def is_judged(item: pytest.Item) -> bool:
    """Whether a test takes the `slo` fixture, as far as collection can know."""
    return SLO_FIXTURE in getattr(item, "fixturenames", ())


def settings_of(item: pytest.Item) -> Settings | None:
    """The settings that a test's server is asked for, known at collection; `None` for no server.

    They are the test's one parameter that is a `Settings`, whichever fixture takes it, provided
    that the test has a server at all: every one comes from `serve`.

    Raises:
        pytest.UsageError: two different ones; a test has one server.
    """
    names = getattr(item, "fixturenames", ())
    if SERVE_FIXTURE not in names:
        return None
    callspec = getattr(item, "callspec", None)
    found = (
        {one for one in callspec.params.values() if isinstance(one, Settings)} if callspec else ()
    )
    if len(found) > 1:
        raise pytest.UsageError(
            f"{item.nodeid} asks for servers with {' and '.join(sorted(map(str, found)))}, and "
            "only one runs at a time\ncompare them in two tests"
        )
    for settings in found:
        return settings
    return Settings() if SERVER_FIXTURE in names else None


def group_by_server(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same items, those of one server side by side, else in their order.

    A group stands where its first test stood, and a test without a server where it stood.
    """
    first_seen: dict[Settings | None, int] = {}
    keyed = []
    for position, item in enumerate(items):
        settings = settings_of(item)
        group = position if settings is None else first_seen.setdefault(settings, position)
        keyed.append((group, position, item))
    return [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])]


class Ordering:
    """Keeps the tests of one server side by side, whatever other plugins order before.

    Registered when the session starts, so that it wraps all that is registered before, such as
    `--failed-first`: failed tests come first with the tests that share their server.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> object:
        if config.pluginmanager.has_plugin("xdist"):
            for item in items:
                settings = settings_of(item)
                if settings is not None:
                    item.add_marker(pytest.mark.xdist_group(str(settings)))
        result = yield
        items[:] = group_by_server(items)
        return result
