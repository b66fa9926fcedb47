"""Every name on the page of metrics moves: by what a test here does to a server, or by the test of a room that the table names, where it takes what
nobody outside can do. A name that nothing moves is a number that nobody can trust."""

import contextlib
import http.client
import json
import re
import resource
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.request

import openai
import pytest

from conftest import MODEL, ROOT, Server
from listening import Handler, Listening
from scripted import Scripted
from test_deploy import free_port

MOVED_ELSEWHERE = {
    "headrace_contents_dropped_total": ("crates/gateway/tests/path/recorded.rs", "recorder.dropped(), 1"),
    "headrace_contents_removed_total": ("crates/gateway/tests/path/recorded.rs", "recorder.removed(), 1"),
    "headrace_engine_restarts_total": ("crates/sim/tests/engine/engine_thread.rs", "engine.load().restarts == 0"),
    "headrace_limit_leases_abandoned_total": ("crates/limits/src/limits/tests.rs", "metrics.abandoned"),
    "headrace_limit_leases_expired_total": ("crates/limits/src/limits/tests.rs", "metrics.expired"),
    "headrace_ledger_holds_expired_total": ("crates/gateway/tests/path/holds.rs", "ledger.health().expired, 1"),
    "headrace_log_lines_dropped_total": ("crates/server/src/log.rs", "log.dropped(), 3"),
    "process_max_fds": ("crates/headrace/tests/descriptors.rs", "process_max_fds 256"),
    "headrace_journal_snapshots_total": ("crates/ledger/tests/service.rs", "contents.snapshots.len() > 2"),
}
"""What it takes more than clients, operators and signals to move; the test that moves it, and what it says there."""
PRICE = 'price = { input = "1", output = "2" }'
PRICES = f"""
[[prices]]
model = "{MODEL}"
input = "0.1"
output = "0.4"
"""
DEMO = f"""
[[models]]
name = "{MODEL}"
path = "builtin:demo"
{PRICES}"""
SEEN, MOVED = set(), set()


def samples(text):
    """What each sample says, by the family that it stands in."""
    family, found = None, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family = line.split()[2]
            found.setdefault(family, {})
        elif not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[family][name] = float(value)
    return found


class Watched:
    """A server whose page is looked at all the time: which names it has, and which of them change."""

    def __init__(self, directory, configuration, kind=Server):
        self.port = free_port()
        # The sections of a file may come in any order.
        parts = configuration.split("[server]\n")
        listen = f'[server]\nmetrics_listen = "127.0.0.1:{self.port}"\n'
        kind.operators = self.port
        self.server = kind(directory, None, parts[0] + listen + "".join(parts[1:]))
        self.first, self.moved, self.over = {}, set(), threading.Event()
        self.look()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def page(self, within=60):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=within) as answer:
            return samples(answer.read().decode())

    def look(self, within=60):
        page = self.page(within)
        for family, found in page.items():
            before = self.first.setdefault(family, dict(found))
            # A sample that was not there before has moved from nothing; one that was, when it changes.
            if any(before.get(name, 0.0) != value for name, value in found.items()):
                self.moved.add(family)
        return page

    def watch(self):
        while not self.over.is_set():
            # It may be too busy to say, or out of file descriptors.
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.look(within=10)
            time.sleep(0.01)

    def until(self, *families, by=None):
        """Waits until these have moved. What moves them for a moment only is done again and again: the look at the page may have missed it."""
        end = time.monotonic() + 60
        while not set(families) <= self.moved:
            assert time.monotonic() < end, f"nothing moves {sorted(set(families) - self.moved)}"
            if by:
                by()
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.watcher.join()
        self.server.stop()
        if kind is None:
            SEEN.update(self.first)
            MOVED.update(self.moved)


def ask(client, model=MODEL, **more):
    options = {"max_tokens": 24, "messages": [{"role": "user", "content": "What is a KV cache? " * 4}], **more}
    return client.chat.completions.create(model=model, **options)


