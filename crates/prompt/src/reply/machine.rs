//! The machine that reads replies: text, a thought, and calls between marks. Each family is a row of a table to it; what stands
//! between the marks of a call is read by a reader of its own (`body`). Must not know events, or ids of calls.

use std::sync::Arc;

use crate::family::{Body, Row};
use crate::offered::{CallFault, OfferedTools};
use crate::thought::Thought;

use super::body::Reader;
use super::form::ReplyForm;
use super::piece::{Draft, Piece, Pieces};
use super::span::is_space;
use super::step::Step;

/// The machine. Each character is decided by those before it alone, which is what makes the outcome independent of
/// how the text was cut.
///
/// What belongs to the syntax of calls and is not text: the marks, white space between calls and at the end after
/// one, all white space before a call that no text precedes, and otherwise one line break before it (templates write
/// these back by themselves). Line breaks at the ends of a thought, and behind it, are the template's too. Everything else
/// comes out as text, and so does, word for word, what turns out to be no call. A call comes out whole once its name and its
/// arguments have been read and fit a tool that was offered; where a grammar holds it, its arguments come out as they come. A
/// call that nobody could carry out is text like any other.
#[derive(Debug)]
pub(super) struct Machine {
    /// How calls are written; `None`: none are looked for.
    row: Option<&'static Row>,
    thought: Option<Thought>,
    /// Marks that are left out where they mean nothing.
    hidden: Arc<[String]>,
    offered: Arc<OfferedTools>,
    state: State,
    /// Calls made.
    calls: u32,
    /// What was wrong with the first that could not be carried out.
    fault: Option<CallFault>,
    /// Text other than white space has come since the beginning or the last call.
    visible: bool,
    /// Line breaks that come now belong to the marks of a thought.
    skips_lines: bool,
    /// What has matched of a mark.
    held: String,
    /// White space held back: it may belong to a call that follows.
    space: String,
    /// Text of the current call so far, to be given back if it is none.
    raw: String,
    draft: Draft,
    /// Whole calls of one block, until its closing mark: of a block all objects become calls, or none does.
    block: Vec<Draft>,
    /// So many bytes of the draft's arguments have been told; `None`: it has not.
    told: Option<usize>,
    /// Whether a grammar holds the call, once its name is known.
    is_held: Option<bool>,
    reader: Option<Reader>,
    /// The call is one of a list of objects.
    in_list: bool,
    /// Pieces of this push.
    out: Pieces,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Thought,
    /// Behind the mark of a section, before the first call's.
    Section,
    Call,
    /// The call is made; its closing marks may follow, those from this number on.
    Closing {
        from: usize,
    },
}

/// What a mark opens or closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Section,
    Call,
    /// Closes what was opened around a call.
    Closing,
    Think,
    Thought,
    /// Means nothing here, and is nothing for people.
    Hidden,
}

impl Machine {
    pub(super) fn new(form: &ReplyForm) -> Self {
        let thought = form.style.thought;
        let thinks = form.thinking && thought.is_some();
        Self {
            row: form.style.family.row().filter(|_| !form.offered.is_empty()),
            thought,
            hidden: Arc::clone(&form.hidden),
            offered: Arc::clone(&form.offered),
            state: if thinks { State::Thought } else { State::Text },
            calls: 0,
            fault: None,
            visible: false,
            skips_lines: thinks,
            held: String::new(),
            space: String::new(),
            raw: String::new(),
            draft: Draft::default(),
            block: Vec::new(),
            told: None,
            is_held: None,
            reader: None,
            in_list: false,
            out: Pieces::default(),
        }
    }

    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    pub(super) fn fault(&self) -> Option<CallFault> {
        self.fault
    }

