//! Implements the device seam over NVIDIA's driver, with kernels that NVRTC compiles for the device. The crate's only
//! `unsafe` code. Must not know: what the kernels compute. A faulty launch is reported as the device's error, by that
//! call or a later one.

mod download;
mod session;
mod upload;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::result::{self as driver, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};
use headrace_kernels::pool::panic_message;

use self::download::{LEAST_FLOATS, PinnedDownloader};
use self::session::{Session, failed, same_length};
use self::upload::Uploader;
use super::{Buffer, Device, DeviceError, Launch, Memory, Recording, Upload};
use crate::kernels::{COMMON, OPTIONS, WGMMA_ARCHITECTURE, names, shared_bytes, sources};

/// The oldest compute capability with all features that the kernels use: bf16 tensor cores and asynchronous copies.
const OLDEST: (i32, i32) = (8, 0);
const NO_COMPILER: &str = "no NVRTC was found (libnvrtc.so.13 or .12): install CUDA's runtime compiler, and name its folder in \
                           LD_LIBRARY_PATH if the system does not know it";
/// All kernels, compiled for one kind of device.
pub type Images = Arc<[Compiled]>;

/// One GPU with its loaded kernels.
pub struct Nvidia {
    session: Session,
    stream: sys::CUstream,
    images: Images,
    modules: Vec<sys::CUmodule>,
    functions: BTreeMap<&'static str, sys::CUfunction>,
    buffers: Vec<Buffer>,
    recordings: Vec<sys::CUgraphExec>,
    /// Created by the first download of many bytes.
    downloader: Option<PinnedDownloader>,
    name: String,
    multiprocessors: usize,
    has_wgmma: bool,
    /// Whether a kernel may be started before the previous one has ended (compute capability 9.0 and later).
    overlaps_kernels: bool,
}

// SAFETY: the driver's handles may be used from any thread in which the context is current. Every call first makes it
// current.
unsafe impl Send for Nvidia {}

impl Nvidia {
    /// Opens the device with the given number and compiles all kernels for it, which takes seconds.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] if there is no driver, no NVRTC, no such device, or if its compute capability is below
    /// 8.0. [`DeviceError::Compile`] if a kernel does not compile.
    pub fn open(ordinal: u32) -> Result<Nvidia, DeviceError> {
        Self::open_with(ordinal, None)
    }

    /// Like [`Nvidia::open`], with kernels that [`Nvidia::images`] returned for a device of the same kind. This skips
    /// the compilation.
    ///
    /// # Errors
    /// Same as [`Nvidia::open`].
    pub fn open_with(ordinal: u32, images: Option<Images>) -> Result<Nvidia, DeviceError> {
        // A library of another version may lack a function. cudarc reports that with a panic.
        let looked = catch_unwind(AssertUnwindSafe(|| Self::look(ordinal, images)));
        looked.unwrap_or_else(|panic| {
            let what = format!("the CUDA libraries here cannot be used: {}", panic_message(&*panic));
            Err(DeviceError::Missing { what })
        })
    }

    /// The kernels that were compiled for this device.
    pub fn images(&self) -> Images {
        Arc::clone(&self.images)
    }

