//! Writes objects and arrays field by field, with commas in between.
//! Knows no schemas.

use bytes::{BufMut, BytesMut};

use crate::fault::Read;
use crate::json::writer::{raw, value};

/// A JSON object that is being written.
pub struct ObjectWriter<'o> {
    out: &'o mut BytesMut,
    empty: bool,
}

/// Writes an object with the fields that `fields` writes.
pub fn object(out: &mut BytesMut, fields: impl FnOnce(&mut ObjectWriter<'_>) -> Read<()>) -> Read<()> {
    out.put_u8(b'{');
    fields(&mut ObjectWriter { out, empty: true })?;
    out.put_u8(b'}');
    Ok(())
}

/// Writes an array with one element for each of `items`.
pub fn array<T>(
    out: &mut BytesMut,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut BytesMut, T) -> Read<()>,
) -> Read<()> {
    out.put_u8(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        each(out, item)?;
    }
    out.put_u8(b']');
    Ok(())
}

impl ObjectWriter<'_> {
    /// Writes the key of a field. The caller writes the value to the returned buffer.
    pub fn field(&mut self, key: &str) -> &mut BytesMut {
        if !std::mem::take(&mut self.empty) {
            self.out.put_u8(b',');
        }
        value(self.out, key);
        self.out.put_u8(b':');
        self.out
    }

    /// Writes a text field.
    pub fn text(&mut self, key: &str, text: &str) {
        value(self.field(key), text);
    }

    /// Writes a field whose value is already JSON.
    pub fn raw(&mut self, key: &str, json: &str) {
        raw(self.field(key), json);
    }
}
