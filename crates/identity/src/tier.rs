//! Tiers: named sets of limits and entitlements that are assigned to organisations, projects and keys, and what several
//! of them allow together. Must not know calls.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{HolderTiers, KeyId, OrgId, ProjectId, TierName, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::{IdentityError, ModelAccess, Principal, RateLimits, TierBound, TierEntitlements};

/// Maximum number of models that a tier may name.
const MAX_MODELS: usize = 1_000;

/// What a tier allows. Each field restricts; the defaults restrict nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TierRules {
    /// Limits of each organisation, project or key that the tier is assigned to, beside its own. The least counts.
    pub limits: RateLimits,
    /// Models that may be asked for.
    pub models: ModelAccess,
    /// Most tokens of a prompt and its answer together. At least 1.
    pub max_context_tokens: Option<u32>,
    /// Most tokens of an answer, reasoning included. At least 1.
    pub max_output_tokens: Option<u32>,
    /// Whether calls may ask for reasoning.
    pub reasoning: bool,
}

impl Default for TierRules {
    fn default() -> Self {
        Self {
            limits: RateLimits::default(),
            models: ModelAccess::All,
            max_context_tokens: None,
            max_output_tokens: None,
            reasoning: true,
        }
    }
}

impl TierRules {
    pub(crate) fn check(&self) -> Result<(), IdentityError> {
        let why = "must be at least 1";
        if self.max_context_tokens == Some(0) {
            return Err(IdentityError::Invalid { field: "max_context_tokens", why });
        }
        if self.max_output_tokens == Some(0) {
            return Err(IdentityError::Invalid { field: "max_output_tokens", why });
        }
        match &self.models {
            ModelAccess::Only(models) if models.len() > MAX_MODELS => {
                Err(IdentityError::Invalid { field: "models", why: "must name at most 1000 models" })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for TierRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, models, max_context_tokens, max_output_tokens, reasoning } = self;
        write!(f, "{models}, {limits}")?;
        if let Some(tokens) = max_context_tokens {
            write!(f, ", {tokens} tokens of context")?;
        }
        if let Some(tokens) = max_output_tokens {
            write!(f, ", {tokens} tokens of output")?;
        }
        f.write_str(if *reasoning { ", reasoning" } else { ", no reasoning" })
    }
}

/// A tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRecord {
    /// Its name.
    pub name: TierName,
    /// What it allows.
    pub rules: TierRules,
    /// When it was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
}

/// An organisation, a project or a key, to which a tier may be assigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierHolder {
    /// An organisation.
    Org(OrgId),
    /// A project.
    Project(ProjectId),
    /// A key.
    Key(KeyId),
}

impl TierHolder {
    /// The kind, as acts and columns name it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Org(_) => "org",
            Self::Project(_) => "project",
            Self::Key(_) => "key",
        }
    }

    /// The id.
    pub fn id(&self) -> &str {
        match self {
            Self::Org(id) => id.as_str(),
            Self::Project(id) => id.as_str(),
            Self::Key(id) => id.as_str(),
        }
    }
}

impl fmt::Display for TierHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Org(_) => "organisation",
            other => other.kind(),
        };
        write!(f, "{kind} `{}`", self.id())
    }
}

impl TierEntitlements {
    /// What tiers allow together, the nearest first. A farther tier narrows what a nearer one allows, and never widens it.
    pub fn of<'t>(nearest_first: impl IntoIterator<Item = &'t TierRecord>) -> Self {
        let mut merged = Self::default();
        for TierRecord { name, rules, .. } in nearest_first {
            if rules.models != ModelAccess::All {
                merged.models.get_or_insert_with(|| name.clone());
            }
            if !rules.reasoning {
                merged.no_reasoning.get_or_insert_with(|| name.clone());
            }
            narrow(&mut merged.context, rules.max_context_tokens, name);
            narrow(&mut merged.output, rules.max_output_tokens, name);
        }
        merged
    }
}

