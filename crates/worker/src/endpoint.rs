//! The worker's side of the protocol: authenticates a request by its ticket, answers it, and passes its job to an
//! engine. Must not know HTTP or how an engine computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use headrace_call_api::{
    AnswerBody, BodyRefusal, CallAnswer, InternalAnswer, InternalAnswerFuture, InternalApi, InternalHead,
    InternalRequest,
};
use headrace_domain::{Clock, KeyId, Stage, TraceSink};
use headrace_engine_api::{Capabilities, SharedGrammar, SubmitRefusal};

use crate::about::{AboutModel, WorkerInfo};
use crate::ask::{AskFault, HeldTo, JobRequest};
use crate::job_record::{JobArrival, JobRecord};
use crate::limits::{PROTOCOL, REPORT_INTERVAL_NS};
use crate::offer::OfferedModel;
use crate::refusal::JobRefusal;
use crate::stream::JobStream;
use crate::ticket::{BodyDigest, TicketFault, TicketVerifier};
use crate::{ABOUT_PATH, CONTENT_TYPE, JOBS_PATH, WORDS_PATH};

/// Called for each request, because models may be loaded and unloaded.
type Offers = Box<dyn Fn() -> Vec<OfferedModel> + Send + Sync>;

/// The endpoint for gateways.
pub struct WorkerEndpoint {
    shared: Arc<EndpointShared>,
}

struct EndpointShared {
    tickets: TicketVerifier,
    clock: Arc<dyn Clock>,
    version: String,
    offers: Offers,
    traces: Arc<dyn TraceSink>,
    payer: KeyId,
    /// Earliest time of the next warning about a request without a valid ticket.
    next_report_ns: AtomicU64,
}

/// A request with a valid ticket.
struct TicketedRequest {
    shared: Arc<EndpointShared>,
    what: RequestKind,
    digest: BodyDigest,
}

#[derive(Debug)]
enum RequestKind {
    Job(Box<JobArrival>),
    About,
    Words(String),
}

impl WorkerEndpoint {
    /// Creates an endpoint for gateways that know the secret. `payer` is the key whose share of memory the bodies count
    /// against. `traces` gets one record of each job that an engine took, when the job ends.
    pub fn new(
        tickets: TicketVerifier,
        clock: Arc<dyn Clock>,
        payer: KeyId,
        version: &str,
        traces: Arc<dyn TraceSink>,
        offers: impl Fn() -> Vec<OfferedModel> + Send + Sync + 'static,
    ) -> Self {
        let (version, offers): (_, Offers) = (version.to_owned(), Box::new(offers));
        let next_report_ns = AtomicU64::new(0);
        Self {
            shared: Arc::new(EndpointShared {
                tickets,
                clock,
                version,
                offers,
                traces,
                payer,
                next_report_ns,
            }),
        }
    }
}

impl InternalApi for WorkerEndpoint {
    fn admit(&self, head: &InternalHead<'_>) -> Result<Box<dyn InternalRequest>, InternalAnswer> {
        let InternalHead { method, path, authorization, traceparent, now } = *head;
        let digest = self.shared.tickets.take(authorization, (method, path), now);
        let digest = digest.map_err(|fault| self.shared.stranger(&fault))?;
        let what = match (method, path) {
            ("POST", JOBS_PATH) => {
                let now_ns = self.shared.clock.monotonic_nanos();
                RequestKind::Job(Box::new(JobArrival::new(now, now_ns, traceparent)))
            }
            ("GET", ABOUT_PATH) => RequestKind::About,
            ("GET", path) if path.starts_with(WORDS_PATH) => {
                RequestKind::Words(path.trim_start_matches(WORDS_PATH).to_owned())
            }
            _ => return Err(unknown()),
        };
        Ok(Box::new(TicketedRequest { shared: Arc::clone(&self.shared), what, digest }))
    }
}

impl InternalRequest for TicketedRequest {
    fn payer(&self) -> &KeyId {
        &self.shared.payer
    }

    fn answer(self: Box<Self>, body: Bytes) -> InternalAnswerFuture {
        Box::pin(async move {
            let Self { shared, what, digest } = *self;
            if !digest.is_of(&body) {
                return shared.stranger(&TicketFault::Body);
            }
            match what {
                RequestKind::Job(arrival) => {
                    shared.job(&body, *arrival).await.unwrap_or_else(|refusal| refused(&refusal))
                }
                RequestKind::About => shared.about(),
                RequestKind::Words(digest) => shared.words(&digest),
            }
        })
    }

    fn refuse(self: Box<Self>, refusal: &BodyRefusal) -> InternalAnswer {
        let too_large = |limit: &u64, what: &str| {
            refused(&JobRefusal::Invalid {
                what: format!("more than the {limit} bytes that {what} may have"),
            })
        };
        match refusal {
            BodyRefusal::TooLarge { limit_bytes } => too_large(limit_bytes, "a job"),
            BodyRefusal::MemoryOfKey { limit_bytes, .. } | BodyRefusal::Memory { limit_bytes, .. } => {
                let why =
                    format!("jobs that are being read fill the {limit_bytes} bytes that there are for them");
                refused(&JobRefusal::Unavailable { why })
            }
            BodyRefusal::TooSlow { .. }
            | BodyRefusal::Encoding { .. }
            | BodyRefusal::MediaType
            | BodyRefusal::Incomplete
            | BodyRefusal::TooManyPieces { .. } => refused(&JobRefusal::Invalid {
                what: "a body that did not come whole, in time and plain".to_owned(),
            }),
        }
    }
}

