//! From verified claims to a grant: organisation, project, models, role, limits, by the first rule that matches. A claim
//! narrows what a rule allows and never widens it. Must not know signatures or which projects exist.

use std::collections::BTreeSet;
use std::sync::Arc;

use headrace_domain::{ModelName, OrgId, ProjectId, TokenUser, UnixNanos};
use headrace_identity::{ModelAccess, UserGrant};
use serde_json::{Map, Value};

use crate::TokenRefusal;
use crate::claims::{CheckedClaims, LEEWAY_SECONDS};
use crate::config::{AccessRule, ClaimCondition, GrantValue, IssuerConfig};

/// Longest role in bytes.
const MAX_ROLE_BYTES: usize = 64;
/// Longest name for display, in bytes.
const MAX_DISPLAY_NAME_BYTES: usize = 256;
/// Maximum number of claim names in a refusal.
const MAX_NAMED_CLAIMS: usize = 32;
/// Longest name of a claim in a refusal, in bytes.
const MAX_CLAIM_NAME_BYTES: usize = 64;

/// What a token grants, and the claim that named its project, for a refusal.
#[derive(Debug)]
pub(crate) struct MappedGrant {
    pub(crate) grant: UserGrant,
    pub(crate) project_claim: Option<String>,
}

/// Maps the claims of a token by the rules of its issuer.
///
/// # Errors
/// [`TokenRefusal::NotMapped`] if no rule matches.
pub(crate) fn map_claims(
    issuer: &IssuerConfig,
    claims: &Map<String, Value>,
    checked: &CheckedClaims<'_>,
) -> Result<MappedGrant, TokenRefusal> {
    let not_mapped = || TokenRefusal::NotMapped { claims: names_of(claims) };
    let rule = issuer.rules.iter().find_map(|rule| RuleMatch::of(rule, claims));
    let RuleMatch { rule, org, project } = rule.ok_or_else(not_mapped)?;
    let role = match &rule.role {
        Some(GrantValue::Fixed(role)) => Some(role.clone()),
        Some(GrantValue::Claim(claim)) => values_of(claims, claim).into_iter().next(),
        None => None,
    };
    let role = role.filter(|role| role.len() <= MAX_ROLE_BYTES && !role.chars().any(char::is_control));
    let user = TokenUser {
        issuer: issuer.issuer.as_str().into(),
        subject: checked.subject.into(),
        role: role.map(|role| role.as_str().into()),
    };
    let project_claim = match (&rule.project, &rule.org) {
        (GrantValue::Claim(claim), _) | (_, Some(GrantValue::Claim(claim))) => Some(claim.clone()),
        _ => None,
    };
    let grant = UserGrant {
        user: Arc::new(user),
        org,
        project,
        models: models(rule, claims),
        limits: rule.limits,
        expires: UnixNanos::new(checked.expires.get().saturating_add(LEEWAY_SECONDS * 1_000_000_000)),
    };
    Ok(MappedGrant { grant, project_claim })
}

/// The name for display of a token's user: the first claim of `name`, `preferred_username` and `email` that is a text of
/// 1 to 256 bytes without control characters. It decides nothing.
pub(crate) fn display_name(claims: &Map<String, Value>) -> Option<String> {
    let texts =
        ["name", "preferred_username", "email"].into_iter().filter_map(|claim| claims.get(claim)?.as_str());
    let is_fit = |text: &&str| {
        !text.trim().is_empty() && text.len() <= MAX_DISPLAY_NAME_BYTES && !text.chars().any(char::is_control)
    };
    texts.into_iter().find(is_fit).map(str::to_owned)
}

/// A rule whose conditions hold, with its values from the claims.
struct RuleMatch<'a> {
    rule: &'a AccessRule,
    org: Option<OrgId>,
    project: ProjectId,
}

impl<'a> RuleMatch<'a> {
    /// Returns `None` if a condition does not hold, or a claim that the rule takes a value from is missing or unfit.
    fn of(rule: &'a AccessRule, claims: &Map<String, Value>) -> Option<Self> {
        if !conditions_hold(&rule.when, claims) {
            return None;
        }
        let org = match &rule.org {
            None => None,
            Some(GrantValue::Fixed(org)) => Some(org.clone()),
            Some(GrantValue::Claim(claim)) => Some(OrgId::new(only_value(claims, claim)?).ok()?),
        };
        let project = match &rule.project {
            GrantValue::Fixed(project) => project.clone(),
            GrantValue::Claim(claim) => {
                let project = ProjectId::new(only_value(claims, claim)?).ok()?;
                let is_allowed = rule.projects.is_empty() || rule.projects.contains(&project);
                is_allowed.then_some(project)?
            }
        };
        Some(Self { rule, org, project })
    }
}

/// Returns `true` if all conditions hold.
pub(crate) fn conditions_hold(conditions: &[ClaimCondition], claims: &Map<String, Value>) -> bool {
    let holds = |condition: &ClaimCondition| {
        values_of(claims, &condition.claim).iter().any(|value| condition.any_of.contains(value))
    };
    conditions.iter().all(holds)
}

/// The models of a rule, narrowed by its claim. A token without the claim gets the rule's models.
fn models(rule: &AccessRule, claims: &Map<String, Value>) -> ModelAccess {
    let Some(claim) = rule.models_claim.as_deref().filter(|claim| find(claims, claim).is_some()) else {
        return rule.models.clone();
    };
    let named = values_of(claims, claim).into_iter().filter_map(|name| ModelName::new(&name).ok());
    let narrowed: BTreeSet<ModelName> = named.filter(|name| rule.models.allows(name.as_str())).collect();
    ModelAccess::Only(narrowed)
}

/// The claim with this name, or else at this path.
fn find<'a>(claims: &'a Map<String, Value>, claim: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(claim) {
        return Some(value);
    }
    let mut names = claim.split('.');
    let first = claims.get(names.next()?)?;
    names.try_fold(first, |value, name| value.as_object()?.get(name))
}

/// The text of a claim that has exactly one value.
fn only_value<'a>(claims: &'a Map<String, Value>, claim: &str) -> Option<&'a str> {
    match find(claims, claim)? {
        Value::String(text) => Some(text),
        Value::Array(list) => match list.as_slice() {
            [Value::String(text)] => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The values of a claim as texts: of a list its items, and of `scope` and `scp` their words (RFC 8693, 4.2).
fn values_of(claims: &Map<String, Value>, claim: &str) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    match find(claims, claim) {
        Some(Value::Array(list)) => list.iter().filter_map(text).collect(),
        Some(Value::String(words)) if matches!(claim, "scope" | "scp") => {
            words.split_ascii_whitespace().map(str::to_owned).collect()
        }
        Some(value) => text(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The names of the claims, for a refusal. The caller chose them, so their number and length are bounded.
pub(crate) fn names_of(claims: &Map<String, Value>) -> Vec<String> {
    let is_fit = |name: &&String| {
        name.len() <= MAX_CLAIM_NAME_BYTES && name.chars().all(|c| !c.is_control() && c != '`')
    };
    let mut names: Vec<String> = claims.keys().filter(is_fit).cloned().collect();
    names.sort();
    names.truncate(MAX_NAMED_CLAIMS);
    names
}
