"""One server for the whole run: started as a user starts it, stopped by SIGTERM, its ledger verified then.

HEADRACE_BIN names the binary (default: target/release/headrace of this checkout). Everything is in a
temporary directory; ports are free ones. To run: `pip install -r requirements.txt`, then `pytest`.
"""

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

import anthropic
import openai
import pytest

from noted import Noted

pytest_plugins = ["places"]
NOTED = Noted()
ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("HEADRACE_BIN") or ROOT / "target" / "release" / "headrace").resolve()
MODEL = "headrace-demo"
ENCODER = "text-encoder"
"""A small one that makes vectors of texts, beside the demo model."""
KEY = "sk-sdk-tests-0123456789abcdefghijklmnopqrstuvwxyz"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


def pytest_configure(config):
    config.pluginmanager.register(NOTED)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    NOTED.note(item, outcome.get_result())


class Server:
    """A running `headrace up`, or `headrace serve` where it is given a configuration."""

    computing = ("prefill", "decode")
    """Stages of an answer's making, as this server tells them."""

    def __init__(self, directory, settings=None, configuration=None, more=()):
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
        command = [str(BINARY), "up"]
        if configuration is not None:
            path = self.directory / "headrace.toml"
            path.write_text(configuration)
            command = [str(BINARY), "serve", "--config", str(path), "--set", "server.drain_delay=0s"]
        command += ["--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0", *more]
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
            if written.exists() and (text := written.read_text().strip()):
                return f"http://{text}"
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
        with urllib.request.urlopen(request, timeout=60) as answer:
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


LIMITS = {
    "HEADRACE_LIMITS__KEY__REQUESTS_PER_MINUTE": "100000",
    "HEADRACE_LIMITS__KEY__TOKENS_PER_MINUTE": "1000000000",
}
"""Too high for any test, and only there to be shown."""

DIALECTS = ["openai", "anthropic"]


def front_configuration(kind, url):
    """The demo model by its own name, at a server of others that speaks this dialect, at the demo model's price; and the encoder, in the one
    dialect that has embeddings."""
    encoder = f"""
[[models]]
name = "{ENCODER}"
targets = ["far/{ENCODER}"]
"""
    return f"""
[server]
metrics_listen = "127.0.0.1:0"

[[upstreams]]
name = "far"
kind = "{kind}"
url = "{url}"
price = {{ input = "0.1", cached_input = "0.01", output = "0.4" }}

[[models]]
name = "{MODEL}"
targets = ["far/{MODEL}"]
""" + (encoder if kind == "openai" else "")


class Relayed:
    """A Headrace with the demo model, and two in front of it: one speaks OpenAI's dialect to it, one Anthropic's.

    As a server it is each SDK's shortest way: the front that speaks the SDK's own dialect to the far server.
    """

    computing = ("upstream", "decode")

    def __init__(self, make_directory):
        models = {MODEL: ROOT / "demo-model" / "checkpoint", ENCODER: ROOT / "crates" / "model" / "tests" / "data" / "bert-embed"}
        more = [word for name, path in models.items() for word in ("--model", f"{name}={path}")]
        self.far = Server(make_directory("far"), LIMITS, more=more)
        self.servers = [self.far]
        self.fronts = {}
        try:
            for kind in DIALECTS:
                settings = {**LIMITS, "HEADRACE_UPSTREAM_FAR_KEY": self.far.key}
                front = Server(make_directory(f"front-{kind}"), settings, front_configuration(kind, self.far.url))
                self.servers.append(front)
                self.fronts[kind] = front
        except BaseException:
            self.stop()
            raise

    def __getattr__(self, name):
        return getattr(self.fronts["openai"], name)

    def anthropic(self, **options):
        return self.fronts["anthropic"].anthropic(**options)

    def stop(self):
        for server in reversed(self.servers):
            server.stop()


@pytest.fixture(scope="session")
def relayed(binary, tmp_path_factory):
    relayed = Relayed(tmp_path_factory.mktemp)
    yield relayed
    relayed.stop()


@pytest.fixture(scope="session", params=["direct", "relayed"])
def server(request, binary, tmp_path_factory):
    """The server that most tests share: one with the demo model, then one that has it from another Headrace."""
    if request.param == "relayed":
        yield request.getfixturevalue("relayed")
        return
    server = Server(tmp_path_factory.mktemp("server"), LIMITS)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _not_where_it_differs(request):
    """`direct(reason)` marks what cannot be the same behind another server."""
    mark = request.node.get_closest_marker("direct")
    where = getattr(request.node, "callspec", None)
    if mark and where and where.params.get("server") == "relayed":
        pytest.skip(mark.args[0])


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
