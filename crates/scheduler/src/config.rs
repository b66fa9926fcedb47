//! The scheduler's limits: everything that can grow has one. Does not know where the values come from.

use std::fmt;

use headrace_domain::BLOCK_TOKENS;
use headrace_kv_layout::{KvGroupKind, KvLayout};

/// The limits of a scheduler. Each field counts tokens or sequences, as its name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Tokens computed in one step, prefill and decode together.
    pub step_tokens: usize,
    /// Sequences that hold KV blocks at a time. At most `step_tokens`, so that each of them can decode in every step.
    pub max_running: usize,
    /// Tokens of one sequence computed in one step.
    pub max_chunk: usize,
    /// The same limit for a chunk that needs the logits of every position, which take `vocab × 4` bytes each.
    pub max_score_chunk: usize,
    /// Tokens of one sequence, prompt and output.
    pub context_window: usize,
    /// Sequences that wait. The last eighth is reserved for tenants with fewer waiting sequences than that.
    pub queue_sequences: usize,
    /// Prompt tokens that wait. The last eighth is reserved in the same way.
    pub queue_tokens: u64,
    /// How many sequences may overtake an earlier one that does not fit yet. After that, its room is reserved.
    pub max_bypass: u32,
    /// How long idle work is passed over before one of its sequences is served as normal work. Tenants take turns, one
    /// sequence at a time, so idle work is slow beside other work but always ends.
    pub idle_patience_ns: u64,
    /// The shortest cold prefix, in tokens, worth waiting for if another sequence is computing it right now. Shorter
    /// ones are computed twice.
    pub dedup_tokens: usize,
    /// Whether full blocks are kept for later sequences with the same prefix and salt.
    pub prefix_cache: bool,
    /// How long a cached block that no sequence holds stays findable. `None` keeps it until its room is needed.
    pub prefix_lifetime_ns: Option<u64>,
    /// Percentage of all blocks that callers may pin ([`headrace_domain::CachePin`]). Pinned blocks are evicted last.
    pub pinned_percent: u8,
    /// The same percentage for one tenant.
    pub pinned_percent_of_one: u8,
    /// Whether the blocks that a sequence computed stay findable when it is aborted. If off, the blocks of an abandoned
    /// call are taken back, unless another sequence has built on them or waits for them.
    pub keep_aborted: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            step_tokens: 128,
            max_running: 64,
            max_chunk: 512,
            max_score_chunk: 32,
            context_window: 4096,
            queue_sequences: 1024,
            queue_tokens: 1 << 20,
            max_bypass: 8,
            idle_patience_ns: 1_000_000_000,
            dedup_tokens: 32,
            prefix_cache: true,
            prefix_lifetime_ns: None,
            pinned_percent: 50,
            pinned_percent_of_one: 25,
            keep_aborted: false,
        }
    }
}

/// A value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The field of [`SchedulerConfig`], or `block_tokens` or `block_count`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// Every value that cannot work, reported at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblems(pub Vec<ConfigProblem>);

impl SchedulerConfig {
    /// Most tokens of one sequence in a step, with or without the logits of every position.
    pub fn chunk(&self) -> usize {
        self.max_chunk.max(self.max_score_chunk).min(self.step_tokens)
    }

    /// Checks the values and the layout of the model's KV cache.
    ///
    /// # Errors
    /// [`ConfigProblems`] with every bad value.
    pub fn check(&self, layout: &KvLayout) -> Result<(), ConfigProblems> {
        self.check_for(Some(layout))
    }

    /// Checks the values alone, before the model's layout is known.
    ///
    /// # Errors
    /// [`ConfigProblems`] with every bad value.
    pub fn check_values(&self) -> Result<(), ConfigProblems> {
        self.check_for(None)
    }

    fn check_for(&self, layout: Option<&KvLayout>) -> Result<(), ConfigProblems> {
        let mut problems = Vec::new();
        let groups = || layout.into_iter().flat_map(KvLayout::used);
        let smallest = groups().map(|group| group.block_count).min().unwrap_or(1);
        let largest = groups().map(|group| group.block_count).max().unwrap_or(1);
        let positive = [
            ("step_tokens", self.step_tokens),
            ("max_running", self.max_running),
            ("max_chunk", self.max_chunk),
            ("max_score_chunk", self.max_score_chunk),
            ("context_window", self.context_window),
            ("queue_sequences", self.queue_sequences),
            ("block_count", smallest),
        ];
        for (field, value) in positive {
            if value == 0 {
                problems.push(ConfigProblem { field, problem: "must be at least 1".to_owned() });
            }
        }
        if self.queue_tokens == 0 {
            problems.push(ConfigProblem { field: "queue_tokens", problem: "must be at least 1".to_owned() });
        }
        if self.max_running > self.step_tokens {
            let problem = format!(
                "{} running sequences cannot each decode a token in a step of {} tokens",
                self.max_running, self.step_tokens
            );
            problems.push(ConfigProblem { field: "max_running", problem });
        }
        if u32::try_from(largest).is_err() || largest == u32::MAX as usize {
            problems
                .push(ConfigProblem { field: "block_count", problem: "must be below 2^32 - 1".to_owned() });
        }
        // A sequence that continues from a cached state holds that state and its own.
        if groups().any(|group| group.kind == KvGroupKind::State && group.block_count == 1) {
            let problem = "must be at least 2 for states".to_owned();
            problems.push(ConfigProblem { field: "block_count", problem });
        }
        // Block keys and cached tokens are those of blocks of this size.
        if let Some(group) = groups().find(|group| group.block_tokens != BLOCK_TOKENS) {
            let problem =
                format!("the model's blocks hold {} tokens, not {BLOCK_TOKENS}", group.block_tokens);
            problems.push(ConfigProblem { field: "block_tokens", problem });
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigProblems(problems)) }
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}{}: {}", problem.field, problem.problem)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigProblems {}

#[cfg(test)]
mod tests {
    use headrace_kv_layout::KvGroup;

    use super::*;

    #[test]
    fn every_bad_value_is_named_at_once() {
        let bad =
            SchedulerConfig { step_tokens: 4, max_running: 8, max_chunk: 0, ..SchedulerConfig::default() };
        let layout = |block_count| KvLayout::single(KvGroup::full(block_count, 1));
        let problems = bad.check(&layout(0)).unwrap_err();
        let fields: Vec<_> = problems.0.iter().map(|p| p.field).collect();
        assert_eq!(fields, ["max_chunk", "block_count", "max_running"]);
        assert!(SchedulerConfig::default().check(&layout(1)).is_ok());
        for block_tokens in [0, BLOCK_TOKENS - 1] {
            let other = KvLayout::single(KvGroup { block_tokens, ..*layout(1).first() });
            let problems = SchedulerConfig::default().check(&other).unwrap_err().to_string();
            assert!(problems.contains(&format!("blocks hold {block_tokens} tokens")), "{problems}");
        }
    }
}
