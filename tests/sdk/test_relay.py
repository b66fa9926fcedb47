"""Both SDKs to upstreams of both dialects, streamed and whole: whatever the pairing, the answer is the one that the upstream
itself gives, and what cannot be carried over is refused by its name."""

import json

import anthropic
import openai
import pytest

from conftest import CASES, DIALECTS, LIMITS, MODEL, Server, say

TOOLS = next(case["tools"] for case in CASES if case["tools"])
WEATHER = say("What is the weather in Lisbon?")
RESULT = '{"temperature": 21, "unit": "celsius", "condition": "sunny"}'
TURNS = [*say("What is the KV cache?"), {"role": "assistant", "content": "Memory."}, *say("Why does that matter?")]

# What is asked, in OpenAI's words, and what of it Anthropic's dialect has no word for.
ASKED = {
    "text": ({"messages": say("What is prefill?")}, None),
    "turns": ({"messages": TURNS}, None),
    "system": ({"messages": [{"role": "system", "content": "Be brief."}, *say("Hello!")]}, None),
    "unicode": ({"messages": say("Naïve 漢字 🦊\u2028 <|im_end|> \"quoted\" \\ {{ x }}")}, None),
    "length": ({"messages": say("What is prefill?"), "max_tokens": 5}, None),
    "stop": ({"messages": say("What is prefill?"), "stop": ["zebra", "cache"]}, None),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is prefill?"}]}]}, None),
    "sampled": ({"messages": say("Hello!"), "temperature": 0.7, "top_p": 1e-6}, None),
    "tool called": ({"messages": WEATHER, "tools": TOOLS}, None),
    "tool not called": ({"messages": say("Hello!"), "tools": TOOLS, "tool_choice": "auto"}, None),
    "tool forbidden": ({"messages": WEATHER, "tools": TOOLS, "tool_choice": "none"}, None),
    "tool result": ({"messages": WEATHER, "tools": TOOLS}, None),
    "user": ({"messages": say("Hello!"), "user": "u-1"}, None),
    "seed": ({"messages": say("Hello!"), "seed": 7}, "seed"),
    "several": ({"messages": say("Hello!"), "n": 2}, "n"),
    "logprobs": ({"messages": say("Hello!"), "logprobs": True, "top_logprobs": 2}, "logprobs"),
    "penalty": ({"messages": say("Hello!"), "frequency_penalty": 0.5}, "frequency_penalty"),
    "bias": ({"messages": say("Hello!"), "logit_bias": {"35": 100}}, "logit_bias"),
}


def in_claudes_words(options):
    """The same in Anthropic's dialect."""
    options = dict(options)
    messages = [message for message in options["messages"] if message["role"] != "system"]
    system = [message["content"] for message in options.pop("messages") if message["role"] == "system"]
    said = {"messages": messages, **({"system": system[0]} if system else {})}
    extra = {"temperature": options.pop("temperature"), **options.pop("extra_body", {})}
    if "top_p" in options:
        extra["top_p"] = options.pop("top_p")
    if stop := options.pop("stop", None):
        said["stop_sequences"] = stop
    if tools := options.pop("tools", None):
        said["tools"] = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"]["description"],
                "input_schema": tool["function"]["parameters"],
            }
            for tool in tools
        ]
    if choice := options.pop("tool_choice", None):
        said["tool_choice"] = {"type": choice}
    if user := options.pop("user", None):
        said["metadata"] = {"user_id": user}
    return {**options, **said, "extra_body": extra}


