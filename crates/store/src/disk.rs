//! Free space of a file system. Customer data must leave a reserve for the ledger and the identities. A ballast file
//! gives those two its space if the disk is full nevertheless. Knows no store.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headrace_objects::ObjectError;

/// Maximum default reserve.
const MOST_MIN_FREE_BYTES: u64 = 512 << 20;
/// The default reserve is this fraction of a small file system: one tenth.
const MIN_FREE_PART: u64 = 10;

/// The ballast takes one part in this many of its file system, within [`BALLAST_BYTES`].
const BALLAST_PART: u64 = 32;
const BALLAST_BYTES: (u64, u64) = (1 << 20, 16 << 20);
/// The ballast releases its space in this number of steps.
const BALLAST_STEPS: u64 = 16;
/// A disk with less free space than this counts as full.
const FULL_BYTES: u64 = 256 << 10;

/// Space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that this process may still write.
    pub free: u64,
    /// Size of the file system.
    pub total: u64,
}

impl DiskSpace {
    /// Reads the space of the file system of `path`.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn of(path: &Path) -> Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Self { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
    }

    /// The default reserve: a tenth of the file system, at most 512 MiB.
    #[must_use]
    pub const fn default_min_free(self) -> u64 {
        let part = self.total / MIN_FREE_PART;
        if part < MOST_MIN_FREE_BYTES { part } else { MOST_MIN_FREE_BYTES }
    }
}

/// Reads the space of a file system.
pub type SpaceProbe = Arc<dyn Fn() -> Result<DiskSpace> + Send + Sync>;

/// Refuses writes of customer data that would use up the last free space. Clones share the last result.
#[derive(Clone)]
pub struct DiskGuard {
    probe: SpaceProbe,
    /// Configured reserve in bytes. `None` for [`DiskSpace::default_min_free`].
    min_free: Option<u64>,
    was_full: Arc<AtomicBool>,
}

impl DiskGuard {
    /// Guards the file system of `dir`.
    pub fn of(dir: &Path, min_free: Option<u64>) -> Self {
        let dir = dir.to_owned();
        Self::probed(Arc::new(move || DiskSpace::of(&dir)), min_free)
    }

    /// Guards the file system that `probe` measures.
    pub fn probed(probe: SpaceProbe, min_free: Option<u64>) -> Self {
        Self { probe, min_free, was_full: Arc::default() }
    }

    /// Checks that `more` bytes can be written while the reserve stays free. A file system that does not report its
    /// free space is not guarded. A full disk then shows as the error of the write.
    ///
    /// # Errors
    /// [`ObjectError::DiskFull`]
    pub fn check(&self, more: u64) -> std::result::Result<(), ObjectError> {
        let Some(space) = (self.probe)().ok().filter(|space| space.total > 0) else { return Ok(()) };
        let min_free = self.min_free.unwrap_or(space.default_min_free());
        let fits = space.free >= min_free.saturating_add(more);
        self.was_full.store(space.free < min_free, Ordering::Relaxed);
        if fits {
            return Ok(());
        }
        let why = format!(
            "{} bytes are free on the disk, {more} more were to be written, and `objects.min_free_disk` keeps {min_free} free",
            space.free
        );
        Err(ObjectError::DiskFull { why })
    }

    /// Whether less than the reserve was free at the last check. Reads only memory.
    pub fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for DiskGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskGuard").field("min_free", &self.min_free).finish_non_exhaustive()
    }
}

/// A file that sets space aside. When the disk is full, for any reason, the file shrinks step by step, and the ledger
/// and the identities use the space that becomes free. The file grows again when there is room.
#[derive(Debug)]
pub struct DiskBallast {
    path: PathBuf,
    /// Size of the file in bytes. `None` until it is first read.
    held: Mutex<Option<u64>>,
}

impl DiskBallast {
    /// Opens the ballast of a directory and sets its space aside if there is room. If the disk is full, releases one
    /// step at once, so that the stores in the directory can be opened.
    pub fn open(dir: &Path) -> Self {
        let ballast = Self { path: dir.join("ballast"), held: Mutex::default() };
        // A file that an earlier process created with another mode becomes private to its owner. Usually there is no
        // file yet.
        let _ = std::fs::set_permissions(&ballast.path, std::os::unix::fs::PermissionsExt::from_mode(0o600));
        ballast.refill();
        ballast.relieve();
        ballast
    }

