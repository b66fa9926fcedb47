//! Issuers and their rules as the operator configures them. Must not know the files that hold them.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use headrace_domain::{OrgId, ProjectId};
use headrace_identity::{ModelAccess, RateLimits};
use reqwest::Url;

/// An identity provider whose tokens are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerConfig {
    /// The `iss` of its tokens, compared byte by byte. Also where discovery starts.
    pub issuer: String,
    /// The address of its JWK set. `None` for the one that discovery finds.
    pub jwks_url: Option<String>,
    /// The audiences that stand for this server. A token must name one of them.
    pub audiences: Vec<String>,
    /// The claims in which an audience is looked for: `aud`, and `azp` or `client_id` for providers without `aud`.
    pub audience_claims: Vec<String>,
    /// How long keys are used after they were last fetched.
    pub max_key_age: Duration,
    /// What happens to the token of a user without a record.
    pub unknown_users: UnknownUsers,
    /// PEM text of further certificate authorities for connections to the provider.
    pub extra_roots_pem: Option<Vec<u8>>,
    /// Rules from claims to access. The first that matches decides.
    pub rules: Vec<AccessRule>,
}

/// What happens to the token of a user without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownUsers {
    /// The token is accepted, and the user gets a record soon.
    #[default]
    Create,
    /// The token is accepted, and the user gets no record.
    Accept,
    /// The token is refused.
    Refuse,
}

/// A rule from claims to access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRule {
    /// The conditions. All must hold.
    pub when: Vec<ClaimCondition>,
    /// The organisation. `None` for that of the project.
    pub org: Option<GrantValue<OrgId>>,
    /// The project.
    pub project: GrantValue<ProjectId>,
    /// The projects that a claim may name. Empty for all of the organisation.
    pub projects: Vec<ProjectId>,
    /// The models that the token may use.
    pub models: ModelAccess,
    /// A claim with a list of models. It narrows `models`.
    pub models_claim: Option<String>,
    /// The role that traces show.
    pub role: Option<GrantValue<String>>,
    /// Limits of each user.
    pub limits: RateLimits,
}

/// A condition on a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimCondition {
    /// The claim. Its name, or else a path with dots, such as `realm_access.roles`.
    pub claim: String,
    /// The claim must be one of these, or a list that contains one of them.
    pub any_of: Vec<String>,
}

/// A value of a rule: fixed, or taken from a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantValue<T> {
    /// This value.
    Fixed(T),
    /// The text of this claim.
    Claim(String),
}

/// Why an issuer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfigError {
    /// The setting, relative to the issuer's table.
    pub field: &'static str,
    /// What is wrong, and what the value must be.
    pub why: String,
}

impl fmt::Display for JwtConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.field, self.why)
    }
}

impl std::error::Error for JwtConfigError {}

impl IssuerConfig {
    /// Returns every fault of the configuration.
    pub fn faults(&self) -> Vec<JwtConfigError> {
        let mut faults = Vec::new();
        let mut fault = |field, why: String| faults.push(JwtConfigError { field, why });
        if let Err(why) = provider_url(&self.issuer) {
            fault("issuer", why);
        }
        if let Some(Err(why)) = self.jwks_url.as_deref().map(provider_url) {
            fault("jwks_url", why);
        }
        if self.audiences.is_empty() {
            let why = "is empty: name the audience that the provider writes for this server. Without it, tokens for other \
                       servers would be accepted";
            fault("audiences", why.to_owned());
        }
        if self.audience_claims.is_empty() {
            fault("audience_claims", "is empty: leave it out for `aud`".to_owned());
        }
        if self.rules.is_empty() {
            fault("rules", "is empty: without a rule, no token gives access".to_owned());
        }
        for rule in &self.rules {
            if matches!(rule.project, GrantValue::Claim(_)) && rule.org.is_none() && rule.projects.is_empty()
            {
                let why = "has a rule with `project_claim` alone, so a token could name any project of any organisation: \
                           add `org`, `org_claim` or `projects`";
                fault("rules", why.to_owned());
            }
        }
        faults
    }
}

/// Checks an address that keys come from. It must be `https`, or `http` on this machine.
pub(crate) fn provider_url(text: &str) -> Result<(), String> {
    let url = Url::parse(text).map_err(|error| format!("is no URL: {error}"))?;
    let host = url.host_str().unwrap_or_default();
    let is_local = host == "localhost"
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match url.scheme() {
        "https" => {}
        "http" if is_local => {}
        "http" => {
            return Err("must begin with https://, because the keys that it leads to are trusted".to_owned());
        }
        _ => return Err("must begin with https://".to_owned()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not have a user or a password".to_owned());
    }
    Ok(())
}
