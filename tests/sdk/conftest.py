"""One server for the whole run: started as a user starts it, stopped by SIGTERM, its ledger verified then.

HEADRACE_BIN names the binary (default: target/release/headrace of this checkout). Everything is in a
temporary directory; ports are free ones. To run: `pip install -r requirements.txt`, then `pytest`.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import anthropic
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("HEADRACE_BIN") or ROOT / "target" / "release" / "headrace").resolve()
MODEL = "headrace-demo"
KEY = "sk-sdk-tests-0123456789abcdefghijklmnopqrstuvwxyz"
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 60


class Server:
    """A running `headrace up`."""

    def __init__(self, directory, settings=None):
        self.directory = pathlib.Path(directory)
        self.data_dir = self.directory / "data"
        self.key = KEY
        # A variable of ours that the program does not know would stop it, and rightly so.
        env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        env["HEADRACE_BOOTSTRAP_KEY"] = self.key
        env.update(settings or {})
        self.env = env
        self.output_path = self.directory / "output"
        self.output = open(self.output_path, "wb")
        command = [str(BINARY), "up", "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0"]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )
        try:
            self.url = self._await_address()
            self._await_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.ready_after_s = time.monotonic() - self.started

    def said(self):
        """All that it printed so far."""
        return self.output_path.read_text(errors="replace")

    def _alive(self):
        if self.process.poll() is not None:
            pytest.fail(f"the server ended with {self.process.returncode}:\n{self.said()}")
        if time.monotonic() - self.started > START_TIMEOUT_S:
            pytest.fail(f"the server is not ready after {START_TIMEOUT_S} s:\n{self.said()}")
        time.sleep(0.02)

    def _await_address(self):
        written = self.data_dir / "address"
        while True:
            text = written.read_text().strip() if written.exists() else self.said()
            found = re.search(r"(?:http://)?(127\.0\.0\.1:[1-9]\d*)", text)
            if found:
                return f"http://{found.group(1)}"
            self._alive()

    def _await_ready(self):
        while True:
            try:
                with urllib.request.urlopen(self.url + "/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            self._alive()

    def run(self, *arguments):
        """Another command of the binary, on this data directory."""
        return subprocess.run(
            [str(BINARY), *arguments, "--data-dir", str(self.data_dir)],
            cwd=self.directory,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def get(self, path):
        """JSON of a path of the API's own."""
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def openai(self, **options):
        options = {"api_key": self.key, "max_retries": 0, "timeout": 60, **options}
        return openai.OpenAI(base_url=self.url + "/v1", **options)

    def async_openai(self, **options):
        options = {"api_key": self.key, "max_retries": 0, "timeout": 60, **options}
        return openai.AsyncOpenAI(base_url=self.url + "/v1", **options)

    def anthropic(self, **options):
        options = {"api_key": self.key, "max_retries": 0, "timeout": 60, **options}
        return anthropic.Anthropic(base_url=self.url, **options)

    def stop(self):
        """Drains it, and checks that it went well and that the books balance."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the server does not stop within {STOP_TIMEOUT_S} s:\n{self.said()}")
        finally:
            self.output.close()
        assert code == 0, f"the server ended with {code}:\n{self.said()}"
        assert "panicked" not in self.said(), self.said()
        verified = self.run("ledger", "verify")
        assert verified.returncode == 0, f"the ledger does not verify:\n{verified.stdout}{verified.stderr}"


@pytest.fixture(scope="session")
def binary():
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not there: `cargo build --release`, or set HEADRACE_BIN", returncode=2)
    return BINARY


@pytest.fixture
def start_server(binary, tmp_path):
    """Starts a server of the test's own, with settings by environment; stopped and verified after it."""
    servers = []

    def start(**settings):
        directory = tmp_path / f"server-{len(servers)}"
        directory.mkdir()
        servers.append(Server(directory, settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(binary, tmp_path_factory):
    """The server that most tests share. Its limits are too high for any test, and only there to be shown."""
    limits = {
        "HEADRACE_LIMITS__KEY__REQUESTS_PER_MINUTE": "100000",
        "HEADRACE_LIMITS__KEY__TOKENS_PER_MINUTE": "1000000000",
    }
    server = Server(tmp_path_factory.mktemp("server"), limits)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def client(server):
    """OpenAI's SDK, which tries nothing again: an error is to be seen."""
    with server.openai() as client:
        yield client


@pytest.fixture(scope="session")
def claude(server):
    """Anthropic's SDK, likewise."""
    with server.anthropic() as client:
        yield client


def _cases():
    cases = json.loads((ROOT / "demo-model" / "checkpoint" / "expected.json").read_text())
    for case in cases:
        case["ended"] = case["greedy_text"].endswith("<|im_end|>")
        case["text"] = case["greedy_text"].removesuffix("<|im_end|>")
    return cases


CASES = _cases()
"""Conversations with what transformers made of them, greedily."""


@pytest.fixture(scope="session")
def weather_tool():
    return next(case["tools"] for case in CASES if case["tools"])[0]


def say(text):
    """A conversation of one question."""
    return [{"role": "user", "content": text}]
