"""Idempotency keys with both SDKs: repeats, and the SDKs' own retries, get the first answer byte for byte."""

import io
import uuid

import anthropic
import httpx
import httpx2
import openai
import pytest

from conftest import MODEL, say


def losing_client(library):
    """An HTTP client that reads the whole answer of the first request, and then reports that it timed out. And its answers."""
    answers = []

    class LosingTransport(library.HTTPTransport):
        def handle_request(self, request):
            answer = super().handle_request(request)
            body = answer.read()
            answers.append((answer.status_code, answer.headers, body))
            if len(answers) == 1:
                raise library.ReadTimeout("the test lost the answer", request=request)
            # The body was decoded while it was read.
            headers = {name: value for name, value in answer.headers.items() if name not in ("content-encoding", "transfer-encoding")}
            return library.Response(answer.status_code, headers=headers, content=body)

    return library.Client(transport=LosingTransport()), answers


def key():
    return {"Idempotency-Key": str(uuid.uuid4())}


def ask(client, stream, headers, text="What is prefill?"):
    """The text of an answer of either SDK, and the headers."""
    if isinstance(client, openai.OpenAI):
        create = client.chat.completions.with_streaming_response.create
    else:
        create = client.messages.with_streaming_response.create
    with create(model=MODEL, messages=say(text), max_tokens=16, stream=stream, extra_headers=headers) as answer:
        return answer.read(), answer.headers


@pytest.fixture(params=["openai", "anthropic"])
def either(request, server):
    """One SDK after the other, each with its own library for HTTP."""

    def make(**options):
        return getattr(server, request.param)(**options)

    make.library = {"openai": httpx, "anthropic": httpx2}[request.param]
    return make


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_repeat_gets_the_same_bytes(either, stream):
    with either() as client:
        headers = key()
        first, first_headers = ask(client, stream, headers)
        again, headers_again = ask(client, stream, headers)
        assert first == again
        assert "idempotent-replayed" not in first_headers
        assert headers_again["idempotent-replayed"] == "true"
        assert headers_again["x-headrace-original-request"] == first_headers["x-request-id"]
        assert headers_again["content-type"] == first_headers["content-type"]
        other, other_headers = ask(client, stream, key())
        assert "idempotent-replayed" not in other_headers and other != first, "another key is another answer"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_retry_of_the_sdk_gets_the_answer_that_was_lost(either, stream):
    http_client, answers = losing_client(either.library)
    with either(max_retries=2, http_client=http_client) as client:
        body, headers = ask(client, stream, key())
    assert headers["idempotent-replayed"] == "true"
    (status, first_headers, lost), (again, headers_again, replayed) = answers
    assert (status, again) == (200, 200)
    assert lost == replayed == body
    assert headers_again["x-headrace-original-request"] == first_headers["x-request-id"]


def test_another_request_under_the_same_key_is_refused(either):
    with either() as client:
        headers = key()
        ask(client, False, headers)
        error = openai.UnprocessableEntityError if isinstance(client, openai.OpenAI) else anthropic.UnprocessableEntityError
        with pytest.raises(error) as refused:
            ask(client, False, headers, "What is decode?")
        assert "Use a new key" in str(refused.value)
        bad = openai.BadRequestError if isinstance(client, openai.OpenAI) else anthropic.BadRequestError
        with pytest.raises(bad) as refused:
            ask(client, False, {"Idempotency-Key": "k" * 300})
        assert "1 to 255" in str(refused.value)


def test_a_file_is_uploaded_once(client):
    headers = key()
    line = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'

    def upload():
        return client.files.create(file=("a.jsonl", io.BytesIO(line)), purpose="batch", extra_headers=headers)

    first, again = upload(), upload()
    assert first.id == again.id
    client.files.delete(first.id)
