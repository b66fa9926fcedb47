//! What answers a call: a source of reply events. One kind for each lane; whoever reads one does not see which it is.
//! Must not know dialects, bytes or money.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use headrace_domain::{
    CacheMiss, EngineRun, EngineTrace, PriceTier, ReplyEvent, RequestId, Usage, UsageSource,
};
use headrace_fleet::Placement;

use crate::dossier::Dossier;
use crate::state::Work;

pub(crate) mod said;

pub(super) mod allowance;

pub(super) mod asked;

pub(super) mod messages;

pub(super) mod tokens;

pub(super) mod jobs;

pub(super) mod resume;

pub(crate) mod conceal;
pub(crate) mod faults;

pub(super) mod heard;

use asked::Asked;
use heard::Heard;
use jobs::Handed;
use messages::MessageSource;
use said::Said;
use tokens::{Begun, TokenSource};

/// See the top of the file.
pub(crate) enum Source {
    /// Engines that give ids and text: their replies are parsed here.
    Tokens(Box<TokenSource>),
    /// Somebody else's server, which answers in a dialect.
    Messages(Box<MessageSource>),
}

impl Source {
    /// Of a call that nobody works on yet.
    pub(crate) fn new(work: &Arc<Work>) -> Self {
        match work.messages {
            None => Self::Tokens(Box::new(TokenSource::new(Arc::clone(work)))),
            Some(_) => Self::Messages(Box::new(MessageSource::new(Arc::clone(work)))),
        }
    }

    /// A worker has taken a prompt of the call. Prompts come in their order; one that was lost is put once more.
    pub(crate) fn put(&mut self, handed: Handed) {
        if let Self::Tokens(source) = self {
            source.put(handed);
        }
    }

    /// What there is of the answers of a lost job that are not at their end; `None`: it can begin anew, unseen.
    pub(crate) fn begun(&mut self, job: usize, dossier: &Dossier) -> Option<Vec<Begun>> {
        match self {
            Self::Tokens(source) => source.begun(job, dossier),
            Self::Messages(_) => None,
        }
    }

    /// How many jobs the call has by now.
    pub(crate) fn jobs(&self) -> usize {
        match self {
            Self::Tokens(source) => source.jobs(),
            Self::Messages(_) => 0,
        }
    }

    /// Somebody's server was asked, after nobody or somebody who gave nothing.
    pub(crate) fn ask(&mut self, asked: Asked) {
        if let Self::Messages(source) = self {
            source.ask(asked);
        }
    }

    /// Who has the call, where it is one alone and nothing of an answer is here.
    pub(crate) fn only_one(&self) -> Option<&Placement> {
        match self {
            Self::Tokens(source) => source.only_one(),
            Self::Messages(source) => source.only_one(),
        }
    }

    /// A second worker has taken the call: whoever of the two says the first word has it.
    pub(crate) fn race(&mut self, handed: Handed) {
        if let Self::Tokens(source) = self {
            source.race(handed);
        }
    }

    /// A second server was asked: whoever of the two says the first word has the call.
    pub(crate) fn ask_too(&mut self, asked: Asked) {
        if let Self::Messages(source) = self {
            source.ask_too(asked);
        }
    }