    fn look(ordinal: u32, images: Option<Images>) -> Result<Nvidia, DeviceError> {
        // SAFETY: loading the libraries runs only their initializers.
        let (has_driver, has_compiler) = unsafe { (sys::is_culib_present(), nvrtc_sys::is_culib_present()) };
        let missing = |what: &str| Err(DeviceError::Missing { what: what.to_owned() });
        if !has_driver {
            return missing(
                "no NVIDIA driver was found (libcuda.so.1): install it, or serve the model on the CPU",
            );
        }
        if !has_compiler {
            return missing(NO_COMPILER);
        }
        driver::init().map_err(failed("starting the driver"))?;
        let count = driver::device::get_count().map_err(failed("counting devices"))?;
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        if ordinal >= count {
            return missing(&format!("there is no CUDA device {ordinal}; the driver knows {count}"));
        }
        let session = Session::open(ordinal)?;
        session.enter()?;
        let major = session.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = session.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let model = driver::device::get_name(session.device).map_err(failed("asking the device"))?;
        if (major, minor) < OLDEST {
            return missing(&format!(
                "{model} has compute capability {major}.{minor}; the kernels need {}.{}",
                OLDEST.0, OLDEST.1
            ));
        }
        let multiprocessors =
            session.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking)
            .map_err(failed("opening a stream"))?;
        // Code for `sm_90a` runs on compute capability 9.0 alone, and may use `wgmma`.
        let architecture = match (major, minor) {
            (9, 0) => WGMMA_ARCHITECTURE.to_owned(),
            _ => format!("sm_{major}{minor}"),
        };
        let images = match images {
            Some(images) => images,
            None => compile_all(&architecture)?,
        };
        let mut nvidia = Nvidia {
            session,
            stream,
            images,
            modules: Vec::new(),
            functions: BTreeMap::new(),
            buffers: Vec::new(),
            recordings: Vec::new(),
            downloader: None,
            name: format!("{}-sm_{major}{minor}", model.replace(' ', "-")),
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1).max(1),
            has_wgmma: architecture == WGMMA_ARCHITECTURE,
            overlaps_kernels: major >= 9,
        };
        nvidia.load_kernels(&architecture)?;
        Ok(nvidia)
    }

    /// Loads the kernels of every file and looks up their functions by name.
    fn load_kernels(&mut self, architecture: &str) -> Result<(), DeviceError> {
        for Compiled { image, .. } in self.images.iter() {
            // SAFETY: the image is a complete cubin. It lives until the call returns, and the call copies it.
            let module = unsafe { driver::module::load_data(image.as_ptr().cast()) };
            self.modules.push(module.map_err(failed("loading the kernels"))?);
        }
        for name in names(architecture) {
            let function = self.find(name)?;
            let shared = i32::try_from(shared_bytes(name)).unwrap_or(i32::MAX);
            // SAFETY: the function belongs to a module that stays loaded while `self` lives.
            unsafe {
                driver::function::set_function_attribute(
                    function,
                    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared,
                )
            }
            .map_err(failed("giving a kernel its shared memory"))?;
            self.functions.insert(name, function);
        }
        Ok(())
    }

    fn find(&self, name: &'static str) -> Result<sys::CUfunction, DeviceError> {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the modules are loaded, and the name ends with a zero byte.
        let found = self
            .modules
            .iter()
            .find_map(|&module| unsafe { driver::module::get_function(module, text.clone()) }.ok());
        found.ok_or_else(|| DeviceError::Missing { what: format!("no kernel is called {name}") })
    }

    /// Returns the milliseconds that `work` takes on the device's own clock. For benchmarks.
    ///
    /// # Errors
    /// Returns the error of `work` or of the device.
    pub fn timed(
        &mut self,
        work: &mut dyn FnMut(&mut dyn Device) -> Result<(), DeviceError>,
    ) -> Result<f32, DeviceError> {
        self.session.enter()?;
        let event =
            || driver::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("making an event"));
        let (before, after) = (event()?, event()?);
        // SAFETY: events and stream are valid. The events are destroyed once, after their last use.
        unsafe {
            driver::event::record(before, self.stream).map_err(failed("recording an event"))?;
            work(self)?;
            driver::event::record(after, self.stream).map_err(failed("recording an event"))?;
            driver::event::synchronize(after).map_err(failed("waiting for an event"))?;
            let elapsed = driver::event::elapsed(before, after).map_err(failed("reading an event"))?;
            let _ = driver::event::destroy(before);
            let _ = driver::event::destroy(after);
            Ok(elapsed)
        }
    }

    /// Copies within the device's memory.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if the lengths differ, [`DeviceError::Failed`].
    pub fn copy(&mut self, to: Buffer, from: Buffer) -> Result<(), DeviceError> {
        same_length("copy", to, from.bytes)?;
        self.session.enter()?;
        // SAFETY: both buffers are memory of this device with that length.
        unsafe { driver::memcpy_dtod_async(to.address, from.address, from.bytes, self.stream) }
            .map_err(failed("a copy"))
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // A device that has failed refuses all of these calls. Its resources are then freed with the context.
        if self.session.enter().is_err() {
            return;
        }
        // SAFETY: `self` created all of these handles. Nothing uses them after the stream has finished.
        unsafe {
            let _ = driver::stream::synchronize(self.stream);
            self.downloader = None;
            for recording in self.recordings.drain(..) {
                let _ = driver::graph::exec_destroy(recording);
            }
            for buffer in self.buffers.drain(..) {
                let _ = driver::free_sync(buffer.address);
            }
            for module in self.modules.drain(..) {
                let _ = driver::module::unload(module);
            }
            let _ = driver::stream::destroy(self.stream);
        }
    }
}

