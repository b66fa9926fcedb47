//! The gateway as edges see it: requests are admitted by their head and served with their body. Knows no edge.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    AdmissionWait, BodySource, CallService, CallerInfo, RequestAdmission, RequestHead, RequestTarget,
    SessionId,
};
use headrace_call_state::{Answer, Delivery, Rejection};
use headrace_domain::{Dialect, Endpoint, KeyId};
use headrace_identity::Principal;
use headrace_resources::{SocketSession, dialect_of};
use headrace_wire::responses::turn_body;

use crate::Gateway;
use crate::entry::{self, EnteredCall};
use crate::look_up::{LookUp, LookUpSubject};
use crate::questions::AdmittedQuestion;
use crate::request_context::RequestContext;
use crate::resource_requests::ObjectRequest;
use crate::socket_sessions::OpenSession;

/// A request that the gateway admitted by its head.
pub struct GatewayAdmission(AdmittedTarget);

enum AdmittedTarget {
    Call(EnteredCall),
    /// A message of a responses socket, and the body of the call that it represents.
    SocketTurn(EnteredCall, Bytes),
    Question(AdmittedQuestion),
    Object(ObjectRequest),
    LookUp(LookUp),
    Session(OpenSession<SocketSession>),
    Key(Arc<Principal>),
}

#[cfg(test)]
impl GatewayAdmission {
    /// The admitted call, for tests that drive a call through its steps themselves. `None` for other requests.
    pub(crate) fn into_call(self) -> Option<EnteredCall> {
        if let AdmittedTarget::Call(entered) = self.0 { Some(entered) } else { None }
    }
}

impl RequestAdmission for GatewayAdmission {
    fn payer(&self) -> &KeyId {
        match &self.0 {
            AdmittedTarget::Call(entered) | AdmittedTarget::SocketTurn(entered, _) => entered.key(),
            AdmittedTarget::Question(question) => question.key(),
            AdmittedTarget::Object(request) => request.key(),
            AdmittedTarget::LookUp(look_up) => look_up.key(),
            AdmittedTarget::Session(session) => session.key(),
            AdmittedTarget::Key(principal) => &principal.key,
        }
    }

    fn session(&self) -> Option<SessionId> {
        if let AdmittedTarget::Session(session) = &self.0 { Some(session.id()) } else { None }
    }
}

impl CallService for Gateway {
    type Stream = Delivery;
    type Admission = GatewayAdmission;

    fn admit(self: &Arc<Self>, head: RequestHead) -> Result<GatewayAdmission, Answer> {
        self.admit_for(None, head)
    }

    fn wait_before_admission(
        &self,
        authorization: Option<&[u8]>,
        x_api_key: Option<&[u8]>,
    ) -> Option<AdmissionWait> {
        self.wait_for_keys(authorization, x_api_key)
    }

    fn wait_for_limits(&self, caller: impl FnOnce() -> CallerInfo) -> Option<AdmissionWait> {
        if !self.parts().limits.are_shared() {
            return None;
        }
        let CallerInfo { credentials, peer, .. } = caller();
        // A caller that is not known is refused without limits.
        let principal = self.find_principal(&credentials, peer).ok()?;
        self.fetch_limits(&principal)
    }

    async fn serve<B: BodySource>(self: &Arc<Self>, admission: GatewayAdmission, body: B) -> Answer {
        // Boxed, because a connection reserves space for the future that it awaits for as long as it is open.
        match admission.0 {
            AdmittedTarget::Call(entered) => Box::pin(entry::run(self, entered, body)).await,
            AdmittedTarget::SocketTurn(entered, body) => Box::pin(entry::run(self, entered, body)).await,
            AdmittedTarget::Question(question) => Box::pin(self.answer_question(question, body)).await,
            AdmittedTarget::Object(request) => Box::pin(self.answer_object(request, body)).await,
            AdmittedTarget::LookUp(look_up) => Box::pin(self.answer_look_up(look_up)).await,
            AdmittedTarget::Session(_) => Answer::json(101, Bytes::new()),
            AdmittedTarget::Key(_) => Answer::json(204, Bytes::new()),
        }
    }

    fn not_ready(&self, model: Option<&str>) -> Vec<String> {
        model.map_or_else(|| self.why_not_ready(), |model| self.why_not_ready_for(model))
    }

    async fn drain(&self, within: Duration) -> usize {
        self.drain_within(within).await
    }
}

