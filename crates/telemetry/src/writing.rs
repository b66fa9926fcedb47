//! Protocol buffers, as far as OTLP needs them: fields written by number, and one answer read
//! (<https://protobuf.dev/programming-guides/encoding/>). What has its default value is left out. Must not know what is said.

/// Ways in which a field's value is written.
const VARINT: u32 = 0;
const EIGHT_BYTES: u32 = 1;
const BLOCK: u32 = 2;
const FOUR_BYTES: u32 = 5;

/// Something that is written field by field.
pub(crate) trait Message {
    /// Appends its fields.
    fn put(&self, out: &mut Vec<u8>);

    /// Its bytes.
    fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let byte = u8::try_from(value & 0x7f).unwrap_or(0);
        value >>= 7;
        if value == 0 {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}

fn key(field: u32, way: u32, out: &mut Vec<u8>) {
    varint(u64::from((field << 3) | way), out);
}

/// Bytes, whatever they stand for, empty ones included.
pub(crate) fn block(field: u32, bytes: &[u8], out: &mut Vec<u8>) {
    key(field, BLOCK, out);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// A whole number, 0 included.
pub(crate) fn number(field: u32, value: u64, out: &mut Vec<u8>) {
    key(field, VARINT, out);
    varint(value, out);
}

/// Eight bytes, whatever they stand for.
pub(crate) fn eight(field: u32, bytes: [u8; 8], out: &mut Vec<u8>) {
    key(field, EIGHT_BYTES, out);
    out.extend_from_slice(&bytes);
}

pub(crate) fn text(field: u32, value: &str, out: &mut Vec<u8>) {
    if !value.is_empty() {
        block(field, value.as_bytes(), out);
    }
}

pub(crate) fn bytes(field: u32, value: &[u8], out: &mut Vec<u8>) {
    if !value.is_empty() {
        block(field, value, out);
    }
}

/// Numbers of kinds, none of which is below zero.
pub(crate) fn int32(field: u32, value: &i32, out: &mut Vec<u8>) {
    if *value != 0 {
        number(field, u64::from(value.unsigned_abs()), out);
    }
}

pub(crate) fn flag(field: u32, value: &bool, out: &mut Vec<u8>) {
    if *value {
        number(field, 1, out);
    }
}

pub(crate) fn fixed64(field: u32, value: &u64, out: &mut Vec<u8>) {
    if *value != 0 {
        eight(field, value.to_le_bytes(), out);
    }
}

pub(crate) fn fixed32(field: u32, value: &u32, out: &mut Vec<u8>) {
    if *value != 0 {
        key(field, FOUR_BYTES, out);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// One that is there or not; where it is, also 0 is told.
pub(crate) fn double(field: u32, value: &Option<f64>, out: &mut Vec<u8>) {
    value.iter().for_each(|value| eight(field, value.to_le_bytes(), out));
}

pub(crate) fn fixed64s(field: u32, values: &[u64], out: &mut Vec<u8>) {
    let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes(field, &packed, out);
}

pub(crate) fn doubles(field: u32, values: &[f64], out: &mut Vec<u8>) {
    let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes(field, &packed, out);
}

pub(crate) fn one<M: Message>(field: u32, value: &Option<M>, out: &mut Vec<u8>) {
    value.iter().for_each(|value| block(field, &value.encoded(), out));
}

pub(crate) fn many<M: Message>(field: u32, values: &[M], out: &mut Vec<u8>) {
    values.iter().for_each(|value| block(field, &value.encoded(), out));
}

/// What an answer says of parts that were not taken (`Export*ServiceResponse`, alike for all signals): how many, and why.
pub(crate) fn not_taken(answer: &[u8]) -> Option<(u64, String)> {
    let partial = fields(answer).find_map(|(field, value)| match (field, value) {
        (1, Read::Block(bytes)) => Some(bytes),
        _ => None,
    })?;
    let mut said = (0, String::new());
    for (field, value) in fields(partial) {
        match (field, value) {
            (1, Read::Number(count)) => said.0 = count,
            (2, Read::Block(bytes)) => said.1 = String::from_utf8_lossy(bytes).into_owned(),
            _ => {}
        }
    }
    Some(said)
}

/// A value that was read.
enum Read<'a> {
    Number(u64),
    Block(&'a [u8]),
    Other,
}

/// The fields of a message, as far as it is one.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = (u64, Read<'_>)> {
    std::iter::from_fn(move || {
        let key = read_varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Read::Number(read_varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(read_varint(&mut bytes)?).ok()?;
                let (block, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Read::Block(block)
            }
            way => {
                let length = match way {
                    1 => 8,
                    5 => 4,
                    _ => return None,
                };
                bytes = bytes.get(length..)?;
                Read::Other
            }
        };
        Some((key >> 3, value))
    })
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of protocol buffers' own description of the encoding.
    #[test]
    fn numbers_and_texts_are_written_as_the_description_has_them() {
        let mut out = Vec::new();
        number(1, 150, &mut out);
        text(2, "testing", &mut out);
        assert_eq!(out, [0x08, 0x96, 0x01, 0x12, 0x07, b't', b'e', b's', b't', b'i', b'n', b'g']);
    }

    #[test]
    fn an_answer_is_read_and_a_broken_one_says_nothing() {
        let mut partial = Vec::new();
        number(1, 300, &mut partial);
        block(2, b"too old", &mut partial);
        let mut answer = Vec::new();
        block(1, &partial, &mut answer);
        assert_eq!(not_taken(&answer), Some((300, "too old".to_owned())));
        assert_eq!(not_taken(&[]), None);
        for end in 0..answer.len() {
            let _ = not_taken(&answer[..end]);
        }
        assert_eq!(not_taken(&[0xff; 64]), None);
    }
}
