"""Embeddings with the official SDK, reranking and scoring by their own paths, on encoders in the engine: the numbers are transformers', the
same alone and among others, by text and by ids, as floats and as base64; and the whole way is governed as every call is."""

import base64
import concurrent.futures
import json
import math
import re
import struct
import subprocess
import urllib.error
import urllib.request

import openai
import pytest

from conftest import BINARY, MODEL, ROOT, Server

DATA = ROOT / "crates" / "model" / "tests" / "data"
QUERY = "Which server answers every request?"
DOCUMENTS = ["The quick server answers every request.", "Hello", "été 日本 🙂", "Licensed under the Apache License, Version 2.0"]
CLOSE = 1e-4


def answers(name):
    return json.loads((DATA / name / "expected.json").read_text())


@pytest.fixture(scope="module")
def encoders(binary, tmp_path_factory):
    """A server with encoders beside the demo model."""
    names = {"bert": "bert-embed", "xlmr": "xlmr-embed", "qwen": "qwen3-embed", "rank": "bert-rank"}
    more = [word for name, folder in names.items() for word in ("--model", f"{name}={DATA / folder}")]
    server = Server(tmp_path_factory.mktemp("encoders"), more=[*more, "--model", f"{MODEL}={ROOT / 'demo-model' / 'checkpoint'}"])
    yield server
    server.stop()


def post(server, path, body):
    """Status and JSON of a path that the SDK does not have."""
    request = urllib.request.Request(
        server.url + path,
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {server.key}", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def vectors(answer):
    assert [row.index for row in answer.data] == list(range(len(answer.data)))
    return [row.embedding for row in answer.data]


def close(got, want):
    assert len(got) == len(want)
    assert max(abs(a - b) for a, b in zip(got, want)) < CLOSE


@pytest.mark.parametrize(("model", "folder", "pooled"), [("bert", "bert-embed", "mean_l2"), ("xlmr", "xlmr-embed", "mean_l2")])
def test_texts_and_ids_become_the_vectors_of_transformers(encoders, model, folder, pooled):
    client, expected = encoders.openai(), answers(folder)
    by_text = client.embeddings.create(model=model, input=expected["texts"])
    for got, want in zip(vectors(by_text), expected["out"], strict=True):
        close(got, want[pooled])
    count = sum(len(ids) for ids in expected["ids"])
    assert (by_text.usage.prompt_tokens, by_text.usage.total_tokens, by_text.model) == (count, count, model)
    by_ids = client.embeddings.create(model=model, input=expected["ids"])
    assert vectors(by_ids) == vectors(by_text)
    one = client.embeddings.create(model=model, input=expected["ids"][0])
    assert vectors(one) == vectors(by_text)[:1]


def test_a_decoders_last_state_is_its_vector(encoders):
    expected = answers("qwen3-embed")
    answer = encoders.openai().embeddings.create(model="qwen", input=expected["ids"])
    for got, want in zip(vectors(answer), expected["out"], strict=True):
        close(got, want["last_l2"])


def test_floats_and_base64_are_the_same_numbers(encoders):
    client, text = encoders.openai(), "The quick server answers every request."
    floats = client.embeddings.create(model="bert", input=text, encoding_format="float").data[0].embedding
    status, raw = post(encoders, "/v1/embeddings", {"model": "bert", "input": text, "encoding_format": "base64"})
    data = base64.b64decode(raw["data"][0]["embedding"], validate=True)
    assert (status, len(data)) == (200, 4 * 64)
    packed = list(struct.unpack("<64f", data))
    assert [struct.unpack("<f", struct.pack("<f", value))[0] for value in floats] == packed
    # What the SDK asks for by itself.
    assert client.embeddings.create(model="bert", input=text).data[0].embedding == pytest.approx(packed, abs=0)


def test_fewer_dimensions_have_length_one_again(encoders):
    client, text = encoders.openai(), "Hello"
    whole = client.embeddings.create(model="bert", input=text).data[0].embedding
    cut = client.embeddings.create(model="bert", input=text, dimensions=16).data[0].embedding
    length = math.sqrt(sum(value * value for value in whole[:16]))
    assert cut == pytest.approx([value / length for value in whole[:16]], abs=1e-6)
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="bert", input=text, dimensions=65)
    assert refused.value.param == "dimensions" and "64" in refused.value.message


def test_a_text_has_the_same_bits_alone_and_among_a_thousand(encoders):
    client = encoders.openai()
    texts = [f"Text number {at} of a thousand, {'and more words ' * (at % 7)}" for at in range(1000)]
    together = vectors(client.embeddings.create(model="bert", input=texts))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        alone = pool.map(lambda at: client.embeddings.create(model="bert", input=texts[at]).data[0].embedding, range(0, 1000, 50))
        assert list(alone) == together[::50]