impl Gateway {
    /// Like [`CallService::admit`], for a caller inside this process, which shows no credentials. The request acts for
    /// a principal that is already known: within its limits, entitlements and money.
    ///
    /// # Errors
    /// The answer to a caller that is not admitted.
    pub async fn admit_as(
        &self,
        principal: Arc<Principal>,
        head: RequestHead,
    ) -> Result<GatewayAdmission, Answer> {
        if let Some(fetch) = self.fetch_limits(&principal) {
            fetch.await;
        }
        self.admit_for(Some(principal), head)
    }

    /// Admits a request for `principal`, or for the principal of the caller's credentials.
    fn admit_for(
        &self,
        principal: Option<Arc<Principal>>,
        head: RequestHead,
    ) -> Result<GatewayAdmission, Answer> {
        let RequestHead { target, caller } = head;
        let admitted = match target {
            RequestTarget::Call(endpoint) => {
                AdmittedTarget::Call(entry::enter(self, endpoint, caller, principal, |_| ())?)
            }
            RequestTarget::Question(question) => {
                let identified = self.identify(&caller, principal, question.dialect());
                let headers = caller.dialect_headers;
                AdmittedTarget::Question(self.admit_question(question, identified, headers)?)
            }
            RequestTarget::Object(operation) => {
                let identified = self.identify(&caller, principal, dialect_of(&operation.path));
                AdmittedTarget::Object(self.admit_object(operation, identified, caller.idempotency)?)
            }
            RequestTarget::ModelList { dialect, query } => {
                let identified = self.identify(&caller, principal, dialect);
                AdmittedTarget::LookUp(LookUp::admit(LookUpSubject::ModelList { query }, identified)?)
            }
            RequestTarget::Model { dialect, name } => {
                let identified = self.identify(&caller, principal, dialect);
                AdmittedTarget::LookUp(LookUp::admit(LookUpSubject::Model { name }, identified)?)
            }
            RequestTarget::RequestTrace { id } => {
                let identified = self.identify(&caller, principal, Dialect::OpenAi);
                AdmittedTarget::LookUp(LookUp::admit(LookUpSubject::RequestTrace { id }, identified)?)
            }
            RequestTarget::Receipt { id } => {
                let identified = self.identify(&caller, principal, Dialect::OpenAi);
                AdmittedTarget::LookUp(LookUp::admit(LookUpSubject::Receipt { id }, identified)?)
            }
            RequestTarget::SocketHandshake => {
                let entered = entry::enter(self, Endpoint::Responses, caller, principal, |_| ())?;
                AdmittedTarget::Session(self.sessions().open(entered.key().clone()))
            }
            RequestTarget::SocketTurn { session, message } => {
                self.admit_turn(session, &message, caller, principal)?
            }
            RequestTarget::KeyCheck => {
                let valid = principal.or_else(|| self.find_principal(&caller.credentials, caller.peer).ok());
                AdmittedTarget::Key(valid.ok_or_else(|| Answer::json(401, Bytes::new()))?)
            }
        };
        Ok(GatewayAdmission(admitted))
    }

    /// Admits a message of a responses socket as a call, with the session's state if the call's key opened the session.
    /// After a refusal, no call may continue from the response that the message names.
    fn admit_turn(
        &self,
        session: Option<SessionId>,
        message: &Bytes,
        caller: CallerInfo,
        principal: Option<Arc<Principal>>,
    ) -> Result<AdmittedTarget, Answer> {
        let sessions = self.sessions();
        let mut entered = match entry::enter(self, Endpoint::Responses, caller, principal, |_| ()) {
            Ok(entered) => entered,
            Err(refusal) => {
                // The caller may be unknown by now, for example if its key was revoked.
                if let Some(session) = session.and_then(|id| sessions.find(id)) {
                    session.refused(message);
                }
                return Err(refusal);
            }
        };
        entered.context.turns = session.and_then(|id| sessions.find_of(entered.key(), id));
        match self.turn_body(message) {
            Ok(body) => Ok(AdmittedTarget::SocketTurn(entered, body)),
            Err(refusal) => {
                if let Some(session) = &entered.context.turns {
                    session.refused(message);
                }
                Err(refusal)
            }
        }
    }

    /// Returns the body of the call that a message of a responses socket represents.
    fn turn_body(&self, message: &Bytes) -> Result<Bytes, Answer> {
        turn_body(message, &self.config().wire).map_err(|bad| {
            let clock = &self.parts().clock;
            let (now, mono_ns) = (clock.now(), clock.monotonic_nanos());
            let context = RequestContext::open(Arc::clone(clock), now, mono_ns, Dialect::OpenAi);
            Rejection::from(bad).answer(&context)
        })
    }
}