    /// Releases one step of the space. Returns `false` if none is left or the file cannot be truncated.
    pub fn give(&self) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let has = held.unwrap_or_else(|| self.size());
        if has == 0 {
            return false;
        }
        let step = self.whole().map_or(has, |whole| (whole / BALLAST_STEPS).max(FULL_BYTES));
        let left = has.saturating_sub(step);
        let cut = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(left));
        match cut {
            Ok(()) => {
                *held = Some(left);
                tracing::warn!(
                    left,
                    "the disk is full: the ledger and the keys write into space set aside for them"
                );
                true
            }
            Err(_) => false,
        }
    }

    /// Releases one step if the disk is full.
    pub fn relieve(&self) {
        if DiskSpace::of(&self.path).is_ok_and(|space| space.free < FULL_BYTES) {
            self.give();
        }
    }

    /// Sets the missing space aside again, if the disk has four times as much free.
    pub fn refill(&self) {
        let Some(whole) = self.whole() else { return };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let has = held.unwrap_or_else(|| self.size());
        *held = Some(has);
        let Some(missing) = whole.checked_sub(has).filter(|missing| *missing > 0) else { return };
        let dir = self.path.parent().unwrap_or(&self.path);
        if DiskSpace::of(dir).is_ok_and(|space| space.free / 4 >= missing) {
            // A smaller disk keeps a smaller ballast.
            if let Err(error) = set_aside(&self.path, has, missing) {
                tracing::debug!(%error, "space for the ledger cannot be set aside now");
            }
            *held = Some(self.size());
        }
    }

    /// Target size of the file in bytes.
    fn whole(&self) -> Option<u64> {
        let space = DiskSpace::of(self.path.parent().unwrap_or(&self.path)).ok()?;
        let (least, most) = BALLAST_BYTES;
        Some((space.total / BALLAST_PART).clamp(least, most))
    }

    fn size(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |found| found.len())
    }
}

/// Appends `missing` bytes to the file, backed by allocated disk blocks.
fn set_aside(path: &Path, from: u64, missing: u64) -> Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), from, missing).is_err() {
        // File systems without `fallocate` get the bytes written.
        fill(&file, from, missing)?;
    }
    file.sync_all()
}

fn fill(file: &File, from: u64, missing: u64) -> Result<()> {
    let piece = vec![0x5a; 64 << 10];
    let mut at = 0;
    while at < missing {
        let bytes = piece.len().min(usize::try_from(missing - at).unwrap_or(usize::MAX));
        file.write_all_at(piece.get(..bytes).unwrap_or_default(), from + at)?;
        at += bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn the_reserve_is_a_tenth_of_a_small_disk_and_512_mib_of_a_large_one() {
        let of = |total| DiskSpace { free: 0, total }.default_min_free();
        assert_eq!(of(64 << 20), (64 << 20) / 10);
        assert_eq!(of(1 << 40), 512 << 20);
        assert_eq!(of(0), 0);
    }

    #[test]
    fn writes_are_refused_that_would_take_the_reserve_and_no_others() {
        let free = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&free);
        let probe: SpaceProbe =
            Arc::new(move || Ok(DiskSpace { free: read.load(Ordering::SeqCst), total: 1_000 }));
        let guard = DiskGuard::probed(probe, Some(100));
        let is_taken = |has: u64, more: u64| {
            free.store(has, Ordering::SeqCst);
            (guard.check(more).is_ok(), guard.was_full())
        };
        assert_eq!(is_taken(100, 0), (true, false));
        assert_eq!(is_taken(99, 0), (false, true));
        assert_eq!(is_taken(150, 50), (true, false));
        assert_eq!(is_taken(150, 51), (false, false), "it is too large, and the disk is not full");
        assert_eq!(is_taken(150, u64::MAX), (false, false));
        let unknown: SpaceProbe = Arc::new(|| Err(std::io::Error::other("as asked")));
        assert!(DiskGuard::probed(unknown, None).check(1 << 40).is_ok());
    }

    #[test]
    fn the_ballast_gives_all_its_space_in_steps_and_takes_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let ballast = DiskBallast::open(dir.path());
        let whole = ballast.size();
        assert!(whole >= BALLAST_BYTES.0, "{whole}");
        let mut steps = 0;
        while ballast.give() {
            steps += 1;
            assert!(ballast.size() < whole);
        }
        assert!((2..=BALLAST_STEPS).contains(&steps), "{steps}");
        assert_eq!(ballast.size(), 0);
        ballast.refill();
        assert_eq!(ballast.size(), whole);
        drop(ballast);
        assert_eq!(DiskBallast::open(dir.path()).size(), whole, "it is not set aside twice");
    }
}
