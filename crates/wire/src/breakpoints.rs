//! Places that a caller marks as ends of cached prefixes (`cache_control`). Knows no cache: prompts are cached by content anyway.

use std::cell::Cell;

use headrace_domain::Code;

use crate::fault::{Fault, Read};
use crate::json::Reader;
use crate::refused::cache_control;

/// As many as a request may have: Anthropic's.
const MAX_BREAKPOINTS: u32 = 4;

/// Those of a request so far.
#[derive(Debug, Default)]
pub(crate) struct Breakpoints(Cell<u32>);

impl Breakpoints {
    /// Reads a `cache_control`.
    pub(crate) fn read(&self, r: &mut Reader<'_>) -> Read<()> {
        if !cache_control(r)? {
            return Ok(());
        }
        self.0.set(self.0.get().saturating_add(1));
        if self.0.get() > MAX_BREAKPOINTS {
            let message = format!("a request may have at most {MAX_BREAKPOINTS} of them; leave some out");
            return Err(Fault::new(Code::ArrayAboveMaxLength, message));
        }
        Ok(())
    }
}
