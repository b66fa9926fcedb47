"""`headrace chat` in a pseudo-terminal, before a server that streams as slowly as a test needs."""

import http.server
import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time

import pytest

from conftest import BINARY

TIMEOUT_S = 20


class Slow(http.server.ThreadingHTTPServer):
    """Answers every question with `first`, then nothing more until it is released or the client hangs up."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.release = threading.Event()
        self.hung_up = threading.Event()
        self.bodies = []
        self.words = ["one ", "\x1b[31mtwo\x1b]0;title\x07 "]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"object":"list","data":[{"id":"slow-model"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-request-id", f"req_{len(self.server.bodies)}")
        self.end_headers()
        for word in self.server.words:
            self.chunk({"choices": [{"index": 0, "delta": {"content": word}}]})
        while not self.server.release.is_set():
            if select.select([self.connection], [], [], 0.02)[0] and not self.connection.recv(1):
                self.server.hung_up.set()
                return
        self.chunk({"choices": [{"index": 0, "delta": {"content": "three"}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
        self.chunk({"choices": [], "usage": usage, "headrace": {"cost": {"charged_nano_dollars": 1500}}})
        self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


class Terminal:
    """The command with a pseudo-terminal for all three streams."""

    def __init__(self, url, directory, **settings):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HEADRACE_") and name != "NO_COLOR"
        }
        env = {**kept, "TERM": "xterm", **settings}
        self.master, slave = pty.openpty()
        command = [str(BINARY), "chat", "--url", url]
        # A session of its own makes the terminal the one whose Ctrl-C arrives.
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=directory,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(slave)
        self.seen = ""

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern):
        """Waits until the pattern is on the screen, and forgets all up to its end."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            try:
                data = os.read(self.master, 4096) if ready else b""
            except OSError:
                data = b""
            if not data:
                pytest.fail(f"{pattern!r} is not in {self.seen!r}")
            self.seen += data.decode()
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def end(self):
        return self.process.wait(timeout=TIMEOUT_S)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def slow(binary):
    server = Slow()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def terminal(slow, tmp_path):
    opened = []

    def open_terminal(**settings):
        opened.append(Terminal(f"http://127.0.0.1:{slow.server_address[1]}", tmp_path, **settings))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


def test_ctrl_c_cancels_the_answer_and_nothing_else(slow, terminal):
    chat = terminal()
    chat.expect(r"slow-model at http://127.0.0.1.*\r\n> ")
    chat.type("count\n")
    shown = chat.expect("two")
    assert "\x1b[31m" not in shown and "␛[31m" in shown, "what the model says does not steer the terminal"
    chat.type("\x03")
    assert slow.hung_up.wait(TIMEOUT_S), "the server sees the cancellation"
    chat.expect("\x1b\\[2mcancelled.*req_1\x1b\\[0m\r\n> ")
    slow.release.set()
    chat.type("go on\n")
    shown = chat.expect(
        "\x1b\\[2mTTFT.*prompt 20 \\(16 cached\\) · output 3 · \\$0.0000015 · req_2\x1b\\[0m\r\n> "
    )
    assert "three" in shown and "\x1b]0" not in shown
    roles = [(message["role"], message["content"][:4]) for message in slow.bodies[1]["messages"]]
    assert roles == [("user", "coun"), ("assistant", "one "), ("user", "go o")], "the partial answer is kept"
    chat.type("\x04")
    assert chat.end() == 0


def test_a_cancelled_answer_without_text_leaves_no_trace_in_the_conversation(slow, terminal):
    slow.words = []
    chat = terminal(NO_COLOR="1")
    chat.expect("> ")
    chat.type("first\n")
    while not slow.bodies:
        time.sleep(0.01)
    time.sleep(0.1)
    chat.type("\x03")
    assert "\x1b" not in chat.expect("the question is forgotten.*\r\n> ")
    assert slow.hung_up.wait(TIMEOUT_S)
    slow.release.set()
    chat.type("second\n")
    chat.expect("req_2\r\n> ")
    assert [message["content"] for message in slow.bodies[1]["messages"]] == ["second"]
    chat.type("\x03")
    assert chat.end() == 0, "Ctrl-C at the prompt leaves"


def test_commands(slow, terminal):
    slow.release.set()
    chat = terminal(NO_COLOR="1")
    for line, expected in [
        ("/help", "/trace .ID."),
        ("/system be brief", "system message holds"),
        ("/system", "be brief"),
        ("/model other", "other answers from now on .the server does not list it"),
        ("/trace", "Nothing was asked yet"),
        ("/nonsense", "there is no command `/nonsense`"),
        ("//text", "req_1"),
        ("/clear", "conversation is empty"),
        ("again", "req_2"),
    ]:
        chat.expect("> ")
        chat.type(line + "\n")
        chat.expect(re.escape(line) + "\r\n")
        chat.expect(expected)
    assert [body["model"] for body in slow.bodies] == ["other", "other"]
    said = [[message["content"] for message in body["messages"]] for body in slow.bodies]
    assert said == [["be brief", "/text"], ["be brief", "again"]]
    chat.expect("> ")
    chat.type("/exit\n")
    assert chat.end() == 0
