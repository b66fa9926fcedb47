//! The rows of a step as the kernels of states see them: which slot each chunk reads and writes. Must not know: what is
//! computed.

use headrace_kv_layout::{BLOCK_TOKENS, StateSlots};

use crate::error::KernelError;

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateSpan {
    /// Number of tokens. At least 1.
    pub count: usize,
    /// Absolute position of the first token.
    pub start: usize,
    /// The slots of the sequence's state.
    pub slots: StateSlots,
}

/// The checked spans of a step. The rows of a span follow those of the span before it. No slot is written by two spans, or
/// written by one and read by another.
#[derive(Default)]
pub struct StatePlan {
    spans: Vec<PlannedSpan>,
    rows: usize,
    slots: usize,
    uses: Vec<SlotUse>,
}

/// A span and its first row.
#[derive(Clone, Copy)]
pub(crate) struct PlannedSpan {
    pub(crate) first_row: usize,
    pub(crate) span: StateSpan,
}

/// How the spans of a step use a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotUse {
    Unused,
    Read,
    Written,
}

impl StatePlan {
    /// Replaces the plan by one of these spans, for a store of `slots` slots.
    ///
    /// # Errors
    /// Names the first span that has no tokens, a slot that does not exist, a copy to make within a block, or a slot that
    /// another span writes.
    pub fn fill(
        &mut self,
        spans: impl IntoIterator<Item = StateSpan>,
        slots: usize,
    ) -> Result<(), KernelError> {
        self.spans.clear();
        (self.rows, self.slots) = (0, slots);
        self.uses.clear();
        self.uses.resize(slots, SlotUse::Unused);
        for span in spans {
            if let Err(problem) = self.add(span) {
                let index = self.spans.len();
                self.spans.clear();
                self.rows = 0;
                return Err(KernelError::shape(format!("span {index} of the states {problem}")));
            }
        }
        Ok(())
    }

    fn add(&mut self, span: StateSpan) -> Result<(), &'static str> {
        let StateSlots { from, own, copy } = span.slots;
        let end = span.start.checked_add(span.count).filter(|_| span.count > 0);
        let end = end.ok_or("has no tokens")?;
        let reads_other = span.start > 0 && from != own;
        if reads_other {
            self.mark(from, SlotUse::Read)?;
        }
        self.mark(own, SlotUse::Written)?;
        if let Some(copy) = copy {
            let fits = copy.position.is_multiple_of(BLOCK_TOKENS)
                && copy.position > span.start
                && copy.position <= end;
            if !fits {
                return Err("copies the state at a position where it has none");
            }
            self.mark(copy.slot, SlotUse::Written)?;
        }
        self.spans.push(PlannedSpan { first_row: self.rows, span });
        self.rows = self.rows.checked_add(span.count).ok_or("has too many tokens")?;
        Ok(())
    }

    fn mark(&mut self, slot: u32, of: SlotUse) -> Result<(), &'static str> {
        let known = self.uses.get_mut(slot as usize).ok_or("has a slot that does not exist")?;
        match (*known, of) {
            (SlotUse::Unused, _) | (SlotUse::Read, SlotUse::Read) => {
                *known = of;
                Ok(())
            }
            _ => Err("has a slot that is written twice, or written and read"),
        }
    }

    pub(crate) fn spans(&self) -> &[PlannedSpan] {
        &self.spans
    }

    /// Returns the number of rows of all spans.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of slots of the store that the spans were checked for.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the tokens of the longest span.
    pub(crate) fn longest(&self) -> usize {
        self.spans.iter().map(|planned| planned.span.count).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use headrace_kv_layout::StateCopy;

    use super::*;

    fn span(start: usize, count: usize, from: u32, own: u32, copy: Option<(usize, u32)>) -> StateSpan {
        let copy = copy.map(|(position, slot)| StateCopy { position, slot });
        StateSpan { count, start, slots: StateSlots { from, own, copy } }
    }

    #[test]
    fn spans_that_share_a_written_slot_are_refused() {
        let mut plan = StatePlan::default();
        let rows: [(&[StateSpan], Option<&str>); 11] = [
            (&[span(0, 3, 7, 0, None), span(32, 1, 2, 1, None), span(16, 2, 2, 3, None)], None),
            (&[span(5, 11, 0, 0, Some((16, 1)))], None),
            (&[span(0, 0, 0, 0, None)], Some("span 0 of the states has no tokens")),
            (&[span(usize::MAX, 1, 0, 0, None)], Some("no tokens")),
            (&[span(0, 1, 0, 0, None), span(5, 1, 0, 2, None)], Some("span 1 of the states has a slot")),
            (&[span(0, 1, 0, 4, None)], Some("does not exist")),
            (&[span(0, 1, 0, 0, None), span(0, 1, 0, 0, None)], Some("written twice")),
            (&[span(16, 1, 1, 0, None), span(0, 1, 1, 1, None)], Some("written twice, or written and read")),
            (&[span(0, 20, 0, 0, Some((8, 1)))], Some("copies")),
            (&[span(16, 16, 0, 0, Some((16, 1)))], Some("copies")),
            (&[span(0, 16, 0, 0, Some((16, 0)))], Some("written twice")),
        ];
        for (spans, expected) in rows {
            match (plan.fill(spans.iter().copied(), 4), expected) {
                (Ok(()), None) => {
                    assert_eq!(plan.rows(), spans.iter().map(|span| span.count).sum::<usize>());
                }
                (Err(error), Some(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}");
                    assert_eq!(plan.rows(), 0);
                }
                (other, _) => panic!("{other:?}, expected {expected:?}"),
            }
        }
    }
}
