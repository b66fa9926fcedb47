//! Values of GGUF metadata, copied into owned memory: the file may be mapped, and the checked bytes must be the bytes
//! that are kept. Must not know keys.

use crate::error::{CheckpointError, shown};
use crate::limits::{MAX_GGUF_ARRAY_ITEMS, MAX_GGUF_TEXT_BYTES};

use super::cursor::Cursor;

/// The value of a key. Only arrays keep the width of their numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any of the eight whole-number types.
    Integer(i128),
    /// 32 or 64 bits, widened.
    Float(f64),
    /// Stored as one byte, 0 or 1.
    Bool(bool),
    /// UTF-8.
    Text(String),
    /// A list of texts.
    Texts(Texts),
    /// A list of numbers or booleans.
    Numbers(Numbers),
}

/// A list of texts, stored end to end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    text: String,
    ends: Vec<usize>,
}

/// A list of numbers or booleans, in their stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    kind: NumberKind,
    bytes: Vec<u8>,
}

/// The number types of GGUF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the primitive type of its name, and a truth value of one byte")]
pub enum NumberKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

/// GGUF's type number of texts.
pub(super) const TEXT_TYPE: u32 = 8;
/// GGUF's type number of arrays.
pub(super) const ARRAY_TYPE: u32 = 9;

impl NumberKind {
    const ALL: [(u32, Self, usize); 11] = [
        (0, Self::U8, 1),
        (1, Self::I8, 1),
        (2, Self::U16, 2),
        (3, Self::I16, 2),
        (4, Self::U32, 4),
        (5, Self::I32, 4),
        (6, Self::F32, 4),
        (7, Self::Bool, 1),
        (10, Self::U64, 8),
        (11, Self::I64, 8),
        (12, Self::F64, 8),
    ];

    fn of(id: u32) -> Option<(Self, usize)> {
        Self::ALL.into_iter().find(|(known, ..)| *known == id).map(|(_, kind, bytes)| (kind, bytes))
    }

    fn bytes(self) -> usize {
        Self::ALL.into_iter().find(|(_, kind, _)| *kind == self).map_or(1, |(.., bytes)| bytes)
    }

    pub(super) fn id(self) -> u32 {
        Self::ALL.into_iter().find(|(_, kind, _)| *kind == self).map_or(0, |(id, ..)| id)
    }

