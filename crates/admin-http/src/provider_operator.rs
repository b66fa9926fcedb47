//! A user of an identity provider as an operator. Such an operator has no key, and is in no store. Must not know how the
//! user signed in.

use headrace_domain::UnixNanos;
use headrace_identity::{OperatorId, OperatorRecord};
use headrace_jwt::ProviderUser;

/// The operator that a user is: its id is made of issuer and subject, and its name has the provider in it. `None` if the
/// id is not one.
pub(crate) fn record(user: &ProviderUser) -> Option<OperatorRecord> {
    Some(OperatorRecord {
        id: OperatorId::new(&format!("op_{}", user.id())).ok()?,
        name: format!("{} ({})", user.name, user.provider),
        role: user.role,
        org: None,
        user: None,
        hint: String::new(),
        created: UnixNanos::new(0),
        revoked: None,
    })
}
