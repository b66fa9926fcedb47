//! The state of a form that allows every id and forces none, for tests.

use headrace_engine_api::{GrammarFailed, GrammarState};

pub(crate) struct AnyIds;

impl GrammarState for AnyIds {
    fn mask(&mut self, _: &mut [u32]) -> Result<(), GrammarFailed> {
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<(), GrammarFailed> {
        Ok(())
    }

    fn forced(&self) -> &[u32] {
        &[]
    }

    fn is_over(&self) -> bool {
        false
    }
}
