//! The cache of a decoder, as `models inspect` shows it: cache groups, bytes per token, window and state, and the context
//! that fits. Must not load weights.

use headrace_checkpoint::ModelConfig;
use headrace_config::arithmetic::KV_TYPES;
use headrace_kernels::attention::KvType;
use headrace_kv_layout::{KvGroup, KvGroupKind};
use headrace_model::KvGroups;
use headrace_terminal::output;
use serde_json::{Value, json};

use super::numbers::bytes;

/// The cache of a decoder with keys and values of one type.
pub(super) struct KvFacts {
    name: &'static str,
    groups: KvGroups,
    /// Longest context of the model.
    max_positions: usize,
    /// Most tokens of one sequence in a step.
    chunk: usize,
    /// Tokens of a sequence that fit the pool: more than the longest context if several contexts fit.
    fitting: usize,
}

impl KvFacts {
    /// The cache for each type of keys and values, in a pool of `pool` bytes.
    pub(super) fn all(config: &ModelConfig, pool: u64) -> Vec<KvFacts> {
        let chunk = headrace_config::usual_chunk();
        let pool = usize::try_from(pool).unwrap_or(usize::MAX);
        let of = |name: &&'static str| {
            let groups = KvGroups::of(config, KvType::from_name(name)?);
            let max_positions = config.max_positions;
            let fitting = fitting(&groups, pool, max_positions, chunk);
            Some(KvFacts { name, groups, max_positions, chunk, fitting })
        };
        KV_TYPES.iter().filter_map(of).collect()
    }

    /// Bytes that one sequence of the longest context holds.
    fn context_bytes(&self) -> usize {
        self.groups.held_bytes(self.max_positions, self.chunk)
    }

    /// The facts as one row for each type.
    pub(super) fn table(all: &[KvFacts]) -> String {
        let Some(first) = all.first() else { return String::new() };
        let mut head = vec!["KV type".to_owned()];
        head.extend(first.groups.groups().map(|group| match group.kind {
            KvGroupKind::Window(window) => format!("window of {window}"),
            KvGroupKind::State => "state".to_owned(),
            _ => "per token".to_owned(),
        }));
        head.extend(["one context", "fits here", "contexts"].map(str::to_owned));
        let rows = all.iter().map(|own| {
            let mut row = vec![own.name.to_owned()];
            row.extend(own.groups.groups().map(|group| bytes(own.size(group) as u64)));
            let contexts = match own.fitting / own.max_positions.max(1) {
                0 => format!("{} tokens of one", own.fitting),
                whole => format!("{whole} full"),
            };
            row.extend([bytes(own.context_bytes() as u64), format!("{} tokens", own.fitting), contexts]);
            row
        });
        output::table(&head.iter().map(String::as_str).collect::<Vec<_>>(), rows.collect())
    }

    /// Bytes for each token, or of one sequence's window or state.
    fn size(&self, group: &KvGroup) -> usize {
        match group.kind {
            KvGroupKind::Window(_) | KvGroupKind::State => {
                group.most_held(usize::MAX, self.chunk).saturating_mul(group.bytes_per_block)
            }
            _ => group.bytes_per_block.div_ceil(group.block_tokens),
        }
    }

    pub(super) fn json(&self) -> Value {
        let groups = self.groups.groups().map(|group| match group.kind {
            KvGroupKind::Window(window) => json!({
                "kind": "window", "window": window, "bytes_per_token": group.bytes_per_block.div_ceil(group.block_tokens),
                "most_bytes": self.size(group),
            }),
            KvGroupKind::State => json!({"kind": "state", "bytes_per_state": self.size(group)}),
            KvGroupKind::Latent => json!({"kind": "latent", "bytes_per_token": self.size(group)}),
            _ => json!({"kind": "full", "bytes_per_token": self.size(group)}),
        });
        json!({
            "type": self.name,
            "bytes_per_token": self.groups.bytes_per_token(),
            "groups": groups.collect::<Vec<_>>(),
            "context_bytes": self.context_bytes(),
            "step_tokens": self.chunk,
            "tokens_that_fit": self.fitting,
            "context_that_fits": self.fitting.min(self.max_positions),
        })
    }
}

/// Tokens that fit into `pool` bytes: of as many full contexts as fit, or of one.
fn fitting(groups: &KvGroups, pool: usize, max_positions: usize, chunk: usize) -> usize {
    let whole = pool / groups.held_bytes(max_positions, chunk).max(1);
    if whole > 0 {
        return whole.saturating_mul(max_positions);
    }
    let (mut least, mut most) = (0, max_positions);
    while least + 1 < most {
        let middle = least + (most - least) / 2;
        if groups.held_bytes(middle, chunk) <= pool { least = middle } else { most = middle }
    }
    least
}
