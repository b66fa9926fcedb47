//! Downloads of many bytes: the device copies to page-locked memory in pieces, and several threads copy finished pieces
//! to their destination. A copy to ordinary memory would pass through the driver's own small buffer on one thread. Must
//! not know: what the numbers are.

use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::result as driver;
use cudarc::driver::sys;

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
    threads: usize,
}

// SAFETY: the memory and the events are used by this downloader only, and the driver allows any thread to use them.
unsafe impl Send for PinnedDownloader {}
// SAFETY: threads that share it only wait for events, and read pieces that the device has finished writing.
unsafe impl Sync for PinnedDownloader {}

impl PinnedDownloader {
    /// Allocates the page-locked memory. The device's context must be current.
    pub(super) fn new() -> Result<PinnedDownloader, DeviceError> {
        // SAFETY: the memory is written before it is read.
        let memory = unsafe { driver::malloc_host(PIECES * PIECE * size_of::<f32>(), 0) };
        let memory = memory.map_err(failed("locking memory"))?.cast();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let mut downloader = PinnedDownloader { memory, events: Vec::with_capacity(PIECES), threads };
        for _ in 0..PIECES {
            let event = driver::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
            downloader.events.push(event.map_err(failed("making an event"))?);
        }
        Ok(downloader)
    }

    /// Copies `from` to `to`, which have the same length, after all earlier operations of the stream.
    pub(super) fn download(
        &self,
        session: &Session,
        stream: sys::CUstream,
        from: Buffer,
        to: &mut [f32],
    ) -> Result<(), DeviceError> {
        let mut address = from.address;
        for part in to.chunks_mut(PIECES * PIECE) {
            for (index, (piece, &event)) in part.chunks(PIECE).zip(&self.events).enumerate() {
                // SAFETY: the piece is within the page-locked memory, and no copy from or to it is in progress.
                unsafe {
                    let staged = std::slice::from_raw_parts_mut(self.memory.add(index * PIECE), piece.len());
                    driver::memcpy_dtoh_async(staged, address, stream).map_err(failed("a download"))?;
                    driver::event::record(event, stream).map_err(failed("a download"))?;
                }
                address += size_of_val(piece) as u64;
            }
            let done = self.copy_pieces(session, part);
            if done.is_err() {
                // The staging memory must not be reused while a copy is in progress.
                // SAFETY: the stream is valid while the device is.
                let _ = unsafe { driver::stream::synchronize(stream) };
            }
            done?;
        }
        Ok(())
    }

    /// Copies each piece once its event has occurred.
    fn copy_pieces(&self, session: &Session, part: &mut [f32]) -> Result<(), DeviceError> {
        let pieces: Vec<std::sync::Mutex<Option<&mut [f32]>>> =
            part.chunks_mut(PIECE).map(|piece| std::sync::Mutex::new(Some(piece))).collect();
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), DeviceError> {
            session.enter()?;
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let (Some(piece), Some(&event)) = (pieces.get(index), self.events.get(index)) else {
                    return Ok(());
                };
                let Some(piece) = piece.lock().ok().and_then(|mut piece| piece.take()) else { continue };
                // SAFETY: the event was recorded after the copy of this piece. Nothing writes the piece afterwards.
                unsafe {
                    driver::event::synchronize(event).map_err(failed("a download"))?;
                    piece.copy_from_slice(std::slice::from_raw_parts(
                        self.memory.add(index * PIECE),
                        piece.len(),
                    ));
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..self.threads).map(|_| scope.spawn(work)).collect();
            let mine = work();
            threads.into_iter().fold(mine, |all, thread| {
                let done = thread.join().unwrap_or_else(|_| {
                    let problem = "a thread that copies panicked".to_owned();
                    Err(DeviceError::Failed { during: "a download", problem })
                });
                all.and(done)
            })
        })
    }
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
