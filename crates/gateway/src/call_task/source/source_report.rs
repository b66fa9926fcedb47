//! What a source reports about its work. Must not know which source it is.

use headrace_domain::{Usage, UsageSource};

/// The usage of a call, as far as it is known.
pub(crate) struct SourceUsage {
    pub(crate) usage: Usage,
    /// How the usage is known.
    pub(crate) known_by: UsageSource,
    /// Why a part of the usage is an estimate. `None` if no part is.
    pub(crate) why_estimated: Option<&'static str>,
}

/// The times of a source's work.
#[derive(Clone, Copy, Default)]
pub(crate) struct SourceTimes {
    /// When the first token arrived, in nanoseconds from the call's first byte.
    pub(crate) first_token_ns: Option<u64>,
    /// Nanoseconds spent on parsing the output.
    pub(crate) postprocess_ns: u64,
}
