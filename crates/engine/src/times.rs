//! How the time of steps is spent. Reads no clock.

/// Nanoseconds of all steps since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) step_ns: u64,
    pub(crate) forward_ns: u64,
    pub(crate) sample_ns: u64,
}

impl Times {
    pub(crate) fn add(&mut self, other: Self) {
        self.step_ns = self.step_ns.saturating_add(other.step_ns);
        self.forward_ns = self.forward_ns.saturating_add(other.forward_ns);
        self.sample_ns = self.sample_ns.saturating_add(other.sample_ns);
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            step_ns: self.step_ns.saturating_sub(earlier.step_ns),
            forward_ns: self.forward_ns.saturating_sub(earlier.forward_ns),
            sample_ns: self.sample_ns.saturating_sub(earlier.sample_ns),
        }
    }
}
