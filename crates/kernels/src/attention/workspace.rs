//! The memory that attention keeps between operations.
//! Must not know: what is stored in it.

use crate::attention::plan::Plan;
use crate::shapes::LANES;

/// The memory of attention, kept between operations.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) plan: Plan,
    /// One piece of scratch per worker, then the partial results of the items.
    floats: Vec<f32>,
}

impl Workspace {
    /// Returns a pointer to at least `wanted` f32 elements, aligned to a cache line.
    pub(crate) fn floats(&mut self, wanted: usize) -> *mut f32 {
        let wanted = wanted + LANES;
        if self.floats.len() < wanted {
            self.floats.resize(wanted, 0.0);
        }
        let start = self.floats.as_mut_ptr();
        start.wrapping_add(start.align_offset(64).min(LANES))
    }
}
