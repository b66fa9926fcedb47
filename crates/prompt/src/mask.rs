//! Marks the characters of messages that could open a control token, so that they are known again in the output.
//! Must not know templates' meaning, or tokens' ids.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

use crate::error::TemplateError;
use crate::rendered::Rendered;
use crate::source::Source;

/// Where masks are taken from: private use, plane 16, near its end.
const FIRST_MASK: u32 = 0x10_f000;
/// Where substitutes are taken from for a message's own characters that happen to be masks.
const POOL: Range<u32> = 0xf_0000..0x10_fffe;
/// Every character from `POOL` on is written in UTF-8 with a first byte of at least this.
const POOL_LEAD: u8 = 0xf3;

/// Keys by which templates look things up in messages, tools and JSON schemas. They stay readable, as a caller can
/// only repeat them, not choose them; but not where one of them is itself a word that the template could complete.
const KEYS: [&str; 40] = [
    "$defs",
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "arguments",
    "const",
    "content",
    "default",
    "description",
    "enum",
    "format",
    "function",
    "id",
    "items",
    "maximum",
    "maxItems",
    "minimum",
    "minItems",
    "name",
    "nullable",
    "oneOf",
    "parameters",
    "pattern",
    "properties",
    "reasoning",
    "reasoning_content",
    "required",
    "return",
    "role",
    "strict",
    "text",
    "thinking",
    "title",
    "tool_call_id",
    "tool_calls",
    "tool_plan",
    "tools",
    "type",
    "value",
];

/// Which characters of messages are masked, for one template.
#[derive(Debug, Default)]
pub(crate) struct MaskTable {
    /// Characters that control tokens begin with (or that continue what the template begins): always masked.
    always: Vec<char>,
    /// Words that continue what the template begins: their first character is masked.
    words: Vec<String>,
    /// Masked characters, ascending; the mask of `chars[i]` is the character `first + i`.
    chars: Vec<char>,
    first: u32,
    /// `lead[b]`: a masked character, or one from the pool, may begin with byte `b`.
    lead: Vec<bool>,
    /// Finds what `always` and `words` have, in one pass over a text.
    finder: Option<AhoCorasick>,
}

impl MaskTable {
    pub(crate) fn new<'a>(markup: impl Iterator<Item = &'a str>, source: &Source<'_>) -> Self {
        let (mut always, mut words) = (BTreeSet::new(), BTreeSet::new());
        for token in markup {
            // Templates may change the case of what they are given.
            always.extend(
                token
                    .chars()
                    .next()
                    .into_iter()
                    .flat_map(|c| c.to_lowercase().chain(c.to_uppercase()).chain([c])),
            );
            for rest in source.continuations(token) {
                let word: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if word.is_empty() {
                    always.extend(rest.chars().next());
                } else {
                    words.insert(word);
                }
            }
        }
        let mut chars: BTreeSet<char> = always.clone();
        chars.extend(words.iter().filter_map(|word| word.chars().next()));
        // Two more for the marks of an end and of a beginning.
        let count = u32::try_from(chars.len()).unwrap_or(u32::MAX).saturating_add(2);
        let taken: BTreeSet<u32> =
            source.text().chars().map(u32::from).filter(|c| *c >= POOL.start).collect();
        // The block of masks must not meet the template's own text; blocks go down from the end.
        let mut first = FIRST_MASK;
        while taken.range(first..first.saturating_add(count)).next().is_some() && first > POOL.start + count {
            first -= count;
        }
        let mut lead = vec![false; 256];
        for c in &chars {
            let mut buffer = [0; 4];
            c.encode_utf8(&mut buffer);
            if let Some(slot) = lead.get_mut(usize::from(buffer[0])) {
                *slot = true;
            }
        }
        lead.iter_mut().skip(usize::from(POOL_LEAD)).for_each(|slot| *slot = true);
        let sought = always.iter().map(|c| c.to_string()).chain(words.iter().cloned());
        // Without it, texts are looked through by hand.
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(sought).ok();
        Self {
            always: always.into_iter().collect(),
            words: words.into_iter().collect(),
            chars: chars.into_iter().collect(),
            first,
            lead,
            finder,
        }
    }

    /// The mask of `c`, if it has one.
    pub(crate) fn mask(&self, c: char) -> Option<char> {
        let at = u32::try_from(self.chars.binary_search(&c).ok()?).ok()?;
        char::from_u32(self.first.checked_add(at)?)
    }

    /// The character that `c` masks, if it is a mask.
    pub(crate) fn unmask(&self, c: char) -> Option<char> {
        let at = u32::from(c).checked_sub(self.first)?;
        self.chars.get(usize::try_from(at).ok()?).copied()
    }

    /// `c` without its mask.
    pub(crate) fn fold_char(&self, c: char) -> char {
        self.unmask(c).unwrap_or(c)
    }

    /// `text` without masks.
    pub(crate) fn fold(&self, text: &str) -> String {
        text.chars().map(|c| self.fold_char(c)).collect()
    }

    /// `c` as it stands in messages: for literals of the template that are compared with them.
    pub(crate) fn in_messages(&self, c: char) -> char {
        if self.always.binary_search(&c).is_ok() { self.mask(c).unwrap_or(c) } else { c }
    }

    /// The character that marks where a message's text ends.
    pub(crate) fn end(&self) -> char {
        self.mark(0)
    }

    /// The character that marks where a message's text begins.
    pub(crate) fn beginning(&self) -> char {
        self.mark(1)
    }

    fn mark(&self, which: u32) -> char {
        let count = u32::try_from(self.chars.len()).unwrap_or(0);
        char::from_u32(self.first.saturating_add(count).saturating_add(which)).unwrap_or(char::MAX)
    }

    fn is_ours(&self, c: char) -> bool {
        self.unmask(c).is_some() || c == self.end() || c == self.beginning()
    }
}