impl Device for Nvidia {
    fn name(&self) -> &str {
        &self.name
    }

    fn has_wgmma(&self) -> bool {
        self.has_wgmma
    }

    fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    fn memory(&self) -> Result<Memory, DeviceError> {
        self.session.enter()?;
        let (free, total) = driver::mem_get_info().map_err(failed("asking for memory"))?;
        Ok(Memory { free, total })
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.session.enter()?;
        // An allocation of 0 bytes would have no address of its own, so it takes one byte.
        // SAFETY: the contents are unspecified, as the seam documents.
        match unsafe { driver::malloc_sync(bytes.max(1)) } {
            Ok(address) => {
                let buffer = Buffer { address, bytes };
                self.buffers.push(buffer);
                Ok(buffer)
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let free = self.memory().map_or(0, |memory| memory.free);
                Err(DeviceError::OutOfMemory { asked: bytes, free })
            }
            Err(error) => Err(failed("an allocation")(error)),
        }
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        let Some(at) = self.buffers.iter().position(|other| *other == buffer) else {
            return Err(DeviceError::Shape { what: "free", problem: "no such buffer".to_owned() });
        };
        self.synchronize()?;
        self.buffers.swap_remove(at);
        // SAFETY: the buffer was allocated here, is freed once, and no operation is in progress.
        unsafe { driver::free_sync(buffer.address) }.map_err(failed("freeing memory"))
    }

    fn clear(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        if buffer.bytes == 0 {
            return Ok(());
        }
        self.session.enter()?;
        // SAFETY: the buffer is memory of this device with that length.
        unsafe { driver::memset_d8_async(buffer.address, 0, buffer.bytes, self.stream) }
            .map_err(failed("clearing memory"))
    }

    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError> {
        same_length("upload", to, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.session.enter()?;
        // SAFETY: the driver has read pageable memory by the time the call returns.
        unsafe { driver::memcpy_htod_async(to.address, bytes, self.stream) }.map_err(failed("an upload"))
    }

    fn uploader(&self) -> Result<Box<dyn Upload>, DeviceError> {
        Uploader::new(self.session.device, self.session.context).map(|uploader| Box::new(uploader) as _)
    }

    fn download(&mut self, from: Buffer, to: &mut [f32]) -> Result<(), DeviceError> {
        same_length("download", from, size_of_val(to))?;
        if to.is_empty() {
            return Ok(());
        }
        self.session.enter()?;
        if to.len() >= LEAST_FLOATS {
            let mut downloader = match self.downloader.take() {
                Some(downloader) => downloader,
                None => PinnedDownloader::new()?,
            };
            let done = downloader.download(&self.session, self.stream, from, to);
            self.downloader = Some(downloader);
            return done;
        }
        // SAFETY: any bits are a valid float, and nothing else accesses `to` before the stream has finished.
        unsafe {
            driver::memcpy_dtoh_async(to, from.address, self.stream).map_err(failed("a download"))?;
            driver::stream::synchronize(self.stream).map_err(failed("a download"))
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        let Some(&function) = self.functions.get(launch.kernel) else {
            return Err(DeviceError::Shape {
                what: "launch",
                problem: format!("no kernel {}", launch.kernel),
            });
        };
        self.session.enter()?;
        let mut pointers: Vec<*mut c_void> =
            launch.arguments.pointers().into_iter().map(|pointer| pointer.cast_mut().cast()).collect();
        let [x, y, z] = launch.grid;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(self.overlaps_kernels),
        };
        // SAFETY: the function is loaded, and its arguments are read before the call returns. `ops` guarantees that
        // they match the function. If they did not, the device would fail, and no memory of this process would be
        // touched. Every kernel waits for the previous one before it touches shared data.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(failed(launch.kernel))
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.session.enter()?;
        // SAFETY: the stream belongs to `self`.
        unsafe { driver::stream::synchronize(self.stream) }.map_err(failed("a step"))
    }

    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        self.session.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream belongs to `self`.
        unsafe { driver::stream::begin_capture(self.stream, mode) }.map_err(failed("recording"))
    }

