//! Requests for stored resources: authenticated and counted here, answered by the resources.

use std::sync::Arc;

use headrace_call_api::{BodySource, ObjectOperation};
use headrace_call_state::Answer;
use headrace_domain::KeyId;
use headrace_identity::Principal;
use headrace_resources::check_entitled;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::IdentifiedCaller;

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
        (context, principal): IdentifiedCaller,
    ) -> Result<ObjectRequest, Answer> {
        let entitled =
            principal.and_then(|principal| check_entitled(&principal, &operation.path).map(|()| principal));
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
        match self.resources().answer(self, &principal, &operation, body).await {
            Ok(answer) => answer.with_headers(context.id_headers()),
            Err(rejection) => rejection.answer(&context),
        }
    }
}