class OpenAi:
    """Asks by OpenAI's SDK, and tells the answer in words that both have."""

    name = "openai"
    bad_request, failed = openai.BadRequestError, openai.APIStatusError

    def __init__(self, server, **options):
        self.client = server.openai(**options)

    def ask(self, stream, **options):
        if not stream:
            answer = self.client.chat.completions.create(**options)
            choices = [(choice.index, choice.message, choice) for choice in answer.choices]
        else:
            options = {**options, "stream_options": {"include_usage": True}}
            # The SDK's helper puts the pieces together as programs do.
            with self.client.chat.completions.stream(**options) as events:
                for _ in events:
                    pass
                answer = events.current_completion_snapshot
            choices = [(choice.index, choice.message, choice) for choice in answer.choices]
        usage = answer.usage
        return {
            "texts": {index: message.content or "" for index, message, _ in choices},
            "calls": [
                (call.function.name, json.loads(call.function.arguments))
                for _, message, _ in choices
                for call in message.tool_calls or []
            ],
            "ends": {index: choice.finish_reason for index, _, choice in choices},
            "tokens": (usage.prompt_tokens, usage.completion_tokens),
            "model": answer.model,
            "logprobs": [
                [(token.token, token.logprob) for token in choice.logprobs.content]
                for _, _, choice in choices
                if choice.logprobs
            ],
        }

    def after_a_call(self, options):
        """The conversation with the tool's result."""
        message = self.client.chat.completions.create(**options).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
        return {**options, "messages": [*options["messages"], message, result]}


class Claude:
    """Asks by Anthropic's SDK."""

    name = "anthropic"
    bad_request, failed = anthropic.BadRequestError, anthropic.APIStatusError

    def __init__(self, server, **options):
        self.client = server.anthropic(**options)

    def ask(self, stream, **options):
        if stream:
            with self.client.messages.stream(**options) as events:
                answer = events.get_final_message()
        else:
            answer = self.client.messages.create(**options)
        usage = answer.usage
        read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        return {
            "texts": {0: "".join(block.text for block in answer.content if block.type == "text")},
            "calls": [(block.name, block.input) for block in answer.content if block.type == "tool_use"],
            "ends": {0: (answer.stop_reason, answer.stop_sequence)},
            "tokens": (usage.input_tokens + read + written, usage.output_tokens),
            "model": answer.model,
            "logprobs": [],
        }

    def after_a_call(self, options):
        content = self.client.messages.create(**options).content
        call = next(block for block in content if block.type == "tool_use")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
        turns = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        return {**options, "messages": [*options["messages"], *turns]}


SDKS = {sdk.name: sdk for sdk in (OpenAi, Claude)}


@pytest.fixture(scope="module")
def ways(relayed):
    """By SDK: one to the far server, and one to it by each dialect. Making a client takes longer than most calls."""
    servers = {"far": relayed.far, **relayed.fronts}
    return {sdk: {name: sdk(server) for name, server in servers.items()} for sdk in SDKS.values()}


def cases():
    for what, (_, not_in_anthropic) in ASKED.items():
        for sdk in SDKS.values():
            for behind in DIALECTS:
                for stream in (False, True):
                    if sdk is OpenAi or not not_in_anthropic:
                        name = f"{what} from {sdk.name} to {behind} {'streamed' if stream else 'whole'}"
                        yield pytest.param(what, sdk, behind, stream, id=name)


@pytest.mark.parametrize(("what", "sdk", "behind", "stream"), list(cases()))
def test_the_answer_is_the_upstreams(ways, what, sdk, behind, stream):
    asked, not_in_anthropic = ASKED[what]
    options = {"model": MODEL, "max_tokens": 48, "temperature": 0, **asked}
    if sdk is Claude:
        options = in_claudes_words(options)
    far, near = ways[sdk]["far"], ways[sdk][behind]
    if what == "tool result":
        options = near.after_a_call(options)
    if not_in_anthropic and behind == "anthropic":
        with pytest.raises(sdk.bad_request) as raised:
            near.ask(stream, **options)
        assert (raised.value.param, raised.value.code) == (not_in_anthropic, "unsupported_parameter")
        return
    answer = near.ask(stream, **options)
    assert answer == far.ask(stream, **options)
    assert any(answer["texts"].values()) or answer["calls"], "there is something to compare"


def body_of(error):
    """Anthropic's SDK keeps the error within its body."""
    return error.body.get("error", error.body)


PAIRS = pytest.mark.parametrize(
    ("sdk", "behind", "stream"),
    [(sdk, behind, stream) for sdk in SDKS.values() for behind in DIALECTS for stream in (False, True)],
    ids=lambda value: {False: "whole", True: "streamed"}.get(value) or getattr(value, "name", value),
)