    /// Decodes one number from `bytes`, which have exactly its width. `None` for a boolean other than 0 and 1.
    fn number(self, bytes: &[u8]) -> Option<Value> {
        let integer = |n: i128| Value::Integer(n);
        Some(match self {
            Self::U8 => integer((*bytes.first()?).into()),
            Self::I8 => integer(i8::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::U16 => integer(u16::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::I16 => integer(i16::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::U32 => integer(u32::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::I32 => integer(i32::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::U64 => integer(u64::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::I64 => integer(i64::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::F32 => Value::Float(f32::from_le_bytes(*bytes.first_chunk()?).into()),
            Self::F64 => Value::Float(f64::from_le_bytes(*bytes.first_chunk()?)),
            Self::Bool => match bytes.first()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return None,
            },
        })
    }
}

impl Value {
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, CheckpointError> {
        match cursor.u32("a value's type")? {
            TEXT_TYPE => {
                let what = "a text of the metadata";
                let bytes = cursor.raw_text(what, MAX_GGUF_TEXT_BYTES, "MAX_GGUF_TEXT_BYTES")?;
                let text = String::from_utf8(bytes.to_vec());
                text.map(Self::Text).map_err(|_| cursor.field(key, "is not UTF-8".to_owned()))
            }
            ARRAY_TYPE => Self::read_array(cursor, key),
            id => {
                let (kind, width) = NumberKind::of(id)
                    .ok_or_else(|| cursor.field(key, format!("has type {id}, which is not one of GGUF's")))?;
                let bytes = cursor.bytes(width, "a number of the metadata")?;
                kind.number(bytes)
                    .ok_or_else(|| cursor.field(key, "is a truth value beyond 0 and 1".to_owned()))
            }
        }
    }

    fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, CheckpointError> {
        let id = cursor.u32("an array's type")?;
        let count = cursor.u64("an array's length")?;
        if id == ARRAY_TYPE {
            return Err(cursor.field(key, "is an array of arrays, which is not supported".to_owned()));
        }
        let items = format!("items in {}", shown(key));
        if id == TEXT_TYPE {
            let count = cursor.check_count(&items, count, MAX_GGUF_ARRAY_ITEMS, 8)?;
            let mut texts = Texts { text: String::new(), ends: Vec::with_capacity(count) };
            for index in 0..count {
                let what = "a text of an array";
                let bytes = cursor.raw_text(what, MAX_GGUF_TEXT_BYTES, "MAX_GGUF_TEXT_BYTES")?;
                let text = String::from_utf8(bytes.to_vec());
                texts.push(&text.map_err(|_| cursor.field(key, format!("[{index}] is not UTF-8")))?);
            }
            return Ok(Self::Texts(texts));
        }
        let (kind, width) = NumberKind::of(id).ok_or_else(|| {
            cursor.field(key, format!("is an array of type {id}, which is not one of GGUF's"))
        })?;
        let count = cursor.check_count(&items, count, MAX_GGUF_ARRAY_ITEMS, width as u64)?;
        // The check bounds both factors: their product fits into the rest of the file.
        let bytes = cursor.bytes(count * width, "an array of numbers")?.to_vec();
        if kind == NumberKind::Bool && bytes.iter().any(|byte| *byte > 1) {
            return Err(cursor.field(key, "has a truth value beyond 0 and 1".to_owned()));
        }
        Ok(Self::Numbers(Numbers { kind, bytes }))
    }

    /// The value as a whole number. `None` for other types.
    pub fn integer(&self) -> Option<i128> {
        match self {
            Self::Integer(n) => Some(*n),
            _ => None,
        }
    }

    /// The value as a number. `None` for other types.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(n) => Some(*n as f64),
            Self::Float(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns the value made safe to show in a message.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Integer(n) => n.to_string(),
            Self::Float(n) => n.to_string(),
            Self::Bool(flag) => flag.to_string(),
            Self::Text(text) => format!("\"{}\"", shown(text)),
            Self::Texts(texts) => format!("a list of {} texts", texts.len()),
            Self::Numbers(numbers) => format!("a list of {} numbers", numbers.len()),
        }
    }
}

impl Texts {
    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.text.get(start..*self.ends.get(index)?)
    }

    /// Iterates over all texts.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Appends a text.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }
}

impl<'t> FromIterator<&'t str> for Texts {
    fn from_iter<I: IntoIterator<Item = &'t str>>(items: I) -> Self {
        let mut texts = Self::default();
        items.into_iter().for_each(|text| texts.push(text));
        texts
    }
}

impl Numbers {
    /// The type of the numbers.
    pub fn kind(&self) -> NumberKind {
        self.kind
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.bytes()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Iterates over all items as [`Value::Integer`], [`Value::Float`] or [`Value::Bool`].
    pub fn iter(&self) -> impl Iterator<Item = Value> {
        self.bytes.chunks_exact(self.kind.bytes()).filter_map(|bytes| self.kind.number(bytes))
    }

    /// Creates a list of 32-bit floats.
    pub fn of_f32(values: &[f32]) -> Self {
        Self { kind: NumberKind::F32, bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect() }
    }

    /// Creates a list of 32-bit integers.
    pub fn of_i32(values: &[i32]) -> Self {
        Self { kind: NumberKind::I32, bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect() }
    }

    /// Creates a list of truth values.
    pub fn of_bools(values: &[bool]) -> Self {
        Self { kind: NumberKind::Bool, bytes: values.iter().map(|value| u8::from(*value)).collect() }
    }

    pub(super) fn raw(&self) -> &[u8] {
        &self.bytes
    }
}
