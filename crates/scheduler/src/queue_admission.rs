//! Admission to the queue. A sequence that can never run, has no room or would come too late is refused at once. The
//! refusal carries the limit that was hit. Keeps no state.

use std::fmt;

use crate::outlook::{LEAST_RETRY_NS, NewSequence, Outlook};
use crate::sequence::SequenceSpec;

/// Forecast waits are lengthened by one part in this many if a deadline depends on them.
const CAUTION: u64 = 8;

/// Why a sequence is refused. Nothing of it has been kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddRefusal {
    /// The queue is full.
    QueueFull {
        /// `sequences` or `tokens`.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// Nanoseconds until there may be room, from the measured rate; at least one second.
        retry_after_ns: u64,
    },
    /// The sequence could never be computed to its end.
    DoesNotFit {
        /// Tokens it may need.
        needed: u64,
        /// Tokens available, in the context window or the pool.
        limit: u64,
    },
    /// The first token would come after the deadline.
    TooLate {
        /// Nanoseconds that it would wait for other work.
        wait_ns: u64,
        /// Nanoseconds that its own prompt would take.
        prefill_ns: u64,
        /// Nanoseconds until the wait is short enough. `None` if its prompt alone takes longer than the deadline
        /// allows.
        retry_after_ns: Option<u64>,
    },
    /// The prompt is empty, or the number of sequences is zero or more than the queue could ever hold.
    Invalid {
        /// The invalid value.
        what: String,
    },
}

impl Outlook<'_> {
    /// Refuses a sequence that can never run, has no room in the queue, or would come too late.
    ///
    /// # Errors
    /// [`AddRefusal`].
    pub(crate) fn admits(&self, spec: &SequenceSpec, count: usize, now_ns: u64) -> Result<(), AddRefusal> {
        let (prompt, limit) = (spec.prompt.len(), self.config.queue_sequences);
        if prompt == 0 {
            return Err(AddRefusal::Invalid { what: "an empty prompt".to_owned() });
        }
        if count == 0 || count > limit {
            let what = format!("{count} sequences at once; the queue holds 1 to {limit}");
            return Err(AddRefusal::Invalid { what });
        }
        let needed = prompt.saturating_add(spec.max_new as usize);
        // The last generated token is never an input, so it needs no room in the pool.
        let stored = needed.saturating_sub(usize::from(spec.max_new > 0));
        let positions = self.prefixes.groups().layout().positions(self.config.chunk());
        if needed > self.config.context_window || stored > positions {
            let limit = self.config.context_window.min(positions) as u64;
            return Err(AddRefusal::DoesNotFit { needed: needed as u64, limit });
        }
        self.refuse_full(spec, count)?;
        match spec.start_deadline_ns {
            Some(deadline) => self.refuse_late(&NewSequence::of(spec), deadline, now_ns),
            None => Ok(()),
        }
    }

    /// Refuses a sequence if the queue has no room. The last eighth is for tenants with fewer waiting sequences or
    /// tokens than that. So a flood from one tenant does not shut out the others.
    fn refuse_full(&self, spec: &SequenceSpec, count: usize) -> Result<(), AddRefusal> {
        let (own, own_tokens) = self.tenants.queued_by(spec.tenant);
        let waiting = self.waiting.len(self.tenants);
        let (whole, kept) = (self.config.queue_sequences, self.config.queue_sequences / 8);
        let limit = if own + count > kept { whole - kept } else { whole };
        if waiting + count > limit {
            let excess = waiting + count - limit;
            let mean = self.waiting.tokens() / waiting.max(1) as u64;
            let retry_after_ns = self.until_queue_room(excess, mean.saturating_mul(excess as u64));
            return Err(AddRefusal::QueueFull { what: "sequences", limit: limit as u64, retry_after_ns });
        }
        let prompt = spec.prompt.len() as u64;
        let (whole, kept) = (self.config.queue_tokens, self.config.queue_tokens / 8);
        let limit = if own_tokens + prompt > kept { whole - kept } else { whole };
        let after = self.waiting.tokens() + prompt;
        // A prompt longer than the whole limit is accepted if nothing else waits. Otherwise it could never be accepted.
        if after > limit && waiting > 0 {
            let mean = (self.waiting.tokens() / waiting as u64).max(1);
            let excess = usize::try_from((after - limit).div_ceil(mean)).unwrap_or(waiting).min(waiting);
            let retry_after_ns = self.until_queue_room(excess, after - limit);
            return Err(AddRefusal::QueueFull { what: "tokens", limit, retry_after_ns });
        }
        Ok(())
    }

    /// Refuses a sequence that would have no token by its deadline.
    fn refuse_late(
        &self,
        new_sequence: &NewSequence<'_>,
        deadline: u64,
        now_ns: u64,
    ) -> Result<(), AddRefusal> {
        let Some(forecast) = self.forecast(new_sequence) else { return Ok(()) };
        let (wait_ns, prefill_ns) = (forecast.wait_ns, forecast.prefill_ns);
        let allowed = deadline.saturating_sub(now_ns);
        // A margin, because under a steady overload the queue settles just below the point of refusal.
        let needed = wait_ns.saturating_add(wait_ns / CAUTION).saturating_add(prefill_ns);
        if needed <= allowed && now_ns <= deadline {
            return Ok(());
        }
        let helps = prefill_ns <= allowed && wait_ns > 0;
        let retry_after_ns = helps.then(|| (needed - allowed).max(LEAST_RETRY_NS));
        Err(AddRefusal::TooLate { wait_ns, prefill_ns, retry_after_ns })
    }
}

impl fmt::Display for AddRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { what, limit, .. } => write!(f, "the queue is full ({what}, limit {limit})"),
            Self::DoesNotFit { needed, limit } => {
                write!(f, "{needed} tokens are needed and there are {limit}")
            }
            Self::TooLate { wait_ns, prefill_ns, .. } => {
                let (wait, prefill) = (wait_ns / 1_000_000, prefill_ns / 1_000_000);
                write!(f, "it would wait {wait} ms and its prompt takes {prefill} ms")
            }
            Self::Invalid { what } => write!(f, "not a sequence: {what}"),
        }
    }
}

impl std::error::Error for AddRefusal {}
