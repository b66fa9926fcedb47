//! What an operator of one organisation sees of budget rules and free tiers: those that count its calls, with the counters of
//! its own subjects. A subject of an unknown organisation is left out. Must not know how rules are shown.

use headrace_admin::{BudgetAlertView, BudgetCounterView, BudgetRuleView, FreeTierView};
use headrace_domain::{KeyId, OrgId, ProjectId};
use headrace_identity::Directory;
use headrace_ledger::{BudgetRule, BudgetScope};

/// Leaves of a rule what an organisation may see. `None` if it may not see the rule.
pub(crate) fn rule_within(directory: &Directory, org: &OrgId, of: BudgetRuleView) -> Option<BudgetRuleView> {
    let BudgetRuleView { rule, raise, limit, counters } = of;
    let counters = counters_within(directory, org, &rule, counters)?;
    Some(BudgetRuleView { rule, raise, limit, counters })
}

/// Leaves of a free tier what an organisation may see. `None` if it may not see the free tier.
pub(crate) fn free_tier_within(directory: &Directory, org: &OrgId, of: FreeTierView) -> Option<FreeTierView> {
    let FreeTierView { tier, counters } = of;
    let counters = counters_within(directory, org, &tier.rule, counters)?;
    Some(FreeTierView { tier, counters })
}

/// The counters of a rule that belong to an organisation. `None` if the rule does not concern it.
fn counters_within(
    directory: &Directory,
    org: &OrgId,
    rule: &BudgetRule,
    counters: Vec<BudgetCounterView>,
) -> Option<Vec<BudgetCounterView>> {
    let is_own = |counter: &BudgetCounterView| is_subject_of(directory, org, rule, &counter.subject);
    concerns(directory, org, rule).then(|| counters.into_iter().filter(is_own).collect())
}

/// Whether an alert is about a subject of an organisation. An alert of a rule that was removed is about none.
pub(crate) fn is_alert_of(
    directory: &Directory,
    org: &OrgId,
    rules: &[BudgetRuleView],
    alert: &BudgetAlertView,
) -> bool {
    let rule = rules.iter().map(|of| &of.rule).find(|rule| rule.name == alert.name);
    rule.is_some_and(|rule| {
        concerns(directory, org, rule) && is_subject_of(directory, org, rule, &alert.subject)
    })
}

/// Whether calls of an organisation can count for a rule.
fn concerns(directory: &Directory, org: &OrgId, rule: &BudgetRule) -> bool {
    let is_of_other = rule.org.as_ref().is_some_and(|only| only != org);
    // A model has no organisation: a rule about one counts the calls of each organisation.
    let may_count = match (&rule.subject, rule.scope) {
        (None, _) | (_, BudgetScope::Model) => true,
        (Some(only), _) => is_subject_of(directory, org, rule, only),
    };
    !is_of_other && may_count
}

/// Whether a subject of a rule belongs to an organisation.
fn is_subject_of(directory: &Directory, org: &OrgId, rule: &BudgetRule, subject: &str) -> bool {
    let found = match rule.scope {
        BudgetScope::Org => return subject == org.as_str(),
        BudgetScope::Model => return subject.split_once('/').is_some_and(|(of, _)| of == org.as_str()),
        BudgetScope::Project => {
            ProjectId::new(subject).ok().and_then(|id| directory.project(&id)).map(|project| project.org)
        }
        BudgetScope::Key | BudgetScope::User => {
            KeyId::new(subject).ok().and_then(|id| directory.org_of_caller(&id))
        }
    };
    // A rule of the organisation alone counts no others.
    found.as_ref() == Some(org) || (found.is_none() && rule.org.as_ref() == Some(org))
}
