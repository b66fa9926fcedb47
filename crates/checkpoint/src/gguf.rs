//! Reads the header of a GGUF file: magic, version, metadata, tensor list, then aligned data
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>). Every count, length and offset is checked against the
//! file's length and a named limit before it is used. Must not know the meaning of any key except the alignment.

mod architecture;
mod config;
mod cursor;
mod describe;
mod found;
mod gemma4;
mod layout;
mod members;
mod meta;
mod mixers;
pub(crate) mod model;
mod names;
mod origin;
mod rotary;
mod settings;
mod tensor_type;
mod tokenizer;
mod value;
pub mod writer;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{CheckpointError, shown};
use crate::limits::{
    MAX_GGUF_ALIGNMENT_BYTES, MAX_GGUF_HEADER_BYTES, MAX_GGUF_KEY_BYTES, MAX_GGUF_KEYS, MAX_GGUF_RANK,
    MAX_TENSOR_NAME_BYTES, MAX_TENSORS,
};
use crate::weights::tensor_error;

pub(crate) use config::ARCHITECTURE_KEY;
use cursor::Cursor;
pub use describe::{FileDescription, describe};
pub use names::to_hugging_face;
pub use origin::{ElementChange, FileTensor, RowOrigin};
pub use tensor_type::TensorType;
pub use tokenizer::pre_tokenizers;
pub use value::{NumberKind, Numbers, Texts, Value};

/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The metadata key of the data alignment, which is in bytes.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of a file that does not specify it.
pub(crate) const DEFAULT_ALIGNMENT_BYTES: usize = 32;
/// Minimum sizes in bytes of a metadata entry (key length, value type and value) and of a tensor's entry.
const LEAST_KEY_BYTES: u64 = 8 + 4 + 1;
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// The parsed header of a GGUF file, checked against the file's length. Every tensor's bytes are inside the file and
/// start at a multiple of the alignment, and no two tensors overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// 2 or 3. Both versions have the same layout.
    pub version: u32,
    /// Alignment of every tensor's offset, in bytes: a power of two, at least 8.
    pub alignment: usize,
    /// Bytes before the data part, padding included.
    pub data_start: usize,
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Entry>,
}

/// One tensor of a [`Header`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Storage type of the elements.
    pub kind: &'static TensorType,
    /// Dimensions in elements, **outermost** first (the file has the reverse order). None is zero.
    pub shape: Vec<usize>,
    /// Byte range, from the start of the *file*.
    pub range: Range<usize>,
}

impl Header {
    /// Parses and checks the header of the file named `file` with the contents `bytes`.
    ///
    /// # Errors
    /// [`CheckpointError::Header`] if the container is broken, [`CheckpointError::Field`] if a key is,
    /// [`CheckpointError::Tensor`] if a tensor is.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let mut cursor = Cursor::new(file, bytes);
        let version = version(&mut cursor)?;
        let tensor_count = cursor.u64("the number of tensors")?;
        let key_count = cursor.u64("the number of keys")?;
        cursor.check_count("tensors", tensor_count, MAX_TENSORS, LEAST_TENSOR_BYTES)?;
        cursor.check_count("keys", key_count, MAX_GGUF_KEYS, LEAST_KEY_BYTES)?;
        let metadata = metadata(&mut cursor, key_count)?;
        let alignment = alignment(file, &metadata)?;
        let mut entries = BTreeMap::new();
        for _ in 0..tensor_count {
            let (name, raw) = raw_entry(&mut cursor)?;
            if entries.contains_key(&name) {
                return Err(tensor_error(file, &name, "name", "is given twice".to_owned()));
            }
            entries.insert(name, raw);
        }
        let described = cursor.position();
        if described > MAX_GGUF_HEADER_BYTES {
            let cap = format!("{MAX_GGUF_HEADER_BYTES} (MAX_GGUF_HEADER_BYTES)");
            return Err(
                cursor.broken(format!("its header is {described} bytes long, above the cap of {cap}"))
            );
        }
        let data_start = described.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
        let mut tensors = BTreeMap::new();
        for (name, raw) in entries {
            let entry = raw.place(file, &name, alignment, data_start, bytes.len())?;
            tensors.insert(name, entry);
        }
        check_apart(file, &tensors, data_start)?;
        // A file with metadata only may end before its padding.
        Ok(Self { version, alignment, data_start: data_start.min(bytes.len()), metadata, tensors })
    }
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, CheckpointError> {
    let magic = cursor.bytes(MAGIC.len(), "the magic \"GGUF\"")?;
    if magic != MAGIC {
        let found = shown(&String::from_utf8_lossy(magic));
        return Err(cursor.broken(format!("starts with \"{found}\", not with \"GGUF\": not a GGUF file?")));
    }
    match cursor.u32("the version")? {
        version @ 2..=3 => Ok(version),
        // A small number with reversed byte order.
        other if other.swap_bytes() <= 0xffff && other > 0xffff => Err(cursor.broken(format!(
            "is big-endian (version {}); convert it with gguf-convert-endian",
            other.swap_bytes()
        ))),
        other => Err(cursor.broken(format!("is GGUF version {other}; supported are 2 and 3"))),
    }
}

