//! The seam over a device: memory, kernels by name, and recordings of many launches. Must not know: what the kernels
//! compute. Tests implement it with an emulation that runs the same kernels on the host.

#[cfg(feature = "cuda")]
mod nvidia;

use std::fmt;

#[cfg(feature = "cuda")]
pub use nvidia::{Compiled, Images, Nvidia, compile};

/// A region of a device's memory, or a part of one. Valid until it is freed or the device is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Start address in the device's address space.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
}

impl Buffer {
    /// Returns `bytes` of this buffer, starting at `offset`.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if the part is not within the buffer.
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

/// Memory of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Memory that is not allocated.
    pub free: usize,
    /// Total memory.
    pub total: usize,
}

/// Index of a recording: many launches that are replayed as one. Valid for the device that recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recording(pub usize);

/// Arguments of a kernel. Each starts at its own word of 8 bytes.
#[derive(Clone, Default, Debug)]
pub struct Arguments {
    words: Vec<u64>,
    begins: Vec<usize>,
}

impl Arguments {
    /// Appends an address. `None` becomes 0.
    pub fn address(self, of: Option<Buffer>) -> Arguments {
        self.words(&[of.map_or(0, |buffer| buffer.address)])
    }

    /// Appends a 32-bit integer.
    pub fn int(self, value: i32) -> Arguments {
        self.words(&[u64::from(value.cast_unsigned())])
    }

    /// Appends a 32-bit float.
    pub fn float(self, value: f32) -> Arguments {
        self.words(&[u64::from(value.to_bits())])
    }

    /// Appends a structure in its memory layout (little-endian).
    pub fn words(mut self, words: &[u64]) -> Arguments {
        self.begins.push(self.words.len());
        self.words.extend_from_slice(words);
        self
    }

    /// Returns a pointer to each argument. The pointers are valid while `self` lives unchanged.
    pub fn pointers(&self) -> Vec<*const u64> {
        self.begins.iter().filter_map(|&begin| self.words.get(begin..)).map(<[u64]>::as_ptr).collect()
    }
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel's name in the sources.
    pub kernel: &'static str,
    /// Number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// The kernel's arguments.
    pub arguments: Arguments,
}

/// Why a device operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no device, or a library that it needs is missing. Nothing was started.
    Missing {
        /// What is missing, and what to do.
        what: String,
    },
    /// The device is out of memory.
    OutOfMemory {
        /// Requested bytes.
        asked: usize,
        /// Free bytes.
        free: usize,
    },
    /// A size that a kernel cannot work with. Nothing was started.
    Shape {
        /// The quantity with that size.
        what: &'static str,
        /// What is wrong with the size.
        problem: String,
    },
    /// A kernel did not compile.
    Compile {
        /// The source file.
        file: &'static str,
        /// The compiler's log.
        log: String,
    },
    /// The device or its driver reported an error. All work in progress is lost.
    Failed {
        /// The operation that failed.
        during: &'static str,
        /// The driver's message.
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

/// Uploads data to a device from a separate thread, in parallel with the device's other work.
pub trait Upload: Send {
    /// Copies `bytes` into the device's memory. The caller may reuse the bytes after the call.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if the lengths differ, [`DeviceError::Failed`] if the device reports an error.
    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError>;
}

/// A device with one queue. Launches, copies and replays run in call order, and may run after the call returns.
/// `download` and `synchronize` wait for all of them. An error may be reported by a later call than the one that caused
/// it.
pub trait Device: Send {
    /// The device's name and compute capability. Part of a model's numerics, because bits may differ between devices.
    fn name(&self) -> &str;

    /// Number of multiprocessors: the thread blocks that really run in parallel, at one block per multiprocessor.
    fn multiprocessors(&self) -> usize;

    /// Whether the tensor cores have `wgmma` (compute capability 9.0). It gives the same bits as `mma.sync`.
    fn has_wgmma(&self) -> bool;

    /// Returns the current memory figures.
    fn memory(&self) -> Result<Memory, DeviceError>;

    /// Allocates memory with unspecified contents, aligned to at least 16 bytes.
    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError>;

    /// Frees memory that [`Device::allocate`] returned.
    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Fills a buffer with zeros.
    fn clear(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Copies `bytes` into the device's memory, after all earlier operations. The caller may reuse the bytes after the
    /// call.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if the lengths differ, [`DeviceError::Failed`].
    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Returns a handle that uploads from another thread, in parallel with this device's work.
    fn uploader(&self) -> Result<Box<dyn Upload>, DeviceError>;

    /// Waits for all operations, then copies out of the device's memory.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if the lengths differ, [`DeviceError::Failed`].
    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError>;

    /// Launches a kernel.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if there is no such kernel or the shape is invalid, [`DeviceError::Failed`].
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError>;

    /// Waits for all operations.
    fn synchronize(&mut self) -> Result<(), DeviceError>;

    /// Starts a recording. Launches are recorded and do not run until [`Device::end_recording`].
    fn begin_recording(&mut self) -> Result<(), DeviceError>;

    /// Ends the recording and returns the launches since [`Device::begin_recording`], which can be replayed any number
    /// of times.
    ///
    /// # Errors
    /// [`DeviceError::Failed`]. The recording has ended in any case.
    fn end_recording(&mut self) -> Result<Recording, DeviceError>;

    /// Runs the recorded launches.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if there is no such recording, [`DeviceError::Failed`].
    fn replay(&mut self, recording: Recording) -> Result<(), DeviceError>;
}
