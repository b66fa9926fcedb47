//! Texts that this program signs: JSON in compact form (JWS, RFC 7515) with Ed25519 keys (RFC 8037), the published set of
//! public keys, and the check of a signed text. Must not know what the JSON says.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::zeroize::Zeroizing;
use serde_json::{Map, Value, json};

use crate::json::parse_object;

/// Separates the seeds of signing keys from all other uses of a secret.
const DERIVATION: &[u8] = b"headrace 2026 signing key v1";
/// The only algorithm of signed texts.
const ALGORITHM: &str = "EdDSA";
/// Maximum length of a signed text in bytes.
pub const MAX_SIGNED_TEXT_BYTES: usize = 64 << 10;
/// Maximum number of keys that are read from a set.
const MAX_KEYS: usize = 1_024;

/// A key that signs texts.
pub struct TextSigningKey {
    pair: Ed25519KeyPair,
    id: String,
}

impl fmt::Debug for TextSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextSigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A public key that verifies signed texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextVerificationKey {
    /// The key's id: the SHA-256 thumbprint of its JWK (RFC 7638), in base64url.
    pub id: String,
    /// The 32 bytes of the Ed25519 public key.
    pub public: Vec<u8>,
}

/// The public keys that verify signed texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextKeySet {
    keys: Vec<TextVerificationKey>,
}

/// Why a signed text is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedTextError {
    /// The text is not a JWS in compact form with one JSON object.
    Malformed(&'static str),
    /// The header names another algorithm, type or extension.
    Header(&'static str),
    /// The set has no key with this id.
    UnknownKey(String),
    /// The signature does not belong to the text and the key.
    Signature,
    /// A set of keys cannot be read.
    KeySet(String),
    /// The bytes are not a private key.
    PrivateKey,
}

impl fmt::Display for SignedTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "it is not a signed text: {why}"),
            Self::Header(why) => write!(f, "its header is not accepted: {why}"),
            Self::UnknownKey(id) => write!(f, "the set has no key `{id}`"),
            Self::Signature => {
                f.write_str("the signature does not match: the text was changed, or another key signed it")
            }
            Self::KeySet(why) => write!(f, "the set of keys cannot be read: {why}"),
            Self::PrivateKey => f.write_str("the private key cannot be used"),
        }
    }
}

impl std::error::Error for SignedTextError {}

impl TextSigningKey {
    /// Derives a key from a secret of 32 random bytes (the seed of RFC 8032).
    ///
    /// # Errors
    /// [`SignedTextError::PrivateKey`] if the library refuses the bytes.
    pub fn of_seed(seed: &[u8; 32]) -> Result<Self, SignedTextError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| SignedTextError::PrivateKey)?;
        let id = thumbprint(pair.public_key().as_ref());
        Ok(Self { pair, id })
    }

    /// Derives the key for a purpose, such as `audit`, from a secret of 32 random bytes (HKDF-SHA256, RFC 5869). Another
    /// purpose makes another key.
    ///
    /// # Errors
    /// [`SignedTextError::PrivateKey`] if the library refuses the bytes.
    pub fn derive(secret: &[u8; 32], purpose: &'static str) -> Result<Self, SignedTextError> {
        let mut seed = Zeroizing::new([0; 32]);
        let key = Salt::new(HKDF_SHA256, DERIVATION).extract(secret);
        let info = [purpose.as_bytes()];
        let expanded = key.expand(&info, HKDF_SHA256).map_err(|_| SignedTextError::PrivateKey)?;
        expanded.fill(seed.as_mut_slice()).map_err(|_| SignedTextError::PrivateKey)?;
        Self::of_seed(&seed)
    }

    /// The public part.
    pub fn verification_key(&self) -> TextVerificationKey {
        TextVerificationKey { id: self.id.clone(), public: self.pair.public_key().as_ref().to_vec() }
    }

    /// Signs JSON as a text of type `kind` (`typ` of the header). The same JSON always gives the same text.
    pub fn sign(&self, kind: &str, payload: &Value) -> String {
        let header = json!({ "alg": ALGORITHM, "kid": self.id, "typ": kind });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(payload));
        let signature = self.pair.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