    pub(super) fn is_thinking(&self) -> bool {
        self.state == State::Thought
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = self.plain_until(rest);
            let (now, later) = rest.split_at(if plain > 0 { plain } else { c.len_utf8() });
            match (plain > 0, self.state) {
                (true, State::Thought) => self.out.thought(now),
                (true, _) => self.out.text(now),
                (false, _) => self.step(c),
            }
            rest = later;
        }
        self.tell();
        self.out.take()
    }

    /// How many bytes of `text` are the text's or the thought's own for sure, without a look at each character.
    fn plain_until(&self, text: &str) -> usize {
        let free = match self.state {
            State::Text => self.visible,
            State::Thought => !self.skips_lines,
            _ => false,
        };
        if !free || !self.held.is_empty() || !self.space.is_empty() {
            return 0;
        }
        let first = |c: char| self.marks().any(|(mark, _)| mark.starts_with(c));
        let lines = self.holds_lines();
        text.find(|c| (lines && c == '\n') || first(c)).unwrap_or(text.len())
    }

    /// Whether a line break may belong to what follows it.
    fn holds_lines(&self) -> bool {
        self.row.is_some() || self.state == State::Thought
    }

    /// The text has ended; `stopped`: because the model had nothing more to say.
    pub(super) fn finish(&mut self, stopped: bool) -> Vec<Piece> {
        if self.state == State::Call
            && stopped
            && let Some(reader) = &mut self.reader
        {
            reader.stop(&mut self.draft);
        }
        if self.state == State::Call && self.draft.whole {
            let tail = self.reader.as_mut().map(Reader::tail).unwrap_or_default();
            self.made();
            tail.chars().for_each(|c| self.step(c));
        }
        match self.state {
            State::Text | State::Thought => {
                let held = std::mem::take(&mut self.held);
                held.chars().for_each(|c| self.plain(c));
                let syntax = match self.state {
                    State::Thought => true,
                    _ => !self.visible && self.calls > 0 && self.space.chars().all(is_space),
                };
                if !syntax {
                    self.release_space();
                }
            }
            State::Section | State::Call => {
                let opened = self.row.is_some_and(|row| row.bare.is_empty()) || self.draft.name.is_some();
                if opened {
                    self.fault.get_or_insert(CallFault::Unfinished);
                }
                // Behind a mark a grammar lets nothing come but a call: its beginning is nothing for people.
                let is_part_of_call = opened && self.offered.are_all_held();
                if !self.cut_off() && !is_part_of_call {
                    let held = std::mem::take(&mut self.held);
                    self.raw.push_str(&held);
                    self.give_back();
                }
            }
            // Only the syntax of a call that was made is held back.
            State::Closing { .. } => self.end_block(),
        }
        (self.state, self.reader) = (State::Text, None);
        self.held.clear();
        self.space.clear();
        self.out.take()
    }

    fn step(&mut self, c: char) {
        match self.state {
            State::Text | State::Thought | State::Section => self.step_marked(c),
            State::Call => self.step_call(c),
            State::Closing { from } => self.step_closing(c, from),
        }
    }

    /// The marks that mean something here.
    fn marks(&self) -> impl Iterator<Item = (&str, Mark)> {
        let (row, state) = (self.row, self.state);
        let begins = !self.visible && self.calls == 0;
        let after_call = !self.visible && self.calls > 0;
        let thinking = state == State::Thought;
        let calls = row.filter(|row| !thinking || row.ends_thought);
        let section = calls.and_then(|row| row.section).filter(|_| state != State::Section);
        let open = calls.into_iter().flat_map(|row| row.open).map(|mark| (*mark, Mark::Call));
        let closing = row.filter(|_| after_call && state == State::Text);
        let ends = closing.into_iter().flat_map(|row| row.close).copied();
        let ends = ends.chain(closing.and_then(|row| row.section).map(|(_, end)| end));
        let think = self.thought.filter(|_| begins && state == State::Text).map(|thought| thought.open);
        let thought = self.thought.filter(|_| thinking).map(|thought| thought.close);
        section
            .map(|(mark, _)| (mark, Mark::Section))
            .into_iter()
            .chain(open)
            .chain(ends.map(|mark| (mark, Mark::Closing)))
            .chain(think.map(|mark| (mark, Mark::Think)))
            .chain(thought.map(|mark| (mark, Mark::Thought)))
            .chain(self.hidden.iter().map(|mark| (mark.as_str(), Mark::Hidden)))
    }

    /// One character where a mark may stand.
    fn step_marked(&mut self, c: char) {
        self.held.push(c);
        let found = self.marks().find(|(mark, _)| *mark == self.held).map(|(_, what)| what);
        if let Some(what) = found {
            let mark = std::mem::take(&mut self.held);
            self.enter(&mark, what);
        } else if !self.marks().any(|(mark, _)| mark.starts_with(self.held.as_str())) {
            let held = std::mem::take(&mut self.held);
            let mut chars = held.chars();
            // What begins later may still be a mark.
            if let Some(first) = chars.next() {
                self.plain(first);
            }
            chars.for_each(|c| self.step(c));
        }
    }

    fn enter(&mut self, mark: &str, what: Mark) {
        if what == Mark::Hidden {
            return;
        }
        if self.state == State::Thought {
            // Line breaks before the end of a thought belong to its mark.
            self.space.clear();
            self.visible = false;
        }
        match what {
            Mark::Section => {
                self.raw = std::mem::take(&mut self.space) + mark;
                self.state = State::Section;
            }
            Mark::Call => {
                if self.state != State::Section {
                    self.raw = std::mem::take(&mut self.space);
                }
                self.raw.push_str(mark);
                self.begin();
            }
            Mark::Hidden => {}
            Mark::Closing => self.space.clear(),
            Mark::Think => {
                self.space.clear();
                self.state = State::Thought;
                self.skips_lines = true;
            }
            Mark::Thought => {
                self.state = State::Text;
                self.skips_lines = true;
            }
        }
    }

    /// A character that belongs to no mark.
    fn plain(&mut self, c: char) {
        match self.state {
            State::Section if is_space(c) => self.raw.push(c),
            State::Section => {
                self.fault.get_or_insert(CallFault::Malformed);
                self.give_back();
                self.step(c);
            }
            _ if self.skips_lines && c == '\n' => {}
            State::Thought => {
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
        let line_begins = !self.visible || self.space.ends_with('\n');
        if line_begins && self.row.is_some_and(|row| row.bare.contains(&c)) {
            self.raw = std::mem::take(&mut self.space);
            self.begin();
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

    /// Whether `c` stands between two calls that nothing opens.
    fn is_separator(&self, c: char) -> bool {
        let between = self.row.filter(|row| !row.bare.is_empty()).map_or("", |row| row.written.between);
        self.calls > 0 && !self.visible && between.contains(c)
    }

    /// A call begins.
    fn begin(&mut self) {
        self.in_list = false;
        self.draft = Draft::default();
        (self.told, self.is_held) = (None, None);
        self.state = State::Call;
        self.reader = self.row.map(|row| {
            let end = match row.body {
                Body::Tagged(_) => row.section.map(|(_, end)| end),
                _ => row.close.last().copied(),
            };
            Reader::new(&row.body, end, &self.offered)
        });
    }

    fn step_call(&mut self, c: char) {
        let Some(reader) = &mut self.reader else { return };
        self.raw.push(c);
        let step = reader.step(c, &mut self.draft);
        if self.is_held.is_none() && self.draft.name.is_some() && !self.draft.arguments.is_empty() {
            // From here on: what the model says of the call later has no part in how it begins.
            self.tell();
        }
        match step {
            Step::More => {}
            Step::Whole => self.made(),
            Step::Before(tail) => {
                self.raw.pop();
                self.raw.truncate(self.raw.len().saturating_sub(tail.len()));
                self.made();
                if matches!(self.state, State::Closing { .. }) {
                    tail.chars().for_each(|c| self.step(c));
                }
                self.step(c);
            }
            Step::All(drafts) => {
                let judged = drafts.iter().map(|draft| self.judge(draft)).find_map(Result::err);
                if let Some(fault) = judged {
                    self.fault.get_or_insert(fault);
                    self.give_back();
                    return;
                }
                for draft in drafts {
                    self.draft = draft;
                    self.is_held = None;
                    self.state = State::Call;
                    self.made();
                }
            }
            Step::Off => {
                self.raw.pop();
                let opened = self.row.is_some_and(|row| row.bare.is_empty()) || self.draft.name.is_some();
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

    fn judge(&self, draft: &Draft) -> Result<(), CallFault> {
        self.offered.judge(draft.name.as_deref().unwrap_or(""), &draft.arguments)
    }

    /// Name and arguments are known: a call, or text.
    fn made(&mut self) {
        self.in_list |= self.reader.as_ref().is_some_and(Reader::in_list);
        self.tell();
        match self.judge(&self.draft) {
            // What has been told cannot be taken back.
            Err(fault) => {
                self.fault.get_or_insert(fault);
                if self.told.is_none() {
                    self.give_back();
                    return;
                }
            }
            Ok(()) if self.told.is_none() => {
                self.block.push(std::mem::take(&mut self.draft));
                if self.has_blocks() {
                    // The text is kept: what follows may make it no call.
                    self.visible = false;
                    self.reader = None;
                    self.state = State::Closing { from: 0 };
                    return;
                }
            }
            Ok(()) => {}
        }
        self.end_block();
        self.raw.clear();
        self.space.clear();
        self.visible = false;
        (self.told, self.reader) = (None, None);
        self.state = State::Closing { from: 0 };
        self.draft = Draft::default();
        self.end_closing();
    }

    /// Whether several calls may stand between one pair of marks, none of which has come out yet.
    fn has_blocks(&self) -> bool {
        let one_by_one = |row: &Row| matches!(row.body, Body::Object { array: false, .. });
        self.row.is_some_and(|row| one_by_one(row) && row.bare.is_empty() && !row.close.is_empty())
    }

    /// The calls of a block come out.
    fn end_block(&mut self) {
        for mut draft in std::mem::take(&mut self.block) {
            self.out.call(draft.id.take(), draft.name.take().unwrap_or_default());
            self.out.arguments(&draft.arguments);
            self.calls = self.calls.saturating_add(1);
            self.raw.clear();
        }
    }

    /// Tells what is known of a call that a grammar holds.
    fn tell(&mut self) {
        let Some(name) = self.draft.name.as_ref().filter(|_| self.state == State::Call) else { return };
        if self.draft.arguments.is_empty() || !*self.is_held.get_or_insert_with(|| self.offered.is_held(name))
        {
            return;
        }
        if self.told.is_none() {
            self.out.call(self.draft.id.take(), name.clone());
            self.calls = self.calls.saturating_add(1);
        }
        let told = self.told.unwrap_or(0);
        self.out.arguments(self.draft.arguments.get(told..).unwrap_or(""));
        self.told = Some(self.draft.arguments.len());
    }

    /// The end of a call that is told already and goes no further; `false` where it is not.
    fn cut_off(&mut self) -> bool {
        self.tell();
        if self.told.take().is_none() {
            return false;
        }
        self.raw.clear();
        self.visible = false;
        (self.state, self.reader) = (State::Text, None);
        true
    }

    /// After a call: its closing marks, white space before each. A missing one is forgiven; anything else is text again, or the
    /// next call.
    fn step_closing(&mut self, c: char, from: usize) {
        let close = self.row.map_or(&[][..], |row| row.close);
        self.held.push(c);
        let marks = || (0..).zip(close).skip(from);
        if let Some((at, _)) = marks().find(|(_, mark)| **mark == self.held) {
            self.end_block();
            self.held.clear();
            self.space.clear();
            self.state = State::Closing { from: usize::saturating_add(at, 1) };
            self.end_closing();
        } else if marks().any(|(_, mark)| mark.starts_with(self.held.as_str())) {
            // More of it to come.
        } else if is_space(c) && self.held.len() == 1 {
            self.held.clear();
            self.space.push(c);
        } else if !self.block.is_empty() && self.held == "{" {
            self.raw.push_str(&std::mem::take(&mut self.space));
            self.held.clear();
            self.draft = Draft::default();
            (self.told, self.is_held) = (None, Some(false));
            self.state = State::Call;
            self.reader = Some(Reader::next_object(true));
            self.step_call(c);
        } else if self.in_list && self.held == "]" {
            self.held.clear();
            self.space.clear();
            self.in_list = false;
            self.end_closing();
        } else if self.in_list && self.held == "," {
            self.raw = std::mem::take(&mut self.space) + ",";
            self.held.clear();
            self.draft = Draft::default();
            self.is_held = None;
            self.state = State::Call;
            let marked = self.row.is_some_and(|row| row.bare.is_empty());
            self.reader = Some(Reader::next_object(marked));
        } else {
            self.end_block();
            self.state = State::Text;
            let held = std::mem::take(&mut self.space) + &std::mem::take(&mut self.held);
            held.chars().for_each(|c| self.step(c));
        }
    }

    /// Where no closing mark is left to come, what follows is text.
    fn end_closing(&mut self) {
        let marks = self.row.map_or(0, |row| row.close.len());
        if !self.in_list && matches!(self.state, State::Closing { from } if from >= marks) {
            self.space.clear();
            self.state = State::Text;
        }
    }

    /// What was read is no call: it comes out as it was written.
    fn give_back(&mut self) {
        self.block.clear();
        let raw = std::mem::take(&mut self.raw);
        self.out.text(&raw);
        self.visible = true;
        (self.state, self.reader) = (State::Text, None);
        self.draft = Draft::default();
    }

    fn release_space(&mut self) {
        let space = std::mem::take(&mut self.space);
        self.out.text(&space);
    }
}
