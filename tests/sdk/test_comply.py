"""`llm-comply`: other people's checker of the dialects against their published descriptions, case by case: at the demo model's engine, and at a
Headrace in front of a scripted server, which takes what the small model cannot."""

import json
import subprocess
import sys

import pytest

from conftest import KEY

pytest.importorskip("llm_comply")

CHAT = ["basic-response", "system-prompt", "multi-turn", "tool-calling", "streaming-response", "streaming-usage", "image-input", "error-handling"]
# Of Open Responses, the specification of others.
RESPONSES = [
    *("basic-response", "system-prompt", "multi-turn", "tool-calling", "streaming-response", "streaming-usage", "image-input", "error-handling"),
    *("assistant-phase", "response-output-phase-schema", "compact-response", "compact-missing-model"),
]
# What is asked, its cases, and how its key is sent.
FORMATS = {
    "open-responses": ([f"responses-{case}" for case in RESPONSES], []),
    "openai-chat": ([f"chat-{case}" for case in CHAT], []),
    "anthropic": (
        [f"anth-{case}" for case in CHAT],
        ["--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01"],
    ),
}
CASES = [(form, case) for form, (cases, _) in FORMATS.items() for case in cases]
EYES = "the demo model sees no images"


@pytest.fixture(scope="module")
def results(request):
    """By place and format, once."""
    kept = {}

    def at(place, form):
        if (place.name, form) not in kept:
            cases, more = FORMATS[form]
            base = place.anthropic if form == "anthropic" else place.openai
            # These have no name of their format's before them.
            cases = [case.removeprefix("responses-") for case in cases]
            command = [sys.executable, "-m", "llm_comply.cli", "--format", form, "-u", base + "/v1", "-k", KEY, "-m", place.model]
            done = subprocess.run(
                [*command, "--filter", ",".join(cases), *more, "--json"], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
            )
            assert done.stdout, done.stderr
            kept[place.name, form] = {result["id"]: result for result in json.loads(done.stdout)["results"]}
        return kept[place.name, form]

    return at


@pytest.mark.parametrize(("form", "case"), CASES, ids=[case for _, case in CASES])
def test_it_complies(place, results, form, case):
    if place.name == "relayed":
        pytest.skip("the same bytes as the engine's")
    if place.name == "engine" and case.endswith("image-input"):
        pytest.skip(EYES)
    result = results(place, form)[case.removeprefix("responses-")]
    assert result["status"] == "passed", result["errors"]
