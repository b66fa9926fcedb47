//! A shared ledger as operators use it. Answers are as old as the last turn, which an idle gateway takes four times a
//! second. After an empty batch, they include what other gateways wrote before it.

use std::sync::Arc;

use headrace_domain::{NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::admin::{JournalHistory, LedgerAdmin, has_grant};
use crate::command::{GrantKind, LedgerOperation};
use crate::journal::{JournalError, LedgerError};
use crate::service::{BatchResult, JournalHealth};
use crate::standing::{LedgerTotals, SpendableBalance};
use crate::transaction::HoldTaken;
use crate::verify::VerifyReport;

use super::ledger::SharedLedger;

/// A ledger that several gateways share, with its journal to read.
#[derive(Clone)]
pub struct SharedLedgerAdmin {
    ledger: SharedLedger,
    history: Arc<dyn JournalHistory>,
}

impl SharedLedgerAdmin {
    /// Joins a ledger with a reader of its journal.
    pub fn new(ledger: SharedLedger, history: Arc<dyn JournalHistory>) -> Self {
        Self { ledger, history }
    }
}

impl std::fmt::Debug for SharedLedgerAdmin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedLedgerAdmin").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

impl LedgerAdmin for SharedLedgerAdmin {
    fn transact(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> BatchResult {
        self.ledger.transact(batch, now)
    }

    fn totals(&self) -> LedgerTotals {
        self.ledger.totals()
    }

    fn open_holds(&self) -> Vec<HoldTaken> {
        self.ledger.open_holds()
    }

    fn projects(&self) -> Vec<(OrgId, ProjectId)> {
        self.ledger.projects()
    }

    fn standing_at(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<SpendableBalance> {
        self.ledger.standing_at(org, project, now)
    }

    fn time(&self) -> UnixNanos {
        self.ledger.time()
    }

    fn health(&self) -> JournalHealth {
        self.ledger.health()
    }

    fn has_grant(
        &self,
        after: u64,
        org: &OrgId,
        kind: GrantKind,
        amount: NanoDollars,
        reference: &str,
    ) -> Result<bool, JournalError> {
        has_grant(self.history.as_ref(), after, (org, kind, amount, reference))
    }

    fn verify(&self) -> Result<VerifyReport, JournalError> {
        self.history.verify()
    }

    fn close(&self) -> Result<(), LedgerError> {
        self.ledger.close()
    }
}
