"""Operators sign in to the console at real OpenID providers: npm's `oidc-provider` and PyPI's `canaille`."""

import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from conftest import Server
from signing_in import Browser, SignInProvider

SETTINGS = """
[admin]
listen = "127.0.0.1:{port}"

[[admin.sign_in]]
name = "acme"
label = "Acme"
issuer = "{issuer}"
client_id = "console"
client_secret_file = "{secret}"
scopes = ["email", "groups"]

[[admin.sign_in.rules]]
when = {{ {claim} = "{group}" }}
role = "{role}"
"""


class Console:
    """A server whose operators sign in at a provider."""

    def __init__(self, kind, directory):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.back = f"{self.url}/admin/v1/sign-in/acme/callback"
        self.kind, self.provider = kind, SignInProvider(kind, self.back)
        (directory / "secret").write_text("client-secret\n")
        self.values = {"port": port, "issuer": self.provider.issuer, "secret": directory / "secret"}
        self.server = Server(directory, configuration=self.settings())

    def settings(self, **changed):
        rule = {"claim": "groups", "group": "platform", "role": "admin"}
        return SETTINGS.format(**{**self.values, **rule, **changed})

    def reload(self, text):
        (self.server.directory / "headrace.toml").write_text(text)
        done = self.server.run("reload")
        assert done.returncode == 0, done.stderr

    def begin(self, browser):
        status, headers, page = browser.open(f"{self.url}/admin/v1/sign-in/acme")
        assert status == 303, (status, page)
        return headers["location"]

    def way_back(self, browser, person):
        """Signs a person in at the provider, and returns the address to which the provider leads the browser."""
        return browser.sign_in(self.begin(browser), person, self.back)

    def session(self, browser):
        status, _, page = browser.open(f"{self.url}/admin/v1/session")
        return status, json.loads(page)

    def rotate(self):
        self.provider.stop()
        self.provider = SignInProvider(self.kind, self.back, self.provider.port)

    def audit(self):
        return json.loads(self.server.run("audit", "--last", "5", "--json").stdout)["value"]

    def stop(self):
        try:
            self.server.stop()
        finally:
            self.provider.stop()


@pytest.fixture(params=["oidc-provider", "canaille"])
def console(request, binary, tmp_path):
    console = Console(request.param, tmp_path)
    yield console
    console.stop()


def refused(answer):
    status, _, page = answer
    error = json.loads(page)["error"]
    return status, error["code"], error["message"]


def test_an_operator_signs_in_administers_and_signs_out(console):
    browser = Browser()
    listed = browser.open(f"{console.url}/admin/v1/sign-in")[2]
    assert json.loads(listed) == {"data": [{"name": "acme", "label": "Acme"}]}
    back = console.way_back(browser, "ann")
    status, headers, page = browser.open(back)
    assert (status, headers["location"]) == (303, "/"), page
    cookies = headers.get_all("set-cookie")
    assert any("HttpOnly; SameSite=Strict" in cookie and cookie.startswith("headrace_session_") for cookie in cookies)
    status, session = console.session(browser)
    assert (status, session["role"], session["operator"]) == (200, "admin", "ann@example.com (acme)"), session
    # A change needs the token of the session, as every session's does.
    url = f"{console.url}/admin/v1/orgs"
    for csrf, expected in [(None, 403), (session["csrf"], 201)]:
        headers = {"content-type": "application/json", **({"x-headrace-csrf": csrf} if csrf else {})}
        request = urllib.request.Request(url, b'{"id": "by-ann"}', headers)
        try:
            made = browser.opener.open(request).status
        except urllib.error.HTTPError as error:
            made = error.code
        assert made == expected
    entered, created = console.audit()[-2:]
    assert (created["act"], created["actor"]) == ("org.create", f"ann@example.com (acme) ({session['id']})")
    assert entered["act"] == "operator.sign_in" and entered["subject"] == session["id"], entered
    assert f"issuer {console.provider.issuer}, subject ann" in entered["detail"], entered
    # The same address works once: its cookie is gone, and the provider knows the code.
    assert refused(browser.open(back))[:2] == (400, "sign_in_failed")
    ended = urllib.request.Request(f"{console.url}/admin/v1/session", method="DELETE", headers={"x-headrace-csrf": session["csrf"]})
    assert browser.opener.open(ended).status == 204
    assert console.session(browser)[0] == 401