fn narrow(bound: &mut Option<TierBound>, tokens: Option<u32>, tier: &TierName) {
    let Some(tokens) = tokens else { return };
    if bound.as_ref().is_none_or(|bound| tokens < bound.tokens) {
        *bound = Some(TierBound { tokens, tier: tier.clone() });
    }
}

/// The tiers of a principal: those that are assigned to its key, its user's groups, its project and its organisation.
#[derive(Debug, Clone, Default)]
pub(crate) struct AssignedTiers<'t> {
    /// Those of the groups of the key's owner.
    pub(crate) groups: Vec<&'t TierRecord>,
    pub(crate) key: Option<&'t TierRecord>,
    pub(crate) project: Option<&'t TierRecord>,
    pub(crate) org: Option<&'t TierRecord>,
}

impl AssignedTiers<'_> {
    /// Narrows a principal to what its tiers allow.
    pub(crate) fn narrow(self, principal: &mut Principal) {
        let Self { groups, key, project, org } = self;
        for tier in &groups {
            principal.limits = principal.limits.least(tier.rules.limits);
        }
        for (limits, tier) in [
            (&mut principal.limits, key),
            (&mut principal.project_limits, project),
            (&mut principal.org_limits, org),
        ] {
            if let Some(tier) = tier {
                *limits = limits.least(tier.rules.limits);
            }
        }
        let nearest_first: Vec<&TierRecord> =
            key.into_iter().chain(groups).chain(project).chain(org).collect();
        if nearest_first.is_empty() {
            return;
        }
        for tier in &nearest_first {
            principal.models = principal.models.and(&tier.rules.models);
        }
        let name = |tier: Option<&TierRecord>| tier.map(|tier| tier.name.clone());
        let holders = HolderTiers { key: name(key), project: name(project), org: name(org) };
        principal.tier = Some(Arc::new(TierEntitlements {
            holders: Arc::new(holders),
            ..TierEntitlements::of(nearest_first)
        }));
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::ModelName;

    use super::*;

    fn only(names: &[&str]) -> ModelAccess {
        ModelAccess::Only(names.iter().map(|name| ModelName::new(name).unwrap()).collect())
    }

    fn tier(name: &str, rules: TierRules) -> TierRecord {
        TierRecord { name: TierName::new(name).unwrap(), rules, created: UnixNanos::new(0) }
    }

    #[test]
    fn a_nearer_tier_decides_and_never_widens_what_a_farther_one_allows() {
        let none = TierRules::default();
        let context = |tokens| TierRules { max_context_tokens: Some(tokens), ..none.clone() };
        let output = |tokens| TierRules { max_output_tokens: Some(tokens), ..none.clone() };
        let silent = TierRules { reasoning: false, ..none.clone() };
        let models = |names: &[&str]| TierRules { models: only(names), ..none.clone() };
        // The rules of key, project and organisation; then context, output, reasoning and models with their tiers.
        type Row<'r> = (
            [Option<TierRules>; 3],
            Option<(u32, &'r str)>,
            Option<(u32, &'r str)>,
            Option<&'r str>,
            (Option<&'r str>, ModelAccess),
        );
        let rows: Vec<Row<'_>> = vec![
            ([Some(none.clone()), None, None], None, None, None, (None, ModelAccess::All)),
            (
                [Some(context(5)), Some(context(9)), None],
                Some((5, "key")),
                None,
                None,
                (None, ModelAccess::All),
            ),
            (
                [Some(context(9)), Some(context(5)), None],
                Some((5, "project")),
                None,
                None,
                (None, ModelAccess::All),
            ),
            (
                [Some(context(5)), Some(context(5)), None],
                Some((5, "key")),
                None,
                None,
                (None, ModelAccess::All),
            ),
            (
                [Some(none.clone()), None, Some(context(5))],
                Some((5, "org")),
                None,
                None,
                (None, ModelAccess::All),
            ),
            (
                [None, Some(output(7)), Some(output(3))],
                None,
                Some((3, "org")),
                None,
                (None, ModelAccess::All),
            ),
            (
                [Some(none.clone()), Some(silent.clone()), None],
                None,
                None,
                Some("project"),
                (None, ModelAccess::All),
            ),
            ([Some(silent.clone()), Some(silent), None], None, None, Some("key"), (None, ModelAccess::All)),
            (
                [Some(models(&["a", "b"])), None, Some(models(&["b", "c"]))],
                None,
                None,
                None,
                (Some("key"), only(&["b"])),
            ),
            ([Some(none.clone()), None, Some(models(&["c"]))], None, None, None, (Some("org"), only(&["c"]))),
            ([Some(models(&["a"])), Some(models(&["b"])), None], None, None, None, (Some("key"), only(&[]))),
        ];
        for (rules, context, output, silent, (of_models, models)) in rows {
            let [key, project, org] = rules.clone();
            let key = key.map(|rules| tier("key", rules));
            let project = project.map(|rules| tier("project", rules));
            let org = org.map(|rules| tier("org", rules));
            let mut principal = Principal::plain("o", "p", "k");
            let groups = Vec::new();
            let tiers =
                AssignedTiers { groups, key: key.as_ref(), project: project.as_ref(), org: org.as_ref() };
            tiers.narrow(&mut principal);
            let bound = |bound: Option<(u32, &str)>| {
                bound.map(|(tokens, tier)| TierBound { tokens, tier: TierName::new(tier).unwrap() })
            };
            let name = |name: Option<&str>| name.map(|name| TierName::new(name).unwrap());
            let expected = TierEntitlements {
                models: name(of_models),
                context: bound(context),
                output: bound(output),
                no_reasoning: name(silent),
                holders: Arc::new(HolderTiers {
                    key: rules[0].as_ref().map(|_| TierName::new("key").unwrap()),
                    project: rules[1].as_ref().map(|_| TierName::new("project").unwrap()),
                    org: rules[2].as_ref().map(|_| TierName::new("org").unwrap()),
                }),
            };
            assert_eq!(principal.tier.as_deref(), Some(&expected), "{rules:?}");
            assert_eq!(principal.models, models, "{rules:?}");
        }
    }

    #[test]
    fn the_least_limit_counts_where_the_tier_is_assigned() {
        let limits = |requests, tokens, concurrency| RateLimits {
            requests_per_minute: requests,
            tokens_per_minute: tokens,
            concurrency,
        };
        let own = limits(Some(10), None, Some(3));
        let rules = TierRules { limits: limits(Some(20), Some(500), Some(2)), ..TierRules::default() };
        let least = limits(Some(10), Some(500), Some(2));
        let tier = tier("t", rules);
        for at in 0..3 {
            let mut principal = Principal::plain("o", "p", "k");
            (principal.limits, principal.project_limits, principal.org_limits) = (own, own, own);
            let assigned = |level| (level == at).then_some(&tier);
            let (key, project, org) = (assigned(0), assigned(1), assigned(2));
            AssignedTiers { groups: Vec::new(), key, project, org }.narrow(&mut principal);
            let expected = |level| if level == at { least } else { own };
            let found = [principal.limits, principal.project_limits, principal.org_limits];
            assert_eq!(found, [expected(0), expected(1), expected(2)]);
        }
    }

    #[test]
    fn rules_that_no_call_could_meet_are_refused_and_unknown_rules_are_not_read() {
        let zero = TierRules { max_output_tokens: Some(0), ..TierRules::default() };
        assert!(matches!(zero.check(), Err(IdentityError::Invalid { field: "max_output_tokens", .. })));
        let zero = TierRules { max_context_tokens: Some(0), ..TierRules::default() };
        assert!(matches!(zero.check(), Err(IdentityError::Invalid { field: "max_context_tokens", .. })));
        assert_eq!(serde_json::from_str::<TierRules>("{}").unwrap(), TierRules::default());
        assert!(serde_json::from_str::<TierRules>(r#"{"max_images": 3}"#).is_err());
    }
}
