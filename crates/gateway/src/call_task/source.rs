//! A source of reply events: what answers a call. There is one kind for each backend, and its reader does not see
//! which. Must not know dialects, bytes or money.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use headrace_domain::{
    CacheMiss, EngineRun, EngineTrace, PriceTier, ReplyEvent, RequestId, Usage, UsageSource,
};
use headrace_fleet::Placement;
use headrace_wire::WireLimits;

use crate::request_context::RequestContext;
use crate::state::{Rendered, RenderedWork};

pub(crate) mod source_event;

pub(super) mod allowance;

pub(super) mod asked_server;

pub(super) mod messages;

pub(super) mod tokens;

pub(super) mod jobs;

pub(super) mod resume;

pub(crate) mod conceal;
pub(crate) mod faults;

pub(super) mod formatted_text;

use asked_server::AskedServer;
use formatted_text::FormattedText;
use jobs::SubmittedJob;
use messages::MessageSource;
use source_event::SourceEvent;
use tokens::{PartialTokens, TokenSource};

/// See the top of the file.
pub(crate) enum AnswerSource {
    /// Engines that yield ids and text. Their replies are parsed here.
    Tokens(Box<TokenSource>),
    /// An upstream server that answers in a dialect.
    Messages(Box<MessageSource>),
}

impl AnswerSource {
    /// The source of a call that no worker has yet. `limits` bound the response format of a relayed body.
    pub(crate) fn new(work: &Arc<RenderedWork>, limits: &WireLimits) -> Self {
        match &work.rendered {
            Rendered::Tokens(_) | Rendered::Vectors(_) => {
                Self::Tokens(Box::new(TokenSource::new(Arc::clone(work), limits)))
            }
            Rendered::Messages(messages) => {
                Self::Messages(Box::new(MessageSource::new(Arc::clone(work), messages, limits)))
            }
        }
    }

    /// Adds a job for a prompt that a worker has taken. Prompts come in order; a lost one is added again.
    pub(crate) fn put(&mut self, handed: SubmittedJob) {
        if let Self::Tokens(source) = self {
            source.put(handed);
        }
    }

    /// The unfinished answers of a lost job, which another worker can continue. `None` if the job can start again
    /// unseen.
    pub(crate) fn begun(&mut self, job: usize, dossier: &RequestContext) -> Option<Vec<PartialTokens>> {
        match self {
            Self::Tokens(source) => source.begun(job, dossier),
            Self::Messages(_) => None,
        }
    }

    /// How many jobs the call has so far.
    pub(crate) fn jobs(&self) -> usize {
        match self {
            Self::Tokens(source) => source.jobs(),
            Self::Messages(_) => 0,
        }
    }

    /// Sets the upstream that was asked: the first one, or the successor of one that failed.
    pub(crate) fn ask(&mut self, asked: AskedServer) {
        if let Self::Messages(source) = self {
            source.ask(asked);
        }
    }

    /// The worker that has the call, if it is the only one and nothing of an answer has come.
    pub(crate) fn only_one(&self) -> Option<&Placement> {
        match self {
            Self::Tokens(source) => source.only_one(),
            Self::Messages(source) => source.only_one(),
        }
    }

    /// Adds a second worker that has taken the call. The worker that produces the first output keeps it.
    pub(crate) fn race(&mut self, handed: SubmittedJob) {
        if let Self::Tokens(source) = self {
            source.race(handed);
        }
    }

    /// Adds a second upstream that was asked. The one that produces the first output keeps the call.
    pub(crate) fn ask_too(&mut self, asked: AskedServer) {
        if let Self::Messages(source) = self {
            source.ask_too(asked);
        }
    }

