//! The paths of stored resources: each request goes to the function of its path. An object is on the disk before the
//! client learns of it.

use std::sync::Arc;

use headrace_call_api::{BodySource, ObjectMethod, ObjectOperation};
use headrace_call_state::{Answer, Rejection};
use headrace_domain::{Code, Dialect, Endpoint, ProjectId};
use headrace_identity::{EntitlementRefusal, Principal};

use crate::resources::StoredResources;
use crate::runner::CallRunner;
use crate::upload_claim::UploadClaim;

/// The result of such a request.
pub(crate) type ObjectAnswer = Result<Answer, Rejection>;

impl StoredResources {
    /// Answers a request of an admitted caller. `claim` is asked before an upload can be seen. Others do not ask it.
    ///
    /// # Errors
    /// The request is rejected.
    pub async fn answer<R: CallRunner>(
        self: &Arc<Self>,
        runner: &Arc<R>,
        principal: &Arc<Principal>,
        ask: &ObjectOperation,
        body: impl BodySource,
        claim: Option<&dyn UploadClaim>,
    ) -> ObjectAnswer {
        use ObjectMethod::{Delete, Get, Post};
        let segments: Vec<&str> = ask.path.split('/').collect();
        let is_known = claim.is_some_and(UploadClaim::is_known);
        if ask.method == Post && stores(&segments) && !is_known {
            runner.check_funds(principal)?;
        }
        match (ask.method, segments.as_slice()) {
            (Post, ["responses", "input_tokens"]) => self.count_input(runner, principal, body).await,
            (Post, ["responses", "compact"]) => self.compact(runner, principal, body).await,
            (Get, ["responses", id]) => self.show_response(principal, id, &ask.query).await,
            (Delete, ["responses", id]) => self.delete_response(principal, id).await,
            (Post, ["responses", id, "cancel"]) => self.cancel_response(principal, id).await,
            (Get, ["responses", id, "input_items"]) => self.input_items(principal, id, &ask.query).await,
            (Post, ["conversations"]) => self.create_conversation(principal, body).await,
            (Get, ["conversations", id]) => self.show_conversation(principal, id).await,
            (Post, ["conversations", id]) => self.label_conversation(principal, id, body).await,
            (Delete, ["conversations", id]) => self.delete_conversation(principal, id).await,
            (Get, ["conversations", id, "items"]) => self.list_items(principal, id, &ask.query).await,
            (Post, ["conversations", id, "items"]) => self.add_items(principal, id, body).await,
            (Get, ["conversations", id, "items", item]) => self.show_item(principal, id, item).await,
            (Delete, ["conversations", id, "items", item]) => self.delete_item(principal, id, item).await,
            (Post, ["moderations"]) => self.moderate_texts(runner, principal, body).await,
            (Post, ["files"]) => self.create_file(principal, body, claim).await,
            (Get, ["files"]) => self.list_files(principal, &ask.query).await,
            (Get, ["files", id]) => self.show_file(principal, id).await,
            (Delete, ["files", id]) => self.delete_file(principal, id).await,
            (Get, ["files", id, "content"]) => self.file_content(principal, id).await,
            (Post, ["batches"]) => self.create_batch(runner, principal, body).await,
            (Get, ["batches"]) => self.list_batches(principal, &ask.query).await,
            (Get, ["batches", id]) => self.show_batch(principal, id).await,
            (Post, ["batches", id, "cancel"]) => self.cancel_batch(principal, id).await,
            (Post, ["messages", "batches"]) => self.create_message_batch(runner, principal, body).await,
            (Get, ["messages", "batches"]) => self.list_message_batches(principal, &ask.query).await,
            (Get, ["messages", "batches", id]) => self.show_message_batch(principal, id).await,
            (Delete, ["messages", "batches", id]) => self.delete_message_batch(principal, id).await,
            (Post, ["messages", "batches", id, "cancel"]) => self.cancel_message_batch(principal, id).await,
            (Get, ["messages", "batches", id, "results"]) => self.message_results(principal, id).await,
            (Post, ["uploads"]) => self.create_upload(principal, body).await,
            (Post, ["uploads", id, "parts"]) => self.add_part(principal, id, body, claim).await,
            (Post, ["uploads", id, "complete"]) => self.complete_upload(principal, id, body).await,
            (Post, ["uploads", id, "cancel"]) => self.cancel_upload(principal, id).await,
            _ => Err(Rejection::new(Code::NotFound, "There is no such path here, or not by this method.")
                .keeping("There is no such path here.")),
        }
    }
}

/// The dialect of a path.
pub fn dialect_of(path: &str) -> Dialect {
    if path.starts_with("messages/") { Dialect::Anthropic } else { Dialect::OpenAi }
}

/// A caller that may not request responses may not look them up either. Files need no entitlement, and each request
/// of a batch is admitted like any other call.
///
/// # Errors
/// The key may not use the endpoint.
pub fn check_entitled(principal: &Principal, path: &str) -> Result<(), Rejection> {
    let is_of_responses = path.starts_with("responses") || path.starts_with("conversations");
    if !is_of_responses || principal.endpoints.allows(Endpoint::Responses) {
        return Ok(());
    }
    let refusal = EntitlementRefusal::Endpoint(Endpoint::Responses);
    Err(Rejection::new(
        Code::EndpointNotEntitled,
        format!("{refusal} Ask for a key that may, or use another endpoint."),
    ))
}

/// Whether the body of a `POST` to this path is a form.
pub fn takes_form(path: &str) -> bool {
    path == "files" || path.strip_prefix("uploads/").is_some_and(|rest| rest.ends_with("/parts"))
}

/// Whether a `POST` to this path stores something new. That takes space, so the organisation must be able to pay for
/// a call.
fn stores(segments: &[&str]) -> bool {
    matches!(
        segments,
        ["files" | "uploads" | "batches" | "conversations"]
            | ["uploads", _, "parts"]
            | ["messages", "batches"]
            | ["conversations", _, "items"]
    )
}

/// Owned copies of the project and the id, for a closure on another thread.
pub(crate) fn owned(principal: &Principal, id: &str) -> (ProjectId, String) {
    (principal.project.clone(), id.to_owned())
}
