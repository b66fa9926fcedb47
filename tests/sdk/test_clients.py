"""Frameworks that people call models with, in the hands of a program that knows no Headrace: LangChain, Pydantic AI, `llm`, each with a chat, a
stream and a tool's round trip. In front of the demo model, directly and through another Headrace, and of a scripted server, whose answers
are asked for in both dialects.
"""

import asyncio
import json
import os
import subprocess
import sys

import pydantic
import pytest

from conftest import KEY
from places import LIMIT, QUESTION, RESULT, WEATHER, weather

langchain_openai = pytest.importorskip("langchain_openai")
langchain_anthropic = pytest.importorskip("langchain_anthropic")
pydantic_ai = pytest.importorskip("pydantic_ai")
pytest.importorskip("llm")

from langchain_core.messages import HumanMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402



@pytest.fixture(params=["openai", "anthropic"])
def langchain(request, place):
    options = {"api_key": KEY, "temperature": 0, "max_tokens": LIMIT, "max_retries": 0}
    if request.param == "openai":
        url = place.openai + "/v1"
        return langchain_openai.ChatOpenAI(model=place.model, base_url=url, stream_usage=True, **options)
    return langchain_anthropic.ChatAnthropic(model=place.model, base_url=place.anthropic, **options)


def test_langchain_chats(langchain, place):
    answer = langchain.invoke(QUESTION)
    assert place.heard(answer.text)
    assert answer.usage_metadata["input_tokens"] > 0 and answer.usage_metadata["output_tokens"] > 0


def test_langchain_streams(langchain, place):
    pieces = list(langchain.stream(QUESTION))
    assert place.heard("".join(piece.text for piece in pieces))
    assert len(pieces) > 3
    usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert sum(part["output_tokens"] for part in usage) > 0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_langchain_calls_a_tool(langchain, place, streamed):
    offered = tool("get_weather")(weather)
    model = langchain.bind_tools([offered])
    turns = [HumanMessage(WEATHER)]

    def ask():
        if not streamed:
            return model.invoke(turns)
        whole = None
        for piece in model.stream(turns):
            whole = piece if whole is None else whole + piece
        return whole

    asked = ask()
    [call] = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Lisbon"})
    turns += [asked, offered.invoke(call)]
    answer = ask()
    assert not answer.tool_calls
    assert place.told in answer.text


@pytest.fixture(params=["openai", "anthropic"])
def pydantic_model(request, place):
    if request.param == "openai":
        return OpenAIChatModel(place.model, provider=OpenAIProvider(base_url=place.openai + "/v1", api_key=KEY))
    return AnthropicModel(place.model, provider=AnthropicProvider(base_url=place.anthropic, api_key=KEY))


def agent(model, **options):
    return pydantic_ai.Agent(model, model_settings={"temperature": 0, "max_tokens": LIMIT}, retries=0, **options)


def test_pydantic_ai_chats(pydantic_model, place):
    result = agent(pydantic_model).run_sync(QUESTION)
    assert place.heard(result.output)
    assert result.usage.output_tokens > 0


def test_pydantic_ai_streams(pydantic_model, place):
    async def stream():
        async with agent(pydantic_model).run_stream(QUESTION) as answer:
            return [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]

    pieces = asyncio.run(stream())
    assert place.heard("".join(pieces)) and len(pieces) > 3


def test_pydantic_ai_calls_a_tool(pydantic_model, place):
    asker = agent(pydantic_model, tools=[pydantic_ai.Tool(weather, name="get_weather")])
    result = asker.run_sync(WEATHER)
    assert place.told in result.output
    assert [part.tool_name for turn in result.all_messages() for part in turn.parts if part.part_kind == "tool-return"] == ["get_weather"]


class City(pydantic.BaseModel):
    """Bounded, so that whatever model fills it in comes to an end."""

    name: str = pydantic.Field(pattern="^[A-Za-z]{1,12}$")
    inhabitants: int = pydantic.Field(ge=0, le=1_000_000)


@pytest.mark.parametrize("how", ["tool", "native"])
def test_pydantic_ai_gets_a_structure(pydantic_model, place, how):
    if how == "native" and pydantic_model.system == "anthropic":
        pytest.skip("it offers this for models of Anthropic's own names alone")
    wanted = City if how == "tool" else pydantic_ai.NativeOutput(City)
    result = agent(pydantic_model, output_type=wanted).run_sync("Which city?")
    assert isinstance(result.output, City)


@pytest.fixture
def llm(place, tmp_path):
    """Simon Willison's `llm`, by its command line, with our models in its configuration."""
    names = {"model_id": "ours", "model_name": place.model, "api_base": place.openai + "/v1", "api_key_name": "ours", "supports_tools": True}
    (tmp_path / "extra-openai-models.yaml").write_text("- " + "\n  ".join(f"{name}: {json.dumps(value)}" for name, value in names.items()))
    (tmp_path / "keys.json").write_text(json.dumps({"ours": KEY}))

    def run(*arguments):
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(
            command, env={**os.environ, "LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


OPTIONS = ["-m", "ours", "-o", "temperature", "0", "-o", "max_tokens", str(LIMIT)]


def test_llm_chats(llm, place):
    assert place.heard(llm("prompt", QUESTION, *OPTIONS))
    # The program itself takes seconds to start.
    if place.name == "engine":
        assert place.heard(llm("prompt", QUESTION, *OPTIONS, "--no-stream"))


def test_llm_calls_a_tool(llm, place):
    function = f'def get_weather(city: str) -> str:\n    "Get the current weather for a city"\n    return {json.dumps(RESULT)!r}\n'
    assert place.told in llm("prompt", WEATHER, *OPTIONS, "--functions", function)
