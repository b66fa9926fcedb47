//! The context of a device, and its errors. Must not know: streams, kernels, or memory.

use cudarc::driver::result::{self as driver, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute};

use crate::device::{Buffer, DeviceError};

/// A device's context, which is released on drop.
pub(super) struct Session {
    pub(super) device: sys::CUdevice,
    pub(super) context: sys::CUcontext,
}

// SAFETY: any thread may make a context current, and the driver's handles are plain names of it.
unsafe impl Send for Session {}
// SAFETY: as above. A session is not changed while it lives.
unsafe impl Sync for Session {}

impl Session {
    pub(super) fn open(ordinal: i32) -> Result<Session, DeviceError> {
        let device = driver::device::get(ordinal).map_err(failed("looking for the device"))?;
        // SAFETY: the device was found above.
        let context = unsafe { driver::primary_ctx::retain(device) }.map_err(failed("opening the device"))?;
        Ok(Session { device, context })
    }

    /// Makes the context current in this thread.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained while `self` lives.
        unsafe { driver::ctx::set_current(self.context) }.map_err(failed("entering the device"))
    }

    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, DeviceError> {
        // SAFETY: the device was found when the session was opened.
        unsafe { driver::device::get_attribute(self.device, attribute) }.map_err(failed("asking the device"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the context was retained when the session was opened. If the release fails, the context stays until
        // the process ends, which does no other harm.
        let _ = unsafe { driver::primary_ctx::release(self.device) };
    }
}

pub(super) fn same_length(what: &'static str, buffer: Buffer, bytes: usize) -> Result<(), DeviceError> {
    if buffer.bytes == bytes {
        return Ok(());
    }
    Err(DeviceError::Shape { what, problem: format!("{bytes} bytes for a buffer of {}", buffer.bytes) })
}

/// Converts a driver error to a [`DeviceError::Failed`] for the operation `during`.
pub(super) fn failed(during: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
    move |error| {
        let name = error.error_name().ok().and_then(|text| text.to_str().ok()).unwrap_or("an unknown error");
        let words = error.error_string().ok().and_then(|text| text.to_str().ok()).unwrap_or_default();
        DeviceError::Failed { during, problem: format!("{name}: {words}") }
    }
}
