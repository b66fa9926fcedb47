//! Flushes denormals to zero while kernels run, on every thread alike. Otherwise a result could depend on the thread
//! that computed it. Denormal arithmetic is also slow. Must not know: what runs.

/// Flushes denormals on this thread until it is dropped, then restores the previous setting.
pub(crate) struct FlushGuard {
    before: u64,
}

impl FlushGuard {
    pub(crate) fn new() -> FlushGuard {
        let before = control();
        set_control(before | FLUSH_BITS);
        FlushGuard { before }
    }
}

impl Drop for FlushGuard {
    fn drop(&mut self) {
        set_control(self.before);
    }
}

/// MXCSR: flush-to-zero (bit 15) and denormals-are-zero (bit 6).
#[cfg(target_arch = "x86_64")]
const FLUSH_BITS: u64 = (1 << 15) | (1 << 6);

#[cfg(target_arch = "x86_64")]
fn control() -> u64 {
    let mut value = 0_u32;
    // SAFETY: stores the 32-bit MXCSR to a live local.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack)) };
    u64::from(value)
}

#[cfg(target_arch = "x86_64")]
fn set_control(value: u64) {
    let value = value as u32;
    // SAFETY: loads MXCSR from a live local. The value has only bits that were read from MXCSR, plus the two flush
    // bits, so no exception is unmasked.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, readonly)) };
}

/// FPCR: flush-to-zero (bit 24).
#[cfg(target_arch = "aarch64")]
const FLUSH_BITS: u64 = 1 << 24;

#[cfg(target_arch = "aarch64")]
fn control() -> u64 {
    let value: u64;
    // SAFETY: reads a register that user code may read.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack)) };
    value
}

#[cfg(target_arch = "aarch64")]
fn set_control(value: u64) {
    // SAFETY: writes back the value that was read, plus the flush bit. No trap is enabled.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) value, options(nomem, nostack)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FLUSH_BITS: u64 = 0;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn control() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set_control(_value: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn denormals_are_flushed_inside_and_kept_outside() {
        let halve = |x: f32| std::hint::black_box(x) * std::hint::black_box(0.5);
        assert!(halve(f32::MIN_POSITIVE) > 0.0);
        {
            let _flush = FlushGuard::new();
            assert_eq!(halve(f32::MIN_POSITIVE), 0.0);
        }
        assert!(halve(f32::MIN_POSITIVE) > 0.0);
    }
}
