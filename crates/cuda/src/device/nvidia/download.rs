//! Downloads of many bytes: the device copies to page-locked memory in pieces, and several threads copy finished pieces
//! to their destination. A copy to ordinary memory would pass through the driver's own small buffer on one thread. Must
//! not know: what the numbers are.

use std::sync::Mutex;

use cudarc::driver::result as driver;
use cudarc::driver::sys;
use headrace_kernels::KernelError;
use headrace_kernels::pool::Pool;

use super::session::{Session, failed};
use crate::device::{Buffer, DeviceError};

/// Floats of a piece: 1 MiB.
const PIECE: usize = 256 << 10;
/// Pieces that fit the page-locked memory.
const PIECES: usize = 64;
/// Maximum threads that copy.
const THREADS: usize = 4;
/// Smaller downloads are copied directly.
pub(super) const LEAST_FLOATS: usize = 2 * PIECE;

/// Page-locked memory, and an event for each piece of it.
pub(super) struct PinnedDownloader {
    memory: *mut f32,
    events: Vec<sys::CUevent>,
    pool: Pool,
}

// SAFETY: the memory and the events are used by this downloader only, and the driver allows any thread to use them.
unsafe impl Send for PinnedDownloader {}

impl PinnedDownloader {
    /// Allocates the page-locked memory. The device's context must be current.
    pub(super) fn new() -> Result<PinnedDownloader, DeviceError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let pool = Pool::new(threads).map_err(unstarted)?;
        // SAFETY: the memory is written before it is read.
        let memory = unsafe { driver::malloc_host(PIECES * PIECE * size_of::<f32>(), 0) };
        let memory = memory.map_err(failed("locking memory"))?.cast();
        let mut downloader = PinnedDownloader { memory, events: Vec::with_capacity(PIECES), pool };
        for _ in 0..PIECES {
            let event = driver::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
            downloader.events.push(event.map_err(failed("making an event"))?);
        }
        Ok(downloader)
    }

    /// Copies `from` to `to`, which have the same length, after all earlier operations of the stream.
    pub(super) fn download(
        &mut self,
        session: &Session,
        stream: sys::CUstream,
        from: Buffer,
        to: &mut [f32],
    ) -> Result<(), DeviceError> {
        let mut address = from.address;
        for part in to.chunks_mut(PIECES * PIECE) {
            let done = self.stage(stream, address, part.len()).and_then(|()| self.copy_staged(session, part));
            if done.is_err() {
                // The page-locked memory must not be reused while a copy to it is in progress.
                // SAFETY: the stream is valid while the device is.
                let _ = unsafe { driver::stream::synchronize(stream) };
            }
            done?;
            address += size_of_val(part) as u64;
        }
        Ok(())
    }

    /// Starts the copies of `floats` floats to the page-locked memory, piece by piece.
    fn stage(&self, stream: sys::CUstream, from: u64, floats: usize) -> Result<(), DeviceError> {
        for (begin, &event) in (0..floats).step_by(PIECE).zip(&self.events) {
            let count = PIECE.min(floats - begin);
            // SAFETY: the piece is within the page-locked memory, and no copy from or to it is in progress.
            unsafe {
                let staged = std::slice::from_raw_parts_mut(self.memory.add(begin), count);
                let from = from + (begin * size_of::<f32>()) as u64;
                driver::memcpy_dtoh_async(staged, from, stream).map_err(failed("a download"))?;
                driver::event::record(event, stream).map_err(failed("a download"))?;
            }
        }
        Ok(())
    }

    /// Copies each staged piece to its destination once its event has occurred.
    fn copy_staged(&mut self, session: &Session, to: &mut [f32]) -> Result<(), DeviceError> {
        let pieces: Vec<Mutex<&mut [f32]>> = to.chunks_mut(PIECE).map(Mutex::new).collect();
        let first_error = Mutex::new(None);
        let staged = StagedPieces { memory: self.memory, events: &self.events };
        let ran = self.pool.run(pieces.len(), |_, index| {
            let Some(Ok(mut piece)) = pieces.get(index).map(Mutex::lock) else { return };
            let copied = session.enter().and_then(|()| staged.copy(index, &mut piece));
            if let (Err(error), Ok(mut first)) = (copied, first_error.lock()) {
                first.get_or_insert(error);
            }
        });
        ran.map_err(unstarted)?;
        first_error.into_inner().ok().flatten().map_or(Ok(()), Err)
    }
}

/// The pieces in page-locked memory, as the threads see them.
struct StagedPieces<'a> {
    memory: *const f32,
    events: &'a [sys::CUevent],
}

// SAFETY: threads only wait for events, and read pieces that the device has finished writing.
unsafe impl Sync for StagedPieces<'_> {}

impl StagedPieces<'_> {
    /// Waits for a piece, and copies it.
    fn copy(&self, index: usize, to: &mut [f32]) -> Result<(), DeviceError> {
        let Some(&event) = self.events.get(index) else { return Ok(()) };
        // SAFETY: the event was recorded after the copy of this piece. Nothing writes the piece afterwards.
        unsafe {
            driver::event::synchronize(event).map_err(failed("a download"))?;
            to.copy_from_slice(std::slice::from_raw_parts(self.memory.add(index * PIECE), to.len()));
        }
        Ok(())
    }
}

/// Describes threads that were not started, or panicked.
fn unstarted(error: KernelError) -> DeviceError {
    DeviceError::Failed { during: "a download", problem: error.to_string() }
}

impl Drop for PinnedDownloader {
    fn drop(&mut self) {
        // SAFETY: `self` created all of them, and no copy is in progress.
        unsafe {
            let _ = driver::free_host(self.memory.cast());
            for event in self.events.drain(..) {
                let _ = driver::event::destroy(event);
            }
        }
    }
}
