//! The cache groups of a model before it is loaded: their sizes, and how memory is divided between them. Must not know
//! how much memory the machine has.

use headrace_checkpoint::ModelConfig;
use headrace_checkpoint::decoder::LayerConfig;
use headrace_kernels::attention::KvType;
use headrace_kv_layout::{KvGroup, KvGroupKind, KvLayout};

use crate::memory::{self, KeptLayers, layer_window};
use crate::states::state_bytes_per_slot;

/// The number of blocks of each cache group. The number for a group that the model does not have is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KvBlocks {
    /// Blocks of 16 tokens of the layers that keep every position.
    pub full: usize,
    /// Blocks of 16 tokens of the layers with a window.
    pub window: usize,
    /// States of the recurrent layers.
    pub states: usize,
}

impl KvBlocks {
    /// The same number of blocks in every group, and at least two states.
    pub const fn same(blocks: usize) -> Self {
        Self { full: blocks, window: blocks, states: if blocks < 2 { 2 } else { blocks } }
    }
}

/// How many sequences are computed at a time, and in which chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvUse {
    /// Running sequences, at least 1.
    pub sequences: usize,
    /// Most tokens of one sequence in a step.
    pub chunk: usize,
    /// Most tokens of one sequence.
    pub tokens: usize,
}

/// The cache groups of a model, without numbers of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvGroups {
    /// The layers that keep every position, and those with a window or a state.
    layout: KvLayout,
}

impl KvGroups {
    /// The groups of a model that stores keys and values as `kv`.
    pub fn of(config: &ModelConfig, kv: KvType) -> Self {
        let full = memory::block_bytes(config, kv, KeptLayers::All, false);
        let window = memory::block_bytes(config, kv, KeptLayers::All, true);
        Self::new(config, full, window, state_bytes_per_slot(config))
    }

    /// The groups of a model whose keys and values are stored otherwise. `block_bytes` returns the bytes that a layer's
    /// block takes. For models without recurrent layers.
    pub fn with_block_bytes(config: &ModelConfig, block_bytes: impl Fn(&LayerConfig) -> usize) -> Self {
        let (mut full, mut window) = (0_usize, 0_usize);
        for layer in &config.layers {
            let sum = if layer_window(config, layer).is_some() { &mut window } else { &mut full };
            *sum = sum.saturating_add(block_bytes(layer));
        }
        Self::new(config, full, window, 0)
    }

    /// The groups with the bytes of a block, and of a slot for a state.
    fn new(config: &ModelConfig, full: usize, window: usize, state: usize) -> Self {
        let group = |kind, bytes| if bytes > 0 { KvGroup::new(kind, 0, bytes) } else { KvGroup::UNUSED };
        let kind = memory::group_window(config).map_or(KvGroupKind::Unused, KvGroupKind::Window);
        Self {
            layout: KvLayout::new(&[
                group(memory::full_kind(config), full),
                group(kind, window),
                group(KvGroupKind::State, state),
            ]),
        }
    }

    /// The groups, with no blocks.
    pub fn groups(&self) -> impl Iterator<Item = &KvGroup> {
        self.layout.used()
    }

    /// Returns the layout with numbers of blocks.
    pub fn layout(&self, blocks: KvBlocks) -> KvLayout {
        let with = |group: &KvGroup, block_count| KvGroup { block_count, ..*group };
        let groups = self.layout.groups();
        KvLayout::new(&[
            with(groups.full(), blocks.full),
            with(groups.window(), blocks.window),
            with(groups.state(), blocks.states),
        ])
    }

    /// Returns the bytes of this many blocks.
    pub fn bytes(&self, blocks: KvBlocks) -> usize {
        let layout = self.layout(blocks);
        let bytes = |group: &KvGroup| group.block_count.saturating_mul(group.bytes_per_block);
        layout.used().map(bytes).fold(0, usize::saturating_add)
    }

    /// Returns the most bytes that one sequence of `tokens` tokens holds, if it is computed in chunks of at most `chunk`
    /// tokens.
    pub fn held_bytes(&self, tokens: usize, chunk: usize) -> usize {
        let bytes = |group: &KvGroup| group.most_held(tokens, chunk).saturating_mul(group.bytes_per_block);
        self.groups().map(bytes).fold(0, usize::saturating_add)
    }

    /// Returns the bytes that a further token takes in layers that keep every position, rounded up.
    pub fn bytes_per_token(&self) -> usize {
        let full = self.layout.groups().full();
        full.bytes_per_block.div_ceil(full.block_tokens)
    }

    /// Returns the blocks of the first group that a sequence of `tokens` tokens needs. Two states: its own, and the one
    /// that a step leaves.
    pub fn needed(&self, tokens: usize, chunk: usize) -> usize {
        match self.layout.first().kind {
            KvGroupKind::State => 2,
            _ => self.layout.first().most_held(tokens, chunk),
        }
    }

