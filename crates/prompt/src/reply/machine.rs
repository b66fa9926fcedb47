//! The state machine that reads replies: text, reasoning, and calls between marks. A row of the table describes each
//! family. A separate reader (`body`) reads the text between the marks of a call. Must not know events or ids of calls.

use std::sync::Arc;

use crate::family::{CallLayout, FamilyRow};
use crate::offered::{CallFault, OfferedTools};

use super::body::CallReader;
use super::form::ReplyForm;
use super::known::{AnswerWrap, KnownMarks, MachineState, MarkMeaning};
use super::piece::{CallDraft, ReplyPiece, ReplyPieces};
use super::span::is_space;
use super::step::CallStep;

/// The machine. Each character is decided only by the characters before it, so the result does not depend on how the
/// text was cut.
///
/// The following belongs to the syntax of calls and is not text: the marks, white space between calls, and white space
/// at the end after a call. Before a call, all white space is syntax if no text precedes it; otherwise one line break
/// is. Templates write this syntax back by themselves. Line breaks at the ends of reasoning and after it belong to the
/// template, too, as do the marks around an answer. Everything else is emitted as text, including, word for word, text that turns out not to be a call.
///
/// A call is emitted as a whole when its name and arguments have been read and fit an offered tool. If a grammar
/// constrains the call, its arguments are emitted as they arrive. A call that cannot be carried out is ordinary text.
#[derive(Debug)]
pub(super) struct MarkMachine {
    known: KnownMarks,
    /// Whether the marks around the answer have come, if they are words.
    wrapped: AnswerWrap,
    offered: Arc<OfferedTools>,
    state: MachineState,
    /// The number of calls emitted.
    calls: u32,
    /// The fault of the first call that could not be carried out.
    fault: Option<CallFault>,
    /// Whether text other than white space has come since the beginning or the last call.
    visible: bool,
    /// Whether line breaks now belong to the marks of the reasoning.
    skips_lines: bool,
    /// The matched beginning of a mark.
    held: String,
    /// White space that is held back because it may belong to a following call.
    space: String,
    /// The text of the current call so far, which is emitted if it is not a call.
    raw: String,
    draft: CallDraft,
    /// Complete calls of one block, kept until its closing mark. Either all objects of a block become calls, or none
    /// does.
    block: Vec<CallDraft>,
    /// The number of bytes of the draft's arguments that were emitted. `None` if the call was not emitted.
    emitted: Option<usize>,
    /// Whether a grammar constrains the call. `None` until its name is known.
    is_held: Option<bool>,
    reader: Option<CallReader>,
    /// Whether the call is one of a list of objects.
    in_list: bool,
    /// The pieces of the current push.
    out: ReplyPieces,
}

impl MarkMachine {
    pub(super) fn new(form: &ReplyForm) -> Self {
        let thinks = form.thinking && form.style.thought.is_some();
        Self {
            known: KnownMarks {
                row: form.style.family.row().filter(|_| !form.offered.is_empty()),
                thought: form.style.thought,
                answer: form.style.family.answer(),
                hidden: Arc::clone(&form.hidden),
            },
            wrapped: AnswerWrap::None,
            offered: Arc::clone(&form.offered),
            state: if thinks { MachineState::Thought } else { MachineState::Text },
            calls: 0,
            fault: None,
            visible: false,
            skips_lines: thinks,
            held: String::new(),
            space: String::new(),
            raw: String::new(),
            draft: CallDraft::default(),
            block: Vec::new(),
            emitted: None,
            is_held: None,
            reader: None,
            in_list: false,
            out: ReplyPieces::default(),
        }
    }

    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    pub(super) fn fault(&self) -> Option<CallFault> {
        self.fault
    }

    pub(super) fn is_thinking(&self) -> bool {
        self.state == MachineState::Thought
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<ReplyPiece> {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = self.plain_until(rest);
            let (now, later) = rest.split_at(if plain > 0 { plain } else { c.len_utf8() });
            match (plain > 0, self.state) {
                (true, MachineState::Thought) => self.out.thought(now),
                (true, _) => self.out.text(now),
                (false, _) => self.step(c),
            }
            rest = later;
        }
        self.emit_known();
        self.out.take()
    }

