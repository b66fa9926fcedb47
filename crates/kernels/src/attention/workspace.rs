//! The memory that attention keeps between its calls.
//! Must not know: what stands in it.

use crate::attention::plan::Plan;
use crate::shapes::LANES;

/// The memory of the operation, kept between calls.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) plan: Plan,
    /// One piece per worker, then what items leave behind.
    floats: Vec<f32>,
}

impl Workspace {
    /// At least `wanted` f32 elements from a cache line's start on.
    pub(crate) fn floats(&mut self, wanted: usize) -> *mut f32 {
        let wanted = wanted + LANES;
        if self.floats.len() < wanted {
            self.floats.resize(wanted, 0.0);
        }
        let start = self.floats.as_mut_ptr();
        start.wrapping_add(start.align_offset(64).min(LANES))
    }
}
