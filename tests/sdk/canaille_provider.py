"""An OpenID provider for tests: PyPI's `canaille` as a WSGI app, in an environment of its own (`target/venv-canaille`).

`python canaille_provider.py PORT REDIRECT`: each start makes new keys, so a second start at the same port
is a rotation. The client is `console`, the users are `ann` of the group `platform` and `bob` of none.
"""

import logging
import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from joserfc.jwk import RSAKey

PASSWORD = "correct horse battery staple"


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def main(port, redirect):
    server = make_server("127.0.0.1", port, None, handler_class=QuietHandler)
    address = f"127.0.0.1:{server.server_port}"
    key = RSAKey.generate_key(2048, auto_kid=True).as_dict(private=True)
    app = create_app(
        {
            "SECRET_KEY": "a secret of tests",
            "SERVER_NAME": address,
            "PREFERRED_URL_SCHEME": "http",
            "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False, "HTMX": False},
            "CANAILLE_CORE": {},
            "CANAILLE_OIDC": {"ACTIVE_JWKS": [key], "TRUSTED_DOMAINS": ["127.0.0.1"]},
        }
    )
    logging.disable(logging.CRITICAL)
    with app.app_context(), Backend.instance.session():
        users = {}
        for name in ["ann", "bob"]:
            users[name] = models.User(
                user_name=name, formatted_name=name.title(), family_name="Test", emails=[f"{name}@example.com"], password=PASSWORD
            )
            Backend.instance.save(users[name])
        Backend.instance.save(models.Group(display_name="platform", members=[users["ann"]]))
        client = models.Client(
            client_id="console",
            client_secret="client-secret",
            client_name="console",
            client_uri=f"http://{address}",
            redirect_uris=[redirect],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            scope=["openid", "profile", "email", "groups"],
            token_endpoint_auth_method="client_secret_basic",
        )
        Backend.instance.save(client)
        # Its tokens name it only then.
        client.audience = [client]
        Backend.instance.save(client)
    server.set_app(app)
    print(f"http://{address}", flush=True)
    server.serve_forever()


main(int(sys.argv[1]), sys.argv[2])