@PAIRS
@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"extra_body": {"temperature": 9}}, "temperature"),
        ({"extra_body": {"temperature": 0, "tempreature": 1}}, "tempreature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named_whoever_finds_it(ways, sdk, behind, stream, options, param):
    options = {"model": MODEL, "max_tokens": 4, "messages": say("Hello!"), **options}
    with pytest.raises(sdk.bad_request) as raised:
        ways[sdk][behind].ask(stream, **options)
    body = body_of(raised.value)
    assert (body["type"], body["param"]) == ("invalid_request_error", param)


def unlucky(kind, url):
    """Models that are not there, of a server that does not know us, and of one that does not run."""
    text = "[server]\nmetrics_listen = \"127.0.0.1:0\"\n"
    for name, url in (("gone", url), ("locked", url), ("dead", "http://127.0.0.1:9")):
        target = "no-such-model" if name == "gone" else MODEL
        text += f"""
[[upstreams]]
name = "{name}"
kind = "{kind}"
url = "{url}"
price = {{ input = "0.1", output = "0.4" }}

[[models]]
name = "{name}"
targets = ["{name}/{target}"]
"""
    return text


@pytest.fixture(scope="module", params=DIALECTS, ids=lambda behind: f"to {behind}")
def unlucky_front(request, relayed, tmp_path_factory):
    keys = {"HEADRACE_UPSTREAM_GONE_KEY": relayed.far.key, "HEADRACE_UPSTREAM_LOCKED_KEY": "sk-of-yesterday"}
    directory = tmp_path_factory.mktemp("unlucky")
    server = Server(directory, {**LIMITS, **keys}, unlucky(request.param, relayed.far.url))
    yield server
    server.stop()


@pytest.mark.parametrize("sdk", SDKS.values(), ids=lambda sdk: f"from {sdk.name}")
def test_what_is_wrong_behind_the_front_is_no_word_on_its_client(relayed, unlucky_front, sdk):
    options = {"model": MODEL, "max_tokens": 4, "messages": say("Hello!")}
    client, stranger = sdk(unlucky_front), sdk(unlucky_front, api_key="sk-wrong")
    rows = [
        (client, {"model": "gpt-17"}, [(404, "model_not_found")]),
        (stranger, {"model": "dead"}, [(401, "invalid_api_key")]),
        # The client cannot mend these. Where several calls failed, none is sent on for a while.
        (client, {"model": "gone"}, [(502, "upstream_misconfigured")]),
        (client, {"model": "locked"}, [(502, "upstream_misconfigured")]),
        (client, {"model": "dead"}, [(502, "upstream_unreachable"), (503, "upstream_overloaded")]),
    ]
    for asking, changed, expected in rows:
        for stream in (False, True):
            with pytest.raises(sdk.failed) as raised:
                asking.ask(stream, **{**options, **changed})
            error = raised.value
            assert (error.status_code, body_of(error)["code"]) in expected, error
            for secret in ("sk-of", "sk-sdk", relayed.far.url[7:], "no-such-model"):
                assert secret not in str(error)


@PAIRS
def test_a_prompt_beyond_the_context_is_told_as_such(ways, sdk, behind, stream):
    with pytest.raises(sdk.bad_request) as raised:
        ways[sdk][behind].ask(stream, model=MODEL, max_tokens=4, messages=say("word " * 5000))
    assert body_of(raised.value)["code"] == "context_length_exceeded"


def test_what_nobody_in_front_knows_passes_both_ways(relayed):
    extra = {"return_token_ids": True, "cache_salt": "mine"}
    with relayed.far.openai() as far, relayed.fronts["openai"].openai() as near:
        options = {"model": MODEL, "messages": say("Hello!"), "max_tokens": 4, "temperature": 0}
        ours, theirs = (client.chat.completions.create(**options, extra_body=extra) for client in (near, far))
    assert ours.choices[0].token_ids == theirs.choices[0].token_ids
    assert ours.prompt_token_ids == theirs.prompt_token_ids
    assert ours.system_fingerprint == theirs.system_fingerprint
