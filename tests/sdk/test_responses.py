"""OpenAI's Responses API, as OpenAI's own SDK has it."""

import json

import openai
import pytest
from conftest import CASES, MODEL, say

pytestmark = pytest.mark.direct("the demo model's words and counts are looked at")


def case(needs_tools=False):
    return next(case for case in CASES if bool(case["tools"]) == needs_tools and case["ended"])


def items(conversation):
    return [{"role": message["role"], "content": message["content"]} for message in conversation["messages"]]


def ask(client, input, **options):
    options = {"model": MODEL, "temperature": 0, "max_output_tokens": 256, **options}
    return client.responses.create(input=input, **options)


def test_whole_answer_is_what_transformers_computed(client):
    asked = case()
    response = ask(client, items(asked))
    assert response.output_text == asked["text"]
    assert response.status == "completed" and response.error is None and response.incomplete_details is None
    assert response.id.startswith("resp_") and response.object == "response"
    assert response.model == MODEL and response.completed_at >= response.created_at
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens > 0


def test_a_text_alone_and_instructions_are_a_conversation(client):
    asked = "What happens when I call an LLM API?"
    chat = client.chat.completions.create(
        model=MODEL,
        temperature=0,
        max_tokens=64,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked}],
    )
    response = ask(client, asked, instructions="Be brief.", max_output_tokens=64)
    assert response.output_text == chat.choices[0].message.content
    assert response.instructions == "Be brief."
    assert response.usage.input_tokens == chat.usage.prompt_tokens


def test_every_parameter_is_repeated(client):
    tool = {
        "type": "function",
        "name": "f",
        "description": None,
        "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}},
        "strict": None,
    }
    asked = {
        "max_output_tokens": 8,
        "metadata": {"topic": "demo"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "tools": [tool],
        "tool_choice": "none",
        "top_p": 0.5,
        "store": False,
        "max_tool_calls": 3,
    }
    told = ask(client, "Hello", **asked).model_dump(exclude_unset=True)
    for key, value in asked.items():
        assert told[key] == value, key
    assert list(told["tools"][0]["parameters"]["properties"]) == ["z", "a"]
    assert told["temperature"] == 0 and told["truncation"] == "disabled" and told["parallel_tool_calls"] is True
    assert told["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert told["reasoning"]["effort"] is None and told["background"] is False
    with_nothing = client.responses.with_raw_response.create(model=MODEL, input="Hello", max_output_tokens=1, store=False)
    told = json.loads(with_nothing.text)
    for key in ["temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"]:
        assert isinstance(told[key], (int, float)), key
    for key in [
        "completed_at",
        "incomplete_details",
        "previous_response_id",
        "instructions",
        "error",
        "reasoning",
        "max_tool_calls",
        "usage",
        "safety_identifier",
        "prompt_cache_key",
    ]:
        assert key in told, key


def events_of(client, input, **options):
    with ask(client, input, stream=True, **options) as stream:
        return list(stream)


def test_a_stream_adds_fills_and_ends_each_item_under_one_id(client):
    asked = case()
    events = events_of(client, items(asked))
    names = [event.type for event in events]
    assert names[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert names[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(names[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (item,) = events[-1].response.output
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert ids == {item.id} == {event.item.id for event in events if hasattr(event, "item")}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == asked["text"] == events[-1].response.output_text
    responses = [event.response for event in events if hasattr(event, "response")]
    assert {response.id for response in responses} == {responses[0].id}
    assert [response.status for response in responses] == ["in_progress", "in_progress", "completed"]
    assert responses[-1].usage.output_tokens > 0 and responses[0].usage is None


def test_streamed_equals_whole(client):
    asked = items(case())
    whole = ask(client, asked)
    streamed = events_of(client, asked)[-1].response
    same = ["status", "model", "output_text", "tools", "text", "metadata", "instructions"]
    assert [getattr(whole, name) for name in same] == [getattr(streamed, name) for name in same]
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def test_the_event_and_its_type_are_one_name_and_the_end_is_told(client):
    with client.responses.with_streaming_response.create(
        model=MODEL, input="Hello", max_output_tokens=4, stream=True
    ) as response:
        blocks = [block for block in response.read().decode().split("\n\n") if block and not block.startswith(":")]
    assert blocks.pop() == "data: [DONE]"
    for block in blocks:
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_an_answer_cut_by_its_bound_is_incomplete(client):
    for stream in [False, True]:
        asked = {"max_output_tokens": 3}
        response = events_of(client, "Hello", **asked)[-1] if stream else None
        if stream:
            assert response.type == "response.incomplete"
            response = response.response
        else:
            response = ask(client, "What happens when I call an LLM API?", **asked)
        assert response.status == "incomplete" and response.completed_at is None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[-1].status == "incomplete"


def function(tool):
    return {"type": "function", **tool["function"]}


def test_tools_are_called_and_their_outputs_answered(client, weather_tool):
    asked = case(needs_tools=True)
    tools = [function(tool) for tool in asked["tools"]]
    first = ask(client, items(asked), tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.status == "completed" and call.call_id and json.loads(call.arguments) is not None
    events = events_of(client, items(asked), tools=tools)
    (added,) = [e for e in events if e.type == "response.output_item.added" and e.item.type == "function_call"]
    assert added.item.arguments == "" and added.item.status == "in_progress"
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert deltas == done.arguments == call.arguments and done.item_id == added.item.id
    chat = [
        *asked["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "21 degrees"},
    ]
    as_chat = client.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=64, messages=chat, tools=asked["tools"]
    )
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    second = ask(client, [*items(asked), call, output], tools=tools, max_output_tokens=64)
    assert second.output_text == (as_chat.choices[0].message.content or "")
    assert second.usage.input_tokens == as_chat.usage.prompt_tokens


@pytest.mark.parametrize(
    "options, param",
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]}, "input[0].content[0]"),
        ({"truncation": "auto"}, "truncation"),
        ({"tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
        ({"background": True, "store": False}, "background"),
        ({"extra_body": {"no_such": 1}}, "no_such"),
        ({"extra_body": {"max_tokens": 1}}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_not_there_is_refused_by_name(client, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{"model": MODEL, "input": "Hello", **options})
    assert refused.value.param == param, refused.value


def test_tools_of_others_are_left_out_and_told(client):
    response = ask(client, "Hello", tools=[{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": []}])
    assert response.tools == [] and response.model_extra["skipped_tools"] == ["web_search", "namespace"]


def test_a_model_that_does_not_exist(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="none", input="Hello")


def test_an_answer_is_traced(server, client):
    response = ask(client, "Hello", max_output_tokens=2)
    trace = server.get(f"/v1/requests/{response.id}")
    assert trace["endpoint"] == "responses"
