"""Answers of the playground that end before they are whole: stopped, read again after a reload, followed in a second tab, cut by a broken connection."""

import re

import pytest

from slow import MODEL, Talker
from test_real import House, told


@pytest.fixture
def talker():
    talker = Talker()
    yield talker
    talker.close()


@pytest.fixture
def house(tmp_path, talker):
    house = House(tmp_path, "--upstream", f"slow=openai:{talker.url}", "--model", f"{MODEL}=slow/{MODEL}")
    yield house
    house.stop()


def open_playground(tabs, house):
    tab = tabs(house.console).sign_in(house.link)
    page = tab.go("playground")
    page.get_by_label("Model", exact=True).select_option(MODEL)
    return tab, page


def ask(page, text):
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def words(page, at=-1):
    return [int(word) for word in re.findall(r"word(\d+)", page.locator(".turn.assistant").nth(at).inner_text())]


def until_word(page, number):
    page.locator(".turn.assistant").last.get_by_text(re.compile(rf"\bword{number}\b")).wait_for()


def is_stopped(page):
    """The answer ended, its words are there, and the next question can be asked."""
    page.locator(".figures").last.get_by_text("stopped").wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for()
    assert page.get_by_role("alert").count() == 0
    shown = words(page)
    assert len(shown) > 5 and shown == list(range(len(shown)))


def answers_the_next(page, talker):
    before = page.locator(".turn.assistant").count()
    ask(page, "short, please")
    page.wait_for_function("before => document.querySelectorAll('.turn.assistant .figures').length === before + 1", arg=before)
    assert words(page) == [0, 1, 2] and page.get_by_role("alert").count() == 0
    sent = talker.asked[-1]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"] and sent[1]["content"].startswith("word0 word1 ")


def holds_nothing(page):
    """Waits until the ledger holds nothing: every stopped call has ended on the server, too."""
    for _ in range(600):
        if told(page, "ledger/totals")["open_holds"] == 0:
            return
        page.wait_for_timeout(100)
    pytest.fail("the ledger still holds money for a stopped call")


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_a_stopped_answer_stays_and_the_next_question_is_answered(house, tabs, talker, by):
    tab, page = open_playground(tabs, house)
    for _ in range(2):
        ask(page, "a long story")
        until_word(page, 8)
        if by == "button":
            page.get_by_role("button", name="Stop", exact=True).click()
        else:
            page.get_by_label("Message").press("Escape")
        is_stopped(page)
        answers_the_next(page, talker)
        page.get_by_role("button", name="New", exact=True).click()
        page.get_by_text("No messages yet.").wait_for()
    # Each stopped call ended at the upstream, too, and nothing is held for it.
    holds_nothing(page)
    for _ in range(600):
        if len(talker.left) == 2:
            break
        page.wait_for_timeout(100)
    assert len(talker.asked) == 4 and len(talker.left) == 2


def test_a_stopped_answer_is_there_after_a_reload_and_in_a_new_tab(house, tabs, talker):
    tab, page = open_playground(tabs, house)
    ask(page, "a long story")
    until_word(page, 8)
    page.reload()
    until_word(page, 12)
    assert words(page)[:3] == [0, 1, 2], "the same answer from its first word"
    other = tab.context.new_page()
    other.goto(f"{house.console}#/playground")
    until_word(other, 12)
    page.get_by_role("button", name="Stop", exact=True).click()
    is_stopped(page)
    # The other tab reads the same end.
    is_stopped(other)
    page.reload()
    is_stopped(page)
    answers_the_next(page, talker)
    assert len(talker.asked) == 2


def test_a_call_that_the_server_gave_up_does_not_hold_the_page(house, tabs, talker):
    tab, page = open_playground(tabs, house)
    ask(page, "a long story")
    until_word(page, 8)
    # The page is left, and the call is stopped while no page reads it.
    pending = page.evaluate("JSON.parse(localStorage['headrace.playground']).panes[0].pending")
    page.evaluate("location.hash = '#/now'")
    page.wait_for_selector(".tiles")
    sign = told(page, "session")["csrf"]
    assert page.evaluate("([key, sign]) => fetch('/admin/v1/playground/stop', { method: 'POST', body: '{}', headers: { 'content-type': 'application/json', 'idempotency-key': key, 'x-headrace-csrf': sign } }).then((answer) => answer.status)", [pending["key"], sign]) == 204
    tab.go("playground")
    is_stopped(page)
    page.get_by_text("the call was stopped by its operator").wait_for()
    answers_the_next(page, talker)


@pytest.mark.parametrize("then", ["retry", "next", "new"])
def test_a_connection_that_breaks_leaves_the_words_and_a_way_on(house, tabs, talker, then):
    tab, page = open_playground(tabs, house)
    # The page's reader throws after some pieces, as it does when a connection breaks.
    page.evaluate("""() => { const real = window.fetch; let broken = false; window.fetch = async (url, how) => {
        const answer = await real(url, how);
        if (broken || !String(url).endsWith('chat/completions')) return answer;
        broken = true;
        const reader = answer.body.getReader();
        let pieces = 0;
        const body = new ReadableStream({ async pull(into) { const { value, done } = await reader.read(); if (pieces++ > 20) { reader.cancel(); return into.error(new TypeError('network error')); } done ? into.close() : into.enqueue(value); } });
        return new Response(body, { status: answer.status, headers: answer.headers });
    }; }""")
    ask(page, "a long story")
    page.get_by_role("alert").get_by_text("The connection broke before the answer was complete.").wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for()
    shown = words(page)
    assert len(shown) > 5
    if then == "retry":
        page.get_by_role("button", name="Retry").click()
        until_word(page, shown[-1] + 5)
        page.get_by_role("button", name="Stop", exact=True).click()
        is_stopped(page)
        assert len(talker.asked) == 1, "the same call"
    elif then == "next":
        answers_the_next(page, talker)
    else:
        page.get_by_role("button", name="New", exact=True).click()
        page.get_by_text("No messages yet.").wait_for()
    holds_nothing(page)
