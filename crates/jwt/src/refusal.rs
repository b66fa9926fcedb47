//! Why a token is refused. A refusal names claims, never their values. Must not know status codes.

use std::fmt;
use std::time::Duration;

use headrace_identity::MAX_TOKEN_BYTES;

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenRefusal {
    /// The token is longer than [`headrace_identity::MAX_TOKEN_BYTES`].
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The token is not three base64url parts with JSON objects in the first two.
    Malformed {
        /// The part that is malformed, and how.
        what: &'static str,
    },
    /// `alg` is none of the algorithms that are accepted.
    Algorithm,
    /// `typ` is neither `JWT` nor `at+jwt`.
    Type,
    /// The header has `crit`: extensions that must be understood, and are not.
    CriticalExtension,
    /// No issuer is configured with the token's `iss`.
    UnknownIssuer,
    /// The issuer has no key with the token's `kid`.
    UnknownKey,
    /// The key is for other algorithms than the token's `alg`.
    OtherAlgorithm,
    /// The signature is not the key's.
    Signature,
    /// A claim is missing or has the wrong type.
    Claim {
        /// The claim.
        claim: &'static str,
        /// What it must be.
        must_be: &'static str,
    },
    /// The token is for other audiences.
    Audience,
    /// `exp` has passed.
    Expired,
    /// `nbf` or `iat` is in the future.
    NotYetValid {
        /// The claim.
        claim: &'static str,
    },
    /// The token is bound to a key of its holder (`cnf`) in a way that this server cannot check.
    Bound,
    /// The token is bound to a certificate (`cnf.x5t#S256`), and the client has shown none.
    NoCertificate,
    /// The token is bound to another certificate than the client's.
    OtherCertificate,
    /// The client's certificate is a credential of its own, and the token is not bound to it.
    TwoCredentials,
    /// The issuer's keys could not be fetched, or not for too long.
    KeysUnavailable {
        /// When they are fetched again.
        retry_after: Duration,
    },
    /// No rule of the issuer matches the claims.
    NotMapped {
        /// The names of the token's claims, sorted.
        claims: Vec<String>,
    },
    /// The token is valid, and its user is not active here.
    InactiveUser,
    /// The certificate is valid, and its service account is not active here.
    InactiveAccount,
    /// The token is valid, and its user has no record here, which its issuer needs.
    UnknownUser,
    /// A rule matches, and its organisation or project does not exist here, or they do not belong together.
    NoProject {
        /// The claim that names it. `None` if the rule itself does.
        claim: Option<String>,
    },
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                let limit = MAX_TOKEN_BYTES;
                write!(f, "The JWT has {bytes} bytes; at most {limit} are accepted. Ask for a token with fewer claims.")
            }
            Self::Malformed { what } => write!(f, "The JWT is malformed: {what}."),
            Self::Algorithm => f.write_str(
                "The JWT's `alg` is not accepted. It must be RS, PS or ES with 256, 384 or 512, or EdDSA.",
            ),
            Self::Type => f.write_str("The JWT's `typ` is not accepted. It must be `JWT` or `at+jwt`."),
            Self::CriticalExtension => {
                f.write_str("The JWT's header has `crit`, and this server knows no extensions.")
            }
            Self::UnknownIssuer => f.write_str(
                "The JWT's `iss` is no issuer of this server. It must equal the `issuer` of a configured identity provider.",
            ),
            Self::UnknownKey => f.write_str(
                "The JWT's `kid` is none of its issuer's keys. Ask the identity provider for a new token.",
            ),
            Self::OtherAlgorithm => f.write_str("The JWT's `alg` is not that of the key that `kid` names."),
            Self::Signature => f.write_str("The JWT's signature is not valid."),
            Self::Claim { claim, must_be } => write!(f, "The JWT's claim `{claim}` must be {must_be}."),
            Self::Audience => f.write_str(
                "The JWT is for other audiences. Ask the identity provider for a token whose `aud` names this server.",
            ),
            Self::Expired => f.write_str("The JWT has expired (`exp`). Ask the identity provider for a new token."),
            Self::NotYetValid { claim } => {
                write!(f, "The JWT is not valid yet: `{claim}` is in the future. Check the clocks of both servers.")
            }
            Self::Bound => f.write_str(
                "The JWT is bound to a key (`cnf`) in a way that this server cannot check. Ask for a bearer token, or one that is bound to a certificate.",
            ),
            Self::NoCertificate => f.write_str(
                "The JWT is bound to a certificate (`cnf.x5t#S256`), and the connection has none. Connect with the client certificate for which the token was issued.",
            ),
            Self::OtherCertificate => f.write_str(
                "The JWT is bound to another certificate (`cnf.x5t#S256`) than that of the connection. Connect with the client certificate for which the token was issued.",
            ),
            Self::TwoCredentials => f.write_str(
                "The connection has a client certificate that gives access, and the request has a JWT that is not bound to it. Send one of them.",
            ),
            Self::KeysUnavailable { .. } => f.write_str(
                "The keys of the JWT's issuer cannot be fetched now, so the token could not be checked. Try again shortly.",
            ),
            Self::NotMapped { claims } => {
                f.write_str("The JWT is valid, and no rule of its issuer gives it access. Its claims: ")?;
                write_names(f, claims)?;
                f.write_str(". Ask the operator for a rule that matches them.")
            }
            Self::InactiveUser => f.write_str(
                "The JWT is valid, and its user is not active on this server. Ask the operator to activate the user.",
            ),
            Self::InactiveAccount => f.write_str(
                "The client certificate is valid, and its service account is not active on this server. Ask the operator to activate the service account.",
            ),
            Self::UnknownUser => f.write_str(
                "The JWT is valid, and its user has no record on this server, which its issuer needs (`unknown_users = \"refuse\"`). Ask the operator to create the user.",
            ),
            Self::NoProject { claim: Some(claim) } => write!(
                f,
                "The JWT is valid, and its claim `{claim}` names no organisation and project of this server that belong together."
            ),
            Self::NoProject { claim: None } => f.write_str(
                "The JWT is valid, and the rule that matches it names an organisation or project that does not exist here. Ask the operator to create it.",
            ),
        }
    }
}

impl std::error::Error for TokenRefusal {}

/// Writes names of claims as a list.
pub(crate) fn write_names(f: &mut fmt::Formatter<'_>, names: &[String]) -> fmt::Result {
    let mut names = names.iter();
    names.next().map_or(Ok(()), |name| write!(f, "`{name}`"))?;
    names.try_for_each(|name| write!(f, ", `{name}`"))
}