def at_once(*acts):
    threads = [threading.Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def head(server, length, more=""):
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n"
    ).encode()


def connected(server):
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    # As little of an answer as possible waits on this side.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(30)
    connection.connect((host, int(port)))
    return connection


def long_stream(server, model=MODEL):
    body = {"model": model, "stream": True, "max_tokens": 1900, "ignore_eos": True, "messages": [{"role": "user", "content": "Go on"}]}
    connection = connected(server)
    text = json.dumps(body).encode()
    connection.sendall(head(server, len(text)) + text)
    return connection


class Moody(Listening):
    """An upstream that says it is asked too often, or begins an answer and never ends it."""

    class Handler(Handler):
        def do_POST(self):
            if json.loads(self.body())["model"] == "busy":
                self.answer(status=429)
                return
            self.head(content_type="text/event-stream")
            piece = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "slow", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "One "}, "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
            self.wfile.flush()
            self.server.outer.release.wait(300)
            self.close_connection = True

    def __init__(self):
        self.release = threading.Event()
        super().__init__(Moody.Handler)

    def stop(self):
        self.release.set()
        super().stop()


class Sink(Handler):
    """Takes whatever it is sent."""

    def do_POST(self):
        self.body()
        self.answer()


def test_calls_refusals_and_telemetry_move_theirs(tmp_path):
    sink = Listening(Sink)
    configuration = f"""
[server]

[scheduler]
max_running = 2

[gateway]
delivery_buffer = "4KiB"

[telemetry]
endpoint = "http://127.0.0.1:{free_port()}"
logs_endpoint = "{sink.url}/v1/logs"
retry_for = "0s"
linger = "1ms"
metrics_every = "200ms"

[limits]
key.requests_per_minute = 100000

[records]
level = "full"
{DEMO}"""
    with Watched(tmp_path, configuration) as watched:
        client = watched.server.openai()
        crowd = [lambda: ask(client, max_tokens=200, extra_body={"ignore_eos": True})] * 6
        crowd += [lambda: ask(client, max_tokens=4, stream=False)] * 2
        reader = long_stream(watched.server)
        watched.until("headrace_engine_paused")
        watched.until("headrace_engine_waiting", "headrace_preemptions_total", by=lambda: at_once(*crowd))
        reader.close()
        for refused, changed in [
            (client, {"n": 10_000}),
            (client, {"model": "none"}),
            (watched.server.openai(api_key="sk-wrong-0123456789abcdef"), {}),
        ]:
            with pytest.raises(openai.APIStatusError):
                ask(refused, **{"model": MODEL, **changed})
        made = watched.server.run("keys", "create", "--project", "default", "--json")
        assert made.returncode == 0, made.stderr
        ask(watched.server.openai(api_key=json.loads(made.stdout)["value"]["secret"]))
        watched.until("headrace_telemetry_failures_total", "headrace_telemetry_dropped_total", "headrace_telemetry_sent_total", "headrace_limit_scopes", "headrace_contents_stored_total")
    sink.stop()


