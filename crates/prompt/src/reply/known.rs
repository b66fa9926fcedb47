//! The marks that a reply may contain, and their meaning at each position. Must not know how a machine acts on them.

use std::sync::Arc;

use crate::family::{AnswerMarks, FamilyRow};
use crate::thought::ReasoningMarks;

/// What a machine reads now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MachineState {
    Text,
    Thought,
    /// After the mark of a section, before the mark of its first call.
    Section,
    Call,
    /// The call is complete. Its closing marks from this index on may follow.
    Closing {
        from: usize,
    },
}

/// Whether the marks around an answer have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerWrap {
    None,
    Opened,
    /// The last mark is held back as white space, because it is text if the answer continues after it.
    Closed,
}

/// The meaning of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkMeaning {
    Section,
    Call,
    /// Closes what was opened around a call.
    Closing,
    Think,
    Thought,
    /// Opens the answer.
    Answer,
    /// Closes the answer.
    AnswerEnd,
    /// Has no meaning here and is not shown to people.
    Hidden,
}

/// The marks of a reply.
#[derive(Debug)]
pub(super) struct KnownMarks {
    /// The way in which calls are written. `None` if calls are not read.
    pub(super) row: Option<&'static FamilyRow>,
    pub(super) thought: Option<ReasoningMarks>,
    pub(super) answer: Option<AnswerMarks>,
    /// Marks that are left out if they have no meaning at their position.
    pub(super) hidden: Arc<[String]>,
}

impl KnownMarks {
    /// Returns the marks that have a meaning in this state. `visible` is whether text other than white space has come
    /// since the beginning or the last call, `called` whether there was a call.
    pub(super) fn at(
        &self,
        state: MachineState,
        wrapped: AnswerWrap,
        visible: bool,
        called: bool,
    ) -> impl Iterator<Item = (&str, MarkMeaning)> {
        let row = self.row;
        let (begins, after_call) = (!visible && !called, !visible && called);
        let thinking = state == MachineState::Thought;
        let calls = row.filter(|row| !thinking || row.ends_thought);
        let section = calls.and_then(|row| row.section).filter(|_| state != MachineState::Section);
        let open = calls.into_iter().flat_map(|row| row.open).map(|mark| (*mark, MarkMeaning::Call));
        let closing = row.filter(|_| after_call && state == MachineState::Text);
        let ends = closing.into_iter().flat_map(|row| row.close).copied();
        let ends = ends.chain(closing.and_then(|row| row.section).map(|(_, end)| end));
        let think =
            self.thought.filter(|_| begins && state == MachineState::Text).map(|thought| thought.open);
        let thought = self.thought.filter(|_| thinking).map(|thought| thought.close);
        let (opens, closes) = self.answer_marks(state, wrapped, begins);
        section
            .map(|(mark, _)| (mark, MarkMeaning::Section))
            .into_iter()
            .chain(open)
            .chain(ends.map(|mark| (mark, MarkMeaning::Closing)))
            .chain(think.map(|mark| (mark, MarkMeaning::Think)))
            .chain(thought.map(|mark| (mark, MarkMeaning::Thought)))
            .chain(opens.iter().map(|mark| (*mark, MarkMeaning::Answer)))
            .chain(closes.iter().map(|mark| (*mark, MarkMeaning::AnswerEnd)))
            .chain(self.hidden.iter().map(|mark| (mark.as_str(), MarkMeaning::Hidden)))
    }

    /// Returns the marks around the answer that have a meaning now. `begins` is whether nothing was emitted yet.
    fn answer_marks(
        &self,
        state: MachineState,
        wrapped: AnswerWrap,
        begins: bool,
    ) -> (&'static [&'static str], &'static [&'static str]) {
        let Some(answer) = self.answer else { return (&[], &[]) };
        match (state, wrapped) {
            (MachineState::Text, _) if !answer.are_words => (answer.open, answer.close),
            (MachineState::Thought, _) if !answer.are_words => (answer.open, &[]),
            (MachineState::Text, AnswerWrap::None) if begins => (answer.open, &[]),
            (MachineState::Text, AnswerWrap::Opened) => (&[], answer.close),
            _ => (&[], &[]),
        }
    }
}
