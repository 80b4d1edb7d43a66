"""The stand-in's API server: records its start, then does as it was told to behave."""

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vllm import __version__, behaviour
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

FOLDER = Path(behaviour["folder"])
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
counts = {"prompt": 0, "generation": 0, "running": 0, "answers": 0}
lock = threading.Lock()


def record_start():
    hidden = {k: "(set)" for k in os.environ if SECRET.search(k)}
    number = len(list((FOLDER / "starts").glob("*.json"))) + 1
    start = {
        "argv": sys.argv[1:],
        "environ": dict(os.environ) | hidden,
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "pid": os.getpid(),
    }
    (FOLDER / "starts" / f"{number:03d}.json").write_text(json.dumps(start))
    return number


def say(text):
    sys.stdout.write(f"(APIServer pid={os.getpid()}) INFO 11-29 15:41:17 [standin.py:1] {text}\n")
    sys.stdout.flush()


def die():
    """As vLLM dies: the engine core with the cause, then the server, which points at it."""
    cause = "import sys\ndef load():\n    raise " + behaviour["die"] + "\nload()"
    child = subprocess.run([sys.executable, "-c", cause], stderr=subprocess.PIPE, text=True)
    for line in child.stderr.splitlines():
        sys.stdout.write(f"(EngineCore pid=77) ERROR 11-29 15:41:47 [core.py:1510] {line}\n")
    raise RuntimeError(
        "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    )


def announce(args):
    defaults = {
        f.name: f.default if f.default is not dataclasses.MISSING else {}
        for f in dataclasses.fields(AsyncEngineArgs)
    } | {"host": None, "port": 8000}
    given = {k: v for k, v in vars(args).items() if k in defaults and v != defaults[k]}
    say(f"non-default args: {given}")
    runs = {
        "max_seq_len": args.max_model_len or 8192,
        "enable_prefix_caching": args.enable_prefix_caching is not False,
        "enable_chunked_prefill": args.enable_chunked_prefill is not False,
    } | behaviour.get("changes", {})
    text = ", ".join(f"{k}={v}" for k, v in runs.items())
    say(f"Initializing a V1 LLM engine (v{__version__}) with config: model='m', {text}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.startswith("/v1") and not self.has_key():
            return self.answer(401, {"error": "Unauthorized"})
        if self.path == "/health":
            return self.answer(200, {})
        if self.path == "/version":
            return self.answer(200, {"version": __version__})
        if self.path == "/v1/models":
            entry = {"id": args.served_model_name[0], "max_model_len": args.max_model_len or 8192}
            return self.answer(200, {"object": "list", "data": [entry]})
        if self.path == "/metrics":
            return self.send(200, "text/plain", metrics().encode())
        return self.answer(404, {"error": "Not Found"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.has_key():
            return self.answer(401, {"error": "Unauthorized"})
        if self.path != "/v1/completions":
            return self.answer(404, {"error": "Not Found"})
        with lock:
            counts["running"] += 1
            counts["prompt"] += len(body["prompt"])
        try:
            self.complete(body)
        finally:
            with lock:
                counts["running"] -= 1
                counts["answers"] += 1
                if counts["answers"] > behaviour.get("dies_after", 1 << 60):
                    os.kill(os.getpid(), signal.SIGKILL)

    def complete(self, body):
        tokens, prompt = body.get("max_tokens", 16), len(body["prompt"])
        if not body.get("stream"):
            time.sleep(behaviour.get("interval_s", 0) * tokens)
            counts["generation"] += tokens
            choice = {"index": 0, "text": "w" * tokens, "finish_reason": "length"}
            self.answer(200, {"choices": [choice], "usage": usage(prompt, tokens)})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for token in range(1, tokens + 1):
            time.sleep(behaviour.get("interval_s", 0))
            counts["generation"] += 1
            reason = "length" if token == tokens else None
            choice = {"index": 0, "text": f" w{token}", "finish_reason": reason}
            self.event(json.dumps({"choices": [choice], "usage": usage(prompt, token)}))
        self.event(json.dumps({"choices": [], "usage": usage(prompt, tokens)}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def has_key(self):
        key = os.environ.get("VLLM_API_KEY")
        is_open = behaviour.get("no_key") or key is None
        return is_open or self.headers["authorization"] == f"Bearer {key}"

    def answer(self, status, value):
        self.send(status, "application/json", json.dumps(value).encode())

    def send(self, status, kind, data):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def usage(prompt, tokens):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
    }


def metrics():
    name = f'engine="0",model_name="{args.served_model_name[0]}"'
    blocks = args.num_gpu_blocks_override or 1000
    cache = f'block_size="{args.block_size or 16}",num_gpu_blocks="{blocks}"'
    answers = max(counts["answers"], 1)
    rows = {
        "vllm:num_requests_running": counts["running"],
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0.0,
        "vllm:num_preemptions_total": 0,
        "vllm:prompt_tokens_total": counts["prompt"],
        "vllm:generation_tokens_total": counts["generation"],
        "vllm:prefix_cache_queries_total": 0,
        "vllm:prefix_cache_hits_total": 0,
        "vllm:request_queue_time_seconds_sum": 0.0,
        "vllm:request_queue_time_seconds_count": answers,
        "vllm:iteration_tokens_total_sum": counts["generation"],
        "vllm:iteration_tokens_total_count": max(counts["generation"], 1),
    }
    lines = [f"{metric}{{{name}}} {float(value)}" for metric, value in rows.items()]
    return "\n".join([*lines, f"vllm:cache_config_info{{{cache}}} 1.0", ""])


if __name__ == "__main__":
    args = make_arg_parser(FlexibleArgumentParser()).parse_args()
    number = record_start()
    announce(args)
    if "print" in behaviour:
        said = re.sub(r"\{(\w+)\}", lambda m: os.environ.get(m[1], ""), behaviour["print"])
        sys.stdout.write(said + "\n")
    if behaviour.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour.get("orphan"):
        nap = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(nap, start_new_session=True)
        (FOLDER / "orphans" / str(child.pid)).touch()
    if "die" in behaviour:
        die()
    if behaviour.get("hang"):
        while True:
            time.sleep(1)
    if number <= behaviour.get("address_in_use", 0):
        raise OSError(98, "Address already in use")
    server = ThreadingHTTPServer((args.host, args.port), Handler, bind_and_activate=False)
    server.daemon_threads = True
    server.allow_reuse_address = True
    if behaviour.get("share_port"):
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.server_bind()
    server.server_activate()
    say("Application startup complete.")
    server.serve_forever()
