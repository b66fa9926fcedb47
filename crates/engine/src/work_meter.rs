//! The work that ran before a job and concurrently with it, so that its waiting time can be explained. Reads no
//! clock.

use headrace_domain::{ConcurrentWork, WorkAhead};
use headrace_scheduler::{Scheduler, Work};

/// The scheduler's totals at the key moments of one job.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WorkMeter {
    tenant: u64,
    running: u32,
    own: u32,
    /// At arrival: the total work, and that of the job's tenant.
    at_arrival: (Work, Work),
    /// When the job's first chunk was planned.
    at_start: Work,
    /// When the first step after the job's first token was planned.
    generating: Option<Work>,
}

impl WorkMeter {
    pub(crate) fn of(tenant: u64) -> Self {
        Self { tenant, ..Self::default() }
    }

    /// Records the job's arrival, before the scheduler has it.
    pub(crate) fn arrive(&mut self, scheduler: &Scheduler) {
        let (running, own) = scheduler.ahead_of(self.tenant);
        (self.running, self.own) = (to_u32(running), to_u32(own));
        self.at_arrival = scheduler.work_of(self.tenant);
    }

    /// Records that the job's first chunk is planned, after a wait of `queue_ns`. Returns the work that was ahead of
    /// the job.
    pub(crate) fn start(&mut self, scheduler: &Scheduler, queue_ns: u64) -> WorkAhead {
        let (all, own) = scheduler.work_of(self.tenant);
        self.at_start = all;
        let (all, own) = (all.since(self.at_arrival.0), own.since(self.at_arrival.1));
        let ahead = WorkAhead {
            running: self.running,
            own: self.own,
            own_prefill_ns: own.prefill_ns,
            own_decode_ns: own.decode_ns,
            others_prefill_ns: all.prefill_ns.saturating_sub(own.prefill_ns),
            others_decode_ns: all.decode_ns.saturating_sub(own.decode_ns),
            prefill_tokens: all.prefill_tokens,
        };
        ahead.within(queue_ns)
    }

    /// Records the planning of a step with one of the job's chunks, after its first token. `work` is the total work
    /// so far.
    pub(crate) fn generates(&mut self, work: Work) {
        self.generating.get_or_insert(work);
    }

    /// Returns the work that ran concurrently with the job, which has ended. `work` is the total work so far.
    /// `computed` is the number of prompt tokens computed for the job.
    pub(crate) fn end(&self, work: Work, computed: u64, decode_ns: u64) -> ConcurrentWork {
        let generating = self.generating.unwrap_or(work);
        let (prefill, decode) = (generating.since(self.at_start), work.since(generating));
        ConcurrentWork {
            prefill_tokens: prefill.prefill_tokens.saturating_sub(computed),
            decode_prefill_tokens: decode.prefill_tokens,
            decode_prefill_ns: decode.prefill_ns.min(decode_ns),
        }
    }
}

/// Converts a count of things in memory, which stays far below 2^32.
fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
