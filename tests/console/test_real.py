"""The console over the program itself: started as a user starts it, signed in by the link that it prints.

Pages are looked through as far as the session says that their routes are there: a page is offered where its route may be called.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from conftest import PAGES, ROOT
from test_pages import broken_rules

BINARY = pathlib.Path(os.environ.get("HEADRACE_BIN") or ROOT / "target" / "release" / "headrace").resolve()
KEY = "sk-console-tests-0123456789abcdefghijklmnop"
START_TIMEOUT_S = 60
QUESTION = "What happens when I call an LLM API?"


class House:
    """A running `headrace up`."""

    def __init__(self, directory, *flags):
        self.directory = directory
        self.flags = flags
        self.log = directory / "output"
        # A variable of ours that the program does not know would stop it, and rightly so.
        env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.env = {**env, "HEADRACE_BOOTSTRAP_KEY": KEY}
        self.start()

    def start(self):
        command = [str(BINARY), "up", "--data-dir", str(self.directory / "data"), "--listen", "127.0.0.1:0", *self.flags]
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(command, cwd=self.directory, env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.url = self._printed(r"is ready at (http://\S+)")
        self.console, self.link = self._printed(r"console\s+(http://[^/]+/)#sign-in=(\w+)")

    def _printed(self, pattern):
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text(errors="replace")):
                return found.groups() if len(found.groups()) > 1 else found.group(1)
            time.sleep(0.02)
        pytest.fail(f"it did not print {pattern}:\n{self.log.read_text(errors='replace')}")

    def ask(self, text, key=KEY, **more):
        body = {"model": "headrace-demo", "messages": [{"role": "user", "content": text}], **more}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"authorization": f"Bearer {key}", "content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as refused:
            return refused.code

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0, self.log.read_text(errors="replace")
        verified = subprocess.run([str(BINARY), "ledger", "verify", "--data-dir", str(self.directory / "data")], env=self.env, capture_output=True, text=True, timeout=60)
        assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.fixture
def house(tmp_path):
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not there: `cargo build --release`, or set HEADRACE_BIN", returncode=2)
    house = House(tmp_path)
    yield house
    house.stop()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_session_survives_a_restart_until_it_is_ended(tmp_path, tabs, end):
    house = House(tmp_path, "--admin-listen", f"127.0.0.1:{free_port()}")

    def restart():
        if end == "killed":
            house.process.kill()
            house.process.wait(timeout=60)
        else:
            house.stop()
        house.start()

    try:
        tab = tabs(house.console).sign_in(house.link)
        page = tab.go("keys")
        session = tab.context.cookies()[0]["value"]
        restart()
        # The page that is open goes on, acts included.
        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name", exact=True).fill("after the restart")
        page.get_by_role("button", name="Create key").click()
        page.get_by_role("button", name="I have it").click()
        page.reload()
        page.wait_for_selector(".shell")
        kept = (tmp_path / "data" / "sessions.json").read_text()
        assert session not in kept and "token_hash" in kept, "a copy of the file signs nobody in"
        assert (tmp_path / "data" / "sessions.json").stat().st_mode & 0o077 == 0
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Operator key").wait_for()
        tab.context.add_cookies([{"name": f"headrace_session_{house.console.split(':')[-1].rstrip('/')}", "value": session, "url": house.console}])
        restart()
        page.goto(house.console)
        page.get_by_label("Operator key").wait_for()
        # An operator who was revoked while the server stood still.
        other = tabs(house.console).sign_in(house.link)
        house.process.send_signal(signal.SIGTERM)
        house.process.wait(timeout=60)
        data = str(tmp_path / "data")
        run = lambda *words: subprocess.run([str(BINARY), *words, "--data-dir", data], env=house.env, capture_output=True, text=True, timeout=60)  # noqa: E731
        made = run("operators", "create", "--name", "second", "--role", "owner")
        assert made.returncode == 0, made.stderr
        gone = run("operators", "revoke", "owner")
        assert gone.returncode == 0, gone.stderr
        house.start()
        other.page.goto(house.console)
        other.page.get_by_label("Operator key").wait_for()
    finally:
        house.stop()


def test_charts_have_the_minutes_before_the_page_was_opened(house, tabs):
    assert house.ask("Hello") == 200
    tab = tabs(house.console).sign_in(house.link)
    for _ in range(600):
        history = told(tab.page, "now")["history"]
        if history["at_unix_s"] and history["ttft_p50_us"][-1] is not None:
            break
        tab.page.wait_for_timeout(100)
    assert history["ttft_p50_us"][-1] > 0 and history["completion_tokens_per_s"][-1] > 0
    lengths = {len(figures) for figures in history.values()}
    assert len(lengths) == 1
    tab.go("now")
    assert int(tab.page.locator(".chart").first.get_attribute("data-points")) >= lengths.pop()
    assert int(tab.page.locator(".chart", has=tab.page.get_by_role("img", name="Spend, last 24 hours")).get_attribute("data-points")) == 24


def told(page, path, method="GET"):
    """What the admin API tells the page's own session."""
    return page.evaluate("([path, method]) => fetch('/admin/v1/' + path, { method }).then((answer) => answer.json())", [path, method])


