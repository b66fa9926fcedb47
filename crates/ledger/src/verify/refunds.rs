//! Checks refunds from the events alone: each against the charge of its hold, all refunds of a hold in sum, and every
//! reference once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId};

use crate::refund::ChargeRefunded;

/// The charges and refunds of a journal so far.
#[derive(Debug, Default)]
pub(super) struct RefundVerifier {
    /// A number for each project, because there may be many charges.
    projects: HashMap<ProjectId, u32>,
    charges: HashMap<HoldId, (u32, NanoDollars)>,
    refunded: HashMap<HoldId, i128>,
    references: HashSet<(OrgId, Arc<str>)>,
}

impl RefundVerifier {
    /// Records the charge of a settled hold.
    pub(super) fn charged(&mut self, hold: HoldId, project: &ProjectId, charged: NanoDollars) {
        if charged == NanoDollars::ZERO {
            return;
        }
        let next = u32::try_from(self.projects.len()).unwrap_or(u32::MAX);
        let number = match self.projects.get(project) {
            Some(number) => *number,
            None => *self.projects.entry(project.clone()).or_insert(next),
        };
        self.charges.insert(hold, (number, charged));
    }

    /// Checks the next refund, and calls `find` with each fault.
    pub(super) fn refunded(&mut self, refund: &ChargeRefunded, find: &mut dyn FnMut(String)) {
        let ChargeRefunded { hold, org, project, charged, amount, reference, .. } = refund;
        let known = self.charges.get(hold).copied();
        if known
            .is_none_or(|known| Some(known) != self.projects.get(project).map(|number| (*number, *charged)))
        {
            find(format!("{hold} is refunded, and was not charged {charged} for project {project}"));
        }
        if reference.is_empty() {
            find(format!("a refund of {hold} has no reference"));
        }
        if !self.references.insert((org.clone(), Arc::clone(reference))) {
            find(format!("reference {reference:?} of org {org} is used by two refunds"));
        }
        let sum = self.refunded.entry(*hold).or_default();
        *sum += i128::from(amount.get());
        if *amount <= NanoDollars::ZERO || *sum > i128::from(charged.get()) {
            find(format!("{hold} was charged {charged}, and its refunds sum to {sum} nano-dollars"));
        }
    }
}
