//! Reads the header of a safetensors file: 8 bytes of length, JSON of that length, then the data that the JSON
//! describes (<https://github.com/huggingface/safetensors#format>). Every offset is checked against the file's length.
//! The format's own library does not name the faulty field and accepts duplicate names. This reader does neither.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{CheckpointError, shown, shown_reason};
use crate::limits::{MAX_SAFETENSORS_HEADER_BYTES, MAX_TENSOR_NAME_BYTES, MAX_TENSOR_RANK, MAX_TENSORS};

/// Size in bytes of the length field at the start of a file.
const LENGTH_BYTES: usize = 8;
/// The member of the header that is not a tensor.
const METADATA: &str = "__metadata__";

/// The parsed header of a safetensors file, checked against the file's length. Every tensor's bytes are inside the
/// file, no two tensors overlap, and together they cover the whole data part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes before the data part: the length field and the JSON.
    pub data_start: usize,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Entry>,
}

/// One tensor of a [`Header`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Storage type of the elements.
    pub element: Element,
    /// Dimensions in elements, outermost first. Their product times the element size is the length of the bytes.
    pub shape: Vec<usize>,
    /// Byte range, from the start of the *file*. The start may have any alignment.
    pub range: Range<usize>,
}

/// A stored element type. Includes types that this project cannot compute with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// The type's name in the header.
    pub name: &'static str,
    /// The type's size in bits.
    pub bits: usize,
}

/// Names and sizes in bits of the element types of safetensors 0.8.
const ELEMENTS: [(&str, usize); 22] = [
    ("F32", 32),
    ("F16", 16),
    ("BF16", 16),
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("I32", 32),
    ("U32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

impl Header {
    /// Parses and checks the header of the file named `file` with the contents `bytes`.
    ///
    /// # Errors
    /// [`CheckpointError::Header`] if the container is broken, [`CheckpointError::Tensor`] if one tensor is.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let json = json_part(file, bytes)?;
        let data_start = LENGTH_BYTES + json.len();
        let data_bytes = bytes.len() - data_start;
        let text = std::str::from_utf8(json)
            .map_err(|e| broken(file, format!("header is not UTF-8 after {} bytes", e.valid_up_to())))?;
        let raw: RawHeader<'_> = serde_json::from_str(text)
            .map_err(|e| broken(file, format!("header is not as it should be: {}", shown_reason(&e))))?;
        let mut tensors = BTreeMap::new();
        let mut metadata = None;
        for (name, raw) in raw.0 {
            if name == METADATA {
                if metadata.replace(raw).is_some() {
                    return Err(broken(file, format!("{METADATA} is given twice in the header")));
                }
                value::<BTreeMap<String, String>>(raw).map_err(|problem| {
                    broken(file, format!("{METADATA} must map strings to strings: {problem}"))
                })?;
                continue;
            }
            let entry = entry(file, &name, raw, data_start, data_bytes)?;
            if tensors.contains_key(&name) {
                return Err(tensor_error(file, &name, "name", "is given twice in the header".to_owned()));
            }
            tensors.insert(name, entry);
        }
        check_cover(file, &tensors, data_start, bytes.len())?;
        Ok(Self { data_start, tensors })
    }
}

/// Returns the JSON part of the file, after checking its length.
fn json_part<'b>(file: &str, bytes: &'b [u8]) -> Result<&'b [u8], CheckpointError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        let problem = format!(
            "is {} bytes long and cannot hold the {LENGTH_BYTES}-byte header length: empty or cut off; download it again",
            bytes.len()
        );
        return Err(broken(file, problem));
    };
    let length = u64::from_le_bytes(*length);
    let header =
        usize::try_from(length).ok().filter(|n| *n <= MAX_SAFETENSORS_HEADER_BYTES).ok_or_else(|| {
            let cap = format!("{MAX_SAFETENSORS_HEADER_BYTES} (MAX_SAFETENSORS_HEADER_BYTES)");
            broken(file, format!("header length {length} is above the cap of {cap}: not a safetensors file?"))
        })?;
    let json = rest.get(..header).ok_or_else(|| {
        broken(
            file,
            format!("header length {length} is past the file's end, {} bytes further: cut off?", rest.len()),
        )
    })?;
    match json.first() {
        Some(b'{') => Ok(json),
        _ => Err(broken(file, "header does not start with \"{\"".to_owned())),
    }
}

/// The members of the header as raw text, so that an error can name the tensor.
struct RawHeader<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for RawHeader<'de> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(member) = members.next_entry::<String, &'de RawValue>()? {
            if list.len() > MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors (MAX_TENSORS)")));
            }
            list.push(member);
        }
        Ok(RawHeader(list))
    }
}

/// The fields of one tensor as raw text, so that an error can name the field.
#[derive(Deserialize)]
struct RawEntry<'a> {
    #[serde(borrow)]
    dtype: &'a RawValue,
    #[serde(borrow)]
    shape: &'a RawValue,
    #[serde(borrow)]
    data_offsets: &'a RawValue,
}

