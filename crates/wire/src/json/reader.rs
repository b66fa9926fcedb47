//! A pull reader of untrusted JSON. Returns typed values directly from the text, or a fault with its place.
//! Refuses duplicate keys, lone surrogates and excessive depth. Returns numbers as text, so callers check their range.
//! Knows no dialect.

mod keys;
mod skip;

use std::borrow::Cow;

use headrace_domain::Code;

use crate::fault::{FieldFault, Read};

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// A number.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl ValueKind {
    #[inline]
    const fn begins_with(self, byte: u8) -> bool {
        match self {
            Self::Null => byte == b'n',
            Self::Bool => matches!(byte, b't' | b'f'),
            Self::Number => matches!(byte, b'-' | b'0'..=b'9'),
            Self::String => byte == b'"',
            Self::Array => byte == b'[',
            Self::Object => byte == b'{',
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

/// The upper bound for any configured depth, because reading recurses on the stack.
const DEEPEST: usize = 512;

/// Reads one JSON text from front to back. Builds only the values that the caller asks for.
pub struct JsonReader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    max_depth: usize,
    free_form_left: usize,
    /// Keys of the open objects, outermost first.
    keys: Vec<Cow<'a, str>>,
}

impl<'a> JsonReader<'a> {
    /// Creates a reader of `body`, which must be UTF-8. `max_free_form` limits the values that [`Self::count_value`]
    /// counts.
    pub fn new(body: &'a [u8], max_depth: usize, max_free_form: usize) -> Read<Self> {
        let text = simdutf8::compat::from_utf8(body).map_err(|error| {
            FieldFault::new(
                Code::InvalidJson,
                format!("the body is not UTF-8 at byte {}", error.valid_up_to()),
            )
        })?;
        let max_depth = max_depth.min(DEEPEST);
        Ok(Self { text, at: 0, depth: 0, max_depth, free_form_left: max_free_form, keys: Vec::new() })
    }

    /// Creates a reader of a JSON text from inside a string of this one, with the same depth limit and the remaining
    /// budget.
    #[inline]
    pub const fn inner<'b>(&self, text: &'b str) -> JsonReader<'b> {
        JsonReader {
            text,
            at: 0,
            depth: 0,
            max_depth: self.max_depth,
            free_form_left: self.free_form_left,
            keys: Vec::new(),
        }
    }

    /// Takes over the budget that remains after an [`Self::inner`] text was read.
    pub const fn resume(&mut self, inner: &JsonReader<'_>) {
        self.free_form_left = inner.free_form_left;
    }

    /// Counts one value of a free-form object against the request's budget.
    #[inline]
    pub fn count_value(&mut self) -> Read<()> {
        self.free_form_left = self.free_form_left.checked_sub(1).ok_or_else(|| {
            FieldFault::new(
                Code::ObjectAboveMaxProperties,
                "the request's schemas and arguments hold too many values; shorten them",
            )
        })?;
        Ok(())
    }

    /// Number of bytes read so far.
    #[inline]
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Fails if anything but white space follows.
    pub fn end(&mut self) -> Read<()> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { Err(self.syntax("something follows the value")) }
    }

    /// Returns the kind of the next value, and moves to its first byte.
    #[inline]
    pub fn kind(&mut self) -> Read<ValueKind> {
        self.skip_space();
        match self.byte() {
            Some(b'n') => Ok(ValueKind::Null),
            Some(b't' | b'f') => Ok(ValueKind::Bool),
            Some(b'-' | b'0'..=b'9') => Ok(ValueKind::Number),
            Some(b'"') => Ok(ValueKind::String),
            Some(b'[') => Ok(ValueKind::Array),
            Some(b'{') => Ok(ValueKind::Object),
            Some(_) => Err(self.syntax("a value must stand here")),
            None => Err(self.syntax("the text ends where a value must stand")),
        }
    }

    /// Reads `null` as `None`, and any other value with `read`.
    pub fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        if self.kind()? == ValueKind::Null {
            self.literal("null")?;
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// Reads `true` or `false`.
    #[inline]
    pub fn bool(&mut self) -> Read<bool> {
        self.require(ValueKind::Bool)?;
        let value = self.byte() == Some(b't');
        self.literal(if value { "true" } else { "false" })?;
        Ok(value)
    }

    /// Reads a number and returns it as written.
    pub fn number(&mut self) -> Read<&'a str> {
        self.require(ValueKind::Number)?;
        let start = self.at;
        self.eat(b'-');
        if !self.eat(b'0') && self.digits() == 0 {
            return Err(self.syntax("a number needs digits"));
        }
        if self.eat(b'.') && self.digits() == 0 {
            return Err(self.syntax("a number needs digits after its point"));
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _sign = self.eat(b'+') || self.eat(b'-');
            if self.digits() == 0 {
                return Err(self.syntax("a number needs digits in its exponent"));
            }
        }
        Ok(self.text.get(start..self.at).unwrap_or(""))
    }

    /// Reads a string and unescapes it. Borrowed if it has no escapes.
    #[inline]
    pub fn string(&mut self) -> Read<Cow<'a, str>> {
        self.require(ValueKind::String)?;
        self.at += 1;
        let start = self.at;
        self.at += plain_run(self.text.as_bytes().get(self.at..).unwrap_or(&[]));
        if self.byte() == Some(b'"') {
            let all = self.text.get(start..self.at).unwrap_or("");
            self.at += 1;
            return Ok(Cow::Borrowed(all));
        }
        self.unescaped(start).map(Cow::Owned)
    }

    /// Reads the rest of a string that began at `start` and has no escapes so far.
    fn unescaped(&mut self, mut start: usize) -> Read<String> {
        let mut unescaped = String::new();
        loop {
            unescaped.push_str(self.text.get(start..self.at).unwrap_or(""));
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(unescaped);
                }
                Some(b'\\') => {
                    self.at += 1;
                    unescaped.push(self.escape()?);
                    start = self.at;
                }
                Some(_) => return Err(self.syntax("a control character must be escaped in a string")),
                None => return Err(self.syntax("the text ends inside a string")),
            }
            self.at += plain_run(self.text.as_bytes().get(self.at..).unwrap_or(&[]));
        }
    }

    /// Reads an array of at most `max` items. `each` reads the item at its index.
    pub fn array(&mut self, max: usize, mut each: impl FnMut(&mut Self, usize) -> Read<()>) -> Read<()> {
        self.require(ValueKind::Array)?;
        self.enter()?;
        if !self.closes(b']') {
            let mut index = 0;
            loop {
                if index == max {
                    return Err(FieldFault::new(
                        Code::ArrayAboveMaxLength,
                        format!("the list may have at most {max} items; send fewer"),
                    ));
                }
                each(self, index).map_err(|fault| fault.under_index(index))?;
                index += 1;
                if self.separator(b']')? {
                    break;
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Fails unless the next value is of this kind.
    #[inline]
    pub fn require(&mut self, kind: ValueKind) -> Read<()> {
        self.skip_space();
        if self.byte().is_some_and(|byte| kind.begins_with(byte)) {
            return Ok(());
        }
        let message = format!("it must be {}, not {}", kind.name(), self.kind()?.name());
        Err(FieldFault::new(Code::InvalidType, message))
    }

    /// Skips the literal at the current position.
    #[inline]
    pub(crate) fn literal(&mut self, word: &str) -> Read<()> {
        if !self.text.as_bytes().get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            return Err(self.syntax("a value must stand here"));
        }
        self.at += word.len();
        Ok(())
    }

    #[inline]
    fn enter(&mut self) -> Read<()> {
        self.depth += 1;
        self.at += 1;
        if self.depth > self.max_depth {
            let message =
                format!("objects and arrays are nested more than {} deep; flatten them", self.max_depth);
            return Err(FieldFault::new(Code::JsonTooDeep, message));
        }
        Ok(())
    }

    #[inline]
    fn closes(&mut self, bracket: u8) -> bool {
        self.skip_space();
        self.eat(bracket)
    }

    /// Reads the byte after an item. Returns `true` if it is the closing bracket, and `false` if it is a comma.
    #[inline]
    fn separator(&mut self, bracket: u8) -> Read<bool> {
        self.skip_space();
        if self.eat(bracket) {
            return Ok(true);
        }
        if self.eat(b',') {
            return Ok(false);
        }
        Err(self.syntax(if bracket == b']' {
            "`,` or `]` must stand here"
        } else {
            "`,` or `}` must stand here"
        }))
    }

    fn escape(&mut self) -> Read<char> {
        let Some(byte) = self.byte() else { return Err(self.syntax("the text ends inside a string")) };
        self.at += 1;
        Ok(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(self.syntax("there is no such escape")),
        })
    }

    fn unicode_escape(&mut self) -> Read<char> {
        let first = self.hex4()?;
        let joined = match first {
            0xD800..=0xDBFF => {
                let paired = self.eat(b'\\') && self.eat(b'u');
                let second = if paired { self.hex4()? } else { 0 };
                if !(0xDC00..=0xDFFF).contains(&second) {
                    return Err(self.syntax("an escaped surrogate has no partner"));
                }
                0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            }
            other => other,
        };
        char::from_u32(joined).ok_or_else(|| self.syntax("an escaped surrogate has no partner"))
    }

    fn hex4(&mut self) -> Read<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or(&[]);
        if digits.len() != 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(self.syntax("`\\u` needs four hexadecimal digits"));
        }
        let value = digits.iter().filter_map(|d| char::from(*d).to_digit(16)).fold(0, |sum, d| sum * 16 + d);
        self.at += 4;
        Ok(value)
    }

    fn digits(&mut self) -> usize {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or(&[]);
        let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += count;
        count
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(byte) = self.byte()
            // Most bodies have no white space between their tokens.
            && byte <= b' '
            && matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
        {
            self.at += 1;
        }
    }

    #[inline]
    fn eat(&mut self, byte: u8) -> bool {
        let there = self.byte() == Some(byte);
        self.at += usize::from(there);
        there
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn syntax(&self, what: &str) -> FieldFault {
        FieldFault::new(Code::InvalidJson, format!("not valid JSON at byte {}: {what}", self.at))
    }
}