impl EndpointShared {
    /// Refuses a request without a valid ticket. The answer does not reveal the reason. The log does, at a limited
    /// rate, so that unknown clients cannot fill it.
    fn stranger(&self, fault: &TicketFault) -> InternalAnswer {
        let now_ns = self.clock.monotonic_nanos();
        let due = |next_ns| (now_ns >= next_ns).then(|| now_ns.saturating_add(REPORT_INTERVAL_NS));
        // A gateway causes this fault once after each start of this process, so it is not logged.
        if *fault != TicketFault::OtherProcess
            && self.next_report_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
        {
            tracing::warn!(%fault, "a request for the engines here is refused");
        }
        // An older gateway signs correctly but names no process, so it is asked to update. A newer one learns the
        // process id.
        let answer = match fault {
            TicketFault::WithoutProcess => refused(&JobRefusal::Unavailable { why: fault.to_string() }),
            _ => refused(&JobRefusal::Ticket),
        };
        answer.with_header("www-authenticate", self.tickets.process().challenge())
    }

    async fn job(&self, body: &[u8], mut arrival: JobArrival) -> Result<InternalAnswer, JobRefusal> {
        arrival.mark(Stage::Receive, self.clock.monotonic_nanos());
        let mut ask = JobRequest::read(body)
            .map_err(|fault: AskFault| JobRefusal::Invalid { what: fault.to_string() })?;
        let expected = ask.model();
        let unavailable = |why: String| JobRefusal::Unavailable { why };
        let offers = (self.offers)();
        let named = |offer: &&OfferedModel| offer.engine.capabilities().model == expected.name;
        let offer = offers.iter().find(named);
        let offer = offer.ok_or_else(|| unavailable(format!("it has no model `{}`", expected.name)))?;
        if *offer.bits != *expected.bits {
            return Err(unavailable(format!("its `{}` is another one than before", expected.name)));
        }
        arrival.mark(Stage::Parse, self.clock.monotonic_nanos());
        let grammar = match ask.take_held_to() {
            Some(held_to) => {
                let compiled = compiled(offer, held_to).await?;
                arrival.mark_form(self.clock.monotonic_nanos());
                Some(compiled)
            }
            None => None,
        };
        let in_full = ask.in_full();
        let mut job = ask.into_job(self.clock.monotonic_nanos());
        job.grammar = grammar;
        let call = job.request;
        let ticket = offer.engine.submit(job).map_err(|refusal: SubmitRefusal| JobRefusal::from(refusal))?;
        let (clock, traces) = (Arc::clone(&self.clock), Arc::clone(&self.traces));
        let record = JobRecord::new(arrival, call, offer.engine.capabilities(), clock, traces);
        let stream = JobStream::new(ticket, offer.clone(), Arc::clone(&self.clock), in_full, record);
        Ok(CallAnswer {
            status: 200,
            content_type: CONTENT_TYPE,
            headers: Vec::new(),
            body: AnswerBody::Stream(Box::new(stream)),
        })
    }

    fn about(&self) -> InternalAnswer {
        let model = |offer: OfferedModel| AboutModel {
            bits: offer.bits.to_string(),
            words: offer.words.digest().to_owned(),
            holds_forms: offer.engine.capabilities().grammars,
            // Every engine accepts such jobs, because prefixes to keep are only a hint.
            fuller_jobs: true,
            capabilities: Capabilities { grammars: false, ..offer.engine.capabilities().clone() },
            created_unix_s: offer.created_unix_s,
            default_max_tokens: offer.default_max_tokens,
            up: offer.engine.health().is_up(),
            load: offer.engine.load(),
        };
        let models = (self.offers)().into_iter().map(model).collect();
        json(200, &WorkerInfo { protocol: PROTOCOL, version: self.version.clone(), models })
    }

    fn words(&self, digest: &str) -> InternalAnswer {
        let offers = (self.offers)();
        let Some(offer) = offers.iter().find(|offer| offer.words.digest() == digest) else {
            return unknown();
        };
        CallAnswer {
            status: 200,
            content_type: CONTENT_TYPE,
            headers: Vec::new(),
            body: AnswerBody::Whole(offer.words.bytes().clone()),
        }
    }
}

/// Compiles the form of a job's answers, off the event loop.
async fn compiled(offer: &OfferedModel, held_to: HeldTo) -> Result<SharedGrammar, JobRefusal> {
    if !offer.engine.capabilities().grammars {
        let what = "a form: the engine of this model holds answers to none".to_owned();
        return Err(JobRefusal::Invalid { what });
    }
    let compile = Arc::clone(&offer.compile);
    let compiling = tokio::task::spawn_blocking(move || compile(held_to));
    let gone = |_| JobRefusal::Unavailable { why: "compiling a form was stopped".to_owned() };
    compiling.await.map_err(gone)?.map_err(JobRefusal::from)
}

fn refused(refusal: &JobRefusal) -> InternalAnswer {
    json(refusal.status(), refusal)
}

fn unknown() -> InternalAnswer {
    json(404, &JobRefusal::Invalid { what: "there is nothing at this path".to_owned() })
}

fn json(status: u16, value: &impl serde::Serialize) -> InternalAnswer {
    // Plain data whose maps have text keys, so serialization cannot fail.
    CallAnswer::json(status, serde_json::to_vec(value).unwrap_or_default())
}
