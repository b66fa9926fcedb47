"""Makes what a test of client certificates needs, in the folder that it is given: an authority, a server's certificate, two clients'
certificates, a revocation list, the keys of an issuer, and tokens for the address of that issuer.

Runs in the environment of `canaille_provider.py`, which has the libraries: `python made_certificates.py FOLDER ISSUER`.
"""

import base64
import datetime
import ipaddress
import json
import pathlib
import sys
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from joserfc import jwt
from joserfc.jwk import ECKey

FOLDER, ISSUER = pathlib.Path(sys.argv[1]), sys.argv[2]
NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


def made(name, alternatives, issuer=None):
    """A key and a certificate, written to files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[1].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(issuer[0] if issuer else key, hashes.SHA256())
    (FOLDER / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (FOLDER / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return key, certificate


authority = made("authority", [])
made("server", [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], authority)
agent = made("agent", [x509.UniformResourceIdentifier("spiffe://acme/agent")], authority)
made("plain", [x509.DNSName("plain.example.com")], authority)
made("stranger", [x509.UniformResourceIdentifier("spiffe://acme/agent")], made("other-authority", []))

for name, revoked in [("none-revoked", []), ("agent-revoked", [agent[1].serial_number])]:
    crl = x509.CertificateRevocationListBuilder().issuer_name(authority[1].subject)
    crl = crl.last_update(NOW - DAY).next_update(NOW + DAY)
    for serial in revoked:
        crl = crl.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW - DAY).build()
        )
    crl = crl.add_extension(x509.CRLNumber(1), critical=False)
    signed = crl.sign(authority[0], hashes.SHA256())
    (FOLDER / f"{name}.crl").write_bytes(signed.public_bytes(serialization.Encoding.PEM))

key = ECKey.generate_key("P-256", auto_kid=True)
(FOLDER / "jwks.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
thumbprint = base64.urlsafe_b64encode(agent[1].fingerprint(hashes.SHA256())).decode().rstrip("=")
claims = {"iss": ISSUER, "sub": "ann", "aud": "headrace", "iat": int(time.time()), "exp": int(time.time()) + 3600}
header = {"alg": "ES256", "kid": key.kid}
(FOLDER / "bearer.jwt").write_text(jwt.encode(header, claims, key))
(FOLDER / "bound.jwt").write_text(jwt.encode(header, {**claims, "cnf": {"x5t#S256": thumbprint}}, key))
