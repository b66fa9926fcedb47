//! An identity provider for tests: a key, its JWK set over HTTP, and the tokens that it signs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]
#![allow(dead_code, reason = "not every test file uses all helpers")]

use headrace_domain::{Clock as _, SystemClock};
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// The audience of all tokens.
pub(crate) const AUDIENCE: &str = "headrace";

/// A running provider. It ends with the test's runtime.
pub(crate) struct TokenIssuer {
    key: KeyPair,
    /// Its `iss`.
    pub(crate) url: String,
}

impl TokenIssuer {
    /// Starts a provider on a free port.
    pub(crate) async fn start() -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let jwk = json!({"kty": "OKP", "kid": "k", "crv": "Ed25519", "x": base64url(key.public_key_raw())});
        let keys = json!({"keys": [jwk]}).to_string();
        let discovery = json!({"issuer": url, "jwks_uri": format!("{url}/keys")}).to_string();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (keys, discovery) = (keys.clone(), discovery.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let mut byte = [0];
                        if client.read(&mut byte).await.unwrap_or(0) == 0 {
                            return;
                        }
                        head.push(byte[0]);
                    }
                    let body = if head.starts_with(b"GET /keys ") { &keys } else { &discovery };
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = client.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { key, url }
    }

    /// The settings with which a server accepts its tokens for the project `default`, with more lines in the table.
    pub(crate) fn settings(&self, more: &str) -> String {
        format!(
            "[[identity.issuers]]\nissuer = \"{}\"\naudiences = [\"{AUDIENCE}\"]\n{more}\n\
             [[identity.issuers.rules]]\nproject = \"default\"\n",
            self.url
        )
    }

    /// A token of a user for an hour, with more claims.
    pub(crate) fn token(&self, subject: &str, more: Value) -> String {
        let now = SystemClock::new().now().get() / 1_000_000_000;
        let mut claims =
            json!({"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 3600});
        let Value::Object(more) = more else { panic!("claims are an object") };
        claims.as_object_mut().unwrap().extend(more);
        let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": "k"}).to_string();
        let signed = [header, claims.to_string()].map(|part| base64url(part.as_bytes())).join(".");
        let signature = self.key.sign(signed.as_bytes()).unwrap();
        format!("{signed}.{}", base64url(&signature))
    }
}

/// Base64 with the alphabet of URLs, without padding (RFC 4648, 5).
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(word >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text
}
