//! Operators: create, list, revoke, and make sign-in links, which work once. Must not know the address of links.

use headrace_domain::{AdminCode, UnixNanos};
use headrace_identity::{AuditEntry, ExposeSecret, OperatorId, OperatorScope, Operators, Role};

use super::AdminService;
use crate::command::AdminReply;
use crate::error::AdminError;
use crate::secret_text::SecretText;

/// Makes a link that signs an operator in once. Returns it with the time when it expires. `None` if no link can be made,
/// for example without an admin listener.
pub type LinkSource = Box<dyn Fn(&OperatorId, UnixNanos) -> Option<(SecretText, UnixNanos)> + Send + Sync>;

impl AdminService {
    pub(super) fn create_operator(
        &self,
        name: &str,
        role: Role,
        scope: OperatorScope,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let (operator, key) = self.operators()?.create_within(name, role, scope, actor, now)?;
        let key = SecretText::new(key.expose_secret().to_owned());
        Ok(AdminReply::OperatorCreated { operator, key })
    }

    pub(super) fn list_operators(&self) -> Result<AdminReply, AdminError> {
        Ok(AdminReply::Operators(self.operators()?.list()))
    }

    pub(super) fn revoke_operator(
        &self,
        id: OperatorId,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        self.operators()?.revoke(&id, actor, now)?;
        Ok(AdminReply::OperatorRevoked { id })
    }

    pub(super) fn link(
        &self,
        id: &OperatorId,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let operator = self.operators()?.active(id);
        let operator =
            operator.ok_or_else(|| headrace_identity::IdentityError::UnknownOperator(id.to_string()))?;
        let link = self.links.as_ref().and_then(|links| links(id, now));
        let Some((link, expires)) = link else {
            return Err(AdminError::new(
                AdminCode::NotListening,
                "no server listens for operators on this data directory",
                "headrace up, or headrace serve with --admin-listen 127.0.0.1:8081",
            ));
        };
        let detail = format!("name {:?}", operator.name);
        self.note("operator.link", id.as_str(), detail, actor, now)?;
        Ok(AdminReply::SignInLink { link, expires })
    }

    /// Writes an audit row for an act that was performed elsewhere. Blocks.
    ///
    /// # Errors
    /// The store's error.
    pub fn note(
        &self,
        act: &str,
        subject: &str,
        detail: String,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), AdminError> {
        let (act, subject) = (act.to_owned(), subject.to_owned());
        let entry = AuditEntry { at: now, actor: actor.to_owned(), act, subject, detail };
        Ok(self.directory.note(&entry)?)
    }

    fn operators(&self) -> Result<&Operators, AdminError> {
        self.operators
            .as_deref()
            .ok_or_else(|| AdminError::new(AdminCode::Internal, "operators are not kept here", ""))
    }
}
