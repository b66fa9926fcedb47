//! Identity providers at which operators sign in, as the server's operator configures them. Must not know the files that
//! hold them.

use std::time::Duration;

use headrace_domain::OrgId;
use headrace_identity::Role;
use secrecy::{ExposeSecret, SecretString};

use crate::config::{ClaimCondition, JwtConfigError, provider_url};

/// Longest name of a provider, in bytes.
const MAX_NAME_BYTES: usize = 24;

/// An identity provider at which operators sign in.
#[derive(Debug, Clone)]
pub struct SignInConfig {
    /// Its name in addresses and in the audit log: 1 to 24 lower-case letters, digits and hyphens.
    pub name: String,
    /// Its name for people, on the sign-in page.
    pub label: String,
    /// The `iss` of its tokens, compared byte by byte. Also where discovery starts.
    pub issuer: String,
    /// The id of this server at the provider.
    pub client_id: String,
    /// The secret of this server at the provider. `None` for a public client, which PKCE alone protects.
    pub client_secret: Option<SecretString>,
    /// The scopes to request, besides `openid`.
    pub scopes: Vec<String>,
    /// The longest time of a session. Then the operator signs in again.
    pub session: Duration,
    /// PEM text of further certificate authorities for connections to the provider.
    pub extra_roots_pem: Option<Vec<u8>>,
    /// Rules from claims to roles. The first that matches decides.
    pub rules: Vec<OperatorRule>,
    /// The organisations whose user records may end a session. `None` for those without operators of their own.
    pub users_of: Option<Vec<OrgId>>,
}

/// A rule from claims to a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorRule {
    /// The conditions. All must hold. Never empty.
    pub when: Vec<ClaimCondition>,
    /// The role.
    pub role: Role,
}

impl SignInConfig {
    /// Returns every fault of the configuration.
    pub fn faults(&self) -> Vec<JwtConfigError> {
        let mut faults = Vec::new();
        let mut fault = |field, why: &str| faults.push(JwtConfigError { field, why: why.to_owned() });
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=MAX_NAME_BYTES).contains(&self.name.len()) || !self.name.bytes().all(is_name) {
            fault("name", "must have 1 to 24 lower-case letters, digits and hyphens");
        }
        if let Err(why) = provider_url(&self.issuer) {
            fault("issuer", &why);
        }
        if self.client_id.is_empty() {
            fault("client_id", "is empty: name the id that the provider has for this server");
        }
        if self.rules.is_empty() {
            fault("rules", "is empty: without a rule, no operator can sign in");
        }
        if self.rules.iter().any(|rule| rule.when.is_empty()) {
            let why = "has a rule without `when`, so every user of the provider would be an operator: name a claim and its values";
            fault("rules", why);
        }
        faults
    }

    /// Returns whether two configurations are equal, with their secrets.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let Self {
            name: _,
            label,
            issuer: _,
            client_id: _,
            client_secret,
            scopes,
            session,
            extra_roots_pem,
            rules: _,
            users_of,
        } = self;
        let secret =
            |config: &Option<SecretString>| config.as_ref().map(|text| text.expose_secret().to_owned());
        self.fingerprint() == other.fingerprint()
            && *label == other.label
            && secret(client_secret) == secret(&other.client_secret)
            && *scopes == other.scopes
            && *session == other.session
            && *extra_roots_pem == other.extra_roots_pem
            && *users_of == other.users_of
    }

    /// A hash of all that decides who may sign in. A session ends when it changes.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("headrace 2026 sign-in rules v1");
        let mut text = |text: &str| {
            let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
            hasher.update(&length.to_le_bytes()).update(text.as_bytes());
        };
        let count = |count: usize| count.to_string();
        for part in [&self.name, &self.issuer, &self.client_id, &count(self.rules.len())] {
            text(part);
        }
        for OperatorRule { when, role } in &self.rules {
            text(role.name());
            text(&count(when.len()));
            for ClaimCondition { claim, any_of } in when {
                text(claim);
                text(&count(any_of.len()));
                any_of.iter().for_each(|value| text(value));
            }
        }
        *hasher.finalize().as_bytes()
    }
}