fn metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<BTreeMap<String, Value>, CheckpointError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.text("a key", MAX_GGUF_KEY_BYTES, "MAX_GGUF_KEY_BYTES")?;
        if key.is_empty() {
            return Err(cursor.broken("has a key of no characters".to_owned()));
        }
        if metadata.contains_key(&key) {
            return Err(cursor.field(&key, "is given twice".to_owned()));
        }
        if cursor.position() > MAX_GGUF_HEADER_BYTES {
            let cap = format!("{MAX_GGUF_HEADER_BYTES} bytes (MAX_GGUF_HEADER_BYTES)");
            return Err(cursor.broken(format!("its metadata is above the cap of {cap}")));
        }
        let value = Value::read(cursor, &key)?;
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn alignment(file: &str, metadata: &BTreeMap<String, Value>) -> Result<usize, CheckpointError> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT_BYTES) };
    let given = value.integer().and_then(|n| usize::try_from(n).ok());
    let fits = |n: &usize| n.is_power_of_two() && (8..=MAX_GGUF_ALIGNMENT_BYTES).contains(n);
    given.filter(fits).ok_or_else(|| CheckpointError::Field {
        file: file.to_owned(),
        field: ALIGNMENT_KEY.to_owned(),
        problem: format!(
            "found {}, expected a power of two from 8 to {MAX_GGUF_ALIGNMENT_BYTES}",
            value.shown()
        ),
    })
}

/// A tensor's entry before the start of the data is known.
struct RawEntry {
    kind: &'static TensorType,
    shape: Vec<usize>,
    bytes: usize,
    offset: u64,
}

fn raw_entry(cursor: &mut Cursor<'_>) -> Result<(String, RawEntry), CheckpointError> {
    let name = cursor.text("a tensor's name", MAX_TENSOR_NAME_BYTES, "MAX_TENSOR_NAME_BYTES")?;
    let file = cursor.file();
    let refuse = |field, problem| tensor_error(file, &name, field, problem);
    if name.is_empty() {
        return Err(refuse("name", "is empty".to_owned()));
    }
    let rank = cursor.u32("a tensor's number of dimensions")?;
    let rank = usize::try_from(rank).ok().filter(|rank| *rank <= MAX_GGUF_RANK);
    let rank = rank.ok_or_else(|| refuse("shape", format!("has more than {MAX_GGUF_RANK} dimensions")))?;
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        let dimension = cursor.u64("a tensor's dimension")?;
        let dimension = usize::try_from(dimension).ok().filter(|n| *n > 0);
        shape.push(dimension.ok_or_else(|| refuse("shape", "has a dimension that cannot be".to_owned()))?);
    }
    shape.reverse();
    let id = cursor.u32("a tensor's type")?;
    let offset = cursor.u64("a tensor's offset")?;
    let kind = TensorType::of(id)
        .ok_or_else(|| refuse("dtype", format!("{id} is not the number of a type that is known")))?;
    let bytes = kind.tensor_bytes(&shape).map_err(|problem| refuse("shape", problem))?;
    Ok((name, RawEntry { kind, shape, bytes, offset }))
}

impl RawEntry {
    fn place(
        self,
        file: &str,
        name: &str,
        alignment: usize,
        data_start: usize,
        file_bytes: usize,
    ) -> Result<Entry, CheckpointError> {
        let Self { kind, shape, bytes, offset } = self;
        let refuse = |problem| tensor_error(file, name, "offset", problem);
        let range = usize::try_from(offset).ok().and_then(|offset| {
            let start = data_start.checked_add(offset)?;
            Some(start..start.checked_add(bytes)?)
        });
        let Some(range) = range.filter(|range| range.end <= file_bytes) else {
            let data = file_bytes.saturating_sub(data_start);
            return Err(refuse(format!(
                "{offset} with {bytes} bytes ends past the file's {data} data bytes: cut off? download it again"
            )));
        };
        if !(range.start - data_start).is_multiple_of(alignment) {
            return Err(refuse(format!("{offset} is not a multiple of the alignment {alignment}")));
        }
        Ok(Entry { kind, shape, range })
    }
}

/// Checks that the tensors' byte ranges do not overlap.
fn check_apart(
    file: &str,
    tensors: &BTreeMap<String, Entry>,
    data_start: usize,
) -> Result<(), CheckpointError> {
    let mut order: Vec<(&String, &Entry)> = tensors.iter().collect();
    order.sort_by_key(|(_, entry)| (entry.range.start, entry.range.end));
    for pair in order.windows(2) {
        let [(before, first), (name, second)] = pair else { continue };
        if second.range.start < first.range.end {
            let offset = second.range.start - data_start;
            let problem = format!("{offset} lies within the bytes of tensor \"{}\"", shown(before));
            return Err(tensor_error(file, name, "offset", problem));
        }
    }
    Ok(())
}
