"""OpenAI's Responses API, as OpenAI's own SDK has it."""

import json
import time

import openai
import pytest
from conftest import CASES, MODEL, Server

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


def test_an_image_is_refused_by_its_place_where_nobody_can_see_it(client):
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=[image])
    # A server behind ours is asked in chat, and names the place there.
    assert refused.value.code in ("unsupported_content", "upstream_refused")
    assert refused.value.param in ("input[0].content[0]", "messages[0].content[0]")


def test_an_item_is_named_and_what_is_too_long_is_cut(client):
    first = client.responses.create(model=MODEL, input="What is prefill?", max_output_tokens=16)
    [item] = first.output
    named = client.responses.create(
        model=MODEL, input=[{"type": "item_reference", "id": item.id}, {"role": "user", "content": "Why?"}], max_output_tokens=4
    )
    sent = client.responses.create(model=MODEL, input=[item.model_dump(exclude_none=True), {"role": "user", "content": "Why?"}], max_output_tokens=4)
    assert named.usage.input_tokens == sent.usage.input_tokens
    turns = [{"role": role, "content": "word " * 200} for _ in range(40) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": "Why?"})
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=turns, max_output_tokens=4)
    assert refused.value.code == "context_length_exceeded"
    cut = client.responses.create(model=MODEL, input=turns, max_output_tokens=4, truncation="auto")
    assert cut.truncation == "auto" and cut.status in ("completed", "incomplete")


@pytest.mark.parametrize(
    "options, param",
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]}, "input"),
        ({"truncation": "some"}, "truncation"),
        ({"input": [{"type": "item_reference", "id": "msg_gone"}]}, "input"),
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


def words(response):
    return (response.output_text, response.usage.input_tokens)


def test_a_stored_response_is_found_and_deleted(client):
    asked = items(case())
    for stream in [False, True]:
        told = events_of(client, asked)[-1].response if stream else ask(client, asked, metadata={"a": "b"})
        found = client.responses.retrieve(told.id)
        assert found.model_dump() == told.model_dump() and found.store is True
        went_in = client.responses.input_items.list(told.id, order="asc")
        assert [item.content[0].text for item in went_in] == [item["content"] for item in asked]
        assert len({item.id for item in went_in}) == len(asked)
        first = client.responses.input_items.list(told.id, limit=1)
        assert first.has_more is (len(asked) > 1) and first.data[0].content[0].text == asked[-1]["content"]
        client.responses.delete(told.id)
        for gone in [client.responses.retrieve, client.responses.delete, client.responses.input_items.list]:
            with pytest.raises(openai.NotFoundError) as missing:
                gone(told.id)
            assert missing.value.code == "response_not_found"


def test_what_is_not_to_be_stored_is_not(client):
    told = ask(client, "Hello", store=False, max_output_tokens=4)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(told.id)
    with pytest.raises(openai.BadRequestError) as missing:
        ask(client, "Go on", previous_response_id=told.id)
    assert missing.value.code == "previous_response_not_found"
    assert missing.value.param == "previous_response_id"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_another_as_if_all_had_been_sent(client, stream):
    def make(input, **options):
        options = {"max_output_tokens": 24, **options}
        return events_of(client, input, **options)[-1].response if stream else ask(client, input, **options)

    first = make("What is a KV cache?", instructions="Be brief.")
    second = make("Why?", previous_response_id=first.id)
    third = make("And then?", previous_response_id=second.id, instructions="Be kind.")
    assert third.previous_response_id == second.id
    sent = [
        {"role": "user", "content": "What is a KV cache?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Why?"},
    ]
    assert words(second) == words(make(sent))
    sent += [{"role": "assistant", "content": second.output_text}, {"role": "user", "content": "And then?"}]
    # Instructions are those of each response alone.
    assert words(third) == words(make(sent, instructions="Be kind."))


