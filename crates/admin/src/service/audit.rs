//! The audit log: its rows with their hashes, and its signed end. Must not know the algorithm of the signature.

use headrace_domain::{AdminCode, UnixNanos};
use headrace_identity::AuditSummary;

use super::{AdminService, MAX_AUDIT_ROWS};
use crate::audit_act::{AuditAct, AuditLine, AuditReply, SignedAuditHead};
use crate::command::AdminReply;
use crate::error::AdminError;

/// Signs the end of the audit log at a time.
pub type AuditSigner = Box<dyn Fn(UnixNanos, &AuditSummary) -> SignedAuditHead + Send + Sync>;

impl AdminService {
    /// Adds the key that signs the end of the audit log.
    pub fn with_audit_signer(self, signer: AuditSigner) -> Self {
        Self { audit_signer: Some(signer), ..self }
    }

    /// Signs the present end of the audit log.
    ///
    /// # Errors
    /// If the log cannot be read, or this process has no key.
    pub fn sign_audit_head(&self, now: UnixNanos) -> Result<SignedAuditHead, AdminError> {
        let none = || AdminError::new(AdminCode::Internal, "this process has no key for signatures", "");
        let signer = self.audit_signer.as_ref().ok_or_else(none)?;
        Ok(signer(now, &self.directory.audit_end()?))
    }

    pub(super) fn audit_log(&self, act: AuditAct, now: UnixNanos) -> Result<AdminReply, AdminError> {
        let reply = match act {
            AuditAct::Rows { after, limit } => {
                let limit = usize::try_from(limit.clamp(1, MAX_AUDIT_ROWS)).unwrap_or(1);
                let rows = self.directory.audit(after, limit)?;
                AuditReply::Rows { rows: rows.into_iter().map(AuditLine::from).collect() }
            }
            AuditAct::Head => AuditReply::Head { head: self.sign_audit_head(now)? },
        };
        Ok(AdminReply::AuditLog(reply))
    }
}