    /// Returns the number of leading bytes of `text` that are certainly plain text or reasoning, so that `push` need
    /// not check each character.
    fn plain_until(&self, text: &str) -> usize {
        let free = match self.state {
            MachineState::Text => self.visible,
            MachineState::Thought => !self.skips_lines,
            _ => false,
        };
        if !free || !self.held.is_empty() || !self.space.is_empty() {
            return 0;
        }
        let first = |c: char| self.marks().any(|(mark, _)| mark.starts_with(c));
        let lines = self.holds_lines();
        text.find(|c| (lines && c == '\n') || first(c)).unwrap_or(text.len())
    }

    /// Whether a line break may belong to the text after it.
    fn holds_lines(&self) -> bool {
        self.known.row.is_some() || self.state == MachineState::Thought || self.wrapped == AnswerWrap::Opened
    }

    /// Ends the text. `stopped` is `true` if the model stopped by itself.
    pub(super) fn finish(&mut self, stopped: bool) -> Vec<ReplyPiece> {
        if self.state == MachineState::Call
            && stopped
            && let Some(reader) = &mut self.reader
            && let CallStep::All(drafts) = reader.stop(&mut self.draft)
        {
            self.all_made(drafts);
        }
        if self.state == MachineState::Call && self.draft.whole {
            let tail = self.reader.as_mut().map(CallReader::tail).unwrap_or_default();
            self.made();
            tail.chars().for_each(|c| self.step(c));
        }
        while matches!(self.state, MachineState::Text | MachineState::Thought) && !self.held.is_empty() {
            // The beginning of a mark of several special tokens is no text.
            match self.known.hidden.iter().any(|mark| self.held.starts_with(mark)) {
                true => self.held.clear(),
                false => self.settle(),
            }
        }
        match self.state {
            MachineState::Text | MachineState::Thought => {
                let after_call = !self.visible && self.calls > 0 && self.space.chars().all(is_space);
                let closed = self.wrapped == AnswerWrap::Closed;
                let syntax = self.state == MachineState::Thought || after_call || closed;
                if !syntax {
                    self.release_space();
                }
            }
            MachineState::Section | MachineState::Call => {
                let opened =
                    self.known.row.is_some_and(|row| row.bare.is_empty()) || self.draft.name.is_some();
                if opened {
                    self.fault.get_or_insert(CallFault::Unfinished);
                }
                // After a mark, the grammar allows only a call. The beginning of a call is not shown to people.
                let is_part_of_call = opened && self.offered.are_all_held();
                if !self.cut_off() && !is_part_of_call {
                    let held = std::mem::take(&mut self.held);
                    self.raw.push_str(&held);
                    self.give_back();
                }
            }
            // Only the syntax of an emitted call is held back.
            MachineState::Closing { .. } => self.end_block(),
        }
        (self.state, self.reader) = (MachineState::Text, None);
        self.held.clear();
        self.space.clear();
        self.out.take()
    }

    fn step(&mut self, c: char) {
        match self.state {
            MachineState::Text | MachineState::Thought | MachineState::Section => self.step_marked(c),
            MachineState::Call => self.step_call(c),
            MachineState::Closing { from } => self.step_closing(c, from),
        }
    }

    /// Returns the marks that have a meaning in the current state.
    fn marks(&self) -> impl Iterator<Item = (&str, MarkMeaning)> {
        self.known.at(self.state, self.wrapped, self.visible, self.calls > 0)
    }

    /// Handles one character at a position where a mark may occur. The longest mark counts: a special token may be the
    /// beginning of a longer mark.
    fn step_marked(&mut self, c: char) {
        self.held.push(c);
        let held = self.held.as_str();
        if !self.marks().any(|(mark, _)| mark.len() > held.len() && mark.starts_with(held)) {
            self.settle();
        }
    }

