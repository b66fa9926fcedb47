//! The answer source: what answers a call. There is one kind for each kind of rendered work. The core is what every
//! source can do: yield events, stop, and account for its workers. What only one kind can do is a capability, for which
//! its user asks: [`AnswerSource::as_engine`], [`AnswerSource::as_relay`]. Must not know dialects, bytes or money.

use std::borrow::Cow;
use std::sync::Arc;

use headrace_domain::{PriceTier, ReplyEvent, Usage};
use headrace_fleet::Placement;
use headrace_wire::WireLimits;

use crate::request_context::RequestContext;
use crate::state::{RenderedInput, RenderedWork};

pub(crate) mod source_event;
pub(super) mod source_report;

pub(super) mod allowance;

pub(super) mod asked_server;

pub(super) mod messages;

pub(super) mod tokens;

pub(super) mod jobs;

pub(super) mod resume;

pub(crate) mod conceal;
pub(crate) mod faults;

pub(super) mod formatted_text;

use formatted_text::FormattedText;
use messages::MessageSource;
use source_event::SourceEvent;
use source_report::{SourceTimes, SourceUsage};
use tokens::TokenSource;

/// See the top of the file.
pub(crate) enum AnswerSource {
    /// Engines that yield ids and text. Their replies are parsed here.
    Tokens(Box<TokenSource>),
    /// An upstream server that answers in a dialect.
    Messages(Box<MessageSource>),
}

/// Calls the same method of any source. A new kind of source must have all methods of the core.
macro_rules! each_source {
    ($self:expr, $source:ident => $call:expr) => {
        match $self {
            Self::Tokens($source) => $call,
            Self::Messages($source) => $call,
        }
    };
}

impl AnswerSource {
    /// The source of a call that no worker has yet. `limits` bound the response format of a relayed body.
    pub(crate) fn new(work: &Arc<RenderedWork>, limits: &WireLimits) -> Self {
        match &work.rendered {
            RenderedInput::Tokens(_) | RenderedInput::Vectors(_) => {
                Self::Tokens(Box::new(TokenSource::new(Arc::clone(work), limits)))
            }
            RenderedInput::Messages(messages) => {
                Self::Messages(Box::new(MessageSource::new(Arc::clone(work), messages, limits)))
            }
        }
    }
}

/// The capabilities.
impl AnswerSource {
    /// Runs prompts as jobs in engines: jobs can be added, raced, and continued from their tokens.
    pub(crate) fn as_engine(&self) -> Option<&TokenSource> {
        match self {
            Self::Tokens(source) => Some(source),
            Self::Messages(_) => None,
        }
    }

    /// Like [`Self::as_engine`].
    pub(crate) fn as_engine_mut(&mut self) -> Option<&mut TokenSource> {
        match self {
            Self::Tokens(source) => Some(source),
            Self::Messages(_) => None,
        }
    }

    /// Asks a server for the whole answer: another one can race or continue from the text, and
    /// output can be discarded.
    pub(crate) fn as_relay(&self) -> Option<&MessageSource> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => Some(source),
        }
    }

    /// Like [`Self::as_relay`].
    pub(crate) fn as_relay_mut(&mut self) -> Option<&mut MessageSource> {
        match self {
            Self::Tokens(_) => None,
            Self::Messages(source) => Some(source),
        }
    }
}

/// The core: the answer.
impl AnswerSource {
    /// Waits for the next item, and adds its reply events to `events`. Cancelling the wait loses nothing.
    pub(crate) async fn next(
        &mut self,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> SourceEvent {
        each_source!(self, source => source.next(context, events).await)
    }

    /// Like [`Self::next`], if the item is already there. For engine jobs, everything taken since `from_ns` of the
    /// clock's monotonic time is timed together ([`Self::time_batch`]): reading the clock can cost as much as
    /// processing a token.
    pub(crate) fn next_ready(
        &mut self,
        from_ns: u64,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        each_source!(self, source => source.next_ready(from_ns, context, events))
    }

    /// Times what [`Self::next_ready`] took since `from_ns`. `at_ns` is when its last item arrived, if the source knows
    /// that. Returns when the output was ready to be written.
    pub(crate) fn time_batch(&mut self, from_ns: u64, at_ns: u64, context: &RequestContext) -> u64 {
        each_source!(self, source => source.time_batch(from_ns, at_ns, context))
    }

    /// Cancels what still runs, and waits a bounded time until the workers have stopped.
    pub(crate) async fn cancel(&mut self) {
        each_source!(self, source => source.cancel().await);
    }

    /// Takes the complete answers, if they are to be checked against a form.
    pub(crate) fn take_checked_text(&mut self) -> Option<Box<FormattedText>> {
        each_source!(self, source => source.take_checked_text())
    }

    /// How a choice ended, for the trace. `encoded` is how the encoder saw its end.
    pub(crate) fn finish_name(&self, choice: usize, encoded: &'static str) -> Cow<'static, str> {
        each_source!(self, source => source.finish_name(choice, encoded))
    }

    /// The usage of the call, as far as it is known.
    pub(crate) fn usage(&self) -> SourceUsage {
        each_source!(self, source => source.usage())
    }

    /// The tier that determines the price: the one that the upstream reports, otherwise the one that the caller asked
    /// for.
    pub(crate) fn price_tier(&self) -> PriceTier {
        each_source!(self, source => source.price_tier())
    }

    /// The times of its work.
    pub(crate) fn times(&self) -> SourceTimes {
        each_source!(self, source => source.times())
    }
}

/// The core: the workers that have the call.
impl AnswerSource {
    /// Whether no worker has taken any part of the call.
    pub(crate) fn is_empty(&self) -> bool {
        each_source!(self, source => source.is_empty())
    }

    /// The worker that has the call, if it is the only one and nothing of an answer has come.
    pub(crate) fn only_worker(&self) -> Option<&Placement> {
        each_source!(self, source => source.only_worker())
    }

    /// Takes the placement of a lost job.
    pub(crate) fn take_back(&mut self, job: usize) -> Option<Placement> {
        each_source!(self, source => source.take_back(job))
    }

    /// When a prompt was answered to its end, in nanoseconds from the call's first byte.
    pub(crate) fn answered_ns(&self, part: usize) -> Option<u64> {
        each_source!(self, source => source.answered_ns(part))
    }

    /// The usage of one job at its latest worker: what that worker charges for.
    pub(crate) fn usage_of(&self, job: usize) -> Usage {
        each_source!(self, source => source.usage_of(job))
    }

    /// The jobs that were not taken back, each as prompt index and job index.
    pub(crate) fn running(&self) -> Vec<(usize, usize)> {
        each_source!(self, source => source.running())
    }
}
