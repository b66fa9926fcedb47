"""What was complained of elsewhere, run here: a house with the keys and models that the complaints need, one row of `complaints.json` at a
time, and the page `docs/complaints.md` written from what was said. Knows no row by itself.

A row: `thread` (repository and number), `asked` (what somebody ran into there), `class` (one of CLASSES), `steps` (what is done here) and `says`: the
status, the code and the words that must be in what Headrace says. A step is a request (`path`, `key`, `body`, `raw`, `headers`, `method`), `explain` (what
`headrace trace --explain` says of the call before), `cost` (`--why-cost`), or `run` (a command). The last step is what is judged.
"""

import json
import pathlib
import re
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROWS = json.loads((HERE / "complaints.json").read_text())
CLASSES = {
    "template": "The prompt's form",
    "credential": "Keys",
    "limit": "Limits, money and memory",
    "model": "Names and models",
    "cache": "The prefix cache",
    "request": "Requests that are wrong",
    "length": "Lengths",
    "form": "Formats of answers and tools",
    "path": "Paths and protocols",
    "slow": "Why was it slow, or dear?",
    "upstream": "Servers behind",
}
LONG = "The river carried the barge past the mill. " * 60

CONFIGURATION = """
[[models]]
name = "headrace-demo"
path = "builtin:demo"

[[prices]]
model = "headrace-demo"
input = "0.10"
cached_input = "0.01"
output = "0.40"

[aliases]
"gpt-4o-mini" = "headrace-demo"

[[upstreams]]
name = "gone"
kind = "openai"
url = "http://127.0.0.1:9"
region = "us"

[[upstreams]]
name = "stale"
kind = "openai"
url = "%(stale)s"

[[models]]
name = "behind"
targets = ["gone/some-model"]
context_window = 8192
default_max_tokens = 64

[[models]]
name = "locked"
targets = ["stale/some-model"]
context_window = 8192
default_max_tokens = 64

[[prices]]
model = "behind"
input = "0.10"
output = "0.40"

[[prices]]
model = "locked"
input = "0.10"
output = "0.40"

[[moderation.rules]]
name = "internal-names"
kind = "words"
words = ["project nightingale"]
action = "block"
message = "That project's name must not leave the company."
"""


