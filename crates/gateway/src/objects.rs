//! Objects that clients store: the history that a response continues, stored answers, background responses, and the
//! paths for looking all of these up. An object is on the disk before the client learns of it. Knows no SQL.

mod ask;
pub(crate) mod background;
mod batches;
mod conversations;
mod counts;
mod files;
mod form;
mod history;
pub(crate) mod keep;
mod message_batches;
mod moderations;
pub(crate) mod newest;
pub(crate) mod reads;
pub(crate) mod references;
mod responses;
pub(crate) mod running;
mod uploads;
pub(crate) mod writing;

use std::sync::Arc;

use headrace_call_api::{BodySource, ObjectMethod, ObjectOperation};
use headrace_domain::{Code, Dialect, Endpoint, KeyId, ProjectId, UnixNanos};
use headrace_identity::{EntitlementRefusal, Principal};

use crate::rejection::Rejection;
use crate::request_context::RequestContext;
use crate::stages::authenticate::could_pay;
use crate::state::IdentifiedCaller;
use crate::{Answer, Gateway};

/// An authenticated request for stored objects.
pub(crate) struct ObjectRequest {
    principal: Arc<Principal>,
    context: RequestContext,
    operation: ObjectOperation,
}

impl ObjectRequest {
    /// The key that the request is for.
    pub(crate) fn key(&self) -> &KeyId {
        &self.principal.key
    }
}

/// The result of such a request.
type Told = Result<Answer, Rejection>;

impl Gateway {
    /// Admits a request for stored objects of an identified caller.
    pub(crate) fn admit_object(
        &self,
        operation: ObjectOperation,
        (context, principal): IdentifiedCaller,
    ) -> Result<ObjectRequest, Answer> {
        match principal.and_then(|principal| entitled(principal, &operation.path)) {
            Ok(principal) => Ok(ObjectRequest { principal, context, operation }),
            Err(why) => Err(why.answer(&context)),
        }
    }

    pub(crate) async fn answer_object(
        self: &Arc<Self>,
        request: ObjectRequest,
        body: impl BodySource,
    ) -> Answer {
        let ObjectRequest { principal, context, operation } = request;
        match self.look(&principal, &operation, body).await {
            Ok(answer) => answer.with_headers(context.id_headers()),
            Err(why) => why.answer(&context),
        }
    }

    async fn look(
        self: &Arc<Self>,
        principal: &Arc<Principal>,
        ask: &ObjectOperation,
        body: impl BodySource,
    ) -> Told {
        use ObjectMethod::{Delete, Get, Post};
        let segments: Vec<&str> = ask.path.split('/').collect();
        if ask.method == Post && stores(&segments) {
            could_pay(self, principal)?;
        }
        match (ask.method, segments.as_slice()) {
            (Post, ["responses", "input_tokens"]) => self.count_input(principal, body).await,
            (Post, ["responses", "compact"]) => self.compact(principal, body).await,
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
            (Post, ["moderations"]) => self.moderate_texts(principal, body).await,
            (Post, ["files"]) => self.create_file(principal, body).await,
            (Get, ["files"]) => self.list_files(principal, &ask.query).await,
            (Get, ["files", id]) => self.show_file(principal, id).await,
            (Delete, ["files", id]) => self.delete_file(principal, id).await,
            (Get, ["files", id, "content"]) => self.file_content(principal, id).await,
            (Post, ["batches"]) => self.create_batch(principal, body).await,
            (Get, ["batches"]) => self.list_batches(principal, &ask.query).await,
            (Get, ["batches", id]) => self.show_batch(principal, id).await,
            (Post, ["batches", id, "cancel"]) => self.cancel_batch(principal, id).await,
            (Post, ["messages", "batches"]) => self.create_message_batch(principal, body).await,
            (Get, ["messages", "batches"]) => self.list_message_batches(principal, &ask.query).await,
            (Get, ["messages", "batches", id]) => self.show_message_batch(principal, id).await,
            (Delete, ["messages", "batches", id]) => self.delete_message_batch(principal, id).await,
            (Post, ["messages", "batches", id, "cancel"]) => self.cancel_message_batch(principal, id).await,
            (Get, ["messages", "batches", id, "results"]) => self.message_results(principal, id).await,
            (Post, ["uploads"]) => self.create_upload(principal, body).await,
            (Post, ["uploads", id, "parts"]) => self.add_part(principal, id, body).await,
            (Post, ["uploads", id, "complete"]) => self.complete_upload(principal, id, body).await,
            (Post, ["uploads", id, "cancel"]) => self.cancel_upload(principal, id).await,
            _ => Err(Rejection::new(Code::NotFound, "There is no such path here, or not by this method.")
                .keeping("There is no such path here.")),
        }
    }

    /// The bounds on files.
    fn file_limits(&self) -> Result<headrace_objects::FileLimits, Rejection> {
        let files = self.objects().files();
        let none = || Rejection::new(Code::NotFound, "Files and batches are not kept here.");
        files.map(|files| files.limits()).ok_or_else(none)
    }

    fn now(&self) -> UnixNanos {
        self.parts().clock.now()
    }
}

/// The dialect of a path.
pub(crate) fn dialect_of(path: &str) -> Dialect {
    if path.starts_with("messages/") { Dialect::Anthropic } else { Dialect::OpenAi }
}

/// A caller that may not request responses may not look them up either. Files need no entitlement, and each request
/// of a batch is admitted like any other call.
fn entitled(principal: Arc<Principal>, path: &str) -> Result<Arc<Principal>, Rejection> {
    let is_of_responses = path.starts_with("responses") || path.starts_with("conversations");
    if !is_of_responses || principal.endpoints.allows(Endpoint::Responses) {
        return Ok(principal);
    }
    let refusal = EntitlementRefusal::Endpoint(Endpoint::Responses);
    Err(Rejection::new(
        Code::EndpointNotEntitled,
        format!("{refusal} Ask for a key that may, or use another endpoint."),
    ))
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
fn owned(principal: &Principal, id: &str) -> (ProjectId, String) {
    (principal.project.clone(), id.to_owned())
}
