"""Headrace beside llama.cpp's server: the same GGUF files, threads, loads and load generator, one after the other.

    pip install xllamacpp
    cargo build --release
    python tests/peers/llama_cpp.py [--only NAME …] [--threads 2] [--models DIR]

Makes the models it needs (`headrace models make`, random weights of real shapes, of `tests/peers/shapes` too) in DIR, about 10 GB for
all of them. Each row is one
load on one model: what Headrace did, what llama.cpp did, and how many times better Headrace was. A rate is the median of calls
where calls are alike. Nothing else should run on the machine; the order of the two alternates from row to row.
"""

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHAPES = Path(__file__).parent / "shapes"
PEER = """
import sys, time
import xllamacpp
path, slots, context, threads, port = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_parallel = slots
params.n_ctx = slots * context
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.port = port
params.hostnames = ["127.0.0.1"] if isinstance(params.hostnames, list) else "127.0.0.1"
server = xllamacpp.Server(params)
time.sleep(1e9)
"""


def call(output, prompt, *more):
    return ["--prompt-tokens", str(prompt), "--output-tokens", str(output), *map(str, more)]


def rate_of_decode(report, users):
    """Tokens a second of all users while they decode."""
    return 1000.0 * users / report["latency"]["tpot_ms"]["p50"]


# name, model, context and slots of a server, load, [(figure, unit, how to read it, larger is better)]
def rows():
    for kind in ("q8_0", "bf16", "q4_0", "q4_k"):
        yield (
            f"decode 1.04b {kind}",
            ("1.04b", kind),
            (2048, 1),
            ["--users", "1", "--requests", "4", *call(64, 32)],
            [("decode, 1 stream", "tokens/s", lambda r: rate_of_decode(r, 1), True)],
        )
        yield (
            f"prefill 1.04b {kind}",
            ("1.04b", kind),
            (2048, 1),
            ["--users", "1", "--requests", "4", *call(2, 512)],
            [("prefill 512", "tokens/s", lambda r: 512e3 / r["latency"]["from_sent"]["ttft_ms"]["p50"], True)],
        )
    for users in (4, 8, 16, 32):
        yield (
            f"batch {users} 0.39b",
            ("0.39b", "q8_0"),
            (512, users),
            ["--users", str(users), "--requests", str(2 * users), *call(128, 16)],
            [(f"decode, batch {users}", "tokens/s", lambda r, users=users: rate_of_decode(r, users), True)],
        )
    yield (
        "server 0.39b",
        ("0.39b", "q8_0"),
        (512, 16),
        ["--users", "16", "--requests", "64", *call(64, 128)],
        [
            ("16 users, 128 in, 64 out", "tokens/s", lambda r: r["rates"]["output_tokens_per_s"], True),
            ("… TTFT p50", "ms", lambda r: r["latency"]["from_sent"]["ttft_ms"]["p50"], False),
            ("… token gap p99", "ms", lambda r: r["latency"]["itl_ms"]["p99"], False),
        ],
    )
    yield (
        "warm prefix 0.39b",
        ("0.39b", "q8_0"),
        (2048, 1),
        ["--users", "1", "--requests", "8", "--shared-prefix-tokens", "448", *call(2, 512)],
        [("TTFT, 448 of 512 cached", "ms", lambda r: r["latency"]["from_sent"]["ttft_ms"]["p50"], False)],
    )
    yield (
        "context 16k 0.39b",
        ("0.39b", "q8_0"),
        (20480, 1),
        ["--users", "1", "--requests", "1", *call(64, 16000)],
        [("decode behind 16,000", "tokens/s", lambda r: rate_of_decode(r, 1), True)],
    )


def hybrid_rows():
    """Models with recurrent layers, of the configurations in `shapes`."""
    one = lambda r: rate_of_decode(r, 1)
    eight = lambda r: rate_of_decode(r, 8)
    first = lambda r: 512e3 / r["latency"]["from_sent"]["ttft_ms"]["p50"]
    for shape in ("qwen3.5-4b", "qwen3.5-35b-a3b-8-layers"):
        for name, slots, load, figure in (
            ("decode", 1, ["--users", "1", "--requests", "3", *call(48, 32)], ("decode, 1 stream", "tokens/s", one, True)),
            ("prefill", 1, ["--users", "1", "--requests", "3", *call(2, 512)], ("prefill 512", "tokens/s", first, True)),
            ("batch 8", 8, ["--users", "8", "--requests", "16", *call(32, 16)], ("decode, batch 8", "tokens/s", eight, True)),
        ):
            yield f"{name} {shape}", (shape, "q4_k"), (1024, slots), load, [figure]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(port, path, process, log):
    for _ in range(1200):
        if process.poll() is not None:
            sys.exit(f"the server ended early:\n{log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"the server did not become ready:\n{log.read_text()[-2000:]}")


def measure(program, name, argv, port, load, scratch, key=None):
    log = scratch / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, cwd=scratch)
    try:
        wait_for(port, "/readyz" if key else "/health", process, log)
        report = scratch / "report.json"
        if key:
            key = key.read_text().strip()
        env = os.environ | {"HEADRACE_API_KEY": key or "none"}
        bench = [program, "bench", "--url", f"http://127.0.0.1:{port}", "--api", "completions", "--ignore-eos"]
        bench += ["--warmup", "1", "--json", report, *load]
        done = subprocess.run(bench, env=env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: headrace bench failed\n{done.stderr}{done.stdout}")
        return json.loads(report.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--only", nargs="*", default=[], help="parts of rows' names")
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "headrace-peer-models")
    args.add_argument("--program", type=Path, default=ROOT / "target/release/headrace")
    args = args.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    print(f"{'':34} {'headrace':>10} {'llama.cpp':>10} {'':9} {'ratio':>6}")
    for index, (name, (shape, kind), (context, slots), load, figures) in enumerate([*rows(), *hybrid_rows()]):
        if args.only and not any(part in name for part in args.only):
            continue
        path = args.models / f"{shape}-{kind}.gguf"
        if not path.exists():
            config = SHAPES / f"{shape}.json"
            model = ["--config", config] if config.exists() else ["--shape", shape]
            make = [args.program, "models", "make", *model, "--format", "gguf", "--type", kind, path]
            subprocess.run(make, check=True, capture_output=True)
        reports = {}
        for who in ("headrace", "llama.cpp") if index % 2 else ("llama.cpp", "headrace"):
            port = free_port()
            with tempfile.TemporaryDirectory() as scratch:
                scratch = Path(scratch)
                if who == "headrace":
                    key = scratch / "key"
                    key.write_text("sk-peer-" + secrets.token_hex(24))
                    argv = [args.program, "up", "--listen", f"127.0.0.1:{port}", "--data-dir", scratch / "data"]
                    argv += ["--threads", args.threads, "--model", f"m={path}"]
                    argv += ["--set", f"first_start.key_file={key}", "--set", "first_start.credit=1000", "--compute", "fast"]
                else:
                    key = None
                    argv = [sys.executable, "-c", PEER, path, slots, context, args.threads, port]
                reports[who] = measure(args.program, name, list(map(str, argv)), port, load, scratch, key)
        for what, unit, read, larger in figures:
            ours, theirs = read(reports["headrace"]), read(reports["llama.cpp"])
            ratio = ours / theirs if larger else theirs / ours
            label = f"{what}, {kind}" if shape == "1.04b" else what
            label = name if (SHAPES / f"{shape}.json").exists() else label
            print(f"{label:34} {ours:10.1f} {theirs:10.1f} {unit:9} {ratio:5.2f}×", flush=True)


if __name__ == "__main__":
    main()
