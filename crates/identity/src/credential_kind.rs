//! The kinds of credentials by their form alone, so that a listener can name a kind that it does not take. Knows
//! no credential that exists.

use std::fmt;

/// Prefix of API keys.
pub(crate) const API_KEY: &str = "sk-";
/// Prefix of operators' keys.
pub(crate) const OPERATOR_KEY: &str = "hrop-";
/// Prefix of SCIM credentials.
pub(crate) const SCIM_CREDENTIAL: &str = "hrscim-";

/// Returns `true` if a credential is a JWT and not a key: it has two dots. No key has one.
pub fn is_token(presented: &str) -> bool {
    is_token_bytes(presented.as_bytes())
}

pub(crate) fn is_token_bytes(presented: &[u8]) -> bool {
    !presented.starts_with(API_KEY.as_bytes()) && presented.iter().filter(|&&byte| byte == b'.').count() == 2
}

/// A kind of credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredentialKind {
    /// The API key of a caller: `sk-…`.
    ApiKey,
    /// A JWT of an identity provider: text with two dots.
    Token,
    /// The key of an operator: `hrop-…`.
    OperatorKey,
    /// The credential of an identity provider for SCIM: `hrscim-…`.
    ScimCredential,
    /// None of these.
    Unknown,
}

impl CredentialKind {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::ApiKey, Self::Token, Self::OperatorKey, Self::ScimCredential, Self::Unknown];

    /// The kind of a presented credential. Looks at its form, not at its validity.
    pub fn of(presented: &str) -> Self {
        if presented.starts_with(API_KEY) {
            Self::ApiKey
        } else if presented.starts_with(OPERATOR_KEY) {
            Self::OperatorKey
        } else if presented.starts_with(SCIM_CREDENTIAL) {
            Self::ScimCredential
        } else if is_token(presented) {
            Self::Token
        } else {
            Self::Unknown
        }
    }

    /// The kind with its form, in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ApiKey => "an API key (`sk-…`)",
            Self::Token => "a JWT",
            Self::OperatorKey => "an operator's key (`hrop-…`)",
            Self::ScimCredential => "a SCIM credential (`hrscim-…`)",
            Self::Unknown => "of no kind that this server knows",
        }
    }
}

impl fmt::Display for CredentialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_decides_the_kind() {
        for (presented, kind) in [
            ("sk-abc", CredentialKind::ApiKey),
            ("sk-a.b.c", CredentialKind::ApiKey),
            ("hrop-abc", CredentialKind::OperatorKey),
            ("hrscim-abc", CredentialKind::ScimCredential),
            ("a.b.c", CredentialKind::Token),
            ("a.b", CredentialKind::Unknown),
            ("SK-abc", CredentialKind::Unknown),
            ("", CredentialKind::Unknown),
        ] {
            assert_eq!(CredentialKind::of(presented), kind, "{presented}");
        }
    }
}
