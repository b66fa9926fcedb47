//! Writes GGUF files, version 3: metadata and tensor list first, then the tensors' bytes in the same order. Must not
//! know what any key or tensor is for.

use std::fmt;
use std::io::Write;

use crate::tensor::DType;

use super::tensor_type::TensorType;
use super::value::{ARRAY_TYPE, NumberKind, Numbers, TEXT_TYPE, Texts, Value};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT_BYTES, MAGIC};

/// The GGUF version that is written.
const VERSION: u32 = 3;

/// A metadata value, with the width in which it is stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// 32 bits, unsigned: sizes and ids.
    U32(u32),
    /// 32 bits.
    F32(f32),
    /// One byte.
    Bool(bool),
    /// UTF-8.
    Text(String),
    /// A list of texts.
    Texts(Texts),
    /// A list of numbers.
    Numbers(Numbers),
}

/// Collects the metadata and the tensor list of a file.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    metadata: Vec<(String, Setting)>,
    tensors: Vec<Planned>,
    data_bytes: u64,
}

#[derive(Debug, Clone)]
struct Planned {
    name: String,
    kind: &'static TensorType,
    /// Outermost dimension first.
    shape: Vec<usize>,
    bytes: u64,
    offset: u64,
}

/// A file whose header is written. Its tensors follow one by one.
#[derive(Debug)]
pub struct Body<W> {
    out: W,
    tensors: std::vec::IntoIter<Planned>,
    /// Bytes of the data part written so far.
    at: u64,
}

/// Why a file could not be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The operating system's error.
    Io(std::io::Error),
    /// A tensor is invalid, or differs from its announcement.
    Tensor {
        /// The tensor's name.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Tensor { name, problem } => write!(f, "tensor \"{name}\": {problem}"),
        }
    }
}

impl std::error::Error for WriteError {}

impl From<std::io::Error> for WriteError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Writer {
    /// Creates a writer without keys or tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key. Each key may be set only once.
    pub fn set(&mut self, key: &str, value: Setting) {
        debug_assert!(self.metadata.iter().all(|(other, _)| other != key), "{key} is set twice");
        self.metadata.push((key.to_owned(), value));
    }

    /// Announces a tensor: its name **in llama.cpp's spelling**, its type, and its dimensions, outermost first.
    ///
    /// # Errors
    /// [`WriteError::Tensor`] if GGUF does not know the type, if a row is not a whole number of blocks, or if the name
    /// is already used.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), WriteError> {
        let refuse =
            |problem: &str| WriteError::Tensor { name: name.to_owned(), problem: problem.to_owned() };
        let kind = TensorType::of_dtype(dtype).ok_or_else(|| refuse("has a type that GGUF does not know"))?;
        let bytes = dtype.tensor_bytes(shape).and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| refuse("has rows that are not whole blocks, or is too large"))?;
        if self.tensors.iter().any(|other| other.name == name) {
            return Err(refuse("is announced twice"));
        }
        let offset = self.data_bytes;
        let end = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        self.data_bytes = end.ok_or_else(|| refuse("is too large"))?;
        self.tensors.push(Planned { name: name.to_owned(), kind, shape: shape.to_vec(), bytes, offset });
        Ok(())
    }

    /// Size of the data part in bytes, padding included.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Writes everything before the tensors.
    pub fn begin<W: Write>(self, mut out: W) -> Result<Body<W>, WriteError> {
        let mut header = Vec::new();
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        count(&mut header, self.tensors.len());
        count(&mut header, self.metadata.len() + 1);
        text(&mut header, ALIGNMENT_KEY);
        Setting::U32(DEFAULT_ALIGNMENT_BYTES as u32).write(&mut header);
        for (key, value) in &self.metadata {
            text(&mut header, key);
            value.write(&mut header);
        }
        for tensor in &self.tensors {
            text(&mut header, &tensor.name);
            header.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|dimension| count(&mut header, *dimension));
            header.extend_from_slice(&tensor.kind.id.to_le_bytes());
            header.extend_from_slice(&tensor.offset.to_le_bytes());
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT_BYTES), 0);
        out.write_all(&header)?;
        Ok(Body { out, tensors: self.tensors.into_iter(), at: 0 })
    }
}

const ALIGNMENT: u64 = DEFAULT_ALIGNMENT_BYTES as u64;

impl<W: Write> Body<W> {
    /// Writes the next tensor's bytes: row-major, little-endian.
    ///
    /// # Errors
    /// [`WriteError::Tensor`] if the length differs from the announcement, or if all tensors are written.
    /// [`WriteError::Io`] if the bytes cannot be written.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let Some(planned) = self.tensors.next() else {
            let problem = "was not announced".to_owned();
            return Err(WriteError::Tensor { name: String::new(), problem });
        };
        if planned.bytes != bytes.len() as u64 {
            let problem = format!("has {} bytes, {} were announced", bytes.len(), planned.bytes);
            return Err(WriteError::Tensor { name: planned.name, problem });
        }
        let padding = [0; DEFAULT_ALIGNMENT_BYTES];
        let missing = bytes.len().next_multiple_of(DEFAULT_ALIGNMENT_BYTES) - bytes.len();
        self.out.write_all(bytes)?;
        self.out.write_all(padding.get(..missing).unwrap_or_default())?;
        self.at += (bytes.len() + missing) as u64;
        Ok(())
    }

    /// Bytes of the data part written so far, padding included.
    pub fn written(&self) -> u64 {
        self.at
    }

    /// Finishes the file and returns its output.
    ///
    /// # Errors
    /// [`WriteError::Tensor`] if a tensor is missing, [`WriteError::Io`] if the last bytes cannot be written.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(planned) = self.tensors.next() {
            return Err(WriteError::Tensor { name: planned.name, problem: "was not written".to_owned() });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

impl Setting {
    /// The value as it is read.
    pub fn value(&self) -> Value {
        match self {
            Self::U32(n) => Value::Integer(i128::from(*n)),
            Self::F32(n) => Value::Float(f64::from(*n)),
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Text(text) => Value::Text(text.clone()),
            Self::Texts(texts) => Value::Texts(texts.clone()),
            Self::Numbers(numbers) => Value::Numbers(numbers.clone()),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut typed = |id: u32, bytes: &[u8]| {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(bytes);
        };
        match self {
            Self::U32(n) => typed(NumberKind::U32.id(), &n.to_le_bytes()),
            Self::F32(n) => typed(NumberKind::F32.id(), &n.to_le_bytes()),
            Self::Bool(flag) => typed(NumberKind::Bool.id(), &[u8::from(*flag)]),
            Self::Text(value) => {
                typed(TEXT_TYPE, &[]);
                text(out, value);
            }
            Self::Texts(texts) => {
                typed(ARRAY_TYPE, &TEXT_TYPE.to_le_bytes());
                count(out, texts.len());
                texts.iter().for_each(|item| text(out, item));
            }
            Self::Numbers(numbers) => {
                typed(ARRAY_TYPE, &numbers.kind().id().to_le_bytes());
                count(out, numbers.len());
                out.extend_from_slice(numbers.raw());
            }
        }
    }
}

fn count(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u64).to_le_bytes());
}

fn text(out: &mut Vec<u8>, value: &str) {
    count(out, value.len());
    out.extend_from_slice(value.as_bytes());
}