/// Whether a character of `text` may be a mask, or stand for one: without a branch for each byte.
pub(crate) fn may_have_masks(text: &str) -> bool {
    text.bytes().fold(0, u8::max) >= POOL_LEAD
}

/// A text that was rendered between marks.
pub(crate) struct Marked<T> {
    /// What stands before it, from the text before on.
    pub(crate) before: T,
    pub(crate) tag: T,
    pub(crate) text: T,
}

/// Masks the strings of one request and unmasks what was rendered from them.
#[derive(Debug)]
pub(crate) struct Masker<'t> {
    table: &'t MaskTable,
    /// A message's own characters that are masks here, and what stands for them meanwhile.
    substitutes: BTreeMap<char, char>,
    originals: BTreeMap<char, char>,
}

impl<'t> Masker<'t> {
    /// Looks over all the request's strings, for the characters that must not be used.
    pub(crate) fn new<'s>(
        table: &'t MaskTable,
        strings: impl IntoIterator<Item = &'s str>,
    ) -> Result<Self, TemplateError> {
        let mut used = BTreeSet::new();
        for text in strings {
            if may_have_masks(text) {
                used.extend(text.chars().filter(|c| u32::from(*c) >= POOL.start));
            }
        }
        let mut masker = Self { table, substitutes: BTreeMap::new(), originals: BTreeMap::new() };
        if used.iter().any(|c| table.is_ours(*c)) {
            let mut free =
                POOL.filter_map(char::from_u32).filter(|c| !used.contains(c) && !table.is_ours(*c));
            for own in used.iter().filter(|c| table.is_ours(**c)) {
                let substitute = free.next().ok_or(TemplateError::PrivateUseExhausted)?;
                masker.substitutes.insert(*own, substitute);
                masker.originals.insert(substitute, *own);
            }
        }
        Ok(masker)
    }

    /// `text` as the template is given it.
    pub(crate) fn mask<'s>(&self, text: &'s str) -> Cow<'s, str> {
        let Some(mut next) = self.next(text, 0) else { return Cow::Borrowed(text) };
        let mut masked = String::with_capacity(text.len().saturating_add(16));
        let mut copied = 0;
        loop {
            let (at, own, mask) = next;
            masked.push_str(text.get(copied..at).unwrap_or_default());
            masked.push(mask);
            copied = at + own.len_utf8();
            let Some(further) = self.next(text, copied) else { break };
            next = further;
        }
        masked.push_str(text.get(copied..).unwrap_or_default());
        Cow::Owned(masked)
    }

    /// The next character of `text` from `from` on that something else stands for: where it is, and that.
    fn next(&self, text: &str, from: usize) -> Option<(usize, char, char)> {
        match &self.table.finder {
            Some(finder) if self.substitutes.is_empty() => self.found(finder, text, from),
            _ => self.looked_for(text, from),
        }
    }

    /// [`Self::next`], where a message has no character that is a mask: nearly always.
    fn found(&self, finder: &AhoCorasick, text: &str, mut from: usize) -> Option<(usize, char, char)> {
        loop {
            let at = if from == 0 && self.begins_word(text, 0) {
                0
            } else {
                finder.find(Input::new(text).range(from..))?.start()
            };
            let own = text.get(at..)?.chars().next()?;
            if let Some(mask) = self.table.mask(own) {
                return Some((at, own, mask));
            }
            from = at + own.len_utf8();
        }
    }

    /// [`Self::next`], a character at a time.
    fn looked_for(&self, text: &str, from: usize) -> Option<(usize, char, char)> {
        let table = self.table;
        // Only what begins with such a byte can be masked; no character goes on with one.
        let may_begin = |byte: &u8| table.lead.get(usize::from(*byte)).copied().unwrap_or(true);
        let mut behind = from;
        loop {
            let at = behind + text.as_bytes().get(behind..)?.iter().position(may_begin)?;
            let own = text.get(at..)?.chars().next()?;
            let mask = if table.always.binary_search(&own).is_ok() || self.begins_word(text, at) {
                table.mask(own)
            } else {
                self.substitutes.get(&own).copied()
            };
            if let Some(mask) = mask {
                return Some((at, own, mask));
            }
            behind = at + own.len_utf8();
        }
    }

    /// `key`, of an object, as the template is given it.
    pub(crate) fn mask_key<'s>(&self, key: &'s str) -> Cow<'s, str> {
        let known = KEYS.contains(&key) && !self.table.words.iter().any(|word| word == key);
        if known { Cow::Borrowed(key) } else { self.mask(key) }
    }

    /// Whether a word that the template could complete stands at `at`, or the whole text is the beginning of one.
    fn begins_word(&self, text: &str, at: usize) -> bool {
        let rest = text.get(at..).unwrap_or("");
        self.table
            .words
            .iter()
            .any(|word| rest.starts_with(word.as_str()) || (at == 0 && word.starts_with(text)))
    }

    /// `text`, the last of a prompt, with a mark at its end.
    pub(crate) fn mask_with_end(&self, text: &str) -> String {
        // The space after the mark shows whether the template trims.
        let mut masked = self.mask(text).into_owned();
        masked.push(self.table.end());
        masked.push(' ');
        masked
    }

    /// `text` behind its tag, between marks: one before the tag, one before the text and one of its end.
    pub(crate) fn mask_between_marks(&self, tag: &str, text: &str) -> String {
        let beginning = self.table.beginning();
        format!("{beginning}{tag}{beginning}{}{}", self.mask(text), self.table.end())
    }

    /// What was rendered from texts between marks, in its order; and what stands behind the last of them. `None` where the
    /// template took marks apart.
    pub(crate) fn between_marks(&self, rendered: &str) -> Option<(Vec<Marked<String>>, String)> {
        let put_back = |piece: &str| self.unmask(piece.to_owned()).into_text();
        let (found, rest) = self.masked_between_marks(rendered)?;
        let found = found.into_iter().map(|marked| Marked {
            before: put_back(marked.before),
            tag: marked.tag.to_owned(),
            text: put_back(marked.text),
        });
        Some((found.collect(), put_back(rest)))
    }

    /// As [`Self::between_marks`], all masks in place.
    pub(crate) fn masked_between_marks<'r>(
        &self,
        rendered: &'r str,
    ) -> Option<(Vec<Marked<&'r str>>, &'r str)> {
        let mut pieces = rendered.split(self.table.beginning());
        let mut before = pieces.next()?;
        let mut found = Vec::new();
        while let Some(tag) = pieces.next() {
            let (text, behind) = pieces.next()?.split_once(self.table.end())?;
            found.push(Marked { before: std::mem::replace(&mut before, behind), tag, text });
        }
        Some((found, before))
    }

    /// The rendered text up to the mark of an end, if there is one. Where the template trimmed what stood after the
    /// mark, it would have trimmed what stands before it.
    pub(crate) fn cut_at_end(&self, mut rendered: String) -> Option<String> {
        let end = self.table.end();
        let at = rendered.rfind(end)?;
        let spaced = rendered.get(at..)?.strip_prefix(end)?.starts_with(' ');
        rendered.truncate(at);
        if !spaced {
            rendered.truncate(rendered.trim_end().len());
        }
        Some(rendered.replace(end, ""))
    }

    /// The rendered text, with every character put back and the masked ones noted as literal.
    ///
    /// What stands between two literal pieces joins them unless a control token could begin in it: no such token can lie
    /// there, so nothing is lost, and a message of nothing but openings (`<|<|<|…`) is one piece instead of millions.
    pub(crate) fn unmask(&self, rendered: String) -> Rendered {
        if !may_have_masks(&rendered) {
            return Rendered::new(rendered, Vec::new());
        }
        let mut text = String::with_capacity(rendered.len());
        let mut literal: Vec<Range<usize>> = Vec::new();
        let mut joins = false;
        let mut rest = rendered.as_str();
        while let Some(at) = rest.bytes().position(|byte| byte >= POOL_LEAD) {
            let (run, marked) = rest.split_at_checked(at).unwrap_or((rest, ""));
            let mut chars = marked.chars();
            let Some(c) = chars.next() else { break };
            joins = joins && !run.contains(self.table.always.as_slice());
            text.push_str(run);
            rest = chars.as_str();
            let Some(own) = self.table.unmask(c).or_else(|| self.originals.get(&c).copied()) else {
                joins &= self.table.always.binary_search(&c).is_err();
                text.push(c);
                continue;
            };
            let start = text.len();
            text.push(own);
            match literal.last_mut() {
                Some(last) if joins => last.end = text.len(),
                _ => literal.push(start..text.len()),
            }
            joins = true;
        }
        text.push_str(rest);
        Rendered::new(text, literal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_a_token_is_masked_wherever_it_stands_and_comes_back() {
        let mut lead = vec![false; 256];
        for byte in [b'<', b'e'].map(usize::from).into_iter().chain(usize::from(POOL_LEAD)..256) {
            lead[byte] = true;
        }
        let (always, words, chars) = (vec!['<'], vec!["end".to_owned()], vec!['<', 'e']);
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(["<", "end"]).ok();
        let table = MaskTable { always, words, chars, first: FIRST_MASK, lead, finder };
        let own = table.mask('<').unwrap();
        let pieces = ["<", "<|", "end", "eel", "plain words, long ", "été", "\u{1f600}", &own.to_string()]
            .map(str::to_owned);
        // Every row of four pieces, and the same far behind a long text.
        for row in 0..pieces.len().pow(4) {
            let at = |digit: u32| pieces[row / pieces.len().pow(digit) % pieces.len()].as_str();
            let short = [0, 1, 2, 3].map(at).concat();
            for text in [short.clone(), "x".repeat(300) + &short] {
                let masker = Masker::new(&table, [text.as_str()]).unwrap();
                let masked = masker.mask(&text);
                let finder = table.finder.as_ref().unwrap();
                if masker.substitutes.is_empty() {
                    for from in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
                        let found = masker.found(finder, &text, from);
                        assert_eq!(found, masker.looked_for(&text, from), "{text:?} from {from}");
                    }
                }
                assert!(!masked.contains('<') && !masked.contains("end"), "{text:?}: {masked:?}");
                assert_eq!(masked.chars().count(), text.chars().count(), "{text:?}");
                let rendered = masker.unmask(masked.into_owned());
                assert_eq!(rendered.into_text(), text);
            }
        }
    }
}
