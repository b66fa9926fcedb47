"""Clients that show certificates: by a name of the certificate, by a token that is bound to it, and beside keys."""

import http.client
import json
import ssl
import subprocess

import pytest

from conftest import KEY, MODEL, Server
from listening import Handler, Listening
from signing_in import CANAILLE, HERE

SETTINGS = """
[server]
tls_cert = "{folder}/server.pem"
tls_key = "{folder}/server.key"
client_ca = "{folder}/authority.pem"
client_certificates = "{how}"
client_crl = "{folder}/current.crl"

[[identity.certificates]]
names = ["spiffe://acme/agent"]
project = "default"
requests_per_minute = 50

[[identity.issuers]]
issuer = "{issuer}"
audiences = ["headrace"]
rules = [{{ project = "default" }}]
"""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


class TlsServer(Server):
    def _await_address(self):
        return super()._await_address().replace("http://", "https://")

    def _await_ready(self):
        while " is ready" not in self.said():
            self._alive()


@pytest.fixture
def issuer(tmp_path):
    """An issuer of tokens, whose documents are in `tmp_path`."""

    class Documents(Handler):
        def do_GET(self):
            if self.path.endswith("/openid-configuration"):
                found = json.dumps({"issuer": listening.url, "jwks_uri": f"{listening.url}/jwks"}).encode()
            else:
                found = (tmp_path / "jwks.json").read_bytes()
            self.answer(found, content_type="application/json")

    listening = Listening(Documents)
    subprocess.run([CANAILLE, HERE / "made_certificates.py", tmp_path, listening.url], check=True)
    (tmp_path / "current.crl").write_bytes((tmp_path / "none-revoked.crl").read_bytes())
    yield listening.url
    listening.stop()


def call(server, folder, certificate=None, credential=None):
    """Status and JSON of a call, or 0 and the error of a connection that was refused."""
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    if certificate:
        context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    host = server.url.removeprefix("https://")
    connection = http.client.HTTPSConnection(host, context=context, timeout=60)
    headers = {"content-type": "application/json"}
    if credential:
        headers["authorization"] = f"Bearer {credential}"
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected) as error:
        return 0, str(error)
    finally:
        connection.close()


def code(answer):
    status, body = answer
    return status, body["error"]["code"]


def test_certificates_keys_and_bound_tokens(binary, tmp_path, issuer):
    server = TlsServer(tmp_path, configuration=SETTINGS.format(folder=tmp_path, how="optional", issuer=issuer))
    bearer, bound = ((tmp_path / f"{name}.jwt").read_text() for name in ("bearer", "bound"))
    try:
        # A name of the certificate is enough.
        assert call(server, tmp_path, "agent")[0] == 200
        # A certificate without a rule gives nothing, and takes nothing from other credentials.
        assert code(call(server, tmp_path, "plain")) == (403, "token_not_mapped")
        assert call(server, tmp_path, "plain", KEY)[0] == 200
        assert call(server, tmp_path, "plain", bearer)[0] == 200
        assert call(server, tmp_path, None, KEY)[0] == 200
        assert code(call(server, tmp_path)) == (401, "missing_api_key")
        # A bound token with its certificate, without one, and with another one. Twice: the second time it is known.
        for _ in range(2):
            assert call(server, tmp_path, "agent", bound)[0] == 200
            status, body = call(server, tmp_path, None, bound)
            assert (status, body["error"]["code"]) == (401, "invalid_token") and "the connection has none" in str(body)
            status, body = call(server, tmp_path, "plain", bound)
            assert (status, body["error"]["code"]) == (401, "invalid_token") and "another certificate" in str(body)
        # Two credentials.
        assert code(call(server, tmp_path, "agent", KEY)) == (401, "conflicting_credentials")
        assert code(call(server, tmp_path, "agent", bearer)) == (401, "conflicting_credentials")
        # A certificate of another authority, and a revoked one.
        status, why = call(server, tmp_path, "stranger", KEY)
        assert status == 0, why
        (tmp_path / "current.crl").write_bytes((tmp_path / "agent-revoked.crl").read_bytes())
        assert server.run("reload").returncode == 0
        status, why = call(server, tmp_path, "agent")
        assert status == 0, why
        assert call(server, tmp_path, "plain", KEY)[0] == 200
    finally:
        server.stop()


def test_a_listener_that_requires_certificates(binary, tmp_path, issuer):
    server = TlsServer(tmp_path, configuration=SETTINGS.format(folder=tmp_path, how="required", issuer=issuer))
    try:
        assert call(server, tmp_path, "agent")[0] == 200
        assert call(server, tmp_path, "plain", KEY)[0] == 200
        status, why = call(server, tmp_path, None, KEY)
        assert status == 0, why
    finally:
        server.stop()


def test_settings_of_certificates_that_do_not_fit_are_named(binary, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('[server]\nclient_crl = "x"\n[[identity.certificates]]\nnames = ["agent.example.com"]\nproject = "p"\n')
    checked = subprocess.run([str(binary), "config", "check", "--config", path], capture_output=True, text=True)
    said = checked.stdout + checked.stderr
    assert checked.returncode != 0
    for expected in [
        "server.client_crl: needs `server.client_ca`",
        "identity.certificates: needs `server.client_ca`",
        'write a DNS name as "dns:agent.example.com"',
    ]:
        assert expected in said, said
