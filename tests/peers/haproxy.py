"""Three Headraces behind HAProxy, restarted in turn while clients call: no call may fail.

    apt-get install haproxy
    cargo build --release
    python tests/peers/haproxy.py [--program FILE] [--calls 10000] [--clients 8] [--drain-delay 0s]

HAProxy checks `/readyz` once a second, takes a server out at the first 503, and tries nothing again (`retries 0`): each call that a
server loses is a failed call. The servers have the default `server.drain_delay` unless one is given: without a delay calls fail.
"""

import argparse
import csv
import http.client
import json
import secrets
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from peer import TARGET, Checks, Process, expect, free_port, get_text, until

SERVERS = ("one", "two", "three")
BODY = {"model": "headrace-demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
START_S = 60

HAPROXY = """
global
    maxconn 1000
defaults
    mode http
    retries 0
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend api
    bind 127.0.0.1:{api}
    default_backend servers
frontend stats
    bind 127.0.0.1:{stats}
    stats enable
    stats uri /stats
backend servers
    balance roundrobin
    http-reuse always
    option httpchk GET /readyz
    default-server inter 1s fall 1 rise 1
{servers}
"""


class Server:
    """`headrace serve` at the same ports after each restart."""

    def __init__(self, program, directory, key, more):
        self.program, self.directory, self.key, self.more = program, Path(directory), key, more
        self.directory.mkdir()
        self.port, self.metrics = free_port(), free_port()
        self.file = self.directory / "headrace.toml"
        self.file.write_text(
            f'[server]\nlisten = "127.0.0.1:{self.port}"\nmetrics_listen = "127.0.0.1:{self.metrics}"\n'
            '[first_start]\ncredit = "1000"\n'
        )
        self.start()

    def start(self):
        argv = [self.program, "serve", "--config", self.file, "--data-dir", self.directory / "data", "--threads", "1"]
        argv += self.more
        self.process = Process("headrace", argv, self.directory, {"HEADRACE_BOOTSTRAP_KEY": self.key})
        self.process.until_ready(f"http://127.0.0.1:{self.metrics}/readyz", START_S)

    def stop(self):
        code = self.process.stop()
        expect((code, "every call is settled" in self.process.said()), (0, True), self.process.said())


class Clients:
    """Callers that keep their connections, each with one call at a time."""

    def __init__(self, port, key, number):
        self.port, self.key = port, key
        self.calls, self.failures, self.ends = 0, [], threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._call_forever) for _ in range(number)]
        for thread in self.threads:
            thread.start()

    def _call_forever(self):
        connection = None
        while not self.ends.is_set():
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                headers = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
                connection.request("POST", "/v1/chat/completions", json.dumps(BODY), headers)
                answer = connection.getresponse()
                body = answer.read()
                failure = None if answer.status == 200 and b"usage" in body else f"{answer.status}: {body[:200]!r}"
                if answer.will_close:
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                failure, connection = f"{type(error).__name__}: {error}", None
            with self.lock:
                self.calls += 1
                if failure:
                    self.failures.append(failure)

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def up(stats, name):
    """Whether HAProxy sends calls to a server."""
    try:
        page = get_text(f"http://127.0.0.1:{stats}/stats;csv").lstrip("# ")
    except OSError:
        return False
    rows = csv.DictReader(page.splitlines())
    return next(row["status"] for row in rows if row["pxname"] == "servers" and row["svname"] == name).startswith("UP")


def restart_in_turn(program, scratch, calls, number, more):
    key = "sk-peer-" + secrets.token_hex(24)
    servers = {name: Server(program, scratch / name, key, more) for name in SERVERS}
    api, stats = free_port(), free_port()
    lines = [f"    server {name} 127.0.0.1:{server.port} check port {server.metrics}" for name, server in servers.items()]
    file = scratch / "haproxy.cfg"
    file.write_text(HAPROXY.format(api=api, stats=stats, servers="\n".join(lines)))
    haproxy = Process("haproxy", [shutil.which("haproxy") or "/usr/sbin/haproxy", "-f", file, "-db"], scratch)
    try:
        for name in SERVERS:
            until(f"HAProxy takes {name} for up", 30, lambda name=name: haproxy.alive() and up(stats, name))
        clients = Clients(api, key, number)
        restarts = 0
        try:
            while restarts < len(SERVERS) or clients.calls < calls:
                name = SERVERS[restarts % len(SERVERS)]
                before = clients.calls
                until("calls go on", 60, lambda before=before: clients.calls >= before + 100)
                servers[name].stop()
                servers[name].start()
                until(f"HAProxy takes {name} for up again", 30, lambda name=name: up(stats, name))
                restarts += 1
                print(f"  {name} restarted: {clients.calls} calls, {len(clients.failures)} failed", flush=True)
        finally:
            clients.stop()
        expect(clients.failures[:5], [], f"{len(clients.failures)} of {clients.calls} calls failed")
        return f"{clients.calls} calls over {restarts} restarts, 0 failed"
    finally:
        haproxy.stop()
        for server in servers.values():
            server.process.kill()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--program", type=Path, default=TARGET / "release/headrace")
    args.add_argument("--calls", type=int, default=10_000)
    args.add_argument("--clients", type=int, default=8)
    args.add_argument("--drain-delay", default=None, help="`server.drain_delay` of the servers")
    args = args.parse_args()
    more = ["--set", f"server.drain_delay={args.drain_delay}"] if args.drain_delay else []
    checks = Checks()
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (args.program.resolve(), Path(scratch), args.calls, args.clients, more)
        checks.check("restart in turn", restart_in_turn, *arguments)
    sys.exit(not checks.table())


if __name__ == "__main__":
    main()
