//! Where the fields of an object stand in its bytes, found without reading what is in them.
//! Knows one dialect's field: the model's name, which all dialects have at the same place.

use std::borrow::Cow;
use std::ops::Range;

/// The model that `body` names, as fast as it can be found: what stands behind the name is not looked at, and that all of it is
/// JSON is not checked. `None`: no string is there, or not where JSON has it.
pub fn model_named(body: &[u8]) -> Option<String> {
    let field = Fields::of(body)?.find(|field| field.key == "model")?;
    serde_json::from_slice(body.get(field.value)?).ok()
}

/// A field of an object: where its key begins, and where its value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field<'a> {
    pub(super) key: Cow<'a, str>,
    pub(super) start: usize,
    pub(super) value: Range<usize>,
}

/// The fields of an object, first to last. It ends early where the bytes are no JSON.
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// Those of the object that `bytes` begin with. `None`: it is no object.
    pub(super) fn of(bytes: &'a [u8]) -> Option<Self> {
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

    /// Over the string that begins here.
    fn string(&mut self) -> Option<()> {
        self.eat(b'"')?;
        loop {
            self.at += crate::json::plain_run(self.bytes.get(self.at..)?);
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

    /// Over the value that begins here.
    fn value(&mut self) -> Option<Range<usize>> {
        self.space();
        let start = self.at;
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

/// The values of a list, first to last, as they stand. It ends early where the bytes are no JSON.
pub(super) fn items(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut inside = Fields { bytes: list, at: 0 };
    let open = inside.eat(b'[').is_some();
    std::iter::from_fn(move || {
        let _comma = inside.eat(b',');
        let value = inside.value().filter(|_| open)?;
        list.get(value).filter(|value| !value.is_empty())
    })
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        // A comma stands before each but the first; `skim` has seen that.
        let _comma = self.eat(b',');
        self.space();
        let start = self.at;
        self.string()?;
        let quoted = self.bytes.get(start..self.at)?;
        let plain = std::str::from_utf8(quoted.get(1..quoted.len().checked_sub(1)?)?).ok()?;
        let key = if plain.contains('\\') {
            Cow::Owned(serde_json::from_slice(quoted).ok()?)
        } else {
            Cow::Borrowed(plain)
        };
        self.eat(b':')?;
        let value = self.value()?;
        Some(Field { key, start, value })
    }
}
