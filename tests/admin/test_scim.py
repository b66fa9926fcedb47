"""SCIM of a running server: every check of scim2-tester, and a provisioning cycle as Entra ID sends it, which ends with a
user whose key no call is made with any more.

HEADRACE_BIN names the binary (default: target/release/headrace of this checkout).
"""

import http.client
import json
import pathlib
import tempfile
import time
import urllib.parse

import httpx2
import pytest
from scim2_client.engines.httpx2 import SyncSCIMClient
from scim2_tester import Status, check_server

from test_admin_api import House

DEACTIVATION_S = 2


@pytest.fixture(scope="module")
def house():
    with tempfile.TemporaryDirectory() as directory:
        house = House(pathlib.Path(directory))
        yield house
        house.stop()


def secret_of(house, *arguments):
    """Creates a SCIM credential of the organisation `default`. Returns its id and its secret."""
    created = house.command("scim", "create", "default", *arguments)["value"]["of"]
    return created["credential"]["id"], created["secret"]


def test_every_check_of_scim2_tester_passes(house):
    _, secret = secret_of(house)
    with httpx2.Client(base_url=f"{house.url}/scim/v2", headers={"authorization": f"Bearer {secret}"}) as http_client:
        results = check_server(SyncSCIMClient(http_client))
    bad = [f"{result.status.name} {result.title} ({result.resource_type}): {result.reason}"
           for result in results if result.status not in (Status.SUCCESS, Status.SKIPPED)]
    assert not bad, "\n".join(bad)
    passed = sum(result.status == Status.SUCCESS for result in results)
    print(f"{passed} checks passed, {len(results) - passed} skipped")
    assert passed >= 40, f"only {passed} checks ran"


class EntraClient:
    """Sends requests as Entra ID's provisioning service: no `User-Agent`, `application/scim+json`."""

    def __init__(self, house, secret):
        self.place, self.secret = urllib.parse.urlsplit(house.url).netloc, secret

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.place, timeout=30)
        connection.putrequest(method, f"/scim/v2{path}", skip_accept_encoding=True)
        text = b"" if body is None else json.dumps(body).encode()
        for name, value in [("authorization", f"Bearer {self.secret}"), ("accept", "application/scim+json"),
                            ("content-type", "application/scim+json; charset=utf-8"), ("content-length", str(len(text)))]:
            connection.putheader(name, value)
        connection.endheaders(text)
        answer = connection.getresponse()
        read = answer.read().decode()
        connection.close()
        return answer.status, json.loads(read) if read else None

    def find(self, kind, filter_text):
        status, found = self.ask("GET", f"/{kind}?excludedAttributes=members&filter={urllib.parse.quote(filter_text)}")
        assert status == 200, found
        return found["Resources"]

    def patch(self, path, *operations):
        body = {"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": list(operations)}
        return self.ask("PATCH", path, body)


def call_status(house, key):
    place = house.command("status")["value"]["listen"].removeprefix("http://")
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
    status = connection.getresponse().status
    connection.close()
    return status


def wait_for_status(house, key, expected):
    started = time.monotonic()
    while (status := call_status(house, key)) != expected:
        assert time.monotonic() - started < DEACTIVATION_S, f"{status} after {DEACTIVATION_S} s, not {expected}"
        time.sleep(0.05)


def test_a_provisioning_cycle_as_entra_sends_it(house, tmp_path):
    credential, secret = secret_of(house, "--issuer", "https://login.microsoftonline.com/t/v2.0")
    entra = EntraClient(house, secret)
    assert entra.find("Users", 'userName eq "no-user-is-named-so"') == [], "the connection test"
    status, user = entra.ask("POST", "/Users", {
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User",
                    "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"],
        "externalId": "58342554-38d6-4ec8-948c-50044d0a33fd", "userName": "Test_User_ab6490ee@testuser.com", "active": True,
        "emails": [{"primary": True, "type": "work", "value": "ab6490ee@testuser.com"}],
        "meta": {"resourceType": "User"},
        "name": {"formatted": "Ann Lee", "familyName": "Lee", "givenName": "Ann"}, "roles": [],
        "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"department": "x", "manager": {"value": "y"}},
    })
    assert status == 201, user
    path = f"/Users/{user['id']}"
    assert [found["id"] for found in entra.find("Users", 'userName eq "test_user_AB6490ee@testuser.com"')] == [user["id"]]
    assert [found["id"] for found in entra.find("Users", 'externalId eq "58342554-38d6-4ec8-948c-50044d0a33fd"')] == [user["id"]]
    status, changed = entra.patch(
        path,
        {"op": "Replace", "path": "emails[type eq \"work\"].value", "value": "new@testuser.com"},
        {"op": "Replace", "path": "name.familyName", "value": "Li"},
        {"op": "Add", "path": "addresses[type eq \"work\"].country", "value": "DE"},
        {"op": "Add", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department", "value": "z"},
    )
    assert status == 200 and changed["emails"][0]["value"] == "new@testuser.com" and changed["name"]["familyName"] == "Li", changed

    status, group = entra.ask("POST", "/Groups", {
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:Group"], "externalId": "8aa1a0c0", "displayName": "Developers",
        "meta": {"resourceType": "Group"},
    })
    assert status == 201, group
    group_path = f"/Groups/{group['id']}"
    assert [found["id"] for found in entra.find("Groups", 'displayName eq "Developers"')] == [group["id"]]
    member = [{"value": user["id"]}]
    status, _ = entra.patch(group_path, {"op": "Add", "path": "members", "value": member})
    assert status in (200, 204)
    house.command("groups", "map", group["id"], "--role", "developer")
    operator = house.command("operators", "create", "--name", "ann", "--user", user["id"])["value"]
    assert operator["operator"]["role"] == "developer" and operator["operator"]["org"] == "default"
    bearer = {"authorization": f"Bearer {operator['key']}"}
    assert house.ask("GET", "/admin/v1/keys", headers=bearer)[0] == 200
    assert house.ask("GET", "/admin/v1/status", headers=bearer)[0] == 403, "it concerns the whole server"

    created = house.command("keys", "create", "--name", "of ann", "--owner", user["id"])["value"]
    key = created["secret"]
    assert call_status(house, key) == 200
    status, _ = entra.patch(path, {"op": "Replace", "path": "active", "value": "False"})
    assert status == 200
    wait_for_status(house, key, 401)
    assert house.ask("GET", "/admin/v1/keys", headers=bearer)[0] == 401, "the operator ends with the user"
    status, _ = entra.patch(path, {"op": "Replace", "path": "active", "value": "True"})
    assert status == 200
    wait_for_status(house, key, 200)

    status, body = entra.patch(group_path, {"op": "Remove", "path": "members", "value": [{"value": "usr_unknown"}]})
    assert status == 200 and len(body["members"]) == 1, "another member's removal does not empty the group"
    status, _ = entra.patch(group_path, {"op": "Remove", "path": "members", "value": member})
    assert status == 200
    assert house.ask("GET", "/admin/v1/keys", headers=bearer)[0] == 401, "the role came with the group"
    assert entra.ask("DELETE", group_path)[0] == 204
    assert entra.ask("DELETE", path)[0] == 204
    wait_for_status(house, key, 401)
    status, gone = entra.ask("GET", path)
    assert status == 404 and gone["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:Error"], gone

    house.command("scim", "revoke", credential)
    assert entra.ask("GET", "/Users")[0] == 401
