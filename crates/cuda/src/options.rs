//! How a model is loaded onto a device: bounds and sizes. Must not know: what is loaded.

/// How to load a model.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadOptions {
    /// KV blocks of 16 tokens; none: as many as the free memory holds, less [`LoadOptions::reserve_bytes`].
    pub kv_blocks: Option<usize>,
    /// No pool that is sized by the free memory has more blocks.
    pub most_kv_blocks: usize,
    /// A bound on positions below the checkpoint's own.
    pub max_positions: Option<usize>,
    /// Rows of one pass; a longer step is computed in several.
    pub pass_rows: usize,
    /// Rows of logits that are brought to the host at once.
    pub logit_rows: usize,
    /// Bytes for what attention's splits leave for each other.
    pub partial_bytes: usize,
    /// Decode batches of up to so many sequences are recorded and replayed; 0: none.
    pub recorded_rows: usize,
    /// Threads that read, convert and upload weights.
    pub threads: usize,
    /// Memory of the device that stays free: for the driver, recordings and other programs.
    pub reserve_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            kv_blocks: None,
            most_kv_blocks: usize::MAX,
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
