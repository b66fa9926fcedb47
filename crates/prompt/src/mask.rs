//! Replaces the characters of messages that could open a control token by masks, so that they can be recognised in the
//! output. Must not know the meaning of templates or the ids of tokens.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

use crate::error::TemplateError;
use crate::rendered::RenderedPrompt;
use crate::source::TemplateSource;

/// The first character of the default block of masks: private use, plane 16, near its end.
const FIRST_MASK: u32 = 0x10_f000;
/// The range of substitutes for a message's own characters that happen to be masks.
const POOL: Range<u32> = 0xf_0000..0x10_fffe;
/// In UTF-8, every character from the start of `POOL` on has a first byte of at least this value.
const POOL_LEAD: u8 = 0xf3;

/// Keys by which templates look up values in messages, tools and JSON schemas. They are not masked, because a caller
/// can only repeat them and not choose them. A key is masked if it is itself a word that the template could complete.
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

/// The characters of messages that one template needs masked.
#[derive(Debug, Default)]
pub(crate) struct MaskTable {
    /// Characters that begin control tokens, or continue a beginning that the template writes. They are always masked.
    always: Vec<char>,
    /// Words that continue a beginning that the template writes. Their first character is masked.
    words: Vec<String>,
    /// The masked characters, ascending. The mask of `chars[i]` is the character `first + i`.
    chars: Vec<char>,
    first: u32,
    /// `lead[b]` is `true` if a masked character, or one from the pool, may begin with byte `b`.
    lead: Vec<bool>,
    /// Finds the characters and words of `always` and `words` in one pass over a text.
    finder: Option<AhoCorasick>,
}

impl MaskTable {
    pub(crate) fn new<'a>(markup: impl Iterator<Item = &'a str>, source: &TemplateSource<'_>) -> Self {
        let (mut always, mut words) = (BTreeSet::new(), BTreeSet::new());
        for token in markup {
            // Templates may change the case of their input.
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
        // Two more characters, for the marks of an end and of a beginning.
        let count = u32::try_from(chars.len()).unwrap_or(u32::MAX).saturating_add(2);
        let taken: BTreeSet<u32> =
            source.text().chars().map(u32::from).filter(|c| *c >= POOL.start).collect();
        // The block of masks must not overlap with characters of the template's own text. Candidates go down from the
        // end.
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
        // If building the automaton fails, texts are searched character by character.
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

    /// Returns the mask of `c`, or `None` if `c` is not masked.
    pub(crate) fn mask(&self, c: char) -> Option<char> {
        let at = u32::try_from(self.chars.binary_search(&c).ok()?).ok()?;
        char::from_u32(self.first.checked_add(at)?)
    }

    /// Returns the character that `c` masks, or `None` if `c` is not a mask.
    pub(crate) fn unmask(&self, c: char) -> Option<char> {
        let at = u32::from(c).checked_sub(self.first)?;
        self.chars.get(usize::try_from(at).ok()?).copied()
    }

    /// Returns `c` without its mask.
    pub(crate) fn fold_char(&self, c: char) -> char {
        self.unmask(c).unwrap_or(c)
    }

    /// Returns `text` without masks.
    pub(crate) fn fold(&self, text: &str) -> String {
        text.chars().map(|c| self.fold_char(c)).collect()
    }

    /// Returns `c` as it appears in messages. Used for literals of the template that are compared with messages.
    pub(crate) fn in_messages(&self, c: char) -> char {
        if self.always.binary_search(&c).is_ok() { self.mask(c).unwrap_or(c) } else { c }
    }

    /// Returns the character that marks the end of a message's text.
    pub(crate) fn end(&self) -> char {
        self.mark(0)
    }

    /// Returns the character that marks the beginning of a message's text.
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

/// Whether `text` may contain a mask or a substitute. The check has no branch per byte.
pub(crate) fn may_have_masks(text: &str) -> bool {
    text.bytes().fold(0, u8::max) >= POOL_LEAD
}

/// A text that was rendered between marks.
pub(crate) struct MarkedText<T> {
    /// The text before it, from the end of the previous marked text on.
    pub(crate) before: T,
    pub(crate) tag: T,
    pub(crate) text: T,
}

/// Masks the strings of one request and unmasks the text rendered from them.
#[derive(Debug)]
pub(crate) struct Masker<'t> {
    table: &'t MaskTable,
    /// The request's own characters that are masks in this table, with their substitutes during rendering.
    substitutes: BTreeMap<char, char>,
    originals: BTreeMap<char, char>,
}

impl<'t> Masker<'t> {
    /// Creates a masker. Searches all strings of the request for characters that must not be used as substitutes.
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

