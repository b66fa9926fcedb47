//! Token counts at another provider's server. That server has the model's tokenizer, so the question and its answer
//! are forwarded unchanged. Free for the caller, and bounded in time and bytes. Must not know how anything is
//! transported.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_state::{Answer, Rejection};
use headrace_catalog::{Catalog, ServedModel};
use headrace_domain::{Call, Code, Dialect, Endpoint, Prompt, RequestId, Stage, UnixNanos};
use headrace_engine_api::{
    AnswerBounds, RelayAnswer, RelayAsk, RelayError, RelayEvent, RelayFacts, RelayWait, SharedRelay, Tenant,
};
use headrace_fleet::{PrefixHashes, TriedWorkers};
use headrace_identity::Principal;
use headrace_relay::{BodyEdits, edited};
use headrace_wire::count_body;
use serde_json::Value;

use crate::call_task::source::faults;
use crate::look_up::Looked;
use crate::stages::render::screen::{RelayScreen, ScreenClearance};
use crate::stages::render::{likely_tokens, tenant_number};

/// How long one server may take.
const COUNT_WITHIN: Duration = Duration::from_secs(20);
/// The most bytes that its answer may have.
const MOST_COUNT_BYTES: usize = 16 << 10;

/// A count that is forwarded to an upstream.
pub(super) struct RelayedCount {
    pub(super) model: Arc<ServedModel>,
    /// The question, parsed to be forwarded.
    pub(super) call: Call,
}

/// The caller and the context of a question.
pub(super) struct CountRequester<'a> {
    pub(super) principal: &'a Principal,
    pub(super) request: RequestId,
    /// Headers by which the dialect changes the meaning of a body.
    pub(super) headers: &'a [(&'static str, String)],
    pub(super) now: UnixNanos,
}

impl RelayedCount {
    /// Returns the count of the first upstream that gives one. If upstreams are available but none of them counts,
    /// returns an estimate that is marked as such.
    pub(super) async fn answer(self, catalog: &Catalog, asks: CountRequester<'_>) -> Looked {
        let (mut tried, mut first, mut counts_none) = (TriedWorkers::default(), None, false);
        let nothing = PrefixHashes { marks: &[], tokens: 0 };
        let regions = &asks.principal.regions;
        let cleared = self.cleared(catalog, &asks).await?;
        while let Some(placement) = catalog.fleet().place_near(&self.model.name, nothing, &tried, regions) {
            // The result is not reported to the fleet: a count is no call, and a healthy server may lack this path.
            let relay = placement.relay().map(Arc::clone);
            let may_be_sent = |relay: &SharedRelay| {
                cleared.as_ref().is_none_or(|cleared| cleared.contains(&relay.facts().upstream))
            };
            let relay = relay.filter(may_be_sent);
            let asked = match &relay {
                Some(relay) => relay.count(self.ask(relay.facts(), catalog, &asks)?),
                None => None,
            };
            match (asked, relay) {
                (Some(answer), Some(relay)) => {
                    let facts = relay.facts();
                    match read_count(answer).await {
                        Ok(body) => {
                            let answer = Answer::json(200, body);
                            return Ok(answer.with_header("x-headrace-upstream", &*facts.upstream));
                        }
                        Err(fault) => {
                            // The server's message may repeat the question.
                            let code = fault.rejection.code.name();
                            tracing::warn!(upstream = &*facts.upstream, code, "a count failed");
                            if !fault.may_move {
                                return Err(fault.rejection);
                            }
                            first.get_or_insert(fault.rejection);
                        }
                    }
                }
                _ => counts_none = true,
            }
            tried.add(placement);
        }
        match first {
            Some(why) => Err(why),
            None if counts_none => self.estimate(),
            None => Err(self.nobody()),
        }
    }

    /// The upstreams that may be sent the question. `None` if it asks for nothing but tokens.
    async fn cleared(
        &self,
        catalog: &Catalog,
        asks: &CountRequester<'_>,
    ) -> Result<Option<Box<[Arc<str>]>>, Rejection> {
        let Some(relayed) = ScreenClearance::body(&self.call) else { return Ok(None) };
        let (regions, headers, now) = (&asks.principal.regions, asks.headers, asks.now);
        let screen =
            RelayScreen { catalog, model: &self.model, call: &self.call, relayed, regions, headers, now };
        match screen.is_needed() {
            true => Ok(Some(screen.clear().await?.upstreams)),
            false => Ok(None),
        }
    }

    fn ask(
        &self,
        facts: &RelayFacts,
        catalog: &Catalog,
        asks: &CountRequester<'_>,
    ) -> Result<RelayAsk, Rejection> {
        let edits = BodyEdits { model: &facts.model, usage: false, max_tokens: None, label: None };
        let org = &asks.principal.org;
        Ok(RelayAsk {
            request: asks.request,
            tenant: Tenant(tenant_number(org.as_str())),
            weight: catalog.weight(org),
            endpoint: Endpoint::Messages,
            body: edited(&self.call, &edits)?,
            stream: false,
            headers: asks.headers.to_vec(),
            head_within: Some(COUNT_WITHIN),
            bounds: AnswerBounds::up_to(MOST_COUNT_BYTES as u64),
        })
    }

    fn estimate(&self) -> Looked {
        match &self.call.prompt {
            Prompt::Relayed(relayed) => Ok(Answer::json(200, count_body(likely_tokens(relayed), true))),
            _ => Err(Rejection::new(Code::InternalError, "The question was not read to be sent on.")),
        }
    }

    fn nobody(&self) -> Rejection {
        let message =
            format!("No upstream of `{}` takes questions now. Nothing was charged.", self.model.name);
        Rejection::new(Code::UpstreamOverloaded, message).at(Stage::Place).retry_after(Duration::from_secs(1))
    }
}

/// Reads the body of a count, which is short and contains a number.
async fn read_count(mut answer: Box<dyn RelayAnswer>) -> Result<Bytes, faults::SourceFault> {
    let reading = async {
        loop {
            match answer.next().await {
                Some(RelayEvent::Head(_)) => {}
                Some(RelayEvent::Whole(body)) => return judged(body),
                Some(RelayEvent::Failed(error)) => return Err(error),
                Some(RelayEvent::Event(_)) => return Err(not_a_count("a stream")),
                None => return Err(RelayError::Cut { why: "it said nothing".to_owned() }),
            }
        }
    };
    let late = |_| RelayError::Timeout { what: RelayWait::Whole, after: COUNT_WITHIN };
    let read = tokio::time::timeout(COUNT_WITHIN, reading).await.map_err(late).and_then(|read| read);
    read.map_err(|error| faults::of_relay(&error, Dialect::Anthropic))
}

fn judged(body: Bytes) -> Result<Bytes, RelayError> {
    if body.len() > MOST_COUNT_BYTES {
        return Err(RelayError::TooLarge { what: "body", limit: MOST_COUNT_BYTES });
    }
    let read: Option<Value> = serde_json::from_slice(&body).ok();
    match read.as_ref().and_then(|told| told.get("input_tokens")).and_then(Value::as_u64) {
        Some(_) => Ok(body),
        None => Err(not_a_count("no count of tokens")),
    }
}

fn not_a_count(what: &str) -> RelayError {
    RelayError::NotTheDialect { what: what.to_owned(), beginning: String::new() }
}
