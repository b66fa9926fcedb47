//! Uploads from other threads. Must not know: what the bytes are.

use cudarc::driver::result as driver;
use cudarc::driver::sys;

use super::session::{Session, failed, same_length};
use crate::device::{Buffer, DeviceError, Upload};

/// Size of an uploader's page-locked memory.
const STAGING_BYTES: usize = 8 << 20;

/// An upload handle with its own stream and page-locked memory.
pub(super) struct Uploader {
    session: Session,
    stream: sys::CUstream,
    staging: *mut u8,
}

// SAFETY: as for `Nvidia`. The staging memory is used by this uploader only.
unsafe impl Send for Uploader {}

impl Uploader {
    pub(super) fn new(device: sys::CUdevice, context: sys::CUcontext) -> Result<Uploader, DeviceError> {
        // SAFETY: the holder of the context found the device. This second reference to the context is released with the
        // session.
        let held = unsafe { driver::primary_ctx::retain(device) }.map_err(failed("opening the device"))?;
        debug_assert_eq!(held, context, "a device has one primary context");
        let session = Session { device, context: held };
        session.enter()?;
        let stream = driver::stream::create(driver::stream::StreamKind::NonBlocking)
            .map_err(failed("opening a stream"))?;
        // SAFETY: the memory is written before it is read.
        let staging = unsafe { driver::malloc_host(STAGING_BYTES, 0) }.map_err(failed("locking memory"))?;
        Ok(Uploader { session, stream, staging: staging.cast() })
    }
}

impl Upload for Uploader {
    fn upload(&mut self, to: Buffer, bytes: &[u8]) -> Result<(), DeviceError> {
        same_length("upload", to, bytes.len())?;
        self.session.enter()?;
        let mut address = to.address;
        for piece in bytes.chunks(STAGING_BYTES) {
            // SAFETY: the staging memory has that length, is used by this uploader only, and no copy from it is in
            // progress.
            unsafe {
                let staging = std::slice::from_raw_parts_mut(self.staging, piece.len());
                staging.copy_from_slice(piece);
                driver::memcpy_htod_async(address, staging, self.stream).map_err(failed("an upload"))?;
                driver::stream::synchronize(self.stream).map_err(failed("an upload"))?;
            }
            address += piece.len() as u64;
        }
        Ok(())
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        if self.session.enter().is_ok() {
            // SAFETY: `self` created both, and no copy is in progress.
            unsafe {
                let _ = driver::free_host(self.staging.cast());
                let _ = driver::stream::destroy(self.stream);
            }
        }
    }
}
