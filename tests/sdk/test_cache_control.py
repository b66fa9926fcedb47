"""Prefixes that a call wishes to be kept (`cache_control`), as Anthropic's SDK sees them: written once, read from then on."""

import pytest

SYSTEM = "You answer in one word. " * 12


def ask(claude, question, ttl=None):
    mark = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    message = claude.messages.create(
        model="headrace-demo",
        max_tokens=4,
        system=[{"type": "text", "text": SYSTEM + question, "cache_control": mark}],
        messages=[{"role": "user", "content": question}],
    )
    return message.usage


@pytest.mark.direct("a server of others is not told")
@pytest.mark.parametrize("ttl, field", [(None, "ephemeral_5m_input_tokens"), ("5m", "ephemeral_5m_input_tokens"), ("1h", "ephemeral_1h_input_tokens")])
def test_what_is_to_be_kept_is_written_once_and_read_from_then_on(claude, ttl, field):
    question = f"Why {ttl}?"
    first, again = ask(claude, question, ttl), ask(claude, question, ttl)
    written = first.cache_creation_input_tokens
    assert written > 0 and written % 16 == 0
    assert getattr(first.cache_creation, field) == written
    assert again.cache_creation_input_tokens == 0
    assert again.cache_read_input_tokens >= written
    whole = [usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens for usage in (first, again)]
    assert whole[0] == whole[1]
