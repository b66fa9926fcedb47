"""llama.cpp's own server behind a Headrace, both in both SDKs' hands: the answers are those that llama.cpp gives by itself, its
usage is the bill, and an answer that nobody reads is broken off."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import jsonschema
import openai
import pytest

from conftest import KEY, LIMITS, ROOT, Server, say

pytest.importorskip("xllamacpp", reason="llama.cpp's server in a Python package; it has no wheel for this Python")

MODEL = "llama/tiny"
BY_IDS = "tiny-by-ids"
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
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
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
def tiny(tmp_path_factory):
    return weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def llama(tiny, tmp_path_factory):
    """Where it listens."""
    directory = tmp_path_factory.mktemp("llama")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", PROGRAM, str(tiny), str(port), str(CONTEXT)]
    with open(directory / "output", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=directory)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
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
def front(binary, llama, tiny, tmp_path_factory):
    more = ["--upstream", f"llama=llamacpp:{llama}", "--model", f"{BY_IDS}=llama/tiny@{tiny}"]
    front = Server(tmp_path_factory.mktemp("front"), LIMITS, more=more)
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
    for _ in range(1200):
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
    for _ in range(3000):
        if not any(slot["is_processing"] for slot in get(llama + "/slots")):
            return
        time.sleep(0.02)
    pytest.fail("llama.cpp goes on with what nobody reads")


def by_ids(near, stream, **options):
    """Ids and text of a completion."""
    options = {"model": BY_IDS, "max_tokens": 40, "temperature": 0, "extra_body": {"return_token_ids": True}, **options}
    if not stream:
        [choice] = near.completions.create(**options).choices
        return choice.model_extra["token_ids"], choice.text, choice.finish_reason
    ids, text, reason = [], "", None
    for chunk in near.completions.create(**options, stream=True):
        for choice in chunk.choices:
            ids += choice.model_extra.get("token_ids") or []
            text += choice.text or ""
            reason = choice.finish_reason or reason
    return ids, text, reason


@pytest.mark.parametrize("words", ["hello there", "Grüße 🦀 漢字", "the quick brown fox jumps"])
def test_by_ids_the_tokens_are_llama_cpps(near, llama, stream, words):
    # The model's weights are random: most of what it says are pieces of characters, which its stream leaves out.
    prompt = post(llama + "/tokenize", {"content": words})["tokens"]
    ids, text, reason = by_ids(near, stream, prompt=prompt)
    alone = {"prompt": prompt, "n_predict": 40, "temperature": 0, "return_tokens": True, "stream": False}
    assert ids == post(llama + "/completion", alone)["tokens"]
    assert len(ids) == 40 and reason == "length"
    # Nothing of whole characters differs from what it reads out of the same ids.
    theirs = post(llama + "/detokenize", {"tokens": ids})["content"]
    assert text.replace("\ufffd", "") == theirs.replace("\ufffd", "")


def test_by_ids_a_stop_string_and_a_chat_are_ours(near, stream):
    _, text, _ = by_ids(near, False, prompt="hello there")
    stop = next(c for c in text[4:] if c.isascii() and c.isalnum())
    _, cut, reason = by_ids(near, stream, prompt="hello there", stop=[stop])
    assert (cut, reason) == (text[: text.index(stop)], "stop")


def test_what_llama_cpp_cannot_do_by_ids_is_refused_by_name(near):
    for options in ({"logprobs": 1}, {"frequency_penalty": 0.5}, {"extra_body": {"min_tokens": 3}}):
        with pytest.raises(openai.BadRequestError) as raised:
            near.completions.create(model=BY_IDS, prompt="hello", max_tokens=4, **options)
        name = next(iter(options.get("extra_body", options)))
        assert name in str(raised.value), raised.value


TEMPLATE = (
    "{# #}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


@pytest.fixture(scope="module")
def calling(binary, llama, tiny, tmp_path_factory):
    """Its model by token ids, with a template that shows tools; calls are read as Hermes writes them."""
    directory = tmp_path_factory.mktemp("calling")
    data = bytearray(tiny.read_bytes())
    key = b"tokenizer.chat_template"
    at = data.index(key) + len(key) + 4
    size = int.from_bytes(data[at : at + 8], "little")
    data[at + 8 : at + 8 + size] = TEMPLATE.replace("#}", "#}".rjust(size - len(TEMPLATE) + 2)).encode()
    words = directory / "words.gguf"
    words.write_bytes(data)
    configuration = f"""
[[upstreams]]
name = "llama"
kind = "llamacpp"
url = "{llama}"
price = {{ input = "0.1", cached_input = "0.1", output = "0.4" }}

[[models]]
name = "caller"
path = {json.dumps(str(words))}
targets = ["llama/tiny"]
reply = "hermes"
"""
    server = Server(directory, LIMITS, configuration)
    with server.openai() as client:
        yield client
    server.stop()


WEATHER = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 3, "maximum": 14},
        "exact": {"type": "boolean"},
        "code": {"type": "string", "minLength": 2, "maxLength": 4},
        "at": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 1, "maxItems": 2},
    },
    "required": ["days", "unit", "at"],
    "additionalProperties": False,
}


def forced(calling, choice="required", schema=WEATHER, **options):
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": schema}}
    asked = {"model": "caller", "messages": say("hi"), "tools": [tool], "tool_choice": choice, "max_tokens": 600, **options}
    return calling.chat.completions.create(**asked)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["required", "named"])
def test_calls_that_must_come_are_held_to_by_llama_cpp(calling, choice):
    # The model's weights are chance: what it says is what the grammar lets through.
    for seed in range(6):
        answer = forced(calling, choice, temperature=2, seed=seed, parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        # As OpenAI has it: a call that was named is no reason of its own.
        assert answer.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER)


def test_texts_in_calls_match_their_patterns_at_llama_cpp(calling):
    zip_code = {"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"}
    schema = {"type": "object", "properties": {"zip": zip_code, "id": {"type": "string", "format": "uuid"}}, "required": ["zip", "id"]}
    for seed in range(4):
        answer = forced(calling, schema=schema, temperature=2, seed=seed, parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), schema, format_checker=jsonschema.FormatChecker())


def test_calls_that_llama_cpp_cannot_hold_to_are_refused_by_name(calling):
    schema = {"type": "object", "properties": {"zip": {"type": "integer", "multipleOf": 5}}, "required": ["zip"]}
    with pytest.raises(openai.BadRequestError) as raised:
        forced(calling, schema=schema)
    assert raised.value.param == "tool_choice" and "`multipleOf` at `/properties/zip`" in str(raised.value)


def test_how_busy_it_is_is_known(front):
    for _ in range(3000):
        said = front.run("upstreams").stdout
        if "0 run, 0 wait" in said:
            return
        time.sleep(0.1)
    pytest.fail(said)
