//! Options for loading a model onto a device: limits and sizes. Must not know: which model is loaded.

use headrace_model::KvBlocks;

/// Options for loading a model.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadOptions {
    /// Number of KV blocks of each cache group, of 16 tokens each. `None` for as many as the free memory holds, less
    /// [`LoadOptions::reserve_bytes`].
    pub kv_blocks: Option<KvBlocks>,
    /// Maximum number of KV blocks of the first cache group, if [`LoadOptions::kv_blocks`] is `None`.
    pub most_kv_blocks: usize,
    /// Sequences that are computed at a time. Each needs its window in the cache group of layers with a window.
    pub sequences: usize,
    /// Most tokens of one sequence in a step, which decides how long a sequence fits the blocks of a window.
    pub chunk: usize,
    /// A limit on positions that applies if it is below the checkpoint's own limit.
    pub max_positions: Option<usize>,
    /// Maximum rows of one pass. A longer step is computed in several passes.
    pub pass_rows: usize,
    /// Maximum rows of logits that are downloaded to the host at once.
    pub logit_rows: usize,
    /// Bytes for the partial results of attention's splits.
    pub partial_bytes: usize,
    /// Maximum sequences of a decode batch that is recorded and replayed. 0 disables recordings.
    pub recorded_rows: usize,
    /// Number of threads that read, convert and upload weights.
    pub threads: usize,
    /// Device memory that stays free for the driver, recordings and other programs.
    pub reserve_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            kv_blocks: None,
            most_kv_blocks: usize::MAX,
            sequences: 64,
            chunk: 2048,
            max_positions: None,
            pass_rows: 8192,
            logit_rows: 256,
            partial_bytes: 256 << 20,
            recorded_rows: 256,
            threads: 4,
            reserve_bytes: 1 << 30,
        }
    }
}
