//! The gateway as edges see it: the calls that it admits, and the refusals that an edge makes by itself. Those have
//! the same shapes and traces as all other refusals. Knows no edge.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{BodySource, CallHead, CallService, Credentials, EdgeRefusal, ObjectAsk, Question};
use headrace_call_state::{Answer, Delivery, Rejection};
use headrace_domain::{Dialect, Endpoint, KeyId, UnixNanos};
use headrace_resources::SocketSession;
use headrace_wire::turn_body;

use crate::Gateway;
use crate::entry::{self, EnteredCall};
use crate::questions::AdmittedQuestion;
use crate::request_context::RequestContext;
use crate::resource_requests::ObjectRequest;

impl headrace_call_api::Admitted for EnteredCall {
    fn payer(&self) -> &KeyId {
        &self.admitted.principal.key
    }
}

impl CallService for Gateway {
    type Stream = Delivery;
    type AdmittedWork = EnteredCall;
    type Questioner = AdmittedQuestion;
    type Asked = ObjectRequest;
    type Turns = SocketSession;

    fn admit(self: &Arc<Self>, head: CallHead) -> Result<EnteredCall, Answer> {
        entry::enter(self, head, None, |_| ())
    }

    async fn call<B: BodySource>(self: &Arc<Self>, entered: EnteredCall, body: B) -> Answer {
        // Boxed, because a connection reserves space for the future that it awaits for as long as it is open.
        Box::pin(entry::run(self, entered, body)).await
    }

    fn knows(&self, credentials: &Credentials) -> bool {
        self.would_let_in(credentials)
    }

    fn in_turns(&self, mut entered: EnteredCall, turns: &SocketSession) -> EnteredCall {
        entered.context.turns = Some(turns.clone());
        entered
    }

    fn turn(&self, message: Bytes) -> Result<Bytes, Answer> {
        turn_body(&message, &self.config().wire).map_err(|bad| {
            let clock = &self.parts().clock;
            let (now, mono_ns) = (clock.now(), clock.monotonic_nanos());
            let dossier = RequestContext::open(Arc::clone(clock), now, mono_ns, Dialect::OpenAi);
            Rejection::from(bad).answer(&dossier)
        })
    }

    fn turn_refused(&self, turns: &SocketSession, message: &[u8]) {
        turns.refused(message);
    }

    fn admit_question(
        self: &Arc<Self>,
        question: Question,
        credentials: &Credentials,
        headers: Vec<(&'static str, String)>,
    ) -> Result<AdmittedQuestion, Answer> {
        self.let_ask(question, credentials, headers)
    }

    async fn answer_question<B: BodySource>(self: &Arc<Self>, asked: AdmittedQuestion, body: B) -> Answer {
        self.answer_to(asked, body).await
    }

    fn list_models(&self, credentials: &Credentials, dialect: Dialect, query: &[(String, String)]) -> Answer {
        self.models_for(credentials, dialect, query)
    }

    fn show_model(&self, credentials: &Credentials, name: &str, dialect: Dialect) -> Answer {
        self.model_for(credentials, name, dialect)
    }

    async fn show_request(self: &Arc<Self>, credentials: &Credentials, id: &str) -> Answer {
        self.request_for(credentials, id).await
    }

    fn admit_asked(self: &Arc<Self>, ask: ObjectAsk) -> Result<ObjectRequest, Answer> {
        Gateway::admit_asked(self, ask)
    }

    async fn answer_asked<B: BodySource>(self: &Arc<Self>, asked: ObjectRequest, body: B) -> Answer {
        Gateway::answer_asked(self, asked, body).await
    }

    fn refuse(
        &self,
        dialect: Dialect,
        refusal: &EdgeRefusal,
        endpoint: Option<Endpoint>,
        started: UnixNanos,
    ) -> Answer {
        let clock = Arc::clone(&self.parts().clock);
        let waited = u64::try_from(clock.now().since(started).as_nanos()).unwrap_or(0);
        let started_mono_ns = clock.monotonic_nanos().saturating_sub(waited);
        let mut dossier = RequestContext::open(clock, started, started_mono_ns, dialect);
        if let Some(endpoint) = endpoint {
            dossier.describe(endpoint, None);
        }
        let (answer, record) = dossier.refuse(&Rejection::of_edge(refusal));
        self.parts().traces.record(record);
        match refusal {
            EdgeRefusal::MethodNotAllowed { allowed } => answer.with_header("allow", *allowed),
            _ => answer,
        }
    }

    fn not_ready(&self, model: Option<&str>) -> Vec<String> {
        model.map_or_else(|| self.why_not_ready(), |model| self.why_not_ready_for(model))
    }

    async fn drain(&self, within: Duration) -> usize {
        self.drain_within(within).await
    }
}
