//! The seam over a device: memory, kernels by name, and recordings of many launches.
//! Must not know: what the kernels compute. The tests fill it with an emulation that runs the same kernels on the host.

#[cfg(feature = "cuda")]
mod nvidia;

use std::fmt;

#[cfg(feature = "cuda")]
pub use nvidia::{Compiled, Images, Nvidia, compile};

/// Memory of a device, or a part of one. It is the device's until it is freed or the device is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Where it begins, as the device counts.
    pub address: u64,
    /// How long it is.
    pub bytes: usize,
}

impl Buffer {
    /// `bytes` of it, beginning at `offset`.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] where that is not within it.
    pub fn part(self, offset: usize, bytes: usize) -> Result<Buffer, DeviceError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(Buffer { address: self.address + offset as u64, bytes }),
            _ => Err(DeviceError::Shape {
                what: "memory",
                problem: format!("{bytes} bytes at {offset} of a buffer of {}", self.bytes),
            }),
        }
    }
}

/// How much memory a device has, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// What nobody has taken.
    pub free: usize,
    /// All of it.
    pub total: usize,
}

/// Many launches that are replayed as one. Of the device that recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recording(pub usize);

/// Arguments of a kernel, each at its own words of 8 bytes.
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    words: Vec<u64>,
    begins: Vec<usize>,
}

impl Arguments {
    /// An address; 0 for none.
    pub fn address(self, of: Option<Buffer>) -> Arguments {
        self.words(&[of.map_or(0, |buffer| buffer.address)])
    }

    /// A 32-bit integer.
    pub fn int(self, value: i32) -> Arguments {
        self.words(&[u64::from(value.cast_unsigned())])
    }

    /// A 32-bit float.
    pub fn float(self, value: f32) -> Arguments {
        self.words(&[u64::from(value.to_bits())])
    }

    /// A structure, as it lies in memory (little-endian).
    pub fn words(mut self, words: &[u64]) -> Arguments {
        self.begins.push(self.words.len());
        self.words.extend_from_slice(words);
        self
    }

    /// A pointer to each argument, which live as long as this.
    pub fn pointers(&self) -> Vec<*const u64> {
        self.begins.iter().filter_map(|&begin| self.words.get(begin..)).map(<[u64]>::as_ptr).collect()
    }
}

/// A kernel to run.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its name in the sources.
    pub kernel: &'static str,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// What it is given.
    pub arguments: Arguments,
}

/// Why a device did not do what it was asked to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no device to work on, or something that it needs is missing; nothing was begun.
    Missing {
        /// What is missing, and what to do.
        what: String,
    },
    /// Not enough memory.
    OutOfMemory {
        /// What was asked for, in bytes.
        asked: usize,
        /// What was free.
        free: usize,
    },
    /// A size that a kernel cannot work with; nothing was begun.
    Shape {
        /// Of what.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A kernel did not compile.
    Compile {
        /// The file.
        file: &'static str,
        /// What the compiler said.
        log: String,
    },
    /// The device, or its driver, reported an error. What was under way is void.
    Failed {
        /// What was being done.
        during: &'static str,
        /// What was said.
        problem: String,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Missing { what } => out.write_str(what),
            DeviceError::OutOfMemory { asked, free } => {
                write!(out, "the device has no {asked} bytes of memory left; {free} are free")
            }
            DeviceError::Shape { what, problem } => write!(out, "{what}: {problem}"),
            DeviceError::Compile { file, log } => {
                write!(out, "{file} does not compile for this device: {log}")
            }
            DeviceError::Failed { during, problem } => {
                write!(out, "the device failed during {during}: {problem}")
            }
        }
    }
}

impl std::error::Error for DeviceError {}

/// Brings data to a device beside what the device does otherwise, from a thread of its own.
pub trait Upload: Send {
    /// Copies into the device's memory. The bytes may be reused when it returns.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] where the lengths differ, [`DeviceError::Failed`] where the device says so.
    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError>;
}

/// What is launched, copied and replayed happens in this order, and later than the call returns, save that `download` and
/// `synchronize` wait for all of it. An error may show at a later call than the one that caused it.
pub trait Device: Send {
    /// Its name and what it computes with: part of a model's numerics, as bits may differ from device to device.
    fn name(&self) -> &str;

    /// How many blocks of threads it can really run at once, at one each for a multiprocessor.
    fn multiprocessors(&self) -> usize;

    /// How much memory there is now.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    fn memory(&self) -> Result<Memory, DeviceError>;

    /// Memory, of unspecified contents, aligned to 16 bytes at least.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError>;

    /// Gives memory back that [`Device::allocate`] gave out.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Writes zeros.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    fn clear(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Copies into the device's memory, behind what was asked for before. The bytes may be reused when it returns.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] where the lengths differ, [`DeviceError::Failed`].
    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Something that uploads beside this, from another thread.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    fn uploader(&self) -> Result<Box<dyn Upload>, DeviceError>;

    /// Waits for everything, then copies out of the device's memory.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] where the lengths differ, [`DeviceError::Failed`].
    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError>;

    /// Runs a kernel.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] where there is no such kernel or no such shape, [`DeviceError::Failed`].
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError>;

    /// Waits for everything.
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    fn synchronize(&mut self) -> Result<(), DeviceError>;

    /// From here on launches are recorded and do not run, until [`Device::end_recording`].
    ///
    /// # Errors
    /// [`DeviceError::Failed`].
    fn begin_recording(&mut self) -> Result<(), DeviceError>;

    /// What was launched since [`Device::begin_recording`], to be replayed any number of times.
    ///
    /// # Errors
    /// [`DeviceError::Failed`]. Recording has ended in any case.
    fn end_recording(&mut self) -> Result<Recording, DeviceError>;

    /// Runs what was recorded.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] where there is no such recording, [`DeviceError::Failed`].
    fn replay(&mut self, recording: Recording) -> Result<(), DeviceError>;
}