    /// Takes the longest mark at the beginning of the held text. If there is none, the first character is plain, and a
    /// mark may still begin at a later one.
    fn settle(&mut self) {
        let held = std::mem::take(&mut self.held);
        let found = self.marks().filter(|(mark, _)| held.starts_with(mark));
        let found = found.map(|(mark, what)| (mark.len(), what));
        let longest = found.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let first = held.chars().next();
        let end = longest.map_or(first.map_or(0, char::len_utf8), |(length, _)| length);
        let (now, later) = held.split_at_checked(end).unwrap_or((held.as_str(), ""));
        match (longest, first) {
            (Some((_, what)), _) => self.enter(now, what),
            (None, Some(first)) => self.plain(first),
            (None, None) => {}
        }
        later.chars().for_each(|c| self.step(c));
    }

    fn enter(&mut self, mark: &str, what: MarkMeaning) {
        if what == MarkMeaning::Hidden {
            return;
        }
        if self.state == MachineState::Thought {
            // Line breaks before the end of the reasoning belong to its mark.
            self.space.clear();
            self.visible = false;
        }
        match what {
            MarkMeaning::Section => {
                self.raw = std::mem::take(&mut self.space) + mark;
                self.state = MachineState::Section;
            }
            MarkMeaning::Call => {
                if self.state != MachineState::Section {
                    self.raw = std::mem::take(&mut self.space);
                }
                self.raw.push_str(mark);
                self.begin(mark);
            }
            MarkMeaning::Hidden => {}
            MarkMeaning::Answer | MarkMeaning::AnswerEnd
                if self.known.answer.is_some_and(|marks| !marks.are_words) =>
            {
                self.skips_lines = false;
                self.state = MachineState::Text;
            }
            MarkMeaning::Answer => {
                self.space.clear();
                self.skips_lines = true;
                self.wrapped = AnswerWrap::Opened;
            }
            MarkMeaning::AnswerEnd => {
                self.space.push_str(mark);
                self.wrapped = AnswerWrap::Closed;
            }
            MarkMeaning::Closing => self.space.clear(),
            MarkMeaning::Think => {
                self.space.clear();
                self.state = MachineState::Thought;
                self.skips_lines = true;
            }
            MarkMeaning::Thought => {
                self.state = MachineState::Text;
                self.skips_lines = true;
            }
        }
    }

    /// Handles a character that belongs to no mark.
    fn plain(&mut self, c: char) {
        match self.state {
            MachineState::Section if is_space(c) => self.raw.push(c),
            MachineState::Section => {
                self.fault.get_or_insert(CallFault::Malformed);
                self.give_back();
                self.step(c);
            }
            _ if self.skips_lines && c == '\n' => {}
            MachineState::Thought => {
                self.skips_lines = false;
                if c == '\n' {
                    self.space.push(c);
                    return;
                }
                let space = std::mem::take(&mut self.space);
                self.out.thought(&space);
                self.out.thought(c.encode_utf8(&mut [0; 4]));
            }
            _ => {
                self.skips_lines = false;
                self.plain_text(c);
            }
        }
    }

    fn plain_text(&mut self, c: char) {
        if self.wrapped == AnswerWrap::Closed {
            if is_space(c) {
                self.space.push(c);
                return;
            }
            self.wrapped = AnswerWrap::Opened;
        }
        let line_begins = !self.visible || self.space.ends_with('\n');
        if line_begins && self.known.row.is_some_and(|row| row.bare.contains(&c)) {
            self.raw = std::mem::take(&mut self.space);
            self.begin("");
            self.step(c);
        } else if is_space(c) && (!self.visible || (c == '\n' && self.holds_lines())) {
            if self.visible {
                self.release_space();
            }
            self.space.push(c);
        } else if self.is_separator(c) {
            self.space.push(c);
        } else {
            self.release_space();
            self.visible |= !is_space(c);
            self.out.text(c.encode_utf8(&mut [0; 4]));
        }
    }

    /// Whether `c` separates two calls of a family without opening marks.
    fn is_separator(&self, c: char) -> bool {
        let between = self.known.row.filter(|row| !row.bare.is_empty()).map_or("", |row| row.written.between);
        self.calls > 0 && !self.visible && between.contains(c)
    }