    /// Returns the most blocks of the first group that are of use: full contexts of all running sequences, and as much
    /// again for cached windows and states.
    pub fn useful(&self, usage: KvUse) -> usize {
        let running = self.needed(usage.tokens, usage.chunk).saturating_mul(usage.sequences);
        match self.layout.first().kind {
            KvGroupKind::Full | KvGroupKind::Latent => running,
            _ => running.saturating_mul(2),
        }
    }

    /// Returns the blocks of all groups for a pool with `first` blocks in the first group. The other groups get what
    /// `usage` can use beside them: each running sequence its window and its state, and a quarter more for growth.
    /// Cached states get as much again as those of running sequences.
    pub fn beside(&self, first: usize, usage: KvUse) -> KvBlocks {
        let groups = self.layout.groups();
        let growth = usage.sequences.div_ceil(4);
        let held = groups.window().most_held(usage.tokens, usage.chunk);
        let windows = held.saturating_mul(usage.sequences.saturating_add(growth)).saturating_add(growth);
        let states = usage.sequences.saturating_mul(2).saturating_add(growth);
        // Layers with a window never need more blocks than those with every position, and a sequence needs one of each.
        let (window, states) = match self.layout.first().kind {
            KvGroupKind::Window(_) => (first, states.min((first / 4).max(2))),
            KvGroupKind::State => (0, first),
            _ => (windows.min(first.max(held)), states.min((first / 4).max(2))),
        };
        KvBlocks { full: first, window, states }
    }

    /// Returns the most blocks of the first group with which all groups fit into `bytes`. 0 if nothing fits.
    pub fn fitting(&self, bytes: usize, usage: KvUse) -> usize {
        let fits = |first: usize| self.bytes(self.beside(first, usage)) <= bytes;
        // `beside` never falls as its argument grows, so the greatest number that fits is found by halving.
        let (mut least, mut most) = (0, bytes / self.layout.first().bytes_per_block.max(1) + 1);
        while least + 1 < most {
            let middle = least + (most - least) / 2;
            if fits(middle) { least = middle } else { most = middle }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of six layers, four of them with a window, at a context of 32,768 tokens.
    fn windowed(window: usize) -> KvGroups {
        let json = include_str!("../tests/data/gemma3-text/config.json");
        let json = json.replace("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 32768");
        let json = json.replace("\"sliding_window\": 8", &format!("\"sliding_window\": {window}"));
        KvGroups::of(&ModelConfig::from_json(json.as_bytes()).unwrap(), KvType::Bf16)
    }

    #[test]
    fn a_long_sequence_holds_its_window_and_a_chunk_of_the_layers_with_a_window() {
        for window in [512, 1000, 1024] {
            let groups = windowed(window);
            let kinds: Vec<_> = groups.groups().map(|group| group.kind).collect();
            assert_eq!(kinds, [KvGroupKind::Full, KvGroupKind::Window(window)]);
            let per_token: Vec<usize> = groups.groups().map(|group| group.bytes_per_block / 16).collect();
            let (tokens, chunk) = (32_768, 128);
            let most = per_token[0] * tokens + per_token[1] * (window + chunk + 32);
            let held = groups.held_bytes(tokens, chunk);
            assert!(held <= most && held * 100 >= most * 99, "{held} of {most}");
        }
    }

    #[test]
    fn memory_is_divided_so_that_it_fits() {
        let groups = windowed(512);
        for sequences in [1, 8, 64] {
            let usage = KvUse { sequences, chunk: 128, tokens: 32_768 };
            for bytes in [0, 1 << 16, 1 << 20, 1 << 26, 1 << 30] {
                let first = groups.fitting(bytes, usage);
                let fits = |first: usize| groups.bytes(groups.beside(first, usage)) <= bytes;
                assert!(first == 0 || fits(first), "{bytes}");
                assert!(!fits(first + 1), "{bytes}: more fits");
            }
            let blocks = groups.beside(groups.useful(usage), usage);
            assert_eq!(blocks.full, 2048 * sequences);
            // A window of 512 tokens and a chunk of 128 tokens take 41 blocks.
            let growth = sequences.div_ceil(4);
            assert_eq!(blocks.window, 41 * (sequences + growth) + growth);
            assert!(groups.layout(blocks).positions(128) >= 32_768);
        }
    }

    #[test]
    fn a_pool_of_one_context_holds_it() {
        let groups = windowed(1024);
        let usage = KvUse { sequences: 64, chunk: 128, tokens: 32_768 };
        let blocks = groups.beside(groups.needed(32_768, 128), usage);
        assert_eq!(groups.layout(blocks).positions(128), 32_768);
    }
}
