//! What leaves for others: the keys that sign receipts, and endpoints that receive events.

use headrace_domain::{AdminCode, UnixNanos};

use super::{AdminService, not_running};
use crate::command::AdminReply;
use crate::error::AdminError;
use crate::webhook_act::{WebhookAct, WebhookReply};

impl AdminService {
    pub(super) fn rotate_receipt_key(&self, actor: &str, now: UnixNanos) -> Result<AdminReply, AdminError> {
        let Some(keys) = &self.receipt_keys else { return Err(not_running()) };
        let id = keys()?;
        self.note("receipt_key.rotate", &id, String::new(), actor, now)?;
        Ok(AdminReply::ReceiptKeyRotated { id })
    }

    pub(super) fn webhooks(
        &self,
        act: WebhookAct,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let Some(webhooks) = &self.webhooks else {
            return match act {
                WebhookAct::List => Ok(AdminReply::Webhooks(WebhookReply::Endpoints(Vec::new()))),
                WebhookAct::Deliveries { .. } => {
                    Ok(AdminReply::Webhooks(WebhookReply::Deliveries(Vec::new())))
                }
                WebhookAct::Test { name } | WebhookAct::Resume { name } => {
                    let message = format!("there is no webhook `{name}` on a running server");
                    Err(AdminError::new(AdminCode::UnknownWebhook, message, "headrace webhooks list"))
                }
            };
        };
        let reply = webhooks(act)?;
        match &reply {
            WebhookReply::Tested { name, result, .. } => {
                self.note("webhook.test", name, result.clone(), actor, now)?;
            }
            WebhookReply::Resumed { name } => {
                self.note("webhook.resume", name, String::new(), actor, now)?;
            }
            WebhookReply::Endpoints(_) | WebhookReply::Deliveries(_) => {}
        }
        Ok(AdminReply::Webhooks(reply))
    }
}
