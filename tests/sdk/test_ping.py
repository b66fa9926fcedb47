"""`headrace ping`, and what `headrace chat` says of the way: before a server of ours, straight and through a stretch of wire that is as long as a
test says."""

import json
import os
import queue
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest

from conftest import BINARY, Server
from terminals import END, ENTER, Terminal

WIRE_S = 0.03
"""One way through the long wire."""


class Wire:
    """Passes bytes on, each after the same time, both ways. A connection to it stands at once: the long part lies behind."""

    def __init__(self, port):
        self.to = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(self.to)
            for one, other in [(near, far), (far, near)]:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    @staticmethod
    def carry(one, other):
        """Reading goes on while bytes are on their way, as on a wire."""
        under_way = queue.SimpleQueue()
        threading.Thread(target=Wire.deliver, args=(under_way, other), daemon=True).start()
        try:
            while data := one.recv(65536):
                under_way.put((time.monotonic() + WIRE_S, data))
        except OSError:
            pass
        under_way.put((time.monotonic() + WIRE_S, b""))

    @staticmethod
    def deliver(under_way, other):
        """In the order in which it was sent."""
        data = True
        while data:
            due, data = under_way.get()
            time.sleep(max(0, due - time.monotonic()))
            try:
                other.sendall(data)
            except OSError:
                break
        Wire.end(other)

    @staticmethod
    def end(other):
        try:
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.listener.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine")
    at = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, "-keyout", at / "key.pem", "-out", at / "cert.pem"], check=True, capture_output=True)
    return at


def ping(*arguments, env=None):
    command = [str(BINARY), "ping", *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**kept, **(env or {})})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_each_step_is_told(start_server):
    server = start_server()
    shown = ping(server.url, "--count", "3", "--from", "zurich", "--to", "frankfurt")
    for part in (server.url, "  floor ", "km, 5 µs each", "  TCP ", "  HTTP ", "GET /healthz (200)", "one of the places is not"):
        assert part in shown, shown
    assert "TLS" not in shown and "DNS" not in shown
    told = json.loads(ping(server.url.replace("127.0.0.1", "localhost"), "--count", "4", "--json"))
    assert [told[step]["count"] for step in ("dns", "tcp", "tls", "http")] == [4, 4, 0, 4]
    assert told["floor"] is None and told["call"] is None


def once(measure):
    """A busy machine adds waits of its own to a measurement, and not to each of many: one of them shows what it should."""
    for _ in range(20):
        shows, told = measure()
        if shows:
            return
    pytest.fail(told)


def test_of_a_call_the_way_is_told_apart_from_the_server(start_server, tmp_path):
    server = start_server()
    port = int(server.url.rsplit(":", 1)[1])
    wire = Wire(port)
    round_trip_us = 2 * WIRE_S * 1e6
    try:
        far = f"http://127.0.0.1:{wire.port}"

        def along_the_wire():
            told = json.loads(ping(far, "--count", "3", "--call", "--json", env={"HEADRACE_API_KEY": server.key}))
            assert told["http"]["min_us"] >= round_trip_us
            call = told["call"]
            assert call["network_is_measured"] and call["network_us"] >= round_trip_us
            assert call["server_us"] + call["network_us"] == pytest.approx(call["whole_us"])
            # The connection is at this end of the wire, and the server's time is not the network's.
            return told["tcp"]["median_us"] < round_trip_us / 2 and call["network_us"] < 3 * round_trip_us, told

        def without_a_wire():
            near = json.loads(ping(server.url, "--count", "3", "--call", "--json", "--data-dir", server.data_dir))
            return near["call"]["network_us"] < round_trip_us, near

        once(along_the_wire)
        once(without_a_wire)

        chat = Terminal([BINARY, "chat", "--url", far], tmp_path, HEADRACE_API_KEY=server.key)
        try:
            chat.expect(r"(^|\n)>$")
            asked = []

            def between_the_two():
                chat.type("What is prefill?" + ENTER)
                request = re.search(r"req_\w+", chat.expect(r"req_\w+\s+>$")).group(0)
                chat.type("/trace" + ENTER)
                drawn = chat.expect(r"(?s)last token.*  decode.*at\s+the\s+server.*trace \w{32}(?s:.*)>$")
                asked.append((request, drawn))
                between = float(re.search(r"([\d.]+)\s+ms\s+between\s+the\s+two", drawn).group(1))
                assert 2 * WIRE_S <= between / 1e3, drawn
                return between / 1e3 < 6 * WIRE_S, drawn

            once(between_the_two)
            request, drawn = asked[-1]
            chat.type(END)
            assert chat.end() == 0
        finally:
            chat.close()
    finally:
        wire.close()
    kept = json.loads(server.run("trace", request, "--json").stdout)
    assert kept["trace_id"] == re.search(r"trace (\w{32})", drawn).group(1), "one trace has both ends"
    assert re.fullmatch(r"[0-9a-f]{16}", kept["parent_span_id"])


def test_a_handshake_is_told_apart_from_the_connection(binary, certificate, tmp_path):
    more = ["--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem")]
    server = TlsServer(tmp_path, more=more)
    wire = Wire(int(server.address().rsplit(":", 1)[1]))
    try:
        trust = ["--ca", certificate / "cert.pem"]
        round_trip_us = 2 * WIRE_S * 1e6

        def handshakes():
            told = json.loads(ping(f"https://localhost:{wire.port}", "--count", "3", "--json", *trust))
            assert [told[step]["count"] for step in ("dns", "tcp", "tls", "http")] == [3, 3, 3, 3]
            assert told["tls"]["min_us"] >= round_trip_us, "a handshake is a round trip"
            assert told["new_connection_us"] >= told["tls"]["median_us"]
            return told["tls"]["min_us"] < 3 * round_trip_us and told["tcp"]["median_us"] < round_trip_us / 2, told

        once(handshakes)
        shown = ping(f"https://localhost:{wire.port}", "--count", "2", *trust)
        assert "that a warm one does not: keep connections" in shown

        question = ["--model", "headrace-demo", "What is prefill?"]
        command = [str(BINARY), "chat", "--url", f"https://localhost:{wire.port}", *map(str, trust), *question]
        env = {**server.env, "HEADRACE_API_KEY": server.key}
        env.pop("HEADRACE_BOOTSTRAP_KEY")
        new = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert new.returncode == 0, new.stderr
        spent = re.search(r"TTFT (\d+) ms · (\d+) ms of it a new connection \(DNS [\d.]+ ms, TCP [\d.]+ ms, TLS (\d+) ms\)", new.stderr)
        assert spent, new.stderr
        first, connection, tls = map(int, spent.groups())
        assert first > connection >= tls >= 2 * WIRE_S * 1e3
    finally:
        wire.close()
        server.stop()


class TlsServer(Server):
    """The same with a certificate of its own: it is ready when it listens."""

    def address(self):
        return (self.data_dir / "address").read_text().strip()

    def _await_ready(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection(tuple(self.address().rsplit(":", 1)), timeout=1).close()
                return
            except OSError:
                self._alive()


def test_what_cannot_be_reached_is_said():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    ran = subprocess.run([BINARY, "ping", f"http://127.0.0.1:{port}"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "cannot connect" in ran.stderr, ran.stderr
    ran = subprocess.run([BINARY, "ping", "http://127.0.0.1:1", "--from", "atlantis"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "LATITUDE,LONGITUDE" in ran.stderr, ran.stderr