impl TextKeySet {
    /// Makes a set of keys.
    pub fn new(keys: Vec<TextVerificationKey>) -> Self {
        Self { keys }
    }

    /// The keys, in the order of the set.
    pub fn keys(&self) -> &[TextVerificationKey] {
        &self.keys
    }

    /// The set as a JWK set (RFC 7517).
    pub fn json(&self) -> Value {
        let key = |key: &TextVerificationKey| {
            json!({
                "kty": "OKP",
                "crv": "Ed25519",
                "x": URL_SAFE_NO_PAD.encode(&key.public),
                "kid": key.id,
                "alg": ALGORITHM,
                "use": "sig",
            })
        };
        json!({ "keys": self.keys.iter().map(key).collect::<Vec<_>>() })
    }

    /// Parses a JWK set. Keys of other kinds are left out.
    ///
    /// # Errors
    /// [`SignedTextError::KeySet`] if the document is no JWK set, or has no Ed25519 key.
    pub fn parse(document: &[u8]) -> Result<Self, SignedTextError> {
        let broken = |why: &str| SignedTextError::KeySet(why.to_owned());
        let set: Value =
            serde_json::from_slice(document).map_err(|error| SignedTextError::KeySet(error.to_string()))?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or_else(|| broken("it has no `keys`"))?;
        if keys.len() > MAX_KEYS {
            return Err(broken("it has too many keys"));
        }
        let key = |key: &Value| {
            let text = |name: &str| key.get(name).and_then(Value::as_str);
            if text("kty") != Some("OKP") || text("crv") != Some("Ed25519") {
                return None;
            }
            let public = URL_SAFE_NO_PAD.decode(text("x")?).ok().filter(|public| public.len() == 32)?;
            let id = text("kid").map_or_else(|| thumbprint(&public), str::to_owned);
            Some(TextVerificationKey { id, public })
        };
        let keys: Vec<_> = keys.iter().filter_map(key).collect();
        if keys.is_empty() {
            return Err(broken("it has no Ed25519 key"));
        }
        Ok(Self { keys })
    }

