//! Tiers: their assignments, what principals have of them, and what is refused.

use headrace_domain::{HolderTiers, TierName, TokenUser};

use super::*;
use crate::{TierBound, TierEntitlements, TierHolder, TierRules, UserGrant};

fn name(text: &str) -> TierName {
    TierName::new(text).unwrap()
}

fn context(tokens: u32) -> TierRules {
    TierRules { max_context_tokens: Some(tokens), ..TierRules::default() }
}

/// The bound on the context that a key's principal has, with its tier.
fn bound(directory: &Directory) -> Option<(u32, String)> {
    let principal = directory.authenticate(SECRET, NOW).unwrap();
    let TierBound { tokens, tier } = principal.tier.as_deref()?.context.clone()?;
    Some((tokens, tier.to_string()))
}

#[test]
fn a_tier_holds_where_it_is_assigned_until_it_is_taken_away() {
    let store = memory();
    let directory = directory(&store);
    let (key, _) = directory.create_key(chosen(SECRET), "ops", NOW).unwrap();
    for (tier, tokens) in [("small", 100), ("large", 900)] {
        directory.create_tier(name(tier), context(tokens), "ops", NOW).unwrap();
    }
    let (of_org, of_project) = (TierHolder::Org(org("acme")), TierHolder::Project(project("web")));
    let of_key = TierHolder::Key(key.id.clone());
    let other = TierHolder::Org(org("other"));
    let steps = [
        (&of_key, Some("large"), Some((900, "large"))),
        (&other, Some("small"), Some((900, "large"))),
        (&of_org, Some("small"), Some((100, "small"))),
        (&of_key, None, Some((100, "small"))),
        (&of_project, Some("large"), Some((100, "small"))),
        (&of_org, None, Some((900, "large"))),
        (&of_project, None, None),
    ];
    for (to, tier, expected) in steps {
        let tier = tier.map(name);
        directory.assign_tier(to, tier.as_ref(), "ops", NOW).unwrap();
        let expected = expected.map(|(tokens, tier): (u32, &str)| (tokens, tier.to_owned()));
        assert_eq!(bound(&directory), expected, "{to} {tier:?}");
        assert_eq!(bound(&open(&store)), expected, "after a restart: {to} {tier:?}");
    }
    let acts: Vec<_> = directory.audit(0, 99).unwrap().into_iter().map(|row| row.entry.act).collect();
    let expected = ["org.tier", "org.tier", "key.tier", "project.tier", "org.tier", "project.tier"];
    assert_eq!(acts[acts.len() - 6..], expected);
    assert_eq!(
        directory.audit_of("tier.create", Some("small"), 1).unwrap()[0].entry.detail,
        "all models, unlimited requests/min, unlimited tokens/min, unlimited at once, 100 tokens of context, reasoning"
    );
}

#[test]
fn a_change_of_a_tier_concerns_all_that_have_it() {
    let store = memory();
    let directory = directory(&store);
    directory.create_tier(name("basic"), context(10), "ops", NOW).unwrap();
    directory.assign_tier(&TierHolder::Org(org("acme")), Some(&name("basic")), "ops", NOW).unwrap();
    let new = NewKey { tier: Some(name("basic")), ..chosen(SECRET) };
    let (key, _) = directory.create_key(new, "ops", NOW).unwrap();
    assert_eq!((key.tier, bound(&directory)), (Some(name("basic")), Some((10, "basic".to_owned()))));
    let before = directory.principals_version();
    let limits = RateLimits { concurrency: Some(2), ..RateLimits::default() };
    let models = ModelAccess::Only([ModelName::new("a").unwrap()].into());
    let rules = TierRules { limits, models: models.clone(), reasoning: false, ..context(20) };
    directory.change_tier(&name("basic"), rules, "ops", NOW).unwrap();
    assert!(directory.principals_version() > before, "principals of tokens are built again");
    for directory in [&directory, &open(&store)] {
        let principal = directory.authenticate(SECRET, NOW).unwrap();
        let expected = TierEntitlements {
            models: Some(name("basic")),
            context: Some(TierBound { tokens: 20, tier: name("basic") }),
            output: None,
            no_reasoning: Some(name("basic")),
            holders: Arc::new(HolderTiers {
                key: Some(name("basic")),
                project: None,
                org: Some(name("basic")),
            }),
        };
        assert_eq!(principal.tier.as_deref(), Some(&expected));
        let found = (principal.limits, principal.project_limits, principal.org_limits);
        assert_eq!((found, &principal.models), ((limits, RateLimits::default(), limits), &models));
        assert_eq!(directory.key(&key.id).unwrap().limits, RateLimits::default(), "its own limits stay");
        // A user of an identity provider has the tiers of its project and organisation.
        let user = TokenUser { issuer: "https://login".into(), subject: "alice".into(), role: None };
        let grant = UserGrant {
            user: Arc::new(user),
            org: None,
            project: project("web"),
            models: ModelAccess::All,
            limits: RateLimits::default(),
            expires: LATER,
        };
        let user = directory.user_principal(&grant).unwrap();
        assert_eq!(
            (user.limits, user.org_limits, user.models),
            (RateLimits::default(), limits, models.clone())
        );
        let holders = Arc::new(HolderTiers { org: Some(name("basic")), ..HolderTiers::default() });
        assert_eq!(user.tier.as_deref(), Some(&TierEntitlements { holders, ..expected }));
    }
}

#[test]
fn a_tier_is_removed_only_when_nothing_has_it() {
    let store = memory();
    let directory = directory(&store);
    let basic = name("basic");
    let no_tier = directory.assign_tier(&TierHolder::Org(org("acme")), Some(&basic), "ops", NOW);
    assert_eq!(no_tier, Err(IdentityError::UnknownTier(basic.clone())));
    let new = NewKey { tier: Some(basic.clone()), ..new_key() };
    assert_eq!(directory.create_key(new, "ops", NOW).unwrap_err(), IdentityError::UnknownTier(basic.clone()));
    assert_eq!(directory.remove_tier(&basic, "ops", NOW), Err(IdentityError::UnknownTier(basic.clone())));
    let unknown = directory.change_tier(&basic, context(1), "ops", NOW).unwrap_err();
    assert_eq!(unknown, IdentityError::UnknownTier(basic.clone()));
    directory.create_tier(basic.clone(), context(10), "ops", NOW).unwrap();
    let again = directory.create_tier(basic.clone(), context(10), "ops", NOW).unwrap_err();
    assert_eq!(again, IdentityError::Exists { what: "tier `basic`".to_owned() });
    let unknown = directory.assign_tier(&TierHolder::Project(project("none")), Some(&basic), "ops", NOW);
    assert_eq!(unknown, Err(IdentityError::UnknownProject(project("none"))));
    let holder = TierHolder::Project(project("web"));
    directory.assign_tier(&holder, Some(&basic), "ops", NOW).unwrap();
    let refused = directory.remove_tier(&basic, "ops", NOW).unwrap_err();
    let in_use = IdentityError::TierInUse { tier: basic.clone(), holders: "project `web`".to_owned() };
    assert_eq!(refused, in_use);
    // The store refuses it by itself, in case another process assigned the tier.
    let audit = entry(NOW, "ops", "tier.remove", "basic", String::new());
    assert_eq!(store.remove_tier(&basic, &audit), Err(StoreError::InUse { what: "tier" }));
    directory.assign_tier(&holder, None, "ops", NOW).unwrap();
    directory.remove_tier(&basic, "ops", NOW).unwrap();
    assert_eq!((directory.tiers(), open(&store).tiers()), (Vec::new(), Vec::new()));
}
