"""`headrace chat` in a pseudo-terminal, before a server that streams as slowly as a test needs."""

import http.server
import json
import os
import re
import select
import signal
import stat
import threading
import time

import pytest

from conftest import BINARY
from terminals import ALT_ENTER, END, ENTER, INTERRUPT, LEFT, TAB, TIMEOUT_S, UP, Terminal, pasted


class Slow(http.server.ThreadingHTTPServer):
    """Answers every question with `first`, then nothing more until it is released or the client hangs up."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.release = threading.Event()
        self.hung_up = threading.Event()
        self.bodies = []
        self.keys = []
        self.calls = []
        self.words = ["one ", "\x1b[31mtwo\x1b]0;title\x07 "]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        """Lists two models; a third one is an alias, which answers and is not listed."""
        name = self.path.removeprefix("/v1/models").removeprefix("/")
        listed = [{"id": "slow-model"}, {"id": "sloth-model"}]
        body = {"": {"object": "list", "data": listed}, "alias": {"id": "alias"}}.get(name)
        self.send_response(200 if body else 404)
        body = json.dumps(body or {"error": {"message": "no such model"}}).encode()
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.server.keys.append(self.headers["authorization"])
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
        said = {"tool_calls": self.server.calls} if self.server.calls else {"content": "three"}
        self.chunk({"choices": [{"index": 0, "delta": said, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
        self.chunk({"choices": [], "usage": usage, "headrace": {"cost": {"charged_nano_dollars": 1500}}})
        self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, chunk):
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


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

    def open_terminal(*arguments, columns=80, **settings):
        url = f"http://127.0.0.1:{slow.server_address[1]}"
        command = [BINARY, "chat", "--url", url, *arguments]
        opened.append(Terminal(command, tmp_path, columns, **settings))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


PROMPT = r"(^|\n)>$"


def say(chat, line, expected):
    """Types a line, and waits for what it brings and the next prompt."""
    chat.type(line + ENTER)
    return chat.expect(rf"(?s)> {re.escape(line)}.*{expected}(?s:.*)\n>$")


def said(slow):
    return [[message["content"] for message in body["messages"]] for body in slow.bodies]


def test_ctrl_c_cancels_the_answer_and_nothing_else(slow, terminal):
    chat = terminal()
    chat.expect(r"slow-model at http://127.0.0.1(?s:.*)\n>$")
    chat.type("count" + ENTER)
    shown = chat.expect("two")
    assert b"\x1b[31m" not in chat.raw and "␛[31m" in shown, "what the model says does not steer the terminal"
    chat.type(INTERRUPT)
    assert slow.hung_up.wait(TIMEOUT_S), "the server sees the cancellation"
    chat.expect(r"\ncancelled(?s:.*)req_1\n>$")
    slow.release.set()
    shown = say(chat, "go on", r"TTFT(?s:.*)prompt\s+20\s+\(16\s+cached\) · output\s+3 · \$0.0000015 ·\s+req_2")
    assert "three" in shown and b"\x1b]0" not in chat.raw
    assert b"\x1b[2mTTFT" in chat.raw, "notes are dim"
    roles = [(message["role"], message["content"][:4]) for message in slow.bodies[1]["messages"]]
    assert roles == [("user", "coun"), ("assistant", "one "), ("user", "go o")], "the partial answer is kept"
    chat.type(END)
    assert chat.end() == 0


def test_a_cancelled_answer_without_text_leaves_no_trace_in_the_conversation(slow, terminal):
    slow.words = []
    chat = terminal(NO_COLOR="1")
    chat.expect(PROMPT)
    chat.type("first" + ENTER)
    while not slow.bodies:
        time.sleep(0.01)
    time.sleep(0.1)
    chat.type(INTERRUPT)
    chat.expect(r"the\s+question\s+is\s+forgotten(?s:.*)\n>$")
    assert b"\x1b[2m" not in chat.raw and b"\x1b[31m" not in chat.raw, "no colour where none is wanted"
    assert slow.hung_up.wait(TIMEOUT_S)
    slow.release.set()
    say(chat, "second", "req_2")
    assert said(slow)[1] == ["second"]
    chat.type(INTERRUPT)
    chat.expect(r"(^|\n)> Ctrl-C again leaves$")
    chat.type(INTERRUPT)
    assert chat.end() == 0, "Ctrl-C twice at the prompt leaves"


def test_ctrl_c_takes_back_the_line_and_nothing_else(slow, terminal):
    slow.release.set()
    chat = terminal()
    chat.expect(PROMPT)
    chat.type("half a question")
    chat.expect("half a question")
    chat.type(INTERRUPT)
    chat.expect(r"(^|\n)> Ctrl-C again leaves$")
    assert chat.process.poll() is None and slow.bodies == []
    say(chat, "a whole one", "req_1")
    chat.type("another half")
    chat.expect("another half")
    chat.type(INTERRUPT + INTERRUPT)
    assert chat.end() == 0
    assert said(slow) == [["a whole one"]]


@pytest.mark.parametrize("columns", [80, 60])
def test_commands(slow, terminal, columns, tmp_path):
    slow.release.set()
    chat = terminal(NO_COLOR="1", columns=columns)
    chat.expect(PROMPT)
    for line, expected in [
        ("/help", r"/trace \[ID\](?s:.*)Alt-Enter"),
        ("/system be brief", r"system\s+message\s+holds"),
        ("/system", "be brief"),
        ("/model other", r"no\s+model\s+`other`(?s:.*)slow-model"),
        ("/model slow-modle", r"it\s+has\s+slow-model"),
        ("/model alias", r"alias\s+answers\s+from\s+now\s+on"),
        ("/model sloth-model", r"sloth-model\s+answers\s+from\s+now\s+on"),
        ("/model", r"\* sloth-model"),
        ("/trace", "Nothing was asked yet"),
        ("/retry", "Nothing was asked yet"),
        ("/save", "nothing to save"),
        ("/nonsense", r"there is no command\s+`/nonsense`"),
        ("//text", "req_1"),
        ("/save talk.md", r"1 turn saved\s+in\s+talk.md"),
        ("/save talk.md", r"is\s+there\s+already"),
        ("/retry", "req_2"),
        ("/clear", "conversation is empty"),
        ("again", "req_3"),
    ]:
        say(chat, line, expected)
    assert [body["model"] for body in slow.bodies] == ["sloth-model"] * 3
    assert said(slow) == [["be brief", "/text"], ["be brief", "/text"], ["be brief", "again"]]
    saved = (tmp_path / "talk.md").read_text()
    assert "## You\n\n/text\n" in saved and "three" in saved
    chat.type("/exit" + ENTER)
    assert chat.end() == 0
    assert all(len(line) <= columns for line in chat.lines())


def test_a_paste_of_several_lines_is_one_question(slow, terminal):
    slow.release.set()
    chat = terminal()
    chat.expect(PROMPT)
    chat.type(pasted("first line\nsecond line\n  third"))
    chat.expect("third")
    chat.type(ENTER)
    chat.expect("req_1")
    chat.type("one\\" + ENTER + "two" + ALT_ENTER + "three" + ENTER)
    chat.expect(r"req_2(?s:.*)\n>$")
    assert said(slow)[0] == ["first line\nsecond line\n  third"]
    assert said(slow)[1][-1] == "one\ntwo\nthree"


def test_lines_are_edited_completed_and_remembered(slow, terminal, tmp_path):
    slow.release.set()
    chat = terminal()
    chat.expect(PROMPT)
    chat.type("helo" + LEFT + "l" + ENTER)
    chat.expect(r"> hello(?s:.*)req_1(?s:.*)\n>$")
    chat.type("/mo" + TAB)
    chat.expect(r"> /model$")
    chat.type(" slot" + TAB + ENTER)
    chat.expect(r"sloth-model answers from now on\n>$")
    say(chat, " unrecorded", "req_2")
    chat.type("/exit" + ENTER)
    assert chat.end() == 0
    history = tmp_path / ".local/state/headrace/chat-history"
    assert stat.S_IMODE(os.stat(history).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(history.parent).st_mode) == 0o700
    assert "unrecorded" not in history.read_text(), "what begins with a space is not remembered"
    kept = history.read_text()

    again = terminal()
    again.expect(PROMPT)
    again.type(UP * 3)
    again.expect(r"> hello$")
    again.type(ENTER)
    again.expect(r"req_3(?s:.*)\n>$")
    assert said(slow)[2] == ["hello"]
    again.type(END)
    assert again.end() == 0

    kept = history.read_text()
    without = terminal("--no-history")
    without.expect(PROMPT)
    without.type(UP)
    say(without, "secret", "req_4")
    without.type(END)
    assert without.end() == 0
    assert history.read_text() == kept, "nothing is read or written"


MARKDOWN = [
    "# A tit", "le\n\nSome **bo", "ld** words and `co", "de` that go on until the line has to be brok", "en, as words are.\n\n- one ",
    "point that is long enough to be wrapped under itself, whatever the width is\n```py\nx = *args\n", "```\n",
]


@pytest.mark.parametrize("columns", [80, 60])
def test_markdown_is_shown_as_such_and_words_wrap(slow, terminal, columns):
    slow.release.set()
    slow.words = MARKDOWN
    chat = terminal(columns=columns)
    chat.expect(PROMPT)
    shown = say(chat, "show", "req_1")
    assert "**" not in shown and "`code`" not in shown and "```py\nx = *args\n```" in shown
    assert re.search(r"(?m)^A title$", shown) and re.search(r"(?m)^• one point", shown)
    assert re.search(r"(?m)^  \S", shown), "a point's further lines stand under its words"
    assert all(len(line) <= columns for line in shown.splitlines())
    words = " ".join(shown.split())
    assert "that go on until the line has to be broken, as words are." in words, "no word is broken"
    assert chat.style("bold")[0] and chat.style("A title")[0] and not chat.style("words")[0]
    assert chat.style("code")[2] == chat.style("x = *args")[2] == "cyan"


def test_without_colour_the_text_is_as_it_came(slow, terminal):
    slow.release.set()
    slow.words = MARKDOWN
    chat = terminal(NO_COLOR="1")
    chat.expect(PROMPT)
    shown = say(chat, "show", "req_1")
    assert "# A title" in shown and "**bold**" in shown and "`code`" in shown


def test_a_narrower_window_wraps_the_next_answer(slow, terminal):
    slow.release.set()
    slow.words = ["word " * 30]
    chat = terminal(columns=100)
    chat.expect(PROMPT)
    assert any(len(line) > 80 for line in say(chat, "wide", "req_1").splitlines())
    chat.resize(50)
    shown = say(chat, "narrow", "req_2")
    answer = shown[shown.rindex("narrow") :]
    assert max(len(line) for line in answer.splitlines()) <= 50 and "wor\n" not in answer


def test_tools_are_offered_and_their_results_asked_for(slow, terminal, tmp_path):
    tools = [{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    slow.release.set()
    chat = terminal()
    chat.expect(PROMPT)
    say(chat, "/tools", "No tool is offered")
    say(chat, "/tools nothing.json", "cannot be read")
    say(chat, "/tools tools.json", "1 tool offered")
    say(chat, "/tools", r"get_weather\(city\)")
    slow.calls = [{"index": 0, "id": "call_7", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}]
    chat.type("weather?" + ENTER)
    chat.expect(r"calls\s+get_weather(?s:.*)\nresult of get_weather>$")
    slow.calls = []
    chat.type('{"temp": -3}' + ENTER)
    chat.expect(r"three(?s:.*)req_2(?s:.*)\n>$")
    assert slow.bodies[0]["tools"][0]["function"]["name"] == "get_weather"
    question, called, result = slow.bodies[1]["messages"]
    assert question["content"] == "weather?" and called["tool_calls"][0]["id"] == "call_7"
    assert result == {"role": "tool", "content": '{"temp": -3}', "tool_call_id": "call_7"}
    slow.calls = [{"index": 0, "id": "call_8", "function": {"name": "get_weather", "arguments": "{}"}}]
    chat.type("and now?" + ENTER)
    chat.expect(r"result of get_weather>$")
    chat.type(INTERRUPT)
    chat.expect(r"the\s+question\s+is\s+forgotten\n>$")
    slow.calls = []
    say(chat, "/tools -", "No tool is offered any more")
    say(chat, "last", "req_4")
    assert "tools" not in slow.bodies[3]
    assert [message["role"] for message in slow.bodies[3]["messages"]] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_elsewhere_leaves_the_terminal_as_it_was(slow, terminal, number):
    chat = terminal()
    chat.expect(PROMPT)
    chat.type("half")
    chat.expect("half")
    chat.process.send_signal(number)
    assert chat.end() == 0


@pytest.mark.parametrize("columns", [80, 60])
def test_on_the_server_s_machine_no_key_is_needed(start_server, tmp_path, columns):
    server = start_server()
    at = ["--data-dir", server.data_dir]
    chat = Terminal([BINARY, "chat", *at], tmp_path, columns)
    try:
        chat.expect(r"headrace-demo\s+at\s+http://127.0.0.1(?s:.*)lent(?s:.*)\n>$")
        chat.type("What is prefill?" + ENTER)
        shown = chat.expect(r"tokens/s(?s:.*)req_\w+\s+>$")
        speed = float(re.search(r"([\d.]+)\s+tokens/s", shown).group(1))
        request = re.search(r"req_\w+", shown).group(0)
        chat.type(END)
        assert chat.end() == 0
    finally:
        chat.close()
    trace = json.loads(server.run("trace", request, "--json").stdout)
    decode = next(stage["duration_us"] for stage in trace["stages"] if stage["stage"] == "decode")
    after_first = trace["usage"]["output_tokens"] - 1
    assert speed == pytest.approx(after_first / decode * 1e6, rel=0.02), "its speed is the server's own"
    keys = json.loads(server.run("keys", "list", "--json").stdout)["value"]
    lent = [key for key in keys if key["name"].startswith("lent to uid ")]
    assert len(lent) == 1 and lent[0]["expires"], "it ends by itself"
    for _ in range(2):
        once = Terminal([BINARY, "chat", *at, "What is prefill?"], tmp_path, columns)
        assert once.end() == 0, once.lines()
        once.close()
    keys = json.loads(server.run("keys", "list", "--json").stdout)["value"]
    assert len([key for key in keys if key["name"].startswith("lent")]) == 1, "the same one again"


def test_a_lent_key_goes_nowhere_else(slow, start_server, tmp_path):
    """The data directory is there, but another server is asked."""
    server = start_server()
    slow.release.set()
    url = f"http://127.0.0.1:{slow.server_address[1]}"
    once = Terminal([BINARY, "chat", "--data-dir", server.data_dir, "--url", url, "hi"], tmp_path)
    assert once.end() == 0, once.lines()
    once.close()
    assert slow.keys == [None], "no key is sent"
    keys = json.loads(server.run("keys", "list", "--json").stdout)["value"]
    assert not any(key["name"].startswith("lent") for key in keys)
