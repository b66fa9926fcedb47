//! Finds the fields of an object in its bytes, without parsing their values.
//! Knows one field of the dialects: the model's name, which all dialects have at the top level.

use std::borrow::Cow;
use std::ops::Range;

use headrace_wire::fault::{MAX_KEY_BYTES, MAX_PATH_BYTES, head};

/// Returns the model that `body` names, as fast as possible. It neither reads past the name nor checks that the whole
/// body is JSON. `None` if the name is missing, is no string, or if the JSON before it is broken.
pub fn model_named(body: &[u8]) -> Option<String> {
    let name = body.get(model_in(body)?)?;
    match plain(name) {
        Some(name) => Some(name.to_owned()),
        None => serde_json::from_slice(name).ok(),
    }
}

/// Returns the range of the model's name in a body. Keys before it are compared as bytes.
pub(super) fn model_in(body: &[u8]) -> Option<Range<usize>> {
    let mut fields = ObjectFields::of(body)?;
    loop {
        let (quoted, _, value) = fields.member()?;
        if quoted == b"\"model\"" {
            return Some(value);
        }
        if (quoted.contains(&b'\\') || !quoted.is_ascii()) && key_of(quoted)? == "model" {
            return Some(value);
        }
    }
}

/// Returns the text of a quoted string that needs no unescaping. `None` for any other value.
fn plain(quoted: &[u8]) -> Option<&str> {
    let inside = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if headrace_wire::json::plain_run(inside) < inside.len() {
        return None;
    }
    std::str::from_utf8(inside).ok()
}

/// A field of an object: its key, the offset of the key, and the range of the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectField<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) start: usize,
    pub(crate) value: Range<usize>,
}

/// The fields of an object, first to last. The iterator ends early at bytes that are not JSON.
pub(crate) struct ObjectFields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ObjectFields<'a> {
    /// Iterates over the object at the start of `bytes`. `None` if the first value is not an object.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Self { bytes, at: 0 };
        fields.eat(b'{')?;
        Some(fields)
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        self.space();
        (self.bytes.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    fn space(&mut self) {
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        self.at += rest.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).count();
    }

    /// Skips the string at the current position.
    fn string(&mut self) -> Option<()> {
        self.eat(b'"')?;
        loop {
            self.at += headrace_wire::json::plain_run(self.bytes.get(self.at..)?);
            match self.bytes.get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => return None,
            }
        }
    }

    /// Returns the next key in quotes, its offset, and the range of its value.
    fn member(&mut self) -> Option<(&'a [u8], usize, Range<usize>)> {
        // A comma precedes each field except the first. `skim` has checked that.
        let _comma = self.eat(b',');
        self.space();
        let start = self.at;
        self.string()?;
        let quoted = self.bytes.get(start..self.at)?;
        self.eat(b':')?;
        Some((quoted, start, self.value()?))
    }

    /// Skips the value at the current position and returns its range.
    fn value(&mut self) -> Option<Range<usize>> {
        self.space();
        let start = self.at;
        if self.bytes.get(start) == Some(&b'"') {
            self.string()?;
            return Some(start..self.at);
        }
        let mut depth = 0_usize;
        loop {
            let rest = self.bytes.get(self.at..)?;
            let stops = |byte: &u8| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']' | b',');
            let scalar = rest.iter().position(stops).unwrap_or(rest.len());
            if depth == 0 && scalar > 0 {
                let text = rest.get(..scalar)?.trim_ascii_end();
                self.at += text.len();
                return Some(start..self.at);
            }
            self.at += scalar;
            match self.bytes.get(self.at)? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                _ if depth == 0 => return None,
                _ => self.at += 1,
            }
            if depth == 0 {
                return Some(start..self.at);
            }
        }
    }
}

/// The raw values of a list, first to last. The iterator ends early at bytes that are not JSON.
pub(crate) fn items(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    places(list).filter_map(|place| list.get(place))
}

/// The ranges of a list's values. The iterator ends early at bytes that are not JSON.
fn places(list: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut inside = ObjectFields { bytes: list, at: 0 };
    let open = inside.eat(b'[').is_some();
    std::iter::from_fn(move || {
        let _comma = inside.eat(b',');
        inside.value().filter(|place| open && !place.is_empty())
    })
}

/// Returns the path of the value that contains byte `at` of a body, such as `messages[0].content[1].image_url.url`.
pub fn place_of(body: &[u8], at: usize) -> String {
    let (mut path, mut range) = (String::new(), 0..body.len());
    while let Some(inside) = body.get(range.clone()) {
        let held = |place: &Range<usize>| (range.start + place.start..range.start + place.end).contains(&at);
        let next = if inside.trim_ascii_start().first() == Some(&b'[') {
            places(inside).enumerate().find(|(_, place)| held(place)).map(|(index, place)| {
                path.push_str(&format!("[{index}]"));
                place
            })
        } else {
            let field = ObjectFields::of(inside).into_iter().flatten().find(|field| held(&field.value));
            field.map(|field| {
                let dot = if path.is_empty() { "" } else { "." };
                path.push_str(dot);
                path.push_str(head(&field.key, MAX_KEY_BYTES));
                field.value
            })
        };
        let Some(next) = next.filter(|_| path.len() < MAX_PATH_BYTES) else { break };
        range = range.start + next.start..range.start + next.end;
    }
    path
}

impl<'a> Iterator for ObjectFields<'a> {
    type Item = ObjectField<'a>;

    fn next(&mut self) -> Option<ObjectField<'a>> {
        let (quoted, start, value) = self.member()?;
        Some(ObjectField { key: key_of(quoted)?, start, value })
    }
}

/// Unescapes a quoted key.
fn key_of(quoted: &[u8]) -> Option<Cow<'_, str>> {
    let plain = std::str::from_utf8(quoted.get(1..quoted.len().checked_sub(1)?)?).ok()?;
    if plain.contains('\\') {
        return Some(Cow::Owned(serde_json::from_slice(quoted).ok()?));
    }
    Some(Cow::Borrowed(plain))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::*;

    /// Finds the name by iterating over all fields.
    fn among_all(body: &[u8]) -> Option<Range<usize>> {
        Some(ObjectFields::of(body)?.find(|field| field.key == "model")?.value)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn the_models_name_is_found_as_any_field_is(
            fields in prop::collection::vec(
                (
                    select(vec!["model", "mod\\u0065l", "a", "é", "\\\"model", "mod\\xel", ""]),
                    select(vec!["\"m\"", " \"a\\n\" ", "\"\"", "[1,{\"model\":\"x\"}]", "5", "\"\u{1}\"", "\"\\u00e9\"", "\"é\""]),
                ),
                0..5,
            ),
            changes in prop::collection::vec((any::<Index>(), select(b"\"\\{},:\x80 m".to_vec())), 0..3),
        ) {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            let mut body = format!("{{{}}}", fields.join(", ")).into_bytes();
            for (place, byte) in changes {
                let at = place.index(body.len());
                body[at] = byte;
            }
            prop_assert_eq!(model_in(&body), among_all(&body), "{}", String::from_utf8_lossy(&body));
            let read = among_all(&body).and_then(|value| serde_json::from_slice::<String>(&body[value]).ok());
            prop_assert_eq!(model_named(&body), read, "{}", String::from_utf8_lossy(&body));
        }
    }
}
