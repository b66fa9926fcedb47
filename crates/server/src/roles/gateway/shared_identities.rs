//! Identities that several gateways share: loads what other gateways changed, regularly and when a turn of the ledger
//! needs it. Must not know what is done with them.

use std::sync::Arc;
use std::time::Duration;

use headrace_identity::{Directory, Operators};
use headrace_ledger::{JournalError, SharedIdentities};

/// Interval at which changes of keys that other servers made are loaded.
const REFRESH_EVERY: Duration = Duration::from_millis(250);

/// The identities of this gateway, for the turns of a shared ledger.
pub(super) struct DirectoryIdentities(pub(super) Arc<Directory>);

impl SharedIdentities for DirectoryIdentities {
    fn loaded(&self) -> u64 {
        self.0.changes_loaded()
    }

    fn load(&self) -> Result<(), JournalError> {
        self.0.refresh().map(drop).map_err(|error| JournalError::Io(error.to_string()))
    }
}

/// Loads keys and operators that other servers changed, until the future is dropped.
pub(super) async fn refresh(directory: Arc<Directory>, operators: Arc<Operators>) {
    let (mut was_failing, mut operators_of) = (false, 0);
    loop {
        tokio::time::sleep(REFRESH_EVERY).await;
        let (directory, operators) = (Arc::clone(&directory), Arc::clone(&operators));
        let refresh = move || {
            directory.refresh()?;
            // A turn may have loaded the keys already.
            let changes = directory.changes_loaded();
            if changes != operators_of {
                operators.refresh()?;
            }
            Ok::<_, headrace_identity::IdentityError>(changes)
        };
        let Ok(refreshed) = tokio::task::spawn_blocking(refresh).await else { continue };
        was_failing = match refreshed {
            Ok(changes) => {
                operators_of = changes;
                false
            }
            Err(error) => {
                if !was_failing {
                    tracing::error!(%error, "changes of keys that other servers made cannot be loaded; trying again");
                }
                true
            }
        };
    }
}
