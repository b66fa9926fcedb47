//! What this process may use of the machine: processors, and memory by its control group or by the machine. Also which
//! signals it was started to ignore. Knows nothing of models.

use std::path::{Path, PathBuf};

/// Memory that is assumed if no limit can be found, in bytes.
const UNKNOWN_MEMORY_BYTES: u64 = 2 << 30;

/// Number of processors that the process may use. Counts affinity and the control group's quota.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory that the process may use in total: the lowest limit of its control groups, or the memory of the
/// machine.
pub(crate) fn memory_bytes() -> u64 {
    known_memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES)
}

/// Like [`memory_bytes`], but `None` if no limit can be found.
pub(crate) fn known_memory_bytes() -> Option<u64> {
    memory_under(Path::new("/"))
}

/// Whether the process was started to ignore SIGHUP, as `nohup` does. `false` if this cannot be determined.
pub(crate) fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    hang_up_is_ignored(&status)
}

/// `SigIgn` is a mask in hexadecimal in which signal 1, SIGHUP, is the lowest bit.
fn hang_up_is_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

fn memory_under(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| group_limit(root, line));
    limits.chain(machine_memory(root)).min()
}

/// The lowest limit from a group up to the root of its hierarchy. A line is `0::/path` (version 2) or `7:memory:/path`
/// (version 1).
fn group_limit(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        list if list.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    let mut at: PathBuf = mount.join(group.trim_start_matches('/'));
    let mut lowest = None;
    while at.starts_with(&mount) {
        // `max`, and a group that is invisible in this namespace, limit nothing.
        let read = std::fs::read_to_string(at.join(file)).ok();
        let limit: Option<u64> = read.and_then(|text| text.trim().parse().ok());
        lowest = lowest.into_iter().chain(limit).min();
        if !at.pop() {
            break;
        }
    }
    lowest
}

fn machine_memory(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        memory_under(root.path())
    }

    #[test]
    fn a_hang_up_is_ignored_where_the_mask_says_so() {
        for (status, ignored) in [
            ("Name:\tx\nSigIgn:\t0000000000001001\n", true),
            ("SigIgn:\t0000000000001000\n", false),
            ("SigIgn:\t?\n", false),
            ("", false),
        ] {
            assert_eq!(hang_up_is_ignored(status), ignored, "{status}");
        }
    }

    #[test]
    fn the_lowest_limit_counts() {
        let machine = ("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n");
        let v2 = ("proc/self/cgroup", "0::/a/b\n");
        let v1 = ("proc/self/cgroup", "3:cpu:/a\n7:hugetlb,memory:/a\n");
        type Row<'r> = (&'r [(&'r str, &'r str)], Option<u64>);
        let rows: &[Row<'_>] = &[
            (&[], None),
            (&[machine], Some(1 << 20)),
            (&[machine, v2, ("sys/fs/cgroup/a/b/memory.max", "max\n")], Some(1 << 20)),
            (&[machine, v2, ("sys/fs/cgroup/a/b/memory.max", "4096\n")], Some(4096)),
            (&[machine, v2, ("sys/fs/cgroup/a/memory.max", "8192\n")], Some(8192)),
            (&[machine, v2, ("sys/fs/cgroup/memory.max", "512\n")], Some(512)),
            (&[machine, v1, ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2048\n")], Some(2048)),
            (
                &[machine, v1, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")],
                Some(1 << 20),
            ),
        ];
        for (files, expected) in rows {
            assert_eq!(memory(files), *expected, "{files:?}");
        }
        assert!(processors() >= 1);
        assert!(memory_bytes() > 0);
    }
}
