"""`/metrics` as vLLM 0.31.0 and 0.32.0 gave it, and servers that misbehave."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vllm_slo.engine.metrics import CANDIDATES, MetricsObserver, parse_metrics
from vllm_slo.errors import MetricsError
from vllm_slo.measure.run import ServerFacts

HERE = Path(__file__).parent


def recorded(version: str, when: str) -> str:
    return (HERE / f"vllm-{version}-{when}.txt").read_text()


@dataclass
class Server:
    """A server whose `/metrics` answers the texts in turn, the last one again and again."""

    texts: list[str] = field(default_factory=list)
    status: int = 200
    key: str | None = None
    asked: int = 0
    twice: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    http: ThreadingHTTPServer | None = None

    def answer(self, authorization: str | None) -> tuple[int, str]:
        self.asked += 1
        if self.asked > 2:
            self.twice.set()
        if self.key is not None and authorization != f"Bearer {self.key}":
            return 401, "who are you"
        return self.status, self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]

    def die(self) -> None:
        assert self.http is not None
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = state.answer(self.headers.get("Authorization"))
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    state.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{state.http.server_port}"
    thread = threading.Thread(target=state.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    state.die()
    thread.join()


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
def test_every_figure_is_in_what_this_version_gives(version: str) -> None:
    snapshot = parse_metrics(recorded(version, "after"), version=version)
    assert set(snapshot.values) == set(CANDIDATES)


def test_figures_have_the_values_that_the_server_wrote() -> None:
    snapshot = parse_metrics(recorded("0.32.0", "after"))
    assert snapshot["preemptions"] == 31
    assert snapshot["prompt_tokens"] == 81920
    assert snapshot["generation_tokens"] == 26624
    assert snapshot["iteration_tokens_count"] == 1415
    assert snapshot["running"] == 0


def test_a_round_is_the_difference_of_the_counters(server: Server) -> None:
    server.texts = [recorded("0.32.0", "before"), recorded("0.32.0", "after")]
    observer = MetricsObserver(server.url, interval_s=60.0)
    observer.begin()
    facts = observer.end()["server"]
    assert isinstance(facts, ServerFacts)
    assert facts.preemptions == 31
    assert facts.prompt_tokens == 81920 - 32768
    assert facts.generation_tokens == 96 * 256
    assert facts.iteration_tokens_mean == pytest.approx((108544 - 34816) / (1415 - 130))
    assert facts.prefix_cache_hit_tokens == 0
    assert facts.queue_time_mean_s is not None
    assert facts.queue_time_mean_s > 0


def gauges(*, running: int, waiting: int, kv: float, engines: int = 1) -> str:
    """The recorded text with other gauges, each engine with the same ones."""
    lines = [
        line
        for line in recorded("0.32.0", "after").splitlines()
        if not line.startswith((CANDIDATES["running"][0] + "{", CANDIDATES["waiting"][0] + "{"))
        and not line.startswith(CANDIDATES["kv_use"][0] + "{")
    ]
    for engine in range(engines):
        lines += [
            f'vllm:num_requests_running{{engine="{engine}"}} {running}',
            f'vllm:num_requests_waiting{{engine="{engine}"}} {waiting}',
            f'vllm:kv_cache_usage_perc{{engine="{engine}"}} {kv}',
        ]
    return "\n".join(lines) + "\n"


def test_gauges_are_sampled_during_the_round_and_their_highest_kept(server: Server) -> None:
    server.texts = [
        recorded("0.32.0", "before"),
        gauges(running=32, waiting=1, kv=0.4),
        gauges(running=8, waiting=7, kv=0.9),
        recorded("0.32.0", "after"),
    ]
    observer = MetricsObserver(server.url, interval_s=0.001)
    observer.begin()
    assert server.twice.wait(timeout=10)
    facts = observer.end()["server"]
    assert isinstance(facts, ServerFacts)
    assert (facts.running_max, facts.waiting_max, facts.kv_use_max) == (32, 7, 0.9)


def test_counts_add_up_over_engines_and_shares_do_not() -> None:
    snapshot = parse_metrics(gauges(running=5, waiting=2, kv=0.5, engines=2))
    assert (snapshot["running"], snapshot["waiting"], snapshot["kv_use"]) == (10, 4, 0.5)


def test_a_figure_goes_by_its_older_name_too() -> None:
    text = recorded("0.31.0", "after").replace("vllm:kv_cache_usage", "vllm:gpu_cache_usage")
    assert parse_metrics(text)["kv_use"] == 0.0


def test_a_missing_figure_names_what_was_tried_and_the_version() -> None:
    text = recorded("0.32.0", "after").replace("vllm:num_preemptions", "vllm:evictions")
    with pytest.raises(
        MetricsError,
        match=r"\(vLLM 0\.99\.0\) lacks preemptions; tried vllm:num_preemptions_total, vllm:num",
    ):
        parse_metrics(text, version="0.99.0")


def test_a_figure_that_goes_missing_on_a_live_server_is_an_error(server: Server) -> None:
    server.texts = [recorded("0.32.0", "before"), "# nothing\n"]
    observer = MetricsObserver(server.url, interval_s=60.0)
    observer.begin()
    with pytest.raises(MetricsError, match="lacks preemptions"):
        observer.end()


def test_a_line_that_is_no_metric_is_an_error() -> None:
    text = recorded("0.32.0", "after") + "vllm:num_requests_running{oops\n"
    with pytest.raises(MetricsError, match="not Prometheus text"):
        parse_metrics(text)


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_figure_that_is_no_number_is_an_error(value: str) -> None:
    text = gauges(running=1, waiting=0, kv=0.5).replace('perc{engine="0"} 0.5', f"perc {value}")
    with pytest.raises(MetricsError, match="vllm:kv_cache_usage_perc is"):
        parse_metrics(text)


def test_a_server_that_dies_in_the_round_leaves_none_and_a_warning(server: Server) -> None:
    server.texts = [recorded("0.32.0", "before")]
    observer = MetricsObserver(server.url, interval_s=60.0)
    observer.begin()
    server.die()
    given = observer.end()
    assert given["server"] == ServerFacts()
    (warning,) = given["warnings"]  # type: ignore[misc]
    assert "stopped answering during the round" in warning


def test_a_server_that_restarted_in_the_round_leaves_none_and_a_warning(server: Server) -> None:
    server.texts = [recorded("0.32.0", "after"), recorded("0.32.0", "before")]
    observer = MetricsObserver(server.url, interval_s=60.0)
    observer.begin()
    given = observer.end()
    assert given["server"] == ServerFacts()
    assert "restarted" in str(given["warnings"])


def test_a_server_that_does_not_answer_at_first_is_an_error(server: Server) -> None:
    server.texts = [recorded("0.32.0", "before")]
    server.die()
    with pytest.raises(MetricsError, match="does not answer"):
        MetricsObserver(server.url).begin()


def test_the_key_is_sent_and_a_wrong_one_is_named_but_not_shown(server: Server) -> None:
    server.texts = [recorded("0.32.0", "after")]
    server.key = "secret"
    observer = MetricsObserver(server.url, "secret", interval_s=60.0)
    observer.begin()
    assert "server" in observer.end()
    with pytest.raises(MetricsError, match=r"answers 401: the API key is wrong$"):
        MetricsObserver(server.url, "other").begin()


@pytest.mark.parametrize(
    ("status", "message"), [(404, "has no Prometheus metrics"), (500, "does not answer: .*500")]
)
def test_other_answers_are_errors(server: Server, status: int, message: str) -> None:
    server.texts, server.status = ["no"], status
    with pytest.raises(MetricsError, match=message):
        MetricsObserver(server.url).begin()


def test_an_observer_serves_round_after_round(server: Server) -> None:
    before, after = recorded("0.32.0", "before"), recorded("0.32.0", "after")
    server.texts = [before, after, after]
    observer = MetricsObserver(server.url, interval_s=60.0)
    observer.begin()
    first = observer.end()["server"]
    observer.begin()
    second = observer.end()["server"]
    assert isinstance(first, ServerFacts)
    assert isinstance(second, ServerFacts)
    assert (first.preemptions, second.preemptions) == (31, 0)
    assert second.queue_time_mean_s is None