    /// Begins a call after the mark `open`, or without one.
    fn begin(&mut self, open: &str) {
        self.in_list = false;
        self.draft = CallDraft::default();
        (self.emitted, self.is_held) = (None, None);
        self.state = MachineState::Call;
        self.reader = self.known.row.map(|row| {
            let end = match row.body {
                CallLayout::Tagged(_) => row.section.map(|(_, end)| end),
                _ => row.close.last().copied(),
            };
            CallReader::new(&row.body, open, end, &self.offered)
        });
    }

    fn step_call(&mut self, c: char) {
        let Some(reader) = &mut self.reader else { return };
        self.raw.push(c);
        let step = reader.step(c, &mut self.draft);
        if self.is_held.is_none() && self.draft.name.is_some() && !self.draft.arguments.is_empty() {
            // Decides now, because the way in which the call begins must not depend on what the model writes about it
            // later.
            self.emit_known();
        }
        match step {
            CallStep::More => {}
            CallStep::Whole => self.made(),
            CallStep::Before(tail) => {
                self.raw.pop();
                self.raw.truncate(self.raw.len().saturating_sub(tail.len()));
                self.made();
                if matches!(self.state, MachineState::Closing { .. }) {
                    tail.chars().for_each(|c| self.step(c));
                }
                self.step(c);
            }
            CallStep::All(drafts) => self.all_made(drafts),
            CallStep::Off => {
                self.raw.pop();
                let opened =
                    self.known.row.is_some_and(|row| row.bare.is_empty()) || self.draft.name.is_some();
                if opened {
                    self.fault.get_or_insert(CallFault::Malformed);
                }
                if !self.cut_off() {
                    self.give_back();
                }
                self.step(c);
            }
        }
    }

    fn judge(&self, draft: &CallDraft) -> Result<(), CallFault> {
        self.offered.judge(draft.name.as_deref().unwrap_or(""), &draft.arguments)
    }

    /// Handles a complete list of calls. Either all of them become calls, or none does.
    fn all_made(&mut self, drafts: Vec<CallDraft>) {
        let judged = drafts.iter().map(|draft| self.judge(draft)).find_map(Result::err);
        if let Some(fault) = judged {
            self.fault.get_or_insert(fault);
            self.give_back();
            return;
        }
        for draft in drafts {
            self.draft = draft;
            self.is_held = None;
            self.state = MachineState::Call;
            self.made();
        }
    }

    /// Handles a call whose name and arguments are complete. It becomes a call or text.
    fn made(&mut self) {
        self.in_list |= self.reader.as_ref().is_some_and(CallReader::in_list);
        self.emit_known();
        match self.judge(&self.draft) {
            // Emitted parts of a call cannot be taken back.
            Err(fault) => {
                self.fault.get_or_insert(fault);
                if self.emitted.is_none() {
                    self.give_back();
                    return;
                }
            }
            Ok(()) if self.emitted.is_none() => {
                self.block.push(std::mem::take(&mut self.draft));
                if self.has_blocks() {
                    // The raw text is kept, because later text may show that it is not a call.
                    self.visible = false;
                    self.reader = None;
                    self.state = MachineState::Closing { from: 0 };
                    return;
                }
            }
            Ok(()) => {}
        }
        self.end_block();
        self.raw.clear();
        self.space.clear();
        self.visible = false;
        (self.emitted, self.reader) = (None, None);
        self.state = MachineState::Closing { from: 0 };
        self.draft = CallDraft::default();
        self.end_closing();
    }

    /// Whether one pair of marks may enclose several calls, which are emitted together.
    fn has_blocks(&self) -> bool {
        let one_by_one = |row: &FamilyRow| matches!(row.body, CallLayout::Object(layout) if !layout.array);
        self.known.row.is_some_and(|row| one_by_one(row) && row.bare.is_empty() && !row.close.is_empty())
    }