def test_a_user_without_a_role_is_told_the_claims(console):
    browser = Browser()
    answer = browser.open(console.way_back(browser, "bob"))
    status, code, message = refused(answer)
    assert (status, code) == (403, "sign_in_refused"), message
    assert "`email`" in message and "bob" not in message and "guests" not in message, message
    assert console.session(browser)[0] == 401
    page = browser.open(console.way_back(browser, "bob"), headers={"accept": "text/html"})
    assert page[0] == 403 and page[2].startswith("<!doctype html>") and "Sign-in failed" in page[2]


def test_states_and_codes_of_others_are_refused(console):
    ann, mallory = Browser(), Browser()
    stolen = console.way_back(mallory, "ann")
    # Another browser, with its own sign-in under way and without one.
    assert refused(Browser().open(stolen))[:2] == (400, "sign_in_failed")
    console.begin(ann)
    assert "`state`" in refused(ann.open(stolen))[2]
    # The code of another sign-in with the state of one's own: the provider knows the verifier of neither.
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(stolen).query))
    own = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(console.begin(ann)).query))
    mixed = f"{console.back}?{urllib.parse.urlencode({**query, 'state': own['state']})}"
    status, code, message = refused(ann.open(mixed))
    assert (status, code) == (400, "sign_in_failed") and "refused the code" in message, message
    # A code is good once, even for a browser that keeps its cookie.
    victim = Browser()
    back = console.way_back(victim, "ann")
    kept = "; ".join(f"{cookie.name}={cookie.value}" for cookie in victim.cookies if cookie.name.startswith("headrace"))
    assert victim.open(back)[0] == 303
    replayed = Browser().open(back, headers={"cookie": kept})
    assert refused(replayed)[:2] == (400, "sign_in_failed") and "refused the code" in refused(replayed)[2]


def test_keys_are_rotated_and_rules_change_while_operators_are_signed_in(console):
    browser = Browser()
    assert browser.open(console.way_back(browser, "ann"))[0] == 303
    console.rotate()
    second = Browser()
    answer = second.open(console.way_back(second, "ann"))
    assert answer[0] == 303, answer
    assert console.session(browser)[1]["role"] == "admin"
    # The rules change: every session that they gave ends, and a new one has the new role.
    console.reload(console.settings(role="viewer"))
    assert console.session(browser)[0] == 401 and console.session(second)[0] == 401
    assert second.open(console.way_back(second, "ann"))[0] == 303
    assert console.session(second)[1]["role"] == "viewer"
    # A reload that changes nothing ends nothing, and a session survives a restart of the provider.
    console.reload(console.settings(role="viewer"))
    console.provider.stop()
    assert console.session(second)[0] == 200
    deadline, answer = time.monotonic() + 60, None
    console.provider = SignInProvider(console.kind, console.back, console.provider.port)
    while (answer := Browser().open(f"{console.url}/admin/v1/sign-in/acme"))[0] != 303:
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)


def test_a_provider_that_is_away_is_named_and_keys_still_sign_in(binary, tmp_path):
    console = Console("oidc-provider", tmp_path)
    try:
        console.provider.stop()
        status, code, message = refused(Browser().open(f"{console.url}/admin/v1/sign-in/acme"))
        assert (status, code) == (503, "provider_unavailable") and console.provider.issuer in message, message
        made = json.loads(console.server.run("operators", "create", "--name", "me", "--role", "owner", "--json").stdout)
        browser = Browser()
        status, _, page = browser.open(
            f"{console.url}/admin/v1/operators", headers={"authorization": f"Bearer {made['value']['key']}"}
        )
        assert status == 200, page
        console.provider = SignInProvider("oidc-provider", console.back, console.provider.port)
    finally:
        console.stop()
