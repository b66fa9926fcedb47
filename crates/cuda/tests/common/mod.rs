//! A device for tests. By default the host's C++ compiler compiles the kernels, and they run thread by thread
//! (`tests/emulation`). With HEADRACE_CUDA set, tests use the real device. In the emulation, uploads and downloads are
//! copies, and recordings are lists of launches.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{CString, c_char, c_void};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use headrace_checkpoint::{Checkpoint, CheckpointError};
use headrace_cuda::device::{Buffer, Device, DeviceError, Launch, Memory, Recording, Upload};
use headrace_cuda::kernels::{COMMON, WGMMA_ARCHITECTURE, sources};
use libloading::Library;

/// The oracle of this name.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

/// Reads an oracle's directory. Oracles without a tokenizer get an empty one.
pub(crate) fn directory(dir: &Path) -> Result<Checkpoint, CheckpointError> {
    let mut files: Vec<(String, Cow<'static, [u8]>)> = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "expected.json" && name != "config.v5.json" {
            files.push((name.clone(), Cow::Owned(std::fs::read(dir.join(&name)).unwrap())));
        }
    }
    if !files.iter().any(|(name, _)| name == "tokenizer.json") {
        files.push(("tokenizer.json".to_owned(), Cow::Borrowed(b"{}")));
    }
    Checkpoint::from_files(files)
}

/// The device on which tests run.
pub(crate) fn device() -> Box<dyn Device> {
    match std::env::var_os("HEADRACE_CUDA") {
        Some(_) => real(),
        None => Box::new(Emulated::new()),
    }
}

/// Whether tests use a real device.
pub(crate) fn is_real() -> bool {
    std::env::var_os("HEADRACE_CUDA").is_some()
}

#[cfg(feature = "cuda")]
fn real() -> Box<dyn Device> {
    use headrace_cuda::device::{Images, Nvidia};
    // Compiled once for all tests of a program.
    static IMAGES: OnceLock<Images> = OnceLock::new();
    let images = IMAGES.get_or_init(|| Nvidia::open(0).expect("HEADRACE_CUDA is set: a device").images());
    Box::new(Nvidia::open_with(0, Some(images.clone())).expect("a device"))
}

#[cfg(not(feature = "cuda"))]
fn real() -> Box<dyn Device> {
    panic!("HEADRACE_CUDA is set: build the tests with --features cuda")
}

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, usize);
type Run = unsafe extern "C" fn(*const c_char, *const u32, u32, usize, *const *const u64) -> i32;

/// The number of multiprocessors that the emulation reports. It is low, so that small products use every way of
/// computing.
pub(crate) const MULTIPROCESSORS: usize = 4;
/// The memory that the emulation reports.
pub(crate) const MEMORY_BYTES: usize = 1 << 30;

/// The emulated device. See the top of the file.
pub(crate) struct Emulated {
    library: &'static Library,
    /// Shared with tests that write to the device's memory between steps.
    pub(crate) buffers: Arc<Mutex<Vec<Buffer>>>,
    recording: Option<Vec<Launch>>,
    recordings: Vec<Vec<Launch>>,
    /// Number of launches of each kernel, by name.
    pub(crate) launched: std::collections::BTreeMap<&'static str, usize>,
    pub(crate) memory_bytes: usize,
    pub(crate) has_wgmma: bool,
    /// A fault to inject, and the index of the launch that it hits, from 0.
    pub(crate) trouble: Option<(usize, Trouble)>,
}

/// Faults of a device during a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    Fails,
    Panics,
}

impl Emulated {
    pub(crate) fn new() -> Emulated {
        Emulated {
            library: library(),
            buffers: Arc::default(),
            recording: None,
            recordings: Vec::new(),
            launched: Default::default(),
            memory_bytes: MEMORY_BYTES,
            has_wgmma: true,
            trouble: None,
        }
    }

    fn used(&self) -> usize {
        self.buffers.lock().unwrap().iter().map(|buffer| buffer.bytes).sum()
    }

    fn run(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        let so_far: usize = self.launched.values().sum();
        match self.trouble.filter(|(at, _)| *at == so_far).map(|(_, trouble)| trouble) {
            None => {}
            Some(Trouble::Panics) => panic!("a launch that panics"),
            Some(Trouble::Fails) => {
                self.trouble = None;
                let problem = "an illegal address".to_owned();
                return Err(DeviceError::Failed { during: launch.kernel, problem });
            }
        }
        let name = CString::new(launch.kernel).unwrap();
        let pointers = launch.arguments.pointers();
        // SAFETY: the library declares the function with this type, and the arguments live until the call returns.
        let code = unsafe {
            let run = self.library.get::<Run>(b"device_launch").unwrap();
            run(
                name.as_ptr(),
                launch.grid.as_ptr(),
                launch.threads,
                launch.shared_bytes as usize,
                pointers.as_ptr(),
            )
        };
        *self.launched.entry(launch.kernel).or_default() += 1;
        match code {
            0 => Ok(()),
            _ => Err(DeviceError::Shape { what: "launch", problem: format!("{launch:?}") }),
        }
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        for buffer in self.buffers.lock().unwrap().drain(..) {
            // SAFETY: the buffer was allocated by this library and is freed once.
            unsafe {
                let free = self.library.get::<Free>(b"device_free").unwrap();
                free(buffer.address as *mut c_void, buffer.bytes);
            }
        }
    }
}

