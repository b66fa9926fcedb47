//! Signatures of webhooks: HMAC-SHA256 of id, time and body, as Standard Webhooks 1.0 describes them
//! (<https://github.com/standard-webhooks/standard-webhooks>). Must not know what a webhook says.

use std::fmt;

use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};

/// The beginning of a secret in text.
const PREFIX: &str = "whsec_";
/// Lengths that the specification allows, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret that the sender and the receiver of webhooks share.
#[derive(Clone)]
pub struct WebhookSecret(Key);

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret")
    }
}

impl WebhookSecret {
    /// Parses `whsec_` and the base64 of 24 to 64 bytes.
    ///
    /// # Errors
    /// What is wrong, as text. The text does not have the secret.
    pub fn parse(text: &SecretString) -> Result<Self, &'static str> {
        let encoded = text.expose_secret().trim().strip_prefix(PREFIX);
        let encoded = encoded.ok_or("it does not begin with `whsec_`")?;
        let bytes = STANDARD.decode(encoded).map_err(|_| "it is not base64 after `whsec_`")?;
        if !SECRET_BYTES.contains(&bytes.len()) {
            return Err("it does not have 24 to 64 bytes");
        }
        Ok(Self(Key::new(HMAC_SHA256, &bytes)))
    }

    /// The value of `webhook-signature` for a webhook with this `webhook-id`, `webhook-timestamp` in seconds and body.
    pub fn sign(&self, id: &str, seconds: u64, body: &str) -> String {
        let tag = sign(&self.0, format!("{id}.{seconds}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(tag.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_has_its_signature() {
        let secret = WebhookSecret::parse(&"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()).unwrap();
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_of_another_form_is_refused() {
        for (text, part) in [
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_"),
            ("whsec_***", "base64"),
            ("whsec_c2hvcnQ=", "24 to 64"),
            ("", "whsec_"),
        ] {
            let why = WebhookSecret::parse(&text.into()).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
