"""Receipts and webhooks, read by the libraries that customers have: PyJWT, and Standard Webhooks' own."""

import hashlib
import http.server
import json
import queue
import threading

import jwt
import pytest
import standardwebhooks

from conftest import MODEL, say

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def made_call(server):
    """The id of a call."""
    create = server.openai().chat.completions.with_raw_response.create
    return create(model=MODEL, messages=say("What is prefill?"), max_tokens=4).headers["x-request-id"]


def public_keys(server):
    document = server.get("/.well-known/headrace-receipts.json")
    return {key["kid"]: jwt.PyJWK(key) for key in document["keys"]}


def test_another_library_verifies_a_receipt(server):
    identity = made_call(server)
    receipt = server.get(f"/v1/receipts/{identity}")
    header = jwt.get_unverified_header(receipt["jws"])
    assert (header["alg"], header["typ"]) == ("EdDSA", "headrace-receipt+jwt")
    key = public_keys(server)[header["kid"]]
    content = jwt.decode(receipt["jws"], key.key, algorithms=["EdDSA"])
    assert content == receipt["content"]
    assert (content["request"], content["model"]["served"]) == (identity, MODEL)
    trace = server.get(f"/v1/requests/{identity}")
    assert int(content["charged"]["nano_dollars"]) == trace["cost"]["charged_nano_dollars"]
    start, payload, signature = receipt["jws"].split(".")
    other = payload[:-2] + ("A" if payload[-2] != "A" else "B") + payload[-1]
    with pytest.raises(jwt.InvalidTokenError):
        jwt.decode(f"{start}.{other}.{signature}", key.key, algorithms=["EdDSA"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_receipt_has_the_hash_of_the_bytes_that_the_client_got(server, stream):
    create = server.openai().chat.completions.with_streaming_response.create
    with create(model=MODEL, messages=say("What is prefill?"), max_tokens=4, stream=stream) as answer:
        body = b"".join(answer.iter_bytes())
        identity = answer.headers["x-request-id"]
    sent = server.get(f"/v1/receipts/{identity}")["content"]["sent"]
    assert sent == {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
    assert server.get(f"/v1/requests/{identity}")["sent"] == sent


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Takes webhooks, and puts them into the server's queue."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.put((dict(self.headers.items()), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.received = queue.Queue()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_library_of_standard_webhooks_verifies_an_alert(start_server, endpoint, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    address = f"http://127.0.0.1:{endpoint.server_port}"
    webhook = f'{{ name = "ops", url = "{address}/hook", hosts = ["{address}"], secret_file = "{secret}" }}'
    budget = '{ name = "watch", each = "project", measure = "tokens", limit = 1000, soft = true, alerts = [1] }'
    server = start_server(HEADRACE_WEBHOOKS=f"[{webhook}]", HEADRACE_BUDGETS=f"[{budget}]")
    made_call(server)
    headers, body = endpoint.received.get(timeout=60)
    event = standardwebhooks.Webhook(SECRET).verify(body, {name.lower(): value for name, value in headers.items()})
    assert (event["type"], event["data"]["budget"], event["data"]["percent"]) == ("budget.alert", "watch", 1)
    changed = json.dumps({**event, "type": "other"}).encode()
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify(changed, {name.lower(): value for name, value in headers.items()})
