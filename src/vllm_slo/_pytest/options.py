"""The `--slo-*` family: one table, three sources, and where each value came from."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vllm_slo.errors import SettingsError
from vllm_slo.targets import resolve_kind


def _target(text: str) -> str:
    try:
        resolve_kind(text, environment=None)
    except SettingsError:
        raise ValueError from None
    return text


def _seconds(text: str) -> float:
    """`90`, `90s`, `15m` or `2h`, as seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    seconds = float(number) * unit
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _at_least_zero(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _yes_or_no(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
        text.lower()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: `--slo-NAME`, ini `slo_NAME`, environment `SLO_NAME`."""

    name: str
    default: Any
    help: str
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    form: str = ""

    @property
    def flag(self) -> str:
        return f"--slo-{self.name}"

    @property
    def key(self) -> str:
        return f"slo_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        return self.key.upper()

    @property
    def is_switch(self) -> bool:
        return self.parse is _yes_or_no

    def read(self, text: str, source: str) -> Any:
        if not text.strip():
            raise pytest.UsageError(f"{source}: the value is empty")
        if self.choices and text not in self.choices:
            raise pytest.UsageError(f"{source}: {text!r} is not one of {', '.join(self.choices)}")
        try:
            return self.parse(text)
        except (ValueError, KeyError, OverflowError):
            form = self.form or ("true or false" if self.is_switch else "a value that it takes")
            raise pytest.UsageError(f"{source}: {text!r} is not {form}") from None


OPTIONS = (
    Option(
        name="target",
        default="auto",
        metavar="TARGET",
        parse=_target,
        form="auto, sim, emulated, gpu or a URL that starts with http",
        help="sim, emulated, gpu, a URL, or auto: gpu where there is a GPU and vLLM, else sim",
    ),
    Option(
        name="device",
        default=None,
        metavar="NAME",
        help="the device to model (sim, emulated), or whose thresholds hold (gpu, URL); "
        "a100-80gb for sim and emulated",
    ),
    Option(
        name="model",
        default="llama-3-8b",
        metavar="MODEL",
        help="llama-3-8b (random weights of its shape), shape:NAME, a path or a hub name",
    ),
    Option(
        name="vllm",
        default=None,
        metavar="ENV",
        help="the engine's environment: a Python executable, a vLLM version or a name that "
        "`vllm-slo engine list` shows",
    ),
    Option(
        name="sim-scheduler",
        default="builtin",
        choices=("builtin", "vllm"),
        help="sim: our model of vLLM's scheduler, or vLLM's own class",
    ),
    Option(
        name="client",
        default="wire",
        choices=("wire", "httpx"),
        help="the load client; httpx for endpoints behind TLS, HTTP/2 or a proxy",
    ),
    Option(
        name="thresholds",
        default="thresholds",
        metavar="DIR",
        help="the folder of threshold files, DIR/<device>/<model>.toml",
    ),
    Option(
        name="rounds",
        default=None,
        metavar="N",
        parse=_at_least_one,
        form="a whole number of at least 1",
        help="stop after N rounds a test, whatever the verdict (default: 20, fewer on emulated)",
    ),
    Option(
        name="budget",
        default=None,
        metavar="TIME",
        parse=_seconds,
        form="a time such as 90s, 15m or 2h",
        help="stop a test's rounds after this much wall time (no limit)",
    ),
    Option(
        name="seed",
        default=0,
        metavar="N",
        parse=_at_least_zero,
        form="a whole number of at least 0",
        help="the first round's seed; the next rounds follow from it",
    ),
    Option(
        name="update",
        default=False,
        parse=_yes_or_no,
        help="write the measured limits, with headroom, into the threshold file",
    ),
    Option(
        name="allow-loosen",
        default=False,
        parse=_yes_or_no,
        help="let --slo-update loosen a limit too",
    ),
    Option(
        name="report",
        default="slo-report",
        metavar="DIR",
        help="where server logs and reports are kept",
    ),
    Option(
        name="json",
        default=None,
        metavar="FILE",
        help="write every row, verdict and raw per-request record as JSON",
    ),
    Option(
        name="inconclusive",
        default="fail",
        choices=("fail", "skip", "pass"),
        help="what an INCONCLUSIVE verdict does to its test",
    ),
    Option(
        name="exit-codes",
        default=False,
        parse=_yes_or_no,
        help="exit with 10 for FAIL, 11 for INCONCLUSIVE, 12 for invalid runs or broken servers",
    ),
    Option(
        name="boot-timeout",
        default=600.0,
        metavar="TIME",
        parse=_seconds,
        form="a time such as 90s or 10m",
        help="how long a server may take to become ready",
    ),
    Option(
        name="request-timeout",
        default=300.0,
        metavar="TIME",
        parse=_seconds,
        form="a time such as 90s or 5m",
        help="a request that takes longer has failed",
    ),
    Option(
        name="cache",
        default=None,
        metavar="DIR",
        help="where engine environments and model shapes are kept",
    ),
    Option(
        name="verbose-boots",
        default=False,
        parse=_yes_or_no,
        help="say each server's boot and stop as it happens",
    ),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The values in force, and the source of each that is not the default."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @classmethod
    def from_pytest_config(
        cls, config: pytest.Config, environ: Mapping[str, str] = os.environ
    ) -> "Options":
        """Command line, then environment, then ini, then the default.

        Raises:
            pytest.UsageError: a value that does not parse; the text names its source.
        """
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for option in OPTIONS:
            given = config.getoption(option.key)
            ini = config.getini(option.key)
            if given is not None:
                text, source = str(given), option.flag
            elif environ.get(option.variable):
                text, source = environ[option.variable], option.variable
            elif ini:
                text, source = str(ini), f"ini {option.key}"
            else:
                values[option.name] = option.default
                continue
            values[option.name] = option.read(text, source)
            sources[option.name] = source
        return cls(values, sources)

    def shown(self, name: str) -> str:
        """The value as it may be printed: a URL without its user and password."""
        return re.sub(r"(?<=://)[^/@]*@", "", str(self.values[name]))

    def path(self, name: str, root: Path) -> Path | None:
        """A folder or file option, against the pytest root; `None` when not given."""
        value = self.values[name]
        return None if value is None else (root / str(value)).absolute()


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("slo", "vLLM service-level objectives")
    for option in OPTIONS:
        text = f"{option.help} [ini {option.key}, env {option.variable}]"
        if option.is_switch:
            group.addoption(
                option.flag, dest=option.key, action="store_const", const="true", help=text
            )
        else:
            group.addoption(
                option.flag,
                dest=option.key,
                default=None,
                # No `choices`: argparse would refuse a bad value before --help is looked at.
                metavar="|".join(option.choices) or option.metavar,
                help=text,
            )
        parser.addini(option.key, text, default="")