def until_told(page, path, is_so):
    """Waits until the admin API shows what is written behind an answer."""
    for _ in range(600):
        if is_so(found := told(page, path)):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"{path}: {found}")


def until_stored(page, calls):
    """Waits until this number of calls is found: they are stored out of band."""
    until_told(page, "requests", lambda found: len(found["data"]) == calls)


def offered(tab, route):
    return route in told(tab.page, "session")["may"]


def test_every_page_that_is_offered_shows_what_really_happened(house, tabs):
    for text in ["What is a token?", QUESTION]:
        assert house.ask(text) == 200
    assert house.ask("x", temperature=9) == 400
    tab = tabs(house.console).sign_in(house.link)
    assert house.link not in tab.page.url and tab.page.evaluate("document.cookie") == ""
    names = tab.page.locator(".side li a[href^='#']").evaluate_all("links => links.map((link) => link.getAttribute('href').slice(2))")
    assert set(names) <= set(PAGES) and {"keys", "money", "models", "audit", "settings"} <= set(names)
    for name in names:
        page = tab.go(name)
        page.wait_for_timeout(300)
        assert page.get_by_role("alert").count() == 0, f"{name}: {page.get_by_role('alert').first.inner_text()}"
        assert not broken_rules(page), name
        for inner in page.get_by_role("tab").all():
            inner.click()
            tab.settle()
            assert page.get_by_role("alert").count() == 0, f"{name}, {inner.inner_text()}: {page.get_by_role('alert').first.inner_text()}"
    tab.go("models")
    tab.page.get_by_text("headrace-demo").first.wait_for()


