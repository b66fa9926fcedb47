"""OpenAI's SDK: every error is the typed one, with its facts."""

import json

import openai
import pytest

from conftest import MODEL, say


def refused(kind, client, **options):
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**{"model": MODEL, "messages": say("hi"), "max_tokens": 4, **options})
    error = raised.value
    assert error.request_id.startswith("req_")
    assert error.body["request_id"] == error.request_id
    assert error.body["stage"] and error.body["doc_url"].endswith(f"/docs/errors/{error.code}.md")
    assert error.body["message"] and error.type
    return error


BAD = [
    ({"temperature": 3}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "ten"}, "max_tokens"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": [["x"]]}, "stop[0]"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
    ({"stop": list("abcde")}, "stop"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
    ),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"verbosity": "chatty"}, "verbosity"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"extra_body": {"chat_template": "{{ x }}"}}, "chat_template"),
    ({"extra_body": {"tempreature": 1}}, "tempreature"),
    ({"extra_body": {"headrace": {"explian": True}}}, "headrace.explian"),
]


@pytest.mark.parametrize(("options", "param"), BAD, ids=[str(row[0])[:50] for row in BAD])
def test_a_bad_parameter_is_named(client, options, param):
    error = refused(openai.BadRequestError, client, **options)
    assert error.param == param
    assert (error.status_code, error.type) == (400, "invalid_request_error")


def test_response_format_text_is_no_error(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=say("Hello!"), response_format={"type": "text"}, max_tokens=4
    )
    assert answer.choices


def test_a_prompt_beyond_the_context(client):
    error = refused(openai.BadRequestError, client, messages=say("word " * 5000))
    assert error.code == "context_length_exceeded"
    assert "2048" in error.message
    error = refused(openai.BadRequestError, client, max_tokens=100_000)
    assert error.param == "max_tokens"


def test_an_unknown_model(client):
    error = refused(openai.NotFoundError, client, model="gpt-17")
    assert (error.status_code, error.param) == (404, "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-17")


@pytest.mark.parametrize(
    "key", ["sk-wrong", "not a key at all", "sk-sdk-tests-0123456789abcdefghijklmnopqrstuvwxyZ"]
)
def test_a_wrong_key(server, key):
    with server.openai(api_key=key) as stranger:
        error = refused(openai.AuthenticationError, stranger)
        assert (error.status_code, error.type) == (401, "authentication_error")
        assert key not in str(error)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_an_error_of_a_stream_comes_before_it(client):
    refused(openai.BadRequestError, client, stream=True, temperature=9)
    refused(openai.NotFoundError, client, stream=True, model="gpt-17")


def test_an_unknown_path(client):
    with pytest.raises(openai.NotFoundError) as raised:
        client.images.generate(model=MODEL, prompt="x")
    assert raised.value.request_id.startswith("req_")


def test_headers(server, client):
    # A key of its own: of sixty requests a minute none is there again before it is looked at.
    made = server.run("keys", "create", "--name", "slow", "--requests-per-minute", "60", "--tokens-per-minute", "1000", "--json")
    assert made.returncode == 0, made.stderr
    slow = client.with_options(api_key=json.loads(made.stdout)["value"]["secret"])
    raw = slow.chat.completions.with_raw_response.create(model=MODEL, messages=say("Hello!"), max_tokens=4)
    headers = raw.headers
    assert headers["x-request-id"].startswith("req_")
    assert raw.parse()._request_id == headers["x-request-id"]
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("60", "59")
    for unit in ("requests", "tokens"):
        limit, left = (int(headers[f"x-ratelimit-{name}-{unit}"]) for name in ("limit", "remaining"))
        assert 0 <= left < limit
        assert f"x-ratelimit-reset-{unit}" in headers
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=say("Hello!"), stream=True
    ) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.headers["x-request-id"].startswith("req_")
        assert [line for line in streamed.iter_lines() if line][-1] == "data: [DONE]"


@pytest.mark.direct("an answer in the caller's dialect goes through byte for byte, and has the id of who made it")
def test_the_id_of_an_answer_is_its_requests(client):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=say("Hello!"), max_tokens=4)
    assert raw.parse().id.removeprefix("chatcmpl-") == raw.headers["x-request-id"].removeprefix("req_")


def test_out_of_money(start_server):
    # A ten-millionth of a dollar: no call of the demo model could be held against it.
    poor = start_server(HEADRACE_FIRST_START__CREDIT="0.0000001")
    with poor.openai() as client:
        with pytest.raises(openai.APIStatusError) as raised:
            client.chat.completions.create(model=MODEL, messages=say("Hello!"), max_tokens=1000)
        error = raised.value
        assert (error.status_code, error.type) == (402, "insufficient_quota")
        assert error.body["stage"] == "hold"
        assert "retry-after" not in error.response.headers
        assert "$" in error.message
        assert client.models.list().data, "what costs nothing still works"
    with poor.anthropic() as claude:
        with pytest.raises(Exception) as raised:
            claude.messages.create(model=MODEL, messages=say("Hello!"), max_tokens=1000)
        assert raised.value.status_code == 402
        assert raised.value.body["error"]["type"] == "billing_error"


def test_too_many_requests(start_server):
    slow = start_server(HEADRACE_LIMITS__KEY__REQUESTS_PER_MINUTE="2")
    with slow.openai() as client:
        for _ in range(2):
            client.chat.completions.create(model=MODEL, messages=say("Hello!"), max_tokens=2)
        error = refused(openai.RateLimitError, client)
        assert error.type == "rate_limit_error"
        assert 1 <= int(error.response.headers["retry-after"]) <= 60
        assert error.body["limit"]["limit"] == 2