    /// Emits the calls of the current block.
    fn end_block(&mut self) {
        for mut draft in std::mem::take(&mut self.block) {
            self.out.call(draft.id.take(), draft.name.take().unwrap_or_default());
            self.out.arguments(&draft.arguments);
            self.calls = self.calls.saturating_add(1);
            self.raw.clear();
        }
    }

    /// Emits the known part of a call that a grammar constrains.
    fn emit_known(&mut self) {
        let Some(name) = self.draft.name.as_ref().filter(|_| self.state == MachineState::Call) else {
            return;
        };
        if self.draft.arguments.is_empty() || !*self.is_held.get_or_insert_with(|| self.offered.is_held(name))
        {
            return;
        }
        if self.emitted.is_none() {
            self.out.call(self.draft.id.take(), name.clone());
            self.calls = self.calls.saturating_add(1);
        }
        let emitted = self.emitted.unwrap_or(0);
        self.out.arguments(self.draft.arguments.get(emitted..).unwrap_or(""));
        self.emitted = Some(self.draft.arguments.len());
    }

    /// Ends a call that was emitted but is not complete. Returns `false` if no part of the call was emitted.
    fn cut_off(&mut self) -> bool {
        self.emit_known();
        if self.emitted.take().is_none() {
            return false;
        }
        self.raw.clear();
        self.visible = false;
        (self.state, self.reader) = (MachineState::Text, None);
        true
    }

    /// Handles characters after a call: its closing marks, each after optional white space. A missing mark is accepted.
    /// Anything else is text or the next call.
    fn step_closing(&mut self, c: char, from: usize) {
        let close = self.known.row.map_or(&[][..], |row| row.close);
        self.held.push(c);
        let marks = || (0..).zip(close).skip(from);
        if let Some((at, _)) = marks().find(|(_, mark)| **mark == self.held) {
            self.end_block();
            self.held.clear();
            self.space.clear();
            self.state = MachineState::Closing { from: usize::saturating_add(at, 1) };
            self.end_closing();
        } else if marks().any(|(_, mark)| mark.starts_with(self.held.as_str())) {
            // The mark is not complete yet.
        } else if is_space(c) && self.held.len() == 1 {
            self.held.clear();
            self.space.push(c);
        } else if !self.block.is_empty() && self.held == "{" {
            self.raw.push_str(&std::mem::take(&mut self.space));
            self.held.clear();
            self.draft = CallDraft::default();
            (self.emitted, self.is_held) = (None, Some(false));
            self.state = MachineState::Call;
            self.reader = self.known.row.map(|row| CallReader::next_object(&row.body, true));
            self.step_call(c);
        } else if self.in_list && self.held == "]" {
            self.held.clear();
            self.space.clear();
            self.in_list = false;
            self.end_closing();
        } else if self.in_list && self.held == "," {
            self.raw = std::mem::take(&mut self.space) + ",";
            self.held.clear();
            self.draft = CallDraft::default();
            self.is_held = None;
            self.state = MachineState::Call;
            let marked = self.known.row.is_some_and(|row| row.bare.is_empty());
            self.reader = self.known.row.map(|row| CallReader::next_object(&row.body, marked));
        } else {
            self.end_block();
            self.state = MachineState::Text;
            let held = std::mem::take(&mut self.space) + &std::mem::take(&mut self.held);
            held.chars().for_each(|c| self.step(c));
        }
    }

    /// Returns to text if no closing mark can follow.
    fn end_closing(&mut self) {
        let marks = self.known.row.map_or(0, |row| row.close.len());
        if !self.in_list && matches!(self.state, MachineState::Closing { from } if from >= marks) {
            self.space.clear();
            self.state = MachineState::Text;
        }
    }

    /// Emits the raw text unchanged, because it is not a call.
    fn give_back(&mut self) {
        self.block.clear();
        let raw = std::mem::take(&mut self.raw);
        self.out.text(&raw);
        self.visible = true;
        (self.state, self.reader) = (MachineState::Text, None);
        self.draft = CallDraft::default();
    }

    fn release_space(&mut self) {
        let space = std::mem::take(&mut self.space);
        self.out.text(&space);
    }
}
