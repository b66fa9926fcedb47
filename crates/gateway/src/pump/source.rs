//! What answers a call: a source of reply events. One kind for each lane; whoever reads one does not see which it is.
//! Must not know dialects, bytes or money.

use std::sync::Arc;

use headrace_domain::{CacheMiss, EngineRun, EngineTrace, ReplyEvent, RequestId, Usage};
use headrace_engine_api::Ticket;
use headrace_fleet::Placement;

use crate::dossier::Dossier;
use crate::lane::Lane;
use crate::state::Work;

pub(crate) mod said;

mod tokens;

mod jobs;

use said::Said;
use tokens::TokenSource;

/// See the top of the file.
pub(crate) enum Source {
    /// Engines that give ids and text: their replies are parsed here.
    Tokens(TokenSource),
}

impl Source {
    /// Of a call that nobody works on yet.
    pub(crate) fn new(work: &Arc<Work>) -> Self {
        let Lane::Tokens(_) = &work.model.lane;
        Self::Tokens(TokenSource::new(Arc::clone(work)))
    }

    /// A worker has taken a prompt of the call, `submitted_ns` after its first byte. Prompts come in their order; one that was
    /// lost is put once more.
    pub(crate) fn put(&mut self, part: usize, ticket: Ticket, placement: Placement, submitted_ns: u64) {
        let Self::Tokens(source) = self;
        source.put(part, ticket, placement, submitted_ns);
    }

    /// The placement of a prompt that is lost.
    pub(crate) fn take_back(&mut self, part: usize) -> Option<Placement> {
        let Self::Tokens(source) = self;
        source.take_back(part)
    }

    /// When a prompt was answered to its end, in nanoseconds from the call's first byte.
    pub(crate) fn answered_ns(&self, part: usize) -> Option<u64> {
        let Self::Tokens(source) = self;
        source.answered_ns(part)
    }

    /// Whether nobody has taken any part of the call.
    pub(crate) fn is_empty(&self) -> bool {
        let Self::Tokens(source) = self;
        source.is_empty()
    }

    /// Makes ready to read. Those who took the call are at work already.
    pub(crate) fn listen(&mut self, request: RequestId) {
        let Self::Tokens(source) = self;
        source.listen(request);
    }

    /// Waits for the next thing that is said, and adds its reply events to `events`. The wait may be given up at any time.
    pub(crate) async fn next(&mut self, dossier: &Dossier, events: &mut Vec<ReplyEvent>) -> Said {
        let Self::Tokens(source) = self;
        source.next(dossier, events).await
    }

    /// Cancels what still runs, and waits a bounded time until it is let go of.
    pub(crate) async fn cancel(&mut self) {
        let Self::Tokens(source) = self;
        source.cancel().await;
    }

    /// What the call took, as far as it is known.
    pub(crate) fn usage(&self) -> Usage {
        let Self::Tokens(source) = self;
        source.usage()
    }

    /// What engines saw of the call.
    pub(crate) fn engine(&self) -> Option<EngineTrace> {
        let Self::Tokens(source) = self;
        source.engine()
    }

    /// How engines timed what has ended.
    pub(crate) fn runs(&self) -> impl Iterator<Item = EngineRun> + Clone {
        let Self::Tokens(source) = self;
        source.runs()
    }

    /// The first prompt whose blocks were not all in the cache, and why.
    pub(crate) fn first_miss(&self) -> Option<(usize, CacheMiss)> {
        let Self::Tokens(source) = self;
        source.first_miss()
    }

    /// When the first token was here, in nanoseconds from the call's first byte.
    pub(crate) fn first_token_ns(&self) -> Option<u64> {
        let Self::Tokens(source) = self;
        source.first_token_ns()
    }

    /// Nanoseconds spent on parsing what was said.
    pub(crate) fn postprocess_ns(&self) -> u64 {
        let Self::Tokens(source) = self;
        source.postprocess_ns()
    }

    /// Why something in an answer looked like a tool call, and was given out as text.
    pub(crate) fn fault(&self, choice: usize) -> Option<&'static str> {
        let Self::Tokens(source) = self;
        source.fault(choice)
    }
}
