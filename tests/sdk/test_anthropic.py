"""Anthropic's SDK: messages, streamed and not."""

import json
import urllib.request

import anthropic
import pytest

from conftest import CASES, MODEL, say

QUESTION = "What is prefill?"


def options_of(text=QUESTION, temperature=0, extra_body=None, **options):
    """A request. The SDK of today has no `temperature` any more; the API does."""
    extra = {"temperature": temperature, **(extra_body or {})}
    return {"model": MODEL, "messages": say(text), "max_tokens": 64, "extra_body": extra, **options}


def send(claude, text=QUESTION, **options):
    return claude.messages.create(**options_of(text, **options))


def tools(case_tools):
    functions = [tool["function"] for tool in case_tools]
    return [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in functions
    ]


def test_models(claude):
    assert MODEL in [model.id for model in claude.models.list()]
    model = claude.models.retrieve(MODEL)
    assert (model.id, model.type) == (MODEL, "model")


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not case["tools"]],
    ids=lambda case: case["messages"][-1]["content"][:30],
)
def test_greedy_answers_are_those_of_transformers(claude, case):
    system = [m["content"] for m in case["messages"] if m["role"] == "system"]
    messages = [m for m in case["messages"] if m["role"] != "system"]
    answer = send(
        claude, messages=messages, max_tokens=len(case["greedy"]), system=system[0] if system else ""
    )
    assert [block.text for block in answer.content] == [case["text"]]
    assert answer.stop_reason == ("end_turn" if case["ended"] else "max_tokens")


def test_shape_of_a_whole_answer(claude):
    answer = send(claude)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert answer.id.startswith("msg_")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == len(
        CASES[1]["ids"]
    )
    assert usage.output_tokens == len(CASES[1]["greedy"])


def test_the_request_id_is_where_the_sdk_looks_for_it(claude):
    # Anthropic's header is `request-id`, without the `x-`.
    assert send(claude, max_tokens=2)._request_id.startswith("req_")
    with pytest.raises(anthropic.BadRequestError) as raised:
        send(claude, max_tokens=-1)
    assert raised.value.request_id == raised.value.body["request_id"]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "extra_body": {"seed": 5}}], ids=["greedy", "seeded"]
)
def test_streamed_and_whole_are_the_same(claude, options):
    whole = send(claude, **options)
    with claude.messages.stream(**options_of(**options)) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_events_come_in_order_and_number(claude):
    events = list(send(claude, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    for kind in (
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ):
        assert kinds.count(kind) == 1, kinds
    assert 3 < kinds.count("content_block_delta") <= len(CASES[1]["greedy"])
    assert kinds.index("content_block_start") < kinds.index("content_block_delta")
    start = events[0].message
    assert start.stop_reason is None and start.content == []
    assert start.usage.input_tokens + start.usage.cache_read_input_tokens == len(CASES[1]["ids"])
    delta = events[-2]
    assert delta.delta.stop_reason == "end_turn"
    assert delta.usage.output_tokens == len(CASES[1]["greedy"])


def test_stop_sequences(claude):
    full = send(claude).content[0].text
    answer = send(claude, stop_sequences=["cache"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "cache")
    assert answer.content[0].text == full[: full.index("cache")]
    last = [
        event
        for event in send(claude, stop_sequences=["cache"], stream=True)
        if event.type == "message_delta"
    ][0]
    assert (last.delta.stop_reason, last.delta.stop_sequence) == ("stop_sequence", "cache")


def test_both_dialects_say_the_same(claude, client):
    blocks = [{"type": "text", "text": "Be brief."}]
    ours = send(
        claude, system=blocks, messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    )
    theirs = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, *say(QUESTION)],
        max_tokens=64,
        temperature=0,
    )
    assert ours.content[0].text == theirs.choices[0].message.content


def test_cached_tokens_grow_on_a_repeat(claude):
    text = "Explain all of these words to me, please: " + " ".join(f"claude{number}" for number in range(30))
    first, second = (send(claude, text, max_tokens=4).usage for _ in range(2))
    assert second.cache_read_input_tokens > first.cache_read_input_tokens
    assert (
        first.input_tokens + first.cache_read_input_tokens
        == second.input_tokens + second.cache_read_input_tokens
    )


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["tools"]], ids=lambda case: case["messages"][-1]["content"][:30]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tool_use(claude, case, stream):
    options = options_of(messages=case["messages"], tools=tools(case["tools"]))
    expected = json.loads(case["text"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
    if stream:
        with claude.messages.stream(**options) as streamed:
            answer = streamed.get_final_message()
    else:
        answer = claude.messages.create(**options)
    (block,) = answer.content
    assert (block.type, block.name, block.input) == ("tool_use", expected["name"], expected["arguments"])
    assert block.id and answer.stop_reason == "tool_use"


def test_a_tool_round_trip(claude, weather_tool):
    question = say("What is the weather in Lisbon?")
    asked = send(claude, messages=question, tools=tools([weather_tool]))
    result = {
        "type": "tool_result",
        "tool_use_id": asked.content[0].id,
        "content": '{"temperature": 21, "unit": "celsius", "condition": "sunny"}',
    }
    messages = [
        *question,
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [result]},
    ]
    answer = send(claude, messages=messages, tools=tools([weather_tool]))
    assert answer.stop_reason == "end_turn"
    assert "21" in answer.content[0].text


BAD = [
    ({"temperature": 2}, "temperature"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}]}
            ]
        },
        "messages[0].content[0]",
    ),
    ({"messages": [*say("x"), {"role": "assistant", "content": "y "}]}, "messages[1].content"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"extra_body": {"tempreature": 1}}, "tempreature"),
]


