//! Requests for stored resources: authenticated and counted here, answered by the resources.

use std::sync::Arc;

use headrace_call_api::{BodySource, IdempotencyHeader, ObjectOperation};
use headrace_call_state::Answer;
use headrace_domain::KeyId;
use headrace_identity::Principal;
use headrace_resources::check_entitled;

use crate::request_context::RequestContext;
use crate::state::IdentifiedCaller;
use crate::{Gateway, features};

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

impl Gateway {
    /// Admits a request for stored objects of an identified caller.
    pub(crate) fn admit_object(
        &self,
        operation: ObjectOperation,
        (mut context, principal): IdentifiedCaller,
        idempotency: Option<Box<IdempotencyHeader>>,
    ) -> Result<ObjectRequest, Answer> {
        context.idempotency = features::on_operation(&operation, idempotency);
        let entitled = principal.and_then(|principal| {
            features::on_head(&context)?;
            check_entitled(&principal, &operation.path).map(|()| principal)
        });
        match entitled {
            Ok(principal) => Ok(ObjectRequest { principal, context, operation }),
            Err(rejection) => Err(rejection.answer(&context)),
        }
    }

    pub(crate) async fn answer_object(
        self: &Arc<Self>,
        request: ObjectRequest,
        body: impl BodySource,
    ) -> Answer {
        let ObjectRequest { principal, context, operation } = request;
        if context.idempotency.is_some() {
            return Box::pin(features::answer_object(self, principal, context, operation, body)).await;
        }
        match self.resources().answer(self, &principal, &operation, body, None).await {
            Ok(answer) => answer.with_headers(context.id_headers()),
            Err(rejection) => rejection.answer(&context),
        }
    }
}
