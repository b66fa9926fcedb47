//! A token, split and decoded, with nothing verified yet (RFC 7515, RFC 7519). Must not know keys or issuers.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_identity::MAX_TOKEN_BYTES;
use serde_json::{Map, Value};

use crate::TokenRefusal;
use crate::algorithm::SignatureAlgorithm;
use crate::json::parse_object;

/// A decoded token whose signature has not been checked. Header fields that name keys (`jwk`, `jku`, `x5c`, `x5u`) are
/// ignored: keys come from the issuer only.
pub(crate) struct UnverifiedToken<'a> {
    /// Header and payload as they were signed.
    pub(crate) signed: &'a [u8],
    pub(crate) signature: Vec<u8>,
    pub(crate) algorithm: SignatureAlgorithm,
    pub(crate) key_id: Option<String>,
    /// Whether `typ` says that it is an access token, and so no ID token.
    pub(crate) is_access_token: bool,
    pub(crate) claims: Map<String, Value>,
}

impl<'a> UnverifiedToken<'a> {
    /// Decodes a token in compact form.
    ///
    /// # Errors
    /// The token is too long or malformed, or its header asks for something that is not accepted.
    pub(crate) fn parse(token: &'a str) -> Result<Self, TokenRefusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenRefusal::TooLong { bytes: token.len() });
        }
        let malformed = |what| TokenRefusal::Malformed { what };
        let (signed, signature) = token.rsplit_once('.').ok_or(malformed("it has no dots"))?;
        let (header, payload) = signed.split_once('.').ok_or(malformed("it has one dot instead of two"))?;
        if payload.contains('.') {
            return Err(malformed("it has more than three parts; encrypted tokens are not accepted"));
        }
        let header = object(header).ok_or(malformed("its header is no base64url of one JSON object"))?;
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(SignatureAlgorithm::named);
        let algorithm = algorithm.ok_or(TokenRefusal::Algorithm)?;
        if header.contains_key("crit") {
            return Err(TokenRefusal::CriticalExtension);
        }
        let of_type = |wanted: &str| header.get("typ").is_some_and(|typ| is_type(typ, wanted));
        let is_access_token = of_type("at+jwt");
        if header.contains_key("typ") && !is_access_token && !of_type("JWT") {
            return Err(TokenRefusal::Type);
        }
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return Err(malformed("its `kid` is no text")),
        };
        let claims = object(payload).ok_or(malformed("its payload is no base64url of one JSON object"))?;
        let signature =
            URL_SAFE_NO_PAD.decode(signature).map_err(|_| malformed("its signature is no base64url"))?;
        Ok(Self { signed: signed.as_bytes(), signature, algorithm, key_id, is_access_token, claims })
    }

    /// The issuer that the token names.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss").and_then(Value::as_str)
    }
}

/// Returns `true` if a token is of this kind: `at+jwt` for an access token, `JWT` for no particular kind (RFC 8725, 3.11;
/// RFC 9068). Tokens of other kinds, such as `logout+jwt`, must not be taken for one.
fn is_type(typ: &Value, wanted: &str) -> bool {
    let Some(typ) = typ.as_str() else { return false };
    let has_prefix =
        typ.get(.."application/".len()).is_some_and(|start| start.eq_ignore_ascii_case("application/"));
    let typ = if has_prefix { typ.get("application/".len()..).unwrap_or_default() } else { typ };
    typ.eq_ignore_ascii_case(wanted)
}

fn object(part: &str) -> Option<Map<String, Value>> {
    parse_object(&URL_SAFE_NO_PAD.decode(part).ok()?)
}
