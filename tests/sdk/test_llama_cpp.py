"""llama.cpp's own server behind a Headrace, both in both SDKs' hands: the answers are those that llama.cpp gives by itself, its
usage is the bill, and an answer that nobody reads is broken off."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import openai
import pytest

from conftest import KEY, LIMITS, ROOT, Server, say

pytest.importorskip("xllamacpp", reason="llama.cpp's server in a Python package; it has no wheel for this Python")

MODEL = "llama/tiny"
WEIGHTS = ROOT / "crates/model/tests/data/gguf/llama-gqa-untied.gguf"
CONTEXT = 16384
PROGRAM = """
import sys, time, xllamacpp
path, port, context = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path = path
params.model_alias = {"tiny"}
params.endpoint_slots = True
params.n_parallel, params.n_ctx = 2, 2 * context
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.port = port
params.hostnames = ["127.0.0.1"]
server = xllamacpp.Server(params)
time.sleep(1e9)
"""


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def weights(directory):
    """The small model with random weights, by its word fit for long contexts: it must not be done before it is broken off."""
    data = bytearray(WEIGHTS.read_bytes())
    key = b"llama.context_length"
    at = data.index(key) + len(key) + 4
    assert int.from_bytes(data[at : at + 4], "little") == 256
    data[at : at + 4] = CONTEXT.to_bytes(4, "little")
    path = directory / "tiny.gguf"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Where it listens."""
    directory = tmp_path_factory.mktemp("llama")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", PROGRAM, str(weights(directory)), str(port), str(CONTEXT)]
    with open(directory / "output", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=directory)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                if get(url + "/health")["status"] == "ok":
                    break
            except OSError:
                assert process.poll() is None, (directory / "output").read_text(errors="replace")
                time.sleep(0.05)
        else:
            pytest.fail("llama.cpp's server is not ready")
        yield url
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def front(binary, llama, tmp_path_factory):
    front = Server(tmp_path_factory.mktemp("front"), LIMITS, more=["--upstream", f"llama=llamacpp:{llama}"])
    yield front
    front.stop()


@pytest.fixture(scope="module")
def near(front):
    with front.openai() as client:
        yield client


@pytest.fixture(scope="module")
def far(llama):
    with openai.OpenAI(base_url=llama + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def settled(front, request_id):
    """The trace, once it is there: it is written after the answer."""
    for _ in range(200):
        try:
            return front.get("/v1/requests/" + request_id)
        except OSError:
            time.sleep(0.05)
    pytest.fail(f"there is no trace of {request_id}")


def test_it_is_listed_with_its_context(near):
    model = near.models.retrieve(MODEL)
    assert model.context_window == CONTEXT


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request):
    return request.param


def read(client, model, stream, **options):
    """Text, finish reason, tokens and request id."""
    if not stream:
        raw = client.chat.completions.with_raw_response.create(**asked(model, **options))
        answer = raw.parse()
        choice = answer.choices[0]
        return choice.message.content, choice.finish_reason, answer.usage, raw.headers.get("x-request-id")
    text, reason, usage = "", None, None
    options = {**options, "stream_options": {"include_usage": True}}
    with client.chat.completions.with_streaming_response.create(
        **asked(model, **options), stream=True
    ) as streamed:
        for chunk in streamed.parse():
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
            usage = chunk.usage or usage
        return text, reason, usage, streamed.headers.get("x-request-id")


def asked(model, **options):
    return {"model": model, "messages": say("hello there"), "max_tokens": 24, "temperature": 0, **options}


@pytest.mark.parametrize(
    "options",
    [{}, {"stop": ["e"]}, {"temperature": 0.9, "seed": 3}, {"extra_body": {"top_k": 1}}],
    ids=["greedy", "stop", "seeded", "llama.cpp's own parameter"],
)
def test_the_answer_is_llama_cpps(front, near, far, stream, options):
    text, reason, usage, request_id = read(near, MODEL, stream, **options)
    alone = read(far, "tiny", stream, **options)
    assert (text, reason) == alone[:2]
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        alone[2].prompt_tokens,
        alone[2].completion_tokens,
    )
    trace = settled(front, request_id)
    assert (trace["upstream"]["name"], trace["upstream"]["usage"]) == ("llama", "reported")
    assert trace["usage"]["prompt_tokens"] == usage.prompt_tokens
    assert trace["usage"]["completion_tokens"] == usage.completion_tokens
    assert trace["cost"]["charged_nano_dollars"] > 0


def test_what_nobody_here_knows_comes_through(near):
    answer = near.chat.completions.create(**asked(MODEL))
    assert answer.timings["predicted_n"] == 24
    assert answer.system_fingerprint


def test_anthropics_sdk_gets_the_same(front, near, stream):
    text, _, usage, _ = read(near, MODEL, False)
    options = {"model": MODEL, "messages": say("hello there"), "max_tokens": 24}
    options["extra_body"] = {"temperature": 0}
    with front.anthropic() as claude:
        if stream:
            with claude.messages.stream(**options) as events:
                answer = events.get_final_message()
        else:
            answer = claude.messages.create(**options)
    assert [block.text for block in answer.content] == [text]
    assert answer.stop_reason == "max_tokens"
    assert (answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0), answer.usage.output_tokens) == (
        usage.prompt_tokens,
        24,
    )


def test_completions(near, far):
    options = {"prompt": "hello", "max_tokens": 8, "temperature": 0}
    ours = near.completions.create(model=MODEL, **options)
    theirs = far.completions.create(model="tiny", **options)
    assert ours.choices[0].text == theirs.choices[0].text
    assert ours.usage.completion_tokens == theirs.usage.completion_tokens == 8


def test_a_prompt_beyond_the_context_is_told_as_such(near):
    with pytest.raises(openai.BadRequestError) as raised:
        near.chat.completions.create(**asked(MODEL, messages=say("word " * 20000)))
    assert raised.value.code == "context_length_exceeded"


def test_a_bad_parameter_is_refused_in_llama_cpps_words(near):
    with pytest.raises(openai.BadRequestError) as raised:
        near.chat.completions.create(**asked(MODEL, extra_body={"grammar": "root ::= ("}))
    assert raised.value.code == "upstream_refused"


def test_an_answer_that_nobody_reads_is_broken_off(front, near, llama):
    options = asked(MODEL, max_tokens=15000, extra_body={"ignore_eos": True})
    with near.chat.completions.with_streaming_response.create(**options, stream=True) as streamed:
        request_id = streamed.headers["x-request-id"]
        lines = streamed.iter_lines()
        for _ in range(8):
            next(lines)
    trace = settled(front, request_id)
    assert trace["outcome"]["kind"] == "cancelled", trace
    assert trace["upstream"]["usage"] == "estimated"
    assert 0 < trace["usage"]["completion_tokens"] < 15000
    for _ in range(100):
        if not any(slot["is_processing"] for slot in get(llama + "/slots")):
            return
        time.sleep(0.02)
    pytest.fail("llama.cpp goes on with what nobody reads")