@pytest.mark.parametrize(("options", "param"), BAD, ids=[str(row[0])[:50] for row in BAD])
def test_a_bad_parameter_is_named(claude, options, param):
    with pytest.raises(anthropic.BadRequestError) as raised:
        send(claude, **options)
    error = raised.value
    assert error.status_code == 400
    assert error.body["type"] == "error"
    assert error.body["error"]["type"] == "invalid_request_error"
    assert error.body["error"]["param"] == param
    assert error.body["request_id"].startswith("req_")


def test_typed_errors(claude, server):
    with pytest.raises(anthropic.NotFoundError) as raised:
        send(claude, model="claude-17")
    assert raised.value.body["error"]["type"] == "not_found_error"
    with (
        server.anthropic(api_key="sk-wrong") as stranger,
        pytest.raises(anthropic.AuthenticationError) as raised,
    ):
        send(stranger)
    assert raised.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.BadRequestError) as raised:
        send(claude, "word " * 5000)
    assert raised.value.body["error"]["code"] == "context_length_exceeded"


def test_a_bearer_token_is_a_key_too(server):
    with anthropic.Anthropic(
        base_url=server.url, auth_token=server.key, api_key=None, max_retries=0
    ) as claude:
        assert send(claude, max_tokens=2).content


def test_a_count_is_that_of_the_call(claude, weather_tool):
    options = {
        "messages": [*say("What is the weather in Lisbon?"), {"role": "system", "content": "Be brief."}],
        "tools": tools([weather_tool]),
        "system": "You help.",
    }
    counted = claude.messages.count_tokens(model=MODEL, **options)
    usage = send(claude, **options, max_tokens=2).usage
    charged = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    if (told := getattr(counted, "headrace", None)) is not None:
        # Somebody else has the tokenizer.
        assert told == {"estimated": True}
        assert charged / 3 < counted.input_tokens < charged * 3
    else:
        assert counted.input_tokens == charged
    counted = claude.beta.messages.count_tokens(model=MODEL, betas=["token-counting-2024-11-01"], **options)
    assert counted.input_tokens > 0


def test_a_prompt_is_read_ahead(claude):
    text = "Is a prompt that was read ahead of its call, with no answer to it, in the cache when the call comes?"
    warmed = send(claude, text, max_tokens=0)
    assert (warmed.content, warmed.stop_reason, warmed.usage.output_tokens) == ([], "max_tokens", 0)
    assert warmed.usage.cache_read_input_tokens == 0
    assert send(claude, text, max_tokens=2).usage.cache_read_input_tokens > 0


def test_an_answer_goes_on_where_it_was_begun(claude):
    whole = send(claude).content[0].text
    # Between two words, where the beginning has the tokens that the model itself wrote.
    head = " ".join(whole.split(" ")[:3])
    tail = whole[len(head) :]
    begun = [*say(QUESTION), {"role": "assistant", "content": head}]
    assert send(claude, messages=begun).content[0].text == tail
    with claude.messages.stream(**options_of(messages=begun)) as stream:
        assert stream.get_final_text() == tail


def test_what_agents_of_today_send_is_taken(claude):
    answer = claude.beta.messages.create(
        model=MODEL,
        max_tokens=32,
        betas=["context-management-2025-06-27", "no-such-beta-2031-01-01"],
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        diagnostics={"previous_message_id": None},
        cache_control={"type": "ephemeral"},
        metadata={"user_id": "u"},
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=0;"},
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        messages=[*say("Hello!"), {"role": "system", "content": "Be brief."}],
    )
    assert answer.content[0].text
    assert answer.diagnostics.cache_miss_reason is None, "there is nothing to compare it with"


def test_models_have_a_life_and_pages(claude):
    model = claude.models.retrieve(MODEL)
    assert (model.lifecycle, model.retires_at, model.deprecated_at) == ("active", None, None)
    assert model.max_input_tokens == model.max_tokens > 0
    page = claude.models.list(limit=1)
    assert len(page.data) == 1 and page.last_id == page.data[0].id
    assert list(claude.models.list(limit=1000, after_id=sorted(m.id for m in page)[-1])) == []
    with pytest.raises(anthropic.BadRequestError) as raised:
        claude.models.list(limit=0)
    assert raised.value.body["error"]["param"] == "limit"


def test_somebody_is_at_home(server):
    request = urllib.request.Request(server.url + "/", method="HEAD")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
