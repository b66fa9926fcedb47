//! The connections and the limits of the store of objects. Both kinds of callers write through it: those that wait, and
//! those that do not. Knows no threads.

use std::sync::Arc;

use headrace_ledger::Owner;
use headrace_objects::{ItemRecord, ObjectError, ObjectLimits, ResponseRecord, ResponseSink};

use super::{conversations, responses};
use crate::pool::{SessionPool, limit_for};
use crate::values::fits;

/// Returns the name under which this gateway is live now, as in the table of gateways. `None` if it has none.
pub type OwnerSource = Arc<dyn Fn() -> Option<Owner> + Send + Sync>;

/// The owner as the database stores it.
pub(crate) fn owner_value(source: &OwnerSource) -> Option<Vec<u8>> {
    source().map(|owner| owner.get().to_be_bytes().to_vec())
}

/// The connections and the limits, for callers that wait and for the writer.
pub(super) struct ObjectDatabase {
    pub(super) pool: SessionPool,
    pub(super) limits: ObjectLimits,
    pub(super) owner: OwnerSource,
}

impl ResponseSink for ObjectDatabase {
    fn put(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError> {
        self.check_size(response)?;
        let (limits, later) = (&self.limits, self.limits.expiry(response.created));
        let owner = owner_value(&self.owner);
        self.pool.write(limit_for(response.bytes()), async |client| {
            responses::lock(client, &response.project).await?;
            if let Some(id) = response.conversation.as_deref().filter(|_| !items.is_empty()) {
                let of = (&response.project, id);
                conversations::add_items(client, limits, of, items, (response.created, later)).await?;
            }
            responses::put(client, limits, owner.as_deref(), response).await
        })
    }

    fn put_each(&self, all: &[&ResponseRecord]) -> Vec<Result<(), ObjectError>> {
        let owner = owner_value(&self.owner);
        // All writers lock projects in the same order, so that none waits for another in a ring.
        let mut sorted = all.to_vec();
        sorted.sort_by(|one, other| one.project.as_str().cmp(other.project.as_str()));
        let bytes = all.iter().map(|response| response.bytes()).sum();
        let together = self.pool.write(limit_for(bytes), async |client| {
            for response in &sorted {
                responses::lock(client, &response.project).await?;
                responses::put(client, &self.limits, owner.as_deref(), response).await?;
            }
            Ok(())
        });
        match together {
            Ok(()) => all.iter().map(|_| Ok(())).collect(),
            Err(error) if all.len() == 1 || matches!(error, ObjectError::Unavailable { .. }) => {
                all.iter().map(|_| Err(error.clone())).collect()
            }
            // One of them exceeds a limit.
            Err(_) => all.iter().map(|response| self.put(response, &[])).collect(),
        }
    }

    fn check_size(&self, response: &ResponseRecord) -> Result<(), ObjectError> {
        fits("max_object_bytes", self.limits.max_object_bytes, response.bytes())
    }
}