/// Fills a part of an emulated device's memory with NaN. No launch may run at the same time.
pub(crate) fn poison(buffer: Buffer) {
    Direct.upload(buffer, &vec![0xff; buffer.bytes]).unwrap();
}

struct Direct;

impl Upload for Direct {
    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError> {
        if to.bytes != bytes.len() {
            let problem = format!("{} bytes to {}", bytes.len(), to.bytes);
            return Err(DeviceError::Shape { what: "upload", problem });
        }
        // SAFETY: buffers are memory of this process with that length, and no launch runs at the same time.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.address as *mut u8, bytes.len()) };
        Ok(())
    }
}

impl Device for Emulated {
    fn name(&self) -> &str {
        "emulated"
    }

    fn multiprocessors(&self) -> usize {
        MULTIPROCESSORS
    }

    fn has_wgmma(&self) -> bool {
        self.has_wgmma
    }

    fn memory(&self) -> Result<Memory, DeviceError> {
        Ok(Memory { free: self.memory_bytes - self.used(), total: self.memory_bytes })
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        if self.used() + bytes > self.memory_bytes {
            return Err(DeviceError::OutOfMemory { asked: bytes, free: self.memory_bytes - self.used() });
        }
        // SAFETY: the library declares the function with this type.
        let at = unsafe { self.library.get::<Allocate>(b"device_allocate").unwrap()(bytes) };
        assert!(!at.is_null());
        let buffer = Buffer { address: at as u64, bytes };
        self.buffers.lock().unwrap().push(buffer);
        Ok(buffer)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        let mut buffers = self.buffers.lock().unwrap();
        let at = buffers.iter().position(|other| *other == buffer).expect("a buffer is freed once");
        buffers.swap_remove(at);
        // SAFETY: the buffer was allocated by this library and is freed once.
        unsafe {
            self.library.get::<Free>(b"device_free").unwrap()(buffer.address as *mut c_void, buffer.bytes)
        };
        Ok(())
    }

    fn clear(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        Direct.upload(buffer, &vec![0; buffer.bytes])
    }

    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(self.recording.is_none(), "an upload is not recorded");
        Direct.upload(to, bytes)
    }

    fn uploader(&self) -> Result<Box<dyn Upload>, DeviceError> {
        Ok(Box::new(Direct))
    }

    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError> {
        assert!(self.recording.is_none(), "a download is not recorded");
        assert_eq!(from.bytes, to.len() * 4);
        // SAFETY: buffers are memory of this process with that length, and any bits are a valid float.
        unsafe {
            std::ptr::copy_nonoverlapping(from.address as *const u8, to.as_mut_ptr().cast(), from.bytes)
        };
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        assert!(launch.grid.iter().all(|&blocks| blocks > 0), "{launch:?}");
        assert!(launch.grid[1] <= 65_535 && launch.grid[2] <= 65_535, "{launch:?}");
        match &mut self.recording {
            Some(recording) => recording.push(launch.clone()),
            None => self.run(launch)?,
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        assert!(self.recording.replace(Vec::new()).is_none());
        Ok(())
    }

    fn end_recording(&mut self) -> Result<Recording, DeviceError> {
        self.recordings.push(self.recording.take().expect("a recording was begun"));
        Ok(Recording(self.recordings.len() - 1))
    }

    fn replay(&mut self, recording: Recording) -> Result<(), DeviceError> {
        let launches = self.recordings[recording.0].clone();
        launches.iter().try_for_each(|launch| self.run(launch))
    }
}

/// The kernels and the emulation as one library, recompiled if their text has changed.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = compile();
        // SAFETY: its only initializers are those of the C++ library.
        unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    })
}

fn compile() -> PathBuf {
    let emulation = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulation");
    let kernels: String =
        std::iter::once(COMMON).chain(sources(WGMMA_ARCHITECTURE).map(|(_, text)| text)).collect();
    let mut hasher = DefaultHasher::new();
    kernels.hash(&mut hasher);
    for file in ["device.cpp", "emulated.h"] {
        std::fs::read(emulation.join(file)).unwrap().hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("emulated-{:016x}.so", hasher.finish()));
    if library.exists() {
        return library;
    }
    // Several test programs may compile at the same time. All of them produce the same library, so the last one may
    // replace it.
    let own = folder.join(format!("emulated-{}", std::process::id()));
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("all.cu"), kernels).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let output = Command::new(&compiler)
        .args([
            "-std=c++17",
            "-O3",
            "-march=native",
            "-g1",
            "-DEMULATED",
            "-fPIC",
            "-shared",
            "-ffp-contract=off",
        ])
        .args([
            "-U_FORTIFY_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-Wno-unused-function",
        ])
        .args(["-Wno-clobbered", "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"])
        .arg("-I")
        .arg(&own)
        .arg("-I")
        .arg(&emulation)
        .arg(emulation.join("device.cpp"))
        .arg("-o")
        .arg(own.join("emulated.so"))
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}: these tests need a C++ compiler (Debian: g++)"));
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(own.join("emulated.so"), &library).unwrap();
    std::fs::remove_dir_all(&own).unwrap();
    library
}
