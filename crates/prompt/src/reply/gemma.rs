//! Reads a call as Gemma writes it: `call:NAME{KEY:VALUE,…}`, with texts between special quotes. Must not know the
//! marks around calls.

use std::sync::Arc;

use crate::coerce;
use crate::json;
use crate::offered::OfferedTools;

use super::piece::CallDraft;
use super::span::is_space;
use super::step::{CallStep, MOST_HEAD_BYTES};

/// The maximum nesting depth that is read.
const MAX_DEPTH: u32 = 64;

/// The reader. It searches for the end of the arguments, which are then parsed as a whole.
#[derive(Debug)]
pub(super) struct GemmaCall {
    quote: &'static str,
    offered: Arc<OfferedTools>,
    head: String,
    /// The arguments as written, from the opening brace on.
    text: String,
    depth: usize,
    /// The quote that ends the current text, if inside one. For a JSON string it is `"`.
    within: Option<&'static str>,
    escaped: bool,
    /// The last character that was not white space.
    last: char,
}

impl GemmaCall {
    pub(super) fn new(quote: &'static str, offered: &Arc<OfferedTools>) -> Self {
        Self {
            quote,
            offered: Arc::clone(offered),
            head: String::new(),
            text: String::new(),
            depth: 0,
            within: None,
            escaped: false,
            last: '{',
        }
    }

    pub(super) fn step(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        if self.text.is_empty() {
            return self.step_head(c, draft);
        }
        self.text.push(c);
        match self.within {
            Some("\"") => {
                if c == '"' && !self.escaped {
                    self.within = None;
                }
                self.escaped = !self.escaped && c == '\\';
            }
            Some(quote) if self.text.ends_with(quote) => self.within = None,
            Some(_) => {}
            None if self.text.ends_with(self.quote) => self.within = Some(self.quote),
            None if c == '"' && matches!(self.last, '{' | '[' | ',' | ':') => {
                (self.within, self.escaped) = (Some("\""), false);
            }
            None => match c {
                '{' | '[' => self.depth = self.depth.saturating_add(1),
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            },
        }
        if !is_space(c) {
            self.last = c;
        }
        if self.depth > 0 || self.within.is_some() {
            return CallStep::More;
        }
        let name = draft.name.as_deref().unwrap_or("");
        let mut reader = GemmaArguments { rest: &self.text, quote: self.quote };
        let types = |key: &str| self.offered.types(name, key);
        let mut arguments = String::new();
        if reader.members(&mut arguments, &types, 0).is_none() || !reader.rest.trim().is_empty() {
            return CallStep::Off;
        }
        draft.arguments = arguments;
        draft.whole = true;
        CallStep::Whole
    }

    fn step_head(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        if c != '{' {
            self.head.push(c);
            return if self.head.len() > MOST_HEAD_BYTES { CallStep::Off } else { CallStep::More };
        }
        let head = self.head.trim();
        let name = head.strip_prefix("call:").unwrap_or(head).trim();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return CallStep::Off;
        }
        draft.name = Some(name.to_owned());
        self.text.push(c);
        self.depth = 1;
        CallStep::More
    }
}

struct GemmaArguments<'t> {
    rest: &'t str,
    quote: &'static str,
}

impl<'t> GemmaArguments<'t> {
    fn skip(&mut self, c: char) -> bool {
        self.rest = self.rest.trim_start();
        let after = self.rest.strip_prefix(c);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Reads a text between quotes of either kind. Returns `Some(None)` if no text begins here.
    fn text(&mut self) -> Option<Option<String>> {
        self.rest = self.rest.trim_start();
        if let Some(rest) = self.rest.strip_prefix(self.quote) {
            let (text, rest) = rest.split_once(self.quote)?;
            self.rest = rest;
            return Some(Some(json::quoted(text)));
        }
        if !self.rest.starts_with('"') {
            return Some(None);
        }
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = values.next()?.ok()?;
        self.rest = self.rest.get(values.byte_offset()..)?;
        Some(Some(json::quoted(&text)))
    }

    fn word(&mut self, ends: &[char]) -> Option<&'t str> {
        let end = self.rest.find(ends)?;
        let (word, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        Some(word.trim())
    }

    fn members(
        &mut self,
        out: &mut String,
        types: &dyn Fn(&str) -> Option<Vec<&'static str>>,
        depth: u32,
    ) -> Option<()> {
        let depth = depth.checked_add(1).filter(|depth| *depth < MAX_DEPTH)?;
        self.skip('{').then_some(())?;
        out.push('{');
        while !self.skip('}') {
            if !out.ends_with('{') {
                out.push_str(", ");
            }
            let key = match self.text()? {
                Some(key) => key,
                None => json::quoted(self.word(&[':'])?),
            };
            self.skip(':').then_some(())?;
            out.push_str(&key);
            out.push_str(": ");
            let name: String = serde_json::from_str(&key).ok()?;
            self.value(out, types(&name).as_deref(), depth)?;
            if !self.skip(',') && !self.rest.starts_with('}') {
                return None;
            }
        }
        out.push('}');
        Some(())
    }

    fn value(&mut self, out: &mut String, types: Option<&[&'static str]>, depth: u32) -> Option<()> {
        if let Some(text) = self.text()? {
            out.push_str(&text);
            return Some(());
        }
        if self.rest.starts_with('{') {
            return self.members(out, &|_| None, depth);
        }
        if !self.skip('[') {
            out.push_str(&coerce::value(self.word(&[',', '}', ']'])?, types));
            return Some(());
        }
        let depth = depth.checked_add(1).filter(|depth| *depth < MAX_DEPTH)?;
        out.push('[');
        while !self.skip(']') {
            if !out.ends_with('[') {
                out.push_str(", ");
            }
            self.value(out, None, depth)?;
            if !self.skip(',') && !self.rest.starts_with(']') {
                return None;
            }
        }
        out.push(']');
        Some(())
    }
}
