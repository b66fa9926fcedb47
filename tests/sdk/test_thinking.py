"""A model that thinks without an end, held to a number of tokens of thought: seen by the official SDKs.

Its weights are chance, so it closes no thought by itself: what is closed was closed by the server.
"""

import json
import shutil

import anthropic
import openai
import pytest

from conftest import ROOT, KEY, Server

THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think> #}"
)
LAST_WORDS = "I have thought enough.\n"
ASK = [{"role": "user", "content": "Why?"}]
ON = {"ignore_eos": True}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    place = tmp_path_factory.mktemp("thinker")
    model = place / "model"
    shutil.copytree(ROOT / "crates/model/tests/data/qwen3", model)
    for name, change in [
        ("tokenizer_config.json", {"chat_template": THINKS}),
        ("config.json", {"max_position_embeddings": 4096}),
    ]:
        path = model / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    named = "\n".join(
        f'[[models]]\nname = "{name}"\npath = {json.dumps(str(model))}\n{more}\n[[prices]]\nmodel = "{name}"\ninput = "1"\noutput = "1"\n'
        for name, more in [
            ("bare", "thinking = { low = 30, high = 60 }"),
            ("polite", f"thinking.last_words = {json.dumps(LAST_WORDS)}"),
        ]
    )
    server = Server(place, configuration=named)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def chat(thinker):
    with openai.OpenAI(base_url=thinker.url + "/v1", api_key=KEY, max_retries=0) as client:
        yield client.chat.completions


def ask(chat, model="bare", **more):
    body = {**ON, **more.pop("extra_body", {})}
    return chat.create(model=model, messages=ASK, max_tokens=150, seed=5, extra_body=body, **more)


def thought(choice):
    return getattr(choice.message, "reasoning_content", None) or ""


def test_a_thought_ends_at_its_budget_and_the_answer_goes_on(chat):
    free = ask(chat)
    assert free.choices[0].message.content in (None, ""), "it thinks without an end"
    for budget in (0, 1, 40, 100):
        held = ask(chat, extra_body={"thinking_token_budget": budget})
        message, usage = held.choices[0].message, held.usage
        # The mark that closes it is a part of it.
        assert usage.completion_tokens_details.reasoning_tokens == budget + 1
        assert usage.completion_tokens == 150 and held.choices[0].finish_reason == "length"
        assert message.content and not message.content.startswith("</think>")
        assert thought(free.choices[0]).startswith(thought(held.choices[0]).rstrip("\ufffd"))


def test_last_words_are_a_part_of_the_thought_and_of_its_budget(chat):
    held = ask(chat, model="polite", extra_body={"thinking_token_budget": 60})
    assert thought(held.choices[0]).rstrip().endswith(LAST_WORDS.rstrip())
    assert held.usage.completion_tokens_details.reasoning_tokens == 60 + 1
    short = ask(chat, model="polite", extra_body={"thinking_token_budget": 2})
    assert LAST_WORDS.rstrip() not in thought(short.choices[0])


def test_an_effort_is_the_number_that_the_configuration_gives_it(chat):
    for effort, budget in [("low", 30), ("high", 60)]:
        held = ask(chat, reasoning_effort=effort)
        assert held.usage.completion_tokens_details.reasoning_tokens == budget + 1
    with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
        ask(chat, reasoning_effort="medium")


def test_streamed_it_is_the_same_and_so_it_is_for_each_of_several_answers(chat):
    whole = ask(chat, n=3, extra_body={"thinking_token_budget": 25})
    thoughts, texts = {}, {}
    for chunk in ask(chat, n=3, stream=True, extra_body={"thinking_token_budget": 25}):
        for choice in chunk.choices:
            more = getattr(choice.delta, "reasoning_content", None) or ""
            thoughts[choice.index] = thoughts.get(choice.index, "") + more
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert len(whole.choices) == 3
    for choice in whole.choices:
        assert thoughts[choice.index] == thought(choice)
        assert texts[choice.index] == choice.message.content
    assert whole.usage.completion_tokens_details.reasoning_tokens == 3 * 26


def test_behind_a_thought_that_was_ended_the_form_begins(chat):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}
    held = ask(chat, response_format=form, extra_body={"thinking_token_budget": 20, "ignore_eos": False})
    assert json.loads(held.choices[0].message.content)["ok"] in (True, False)
    assert held.usage.completion_tokens_details.reasoning_tokens == 21


def test_anthropics_budget(thinker):
    with anthropic.Anthropic(base_url=thinker.url, api_key=KEY, max_retries=0) as client:
        ends = set()
        for seed in range(3):
            with client.messages.stream(
                model="bare",
                max_tokens=1100,
                messages=[{"role": "user", "content": f"Why {seed}?"}],
                thinking={"type": "enabled", "budget_tokens": 1024},
                extra_body={"temperature": 0},
            ) as stream:
                message = stream.get_final_message()
            assert message.content[0].type == "thinking"
            ends.add((len(message.content), message.stop_reason))
        # Some of them think to the end of their budget.
        assert (2, "max_tokens") in ends or (2, "end_turn") in ends, ends