    /// The name of the upstream that has the call.
    pub(crate) fn upstream(&self) -> Option<&Arc<str>> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.upstream(),
        }
    }

    /// The text of a relayed answer that broke off, for another upstream to continue.
    pub(crate) fn text_begun(&self) -> Option<resume::PartialText> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.text_begun(),
        }
    }

    /// Takes the placement of a lost job.
    pub(crate) fn take_back(&mut self, job: usize) -> Option<Placement> {
        match self {
            Self::Tokens(source) => source.take_back(job),
            Self::Messages(source) => source.take_back(),
        }
    }

    /// When a prompt was answered to its end, in nanoseconds from the call's first byte.
    pub(crate) fn answered_ns(&self, part: usize) -> Option<u64> {
        match self {
            Self::Tokens(source) => source.answered_ns(part),
            Self::Messages(source) => source.answered_ns(),
        }
    }

    /// Resets the source after its whole output was taken back before any of it left.
    pub(crate) fn unsaid(&mut self) {
        if let Self::Messages(source) = self {
            source.unsaid();
        }
    }

    /// Whether no worker has taken any part of the call.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Tokens(source) => source.is_empty(),
            Self::Messages(source) => source.is_empty(),
        }
    }

    /// Prepares for reading. The workers that took the call are already running.
    pub(crate) fn listen(&mut self, request: RequestId) {
        if let Self::Tokens(source) = self {
            source.listen(request);
        }
    }

    /// Waits for the next item, and adds its reply events to `events`. Cancelling the wait loses nothing.
    pub(crate) async fn next(
        &mut self,
        dossier: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> SourceEvent {
        match self {
            Self::Tokens(source) => poll_fn(|cx| source.poll_next(cx, None, dossier, events)).await,
            Self::Messages(source) => source.next(dossier, events).await,
        }
    }

    /// Like [`Self::next`], if the item is already there. For engine jobs, everything taken since `from_ns` of the
    /// clock's monotonic time is timed together ([`Self::took_in`]): reading the clock can cost as much as processing a
    /// token.
    pub(crate) fn said_already(
        &mut self,
        from_ns: u64,
        dossier: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        match self {
            Self::Tokens(source) => {
                let nobody = &mut Context::from_waker(Waker::noop());
                match source.poll_next(nobody, Some(from_ns), dossier, events) {
                    Poll::Ready(said) => Some(said),
                    Poll::Pending => None,
                }
            }
            Self::Messages(source) => source.next(dossier, events).now_or_never(),
        }
    }

    /// Times what [`Self::said_already`] took since `from_ns`. `at_ns` is when its last item arrived, if the source
    /// knows that. Returns when the output was ready to be written.
    pub(crate) fn took_in(&mut self, from_ns: u64, at_ns: u64, dossier: &RequestContext) -> u64 {
        match self {
            Self::Tokens(source) => source.took_in(from_ns, dossier),
            Self::Messages(_) => at_ns,
        }
    }

    /// Cancels what still runs, and waits a bounded time until the workers have stopped.
    pub(crate) async fn cancel(&mut self) {
        match self {
            Self::Tokens(source) => source.cancel().await,
            Self::Messages(source) => source.cancel().await,
        }
    }

    /// The complete answers, if they are to be checked against a form.
    pub(crate) fn heard(&mut self) -> Option<Box<FormattedText>> {
        match self {
            Self::Tokens(source) => source.heard(),
            Self::Messages(source) => source.heard(),
        }
    }

    /// The usage of the call, as far as it is known.
    pub(crate) fn usage(&self) -> Usage {
        match self {
            Self::Tokens(source) => source.usage(),
            Self::Messages(source) => source.usage(),
        }
    }

    /// The usage of one job at its latest worker: what that worker charges for.
    pub(crate) fn usage_of(&self, job: usize) -> Usage {
        match self {
            Self::Tokens(source) => source.usage_of(job),
            Self::Messages(source) => source.usage_of_last(),
        }
    }

    /// The jobs that were not taken back, each as prompt index and job index.
    pub(crate) fn running(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Tokens(source) => source.running(),
            Self::Messages(_) => vec![(0, 0)],
        }
    }

    /// How the usage is known.
    pub(crate) fn usage_source(&self) -> UsageSource {
        match self {
            Self::Tokens(_) => UsageSource::Counted,
            Self::Messages(source) => source.usage_source(),
        }
    }

    /// Says why a part of the usage is an estimate. `None` if no part is.
    pub(crate) fn why_estimated(&self) -> Option<&'static str> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.why_estimated(),
        }
    }

    /// The oddities of an upstream's answer that did not end it.
    pub(crate) fn answer_notes(&self) -> Vec<String> {
        match self {
            Self::Tokens(_) => Vec::new(),
            Self::Messages(source) => source.notes(),
        }
    }

    /// The tier that determines the price: the one that the upstream reports, otherwise the one that the caller asked
    /// for.
    pub(crate) fn price_tier(&self) -> PriceTier {
        match self {
            Self::Tokens(source) => source.price_tier(),
            Self::Messages(source) => source.price_tier(),
        }
    }

    /// What engines report about the call.
    pub(crate) fn engine(&self) -> Option<EngineTrace> {
        match self {
            Self::Tokens(source) => source.engine(),
            Self::Messages(_) => None,
        }
    }

    /// How engines timed the jobs that have ended. `None` if a relay answers.
    pub(crate) fn runs(&self) -> Option<impl Iterator<Item = EngineRun> + Clone> {
        match self {
            Self::Tokens(source) => Some(source.runs()),
            Self::Messages(_) => None,
        }
    }

    /// The first prompt whose blocks were not all in the cache, and why.
    pub(crate) fn first_miss(&self) -> Option<(usize, CacheMiss)> {
        match self {
            Self::Tokens(source) => source.first_miss(),
            Self::Messages(_) => None,
        }
    }

    /// When the first token arrived, in nanoseconds from the call's first byte.
    pub(crate) fn first_token_ns(&self) -> Option<u64> {
        match self {
            Self::Tokens(source) => source.first_token_ns(),
            Self::Messages(source) => source.first_token_ns(),
        }
    }

    /// Nanoseconds spent on parsing the output.
    pub(crate) fn postprocess_ns(&self) -> u64 {
        match self {
            Self::Tokens(source) => source.postprocess_ns(),
            Self::Messages(source) => source.postprocess_ns(),
        }
    }

    /// Why a text that looked like a tool call was sent as text, or that a stop string ended the choice within its
    /// reasoning.
    pub(crate) fn fault(&self, choice: usize) -> Option<&'static str> {
        match self {
            Self::Tokens(source) => source.fault(choice),
            Self::Messages(_) => None,
        }
    }

    /// How a choice ended if its answer was passed on as it came.
    pub(crate) fn finish_name(&self, choice: usize) -> Option<&'static str> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.finish_name(choice),
        }
    }

    /// The id that an upstream gave its answer.
    pub(crate) fn answer_id(&self) -> Option<&str> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.answer_id(),
        }
    }

    /// The model that answered, according to the upstream.
    pub(crate) fn answered_as(&self) -> Option<&str> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.answered_as(),
        }
    }
}
