//! Why a sign-in at a provider fails. An error names claims, never their values. Must not know status codes.

use std::fmt;
use std::time::Duration;

use crate::TokenRefusal;
use crate::refusal::write_names;

/// Why a sign-in fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignInError {
    /// The provider cannot be reached, or answers with something else than it should.
    Unavailable {
        /// The address and the cause.
        why: String,
    },
    /// The provider refused the code.
    Code {
        /// The provider's error.
        why: String,
    },
    /// The ID token is refused.
    Token(TokenRefusal),
    /// The ID token belongs to another sign-in: its `nonce` is missing or different.
    Nonce,
    /// The ID token was issued to another client (`azp`).
    OtherClient,
    /// No rule of the provider gives the user a role.
    NotMapped {
        /// The names of the user's claims, sorted.
        claims: Vec<String>,
    },
    /// Too many sign-ins are under way.
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
}

impl fmt::Display for SignInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { why } => write!(f, "The identity provider cannot be used now: {why}."),
            Self::Code { why } => write!(f, "The sign-in was not completed: {why}."),
            Self::Token(refusal) => write!(f, "The ID token of the identity provider is refused. {refusal}"),
            Self::Nonce => f.write_str(
                "The ID token of the identity provider belongs to another sign-in: its `nonce` is not the one that was sent.",
            ),
            Self::OtherClient => f.write_str(
                "The ID token of the identity provider was issued to another client: its `azp` is not `client_id`.",
            ),
            Self::NotMapped { claims } => {
                f.write_str("The sign-in is valid, and no rule of the identity provider gives a role. The claims: ")?;
                write_names(f, claims)?;
                f.write_str(".")
            }
            Self::Busy { .. } => f.write_str("Too many sign-ins are under way. Try again shortly."),
        }
    }
}

impl std::error::Error for SignInError {}

impl From<TokenRefusal> for SignInError {
    fn from(refusal: TokenRefusal) -> Self {
        match refusal {
            TokenRefusal::KeysUnavailable { .. } => {
                Self::Unavailable { why: "its keys cannot be fetched".to_owned() }
            }
            refusal => Self::Token(refusal),
        }
    }
}