def test_tool_calls_are_part_of_what_is_gone_on_from(client):
    asked = case(needs_tools=True)
    tools = [function(tool) for tool in asked["tools"]]
    first = ask(client, items(asked), tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    options = {"tools": tools, "max_output_tokens": 32}
    second = ask(client, [output], previous_response_id=first.id, **options)
    whole = [*items(asked), *[item.model_dump(exclude_unset=True) for item in first.output], output]
    assert words(second) == words(ask(client, whole, **options))


def test_a_conversation_gathers_what_is_said_in_it(client):
    conversation = client.conversations.create(
        metadata={"topic": "caches"}, items=[{"type": "message", "role": "user", "content": "Hello"}]
    )
    assert conversation.id.startswith("conv_") and conversation.metadata == {"topic": "caches"}
    options = {"conversation": conversation.id, "max_output_tokens": 16}
    first = ask(client, "What is a KV cache?", **options)
    assert first.conversation.id == conversation.id
    second = ask(client, "Why?", **options)
    said = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    texts = [item.content[0].text for item in said]
    assert texts == ["Hello", "What is a KV cache?", first.output_text, "Why?", second.output_text]
    sent = [{"role": item.role, "content": item.content[0].text} for item in said[:-1]]
    assert words(second) == words(ask(client, sent, max_output_tokens=16))
    changed = client.conversations.update(conversation.id, metadata={"topic": "more"})
    assert changed.metadata == {"topic": "more"} == client.conversations.retrieve(conversation.id).metadata
    added = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "One more"}]
    )
    (item,) = added.data
    assert client.conversations.items.retrieve(item.id, conversation_id=conversation.id).content[0].text == "One more"
    client.conversations.items.delete(item.id, conversation_id=conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(item.id, conversation_id=conversation.id)
    assert client.conversations.delete(conversation.id).deleted is True
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, "Still there?", **options)
    assert missing.value.code == "conversation_not_found"


def wait_for(client, response):
    deadline = time.monotonic() + 60
    while response.status in ["queued", "in_progress"]:
        assert time.monotonic() < deadline, response
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    return response


def test_a_response_in_the_background_is_worked_on_while_nobody_waits(client):
    asked = items(case())
    begun = ask(client, asked, background=True)
    assert begun.status == "queued" and begun.background is True and begun.output == []
    ended = wait_for(client, begun)
    assert (ended.status, ended.output_text) == ("completed", case()["text"])
    # What has ended stays as it is.
    assert client.responses.cancel(begun.id).status == "completed"
    after = ask(client, "Why?", previous_response_id=begun.id, max_output_tokens=4)
    assert after.usage.input_tokens > ended.usage.input_tokens


