//! The caller of a request and its entitlements. Plain data that travels with a request. Knows no secrets and keeps no
//! counters: the crates that enforce limits read the numbers here.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use headrace_domain::{
    Endpoint, KeyId, ModelName, OrgId, ProjectId, RecordRules, Residency, TokenUser, UnixNanos,
};
use serde::{Deserialize, Serialize};

use crate::{AddressList, TierEntitlements};

/// The caller of a request, derived from its credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The organisation that pays.
    pub org: OrgId,
    /// The project that the key belongs to. Budgets are set per project.
    pub project: ProjectId,
    /// The key's public id.
    pub key: KeyId,
    /// The key's name, as its creator chose it. For the holder of a token, its subject.
    pub name: String,
    /// The caller by its identity provider, if it sent a token instead of a key. `key` is then the user's id.
    pub user: Option<Arc<TokenUser>>,
    /// Models that the key may ask for.
    pub models: ModelAccess,
    /// Endpoints that the key may call.
    pub endpoints: EndpointAccess,
    /// The regions where its calls may be processed: what both its organisation and the key itself allow.
    pub regions: Residency,
    /// The regions that the organisation allows.
    pub org_regions: Residency,
    /// The number of the secret that was presented. 0 if none was.
    pub secret_number: u32,
    /// Limits of the key itself.
    pub limits: RateLimits,
    /// Limits of the whole project, shared by all its keys.
    pub project_limits: RateLimits,
    /// Limits of the whole organisation, shared by all its projects.
    pub org_limits: RateLimits,
    /// When the key expires. `None` if it never does.
    pub expires: Option<UnixNanos>,
    /// The addresses from which the key may be used.
    pub allowed_ips: AddressList,
    /// What its tiers allow, besides models and limits. `None` if it has no tier.
    pub tier: Option<Arc<TierEntitlements>>,
    /// What the project sets of its record policy.
    pub records: RecordRules,
}

impl Principal {
    /// A principal that nothing restricts, for tests. Panics if an id is not valid.
    #[cfg(test)]
    #[allow(clippy::unwrap_used, reason = "for tests")]
    pub(crate) fn plain(org: &str, project: &str, key: &str) -> Self {
        Self {
            org: OrgId::new(org).unwrap(),
            project: ProjectId::new(project).unwrap(),
            key: KeyId::new(key).unwrap(),
            name: "n".to_owned(),
            user: None,
            models: ModelAccess::All,
            endpoints: EndpointAccess::All,
            regions: Residency::Anywhere,
            org_regions: Residency::Anywhere,
            secret_number: 1,
            limits: RateLimits::default(),
            project_limits: RateLimits::default(),
            org_limits: RateLimits::default(),
            expires: None,
            allowed_ips: AddressList::default(),
            tier: None,
            records: RecordRules::default(),
        }
    }
}

/// Models that a key may ask for, by the names that callers use (aliases included).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelAccess {
    /// Every model, including those added later.
    #[default]
    All,
    /// Only these models.
    Only(BTreeSet<ModelName>),
}

impl ModelAccess {
    /// Returns `true` if the key may ask for `model`.
    pub fn allows(&self, model: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(models) => models.iter().any(|name| name.as_str() == model),
        }
    }
}

impl ModelAccess {
    /// Returns the models that both allow.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, access) | (access, Self::All) => access.clone(),
            (Self::Only(models), Self::Only(others)) => {
                Self::Only(models.intersection(others).cloned().collect())
            }
        }
    }
}

impl fmt::Display for ModelAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all models"),
            Self::Only(models) => {
                f.write_str("models")?;
                models.iter().try_for_each(|name| write!(f, " {name}"))
            }
        }
    }
}

/// Endpoints that a key may call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointAccess {
    /// Every endpoint, including those added later.
    #[default]
    All,
    /// Only these endpoints.
    Only(Vec<Endpoint>),
}

