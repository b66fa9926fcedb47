"""Responses of a server that speaks the Responses API itself (`responses = "pass"`), as OpenAI's SDK sees them: what it wrote, and paid by
what it reports."""

import json
import time

import httpx
import openai
import pytest
from conftest import KEY, LIMITS, Server
from places import QUESTION, RESULT, WEATHER
from scripted import MODEL, RESPONSE_USAGE, WORDS, response_stream

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CONFIGURATION = """
[[upstreams]]
name = "far"
kind = "openai"
url = "{url}"
responses = "pass"
allow_unpriced = ["web_search"]
price = {{ input = "1", cached_input = "0.1", output = "4" }}

[[models]]
name = "{model}"
targets = ["far/{model}"]
"""
COST = 16 * 1_000 + 5 * 100 + 9 * 4_000
"""Nano-dollars of an answer: what was not cached, what was, what was generated."""


@pytest.fixture(scope="module", params=["scripted"])
def place(request, binary, scripted, tmp_path_factory):
    """A Headrace in front of the scripted server."""
    directory = tmp_path_factory.mktemp("passing")
    server = Server(directory, LIMITS, CONFIGURATION.format(url=scripted.url, model=MODEL))
    yield server
    server.stop()


@pytest.fixture
def responses(place):
    with place.openai() as client:
        yield client.responses


def ask(responses, input=QUESTION, **more):
    return responses.create(model=MODEL, input=input, **{"store": False, **more})


def trace_of(place, answer):
    """The trace of an answered call, which is written beside the answer."""
    for _ in range(1000):
        told = place.run("trace", answer.headers["x-request-id"], "--json")
        if told.returncode == 0:
            return json.loads(told.stdout)
        time.sleep(0.05)
    raise AssertionError(told.stderr)


def raw(place, **body):
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{place.url}/v1/responses", json={"model": MODEL, "store": False, **body}, headers=headers, timeout=60)


def test_a_response_comes_as_its_server_wrote_it(place, scripted, responses):
    told = ask(responses, instructions="Be brief.", metadata={"a": "b"})
    assert told.output_text == WORDS and told.status == "completed"
    assert told.id == f"resp_scripted_{scripted.responses - 1}"
    assert (told.instructions, told.metadata) == ("Be brief.", {"a": "b"})
    answer = raw(place, input=QUESTION)
    assert answer.json()["an_extension"] == {"kept": [1.5]}
    assert '"an_extension" : {"kept" : [1.5]}' in answer.text, "as it was written"
    assert answer.headers["x-request-id"].startswith("req_")


def test_a_stream_comes_byte_for_byte(place, scripted, responses):
    answer = raw(place, input=QUESTION, stream=True)
    body = {**scripted.asked[-1]}
    assert answer.text == response_stream(body, scripted.responses - 1) + "data: [DONE]\n\n"
    with ask(responses, stream=True) as stream:
        events = list(stream)
    names = [event.type for event in events]
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == WORDS
    assert events[-1].response.usage.total_tokens == 30


def test_the_sdk_assembles_a_stream(responses):
    with responses.stream(model=MODEL, input=QUESTION, store=False) as stream:
        assert stream.get_final_response().output_text == WORDS


def test_tools_are_called_and_their_results_told(scripted, responses):
    for choice in ("auto", "required", {"type": "function", "name": "get_weather"}):
        first = ask(responses, WEATHER, tools=[TOOL], tool_choice=choice)
        (call,) = first.output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Lisbon"})
    assert scripted.asked[-1]["tools"] == [TOOL]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps(RESULT)}
    turns = [{"role": "user", "content": WEATHER}, call.model_dump(exclude_none=True), result]
    assert ask(responses, turns, tools=[TOOL]).output_text == f"The tool says: {json.dumps(RESULT)}"
    with ask(responses, WEATHER, tools=[TOOL], stream=True) as stream:
        events = list(stream)
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert json.loads(arguments) == {"city": "Lisbon"}


def test_tools_that_run_there_run_there(scripted, responses):
    told = ask(responses, tools=[{"type": "web_search"}])
    assert [item.type for item in told.output] == ["web_search_call", "message"]
    assert scripted.asked[-1]["tools"] == [{"type": "web_search"}]


def test_a_form_is_its_servers_to_keep(scripted, responses):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert json.loads(ask(responses, text={"format": form}).output_text) == {"n": 21}
    assert scripted.asked[-1]["text"]["format"]["schema"] == schema


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_used_is_what_is_reported_and_paid(place, responses, stream):
    answer = ask(responses, stream=stream)
    usage = list(answer)[-1].response.usage if stream else answer.usage
    assert usage.model_dump(exclude_unset=True) == RESPONSE_USAGE
    trace = trace_of(place, raw(place, input=QUESTION, stream=stream))
    told = trace["upstream"]
    # The id of the answer that the server behind gave.
    assert told.pop("id").startswith("resp_")
    assert told == {"name": "far", "model": MODEL, "usage": "reported"}
    kinds = ("input", "cached_input", "output", "reasoning")
    assert [trace["usage"][f"{kind}_tokens"] for kind in kinds] == [16, 5, 7, 2]
    assert trace["cost"]["charged_nano_dollars"] == COST


def test_a_response_goes_on_from_one_of_its_servers(scripted, responses):
    first = ask(responses, store=True)
    second = ask(responses, "And why?", previous_response_id=first.id)
    assert second.previous_response_id == first.id and scripted.asked[-1]["input"] == "And why?"
    with pytest.raises(openai.BadRequestError) as raised:
        ask(responses, previous_response_id="resp_nobodys")
    assert raised.value.param == "previous_response_id"


def test_a_response_that_fails_says_what_it_took(place, responses):
    with ask(responses, "Fail now.", stream=True) as stream, pytest.raises(openai.APIError):
        list(stream)
    answer = raw(place, input="Fail now.", stream=True)
    assert "response.output_text.delta" in answer.text and "[DONE]" not in answer.text
    trace = trace_of(place, answer)
    assert (trace["upstream"]["usage"], trace["outcome"]["kind"]) == ("reported", "failed")
    assert trace["usage"]["total_tokens"] == 30
    with pytest.raises(openai.APIStatusError) as raised:
        ask(responses, "Fail now.")
    assert raised.value.status_code >= 500 and raised.value.request_id


def test_a_stream_that_breaks_off_is_an_error(place, responses):
    with ask(responses, "Break off.", stream=True) as stream, pytest.raises(openai.APIError):
        list(stream)
    trace = trace_of(place, raw(place, input="Break off.", stream=True))
    assert (trace["upstream"]["usage"], trace["outcome"]["kind"]) == ("estimated", "failed")


def test_errors_are_those_of_the_server_or_named(place, scripted, responses):
    scripted.refusing = 10
    try:
        with pytest.raises(openai.APIStatusError) as raised:
            ask(responses)
        assert raised.value.status_code == 503
    finally:
        scripted.refusing = 0
    with pytest.raises(openai.NotFoundError) as raised:
        responses.create(model="nobody", input="x")
    assert raised.value.param == "model"
    with pytest.raises(openai.AuthenticationError), place.openai(api_key="sk-nobody-0123456789abcdefghijklmnop") as stranger:
        ask(stranger.responses)
    # After so many failures it rests, and is tried again by itself.
    for _ in range(1000):
        answer = raw(place, input=QUESTION)
        if answer.status_code == 200:
            break
        time.sleep(0.2)
    assert ask(responses).output_text == WORDS