class House:
    """A server with every key that a row may name."""

    def __init__(self, server):
        self.server = server
        self.last = None
        run = self.json
        self.keys = {
            "good": server.key,
            "none": None,
            "wrong": "sk-0000000000000000000000000000000000000000000000",
            "cut": server.key[:12],
            "provider": "sk-ant-REDACTED",
        }
        for name, arguments in {
            "slow": ["--requests-per-minute", "1"],
            "few": ["--tokens-per-minute", "50"],
            "tokens": ["--tokens-per-minute", "150"],
            "revoked": [],
            "completions": ["--endpoint", "completions"],
            "other": ["--allow", "behind"],
            "europe": ["--regions", "eu"],
        }.items():
            made = run("keys", "create", "--name", name, *arguments)
            self.keys[name] = made["value"]["secret"]
            if name == "revoked":
                server.run("keys", "revoke", made["value"]["key"]["id"])
        for org, project in (("poor", "poor"), ("thrifty", "thrifty")):
            server.run("orgs", "create", org)
            server.run("projects", "create", project, "--org", org)
            self.keys[org] = run("keys", "create", "--name", org, "--project", project)["value"]["secret"]
        self.keys["thrifty2"] = run("keys", "create", "--name", "thrifty2", "--project", "thrifty")["value"]["secret"]
        server.run("credit", "grant", "1", "--org", "thrifty")
        server.run("budget", "set", "0.000001", "--project", "thrifty")

    def json(self, *arguments):
        done = self.server.run(*arguments, "--json")
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return json.loads(done.stdout)

    def key(self, name):
        return self.keys[name]

    def step(self, step):
        """What was said: status, code, and the whole text that a caller or an operator reads."""
        if "run" in step:
            done = self.server.run(*[self.named(word) for word in step["run"]])
            return done.returncode, None, done.stdout + done.stderr
        if "explain" in step or "cost" in step:
            how, pieces = ("--explain", explained) if "explain" in step else ("--why-cost", costed)
            return 0, None, "\n".join(pieces(self.json("trace", how, self.last)))
        return self.request(step)

    def named(self, word):
        return self.last if word == "LAST" else word

    def request(self, step):
        anthropic = step.get("path") == "/v1/messages"
        path = step.get("path", "/v1/chat/completions")
        if "raw" in step:
            data = step["raw"].encode()
        else:
            body = {"model": "headrace-demo", **default(path), **filled(step.get("body", {}))}
            data = json.dumps({name: value for name, value in body.items() if value != "ABSENT"}).encode()
        headers = {"content-type": "application/json"}
        if key := self.key(step.get("key", "good")):
            headers |= {"x-api-key": key} if anthropic else {"authorization": f"Bearer {key}"}
        for name, value in step.get("headers", {}).items():
            headers[name] = value.replace("KEY", self.server.key)
        headers = {name: value for name, value in headers.items() if value}
        method = step.get("method", "POST")
        asked = urllib.request.Request(self.server.url + path, data if method == "POST" else None, headers, method=method)
        try:
            answer = urllib.request.urlopen(asked, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        self.last = answer.headers.get("x-request-id") or self.last
        text = answer.read().decode("utf-8", "replace")
        waits = answer.headers.get("retry-after")
        try:
            error = json.loads(text).get("error") or {}
        except (json.JSONDecodeError, AttributeError):
            error = {}
        said = error.get("message", text)
        if error.get("param"):
            said = f"{said} [param: {error['param']}]"
        if waits:
            said = f"{said} [retry-after: {waits}]"
        return answer.status, error.get("code"), said

    def told(self, row):
        for step in row["steps"]:
            told = self.step(step)
        return told


def took(us):
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def explained(told):
    """An explanation as lines, each of which says one thing."""
    yield from [told["sentence"], told["money_sentence"], *told["unusual"]]
    if refusal := told["refusal"]:
        yield f"It means: {refusal['meaning']}"
        yield f"What to do: {refusal['way_out']}"
        yield f"The rule, for operators: `{refusal['rule']}`."
    for term in told["terms"]:
        usual = f", usually {took(term['usual_us'])}" if term["usual_us"] is not None else ""
        yield f"`{term['name']}` took {took(term['us'])}{usual}: {term['text']}."
    for row in told["reference"]:
        low, high = row["reference_us"]
        yield f"{row['name']}: {took(row['us'])} here, {low // 1000} to {high // 1000} ms by the published table."
    for lever in told["levers"]:
        saved = f" and ${lever['saves_dollars']}" if lever["saves_dollars"] else ""
        yield f"What would have helped: {lever['name']} saves {took(lever['saves_us'])}{saved}. {lever['text']}."
    yield from told["notes"]


def costed(told):
    """The same of a bill."""
    yield told["sentence"]
    for term in told["terms"]:
        price = term["price_per_million_dollars"]
        yield f"{term['tokens']} {term['class']} tokens at ${price} a million: ${term['dollars']}."
    yield f"${told['held_dollars']} held, ${told['total_dollars']} charged, ${told['given_back_dollars']} given back."
    yield from told["notes"]


def default(path):
    if path in ("/v1/chat/completions", "/v1/messages"):
        return {"messages": [{"role": "user", "content": "What is prefill?"}], "max_tokens": 16, "temperature": 0}
    if path == "/v1/completions":
        return {"prompt": "Prefill is", "max_tokens": 8}
    if path == "/v1/embeddings":
        return {"input": "text"}
    if path == "/v1/responses":
        return {"input": "What is prefill?", "max_output_tokens": 16}
    return {}


def filled(value):
    """`LONG` stands for 2,580 characters; `LONG*3` for three times as many."""
    if isinstance(value, dict):
        return {name: filled(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner) for inner in value]
    if isinstance(value, str) and (found := re.fullmatch(r"(.*?)LONG(?:\*(\d+))?(.*)", value, re.S)):
        return found[1] + LONG * int(found[2] or 1) + found[3]
    return value


def judged(row, told):
    """What is not as the row has it; empty: all of it is."""
    status, code, said = told
    says = row["says"]
    wrong = []
    if "status" in says and status != says["status"]:
        wrong.append(f"status {status}, expected {says['status']}")
    if "code" in says and code != says["code"]:
        wrong.append(f"code {code}, expected {says['code']}")
    wrong += [f"`{word}` is not said" for word in says.get("words", []) if word.lower() not in said.lower()]
    wrong += [f"`{word}` is said" for word in says.get("never", []) if word.lower() in said.lower()]
    return wrong


def page(told):
    """The page, from the rows and what was said of each."""
    out = [
        "# A hundred complaints",
        "",
        "What people ran into at other servers and gateways, and what Headrace says in the same place. Each row is asked of a running server",
        "by the tests (`tests/sdk/test_complaints.py`, from `tests/sdk/complaints.json`), which hold the status, the code and the words that",
        "matter. The threads are others' public trackers; most of what they complain of has been mended there since.",
        "",
        "Five of them are classics: a template that turns a conversation down, a stale key, a limit, an alias, and a cache hit that was taken",
        "for granted. For none of them does anybody need to read source here.",
    ]
    for kind, title in CLASSES.items():
        rows = [(row, said) for row, said in told if row["class"] == kind]
        if not rows:
            continue
        out += ["", f"## {title}", "", "| where | what was asked | what Headrace says |", "|---|---|---|"]
        out += [f"| {row['thread']} | {row['asked']} | {answer(row, said)} |" for row, said in rows]
    return "\n".join(out) + "\n"


def answer(row, told):
    status, code, said = told
    last = row["steps"][-1]
    if status == 200:
        said = answered(said, row["says"]["words"])
    elif status == 0:
        lines = said.splitlines()
        word = row["says"]["words"][0].lower()
        said = next((line for line in lines if word in line.lower()), said)
        said = around(said, word) if len(said) > 400 else said
    said = re.sub(r"req_[0-9a-f]{32}", "req_…", said)
    said = re.sub(r"key_[0-9A-Za-z]{16,}", "key_…", said)
    if "explain" in last or "run" in last:
        said = re.sub(r"\d[\d.,]* (µs|ms|s)\b", r"… \1", said)
        said = re.sub(r"\d+(\.\d+)?%", "… %", said)
    said = " ".join(said.split()).replace("|", "\\|").replace("<", "&lt;")
    named = f"**{status}** `{code}`: " if code else ""
    return f"{named}{said if len(said) <= 420 else said[:417] + '…'}"


def answered(said, words):
    """Of an answer: what it says, or what of its usage is asked for."""
    told = json.loads(said)
    for choice in told.get("choices", []):
        message = choice.get("message", {})
        text = message.get("content") or json.dumps(message.get("tool_calls"))
        return f"**200**, by `{told['model']}`: “{text[:80]}…”"
    if "usage" in told and words[0] in json.dumps(told["usage"]):
        return f"**200**, with `{words[0]}`: {told['usage'][words[0]]}"
    return "**200**: it is answered"


def around(said, word):
    """The part of a longer text in which a word is."""
    at = said.lower().find(word.lower())
    begin = max(said.rfind(". ", 0, at), said.rfind(": ", 0, max(at - 40, 0))) + 2 if at > 60 else 0
    begin = max(begin, at - 160)
    begin = said.rfind(" ", 0, begin) + 1 if begin else 0
    return ("… " if begin else "") + said[begin : at + 200]
