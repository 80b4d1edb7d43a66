"""Cost and truth of our client against its peers: CPU per event, and error of TTFT.

    python benchmarks/client.py [--vllm-python PATH] [--streams 64 256 512]

All streams of a cell start together, and each gets a token every 25 ms. Each client runs in a
process and on a core of its own, the server on another. CPU is the client process's own, from
the start of the burst to its end, over the token events.

- What TTFT should be, 25 ms and the server's own start-up, is measured with bare sockets in the
  same run: prepared requests, written one after the other, and the server's stamps of its first
  tokens. A client's error is what it reports, less that: in the mean, and between the p99s.
- "read late" is the TTFT that a client reports for a stream, less the server's stamp of that
  stream's first token (both from the start of the burst, which is when the server read the first
  request): what a client adds by not looking.

Prints a Markdown table; exits with 1 where our client is over its limits.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import random
import select
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, process_time

INTERVAL_MS = 25.0
TOKENS = 80
PROMPT_TOKENS = 512
VOCAB = 128_000
MAX_CPU_US = 12.0  # per event, at 512 streams
MAX_TTFT_ERROR_MS = 25.0  # p99, over the server's own start-up, at every size
BARE = "bare sockets"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm-python", help="a Python that has vLLM, to run its own client too")
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--as-client", choices=sorted(CLIENTS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_client:
        for streams in options.streams:
            print(json.dumps(CLIENTS[options.as_client](options.url, streams)), flush=True)
            sys.stdin.readline()  # the log of one cell is fetched before the next begins
        return 0
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("two cores are needed: one for the server, one for the client", file=sys.stderr)
        return 2
    pythons = dict.fromkeys((BARE, "wire", "aiohttp", "httpx"), sys.executable)
    if options.vllm_python:
        pythons["vllm bench serve"] = options.vllm_python
    server = [sys.executable, str(Path(__file__).with_name("golden_server.py"))]
    server += ["--interval-ms", str(INTERVAL_MS), "--core", str(cores[1])]
    rows = []
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        try:
            measure(BARE, sys.executable, url, [64], core=cores[0])  # warms the server up
            for name, python in pythons.items():
                rows += measure(name, python, url, options.streams, core=cores[0])
        finally:
            process.terminate()
    figures = against(rows)
    print(as_table(figures))
    return judged(figures)


def measure(
    name: str, python: str, url: str, sizes: Sequence[int], *, core: int
) -> list[dict[str, object]]:
    """One client's rows: one process, one cell after the other."""
    command = [python, __file__, "--as-client", name, "--url", url, "--streams"]
    rows = []
    with subprocess.Popen(
        [*command, *map(str, sizes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if name.startswith("vllm") else None,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for streams in sizes:
            seen = json.loads(next(line for line in process.stdout if line.startswith("{")))
            with urllib.request.urlopen(f"{url}/log") as answer:
                rows.append(as_row(name, streams, seen, json.load(answer)))
            process.stdin.write("\n")
            process.stdin.flush()
    return rows


def as_row(name: str, streams: int, seen: dict, log: list[dict]) -> dict[str, object]:
    """Matches each stream with the server's account of it, by its prompt."""
    zero_s = seen.get("zero_s") or min(served["received_s"] for served in log)
    stamp_ms = {tuple(s["prompt"][:8]): 1e3 * (s["sent_s"][0] - zero_s) for s in log}
    assert len(stamp_ms) == streams == len(seen["ttft_ms"]), "not every stream was served"
    return {
        "client": name,
        "streams": streams,
        "cpu_us": 1e6 * seen["cpu_s"] / (streams * TOKENS),
        "ttft_ms": sorted(ttft for _, ttft in seen["ttft_ms"]),
        "stamp_ms": sorted(stamp_ms.values()),
        "late_ms": sorted(ttft - stamp_ms[tuple(prompt)] for prompt, ttft in seen["ttft_ms"]),
    }


def against(rows: list[dict]) -> list[dict]:
    """The rows in figures, each against the bare sockets of its size."""
    truth = {row["streams"]: row["stamp_ms"] for row in rows if row["client"] == BARE}
    return [
        {
            "client": row["client"],
            "streams": row["streams"],
            "cpu_us": row["cpu_us"],
            "ttft_mean_ms": mean(row["ttft_ms"]),
            "true_mean_ms": mean(truth[row["streams"]]),
            "error_mean_ms": mean(row["ttft_ms"]) - mean(truth[row["streams"]]),
            "error_p99_ms": p99(row["ttft_ms"]) - p99(truth[row["streams"]]),
            "late_p99_ms": p99(row["late_ms"]),
        }
        for row in rows
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def p99(ordered: list[float]) -> float:
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


def as_table(rows: list[dict]) -> str:
    lines = [
        "| client | streams | CPU per event, µs | TTFT reported, mean ms | true, mean ms"
        " | error, mean ms | error of p99, ms | read late, p99 ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['client']} | {r['streams']} | {r['cpu_us']:.1f} | {r['ttft_mean_ms']:.1f}"
        f" | {r['true_mean_ms']:.1f} | {r['error_mean_ms']:.1f} | {r['error_p99_ms']:.1f}"
        f" | {r['late_p99_ms']:.1f} |"
        for r in rows
    ]
    return "\n".join(lines)


def judged(rows: list[dict]) -> int:
    """The exit status: our limits, and that no peer of the same run is cheaper."""
    cells = {(r["client"], r["streams"]): r for r in rows}
    faults = []
    for (name, streams), row in cells.items():
        if name != "wire":
            continue
        ratio = row["cpu_us"] / cells["aiohttp", streams]["cpu_us"]
        print(f"\n{streams} streams: {ratio:.2f} of aiohttp's CPU per event", end="")
        if ratio >= 1.0:
            faults.append(f"{streams} streams: aiohttp takes less CPU ({ratio:.2f})")
        if streams >= 512 and row["cpu_us"] > MAX_CPU_US:
            faults.append(f"{streams} streams: {row['cpu_us']:.1f} µs per event > {MAX_CPU_US}")
        worst_ms = max(row["error_p99_ms"], row["late_p99_ms"])
        if worst_ms > MAX_TTFT_ERROR_MS:
            faults.append(f"{streams} streams: TTFT p99 off by {worst_ms:.1f} ms")
    print()
    for fault in faults:
        print(f"over the limit: {fault}", file=sys.stderr)
    return 1 if faults else 0


def prompts(streams: int) -> list[list[int]]:
    drawn = random.Random(streams)
    return [[drawn.randrange(16, VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]


def ours(client: str, url: str, streams: int) -> dict:
    """Through the whole of `HttpTarget.run`; its CPU is watched by an observer of the round."""
    from vllm_slo.load import Endpoint, HttpTarget, WarmUp
    from vllm_slo.measure.run import EngineInfo
    from vllm_slo.settings import Settings
    from vllm_slo.traffic.workload import PlannedRequest, Workload

    class Cpu:
        def begin(self) -> None:
            self.began_s = process_time()

        def end(self) -> dict[str, object]:
            self.took_s = process_time() - self.began_s
            return {}

    cpu = Cpu()
    target = HttpTarget(
        endpoint=Endpoint(base_url=url, model="m", vocab_size=VOCAB),
        settings=Settings(),
        engine=EngineInfo(target="url", device="none", model="m", vllm_version="none"),
        observers=[cpu],
        client=client,
        warm_up=WarmUp(max_batches=0),
    )
    workload = Workload(
        name="together",
        plan=lambda _: [
            PlannedRequest(index=i, input_tokens=PROMPT_TOKENS, output_tokens=TOKENS)
            for i in range(streams)
        ],
        concurrency=streams,
    )
    run = target.run(workload)
    faults = {record.error for record in run.records} - {None}
    assert not faults, faults
    pairs = zip(workload.requests, run.records, strict=True)
    return {
        "cpu_s": cpu.took_s,
        "ttft_ms": [
            (workload.prompt_ids(planned, vocab_size=VOCAB)[:8].tolist(), 1e3 * record.ttft_s)
            for planned, record in pairs
        ],
    }


def bare(url: str, streams: int) -> dict:
    """The least that can be done: blocking writes, one after the other, and an epoll loop."""
    host, port = url.removeprefix("http://").split(":")
    asked = prompts(streams)
    requests = []
    for ids in asked:
        body = json.dumps({"prompt": ids, "max_tokens": TOKENS}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
        requests.append(head.encode() + b"\r\n\r\n" + body)
    sockets = [socket.create_connection((host, int(port))) for _ in asked]
    first_s: dict[int, float] = {}
    poll = select.epoll()
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(one, select.EPOLLIN)
    by_number = {one.fileno(): one for one in sockets}
    began_s, zero_s = process_time(), monotonic()
    for one, request in zip(sockets, requests, strict=True):
        one.sendall(request)
    open_streams = streams
    while open_streams:
        for number, _ in poll.poll():
            now_s, read = monotonic(), by_number[number].recv(65536)
            if b"data:" in read:
                first_s.setdefault(number, now_s)
            open_streams -= read.endswith(b"\r\n0\r\n\r\n")
    cpu_s = process_time() - began_s
    pairs = zip(asked, sockets, strict=True)
    ttft_ms = [(ids[:8], 1e3 * (first_s[one.fileno()] - zero_s)) for ids, one in pairs]
    for one in sockets:
        one.close()
    return {"cpu_s": cpu_s, "ttft_ms": ttft_ms, "zero_s": zero_s}


def with_aiohttp(url: str, streams: int) -> dict:
    """aiohttp at its best: bodies made and connections open before the start, no parsing."""
    import aiohttp
    import uvloop

    asked = prompts(streams)
    bodies = [json.dumps({"prompt": ids, "max_tokens": TOKENS}).encode() for ids in asked]
    reads: list[list[tuple[float, bytes]]] = [[] for _ in asked]

    async def one(session: aiohttp.ClientSession, body: bytes, into: list) -> None:
        async with session.post(f"{url}/v1/completions", data=body) as response:
            async for read in response.content.iter_any():
                into.append((monotonic(), read))  # noqa: PERF401  # the time is the point

    async def run() -> tuple[float, float]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def warm() -> None:
                async with session.get(f"{url}/v1/models") as response:
                    await response.read()

            await asyncio.gather(*(warm() for _ in asked))
            gc.collect()
            gc.freeze()
            gc.disable()
            began_s, zero_s = process_time(), monotonic()
            await asyncio.gather(*(one(session, *pair) for pair in zip(bodies, reads, strict=True)))
            return process_time() - began_s, zero_s

    cpu_s, zero_s = uvloop.run(run())
    gc.enable()
    return {
        "cpu_s": cpu_s,
        "ttft_ms": [
            (ids[:8], 1e3 * (into[0][0] - zero_s)) for ids, into in zip(asked, reads, strict=True)
        ],
    }


def with_vllm(url: str, streams: int) -> dict:
    """`vllm bench serve`'s own `benchmark` coroutine, and the TTFTs that it reports."""
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import SampleRequest

    asked = prompts(streams)
    began_s = process_time()
    result = asyncio.run(
        serve.benchmark(
            task_type=serve.TaskType.GENERATION,
            endpoint_type="openai",
            api_url=f"{url}/v1/completions",
            base_url=url,
            model_id="m",
            model_name="m",
            tokenizer=None,
            input_requests=[
                SampleRequest(prompt=ids, prompt_len=len(ids), expected_output_len=TOKENS)
                for ids in asked
            ],
            logprobs=None,
            request_rate=float("inf"),
            burstiness=1.0,
            disable_tqdm=True,
            num_warmups=0,
            profile=False,
            selected_percentile_metrics=["ttft"],
            selected_percentiles=[99.0],
            ignore_eos=True,
            goodput_config_dict={},
            max_concurrency=None,
            lora_modules=None,
            extra_headers=None,
            extra_body=None,
            ready_check_timeout_sec=0,
        )
    )
    return {
        "cpu_s": process_time() - began_s,
        "ttft_ms": [
            (ids[:8], 1e3 * ttft) for ids, ttft in zip(asked, result["ttfts"], strict=True)
        ],
    }


CLIENTS = {
    BARE: bare,
    "wire": lambda url, streams: ours("wire", url, streams),
    "httpx": lambda url, streams: ours("httpx", url, streams),
    "aiohttp": with_aiohttp,
    "vllm bench serve": with_vllm,
}

if __name__ == "__main__":
    sys.exit(main())