    /// Verifies a signed text of type `kind`, and returns its JSON with the key that signed it.
    ///
    /// # Errors
    /// The text is malformed, of another type, from an unknown key, or was changed. Every byte of the text counts: a
    /// base64url part with unused bits is malformed.
    pub fn verify(
        &self,
        kind: &str,
        text: &str,
    ) -> Result<(Map<String, Value>, &TextVerificationKey), SignedTextError> {
        let malformed = SignedTextError::Malformed;
        if text.len() > MAX_SIGNED_TEXT_BYTES {
            return Err(malformed("it is too long"));
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(malformed("it has no dots"))?;
        let (header, payload) = signed.split_once('.').ok_or(malformed("it has one dot instead of two"))?;
        let object = |part: &str| parse_object(&URL_SAFE_NO_PAD.decode(part).ok()?);
        let header = object(header).ok_or(malformed("its header is no base64url of a JSON object"))?;
        let field = |name: &str| header.get(name).and_then(Value::as_str);
        if field("alg") != Some(ALGORITHM) {
            return Err(SignedTextError::Header("`alg` is not EdDSA"));
        }
        if field("typ") != Some(kind) {
            return Err(SignedTextError::Header("`typ` is of another kind of text"));
        }
        if header.contains_key("crit") {
            return Err(SignedTextError::Header("`crit` asks for an extension"));
        }
        let id = field("kid").ok_or(SignedTextError::Header("`kid` is missing"))?;
        let signature = URL_SAFE_NO_PAD.decode(signature);
        let signature = signature.map_err(|_| malformed("its signature is no base64url"))?;
        let mut named = self.keys.iter().filter(|key| key.id == id).peekable();
        if named.peek().is_none() {
            return Err(SignedTextError::UnknownKey(id.to_owned()));
        }
        let verifies = |key: &&TextVerificationKey| {
            let public = UnparsedPublicKey::new(&ED25519, &key.public);
            public.verify(signed.as_bytes(), &signature).is_ok()
        };
        let key = named.find(verifies).ok_or(SignedTextError::Signature)?;
        let payload = object(payload).ok_or(malformed("its payload is no base64url of a JSON object"))?;
        Ok((payload, key))
    }
}

/// The thumbprint of an Ed25519 public key (RFC 7638, RFC 8037).
fn thumbprint(public: &[u8]) -> String {
    let jwk = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, URL_SAFE_NO_PAD.encode(public));
    URL_SAFE_NO_PAD.encode(digest(&SHA256, jwk.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(payload: &Value) -> (String, TextKeySet) {
        let key = TextSigningKey::of_seed(&[7; 32]).unwrap();
        (key.sign("example+jwt", payload), TextKeySet::new(vec![key.verification_key()]))
    }

    #[test]
    fn the_example_of_rfc_8037_has_its_thumbprint() {
        let public = URL_SAFE_NO_PAD.decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
        assert_eq!(thumbprint(&public), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn a_changed_byte_at_any_position_is_refused() {
        let (text, keys) = signed(&json!({ "a": 1, "b": ["two", null] }));
        let (payload, key) = keys.verify("example+jwt", &text).unwrap();
        assert_eq!((payload["a"].as_i64(), &key.id), (Some(1), &keys.keys()[0].id));
        for at in 0..text.len() {
            for other in ["A", "_", ".", "!"] {
                if text[at..=at] != *other {
                    let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                    assert!(keys.verify("example+jwt", &changed).is_err(), "byte {at} as {other}");
                }
            }
        }
        assert_eq!(
            keys.verify("other+jwt", &text),
            Err(SignedTextError::Header("`typ` is of another kind of text"))
        );
    }

    #[test]
    fn each_secret_and_purpose_has_its_own_derived_key() {
        let key = |secret: u8, purpose| {
            let key = TextSigningKey::derive(&[secret; 32], purpose).unwrap();
            assert!(format!("{key:?}").contains(&key.id) && !format!("{key:?}").contains("pair"), "{key:?}");
            key.verification_key()
        };
        let own = key(7, "audit");
        assert_eq!(key(7, "audit"), own);
        let seeded = TextSigningKey::of_seed(&[7; 32]).unwrap().verification_key();
        for other in [key(7, "other"), key(8, "audit"), seeded] {
            assert!(other.id != own.id && other.public != own.public);
        }
    }

    #[test]
    fn the_published_set_is_read_again_and_other_keys_are_refused() {
        let (text, keys) = signed(&json!({}));
        let published = keys.json().to_string();
        assert_eq!(TextKeySet::parse(published.as_bytes()).unwrap(), keys);
        let other = TextSigningKey::of_seed(&[8; 32]).unwrap().verification_key();
        let others = TextKeySet::new(vec![other.clone()]);
        assert!(matches!(others.verify("example+jwt", &text), Err(SignedTextError::UnknownKey(_))));
        let renamed = TextVerificationKey { id: keys.keys()[0].id.clone(), ..other };
        let renamed = TextKeySet::new(vec![renamed]);
        assert_eq!(renamed.verify("example+jwt", &text), Err(SignedTextError::Signature));
        for broken in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"RSA"}]}"#] {
            assert!(TextKeySet::parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn headers_that_ask_for_something_else_are_refused() {
        let (_, keys) = signed(&json!({}));
        let part = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let id = &keys.keys()[0].id;
        for header in [
            r#"{"alg":"none","typ":"example+jwt"}"#.to_owned(),
            format!(r#"{{"alg":"HS256","typ":"example+jwt","kid":"{id}"}}"#),
            format!(r#"{{"alg":"EdDSA","typ":"example+jwt","kid":"{id}","crit":["b64"]}}"#),
            r#"{"alg":"EdDSA","typ":"example+jwt"}"#.to_owned(),
        ] {
            let text = format!("{}.{}.", part(&header), part("{}"));
            assert!(matches!(keys.verify("example+jwt", &text), Err(SignedTextError::Header(_))), "{header}");
        }
    }
}
