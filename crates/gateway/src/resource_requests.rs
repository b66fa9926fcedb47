//! Requests for stored resources: authenticated and counted here, answered by the resources.

use std::sync::Arc;

use headrace_call_api::{BodySource, ObjectAsk};
use headrace_call_state::Answer;
use headrace_domain::KeyId;
use headrace_identity::Principal;
use headrace_resources::{check_entitled, dialect_of};

use crate::Gateway;
use crate::request_context::RequestContext;

/// An authenticated request for stored objects.
pub struct ObjectRequest {
    principal: Arc<Principal>,
    context: RequestContext,
    ask: ObjectAsk,
}

impl headrace_call_api::Admitted for ObjectRequest {
    fn payer(&self) -> &KeyId {
        &self.principal.key
    }
}

impl Gateway {
    /// Authenticates a request for stored objects and counts it.
    pub(crate) fn admit_asked(&self, ask: ObjectAsk) -> Result<ObjectRequest, Answer> {
        let (context, principal) = self.identify(&ask.credentials, dialect_of(&ask.path));
        let entitled =
            principal.and_then(|principal| check_entitled(&principal, &ask.path).map(|()| principal));
        match entitled {
            Ok(principal) => Ok(ObjectRequest { principal, context, ask }),
            Err(rejection) => Err(rejection.answer(&context)),
        }
    }

    pub(crate) async fn answer_asked(
        self: &Arc<Self>,
        asked: ObjectRequest,
        body: impl BodySource,
    ) -> Answer {
        let ObjectRequest { principal, context, ask } = asked;
        match self.resources().answer(self, &principal, &ask, body).await {
            Ok(answer) => answer.with_headers(context.id_headers()),
            Err(rejection) => rejection.answer(&context),
        }
    }
}
