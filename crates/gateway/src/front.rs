//! The gateway as edges see it: the calls that it admits, and the refusals that an edge makes by itself. Those have
//! the same shapes and traces as all other refusals. Knows no edge.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    BodyRefusal, BodySource, CallHead, CallService, Credentials, EdgeRefusal, ObjectAsk, Question,
};
use headrace_domain::{Code, Dialect, Endpoint, KeyId, UnixNanos};
use headrace_wire::responses::turn_body;

use crate::objects::newest::SocketSession;
use crate::questions::AdmittedQuestion;
use crate::rejection::Rejection;
use crate::request_context::RequestContext;
use crate::stages::{self, EnteredCall};
use crate::{Answer, Delivery, Gateway, ObjectRequest};

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
        stages::enter(self, head, None, |_| ())
    }

    async fn call<B: BodySource>(self: &Arc<Self>, entered: EnteredCall, body: B) -> Answer {
        // Boxed, because a connection reserves space for the future that it awaits for as long as it is open.
        Box::pin(stages::travel(self, entered, body)).await
    }

    fn knows(&self, credentials: &Credentials) -> bool {
        self.would_let_in(credentials)
    }

    fn in_turns(&self, mut entered: EnteredCall, turns: &SocketSession) -> EnteredCall {
        entered.dossier.turns = Some(turns.clone());
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

/// When to try again if other calls must finish first.
const SHORT_WAIT: Duration = Duration::from_secs(1);

impl Rejection {
    /// Converts a refusal that the edge made.
    fn of_edge(refusal: &EdgeRefusal) -> Self {
        match refusal {
            EdgeRefusal::NotFound { path, meant } => {
                let path = shown(path, 80);
                let message = match meant {
                    Some(meant) => format!(
                        "There is no `{path}` here, but `{}`. Set the client's base URL to this server's address: with `/v1` \
                         behind it for OpenAI's clients, without for Anthropic's, and no slash at its end.",
                        shown(meant, 80)
                    ),
                    None => format!("There is no `{path}` here. See the README for the paths."),
                };
                Self::new(Code::NotFound, message).keeping("There is no such path here.")
            }
            EdgeRefusal::MethodNotAllowed { allowed } => {
                Self::new(Code::MethodNotAllowed, format!("This path takes {allowed}."))
            }
            EdgeRefusal::HeadTooLarge { limit_bytes, most_headers } => Self::new(Code::HeadTooLarge,
                format!(
                    "A request's line and headers may have {limit_bytes} bytes (`server.max_header`), over HTTP/1.1 in no \
                     more than {most_headers} headers. Send fewer or shorter ones."
                ),
            ),
            EdgeRefusal::BadHead { what } => Self::new(Code::BadHead,
                format!(
                    "This is not the head of an HTTP/1.1 request: {what}. Look at what the client sends: TLS to a plain \
                     port, another protocol, or a header that is none."
                ),
            ),
            EdgeRefusal::HeaderTimeout { seconds } => Self::new(Code::HeaderTimeout,
                format!("The headers were not whole within {seconds} s. Send the request again."),
            ),
            EdgeRefusal::AmbiguousLength => Self::new(Code::AmbiguousLength,
                "The head does not say in one way where its request ends. Send one `content-length`, or `transfer-encoding: \
                 chunked` alone, and nothing behind a request to `upgrade`."
                    .to_owned(),
            ),
            EdgeRefusal::BadHost { hosts } => Self::new(Code::BadHost,
                format!("The head names {hosts} hosts. Send one `host` header."),
            ),
            EdgeRefusal::TooManyConnections { limit, of_peer } => Self::new(Code::TooManyConnections,
                match of_peer {
                    true => format!(
                        "Your address has {limit} connections with calls in flight, as many as one may have. Share connections, \
                         or try again shortly."
                    ),
                    false => format!(
                        "The server has {limit} connections with calls in flight, as many as it takes. Try again shortly."
                    ),
                },
            )
            .retry_after(SHORT_WAIT),
            EdgeRefusal::TooManySockets { limit, of_key } => Self::new(Code::TooManyConnections,
                match of_key {
                    true => format!(
                        "This key has {limit} WebSockets, as many as one key may have now. Close some of them, or send turns as \
                         `POST /v1/responses`."
                    ),
                    false => format!(
                        "The server has {limit} WebSockets, as many as it takes. Send turns as `POST /v1/responses`, or try again \
                         shortly."
                    ),
                },
            )
            .retry_after(SHORT_WAIT),
        }
    }

    /// Converts the refusal of a body.
    pub(crate) fn of_body(refusal: &BodyRefusal) -> Self {
        match refusal {
            BodyRefusal::TooLarge { limit_bytes } => Self::new(Code::RequestTooLarge,
                format!("The body may have {limit_bytes} bytes. Shorten it, or raise `server.max_body`."),
            ),
            BodyRefusal::TooSlow { seconds } => Self::new(Code::BodyTimeout,
                format!("The body made no progress for {seconds} s. Send the request again."),
            ),
            BodyRefusal::Encoding { encoding } => Self::new(Code::UnsupportedEncoding,
                format!(
                    "The content-encoding `{}` is not taken. Send the body as it is.",
                    shown(encoding, 40)
                ),
            )
            .keeping("The content-encoding is not taken."),
            BodyRefusal::MediaType => Self::new(Code::UnsupportedMediaType,
                "The body must be `content-type: application/json`.".to_owned(),
            ),
            BodyRefusal::Incomplete => {
                Self::new(Code::IncompleteBody, "The body broke off before its end.".to_owned())
            }
            BodyRefusal::TooManyPieces { pieces, bytes } => Self::new(Code::TooManyPieces,
                format!("The body came in {pieces} pieces for {bytes} bytes. Send it in larger chunks, or with a `content-length`."),
            ),
            BodyRefusal::MemoryOfKey { limit_bytes, observed_bytes } => Self::new(Code::RequestMemoryPerKey,
                format!(
                    "With this one, the requests of this key that are being read or answered have {observed_bytes} \
                     bytes; they may have {limit_bytes} (`server.request_memory_per_key`). Wait for some of them."
                ),
            )
            .retry_after(SHORT_WAIT)
            .with_limit("request_memory_per_key", "bytes", *limit_bytes, *observed_bytes),
            BodyRefusal::Memory { limit_bytes, observed_bytes } => Self::new(Code::RequestMemory,
                format!(
                    "With this one, the requests that are being read or answered have {observed_bytes} bytes; they \
                     may have {limit_bytes} (`server.request_memory`). Try again shortly."
                ),
            )
            .retry_after(SHORT_WAIT)
            .with_limit("request_memory", "bytes", *limit_bytes, *observed_bytes),
        }
    }
}

/// Text that the caller wrote, cut to `most` characters and without control characters.
fn shown(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}
