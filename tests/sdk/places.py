"""Where the tests of clients go: the demo model's engine, a Headrace in front of another one, and one in front of a scripted server. Knows
no client."""

import json

import pytest

from conftest import CASES, KEY, LIMITS, MODEL, Server
from scripted import MODEL as SCRIPTED, WORDS, Scripted

QUESTION, WEATHER = "What is prefill?", "What is the weather in Lisbon?"
RESULT = {"temperature": 21, "unit": "celsius", "condition": "sunny"}
LIMIT = 64
"""Tokens of an answer."""
NAMES = ["engine", "relayed", "scripted"]


class Place:
    """The addresses for each dialect, the model, what it says to QUESTION, and what in it tells of RESULT."""

    key = KEY

    def __init__(self, name, openai, anthropic, model, words, told):
        self.name, self.openai, self.anthropic = name, openai, anthropic
        self.model, self.words, self.told = model, words, told

    def heard(self, text):
        """Whether it is the answer; long ones are cut by the limit of tokens."""
        return bool(text) and self.words.startswith(text)


def weather(city: str) -> str:
    """Get the current weather for a city"""
    assert city == "Lisbon"
    return json.dumps(RESULT)


@pytest.fixture(scope="session")
def scripted():
    scripted = Scripted()
    yield scripted
    scripted.stop()


@pytest.fixture(scope="session")
def scripted_front(binary, scripted, tmp_path_factory):
    """A Headrace in front of it, which serves its model by its own name."""
    more = ["--upstream", f"far=openai:{scripted.url}", "--model", f"{SCRIPTED}=far/{SCRIPTED}"]
    front = Server(tmp_path_factory.mktemp("scripted"), LIMITS, more=more)
    yield front
    front.stop()


@pytest.fixture(scope="session", params=NAMES)
def place(request):
    return found(request, request.param)


def found(request, name):
    if name == "scripted":
        url = request.getfixturevalue("scripted_front").url
        return Place(name, url, url, SCRIPTED, WORDS, f"The tool says: {json.dumps(RESULT)}")
    relayed = request.getfixturevalue("relayed")
    fronts = relayed.fronts if name == "relayed" else {"openai": relayed.far, "anthropic": relayed.far}
    words = next(case["text"] for case in CASES if [turn["content"] for turn in case["messages"]] == [QUESTION])
    return Place(name, fronts["openai"].url, fronts["anthropic"].url, MODEL, words, "21")
