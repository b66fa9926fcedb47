"""What the scripts beside this one share: processes that end with them, calls over HTTP, a Headrace, and a table of checks.

Needs nothing but Python itself. Knows no peer.
"""

import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
STOP_S = 20


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def run(argv, **options):
    """Runs a command to its end, and shows it first."""
    print("$", " ".join(map(str, argv)), flush=True)
    subprocess.run(list(map(str, argv)), check=True, **options)


class Process:
    """A program and everything that it starts, as one group, with its output in a file."""

    def __init__(self, name, argv, directory, env=None):
        self.name, self.log = name, Path(directory) / f"{name}.log"
        # A variable of Headrace's that it does not know would stop it, and rightly so.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                list(map(str, argv)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=inherited | (env or {}),
                start_new_session=True,
            )

    def said(self, most=3000):
        return self.log.read_text(errors="replace")[-most:]

    def alive(self):
        return self.process.poll() is None

    def members(self):
        """Its processes: (id, command line) of everything in its group."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
                if int(fields[2]) == self.process.pid and fields[0] != "Z":
                    words = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append((int(stat.parent.name), words.strip()))
            except (OSError, IndexError, ValueError):
                continue
        return found

    def until_ready(self, url, within_s):
        """Waits until a GET of the address is answered with 200."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if not self.alive():
                sys.exit(f"{self.name} ended with {self.process.returncode}:\n{self.said()}")
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        sys.exit(f"{self.name} was not ready within {within_s} s:\n{self.said()}")

    def kill(self):
        """All of it at once, as a power cut would."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Asks it to end, and makes it."""
        self._signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        # What it started may outlive it.
        self._signal(signal.SIGKILL)
        return self.process.wait()

    def hold_still(self):
        """Stops all of it where it stands, until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self):
        self._signal(signal.SIGCONT)

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass


class Headrace:
    """`headrace serve` with a configuration, and its other commands beside it."""

    def __init__(self, program, directory, configuration):
        self.program, self.directory = Path(program).resolve(), Path(directory)
        self.key = "sk-peer-" + secrets.token_hex(24)
        self.data, self.url = self.directory / "data", None
        path = self.directory / "headrace.toml"
        path.write_text(configuration)
        argv = [self.program, "serve", "--config", path, "--data-dir", self.data, "--listen", "127.0.0.1:0"]
        argv += ["--set", "server.drain_delay=0s"]
        self.process = Process("headrace", argv, self.directory, {"HEADRACE_BOOTSTRAP_KEY": self.key})
        for _ in range(300):
            written = self.data / "address"
            if written.exists() and (text := written.read_text().strip()):
                self.url = f"http://{text}"
                break
            if not self.process.alive():
                sys.exit(f"headrace ended:\n{self.process.said()}")
            time.sleep(0.1)
        self.process.until_ready(self.url + "/readyz", 60)

    def command(self, *arguments):
        done = subprocess.run(
            [self.program, *arguments, "--data-dir", self.data],
            cwd=self.directory,
            env={**os.environ, "HEADRACE_BOOTSTRAP_KEY": self.key},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise Unexpected(f"headrace {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout

    def upstreams(self):
        """How it sees its upstreams, by name."""
        said = json.loads(self.command("upstreams", "--json"))
        views = said if isinstance(said, list) else next(value for value in said.values() if isinstance(value, list))
        return {view["name"]: view for view in views}

    def post(self, path, body, **options):
        return post(self.url + path, body, key=self.key, **options)

    def trace(self, request_id):
        """Of a call that is over: it is written after the answer."""
        for _ in range(200):
            try:
                return get(f"{self.url}/v1/requests/{request_id}", key=self.key)
            except OSError:
                time.sleep(0.05)
        raise Unexpected(f"there is no trace of {request_id}")

    def stop(self):
        """Drains it; the books must balance."""
        code = self.process.stop()
        if code or "panicked" in self.process.said(1 << 20):
            raise Unexpected(f"headrace ended with {code}:\n{self.process.said()}")
        self.command("ledger", "verify")


class Unexpected(Exception):
    """A check came out otherwise."""


class Status(Exception):
    """An answer that is none of 200."""

    def __init__(self, status, headers, body):
        super().__init__(f"{status}: {body[:400]}")
        self.status, self.headers, self.body = status, headers, body

    def code(self):
        return json.loads(self.body)["error"].get("code")


def expect(found, wanted, what):
    if found != wanted:
        raise Unexpected(f"{what}: {found!r}, not {wanted!r}")


def get(url, key=None):
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def get_text(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def post(url, body, key=None, timeout=120, headers=None):
    """The answer's JSON, with its headers under `headers`."""
    answer, connection = _ask(url, body, key, timeout, headers)
    with connection:
        return {**json.loads(answer.read()), "headers": dict(answer.getheaders())}


def events(url, body, key=None, timeout=120):
    """The headers first, then the JSON of each event of a stream; `[DONE]` as None."""
    answer, connection = _ask(url, {**body, "stream": True}, key, timeout)
    with connection:
        yield dict(answer.getheaders())
        for line in answer:
            line = line.strip()
            if line == b"data: [DONE]":
                yield None
            elif line.startswith(b"data: "):
                yield json.loads(line[6:])


class _Connection:
    def __init__(self, inner):
        self.inner = inner

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.inner.close()


def _ask(url, body, key, timeout, headers=None):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    headers = {"content-type": "application/json", **(headers or {})}
    if key:
        headers["authorization"] = f"Bearer {key}"
    connection.request("POST", parts.path, json.dumps(body).encode() if body is not None else b"", headers)
    answer = connection.getresponse()
    if answer.status != 200:
        with _Connection(connection):
            raise Status(answer.status, dict(answer.getheaders()), answer.read().decode(errors="replace"))
    return answer, _Connection(connection)


def until(what, within_s, look):
    """Looks again and again until it is true; what was seen then."""
    end = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > end:
            raise Unexpected(f"not within {within_s} s: {what}")
        time.sleep(0.2)


class Checks:
    """Runs checks one after the other, and keeps a row of each."""

    def __init__(self):
        self.rows = []

    def check(self, name, run, *arguments):
        """Runs one; what it returns is shown beside its name."""
        print(f"… {name}", flush=True)
        started = time.monotonic()
        try:
            said, passed = run(*arguments), True
        except (Unexpected, Status, OSError, KeyError, IndexError, AssertionError, ValueError, http.client.HTTPException) as error:
            said, passed = f"{type(error).__name__}: {error}", False
            print(f"  {said}", flush=True)
        self.rows.append((name, passed, time.monotonic() - started, said or ""))
        return passed

    def table(self):
        """Prints all rows; whether every one passed."""
        width = max(len(name) for name, *_ in self.rows)
        print()
        for name, passed, took, said in self.rows:
            first = str(said).splitlines()[0] if said else ""
            print(f"{name:{width}}  {'passed' if passed else 'FAILED'}  {took:6.1f} s  {first[:160]}")
        failed = sum(not passed for _, passed, *_ in self.rows)
        print(f"\n{len(self.rows) - failed} of {len(self.rows)} passed")
        return failed == 0
