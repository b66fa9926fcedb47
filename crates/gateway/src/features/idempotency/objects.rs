//! Requests for stored resources with an idempotency key. They cost nothing by themselves, so their claim is a hold of
//! nothing.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use headrace_call_api::{BodySource, ObjectMethod, ObjectOperation};
use headrace_call_state::{Answer, AnswerBody, Rejection};
use headrace_domain::KeyId;
use headrace_identity::Principal;
use headrace_resources::{UploadClaim, takes_form};
use tokio::sync::Mutex;

use super::answers::{read, store, stored_answer};
use super::claim::KeyClaim;
use crate::Gateway;
use crate::funds::could_pay;
use crate::idempotent_request::IdempotentRequest;
use crate::refusal::{draining, internal_error};
use crate::request_context::RequestContext;

/// Whether an operation heeds an idempotency key. Those that store nothing and cost nothing do not.
pub(crate) fn is_honoured(operation: &ObjectOperation) -> bool {
    operation.method == ObjectMethod::Post
        && !matches!(operation.path.as_str(), "moderations" | "responses/input_tokens")
}

/// Answers an operation with a key.
pub(crate) async fn answer_object(
    gateway: &Arc<Gateway>,
    principal: Arc<Principal>,
    mut context: RequestContext,
    operation: ObjectOperation,
    body: impl BodySource,
) -> Answer {
    let Some(request) = context.idempotency.take() else {
        return internal_error(context.id, context.dialect);
    };
    let asked = KeyedOperation { gateway: Arc::clone(gateway), principal, request, operation };
    let (id, dialect) = (context.id, context.dialect);
    let answered = if takes_form(&asked.operation.path) {
        asked.upload(context.id.hold(), body).await
    } else {
        match asked.claim(context.id.hold(), body).await {
            // The operation continues if the client leaves: a batch that it creates costs money.
            Ok(ClaimOutcome::New(work)) => match tokio::spawn(work).await {
                Ok(answered) => answered,
                Err(_) => return internal_error(id, dialect),
            },
            Ok(ClaimOutcome::Replay(answer)) => Ok(answer),
            Err(rejection) => Err(rejection),
        }
    };
    match answered {
        Ok(answer) => answer.with_headers(context.id_headers()),
        Err(rejection) => rejection.answer(&context),
    }
}

/// An operation with a key.
struct KeyedOperation {
    gateway: Arc<Gateway>,
    principal: Arc<Principal>,
    request: Box<IdempotentRequest>,
    operation: ObjectOperation,
}

type ObjectAnswer = Result<Answer, Rejection>;

/// What a claim led to.
enum ClaimOutcome {
    /// The operation is to be done.
    New(Pin<Box<dyn Future<Output = ObjectAnswer> + Send>>),
    /// It was done before.
    Replay(Answer),
}

impl KeyedOperation {
    /// Reads the body and claims the key.
    async fn claim(
        mut self,
        hold: headrace_domain::HoldId,
        body: impl BodySource,
    ) -> Result<ClaimOutcome, Rejection> {
        let gateway = Arc::clone(&self.gateway);
        // A drain waits for the operation.
        let counted = gateway.counted();
        let read_body = tokio::select! {
            biased;
            read = body.read() => read.map_err(|refusal| Rejection::of_body(&refusal))?,
            () = gateway.cut_off().cancelled() => return Err(draining()),
        };
        let (content, _) = read(read_body.clone(), false).await?;
        let claim = match take(&gateway, &self.principal, &mut self.request, hold, content).await {
            Ok(claim) => claim,
            Err(rejection) => {
                return replayed(&gateway, &self.principal, &mut self.request, rejection)
                    .await
                    .map(ClaimOutcome::Replay);
            }
        };
        Ok(ClaimOutcome::New(Box::pin(async move {
            let Self { gateway, principal, operation, .. } = self;
            let _counted = counted;
            // While this exists the claim does not expire.
            let _kept = gateway.hold_keeper().join(claim.hold(), None::<KeyId>);
            let done = gateway.resources().answer(&gateway, &principal, &operation, read_body, None);
            let done = AssertUnwindSafe(done).catch_unwind().await;
            finish(&gateway, &principal, claim, done).await
        })))
    }

