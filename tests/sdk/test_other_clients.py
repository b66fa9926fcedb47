"""Clients that are not made for the SDKs' newest versions, in an environment of their own: instructor and LiteLLM, which bring older ones of
both official SDKs. The same places as the other clients.
"""

import json
import os

import pydantic
import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
instructor = pytest.importorskip("instructor", reason="it is in an environment of its own")
litellm = pytest.importorskip("litellm")

import anthropic  # noqa: E402
import openai  # noqa: E402

from conftest import KEY, say  # noqa: E402
from places import LIMIT, QUESTION, RESULT, WEATHER  # noqa: E402

DIALECTS = ["openai", "anthropic"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather for a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(params=DIALECTS)
def complete(request, place):
    """`litellm.completion` at the place, in the dialect."""
    base = place.openai + "/v1" if request.param == "openai" else place.anthropic

    def ask(messages, **options):
        options = {"temperature": 0, "max_tokens": LIMIT, "max_retries": 0, **options}
        model = f"{request.param}/{place.model}"
        return litellm.completion(model=model, api_base=base, api_key=KEY, messages=messages, **options)

    return ask


def test_litellm_chats(complete, place):
    answer = complete(say(QUESTION))
    assert place.heard(answer.choices[0].message.content)
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0


def test_litellm_streams(complete, place):
    chunks = list(complete(say(QUESTION), stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert place.heard(text) and len(chunks) > 3
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_litellm_calls_a_tool(complete, place, stream):
    def ask(messages):
        if not stream:
            return complete(messages, tools=TOOLS).choices[0]
        chunks = list(complete(messages, tools=TOOLS, stream=True))
        return litellm.stream_chunk_builder(chunks, messages=messages).choices[0]

    messages = say(WEATHER)
    asked = ask(messages)
    assert asked.finish_reason == "tool_calls"
    [call] = asked.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Lisbon"})
    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps(RESULT)}
    answer = ask([*messages, asked.message.model_dump(), result])
    assert place.told in answer.message.content


def test_litellm_names_errors_as_it_does_anybodys(complete, place):
    with pytest.raises(litellm.BadRequestError):
        complete([], tools=TOOLS)


class City(pydantic.BaseModel):
    """Bounded, so that whatever model fills it in comes to an end."""

    name: str = pydantic.Field(pattern="^[A-Za-z]{1,12}$")
    inhabitants: int = pydantic.Field(ge=0, le=1_000_000)


MODES = {"openai": ["TOOLS", "JSON_SCHEMA"], "anthropic": ["TOOLS"]}


def instructed(place, dialect, mode):
    mode = getattr(instructor.Mode, mode)
    if dialect == "openai":
        return instructor.from_openai(openai.OpenAI(base_url=place.openai + "/v1", api_key=KEY, max_retries=0), mode=mode)
    client = anthropic.Anthropic(base_url=place.anthropic, api_key=KEY, max_retries=0)
    return instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS)


@pytest.mark.parametrize(("dialect", "mode"), [(dialect, mode) for dialect in DIALECTS for mode in MODES[dialect]])
def test_instructor_gets_a_structure(place, dialect, mode):
    client = instructed(place, dialect, mode)
    options = {"model": place.model, "messages": say("Which city?"), "max_tokens": LIMIT, "max_retries": 0, "temperature": 0}
    city = client.chat.completions.create(response_model=City, **options)
    assert isinstance(city, City)
    # As it comes, too. It is asked for under another name then, so a model may fill it in otherwise.
    *_, last = client.chat.completions.create_partial(response_model=City, **options)
    assert City.model_validate(last.model_dump())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_instructor_lets_text_through(place, dialect):
    client = instructed(place, dialect, "TOOLS")
    options = {"model": place.model, "messages": say(QUESTION), "max_tokens": LIMIT}
    if dialect == "openai":
        answer = client.chat.completions.create(response_model=None, temperature=0, **options)
        assert place.heard(answer.choices[0].message.content)
    else:
        answer = client.chat.completions.create(response_model=None, **options, extra_body={"temperature": 0})
        assert place.heard(answer.content[0].text)