    /// Whose server has the call, by its name.
    pub(crate) fn upstream(&self) -> Option<&Arc<str>> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.upstream(),
        }
    }

    /// What there is of an answer in messages that broke off, for somebody else to go on with.
    pub(crate) fn text_begun(&self) -> Option<resume::Begun> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.text_begun(),
        }
    }

    /// The placement of a job that is lost.
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

    /// Nothing that was said has left, and all of it was taken back.
    pub(crate) fn unsaid(&mut self) {
        if let Self::Messages(source) = self {
            source.unsaid();
        }
    }

    /// Whether nobody has taken any part of the call.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Tokens(source) => source.is_empty(),
            Self::Messages(source) => source.is_empty(),
        }
    }

    /// Makes ready to read. Those who took the call are at work already.
    pub(crate) fn listen(&mut self, request: RequestId) {
        if let Self::Tokens(source) = self {
            source.listen(request);
        }
    }

    /// Waits for the next thing that is said, and adds its reply events to `events`. The wait may be given up at any time.
    pub(crate) async fn next(&mut self, dossier: &Dossier, events: &mut Vec<ReplyEvent>) -> Said {
        match self {
            Self::Tokens(source) => poll_fn(|cx| source.poll_next(cx, None, dossier, events)).await,
            Self::Messages(source) => source.next(dossier, events).await,
        }
    }

    /// As [`Self::next`], where it is said already. Of engines' jobs, all that is taken in since `from_ns` of the clock's monotonic time
    /// is timed together ([`Self::took_in`]): a reading of the clock takes as long as many a token.
    pub(crate) fn said_already(
        &mut self,
        from_ns: u64,
        dossier: &Dossier,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<Said> {
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

    /// All that was said already is taken in; the last of it was here at `at_ns`, if that is known. Returns when it was there to be
    /// written.
    pub(crate) fn took_in(&mut self, from_ns: u64, at_ns: u64, dossier: &Dossier) -> u64 {
        match self {
            Self::Tokens(source) => source.took_in(from_ns, dossier),
            Self::Messages(_) => at_ns,
        }
    }

    /// Cancels what still runs, and waits a bounded time until it is let go of.
    pub(crate) async fn cancel(&mut self) {
        match self {
            Self::Tokens(source) => source.cancel().await,
            Self::Messages(source) => source.cancel().await,
        }
    }

    /// The answers, now that they are whole, where they are to be judged.
    pub(crate) fn heard(&mut self) -> Option<Box<Heard>> {
        match self {
            Self::Tokens(source) => source.heard(),
            Self::Messages(source) => source.heard(),
        }
    }

    /// What the call took, as far as it is known.
    pub(crate) fn usage(&self) -> Usage {
        match self {
            Self::Tokens(source) => source.usage(),
            Self::Messages(source) => source.usage(),
        }
    }

    /// What one of its jobs took where it is, or was last: what whoever has it charges for.
    pub(crate) fn usage_of(&self, job: usize) -> Usage {
        match self {
            Self::Tokens(source) => source.usage_of(job),
            Self::Messages(source) => source.usage_of_last(),
        }
    }

    /// The jobs that were not taken back: of which prompt, and the place among all.
    pub(crate) fn running(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Tokens(source) => source.running(),
            Self::Messages(_) => vec![(0, 0)],
        }
    }

    /// How that is known.
    pub(crate) fn usage_source(&self) -> UsageSource {
        match self {
            Self::Tokens(_) => UsageSource::Counted,
            Self::Messages(source) => source.usage_source(),
        }
    }

    /// Says why a part of the usage is an estimate.
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

    /// The class of service that it is priced in: what whoever answered says, and otherwise what the caller asked for.
    pub(crate) fn price_tier(&self) -> PriceTier {
        match self {
            Self::Tokens(source) => source.price_tier(),
            Self::Messages(source) => source.price_tier(),
        }
    }

    /// What engines saw of the call.
    pub(crate) fn engine(&self) -> Option<EngineTrace> {
        match self {
            Self::Tokens(source) => source.engine(),
            Self::Messages(_) => None,
        }
    }

    /// How engines timed what has ended; `None`: no engine of ours answers.
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

    /// When the first token was here, in nanoseconds from the call's first byte.
    pub(crate) fn first_token_ns(&self) -> Option<u64> {
        match self {
            Self::Tokens(source) => source.first_token_ns(),
            Self::Messages(source) => source.first_token_ns(),
        }
    }

    /// Nanoseconds spent on parsing what was said.
    pub(crate) fn postprocess_ns(&self) -> u64 {
        match self {
            Self::Tokens(source) => source.postprocess_ns(),
            Self::Messages(source) => source.postprocess_ns(),
        }
    }

    /// Why something in an answer looked like a tool call, and was given out as text; or that a stop string ended its thought.
    pub(crate) fn fault(&self, choice: usize) -> Option<&'static str> {
        match self {
            Self::Tokens(source) => source.fault(choice),
            Self::Messages(_) => None,
        }
    }

    /// How a choice ended that was passed on as it came.
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

    /// The model that somebody else's server says answered.
    pub(crate) fn answered_as(&self) -> Option<&str> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => source.answered_as(),
        }
    }
}