/// The number of leading bytes that mean themselves in a string: no `"`, no `\\` and no control character.
#[inline]
pub fn plain_run(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let mut run = 0;
    // Eight bytes at a time. `(x - n·ONES) & !x & HIGHS` has its lowest set bit at the first byte below n.
    while let Some(word) = bytes.get(run..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * u64::from(b'"'));
        let slash = word ^ (ONES * u64::from(b'\\'));
        let special = (word.wrapping_sub(ONES * 0x20) & !word)
            | (quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash);
        match special & HIGHS {
            0 => run += 8,
            found => return run + (found.trailing_zeros() / 8) as usize,
        }
        if run == LONG {
            run += plain_chunks(bytes.get(run..).unwrap_or(&[]));
        }
    }
    let special = |b: &u8| *b == b'"' || *b == b'\\' || *b < 0x20;
    let rest = bytes.get(run..).unwrap_or(&[]);
    run + rest.iter().position(special).unwrap_or(rest.len())
}

/// A run of this length is long: images in base64, pasted files. A longer stride pays off only for long runs.
const LONG: usize = 64;

/// Like [`plain_run`], but only for whole strides of 64 bytes, which the compiler turns into vector code.
#[inline(never)]
fn plain_chunks(bytes: &[u8]) -> usize {
    let (chunks, _) = bytes.as_chunks::<64>();
    let special = |b: &u8| u8::from(*b == b'"') | u8::from(*b == b'\\') | u8::from(*b < 0x20);
    let plain = |chunk: &&[u8; 64]| chunk.iter().fold(0, |any, b| any | special(b)) == 0;
    chunks.iter().take_while(plain).count() * 64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::json::node::JsonNode;

    fn read(text: &[u8]) -> Read<Value> {
        let mut reader = JsonReader::new(text, 64, 10_000)?;
        let node = JsonNode::read(&mut reader)?;
        reader.end()?;
        node.into_value()
    }

    #[test]
    fn a_run_ends_at_the_first_special_byte_wherever_it_is() {
        for special in [b'"', b'\\', 0, 0x1f] {
            for length in (0..400).chain([1000, 4096]) {
                let mut text = vec![b'\x80'; length];
                assert_eq!(plain_run(&text), length);
                for at in [0, 7, 8, 63, 64, 127, 128, 129, 191, 192, 200, 255, 256, length.saturating_sub(1)]
                {
                    if at < length {
                        let plain = std::mem::replace(&mut text[at], special);
                        assert_eq!(plain_run(&text), at);
                        text[at] = plain;
                    }
                }
            }
        }
    }

    #[test]
    fn broken_json_is_refused() {
        let deep = "[".repeat(100_000);
        let rows: &[(&[u8], &str)] = &[
            (b"", "invalid_json"),
            (b"  ", "invalid_json"),
            (b"nul", "invalid_json"),
            (b"truex", "invalid_json"),
            (b"{} x", "invalid_json"),
            (b"{}{}", "invalid_json"),
            (b"[1,]", "invalid_json"),
            (b"{\"a\":1,}", "invalid_json"),
            (b"{a:1}", "invalid_json"),
            (b"{'a':1}", "invalid_json"),
            (b"01", "invalid_json"),
            (b"+1", "invalid_json"),
            (b".5", "invalid_json"),
            (b"1.", "invalid_json"),
            (b"1e", "invalid_json"),
            (b"-", "invalid_json"),
            (b"NaN", "invalid_json"),
            (b"Infinity", "invalid_json"),
            (b"1e999", "invalid_value"),
            (b"18446744073709551616", "invalid_value"),
            (b"\"\\ud800\"", "invalid_json"),
            (b"\"\\udc00\"", "invalid_json"),
            (b"\"\\ud800\\u0041\"", "invalid_json"),
            (b"\"\\x\"", "invalid_json"),
            (b"\"\\u12g4\"", "invalid_json"),
            (b"\"\\u+123\"", "invalid_json"),
            (b"\"a\nb\"", "invalid_json"),
            (b"\"abc", "invalid_json"),
            (b"\"\xff\"", "invalid_json"),
            (b"\xef\xbb\xbf{}", "invalid_json"),
            (b"{\"a\":1,\"a\":2}", "duplicate_key"),
            (b"{\"a\":1,\"\\u0061\":2}", "duplicate_key"),
            (b"/* c */ 1", "invalid_json"),
            (deep.as_bytes(), "json_too_deep"),
        ];
        for (text, code) in rows {
            let shown = String::from_utf8_lossy(&text[..text.len().min(40)]);
            assert_eq!(read(text).map_err(|f| f.code()), Err(*code), "{shown}");
        }
    }

    #[test]
    fn many_keys_are_told_apart() {
        let mut text = String::from("{");
        for key in 0..1000 {
            text.push_str(&format!("\"k{key}\":{key},"));
        }
        let good = format!("{}}}", text.trim_end_matches(','));
        assert!(read(good.as_bytes()).is_ok());
        let bad = format!("{text}\"k999\":1}}");
        assert_eq!(read(bad.as_bytes()).unwrap_err().code(), "duplicate_key");
    }

    /// JSON-like text: pieces of the grammar in random order, so that a good part of it is valid.
    fn soup() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"a\"",
            "\"b\"",
            "\"\\n\\u00e9\"",
            "\"\\ud83d\\ude00\"",
            "1",
            "-0.5",
            "1e3",
            "0",
            "01",
            "true",
            "false",
            "null",
            " ",
            "\"é😀\"",
            "\"",
            "\\",
            "x",
        ]);
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Equal, except for the last digit of a number. `serde_json` is slightly off if many digits meet a large exponent.
    fn are_alike(ours: &Value, theirs: &Value) -> bool {
        match (ours, theirs) {
            (Value::Number(one), Value::Number(other)) if one.is_f64() && other.is_f64() => {
                let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
                (one - other).abs() <= one.abs() * 2.0 * f64::EPSILON
            }
            (Value::Array(one), Value::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| are_alike(one, other))
            }
            (Value::Object(one), Value::Object(other)) => {
                one.len() == other.len()
                    && one
                        .iter()
                        .all(|(key, value)| other.get(key).is_some_and(|other| are_alike(value, other)))
            }
            _ => ours == theirs,
        }
    }

    #[test]
    fn a_number_is_the_nearest_one_however_it_is_written() {
        for text in [
            "-0.51e31",
            "1.7976931348623157e308",
            "2.2250738585072014e-308",
            "0.1e1",
            "123456789012345678901234567890.0",
        ] {
            let number = read(text.as_bytes()).unwrap();
            assert_eq!(number.as_f64().unwrap(), text.parse::<f64>().unwrap(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn plain_runs_end_at_the_first_special_byte(
            bytes in prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => 0x1c_u8..0x25, 1 => 0x5a_u8..0x5e], 0..40),
        ) {
            let first = bytes.iter().position(|b| *b == b'"' || *b == b'\\' || *b < 0x20);
            prop_assert_eq!(plain_run(&bytes), first.unwrap_or(bytes.len()));
        }

        #[test]
        fn agrees_with_serde_json_on_soup(text in soup()) {
            let theirs = serde_json::from_str::<Value>(&text);
            match read(text.as_bytes()) {
                Ok(ours) => {
                    let theirs = theirs.unwrap();
                    prop_assert!(are_alike(&ours, &theirs), "{} {}", ours, theirs);
                }
                Err(fault) if fault.code() == "duplicate_key" => {}
                Err(_) => prop_assert!(theirs.is_err(), "{}", text),
            }
        }

        #[test]
        fn reads_what_serde_json_writes(value in any_value()) {
            let plain = serde_json::to_string(&value).unwrap();
            prop_assert_eq!(read(plain.as_bytes()).unwrap(), value.clone());
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(read(pretty.as_bytes()).unwrap(), value);
        }
    }
}