def test_rankings_and_scores_are_those_of_transformers(encoders):
    logits = answers("bert-rank")["logits"][-len(DOCUMENTS):]
    want = [1 / (1 + math.exp(-logit)) for logit in logits]
    order = sorted(range(len(want)), key=lambda at: -want[at])
    for path in ("/v1/rerank", "/v2/rerank"):
        body = {"model": "rank", "query": QUERY, "documents": DOCUMENTS}
        status, answer = post(encoders, path, body)
        assert (status, [row["index"] for row in answer["results"]]) == (200, order)
        close([row["relevance_score"] for row in answer["results"]], [want[at] for at in order])
        assert answer["usage"]["total_tokens"] > 0
        status, best = post(encoders, path, {**body, "top_n": 2, "return_documents": True})
        assert status == 200 and best["results"][0]["document"] == {"text": DOCUMENTS[order[0]]}
        assert len(best["results"]) == 2
    status, answer = post(encoders, "/v1/score", {"model": "rank", "text_1": QUERY, "text_2": DOCUMENTS})
    assert status == 200
    close([row["score"] for row in answer["data"]], want)


def test_the_list_of_models_says_what_each_is_for(encoders):
    listed = {model.id: model.model_dump() for model in encoders.openai().models.list()}
    assert set(listed) == {"bert", "xlmr", "qwen", "rank", MODEL}
    assert {name: model["endpoints"] for name, model in listed.items() if name != MODEL} == {
        **dict.fromkeys(("bert", "xlmr", "qwen"), ["embeddings"]),
        "rank": ["rerank", "score"],
    }
    assert "chat/completions" in listed[MODEL]["endpoints"]
    assert {name: model["dimensions"] for name, model in listed.items() if "dimensions" in model} == {
        name: len(answers(folder)["out"][0][pooled])
        for name, folder, pooled in [("bert", "bert-embed", "mean_l2"), ("xlmr", "xlmr-embed", "mean_l2"), ("qwen", "qwen3-embed", "last_l2")]
    }
    # So does the server when it starts.
    assert re.search(r"bert \(embeddings, \d+ tokens\)", encoders.said()) and "rank (rerank and score," in encoders.said()


def test_the_chat_command_talks_to_a_model_that_answers(encoders):
    asked = [str(BINARY), "chat", "--url", encoders.url, "--temperature", "0", "--max-tokens", "8", "What is prefill?"]
    env = {name: value for name, value in encoders.env.items() if name != "HEADRACE_BOOTSTRAP_KEY"} | {"HEADRACE_API_KEY": encoders.key}
    answer = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert answer.returncode == 0 and answer.stdout.strip(), answer.stderr


def test_models_of_another_kind_are_refused_by_name(encoders):
    client = encoders.openai()
    for ask in (
        lambda: client.chat.completions.create(model="bert", messages=[{"role": "user", "content": "Hello"}]),
        lambda: client.completions.create(model="rank", prompt="Hello"),
        lambda: client.embeddings.create(model=MODEL, input="Hello"),
        lambda: client.embeddings.create(model="rank", input="Hello"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert refused.value.code == "wrong_kind_of_model"
    status, answer = post(encoders, "/v1/rerank", {"model": "bert", "query": "a", "documents": ["b"]})
    assert (status, answer["error"]["code"]) == (400, "wrong_kind_of_model")


def test_what_is_too_long_is_refused_with_its_number(encoders):
    client = encoders.openai()
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="bert", input=["short", "word " * 500])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    assert "Text 1" in refused.value.message and "128" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="bert", input=["a"] * 2049)
    assert "2048" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="bert", input=[5, 1024])
    assert "1024" in refused.value.message and refused.value.param == "input"


def test_a_call_is_held_for_charged_by_its_input_and_traced(encoders):
    raw = encoders.openai().embeddings.with_raw_response.create(model="bert", input=["Hello", "Hello"])
    tokens = raw.parse().usage.prompt_tokens
    assert tokens == 8
    trace = encoders.get("/v1/requests/" + raw.headers["x-request-id"])
    usage = trace["usage"]
    assert (trace["endpoint"], usage["input_tokens"], usage["output_tokens"]) == ("embeddings", tokens, 0)
    assert {"queue", "prefill", "settle"} <= {stage["stage"] for stage in trace["stages"]}
    assert trace["cost"]["charged_nano_dollars"] > 0


def test_an_upstream_of_openais_dialect_answers_embeddings(encoders, binary, tmp_path):
    configuration = f"""
[server]
metrics_listen = "127.0.0.1:0"

[[upstreams]]
name = "far"
kind = "openai"
url = "{encoders.url}"
price = {{ input = "0.1", output = "0.4" }}

[[models]]
name = "bert"
targets = ["far/bert"]
"""
    front = Server(tmp_path, {"HEADRACE_UPSTREAM_FAR_KEY": encoders.key}, configuration)
    try:
        texts = ["Hello", "The quick server answers every request."]
        near = encoders.openai().embeddings.create(model="bert", input=texts)
        far = front.openai().embeddings.create(model="bert", input=texts)
        assert vectors(far) == vectors(near)
        assert far.usage == near.usage
    finally:
        front.stop()
