"""Why a cached prefix was missed since a former answer, as Anthropic's SDK types it; where it is, is Headrace's own."""

import pytest

SYSTEM = "You are a patient helper who answers in one word, and who never says more than that. " * 2


@pytest.fixture
def ask(claude):
    def ask(system, turns, previous, **more):
        return claude.messages.create(
            model="headrace-demo",
            max_tokens=4,
            system=system,
            messages=[{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(turns)],
            diagnostics={"previous_message_id": previous},
            **more,
        )

    return ask


@pytest.mark.direct("a server of others is asked in its own terms")
def test_a_prompt_that_only_grew_missed_nothing_and_a_changed_one_is_told_where(ask):
    turns = ["Name a colour.", "Blue.", "And another."]
    first = ask(SYSTEM, turns[:1], None)
    assert first.diagnostics.cache_miss_reason is None
    grown = ask(SYSTEM, turns, first.id)
    assert grown.diagnostics.cache_miss_reason is None
    assert grown.usage.cache_read_input_tokens > 0

    system = ask(SYSTEM.replace("patient", "pacific", 1), turns, first.id).diagnostics.cache_miss_reason
    assert system.type == "system_changed" and system.cache_missed_input_tokens > 0
    assert system.place == {"in": "system", "character": 12}

    said = ask(SYSTEM, ["Name a colour?", *turns[1:]], first.id).diagnostics.cache_miss_reason
    assert said.type == "messages_changed"
    assert (said.place["index"], said.place["character"]) == (0, 13)

    lost = ask(SYSTEM, turns, "msg_" + "0" * 32).diagnostics.cache_miss_reason
    assert lost.type == "previous_message_not_found"


@pytest.mark.direct("a server of others is asked in its own terms")
def test_the_order_of_properties_is_told_as_such(ask):
    def tool(*names):
        properties = {name: {"type": "string"} for name in names}
        return [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": properties}}]

    first = ask(SYSTEM, ["Look."], None, tools=tool("a", "b"))
    reason = ask(SYSTEM, ["Look."], first.id, tools=tool("b", "a")).diagnostics.cache_miss_reason
    assert reason.type == "tools_changed" and "tools.order" in reason.hint
