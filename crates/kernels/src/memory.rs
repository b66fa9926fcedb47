//! Anonymous memory for weights and KV blocks: zeroed, committed on first touch, on huge pages if the system provides
//! them.
//! Must not know: what is stored in it.

use std::ptr::NonNull;

use crate::error::KernelError;

/// Regions of at least this size request huge pages and start on a huge-page boundary.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A zeroed region of anonymous memory, freed on drop. Aligned to at least 4096 bytes.
pub(crate) struct Region {
    map: NonNull<u8>,
    map_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is plain memory that it owns. The owner of the region decides which code may access which part.
unsafe impl Send for Region {}
// SAFETY: as above. Shared access goes through raw pointers, whose users justify that they are disjoint.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` zeroed bytes. Fails if the system refuses.
    pub(crate) fn zeroed(bytes: usize) -> Result<Region, KernelError> {
        let refused = KernelError::OutOfMemory { bytes };
        let padded = bytes.max(1).checked_add(2 * HUGE_PAGE_BYTES).ok_or(refused.clone())?;
        let huge = bytes >= HUGE_PAGE_BYTES;
        let map_bytes = if huge { padded } else { bytes.max(1) };
        // SAFETY: a fresh anonymous private mapping: no file, no requested address, and it replaces no existing
        // memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(refused);
        }
        let map = NonNull::new(address.cast::<u8>()).ok_or(refused)?;
        let skip = if huge { map.as_ptr().align_offset(HUGE_PAGE_BYTES) } else { 0 };
        // SAFETY: `skip` is below HUGE_PAGE_BYTES, and the mapping is 2 · HUGE_PAGE_BYTES longer than `bytes`.
        let start = unsafe { map.add(skip) };
        #[cfg(target_os = "linux")]
        if huge {
            // SAFETY: the range lies inside our own mapping. The advice changes no content, and a refusal is
            // harmless.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Region { map, map_bytes, start, bytes })
    }

    /// Returns the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the number of bytes that were requested.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is exactly the mapping that `zeroed` created, and nothing borrows from it any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

/// A raw pointer that the tasks of one parallel operation share. Each use justifies that the tasks access disjoint
/// elements.
pub(crate) struct Shared<T>(pub(crate) *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: this is only a pointer. The code that dereferences it justifies that accesses are disjoint.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Returns the pointer. This is a method so that a closure captures the whole wrapper, not the bare pointer.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}
