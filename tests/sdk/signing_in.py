"""A browser that signs in at OpenID providers, and two providers: npm's `oidc-provider` and PyPI's `canaille`."""

import base64
import hashlib
import html
import http.cookiejar
import json
import pathlib
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from test_typescript import HOME

HERE = pathlib.Path(__file__).parent
CANAILLE = HERE.parents[1] / "target" / "venv-canaille" / "bin" / "python"
FIELDS = {"login": None, "password": "correct horse battery staple"}
"""What a person writes into a form; the login is the person's name."""


class SignInProvider:
    """A running provider. A second one at the same port has other keys."""

    def __init__(self, kind, redirect, port=0):
        if kind == "canaille":
            command = [CANAILLE, HERE / "canaille_provider.py", str(port), redirect]
        else:
            # Node looks for packages beside the file.
            copied = shutil.copy(HERE / "typescript" / "sign-in-provider.mjs", HOME)
            command = ["node", copied, str(port), "ES256", redirect]
        self.process = subprocess.Popen(
            command, cwd=HOME, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.issuer = self.process.stdout.readline().strip()
        assert self.issuer.startswith("http://127.0.0.1:"), self.issuer
        self.port = int(self.issuer.rsplit(":", 1)[1])

    def tokens(self, redirect, person):
        """The access token and the ID token of a person, as any client gets them."""
        verifier = "v" * 64
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code", "client_id": "console", "redirect_uri": redirect, "scope": "openid email groups",
            "state": "s", "nonce": "n", "code_challenge": challenge, "code_challenge_method": "S256",
        }
        with urllib.request.urlopen(f"{self.issuer}/.well-known/openid-configuration") as answer:
            found = json.load(answer)
        browser = Browser()
        back = browser.sign_in(f"{found['authorization_endpoint']}?{urllib.parse.urlencode(asked)}", person, redirect)
        code = urllib.parse.parse_qs(urllib.parse.urlsplit(back).query)["code"][0]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
        secret = base64.b64encode(b"console:client-secret").decode()
        status, _, page = browser.open(found["token_endpoint"], form, {"authorization": f"Basic {secret}"})
        assert status == 200, page
        answer = json.loads(page)
        return answer["access_token"], answer["id_token"]

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)
        self.process.stdout.close()


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Browser:
    """Keeps cookies, follows addresses one by one, and fills in the forms of providers."""

    def __init__(self):
        self.cookies = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies), _Stay())

    def open(self, url, form=None, headers=()):
        """Status, headers and text of an answer."""
        data = urllib.parse.urlencode(form).encode() if form else None
        request = urllib.request.Request(url, data, dict(headers))
        try:
            answer = self.opener.open(request, timeout=60)
        except urllib.error.HTTPError as other:
            answer = other
        with answer:
            return answer.status, answer.headers, answer.read().decode()

    def sign_in(self, url, person, back):
        """Goes where `url` leads, signs in as a person, and returns the address that begins with `back`."""
        for _ in range(16):
            status, headers, page = self.open(url)
            if status == 200:
                form = re.search(r"<form.*?</form>", page, re.S)
                assert form, page
                fields = _filled(form[0], person)
                action = re.search(r'<form[^>]*\baction="([^"]+)"', form[0])
                url = urllib.parse.urljoin(url, html.unescape(action[1])) if action else url
                status, headers, page = self.open(url, fields)
            assert status in (302, 303), (status, url, page)
            url = urllib.parse.urljoin(url, headers["location"])
            if url.startswith(back):
                return url
        raise AssertionError(f"the way to {back} does not end")


def _filled(form, person):
    fields = {}
    for field in re.findall(r"<input[^>]*>", form):
        name, value = (re.search(rf'\b{what}="([^"]*)"', field) for what in ("name", "value"))
        if name:
            fields[name[1]] = html.unescape(value[1]) if value else ""
    for name, value in FIELDS.items():
        if name in fields:
            fields[name] = value or person
    return fields
