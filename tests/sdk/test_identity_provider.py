"""Sign-in of callers with real OpenID providers: npm's `oidc-provider`, in `target/node`, where `xtask` installs it, and PyPI's `canaille`."""

import json
import pathlib
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode

import pytest

from conftest import MODEL, Server
from signing_in import SignInProvider
from test_typescript import HOME

SCRIPT = pathlib.Path(__file__).parent / "typescript" / "identity-provider.mjs"
SETTINGS = """
[[identity.issuers]]
issuer = "{issuer}"
audiences = ["headrace"]

[[identity.issuers.rules]]
when = {{ groups = "research" }}
project = "default"
role = "scientist"
requests_per_minute = 50
"""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


class Provider:
    """A running provider. A second one at the same port has other keys."""

    def __init__(self, algorithm, port=0):
        # Node looks for packages beside the file.
        copied = shutil.copy(SCRIPT, HOME)
        command = ["node", copied, str(port), algorithm]
        self.process = subprocess.Popen(command, cwd=HOME, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.issuer = self.process.stdout.readline().strip()
        assert self.issuer.startswith("http://127.0.0.1:"), self.issuer
        self.port = int(self.issuer.rsplit(":", 1)[1])

    def token(self, client="research-app", audience="headrace"):
        """An access token in JWT format, by the client's own credentials."""
        resource = f"https://{audience}.example.com"
        form = {"grant_type": "client_credentials", "resource": resource, "scope": "llm"}
        secret = b64encode(f"{client}:client-secret".encode()).decode()
        request = urllib.request.Request(
            self.issuer + "/token", urllib.parse.urlencode(form).encode(), {"authorization": f"Basic {secret}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["access_token"]

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def call(server, token, body=CHAT, path="/v1/chat/completions"):
    """Status, headers and JSON of a call with this token."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = urllib.request.Request(server.url + path, body and json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers, json.load(refusal)


def code(answer):
    status, _, body = answer
    return status, body["error"]["code"]


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256", "ES512", "EdDSA"])
def test_a_token_of_each_algorithm_is_accepted(algorithm, binary, tmp_path):
    provider = Provider(algorithm)
    server = Server(tmp_path, configuration=SETTINGS.format(issuer=provider.issuer))
    try:
        status, _, body = call(server, provider.token())
        assert status == 200, body
    finally:
        server.stop()
        provider.stop()


def test_a_provider_that_rotates_its_keys_and_goes_away(binary, tmp_path):
    provider = Provider("ES256")
    issuer, port = provider.issuer, provider.port
    server = Server(tmp_path, configuration=SETTINGS.format(issuer=issuer))
    try:
        first = provider.token()
        status, headers, body = call(server, first)
        assert status == 200, body
        # The user has the project, and limits of its own.
        assert server.openai(api_key=first).models.list().data[0].id == MODEL
        trace = server.get(f"/v1/requests/{headers['x-request-id']}")
        assert trace["token_user"] == {"issuer": issuer, "subject": "research-app", "role": "scientist"}
        assert trace["project"] == "default" and trace["key"].startswith("user_")
        shown = server.run("trace", headers["x-request-id"]).stdout
        assert f"research-app of {issuer}, role scientist" in shown, shown
        assert headers["x-ratelimit-limit-requests"] == "50"
        # Refusals name claims and no values.
        answer = call(server, provider.token("guest-app"))
        assert code(answer) == (403, "token_not_mapped")
        assert "`groups`" in answer[2]["error"]["message"] and "guests" not in answer[2]["error"]["message"]
        assert code(call(server, provider.token(audience="other"))) == (401, "invalid_token")
        assert code(call(server, first[:-4] + "AAAA")) == (401, "invalid_token")
        assert code(call(server, first, {"input_file_id": "file-1"}, "/v1/batches")) == (403, "endpoint_not_entitled")
        # A second provider with other keys at the same address.
        provider.stop()
        provider = Provider("ES256", port)
        second = provider.token()
        assert call(server, second)[0] == 200
        assert call(server, first)[0] == 200, "it was verified less than a minute ago"
        # Known keys stay in use while the provider is away.
        known = provider.token()
        provider.stop()
        assert call(server, known)[0] == 200
    finally:
        server.stop()
        if provider.process.poll() is None:
            provider.stop()


def test_a_provider_that_is_away_at_the_start(binary, tmp_path):
    provider = Provider("ES256")
    token, issuer, port = provider.token(), provider.issuer, provider.port
    provider.stop()
    server = Server(tmp_path, configuration=SETTINGS.format(issuer=issuer))
    try:
        status, headers, body = call(server, token)
        assert (status, body["error"]["code"]) == (503, "identity_provider_unavailable")
        assert 1 <= int(headers["retry-after"]) <= 32
        assert "cannot fetch the keys of an identity provider" in server.said()
        provider = Provider("ES256", port)
        token, deadline = provider.token(), time.monotonic() + 60
        while (status := call(server, token)[0]) != 200 and time.monotonic() < deadline:
            assert status == 503, "an unchecked token is never refused as wrong"
            time.sleep(0.5)
        assert status == 200
    finally:
        server.stop()
        if provider.process.poll() is None:
            provider.stop()


def test_without_a_provider_a_token_is_named_as_one(binary, tmp_path):
    provider = Provider("ES256")
    server = Server(tmp_path)
    try:
        answer = call(server, provider.token())
        assert code(answer) == (401, "jwt_not_configured")
        message = answer[2]["error"]["message"]
        assert "JWTs are not configured" in message and "[[identity.issuers]]" in message
    finally:
        server.stop()
        provider.stop()


def test_a_callers_access_token_of_another_provider_is_accepted(binary, tmp_path):
    back = "http://127.0.0.1:9/back"
    provider = SignInProvider("canaille", back)
    settings = f"""
[[identity.issuers]]
issuer = "{provider.issuer}"
audiences = ["console"]

[[identity.issuers.rules]]
when = {{ groups = "platform" }}
project = "default"
"""
    server = Server(tmp_path, configuration=settings)
    try:
        token, _ = provider.tokens(back, "ann")
        status, headers, body = call(server, token)
        assert status == 200, body
        trace = server.get(f"/v1/requests/{headers['x-request-id']}")
        assert trace["token_user"]["issuer"] == provider.issuer and trace["token_user"]["subject"] == "ann", trace
        assert code(call(server, provider.tokens(back, "bob")[0])) == (403, "token_not_mapped")
        assert code(call(server, token[:-4] + "AAAA")) == (401, "invalid_token")
        # A reload decides for tokens that were accepted before, too.
        path = tmp_path / "headrace.toml"
        path.write_text(settings.replace("platform", "other"))
        assert server.run("reload").returncode == 0
        assert code(call(server, token)) == (403, "token_not_mapped")
        path.write_text("")
        assert server.run("reload").returncode == 0
        assert code(call(server, token)) == (401, "jwt_not_configured")
        path.write_text(settings)
        assert server.run("reload").returncode == 0
        assert call(server, token)[0] == 200
    finally:
        server.stop()
        provider.stop()
