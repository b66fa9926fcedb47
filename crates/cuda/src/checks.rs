//! What all operations share: the padding of rows, checks of sizes, and launches row by row. Must not know: what a kernel
//! computes.

use crate::device::{Arguments, Buffer, Device, DeviceError, Launch};

/// The inputs of every product are a multiple of this. Rows of weights and activations are padded with zeros.
pub const INPUTS: usize = 32;

/// Rounds up to the next multiple of [`INPUTS`].
pub fn padded(inputs: usize) -> usize {
    inputs.next_multiple_of(INPUTS)
}

/// Launches a kernel with `count × beside` blocks. Launches nothing if there are no rows.
pub(crate) fn rows_launch(
    device: &mut dyn Device,
    kernel: &'static str,
    count: usize,
    beside: usize,
    threads: u32,
    arguments: Arguments,
) -> Result<(), DeviceError> {
    if count == 0 {
        return Ok(());
    }
    let grid = [count_of("rows", count)?, count_of("heads", beside)?, 1];
    device.launch(&Launch { kernel, grid, threads, shared_bytes: 0, arguments })
}

/// Returns a [`DeviceError::Shape`] unless `good`.
pub(crate) fn check(
    what: &'static str,
    good: bool,
    problem: impl FnOnce() -> String,
) -> Result<(), DeviceError> {
    if good { Ok(()) } else { Err(DeviceError::Shape { what, problem: problem() }) }
}

/// Checks that a buffer has `bytes` bytes.
pub(crate) fn at_least(what: &'static str, buffer: Buffer, bytes: usize) -> Result<(), DeviceError> {
    check(what, buffer.bytes >= bytes, || format!("{} bytes where {bytes} are read or written", buffer.bytes))
}

/// Converts a size to a kernel's integer.
pub(crate) fn int(what: &'static str, value: usize) -> Result<i32, DeviceError> {
    i32::try_from(value).map_err(|_| DeviceError::Shape { what, problem: format!("{value} is too many") })
}

/// Converts a size to a number of blocks.
pub(crate) fn count_of(what: &'static str, value: usize) -> Result<u32, DeviceError> {
    int(what, value).map(i32::cast_unsigned)
}

/// Packs two 32-bit values in their order in memory.
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}
