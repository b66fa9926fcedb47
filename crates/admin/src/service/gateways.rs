//! The status of a server, with the gateways that share its ledger, and what they changed. Must not know where a ledger
//! is kept.

use headrace_ledger::GatewayRecord;

use super::AdminService;
use crate::command::{AdminCommand, ServerStatus};
use crate::gateway_view::GatewayView;

impl AdminService {
    /// The status of this server, and of the gateways that share its ledger. Waits for a database for some seconds.
    pub(super) fn server_status(&self) -> ServerStatus {
        let (gateways, gateways_failing) = match self.ledger.history().gateways() {
            Ok(gateways) => (gateways.into_iter().map(|gateway| self.view(gateway)).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let totals = self.ledger.totals().into();
        ServerStatus { totals, gateways, gateways_failing, ..(self.status)() }
    }

    fn view(&self, gateway: GatewayRecord) -> GatewayView {
        GatewayView {
            is_this: self.ledger.owner() == Some(gateway.owner),
            name: gateway.name,
            version: gateway.version,
            state: gateway.state.name().to_owned(),
            joined: gateway.joined,
            unseen_ms: u64::try_from(gateway.unseen.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Loads what other gateways changed, because a command may name what one of them made a moment ago. If it cannot be
    /// loaded, the command works with what is known.
    pub(super) fn load_changes_for(&self, command: &AdminCommand) {
        let is_independent = match command {
            AdminCommand::Status
            | AdminCommand::Now
            | AdminCommand::RecentCalls { .. }
            | AdminCommand::Reload
            | AdminCommand::Upstreams { .. }
            | AdminCommand::Routes { .. } => true,
            // A known key is revoked at once, even if the database is away.
            AdminCommand::RevokeKey { id } => self.directory.key(id).is_some(),
            _ => false,
        };
        if is_independent {
            return;
        }
        // The regular poll reports what fails here.
        let is_read = self.directory.refresh().is_ok();
        if is_read
            && self.directory.changes_loaded() > 0
            && let Some(operators) = &self.operators
        {
            let _ = operators.refresh();
        }
    }
}
