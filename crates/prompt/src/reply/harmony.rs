//! Parses replies in OpenAI's harmony form (GPT-OSS): messages with a header that names a channel and, for calls, a
//! recipient. Source: the form's own guide (<https://github.com/openai/harmony>). Must not know events or ids of calls.

use std::sync::Arc;

use crate::marks::{CHANNEL, CONSTRAIN, HARMONY, MESSAGE, START};
use crate::offered::{CallFault, OfferedTools};

use super::piece::{CallDraft, ReplyPiece, ReplyPieces};
use super::span::is_space;
use super::step::MOST_HEAD_BYTES;

/// The state machine. Like `Machine`, it decides each character by the characters before it. The prompt ends after
/// `<|start|>assistant`, so an answer begins inside a header. An impossible header is text: nothing is lost, and
/// nothing fails.
#[derive(Debug)]
pub(super) struct HarmonyMachine {
    offered: Arc<OfferedTools>,
    state: HarmonyState,
    /// The matched beginning of a mark.
    held: String,
    /// The header being read, or the text of the call from its header on.
    raw: String,
    draft: CallDraft,
    emitted: Option<usize>,
    calls: u32,
    fault: Option<CallFault>,
    /// Whether a message of text has ended, so that the next one begins on a new line.
    apart: bool,
    out: ReplyPieces,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HarmonyState {
    /// Before a header or inside it.
    Header,
    Thought,
    Text,
    Call,
    /// Between two messages.
    Between,
}

impl HarmonyMachine {
    pub(super) fn new(offered: &Arc<OfferedTools>) -> Self {
        Self {
            offered: Arc::clone(offered),
            state: HarmonyState::Header,
            held: String::new(),
            raw: String::new(),
            draft: CallDraft::default(),
            emitted: None,
            calls: 0,
            fault: None,
            apart: false,
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
        self.state == HarmonyState::Thought
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<ReplyPiece> {
        text.chars().for_each(|c| self.step(c));
        self.emit_known();
        self.out.take()
    }

    pub(super) fn finish(&mut self, stopped: bool) -> Vec<ReplyPiece> {
        let held = std::mem::take(&mut self.held);
        // In a header or between messages, an incomplete mark is dropped. Elsewhere it is text.
        if !matches!(self.state, HarmonyState::Header | HarmonyState::Between) {
            held.chars().for_each(|c| self.plain(c));
        }
        match self.state {
            HarmonyState::Call => self.end_call(stopped, ""),
            // An unfinished header that does not begin like one is text.
            HarmonyState::Header if !self.raw.trim_start().starts_with(['<', ' ']) => self.give_back(),
            _ => {}
        }
        self.state = HarmonyState::Between;
        self.out.take()
    }

    fn step(&mut self, c: char) {
        self.held.push(c);
        if let Some(mark) = HARMONY.into_iter().find(|mark| *mark == self.held) {
            self.held.clear();
            self.mark(mark);
        } else if !HARMONY.into_iter().any(|mark| mark.starts_with(self.held.as_str())) {
            let held = std::mem::take(&mut self.held);
            let mut chars = held.chars();
            if let Some(first) = chars.next() {
                self.plain(first);
            }
            chars.for_each(|c| self.step(c));
        }
    }

    fn mark(&mut self, mark: &str) {
        match (self.state, mark) {
            (HarmonyState::Header, MESSAGE) => {
                self.raw.push_str(mark);
                self.read_header();
            }
            (HarmonyState::Header, START) if self.raw.is_empty() => self.raw.push_str(mark),
            (HarmonyState::Header, CHANNEL | CONSTRAIN) => self.raw.push_str(mark),
            (HarmonyState::Header, _) => {
                self.raw.push_str(mark);
                self.fault.get_or_insert(CallFault::Malformed);
                self.give_back();
                self.state = HarmonyState::Between;
            }
            (HarmonyState::Between, MESSAGE) => self.state = HarmonyState::Text,
            (HarmonyState::Between, START | CHANNEL) => self.begin_header(mark),
            // A repeated mark is ignored.
            (HarmonyState::Between, _) => {}
            (_, MESSAGE | CONSTRAIN) => mark.chars().for_each(|c| self.plain(c)),
            (state, _) => {
                match state {
                    HarmonyState::Call => self.end_call(true, mark),
                    HarmonyState::Text => self.apart = true,
                    _ => {}
                }
                self.state = HarmonyState::Between;
                // The previous message lacks its end mark.
                if matches!(mark, START | CHANNEL) {
                    self.begin_header(mark);
                }
            }
        }
    }

    fn begin_header(&mut self, mark: &str) {
        self.raw.clear();
        self.raw.push_str(mark);
        self.state = HarmonyState::Header;
    }

    /// Handles a character that belongs to no mark.
    fn plain(&mut self, c: char) {
        match self.state {
            HarmonyState::Thought => self.out.thought(c.encode_utf8(&mut [0; 4])),
            HarmonyState::Text => self.text(c),
            HarmonyState::Call => {
                self.raw.push(c);
                if !(self.draft.arguments.is_empty() && is_space(c)) {
                    self.draft.arguments.push(c);
                }
            }
            HarmonyState::Between if is_space(c) => {}
            HarmonyState::Between => {
                self.state = HarmonyState::Text;
                self.text(c);
            }
            // An answer without a header.
            HarmonyState::Header if self.raw.is_empty() && !is_space(c) => {
                self.state = HarmonyState::Text;
                self.text(c);
            }
            HarmonyState::Header => {
                self.raw.push(c);
                if self.raw.len() > MOST_HEAD_BYTES {
                    self.fault.get_or_insert(CallFault::Malformed);
                    self.give_back();
                }
            }
        }
    }

    fn text(&mut self, c: char) {
        if std::mem::take(&mut self.apart) {
            self.out.text("\n");
        }
        self.out.text(c.encode_utf8(&mut [0; 4]));
    }

    /// Reads `ROLE to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT <|constrain|>FORM<|message|>`.
    fn read_header(&mut self) {
        let header = self.raw.strip_suffix(MESSAGE).unwrap_or(&self.raw);
        let word = |text: &str| {
            let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
            text.get(..end).unwrap_or("").to_owned()
        };
        let channel = header.split_once(CHANNEL).map_or(String::new(), |(_, rest)| word(rest.trim_start()));
        let recipient = header.split_once("to=").map(|(_, rest)| word(rest));
        self.state = match recipient {
            Some(recipient) => {
                let name = recipient.strip_prefix("functions.").unwrap_or(&recipient);
                self.draft = CallDraft { name: Some(name.to_owned()), ..CallDraft::default() };
                self.emitted = None;
                HarmonyState::Call
            }
            None if channel == "analysis" => HarmonyState::Thought,
            None => HarmonyState::Text,
        };
        if self.state != HarmonyState::Call {
            self.raw.clear();
        }
    }

    /// Ends a call with `mark`, or at the end of the text.
    fn end_call(&mut self, whole: bool, mark: &str) {
        let trimmed = self.draft.arguments.trim_end().len();
        self.draft.arguments.truncate(trimmed);
        let name = self.draft.name.clone().unwrap_or_default();
        let judged = match self.draft.arguments.as_str() {
            "" => Err(CallFault::Unfinished),
            arguments => self.offered.judge(&name, arguments),
        };
        self.emit_known();
        if let Err(fault) = judged {
            let fault = if whole || fault != CallFault::NotJson { fault } else { CallFault::Unfinished };
            self.fault.get_or_insert(fault);
        }
        match judged {
            _ if self.emitted.take().is_some() => {}
            Ok(()) => {
                self.out.call(None, name);
                self.out.arguments(&self.draft.arguments);
                self.calls = self.calls.saturating_add(1);
            }
            Err(_) => {
                self.raw.push_str(mark);
                self.give_back();
            }
        }
        self.raw.clear();
        self.draft = CallDraft::default();
    }

    /// Emits the known part of a call that a grammar constrains.
    fn emit_known(&mut self) {
        let Some(name) = self.draft.name.as_ref().filter(|_| self.state == HarmonyState::Call) else {
            return;
        };
        // Trailing white space may come after the arguments.
        let known = self.draft.arguments.trim_end();
        if known.is_empty() || (self.emitted.is_none() && !self.offered.is_held(name)) {
            return;
        }
        if self.emitted.is_none() {
            self.out.call(None, name.clone());
            self.calls = self.calls.saturating_add(1);
        }
        self.out.arguments(known.get(self.emitted.unwrap_or(0)..).unwrap_or(""));
        self.emitted = Some(known.len());
    }

    fn give_back(&mut self) {
        let raw = std::mem::take(&mut self.raw);
        self.out.text(&raw);
        self.state = HarmonyState::Text;
    }
}
