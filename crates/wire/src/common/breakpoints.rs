//! The places that a caller marks as ends of cached prefixes (`cache_control`). Knows no cache.

use std::cell::{Cell, RefCell};

use headrace_domain::{CacheMark, CacheMarkAt, Code};

use crate::common::refused::cache_control;
use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;

/// The most breakpoints that a request may have. Anthropic's limit.
const MAX_BREAKPOINTS: usize = 4;

/// The breakpoints of a request so far.
#[derive(Debug)]
pub(crate) struct CacheBreakpoints {
    /// The place that is being read.
    at: Cell<CacheMarkAt>,
    marks: RefCell<Vec<CacheMark>>,
}

impl Default for CacheBreakpoints {
    fn default() -> Self {
        Self { at: Cell::new(CacheMarkAt::Head), marks: RefCell::default() }
    }
}

impl CacheBreakpoints {
    /// Sets the place that is being read.
    pub(crate) fn enter(&self, at: CacheMarkAt) {
        self.at.set(at);
    }

    /// Reads a `cache_control` at the place that is being read.
    pub(crate) fn read(&self, r: &mut JsonReader<'_>) -> Read<()> {
        self.read_at(self.at.get(), r)
    }

    /// Reads a `cache_control` at the given place.
    pub(crate) fn read_at(&self, at: CacheMarkAt, r: &mut JsonReader<'_>) -> Read<()> {
        let Some(life) = cache_control(r)? else { return Ok(()) };
        let mut marks = self.marks.borrow_mut();
        marks.push(CacheMark { at, life });
        if marks.len() > MAX_BREAKPOINTS {
            let message = format!("a request may have at most {MAX_BREAKPOINTS} of them; leave some out");
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message));
        }
        Ok(())
    }

    /// Takes all breakpoints, in the order in which they were read.
    pub(crate) fn take(&self) -> Vec<CacheMark> {
        self.marks.take()
    }
}