def test_a_background_stream_is_taken_up_where_it_was_left(client):
    asked = items(case())
    first = []
    with ask(client, asked, background=True, stream=True) as stream:
        for event in stream:
            first.append(event)
            if event.sequence_number == 5:
                break
    id = first[0].response.id
    with client.responses.retrieve(id, stream=True, starting_after=5) as stream:
        rest = list(stream)
    events = first + rest
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert rest[-1].type == "response.completed" and rest[-1].response.output_text == case()["text"]
    ended = wait_for(client, client.responses.retrieve(id))
    with client.responses.retrieve(id, stream=True) as stream:
        assert [event.model_dump() for event in stream] == [event.model_dump() for event in events]
    assert ended.output_text == case()["text"]
    told = ask(client, "Hello", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(told.id, stream=True)
    assert refused.value.code == "response_not_streamed"


def test_a_response_in_the_background_is_cancelled_by_its_id(client):
    options = {"max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}
    begun = ask(client, "Hello", background=True, **options)
    cancelled = client.responses.cancel(begun.id)
    assert cancelled.status == "cancelled" and client.responses.retrieve(begun.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        ask(client, "Go on", previous_response_id=ask(client, "Hi", store=False, max_output_tokens=1).id)
    told = ask(client, "Hello", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.cancel(told.id)
    assert refused.value.code == "response_not_in_background"


def test_what_is_stored_outlives_the_server_and_is_nobody_elses(start_server):
    server = start_server()
    with server.openai() as client:
        told = ask(client, "What is a KV cache?", max_output_tokens=8)
        conversation = client.conversations.create()
    made = server.run("projects", "create", "other")
    assert made.returncode == 0, made.stderr
    key = server.run("keys", "create", "--project", "other", "--name", "other")
    assert key.returncode == 0, key.stderr
    secret = next(word for word in key.stdout.split() if word.startswith("sk-"))
    with server.openai(api_key=secret) as other:
        for look in [
            lambda: other.responses.retrieve(told.id),
            lambda: other.responses.delete(told.id),
            lambda: other.conversations.retrieve(conversation.id),
        ]:
            with pytest.raises(openai.NotFoundError):
                look()
    server.stop()
    again = Server(server.directory)
    try:
        with again.openai() as client:
            assert client.responses.retrieve(told.id).output_text == told.output_text
            assert client.conversations.retrieve(conversation.id).id == conversation.id
    finally:
        again.stop()


@pytest.mark.direct("behind another server tokens are estimated")
def test_tokens_are_counted_as_they_are_charged(client):
    asked = items(case(needs_tools=True))
    options = {"tools": [function(tool) for tool in case(needs_tools=True)["tools"]], "instructions": "Be brief."}
    told = ask(client, asked, max_output_tokens=1, **options)
    counted = client.responses.input_tokens.count(model=MODEL, input=asked, **options)
    assert counted.input_tokens == told.usage.input_tokens
    counted = client.responses.input_tokens.count(model=MODEL, input="Why?", previous_response_id=told.id)
    assert counted.input_tokens == ask(client, "Why?", previous_response_id=told.id, max_output_tokens=1).usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="none", input="Hello")


def test_what_was_compacted_stands_for_what_was_said(client):
    said = items(case())
    short = client.responses.compact(model=MODEL, input=said)
    (item,) = short.output
    assert (short.object, item.type) == ("response.compaction", "compaction") and short.usage.output_tokens > 0
    response = ask(client, [item.model_dump(exclude_unset=True), {"role": "user", "content": "Go on."}], max_output_tokens=4)
    assert response.status in ["completed", "incomplete"]
    with pytest.raises(openai.BadRequestError):
        client.responses.compact(model=MODEL, input=[{"type": "compaction", "encrypted_content": "gAAA"}])


def test_the_sdks_own_stream_gathers_the_answer(client):
    asked = items(case())
    with client.responses.stream(model=MODEL, input=asked, temperature=0, max_output_tokens=256) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == case()["text"]


def test_an_answer_is_held_to_a_schema(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "count": {"type": "integer", "maximum": 99}},
        "required": ["name", "count"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "thing", "strict": True, "schema": schema}
    for stream in [False, True]:
        asked = {"text": {"format": form}, "max_output_tokens": 200}
        response = events_of(client, "Name a thing.", **asked)[-1].response if stream else ask(client, "Name a thing.", **asked)
        told = json.loads(response.output_text)
        assert list(told) == ["name", "count"] and isinstance(told["count"], int), told
        assert response.text.format.name == "thing" and response.text.format.strict is True


def turn(connection, **options):
    """The events of a turn over a WebSocket."""
    connection.response.create(model=MODEL, max_output_tokens=12, temperature=0, **options)
    events = []
    while not events or events[-1].type not in ("response.completed", "response.incomplete", "error"):
        events.append(connection.recv())
    return events


def test_turns_over_a_websocket_are_told_as_streams_are(client):
    with client.responses.connect() as connection:
        told = turn(connection, input="What is a KV cache?")
        streamed = list(client.responses.create(
            model=MODEL, input="What is a KV cache?", max_output_tokens=12, temperature=0, stream=True
        ))
        assert [event.type for event in told] == [event.type for event in streamed]
        assert [event.sequence_number for event in told] == list(range(len(told)))
        first = told[-1].response
        assert words(first) == words(streamed[-1].response)
        assert client.responses.retrieve(first.id).id == first.id
        second = turn(connection, input="Why?", previous_response_id=first.id)[-1].response
        again = client.responses.create(
            model=MODEL, input="Why?", previous_response_id=first.id, max_output_tokens=12, temperature=0
        )
        assert words(second) == words(again) and second.usage.input_tokens == again.usage.input_tokens
        [refused] = turn(connection, input="Why?", previous_response_id="resp_none")
        assert (refused.type, refused.status, refused.error.code) == ("error", 400, "previous_response_not_found")
        assert turn(connection, input="And so?")[-1].type in ("response.completed", "response.incomplete")


def test_a_turn_that_is_not_stored_is_gone_on_from_over_its_websocket(client):
    with client.responses.connect() as connection:
        first = turn(connection, input="What is a KV cache?", store=False)[-1].response
        second = turn(connection, input="Why?", store=False, previous_response_id=first.id)[-1].response
        said = [{"role": "user", "content": "What is a KV cache?"}, {"role": "assistant", "content": first.output_text}]
        whole = client.responses.create(
            model=MODEL, input=[*said, {"role": "user", "content": "Why?"}], store=False, max_output_tokens=12, temperature=0
        )
        assert words(second) == words(whole) and second.usage.input_tokens == whole.usage.input_tokens
        with client.responses.connect() as other:
            [refused] = turn(other, input="Why?", previous_response_id=second.id)
        assert (refused.type, refused.error.code) == ("error", "previous_response_not_found")


@pytest.mark.direct("behind another server no place of a change is known")
def test_a_response_is_told_what_it_changed(client):
    def ask(instructions, **options):
        return client.responses.create(
            model=MODEL, instructions=instructions, input="Hi.", max_output_tokens=1, prompt_cache_options=options
        )

    long = "You are a patient helper who answers in one word, whatever is asked, and who never says more. " * 2
    first = ask(long, mode="implicit")
    assert first.prompt_cache_options.ttl == "30m" and first.prompt_cache_diagnostics is None
    hit = ask(long, comparison_response_id=first.id)
    assert hit.prompt_cache_diagnostics.type == "cache_hit" and hit.usage.input_tokens_details.cached_tokens > 0
    miss = ask(long.replace("patient", "pacific"), comparison_response_id=first.id).prompt_cache_diagnostics
    assert (miss.type, miss.reason, miss.place) == ("cache_miss", "input_changed", {"in": "system", "character": 12})