    fn end_recording(&mut self) -> Result<Recording, DeviceError> {
        self.session.enter()?;
        // SAFETY: the stream belongs to `self`. The graph is destroyed once, after its last use.
        let recording = unsafe {
            let graph = driver::stream::end_capture(self.stream).map_err(failed("recording"))?;
            if graph.is_null() {
                let problem = "nothing came of it".to_owned();
                return Err(DeviceError::Failed { during: "recording", problem });
            }
            let made = driver::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = driver::graph::destroy(graph);
            made.map_err(failed("recording"))?
        };
        self.recordings.push(recording);
        Ok(Recording(self.recordings.len() - 1))
    }

    fn replay(&mut self, recording: Recording) -> Result<(), DeviceError> {
        let Some(&graph) = self.recordings.get(recording.0) else {
            return Err(DeviceError::Shape { what: "replay", problem: "no such recording".to_owned() });
        };
        self.session.enter()?;
        // SAFETY: the recording was made here and lives as long as `self`.
        unsafe { driver::graph::launch(graph, self.stream) }.map_err(failed("a replay"))
    }
}

/// Compiles every source file on its own thread.
fn compile_all(architecture: &str) -> Result<Images, DeviceError> {
    std::thread::scope(|scope| {
        let begun: Vec<_> = sources(architecture)
            .map(|(file, text)| scope.spawn(move || compile(file, text, architecture)))
            .collect();
        let done = begun.into_iter().map(|thread| {
            let panicked =
                |panic: Box<dyn std::any::Any + Send>| DeviceError::Missing { what: panic_message(&*panic) };
            thread.join().map_err(panicked).flatten()
        });
        done.collect()
    })
}

/// A compiled file of kernels.
pub struct Compiled {
    /// The binary image for the driver.
    pub image: Vec<u8>,
    /// The compiler's report, with the registers and spills of each kernel.
    pub report: String,
}

/// Compiles one of [`sources`] for an architecture, such as `sm_90a`. Needs no device.
///
/// # Errors
/// [`DeviceError::Missing`] if there is no NVRTC, [`DeviceError::Compile`] if the file does not compile.
pub fn compile(file: &'static str, text: &str, architecture: &str) -> Result<Compiled, DeviceError> {
    // SAFETY: loading the library runs only its initializers.
    if !unsafe { nvrtc_sys::is_culib_present() } {
        return Err(DeviceError::Missing { what: NO_COMPILER.to_owned() });
    }
    let compiled = catch_unwind(|| compile_with(file, text, architecture));
    compiled.unwrap_or_else(|panic| Err(DeviceError::Compile { file, log: panic_message(&*panic) }))
}

fn compile_with(file: &'static str, text: &str, architecture: &str) -> Result<Compiled, DeviceError> {
    let problem = |log: String| DeviceError::Compile { file, log };
    let source = CString::new([COMMON, text].concat()).map_err(|error| problem(error.to_string()))?;
    let name = CString::new(file).unwrap_or_default();
    let options: Vec<String> = std::iter::once(format!("--gpu-architecture={architecture}"))
        .chain(OPTIONS.iter().map(|option| (*option).to_owned()))
        .collect();
    let program =
        Program(nvrtc::create_program(&source, Some(&name)).map_err(|error| problem(error.to_string()))?);
    // SAFETY: the handle is valid while `program` lives, and `image` has the reported length.
    unsafe {
        let done = nvrtc::compile_program(program.0, &options);
        let log = nvrtc::get_program_log(program.0).unwrap_or_default();
        let log: Vec<u8> = log.into_iter().map(|byte| byte.cast_unsigned()).collect();
        let report = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
        done.map_err(|error| problem(format!("{error}: {report}")))?;
        let failed = |error: nvrtc::NvrtcError| problem(error.to_string());
        let mut bytes = 0_usize;
        nvrtc_sys::nvrtcGetCUBINSize(program.0, &mut bytes).result().map_err(failed)?;
        let mut image = vec![0_u8; bytes];
        nvrtc_sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()).result().map_err(failed)?;
        Ok(Compiled { image, report })
    }
}

/// An NVRTC program.
struct Program(nvrtc_sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle was created together with `self` and is destroyed once.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}
