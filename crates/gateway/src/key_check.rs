//! The check of a caller's key at the moment of a decision in a shared ledger.

use std::sync::Arc;

use headrace_domain::Clock;
use headrace_identity::{Directory, Principal};
use headrace_ledger::CallerCheck;

use crate::Gateway;

/// Checks the key of a call at the moment when a shared ledger decides on its hold.
pub(crate) struct KeyCheck {
    directory: Arc<Directory>,
    clock: Arc<dyn Clock>,
    principal: Arc<Principal>,
}

impl KeyCheck {
    pub(crate) fn new(gateway: &Gateway, principal: &Arc<Principal>) -> Self {
        let parts = gateway.parts();
        Self {
            directory: Arc::clone(&parts.directory),
            clock: Arc::clone(&parts.clock),
            principal: Arc::clone(principal),
        }
    }
}

impl CallerCheck for KeyCheck {
    fn is_valid(&self) -> bool {
        self.directory.is_current(&self.principal, self.clock.now())
    }
}
