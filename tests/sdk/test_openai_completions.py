"""OpenAI's SDK: models and completions."""

import pytest

from conftest import CASES, MODEL

PROMPT = "The KV cache is"


def complete(client, prompt=PROMPT, **options):
    return client.completions.create(
        model=MODEL, prompt=prompt, **{"max_tokens": 8, "temperature": 0, **options}
    )


def streamed(client, prompt=PROMPT, **options):
    texts = {}
    chunks = list(complete(client, prompt, stream=True, **options))
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts, chunks


def test_models(client):
    models = client.models.list().data
    assert MODEL in [model.id for model in models]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.object) == (MODEL, "model")
    assert model.context_window == 2048
    assert model.created > 0 and model.owned_by


def test_text(client):
    whole = complete(client)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    assert whole.choices[0].text and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 8
    texts, chunks = streamed(client)
    assert texts == {0: whole.choices[0].text}
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    seeded = {"temperature": 1.0, "seed": 99}
    assert streamed(client, **seeded)[0] == {0: complete(client, **seeded).choices[0].text}


def test_ids_of_transformers_give_its_answer(client):
    for case in CASES[:8]:
        count = len(case["greedy"])
        answer = complete(client, case["ids"], max_tokens=count, extra_body={"return_token_ids": True})
        assert answer.choices[0].token_ids == case["greedy"]
        assert answer.choices[0].prompt_token_ids == case["ids"]
        assert answer.choices[0].text == case["text"]
        assert answer.choices[0].finish_reason == ("stop" if case["ended"] else "length")


def test_lists_of_prompts(client):
    texts = ["Prefill is", "Decode is", "A token is"]
    together = complete(client, texts)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    alone = [complete(client, text) for text in texts]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    ids = [
        complete(client, text, extra_body={"return_token_ids": True}).choices[0].prompt_token_ids
        for text in texts
    ]
    assert [choice.text for choice in complete(client, ids).choices] == [
        choice.text for choice in together.choices
    ]
    assert streamed(client, texts)[0] == {choice.index: choice.text for choice in together.choices}


def test_several_choices_of_several_prompts(client):
    options = {"n": 2, "temperature": 1.0, "seed": 3}
    answer = complete(client, ["Prefill is", "Decode is"], **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    first = complete(client, "Prefill is", **options)
    assert [choice.text for choice in first.choices] == [choice.text for choice in answer.choices[:2]]
    assert streamed(client, ["Prefill is", "Decode is"], **options)[0] == {
        choice.index: choice.text for choice in answer.choices
    }


def test_echo(client):
    plain = complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == PROMPT + plain
    assert streamed(client, echo=True)[0] == {0: PROMPT + plain}
    scored = complete(client, echo=True, max_tokens=0, logprobs=2)
    assert scored.choices[0].text == PROMPT
    assert scored.usage.completion_tokens == 0


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs(client, echo):
    whole = complete(client, logprobs=3, echo=echo)
    logprobs, text = whole.choices[0].logprobs, whole.choices[0].text
    count = whole.usage.completion_tokens + (whole.usage.prompt_tokens if echo else 0)
    for field in (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset):
        assert len(field) == count
    if echo:
        assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert "".join(logprobs.tokens) == text
    for token, logprob, top, offset in list(
        zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    )[echo:]:
        assert text[offset:].startswith(token)
        assert logprob <= 0 and top[token] == logprob
        assert 3 <= len(top) <= 4
    _, chunks = streamed(client, logprobs=3, echo=echo)
    pieces = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for piece in pieces for item in getattr(piece, field)] == getattr(logprobs, field)


def test_prompt_logprobs_do_not_depend_on_the_cache(client):
    scores = [
        complete(
            client,
            "A long enough prompt to fill whole blocks of the cache, twice over if need be, and more.",
            echo=True,
            max_tokens=1,
            logprobs=0,
        )
        .choices[0]
        .logprobs.token_logprobs
        for _ in range(3)
    ]
    assert scores[0] == scores[1] == scores[2]


def test_stop_and_stop_token_ids(client):
    whole = complete(client, extra_body={"return_token_ids": True}).choices[0]
    stopped = complete(client, extra_body={"return_token_ids": True, "stop_token_ids": [whole.token_ids[3]]})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens <= 4
    assert whole.text.startswith(stopped.choices[0].text)
    word = whole.text.split()[-1]
    assert complete(client, stop=word).choices[0].text == whole.text[: whole.text.index(word)]


def test_penalties_and_filters_are_honoured(client):
    base = complete(client, "one one one one one one", max_tokens=16, temperature=1.0, seed=5).choices[0].text
    for options in (
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"extra_body": {"repetition_penalty": 1.9}},
        {"extra_body": {"top_k": 1}},
        {"extra_body": {"min_p": 1.0}},
        {"top_p": 1e-6},
    ):
        assert (
            complete(client, "one one one one one one", max_tokens=16, temperature=1.0, seed=5, **options)
            .choices[0]
            .text
            is not None
        )
    greedy = complete(client, max_tokens=16).choices[0].text
    for options in ({"extra_body": {"top_k": 1}}, {"top_p": 1e-6}, {"extra_body": {"min_p": 1.0}}):
        assert complete(client, max_tokens=16, temperature=1.0, seed=5, **options).choices[0].text == greedy
    assert (
        base
        == complete(client, "one one one one one one", max_tokens=16, temperature=1.0, seed=5).choices[0].text
    )