def test_upstreams_move_theirs(tmp_path):
    scripted, moody = Scripted(), Moody()
    configuration = f"""
[server]

[[upstreams]]
name = "far"
kind = "openai"
url = "{scripted.url}"
max_in_flight = 1
{PRICE}

[[upstreams]]
name = "moody"
kind = "openai"
url = "{moody.url}"
max_in_flight = 1
{PRICE}

[[upstreams]]
name = "dead"
kind = "openai"
url = "http://127.0.0.1:{free_port()}"
{PRICE}

[[models]]
name = "far"
targets = ["far/scripted"]

[[models]]
name = "busy"
targets = ["moody/busy"]

[[models]]
name = "slow"
targets = ["moody/slow"]

[[models]]
name = "dead"
targets = ["dead/any"]

[[models]]
name = "next"
path = "builtin:demo"

[[models]]
name = "shadowed"
path = "builtin:demo"
shadow = {{ model = "next", share = 1.0, budget = "$5/day" }}

[[routes]]
name = "trial"
to = [{{ model = "shadowed", weight = 50 }}, {{ model = "dead", weight = 50, canary = {{ min_calls = 8 }} }}]
sticky = "none"

[[prices]]
model = "next"
input = "1"
output = "1"

[[prices]]
model = "shadowed"
input = "1"
output = "1"
"""
    try:
        with Watched(tmp_path, configuration) as watched:
            client = watched.server.openai()
            at_once(*[lambda: ask(client, "far")] * 4)
            for model in ("busy", *["dead"] * 8):
                with pytest.raises(openai.APIStatusError):
                    ask(client, model)
            stream = ask(client, "slow", stream=True)
            next(iter(stream))
            waiting = threading.Thread(target=_quiet, args=(client, "slow"), daemon=True)
            waiting.start()
            watched.until("headrace_upstream_waiting")
            stream.close()
            watched.until("headrace_upstream_given_up_total")
            moody.release.set()
            waiting.join()
            ask(client, "shadowed")
            watched.until("headrace_canary_rolled_back", by=lambda: _quiet(client, "trial"))
            drained = watched.server.run("upstreams", "drain", "far")
            assert drained.returncode == 0, drained.stderr
            watched.until("headrace_upstream_up")
            assert watched.server.run("upstreams", "resume", "far").returncode == 0
            with pytest.raises(Exception):
                for _ in ask(client, "far", stream=True, messages=[{"role": "user", "content": "Break off"}]):
                    pass
            watched.until(
                "headrace_upstream_rate_limited_total",
                "headrace_shadow_copies_total",
                "headrace_shadow_spent_dollars",
                "headrace_canary_rolled_back",
                "headrace_failures_total",
                "headrace_loss_nano_dollars_total",
            )
    finally:
        moody.stop()
        scripted.stop()


def _refused(server):
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/v1/models", headers={"authorization": "Bearer sk-wrong-0123456789abcdef"})
        connection.getresponse().read()
        connection.close()


def _quiet(client, model):
    with contextlib.suppress(openai.APIError):
        ask(client, model, max_tokens=2)


def test_bad_connections_move_theirs(tmp_path):
    configuration = f"""
[server]
header_timeout = "2s"
body_progress_timeout = "4s"
write_timeout = "2s"
max_connections = 8
max_connections_per_peer = 8
max_refusals_per_peer = 40

[gateway]
stall_timeout = "1s"
{DEMO}"""
    with Watched(tmp_path, configuration) as watched:
        server = watched.server
        slow_head, slow_body = connected(server), connected(server)
        slow_head.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        slow_body.sendall(head(server, 1000))
        watched.until("headrace_edge_header_timeouts_total", "headrace_edge_body_timeouts_total")
        # What no call's task sends, nobody but the edge cuts off.
        lines = b"".join(b'{"custom_id": "%d", "x": "%s"}\n' % (number, b"x" * 4000) for number in range(1000))
        stored = server.openai().files.create(file=("many.jsonl", lines), purpose="batch")
        stalled = connected(server)
        stalled.sendall(f"GET /v1/files/{stored.id}/content HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.key}\r\n\r\n".encode())
        watched.until("headrace_edge_write_timeouts_total")
        stalled.close()
        # Those that have a request do not give way.
        crowd = []

        def one_more():
            with contextlib.suppress(OSError):
                crowd.append(connected(server))
                crowd[-1].sendall(head(server, 1000))

        watched.until("headrace_edge_connections_refused_total", by=one_more)
        for connection in crowd:
            connection.close()
        # More file descriptors than there are now it may not have; the next connection cannot be handed over.
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)

        def come_in_vain():
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            with contextlib.suppress(OSError):
                connected(server).close()
            time.sleep(0.5)
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
            # The page is not to be had either meanwhile.
            watched.look()

        watched.until("headrace_edge_accept_errors_total", by=come_in_vain)
        stranger = server.openai(api_key="sk-wrong-0123456789abcdef")
        watched.until("headrace_edge_refusals_cut_short_total", by=lambda: _quiet(stranger, MODEL))

        # Traces of strangers are kept up to ten in a second.
        def in_one_second():
            at_once(*[lambda: _refused(server)] * 40)

        watched.until("headrace_traces_dropped_total", by=in_one_second)