def test_pages_come_with_a_policy_and_unchanged_ones_are_not_sent_again(house):
    with urllib.request.urlopen(house.console, timeout=60) as answer:
        policy, tag = answer.headers["content-security-policy"], answer.headers["etag"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
    with pytest.raises(urllib.error.HTTPError) as unchanged:
        urllib.request.urlopen(urllib.request.Request(house.console, headers={"if-none-match": tag}), timeout=60)
    assert unchanged.value.code == 304


def test_a_link_signs_in_once(house, tabs):
    tabs(house.console).sign_in(house.link)
    second = tabs(house.console)
    second.page.goto(f"{house.console}#sign-in={house.link}")
    second.page.get_by_label("Operator key").wait_for()
    assert second.page.get_by_role("alert").count() == 1


def test_a_key_made_here_lets_a_program_in_until_it_is_revoked(house, tabs):
    tab = tabs(house.console).sign_in(house.link)
    page = tab.go("keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name", exact=True).fill("robot")
    page.get_by_role("button", name="Create key").click()
    secret = page.locator(".secret span").first.inner_text()
    assert house.ask("Hello", key=secret) == 200
    page.get_by_role("button", name="I have it").click()
    tab.settle()
    page.locator("tr", has_text="robot").get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    page.wait_for_function("() => document.querySelector('.toasts')?.textContent.includes('Revoked')")
    assert house.ask("Hello", key=secret) == 401
    tab.go("audit").get_by_text("robot").first.wait_for()


def test_credit_granted_here_is_in_the_balance(house, tabs):
    tab = tabs(house.console).sign_in(house.link)
    page = tab.go("money")
    page.get_by_role("button", name="Grant", exact=True).click()
    page.get_by_label("Dollars").fill("2.50")
    page.get_by_label("Reference").fill("test")
    page.get_by_role("dialog").get_by_role("button", name="Grant").click()
    page.get_by_text("The balance is $12.50 now.").wait_for()
    tab.settle()
    assert "$12.50" in page.locator("main").inner_text()


def test_spend_and_requests_are_told_apart_by_the_user_whom_a_caller_names(house, tabs):
    hostile = "<img src=x onerror=window.pwned=1>"
    for user in ["eva@example.com", "eva@example.com", hostile]:
        assert house.ask("Hello", user=user) == 200
    tab = tabs(house.console).sign_in(house.link)
    until_stored(tab.page, 3)
    page = tab.go("money?tab=spend")
    page.get_by_role("radio", name="User").or_(page.get_by_role("button", name="User", exact=True)).first.click()
    row = page.locator("tr", has_text="eva@example.com")
    row.wait_for()
    assert row.locator("td").nth(2).inner_text() == "2"
    assert page.locator("tr", has_text=hostile).count() == 1
    page = tab.go("requests?user=eva%40example.com")
    page.get_by_text("2 requests").wait_for()


def test_calls_and_keys_say_whose_they_are(house, tabs):
    made = json.loads(subprocess.run([str(BINARY), "keys", "create", "--name", "green-service", "--data-dir", str(house.directory / "data"), "--json"], capture_output=True, text=True, timeout=60, check=True, env=house.env).stdout)
    assert house.ask("Hello", key=made["value"]["secret"], user="eva@example.com") == 200
    assert house.ask("x", key=made["value"]["secret"], temperature=9) == 400
    tab = tabs(house.console).sign_in(house.link)
    until_stored(tab.page, 2)
    page = tab.go("requests")
    page.wait_for_selector(".long-view .long-row")
    heads = page.locator(".long-head [role=columnheader]").all_inner_texts()
    rows = [dict(zip(heads, row.locator("[role=gridcell]").all_inner_texts(), strict=True)) for row in page.locator(".long-view .long-row").all()]
    assert [(row["Project"], row["Key"]) for row in rows] == [("default", "green-service")] * 2 and {row["User"] for row in rows} == {"eva@example.com", "–"}, rows
    page = tab.go("now")
    recent = page.get_by_role("table", name="The newest calls that ended")
    recent.get_by_text("green-service").first.wait_for()
    said = page.locator(".notes").get_by_text(re.compile("of green-service was refused"))
    said.wait_for()
    assert "key_" not in page.locator("main").inner_text()
    page = tab.go("keys")
    heads = page.get_by_role("columnheader").all_inner_texts()
    row = dict(zip(heads, page.locator("tr", has_text="green-service").locator("td").all_inner_texts(), strict=False))
    assert re.fullmatch(r"\d+ (s|min) ago|now", row["Last used"]) and row["Spent"].startswith("$0.0000") and "does not expire" in row["Created"], row


def test_the_address_of_the_api_is_a_page_in_a_browser(house, tabs):
    with urllib.request.urlopen(house.url, timeout=60) as answer:
        assert json.load(answer) == {"status": "alive"}
    tab = tabs(house.url)
    tab.page.goto(house.url)
    tab.page.get_by_role("heading", name="Headrace").wait_for()
    assert tab.page.get_by_role("link", name="The console").get_attribute("href") == house.console
    assert tab.page.get_by_role("link", name="The manual").get_attribute("href") == f"{house.console}docs/"
    assert not broken_rules(tab.page)
    # Its links are followed by hand: a tab looks at one server's pages.
    for link in tab.page.get_by_role("link").all():
        with urllib.request.urlopen(urllib.parse.urljoin(house.url, link.get_attribute("href")), timeout=60) as answer:
            assert answer.status == 200


def test_enter_ten_times_and_a_reload_are_one_charge(house, tabs):
    tab = tabs(house.console).sign_in(house.link)
    if not offered(tab, "POST /playground/chat/completions"):
        pytest.skip("this program has no playground")
    page = tab.go("playground")
    page.get_by_label("Message").fill(QUESTION)
    page.evaluate("""() => { const box = document.querySelector('.pg-input');
        for (let at = 0; at < 10; at++) box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true })); }""")
    page.wait_for_timeout(30)
    page.reload()
    page.locator(".figures").wait_for()
    assert page.locator(".turn.user").count() == 1
    until_told(page, "ledger/totals", lambda found: found["settled"] == 1)
    page.reload()
    page.locator(".figures").wait_for()
    page.wait_for_timeout(300)
    assert told(page, "ledger/totals")["settled"] == 1


def test_a_call_is_found_with_its_waterfall(house, tabs):
    assert house.ask(QUESTION) == 200
    tab = tabs(house.console).sign_in(house.link)
    if not offered(tab, "GET /requests"):
        pytest.skip("this program does not search")
    until_stored(tab.page, 1)
    page = tab.go("requests")
    page.locator(".long-view .long-row").first.click()
    page.get_by_role("table", name="Stages of the call").wait_for()
    for stage in ["authenticate", "prefill", "decode", "settle"]:
        page.get_by_role("rowheader", name=stage, exact=True).wait_for()
    assert not broken_rules(page)


def test_tools_for_the_prompt_show_what_the_model_really_sees(house, tabs):
    tab = tabs(house.console).sign_in(house.link)
    page = tab.go("prompt")
    # Longer than a block of the cache.
    call = f"{QUESTION} {QUESTION}"
    page.get_by_label("The call").fill(call)
    page.get_by_label("A cached prompt").fill(call + " Really?")
    page.get_by_role("button", name="Show").click()
    page.locator(".token.special").first.wait_for()
    own = json.loads(subprocess.run([str(BINARY), "render", call, "--after", call + " Really?", "--json"], capture_output=True, text=True, timeout=60, check=True, env=house.env).stdout)
    assert page.locator(".lens .token").count() == own["count"]
    assert page.locator(".token.special").count() == own["special_tokens"]
    assert own["cached_tokens"] > 0 and page.locator(".cache-edge").inner_text().startswith(f"a warm cache gives the {own['cached_tokens']} tokens")
    assert not broken_rules(page)
    page.get_by_role("tab", name="Tokens of a text").click()
    page.get_by_label("Text, or ids").fill("Hello there")
    page.get_by_role("button", name="Count").click()
    page.locator(".lens .token").first.wait_for()
    counted = json.loads(subprocess.run([str(BINARY), "tokenize", "Hello there", "--json"], capture_output=True, text=True, timeout=60, check=True, env=house.env).stdout)
    assert page.locator(".lens .token").count() == counted["count"]
    page.get_by_role("tab", name="Doctor").click()
    page.get_by_text("Nothing is wrong with it").or_(page.get_by_text("findings")).first.wait_for()
