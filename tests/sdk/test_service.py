"""The service around the answers: parallel calls, clients that go away, books, traces, commands."""

import asyncio
import json
import subprocess
import time

import openai
import pytest

from conftest import BINARY, CASES, KEY, MODEL, say


def usable(case):
    return not case["tools"]


def test_it_is_ready_at_once(server, start_server):
    # A second is the promise; a loaded machine that builds beside the tests gets some more, and more than one start.
    took = server.ready_after_s
    for _ in range(5):
        if took >= 5:
            took = start_server().ready_after_s
    assert took < 5


def test_parallel_calls_are_the_same_as_alone(server):
    cases = [case for case in CASES if usable(case)]
    picked = [cases[number % len(cases)] for number in range(16)]

    async def ask(client, case, stream):
        options = {
            "model": MODEL,
            "messages": case["messages"],
            "max_tokens": len(case["greedy"]),
            "temperature": 0,
        }
        if not stream:
            answer = await client.chat.completions.create(**options)
            return answer.choices[0].message.content
        text = ""
        async for chunk in await client.chat.completions.create(**options, stream=True):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        return text

    async def run():
        async with server.async_openai() as client:
            return await asyncio.gather(
                *(ask(client, case, number % 2 == 1) for number, case in enumerate(picked))
            )

    assert asyncio.run(run()) == [case["text"] for case in picked]


def test_a_client_that_goes_away_hurts_nobody(server, client):
    options = {"max_tokens": 1500, "temperature": 0, "extra_body": {"ignore_eos": True}}

    def leave_three():
        ids = []
        for _ in range(3):
            with client.chat.completions.with_streaming_response.create(
                model=MODEL, messages=say("Hello!"), stream=True, **options
            ) as stream:
                ids.append(stream.headers["x-request-id"])
                next(stream.iter_lines())
        answer = client.chat.completions.create(
            model=MODEL, messages=CASES[3]["messages"], max_tokens=32, temperature=0
        )
        assert answer.choices[0].message.content == CASES[3]["text"]
        return [settled(server, request_id) for request_id in ids]

    # On a busy machine an answer may be whole before its client has gone. Then three others are left.
    for _ in range(20):
        traces = leave_three()
        ended_early = [trace["usage"]["completion_tokens"] < 1500 for trace in traces]
        if all(ended_early) and all(trace["outcome"]["kind"] != "completed" for trace in traces):
            break
    for trace in traces:
        assert trace["outcome"]["kind"] == "cancelled", trace["outcome"]
        assert trace["usage"]["completion_tokens"] < 1500
        assert trace["cost"]["charged_nano_dollars"] <= trace["cost"]["held_nano_dollars"]


def settled(server, request_id):
    """The trace, once it is there: it is written after the answer."""
    for _ in range(1000):
        try:
            return server.get("/v1/requests/" + request_id)
        except OSError as error:
            assert getattr(error, "code", 404) == 404
            time.sleep(0.05)
    pytest.fail(f"there is no trace of {request_id}")


def test_the_ledger_verifies_beside_the_running_server(server, client):
    client.chat.completions.create(model=MODEL, messages=say("Hello!"), max_tokens=4)
    verified = server.run("ledger", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_trace_command(server, client):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=say("Hello!"), max_tokens=4)
    settled(server, raw.headers["x-request-id"])
    drawn = server.run("trace", raw.headers["x-request-id"])
    assert drawn.returncode == 0, drawn.stdout + drawn.stderr
    for stage in ("parse", "hold", *server.computing):
        assert stage in drawn.stdout
    assert server.run("trace", "--last").returncode == 0


def test_a_revoked_key_is_dead_within_a_second(server):
    created = server.run("keys", "create", "--name", "short-lived", "--json")
    assert created.returncode == 0, created.stdout + created.stderr
    made = json.loads(created.stdout)["value"]
    secret, key_id = made["secret"], made["key"]["id"]
    with server.openai(api_key=secret) as client:
        assert client.models.list().data
        assert server.run("keys", "revoke", key_id).returncode == 0
        time.sleep(1)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


def chat_command(server, *arguments, text=None, key=KEY):
    env = {**server.env, "HEADRACE_API_KEY": key, "NO_COLOR": ""}
    env.pop("HEADRACE_BOOTSTRAP_KEY")
    return subprocess.run(
        [str(BINARY), "chat", "--url", server.url, *arguments],
        cwd=server.directory,
        env=env,
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_chat_command_answers_once(server):
    ran = chat_command(server, "--temperature", "0", "What is prefill?")
    assert (ran.returncode, ran.stdout) == (0, CASES[1]["text"] + "\n"), ran.stderr
    for part in ("TTFT", "tokens/s", "prompt 12 (", f"output {len(CASES[1]['greedy'])}", "$0.", "req_"):
        assert part in ran.stderr, ran.stderr
    assert "\x1b" not in ran.stderr


def test_the_chat_command_keeps_the_conversation(server):
    lines = [
        "What is the KV cache?",
        "Why does that matter?",
        "/trace",
        "/model",
        "/clear",
        "Hello!",
        "/exit",
        "never asked",
    ]
    ran = chat_command(server, "--temperature", "0", text="\n".join(lines) + "\n")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(CASES[2]["text"] + "\n")
    assert ran.stdout.endswith(CASES[3]["text"] + "\n")
    assert server.computing[0] in ran.stdout and f"* {MODEL}\n" in ran.stdout
    assert ran.stderr.count("TTFT") == 3
    assert "prompt 10 (" in ran.stderr.splitlines()[-1], "the conversation was cleared"


def test_the_chat_command_says_what_is_wrong(server):
    wrong = chat_command(server, "hi", key="sk-wrong")
    assert wrong.returncode == 1 and "401" in wrong.stderr and wrong.stdout == ""
    missing = chat_command(server, "--model", "gpt-17", "hi")
    assert missing.returncode == 1 and "404" in missing.stderr and "req_" in missing.stderr
