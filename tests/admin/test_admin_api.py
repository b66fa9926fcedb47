"""The admin API of a running server: its document is what it does (schemathesis), and nobody gets in who should not.

HEADRACE_BIN names the binary (default: target/release/headrace of this checkout).
"""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.parse

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("HEADRACE_BIN") or ROOT / "target" / "release" / "headrace").resolve()
START_TIMEOUT_S = 30
FUZZ_TIMEOUT_S = 240
LINK = re.compile(r"console +(http://[0-9.:]+)/#sign-in=([0-9a-f]{64})")


class House:
    """A running `headrace up` with its listener for operators at a free port."""

    def __init__(self, directory):
        self.data_dir = directory / "data"
        self.output = directory / "output"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.process = subprocess.Popen(
            [str(BINARY), "up", "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0"],
            cwd=directory, env=self.env, stdin=subprocess.DEVNULL, stdout=open(self.output, "wb"), stderr=subprocess.STDOUT,
        )
        started = time.monotonic()
        while not (found := LINK.search(self.said())):
            assert self.process.poll() is None and time.monotonic() - started < START_TIMEOUT_S, self.said()
            time.sleep(0.05)
        self.url, self.link = found.groups()

    def said(self):
        return self.output.read_text(errors="replace")

    def ask(self, method, path, body=None, headers=()):
        """Status, headers and JSON (or text) of an answer."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=60)
        headers = dict(headers)
        if body is not None:
            headers["content-type"] = "application/json"
            body = json.dumps(body)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        kind = answer.headers.get("content-type", "")
        return answer.status, answer.headers, json.loads(text) if text and "json" in kind else text

    def command(self, *arguments):
        done = subprocess.run(
            [str(BINARY), *arguments, "--data-dir", str(self.data_dir), "--json"],
            env=self.env, capture_output=True, text=True, timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.said()


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.stop()


@pytest.fixture(scope="module")
def owner(house):
    """Headers of an owner's key."""
    made = house.command("operators", "create", "--name", "tests", "--role", "owner")["value"]
    return {"authorization": f"Bearer {made['key']}"}


def test_the_link_that_up_prints_signs_in_once_and_a_page_administers(house):
    status, headers, session = house.ask("POST", "/admin/v1/session", {"link": house.link})
    assert status == 200 and session["role"] == "owner", session
    cookie = headers["set-cookie"].split(";")[0]
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=Strict" in headers["set-cookie"]
    assert house.ask("POST", "/admin/v1/session", {"link": house.link})[0] == 401
    by_cookie = {"cookie": cookie, "origin": house.url, "sec-fetch-site": "same-origin"}
    assert house.ask("POST", "/admin/v1/orgs", {"id": "page"}, by_cookie)[0] == 403, "without its token"
    made = house.ask("POST", "/admin/v1/orgs", {"id": "page"}, {**by_cookie, "x-headrace-csrf": session["csrf"]})
    assert made[0] == 201, made
    assert any(org["id"] == "page" for org in house.command("orgs", "list")["value"])
    rows = house.command("audit", "--last", "1")["value"]
    assert rows[0]["act"] == "org.create" and rows[0]["actor"].startswith("owner (op_"), rows


def test_what_the_command_line_does_a_route_shows(house, owner):
    def get(path):
        return house.ask("GET", f"/admin/v1{path}", headers=owner)[2]

    assert get("/status")["version"] == house.command("status")["value"]["version"]
    assert [key["id"] for key in get("/keys")["data"]] == [key["id"] for key in house.command("keys", "list")["value"]]
    assert get("/models")["data"][0]["name"] == "headrace-demo"
    assert get("/prices")["data"][0]["input"]["dollars"]
    assert {"name": "admin.listen", "value": None, "origin": "default"}.items() <= {
        setting["name"]: setting for setting in get("/settings?limit=500")["data"]
    }["admin.listen"].items()
    assert get("/credit")["data"][0]["balance"]["dollars"] == "10.00"
    of_demo = get("/models/headrace-demo/inspect")
    assert of_demo["path"] is None and of_demo["fits"] is True and of_demo["parameters"] > 0, of_demo
    stored = house.command("models", "list")["stored"]
    assert [found["path"] for found in get("/checkpoints?limit=500")["data"]] == [found["path"] for found in stored]
    refused = get("/checkpoints/nobody%2Fnothing/inspect")["error"]
    assert refused["code"] == "unknown_checkpoint" and "looked in" in refused["message"], refused
    assert refused["doc"].endswith("/docs/admin-errors/unknown_checkpoint.md")
    verified = house.ask("POST", "/admin/v1/ledger/verify", headers=owner)
    assert verified[2]["ok"] is True, verified


def test_a_call_of_the_playground_is_made_once_traced_and_paid_by_its_project(house, owner):
    body = {"model": "headrace-demo", "messages": [{"role": "user", "content": "What is a KV cache?"}], "stream": True}
    headers = {**owner, "x-headrace-project": "default", "idempotency-key": "once"}
    answers = [house.ask("POST", "/admin/v1/playground/chat/completions", body, headers) for _ in range(3)]
    assert {answer[0] for answer in answers} == {200} and len({answer[2] for answer in answers}) == 1, answers
    assert answers[0][2].rstrip().endswith("data: [DONE]")
    (request,) = {answer[1]["x-request-id"] for answer in answers}
    assert "idempotent-replayed" not in answers[0][1] and answers[1][1]["idempotent-replayed"] == "true"
    deadline = time.monotonic() + 60
    while (found := house.ask("GET", f"/admin/v1/requests/{request}", headers=owner))[0] == 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    trace = found[2]
    assert (trace["key"], trace["project"], trace["outcome"]["kind"]) == ("playground", "default", "completed")
    assert trace["cost"]["charged_nano_dollars"] > 0
    credit = house.ask("GET", "/admin/v1/credit", headers=owner)[2]["data"][0]
    assert int(credit["balance"]["nano_dollars"]) == 10_000_000_000 - trace["cost"]["charged_nano_dollars"], "paid once"
    explained = house.ask("GET", f"/admin/v1/requests/{request}/explain", headers=owner)
    assert explained[0] == 200 and explained[2]["sentence"], explained
    # Traces are stored out of band.
    calls, until = [], time.monotonic() + 60
    while not calls and time.monotonic() < until:
        calls = house.ask("GET", "/admin/v1/requests?project=default", headers=owner)[2]["data"]
        time.sleep(0.05)
    assert [call["id"] for call in calls] == [request]
    tokens = {"model": "headrace-demo", "prompt": "What is a KV cache?"}
    told = house.ask("POST", "/admin/v1/playground/tokenize", tokens, {**owner, "x-headrace-project": "default"})
    assert told[0] == 200 and told[2]["count"] > 3, told


def test_another_host_name_gets_no_answer(house, owner):
    assert house.ask("GET", "/admin/v1/status", headers={**owner, "host": "rebound.example"})[0] == 421


def test_the_document_is_what_the_api_does(house, owner):
    """Schemathesis sends what the document allows, and what it does not, to every route but the one without an end."""
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{house.url}/admin/v1/openapi.json",
            "--header", f"Authorization: {owner['authorization']}",
            "--exclude-path-regex", "/(events|reload|session)$",
            "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
            "--phases", "examples,fuzzing", "--max-examples", "12", "--seed", "1", "--generation-deterministic",
            "--request-timeout", "10", "--workers", "1", "--suppress-health-check", "all", "--no-color",
        ],
        capture_output=True, text=True, timeout=FUZZ_TIMEOUT_S, cwd=house.data_dir.parent,
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
    assert house.process.poll() is None, house.said()
