"""What was reported of other servers, row by row: each is named by its thread, and says what is expected. At the demo model's engine, through
another Headrace in front of it, and where a model would have to be told what to say, in front of a scripted server.

A row about what is not here yet is expected to fail, by the feature's name: it turns red when it begins to pass.
"""

import base64
import json
import re
import struct

import httpx
import openai
import pytest

from conftest import ENCODER
from places import QUESTION, WEATHER, found

LISBON = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOTHING = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}
FORCED = "tools that must be called"
ALL = ("engine", "relayed", "scripted")
OURS = ("engine", "relayed")
ROWS = []


def row(thread, places=OURS, lacks=None, behind=None):
    """Puts a check into the table. `lacks`: what it needs and is not here yet; `behind`: what is not here yet through a relay alone."""

    def put(check):
        ROWS.append((thread, check, places, lacks, behind))
        return check

    return put


class Http:
    """Bytes as they are: an SDK mends some of what is looked for."""

    def __init__(self, place):
        self.place = place

    def post(self, path, expect=200, **body):
        base = self.place.anthropic if path == "/v1/messages" else self.place.openai
        body = {"model": self.place.model, **body}
        headers = {"authorization": f"Bearer {self.place.key}", "anthropic-version": "2023-06-01"}
        answer = httpx.post(base + path, json=body, headers=headers, timeout=60)
        assert answer.status_code == expect, f"{answer.status_code}: {answer.text[:600]}"
        return answer

    def chat(self, text=QUESTION, expect=200, **body):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 48, "temperature": 0, **body}
        return self.post("/v1/chat/completions", expect, **body).json()

    def lines(self, text=QUESTION, path="/v1/chat/completions", **body):
        """The data of a stream's events, as text."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 48, "temperature": 0, **body}
        answer = self.post(path, **body, stream=True)
        return [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]

    def stream(self, text=QUESTION, **body):
        lines = self.lines(text, **body)
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def claude(self, text=QUESTION, **body):
        return self.post("/v1/messages", messages=[{"role": "user", "content": text}], **{"max_tokens": 48, "temperature": 0, **body}).json()

    def events(self, text=QUESTION, **body):
        return [json.loads(line) for line in self.lines(text, path="/v1/messages", **body)]


def deltas(chunks, index=0):
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def pieces_of_calls(chunks):
    return [call for delta in deltas(chunks) for call in delta.get("tool_calls") or []]


def reasons(chunks, index=0):
    found = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [reason for reason in found if reason is not None]


# A chat's stream and shape.


@row("vllm PR 25054: `tool_calls` where a call is required, `stop` where one is named")
def _(http):
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice, reason in (("required", "tool_calls"), (named, "stop")):
        options = {"tools": [LISBON], "tool_choice": choice}
        whole = http.chat(WEATHER, **options)["choices"][0]
        assert whole["message"]["tool_calls"] and whole["finish_reason"] == reason
        assert reasons(http.stream(WEATHER, **options)) == [reason]


@row("vllm #27572: a finish reason that is not null comes once", ALL)
def _(http):
    for options in ({}, {"max_tokens": 3}, {"tools": [LISBON]}):
        assert len(reasons(http.stream(WEATHER, **options))) == 1


@row("sglang PR 8417: one finish reason for each choice")
def _(http):
    chunks = http.stream(n=2, temperature=1, seed=5)
    assert [len(reasons(chunks, index)) for index in (0, 1)] == [1, 1]


@row("vllm #53269: a call that is cut off keeps `length`")
def _(http):
    options = {"tools": [LISBON], "max_tokens": 12}
    assert http.chat(WEATHER, **options)["choices"][0]["finish_reason"] == "length"
    assert reasons(http.stream(WEATHER, **options)) == ["length"]


@row("vllm #16340: a streamed call says `type: function`", ALL)
def _(http):
    first, *_ = pieces_of_calls(http.stream(WEATHER, tools=[LISBON]))
    assert first["type"] == "function"


@row("vllm #11392: no arguments are `{}`", OURS)
def _(http):
    options = {"tools": [NOTHING], "tool_choice": {"type": "function", "function": {"name": "now"}}}
    [call] = http.chat(WEATHER, **options)["choices"][0]["message"]["tool_calls"]
    pieces = pieces_of_calls(http.stream(WEATHER, **options))
    streamed = "".join(piece["function"].get("arguments", "") for piece in pieces)
    assert json.loads(call["function"]["arguments"]) == json.loads(streamed) == {}


@row("vllm #11392, of an upstream: no arguments are `{}`", ("scripted",))
def _(http):
    tool = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    assert http.claude(WEATHER, tools=[tool])["content"][0]["input"] == {}
    deltas_ = [event["delta"].get("partial_json", "") for event in http.events(WEATHER, tools=[tool]) if event["type"] == "content_block_delta"]
    assert json.loads("".join(deltas_) or "{}") == {}


@row("ollama #7881: calls at once have an index each", ("scripted",))
def _(http):
    tools = [LISBON, NOTHING]
    pieces = pieces_of_calls(http.stream("Call every tool.", tools=tools))
    assert sorted({piece["index"] for piece in pieces}) == [0, 1]
    claude = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in tools]
    begun = [event for event in http.events("Call every tool.", tools=claude) if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["name"]) for event in begun] == [(0, "get_weather"), (1, "now")]


@row("litellm #27442: no index is -1", ALL)
def _(http):
    chunks = http.stream(WEATHER, tools=[LISBON])
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0}
    assert {piece["index"] for piece in pieces_of_calls(chunks)} == {0}


@row("llama.cpp #12279: a call's id is there, and its own")
def _(http):
    calls = [http.chat(WEATHER, tools=[LISBON])["choices"][0]["message"]["tool_calls"][0]["id"] for _ in range(3)]
    calls += [piece["id"] for piece in pieces_of_calls(http.stream(WEATHER, tools=[LISBON])) if "id" in piece]
    assert all(calls) and len(set(calls)) == len(calls) == 4


@row("llama.cpp #20198: arguments are a string of JSON", ALL)
def _(http):
    [call] = http.chat(WEATHER, tools=[LISBON])["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Lisbon"}


def called(arguments):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    question, result = {"role": "user", "content": WEATHER}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    return [question, {"role": "assistant", "content": None, "tool_calls": [call]}, result]


@row("llama.cpp #25510: arguments of the past that are no JSON are a 400")
def _(http):
    error = http.chat(expect=400, messages=called('{"city": '), tools=[LISBON])["error"]
    assert error["type"] == "invalid_request_error" and "arguments" in (error["param"] or error["message"])


@row("aichat #1296: what follows of a call leaves id and name out", ALL)
def _(http):
    _, *later = pieces_of_calls(http.stream(WEATHER, tools=[LISBON]))
    assert later and all("id" not in piece and "name" not in piece["function"] for piece in later)


@row("sglang #18335: the role comes first and once, and no content is null", OURS)
def _(http):
    for options in ({}, {"tools": [LISBON]}):
        first, *later = deltas(http.stream(WEATHER, **options))
        assert first["role"] == "assistant"
        assert not any("role" in delta for delta in later)
        assert all(delta.get("content", "") is not None for delta in later)


USAGE = {"stream_options": {"include_usage": True}}


@row("llama.cpp PR 15444: the usage comes in a chunk with `choices: []`", ALL)
def _(http):
    last = http.stream(**USAGE)[-1]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0


@row("apfel #100: the usage comes where it is asked for, and nowhere else", ALL)
def _(http):
    for options in ({}, {"stream_options": {"include_usage": False}}):
        assert not any(chunk.get("usage") or chunk["choices"] == [] for chunk in http.stream(**options))


@row("sglang #954: the usage of other chunks is null", OURS)
def _(http):
    *others, _ = http.stream(**USAGE)
    assert others and all("usage" in chunk and chunk["usage"] is None for chunk in others)


@row("mistral.rs PR 1226, PR 1507: `[DONE]` ends a stream", ALL)
def _(http):
    lines = http.lines()
    assert lines.count("[DONE]") == 1 and lines[-1] == "[DONE]"


@row("tenstorrent/vllm #386: no error comes as a 200")
def _(http):
    for options in ({"temperature": 9}, {"messages": []}, {"n": 0}, {"stop": ["", "a"]}):
        for stream in (False, True):
            assert "error" in http.chat(expect=400, **{"stream": stream, **options})


@row("litellm PR 32159, bamboo #355: where an upstream breaks off, an error ends the stream", ("scripted",))
def _(http):
    lines = http.lines("Break off in the middle.")
    assert "[DONE]" not in lines and "error" in json.loads(lines[-1])
    with openai.OpenAI(base_url=http.place.openai + "/v1", api_key=http.place.key, max_retries=0) as client:
        options = {"model": http.place.model, "messages": [{"role": "user", "content": "Break off in the middle."}]}
        with pytest.raises(openai.APIError):
            list(client.chat.completions.create(**options, stream=True))
    *_, last = http.events("Break off in the middle.")
    assert last["type"] == "error"


@row("LocalAI #1744: `finish_reason` is always there", ALL)
def _(http):
    assert all("finish_reason" in choice for chunk in http.stream() for choice in chunk["choices"])
    assert http.chat()["choices"][0]["finish_reason"]


@row("TGI #2296: finish reasons are those of the list", ALL)
def _(http):
    for options in ({}, {"max_tokens": 2}, {"stop": ["e"]}, {"tools": [LISBON]}):
        assert set(reasons(http.stream(WEATHER, **options))) <= REASONS


@row("llama.cpp #28478: log-probabilities with tools, streamed")
def _(http):
    options = {"tools": [LISBON], "logprobs": True, "top_logprobs": 2}
    whole = http.chat(WEATHER, **options)["choices"][0]
    assert whole["message"]["tool_calls"] and whole["logprobs"]["content"]
    chunks = http.stream(WEATHER, **options)
    streamed = [token for chunk in chunks for choice in chunk["choices"] for token in (choice["logprobs"] or {}).get("content") or []]
    assert [token["token"] for token in streamed] == [token["token"] for token in whole["logprobs"]["content"]]


@row("llama.cpp #11346: completions have their own shape of log-probabilities")
def _(http):
    logprobs = http.post("/v1/completions", prompt="The KV cache is", max_tokens=4, logprobs=2, temperature=0).json()["choices"][0]["logprobs"]
    counts = {name: len(logprobs[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert set(counts.values()) == {4}
    assert all(isinstance(top, dict) and len(top) >= 2 for top in logprobs["top_logprobs"])


@row("langchaingo #667: content may be an array of parts", ALL)
def _(http):
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    assert http.chat(messages=parts)["choices"][0]["message"]["content"] == http.chat()["choices"][0]["message"]["content"]


@row("vllm #13978: `tool_calls: []` of the past is taken")
def _(http):
    past = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi.", "tool_calls": []}, {"role": "user", "content": QUESTION}]
    without = [{name: value for name, value in turn.items() if name != "tool_calls"} for turn in past]
    assert http.chat(messages=past)["choices"][0]["message"] == http.chat(messages=without)["choices"][0]["message"]


@row("ollama #18107, #2963: a prompt that is too long is a 400, and never cut")
def _(http):
    error = http.chat("word " * 5000, expect=400)["error"]
    assert error["code"] == "context_length_exceeded"


@row("sglang #34214: text before a call is kept", ("scripted",))
def _(http):
    question = "Say something first, and then call a tool."
    message = http.chat(question, tools=[LISBON])["choices"][0]["message"]
    assert message["content"] and message["tool_calls"]
    tool = {"name": "get_weather", "input_schema": LISBON["function"]["parameters"]}
    assert [block["type"] for block in http.claude(question, tools=[tool])["content"]] == ["text", "tool_use"]
    started = [event["content_block"]["type"] for event in http.events(question, tools=[tool]) if event["type"] == "content_block_start"]
    assert started == ["text", "tool_use"]


# Structured output and tools.


def form(schema, strict=False):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": strict, "schema": schema}}}


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}


@row("vllm #39929: a form of the answer forbids no calls")
def _(http):
    assert http.chat(WEATHER, tools=[LISBON], **form(CITY))["choices"][0]["message"]["tool_calls"]


@row("vllm #9451: `parallel_tool_calls: false` is one call")
def _(http):
    message = http.chat(WEATHER, tools=[LISBON], parallel_tool_calls=False)["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1


@row("vllm #38696: white space does not run away")
def _(http):
    for seed in range(8):
        choice = http.chat(max_tokens=400, temperature=2, seed=seed, **form(CITY, True))["choices"][0]
        if choice["finish_reason"] == "stop":
            assert set(json.loads(choice["message"]["content"])) == {"city"}
        # Between two parts a space, or a line's end with an indent of at most 40: what `grammar/src/bounds.rs` says.
        assert not re.search(r"\s{43}", choice["message"]["content"])


@row("vllm #52011: the schema `{}` runs into no endless number")
def _(http):
    for seed in range(4):
        choice = http.chat(max_tokens=400, seed=seed, temperature=2, **form({}))["choices"][0]
        content = choice["message"]["content"]
        assert not re.search(r"\d{64}", content)
        if choice["finish_reason"] == "stop":
            json.loads(content)


# Responses.


def response_events(http, **body):
    answer = http.post("/v1/responses", **{"input": WEATHER, "stream": True, **body})
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@row("litellm #27671, #30071: one item id through the events of an item")
def _(http):
    for tools in ([], [{"type": "function", **LISBON["function"]}]):
        events = response_events(http, tools=tools)
        items = {event["output_index"]: event["item"]["id"] for event in events if event["type"] == "response.output_item.added"}
        told = [event for event in events if "item_id" in event]
        assert items and told and all(event["item_id"] == items[event["output_index"]] for event in told)


@row("litellm #22102, sglang #12653: every item is added, and done")
def _(http):
    events = response_events(http)
    ids = [[event["item"]["id"] for event in events if event["type"] == f"response.output_item.{what}"] for what in ("added", "done")]
    assert ids[0] == ids[1] == [item["id"] for item in events[-1]["response"]["output"]] != []


@row("litellm PR 37956: the id of a streamed answer goes as `previous_response_id`", OURS)
def _(http):
    first = response_events(http, store=True)[-1]["response"]["id"]
    second = http.post("/v1/responses", input="And why?", previous_response_id=first).json()
    assert second["previous_response_id"] == first and second["status"] == "completed"


@row("vllm #33089, #43244: a call and its output are taken back")
def _(http):
    tools = [{"type": "function", **LISBON["function"]}]
    asked = http.post("/v1/responses", input=WEATHER, tools=tools, temperature=0).json()
    [call] = [item for item in asked["output"] if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"temperature": 21}'}
    turns = [{"role": "user", "content": WEATHER}, *asked["output"], result]
    answer = http.post("/v1/responses", input=turns, tools=tools, temperature=0).json()
    assert "21" in answer["output"][-1]["content"][0]["text"]


@row("llama.cpp #20156, ollama #17618: custom tools and namespaces are no 500")
def _(http):
    custom = {"type": "custom", "name": "apply_patch", "description": "Apply a patch", "format": {"type": "text"}}
    space = {"type": "namespace", "name": "files", "description": "Files", "tools": [{"type": "function", **LISBON["function"]}]}
    for tool in (custom, space):
        url = http.place.openai + "/v1/responses"
        body = {"model": http.place.model, "input": QUESTION, "tools": [tool]}
        answer = httpx.post(url, json=body, headers={"authorization": f"Bearer {http.place.key}"}, timeout=60)
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert answer.json()["error"]["param"].startswith("tools")


# Anthropic.


@row("litellm #32357: one message_start, and thinking in its own blocks alone", ALL)
def _(http):
    events = http.events()
    assert [event["type"] for event in events].count("message_start") == 1
    kinds = {event["index"]: event["content_block"]["type"] for event in events if event["type"] == "content_block_start"}
    for event in events:
        if event["type"] == "content_block_delta":
            wanted = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking", "input_json_delta": "tool_use"}
            assert kinds[event["index"]] == wanted[event["delta"]["type"]]


@row("litellm #25321, #29491, #34692: a call's input comes whole, with `tool_use` and no empty text before it", ALL)
def _(http):
    tool = {"name": "get_weather", "description": "Get the current weather for a city", "input_schema": LISBON["function"]["parameters"]}
    events = http.events(WEATHER, tools=[tool])
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta" and "partial_json" in event["delta"]]
    [reason] = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
    assert (kinds, json.loads("".join(pieces)), reason) == (["tool_use"], {"city": "Lisbon"}, "tool_use")


@row("vllm #45079, ollama #17130, litellm #24176: what was cached is told at the start and at the end")
def _(http):
    http.claude()
    fields = {"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"}
    events = http.events()
    [start] = [event["message"]["usage"] for event in events if event["type"] == "message_start"]
    [end] = [event["usage"] for event in events if event["type"] == "message_delta"]
    assert fields <= set(start) and fields <= set(end)
    assert end["output_tokens"] > 0
    whole = http.claude()["usage"]
    assert {name: end[name] for name in fields} == {name: whole[name] for name in fields}


@row("vllm #44000, #48874, ollama #18431: a system turn stays where it stands, and the prefix with it")
def _(http):
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "A phase. " * 20}, {"role": "user", "content": "Go on."}]
    first = http.post("/v1/messages", max_tokens=4, messages=turns).json()["usage"]
    later = [*turns, {"role": "assistant", "content": "Well."}, {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    second = http.post("/v1/messages", max_tokens=4, messages=later).json()["usage"]
    total = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["cache_read_input_tokens"] >= total - 32


@row("openai-python #1490, sglang PR 28803: embeddings come as base64 where that is asked for, each number in four bytes, little end first")
def _(http):
    floats, packed = (
        http.post("/v1/embeddings", model=ENCODER, input="hello", encoding_format=form).json()["data"][0]["embedding"]
        for form in ("float", "base64")
    )
    assert isinstance(packed, str)
    assert list(struct.unpack(f"<{len(floats)}f", base64.b64decode(packed))) == pytest.approx(floats, abs=1e-7)


def cases():
    for thread, check, places, lacks, behind in ROWS:
        for name in places:
            missing = lacks or (behind if name == "relayed" else None)
            marks = [pytest.mark.xfail(strict=True, reason=f"not here yet: {missing}")] if missing else []
            yield pytest.param(thread, check, name, marks=marks, id=f"{thread} [{name}]")


@pytest.mark.parametrize(("thread", "check", "name"), list(cases()))
def test_row(request, thread, check, name):
    check(Http(found(request, name)))


def test_every_row_is_there():
    assert len(ROWS) >= 40
    assert len({thread for thread, *_ in ROWS}) == len(ROWS)
