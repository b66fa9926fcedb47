//! The public keys of a provider: a JWK set (RFC 7517) as keys that verify. Keys that this server cannot use are left
//! out. Must not know tokens or where the set comes from.

use aws_lc_rs::signature::{ED25519, ParsedPublicKey, RsaPublicKeyComponents};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use crate::algorithm::SignatureAlgorithm;

/// Maximum number of keys that are read from a set.
const MAX_KEYS: usize = 128;
/// Maximum length of a key's id in bytes.
const MAX_KEY_ID_BYTES: usize = 256;

/// The keys of a provider.
#[derive(Debug, Default)]
pub(crate) struct KeySet {
    keys: Vec<VerificationKey>,
}

/// A public key with the algorithms that it may be used with.
#[derive(Debug)]
struct VerificationKey {
    id: Option<String>,
    algorithms: Vec<(SignatureAlgorithm, ParsedPublicKey)>,
}

/// The result of looking a key up.
pub(crate) enum KeyMatch<'a> {
    /// The key, for this algorithm.
    Found(&'a ParsedPublicKey),
    /// The key exists, and is for other algorithms.
    OtherAlgorithm,
    /// The set has no such key. Also if the token names no key and several would fit.
    Unknown,
}

#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct JsonWebKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    key_use: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Parses a JWK set.
    ///
    /// # Errors
    /// The document is no JWK set, has too many keys, or has no key that this server can use.
    pub(crate) fn parse(document: &[u8]) -> Result<Self, String> {
        let set: JwkSet =
            serde_json::from_slice(document).map_err(|error| format!("is no JWK set: {error}"))?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("has {} keys; at most {MAX_KEYS} are read", set.keys.len()));
        }
        let all = set.keys.len();
        let usable = |key: serde_json::Value| VerificationKey::of(serde_json::from_value(key).ok()?);
        let keys: Vec<_> = set.keys.into_iter().filter_map(usable).collect();
        if keys.is_empty() {
            return Err(format!(
                "has {all} keys, and none for RS, PS or ES 256 to 512 or EdDSA; RSA keys need 2048 bits"
            ));
        }
        Ok(Self { keys })
    }

    /// Looks up the key that a token names, for the token's algorithm.
    pub(crate) fn find(&self, id: Option<&str>, algorithm: SignatureAlgorithm) -> KeyMatch<'_> {
        let Some(id) = id else {
            let mut fitting = self.keys.iter().filter_map(|key| key.for_algorithm(algorithm));
            return match (fitting.next(), fitting.next()) {
                (Some(key), None) => KeyMatch::Found(key),
                _ => KeyMatch::Unknown,
            };
        };
        let mut named = self.keys.iter().filter(|key| key.id.as_deref() == Some(id)).peekable();
        if named.peek().is_none() {
            return KeyMatch::Unknown;
        }
        named.find_map(|key| key.for_algorithm(algorithm)).map_or(KeyMatch::OtherAlgorithm, KeyMatch::Found)
    }

    /// Returns `true` if both sets have keys with the same ids.
    pub(crate) fn has_ids_of(&self, other: &Self) -> bool {
        self.keys.iter().map(|key| &key.id).eq(other.keys.iter().map(|key| &key.id))
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

impl VerificationKey {
    fn for_algorithm(&self, algorithm: SignatureAlgorithm) -> Option<&ParsedPublicKey> {
        self.algorithms.iter().find(|(own, _)| *own == algorithm).map(|(_, key)| key)
    }

    /// Returns `None` if the key is for another purpose, of another type, or malformed.
    fn of(jwk: JsonWebKey) -> Option<Self> {
        let JsonWebKey { kty, kid, alg, key_use, key_ops, crv, n, e, x, y } = jwk;
        let is_for_signatures = key_use.is_none_or(|purpose| purpose == "sig")
            && key_ops.is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        if !is_for_signatures || kid.as_ref().is_some_and(|id| id.len() > MAX_KEY_ID_BYTES) {
            return None;
        }
        // A key whose `alg` this server does not know is not usable.
        let own = match alg {
            Some(name) => Some(SignatureAlgorithm::named(&name)?),
            None => None,
        };
        let algorithms = match kty.as_str() {
            "RSA" => rsa_keys(&decode(&n?)?, &decode(&e?)?),
            "EC" => elliptic_key(&crv?, &decode(&x?)?, &decode(&y?)?).into_iter().collect(),
            "OKP" if crv.as_deref() == Some("Ed25519") => {
                let key = ParsedPublicKey::new(&ED25519, decode(&x?)?).ok()?;
                vec![(SignatureAlgorithm::EdDsa, key)]
            }
            _ => return None,
        };
        let algorithms: Vec<_> =
            algorithms.into_iter().filter(|(of, _)| own.is_none_or(|own| own == *of)).collect();
        (!algorithms.is_empty()).then_some(Self { id: kid, algorithms })
    }
}

fn rsa_keys(n: &[u8], e: &[u8]) -> Vec<(SignatureAlgorithm, ParsedPublicKey)> {
    /// 2,048 and 8,192 bits.
    const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
    let first = n.iter().position(|&byte| byte != 0).unwrap_or(n.len());
    let n = n.get(first..).unwrap_or_default();
    // The first byte of a modulus of 2,048 bits has its highest bit set.
    if !MODULUS_BYTES.contains(&n.len()) || (n.len() == 256 && n.first().is_some_and(|&byte| byte < 0x80)) {
        return Vec::new();
    }
    let components = RsaPublicKeyComponents { n, e };
    let parsed = |of: SignatureAlgorithm| Some((of, components.to_parsed_public_key(of.rsa()?).ok()?));
    SignatureAlgorithm::OF_RSA.into_iter().filter_map(parsed).collect()
}

fn elliptic_key(crv: &str, x: &[u8], y: &[u8]) -> Option<(SignatureAlgorithm, ParsedPublicKey)> {
    let (algorithm, parameters, coordinate_bytes) = SignatureAlgorithm::of_curve(crv)?;
    if x.len() != coordinate_bytes || y.len() != coordinate_bytes {
        return None;
    }
    // An uncompressed point (SEC 1, 2.3.3). A point that is not on the curve is rejected.
    let point = [&[4], x, y].concat();
    Some((algorithm, ParsedPublicKey::new(parameters, point).ok()?))
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