fn entry(
    file: &str,
    name: &str,
    raw: &RawValue,
    data_start: usize,
    data_bytes: usize,
) -> Result<Entry, CheckpointError> {
    let refuse = |field, problem| tensor_error(file, name, field, problem);
    if name.is_empty() || name.len() > MAX_TENSOR_NAME_BYTES {
        let problem = format!("is {} bytes long, expected 1 to {MAX_TENSOR_NAME_BYTES}", name.len());
        return Err(refuse("name", problem));
    }
    let raw: RawEntry<'_> = serde_json::from_str(raw.get())
        .map_err(|e| refuse("entry", format!("is not as it should be: {}", shown_reason(&e))))?;
    let dtype: String = value(raw.dtype).map_err(|problem| refuse("dtype", problem))?;
    let &(element, bits) = ELEMENTS
        .iter()
        .find(|(known, _)| *known == dtype)
        .ok_or_else(|| refuse("dtype", format!("\"{}\" is not one that safetensors knows", shown(&dtype))))?;
    let BoundedList(shape) = value(raw.shape).map_err(|problem| refuse("shape", problem))?;
    let BoundedList(offsets) = value(raw.data_offsets).map_err(|problem| refuse("data_offsets", problem))?;
    let [begin, end] = offsets[..] else {
        return Err(refuse("data_offsets", format!("{offsets:?} must be two: begin and end")));
    };
    if begin > end {
        return Err(refuse("data_offsets", format!("[{begin}, {end}] begin after they end")));
    }
    if end > data_bytes {
        let problem = format!("[{begin}, {end}] end past the file's {data_bytes} data bytes");
        return Err(refuse("data_offsets", problem));
    }
    let expected = byte_length(&shape, bits).map_err(|problem| refuse("shape", problem))?;
    if end - begin != expected {
        let problem = format!(
            "[{begin}, {end}] hold {} bytes, but dtype {element} and shape {shape:?} need {expected}",
            end - begin
        );
        return Err(refuse("data_offsets", problem));
    }
    // Both ends are at most `data_bytes`, and `data_start + data_bytes` is the file's length, so no sum overflows.
    let range = data_start + begin..data_start + end;
    Ok(Entry { element: Element { name: element, bits }, shape, range })
}

fn value<'de, T: Deserialize<'de>>(raw: &'de RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|e| format!("{}: {}", shown(raw.get()), shown_reason(&e)))
}

/// Size in bytes of `shape` at `bits` per element.
fn byte_length(shape: &[usize], bits: usize) -> Result<usize, String> {
    let total = shape
        .iter()
        .try_fold(1usize, |product, dimension| product.checked_mul(*dimension))
        .and_then(|elements| elements.checked_mul(bits))
        .ok_or_else(|| format!("{shape:?} at {bits} bits an element overflows"))?;
    if total % 8 != 0 {
        return Err(format!("{shape:?} at {bits} bits an element does not end at a whole byte"));
    }
    Ok(total / 8)
}

/// Checks that the tensors cover the data part without overlap, hole or rest.
fn check_cover(
    file: &str,
    tensors: &BTreeMap<String, Entry>,
    data_start: usize,
    file_bytes: usize,
) -> Result<(), CheckpointError> {
    let mut order: Vec<(&String, &Entry)> = tensors.iter().collect();
    order.sort_by_key(|(_, entry)| (entry.range.start, entry.range.end));
    let mut covered = data_start;
    let mut previous = "";
    for (name, entry) in order {
        // Offsets are shown as the header gives them: from the start of the data part.
        let (begin, end) = (entry.range.start - data_start, entry.range.end - data_start);
        if entry.range.start < covered {
            let problem = format!("[{begin}, {end}] overlap those of tensor \"{}\"", shown(previous));
            return Err(tensor_error(file, name, "data_offsets", problem));
        }
        if entry.range.start > covered {
            let hole = entry.range.start - covered;
            let problem = format!("[{begin}, {end}] leave a hole of {hole} bytes before them");
            return Err(tensor_error(file, name, "data_offsets", problem));
        }
        covered = entry.range.end;
        previous = name;
    }
    if covered != file_bytes {
        let problem = format!(
            "has {} data bytes, but its tensors describe {}",
            file_bytes - data_start,
            covered - data_start
        );
        return Err(broken(file, problem));
    }
    Ok(())
}

/// A list of at most [`MAX_TENSOR_RANK`] whole numbers that fit `usize`.
struct BoundedList(Vec<usize>);

impl<'de> Deserialize<'de> for BoundedList {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_seq(BoundedListVisitor)
    }
}

struct BoundedListVisitor;

impl<'de> Visitor<'de> for BoundedListVisitor {
    type Value = BoundedList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX_TENSOR_RANK} whole numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<usize>()? {
            if list.len() == MAX_TENSOR_RANK {
                return Err(A::Error::invalid_length(list.len() + 1, &self));
            }
            list.push(item);
        }
        Ok(BoundedList(list))
    }
}

fn broken(file: &str, problem: String) -> CheckpointError {
    CheckpointError::Header { file: file.to_owned(), problem }
}

fn tensor_error(file: &str, tensor: &str, field: &'static str, problem: String) -> CheckpointError {
    CheckpointError::Tensor { file: file.to_owned(), tensor: shown(tensor), field, problem }
}