    /// Answers an upload. What a form means is known when all of it has arrived. The key is claimed then, before the file
    /// can be seen.
    async fn upload(self, hold: headrace_domain::HoldId, body: impl BodySource) -> ObjectAnswer {
        let Self { gateway, principal, request, operation } = self;
        let was_known = request.is_known(&*gateway.parts().ledger, &principal.project);
        let state = Mutex::new(UploadState { request, claim: None });
        let claimer = UploadClaimer { gateway: &gateway, principal: &principal, hold, was_known, state };
        let done = gateway.resources().answer(&gateway, &principal, &operation, body, Some(&claimer)).await;
        let UploadState { mut request, claim } = claimer.state.into_inner();
        match (claim, done) {
            (Some(claim), done) => finish(&gateway, &principal, claim, Ok(done)).await,
            (None, Err(rejection)) => replayed(&gateway, &principal, &mut request, rejection).await,
            (None, done) => done,
        }
    }
}

/// Claims the key of an upload.
struct UploadClaimer<'a> {
    gateway: &'a Arc<Gateway>,
    principal: &'a Arc<Principal>,
    hold: headrace_domain::HoldId,
    /// The key was claimed before the upload arrived.
    was_known: bool,
    state: Mutex<UploadState>,
}

struct UploadState {
    request: Box<IdempotentRequest>,
    claim: Option<KeyClaim>,
}

impl UploadClaim for UploadClaimer<'_> {
    fn is_known(&self) -> bool {
        self.was_known
    }

    fn claim(&self, content: [u8; 32]) -> Pin<Box<dyn Future<Output = Result<(), Rejection>> + Send + '_>> {
        Box::pin(async move {
            let mut state = self.state.lock().await;
            let taken = take(self.gateway, self.principal, &mut state.request, self.hold, content).await;
            let claim = taken?;
            if self.was_known
                && let Err(rejection) = could_pay(self.gateway, self.principal)
            {
                claim.free().await;
                return Err(rejection);
            }
            state.claim = Some(claim);
            Ok(())
        })
    }
}

async fn take(
    gateway: &Arc<Gateway>,
    principal: &Arc<Principal>,
    request: &mut IdempotentRequest,
    hold: headrace_domain::HoldId,
    content: [u8; 32],
) -> Result<KeyClaim, Rejection> {
    let claim = request.claims(content)?;
    match KeyClaim::take(gateway, principal, hold, claim).await {
        Ok(claim) => Ok(claim),
        Err((refusal, durable)) => Err(request.refused(refusal, gateway.parts().clock.now(), durable).await),
    }
}

/// The stored answer if the operation was done before. Otherwise the rejection.
async fn replayed(
    gateway: &Gateway,
    principal: &Principal,
    request: &mut IdempotentRequest,
    rejection: Rejection,
) -> ObjectAnswer {
    match request.take_first() {
        Some(first) => stored_answer(gateway, (&principal.project, &principal.key), first).await,
        None => Err(rejection),
    }
}

/// Ends the claim of an operation: with its answer if it was done, and without a trace if it was not.
async fn finish(
    gateway: &Gateway,
    principal: &Principal,
    claim: KeyClaim,
    done: Result<ObjectAnswer, Box<dyn std::any::Any + Send>>,
) -> ObjectAnswer {
    let answer = match done {
        Ok(Ok(answer)) if answer.status < 300 => answer,
        Ok(other) => {
            claim.free().await;
            return other;
        }
        Err(panic) => {
            claim.free().await;
            std::panic::resume_unwind(panic)
        }
    };
    let config = gateway.config().idempotency;
    let stored = match &answer.body {
        AnswerBody::Whole(body) if !config.keep.is_zero() && body.len() <= config.max_answer_bytes => {
            let to = (claim.hold(), principal.project.clone());
            store(gateway, to, answer.status, answer.content_type, body.as_ref().into()).await
        }
        _ => None,
    };
    claim.complete(stored).await;
    Ok(answer)
}