impl EndpointAccess {
    /// Returns `true` if the key may call `endpoint`.
    pub fn allows(&self, endpoint: Endpoint) -> bool {
        match self {
            Self::All => true,
            Self::Only(endpoints) => endpoints.contains(&endpoint),
        }
    }
}

impl fmt::Display for EndpointAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all endpoints"),
            Self::Only(endpoints) => {
                f.write_str("endpoints")?;
                endpoints.iter().try_for_each(|endpoint| write!(f, " {}", endpoint.name()))
            }
        }
    }
}

/// Limits of a key, a project or an organisation. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    /// Requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, input and output together.
    pub tokens_per_minute: Option<u64>,
    /// Requests in flight.
    pub concurrency: Option<u32>,
}

impl RateLimits {
    /// Returns the least of each limit.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            [one, other].into_iter().flatten().min()
        }
        Self {
            requests_per_minute: least(self.requests_per_minute, other.requests_per_minute),
            tokens_per_minute: least(self.tokens_per_minute, other.tokens_per_minute),
            concurrency: least(self.concurrency, other.concurrency),
        }
    }
}

impl fmt::Display for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        write!(
            f,
            "{} requests/min, {} tokens/min, {} at once",
            show(self.requests_per_minute.map(u64::from)),
            show(self.tokens_per_minute),
            show(self.concurrency.map(u64::from)),
        )
    }
}

/// Something that a principal may not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntitlementRefusal {
    /// The endpoint.
    Endpoint(Endpoint),
    /// The model. For callers this must look like a model that does not exist.
    Model,
}

impl EntitlementRefusal {
    /// The rule that refused, for traces and metrics.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Endpoint(_) => "endpoint_not_granted",
            Self::Model => "model_not_granted",
        }
    }
}

impl fmt::Display for EntitlementRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(endpoint) => {
                write!(f, "This API key may not call the endpoint `{}`.", endpoint.name())
            }
            Self::Model => f.write_str("The model does not exist or this API key may not use it."),
        }
    }
}

impl std::error::Error for EntitlementRefusal {}

/// Checks that `principal` may ask for `model`, by the name that the caller used, at `endpoint`.
///
/// # Errors
/// [`EntitlementRefusal`]. If neither is granted, the endpoint.
pub fn may_use(principal: &Principal, model: &str, endpoint: Endpoint) -> Result<(), EntitlementRefusal> {
    if !principal.endpoints.allows(endpoint) {
        return Err(EntitlementRefusal::Endpoint(endpoint));
    }
    if !principal.models.allows(model) {
        return Err(EntitlementRefusal::Model);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entitlements() {
        use Endpoint::{ChatCompletions, Completions, Messages};
        let only =
            |names: &[&str]| ModelAccess::Only(names.iter().map(|n| ModelName::new(n).unwrap()).collect());
        let rows = [
            (ModelAccess::All, EndpointAccess::All, "anything", Messages, Ok(())),
            (only(&["a", "b"]), EndpointAccess::All, "b", Completions, Ok(())),
            (only(&["a", "b"]), EndpointAccess::All, "B", Completions, Err(EntitlementRefusal::Model)),
            (only(&["a"]), EndpointAccess::All, "", Completions, Err(EntitlementRefusal::Model)),
            (only(&["a"]), EndpointAccess::All, "a/../a", Messages, Err(EntitlementRefusal::Model)),
            (only(&[]), EndpointAccess::All, "a", Messages, Err(EntitlementRefusal::Model)),
            (only(&["a"]), EndpointAccess::Only(vec![ChatCompletions]), "a", ChatCompletions, Ok(())),
            (
                only(&["a"]),
                EndpointAccess::Only(vec![ChatCompletions]),
                "b",
                Messages,
                Err(EntitlementRefusal::Endpoint(Messages)),
            ),
        ];
        for (models, endpoints, model, endpoint, expected) in rows {
            let principal = Principal { models, endpoints, ..Principal::plain("o", "p", "k") };
            assert_eq!(may_use(&principal, model, endpoint), expected, "{principal:?} {model} {endpoint:?}");
        }
    }
}
