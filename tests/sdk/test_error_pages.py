"""The pages about errors say what is really answered: a request for each code that a client can bring about by itself, its answer held
against the example of the code's page, numbers, names and ids apart."""

import http.client
import json
import re
import urllib.parse

import pytest

from conftest import MODEL, ROOT, Server

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}
JSON = {"content-type": "application/json"}


def chat(**more):
    return "POST", CHAT, {"model": MODEL, "messages": MESSAGES, "max_tokens": 4, **more}


LATER = {"unsupported_content"}
"""Codes that arise at several stages: their pages name the first."""

BY_ANYBODY = {
    "not_found": ("GET", "/v1/modles", None),
    "method_not_allowed": ("PUT", CHAT, {}),
    "unsupported_media_type": ("POST", CHAT, b"x=1", {"content-type": "application/x-www-form-urlencoded"}),
    "unsupported_encoding": ("POST", CHAT, b"{}", {**JSON, "content-encoding": "gzip"}),
    "conflicting_credentials": (*chat(), {"x-api-key": "sk-another-0123456789abcdefghijklmn"}),
    "missing_api_key": (*chat(), {"authorization": None}),
    "invalid_api_key": (*chat(), {"authorization": "Bearer sk-wrong-0123456789abcdefghijklmnop"}),
    "invalid_json": ("POST", CHAT, b'{"model" "x"}', JSON),
    "duplicate_key": ("POST", CHAT, b'{"model": "a", "model": "b"}', JSON),
    "unknown_parameter": chat(temprature=1),
    "decimal_above_max_value": chat(temperature=3),
    "decimal_below_min_value": chat(temperature=-1),
    "integer_below_min_value": chat(max_tokens=0),
    "integer_above_max_value": chat(n=1000),
    "invalid_type": chat(max_tokens="ten"),
    "empty_string": chat(stop=""),
    "array_above_max_length": chat(stop=list("abcde")),
    "empty_array": chat(messages=[]),
    "missing_required_parameter": ("POST", CHAT, {"model": MODEL}),
    "invalid_value": chat(messages=[{"role": "wizard", "content": "x"}]),
    "unsupported_parameter": chat(modalities=["audio"]),
    "unsupported_content": chat(messages=IMAGE),
    "model_not_found": chat(model="gpt-5"),
    "context_length_exceeded": chat(max_tokens=100_000),
    "invalid_grammar": chat(structured_outputs={"regex": "("}),
    "invalid_json_schema": chat(response_format=SCHEMA),
    "string_above_max_length": chat(user="u" * 1000),
    "object_above_max_properties": chat(metadata={str(at): "x" for at in range(30)}),
    "response_not_found": ("GET", "/v1/responses/resp_0", None),
    "file_not_found": ("GET", "/v1/files/file-0", None),
    "bad_page": ("GET", "/v1/files?limit=0", None),
    "upload_not_found": ("POST", "/v1/uploads/upload_0/cancel", {}),
    "batch_not_found": ("GET", "/v1/batches/batch_0", None),
    "conversation_not_found": ("GET", "/v1/conversations/conv_0", None),
    "request_not_found": ("GET", "/v1/requests/req_01a20744113875eeaa8a39d86b4f19db", None),
    "item_not_found": ("POST", "/v1/responses", {"model": MODEL, "input": [{"type": "item_reference", "id": "msg_0"}]}),
    "previous_response_not_found": ("POST", "/v1/responses", {"model": MODEL, "input": "hi", "previous_response_id": "resp_0"}),
    "wrong_kind_of_model": ("POST", "/v1/embeddings", {"model": MODEL, "input": "hi"}),
    "empty_prompt": ("POST", "/v1/completions", {"model": MODEL, "prompt": ""}),
}
"""By code: method, path, body, headers."""

WITH_A_KEY = {
    "requests_per_minute": (["--requests-per-minute", "1"], [chat(), chat()]),
    "tokens_per_minute": (["--tokens-per-minute", "40"], [chat(), chat(max_tokens=30)]),
    "endpoint_not_entitled": (["--endpoint", "messages"], [chat()]),
}
"""By code: how the key is made, and the calls of which the last is refused."""


@pytest.fixture(scope="module")
def house(binary, tmp_path_factory):
    house = Server(tmp_path_factory.mktemp("pages"))
    yield house
    house.stop()


def ask(house, key, method, path, body=None, headers=()):
    """The error of an answer."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(house.url).netloc, timeout=30)
    sent = {"authorization": f"Bearer {key}"}
    if isinstance(body, (dict, list)):
        body, sent = json.dumps(body), {**sent, **JSON}
    sent.update(headers)
    connection.request(method, path, body, {name: value for name, value in sent.items() if value is not None})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer.get("error")


def example(code):
    """The page's, in OpenAI's shape."""
    page = (ROOT / "docs" / "errors" / f"{code}.md").read_text()
    return json.loads(re.search(r"```json\n(.*?)\n```", page, re.S).group(1))["error"]


def shape(message):
    return re.sub(r"\d+", "#", re.sub(r"`(key|project|org)_?[^`]*`", "`…`", message))


def compare(code, error):
    shown = example(code)
    assert error["code"] == code, error
    assert shape(error["message"]) == shape(shown["message"])
    for name in ["type", "param", "doc_url", *(["stage"] if code not in LATER else [])]:
        assert error[name] == shown[name], (name, error)
    assert set(shown) - {"retry_after_s"} <= set(error), error


@pytest.mark.parametrize("code", BY_ANYBODY)
def test_a_page_shows_what_is_answered(house, code):
    compare(code, ask(house, house.key, *BY_ANYBODY[code]))


@pytest.mark.parametrize("code", WITH_A_KEY)
def test_a_page_shows_what_a_keys_limit_answers(house, code):
    options, calls = WITH_A_KEY[code]
    made = json.loads(house.run("keys", "create", "--name", code.replace("_", "-"), *options, "--json").stdout)
    *before, last = [ask(house, made["value"]["secret"], *call) for call in calls]
    assert before == [None] * len(before)
    compare(code, last)
