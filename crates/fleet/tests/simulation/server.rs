//! A model server as a gateway sees it. It computes prompts one after the other, decodes many at a time, and has a
//! bounded prefix cache that it does not report. It reports its load at intervals. It can die and come back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use headrace_domain::{BLOCK_TOKENS, BlockKey, Clock, ManualClock, PrefixKeys};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobTicket, LoadReport, ReportAge, SubmitRefusal,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;

/// How a dead server behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Death {
    /// Connections are refused: a call fails at once.
    Refuses,
    /// No response comes: a call fails after this time.
    Hangs { timeout_ns: u64 },
}

pub(crate) struct Server {
    pub(crate) death: Option<Death>,
    /// Number of deaths so far.
    pub(crate) deaths: u32,
    /// Calls there now: waiting for their first output, and running.
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    waiting_tokens: u64,
    block_ns: u64,
    prefill_free_ns: u64,
    /// When each block was last used.
    cache: HashMap<BlockKey, u64>,
    cache_blocks: usize,
    report: (u64, LoadReport),
    pub(crate) calls: u64,
}

/// The fate of a call that the server accepted.
pub(crate) struct Taken {
    pub(crate) first_ns: u64,
    pub(crate) hit_blocks: usize,
    pub(crate) tokens: u64,
}

impl Server {
    pub(crate) fn new(block_ns: u64, cache_blocks: usize) -> Self {
        let report = (0, LoadReport::default());
        Self {
            death: None,
            deaths: 0,
            waiting: 0,
            running: 0,
            waiting_tokens: 0,
            block_ns,
            prefill_free_ns: 0,
            cache: HashMap::new(),
            cache_blocks,
            report,
            calls: 0,
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.waiting + self.running
    }

    pub(crate) fn take(&mut self, now_ns: u64, keys: &PrefixKeys) -> Taken {
        let hit_blocks = keys.keys().iter().take_while(|key| self.cache.contains_key(*key)).count();
        let blocks = keys.ids().len().div_ceil(BLOCK_TOKENS) - hit_blocks;
        self.prefill_free_ns = self.prefill_free_ns.max(now_ns) + blocks as u64 * self.block_ns;
        // The first blocks get the latest time, so that a prompt is evicted from its end.
        for (at, key) in keys.keys().iter().enumerate() {
            self.cache.insert(*key, now_ns * 1000 + 999 - at.min(999) as u64);
        }
        if self.cache.len() > self.cache_blocks {
            let mut used: Vec<u64> = self.cache.values().copied().collect();
            used.sort_unstable();
            let least = used[self.cache.len() - self.cache_blocks * 9 / 10];
            self.cache.retain(|_, used| *used >= least);
        }
        let tokens = (blocks * BLOCK_TOKENS) as u64;
        (self.waiting, self.waiting_tokens, self.calls) =
            (self.waiting + 1, self.waiting_tokens + tokens, self.calls + 1);
        Taken { first_ns: self.prefill_free_ns.max(now_ns + MS), hit_blocks, tokens }
    }

    pub(crate) fn began(&mut self, tokens: u64) {
        (self.waiting, self.running) = (self.waiting - 1, self.running + 1);
        self.waiting_tokens -= tokens;
    }

    pub(crate) fn ended(&mut self) {
        self.running -= 1;
    }

    /// The server dies and loses all calls and its cache.
    pub(crate) fn die(&mut self, death: Death) {
        self.death = Some(death);
        self.deaths += 1;
        (self.waiting, self.running, self.waiting_tokens, self.prefill_free_ns) = (0, 0, 0, 0);
        self.cache.clear();
    }

    /// Updates the load report. A dead server does not report.
    pub(crate) fn report(&mut self, now_ns: u64) {
        if self.death.is_none() {
            let (running, waiting, waiting_tokens) = (self.running, self.waiting, self.waiting_tokens);
            self.report = (now_ns, LoadReport { running, waiting, waiting_tokens, ..LoadReport::default() });
        }
    }
}

/// A gateway's view of a server.
pub(crate) struct Remote {
    pub(crate) server: Arc<Mutex<Server>>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) capabilities: Capabilities,
    pub(crate) reports: bool,
}

impl Engine for Remote {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn submit(&self, _: Job) -> Result<JobTicket, SubmitRefusal> {
        unreachable!("the world hands calls over itself")
    }

    fn cached_prefix(&self, _: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        if !self.reports {
            return LoadReport { reported: ReportAge::Never, ..LoadReport::default() };
        }
        let (at_ns, report) = self.server.lock().unwrap().report;
        let nanos = self.clock.monotonic_nanos() - at_ns;
        LoadReport { reported: ReportAge::Ago { nanos }, ..report }
    }

    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}