class Encrypted(Server):
    """Its readiness is asked for where it needs no certificate."""

    operators = None

    def _await_ready(self):
        while True:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{self.operators}/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return
            self._alive()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_a_handshake_that_is_none_moves_its(tmp_path):
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    made = subprocess.run([*make, "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    configuration = f"""
[server]
tls_cert = "{tmp_path}/cert.pem"
tls_key = "{tmp_path}/key.pem"
{DEMO}"""
    with Watched(tmp_path, configuration, kind=Encrypted) as watched:
        connection = connected(watched.server)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        watched.until("headrace_edge_tls_failures_total")
        connection.close()


def test_a_reload_moves_its(tmp_path):
    one = f"""
[server]

[gateway]
delivery_buffer = "4KiB"

[reload]
watch = "0s"

[[models]]
name = "first"
path = "builtin:demo"

[[prices]]
model = "first"
input = "1"
output = "1"
"""
    two = one.replace('"first"', '"second"')
    with Watched(tmp_path, one) as watched:
        client, path = watched.server.openai(), tmp_path / "headrace.toml"
        ask(client, "first")
        # It is not read, so it does not end.
        stream = long_stream(watched.server, "first")
        watched.until("headrace_engine_paused")
        # The time of a reload is told in seconds.
        time.sleep(1.1)
        path.write_text(path.read_text() + two.split("watch = \"0s\"\n")[1])
        assert watched.server.run("reload").returncode == 0
        watched.until("headrace_engine_up", "headrace_engine_kv_blocks", "headrace_config_reloads_total", "headrace_config_last_success_timestamp_seconds")
        before = path.read_text()
        path.write_text(before.split("[[models]]")[0] + "[[models]]" + two.split("[[models]]")[1])
        assert watched.server.run("reload").returncode == 0
        watched.until("headrace_engines_ending")
        stream.close()


@contextlib.contextmanager
def locked(path):
    """A file of a database that nobody else can write, as if its disk took nothing."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        database.execute("ROLLBACK")
        database.close()


def test_stores_that_cannot_be_written_move_theirs(tmp_path):
    with Watched(tmp_path, f"[server]\n{DEMO}") as watched:
        server, client = watched.server, watched.server.openai()
        made = server.run("keys", "create", "--json")
        assert made.returncode == 0, made.stderr
        key = json.loads(made.stdout)["value"]["key"]["id"]
        with contextlib.ExitStack() as stack:
            for name in ("ledger", "traces", "identity"):
                stack.enter_context(locked(server.data_dir / f"{name}.sqlite"))
            asking = threading.Thread(target=_quiet, args=(client, MODEL), daemon=True)
            asking.start()
            server.run("keys", "revoke", key)
            watched.until("headrace_journal_failures_total", "headrace_ledger_up", "headrace_store_up", "headrace_revocations_waiting")
        asking.join()
        end = time.monotonic() + 60
        while time.monotonic() < end and not all(watched.page()["headrace_store_up"].values()):
            time.sleep(0.2)


def test_every_name_is_moved_by_something():
    """Behind the others of this file, whose servers it goes by."""
    assert len(SEEN) > 60, "the tests before this one did not run"
    for name, (path, says) in MOVED_ELSEWHERE.items():
        assert says in (ROOT / path).read_text(), f"{path} says nothing of {name} any more"
    still = SEEN - MOVED - {"headrace_build_info"}
    assert still == set(MOVED_ELSEWHERE), (sorted(still - set(MOVED_ELSEWHERE)), sorted(set(MOVED_ELSEWHERE) - still))
    # What Prometheus names for every process keeps its name.
    assert all(re.fullmatch(r"(headrace|process)_[a-z_]+", name) for name in SEEN)