    /// Returns `text` as the template receives it.
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

    /// Finds the next character of `text`, from byte `from` on, that must be replaced. Returns its position, the
    /// character and its replacement.
    fn next(&self, text: &str, from: usize) -> Option<(usize, char, char)> {
        match &self.table.finder {
            Some(finder) if self.substitutes.is_empty() => self.found(finder, text, from),
            _ => self.looked_for(text, from),
        }
    }

    /// [`Self::next`] for requests that contain no mask characters, which is nearly always the case.
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

    /// [`Self::next`], character by character.
    fn looked_for(&self, text: &str, from: usize) -> Option<(usize, char, char)> {
        let table = self.table;
        // Only characters that begin with such a byte can be masked. Continuation bytes of UTF-8 have lower values.
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

    /// Returns `key`, a key of an object, as the template receives it.
    pub(crate) fn mask_key<'s>(&self, key: &'s str) -> Cow<'s, str> {
        let known = KEYS.contains(&key) && !self.table.words.iter().any(|word| word == key);
        if known { Cow::Borrowed(key) } else { self.mask(key) }
    }

    /// Whether a word that the template could complete begins at `at`, or the whole text is the beginning of such a
    /// word.
    fn begins_word(&self, text: &str, at: usize) -> bool {
        let rest = text.get(at..).unwrap_or("");
        self.table
            .words
            .iter()
            .any(|word| rest.starts_with(word.as_str()) || (at == 0 && word.starts_with(text)))
    }

    /// Returns the last text of a prompt, masked and with a mark at its end.
    pub(crate) fn mask_with_end(&self, text: &str) -> String {
        // The space after the mark shows whether the template trims.
        let mut masked = self.mask(text).into_owned();
        masked.push(self.table.end());
        masked.push(' ');
        masked
    }

    /// Returns `text` masked and tagged, between marks: one before the tag, one before the text, and one at its end.
    pub(crate) fn mask_between_marks(&self, tag: &str, text: &str) -> String {
        let beginning = self.table.beginning();
        format!("{beginning}{tag}{beginning}{}{}", self.mask(text), self.table.end())
    }

    /// Returns the texts that were rendered between marks, in order, and the text after the last of them. `None` if the
    /// template separated marks from their texts.
    pub(crate) fn between_marks(&self, rendered: &str) -> Option<(Vec<MarkedText<String>>, String)> {
        let put_back = |piece: &str| self.unmask(piece.to_owned()).into_text();
        let (found, rest) = self.masked_between_marks(rendered)?;
        let found = found.into_iter().map(|marked| MarkedText {
            before: put_back(marked.before),
            tag: marked.tag.to_owned(),
            text: put_back(marked.text),
        });
        Some((found.collect(), put_back(rest)))
    }

    /// Like [`Self::between_marks`], with all masks still in place.
    pub(crate) fn masked_between_marks<'r>(
        &self,
        rendered: &'r str,
    ) -> Option<(Vec<MarkedText<&'r str>>, &'r str)> {
        let mut pieces = rendered.split(self.table.beginning());
        let mut before = pieces.next()?;
        let mut found = Vec::new();
        while let Some(tag) = pieces.next() {
            let (text, behind) = pieces.next()?.split_once(self.table.end())?;
            found.push(MarkedText { before: std::mem::replace(&mut before, behind), tag, text });
        }
        Some((found, before))
    }

    /// Returns the rendered text up to the last end mark, or `None` if there is no such mark. If the template trimmed
    /// the space after the mark, it would also have trimmed the text before it, so that text is trimmed here.
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

    /// Returns the rendered text with all characters restored, and with the masked ones recorded as literal.
    ///
    /// Text between two literal pieces is merged into them unless a control token could begin in it. No control token
    /// is lost by that. A message of nothing but openings (`<|<|<|…`) becomes one piece instead of millions.
    pub(crate) fn unmask(&self, rendered: String) -> RenderedPrompt {
        if !may_have_masks(&rendered) {
            return RenderedPrompt::new(rendered, Vec::new());
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
        RenderedPrompt::new(text, literal)
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
        // Every combination of four pieces, also at the end of a long text.
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
