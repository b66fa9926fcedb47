//! File descriptors: raises the soft limit at the start, divides the limit between callers and everything else, and
//! reports how many are open. Must not know what they are open for.

use headrace_trace::Metrics;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit divided by this is kept for the server itself: at least [`LEAST_KEPT`], but at most five eighths of the
/// limit.
const KEPT_SHARE: u64 = 4;
/// Stores, logs and pipes need 64, caller connections that are being closed or refused 128, operators 64, metrics 32,
/// the control socket 16. The rest is spare.
const LEAST_KEPT: u64 = 320;
/// The limit divided by this is kept for operators' connections.
const ADMIN_SHARE: u64 = 16;

/// The limit on open files of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptorLimit {
    /// `None` if there is no limit.
    limit: Option<u64>,
}

impl DescriptorLimit {
    /// Raises the soft limit to the hard limit. If that fails, the soft limit stays.
    pub(crate) fn raise() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = maximum.unwrap_or(u64::MAX);
        if current.is_none_or(|current| current >= wanted) {
            return Self { limit: current };
        }
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        Self { limit: if raised.is_ok() { maximum } else { current } }
    }

    /// A fixed limit.
    #[cfg(test)]
    const fn of(limit: u64) -> Self {
        Self { limit: Some(limit) }
    }

    /// Maximum number of simultaneous caller connections, at most `wanted`. With upstreams, each may need a second
    /// connection to one of them.
    pub(crate) fn most_connections(self, wanted: usize, sends_on: bool) -> usize {
        let Some(limit) = self.limit else { return wanted };
        let kept = (limit / KEPT_SHARE).max(LEAST_KEPT).min(limit / 8 * 5);
        let left = (limit - kept) / if sends_on { 2 } else { 1 };
        wanted.min(usize::try_from(left).unwrap_or(usize::MAX)).max(1)
    }

    /// Maximum number of simultaneous operator connections.
    pub(crate) fn most_operators(self) -> usize {
        self.limit
            .map_or(usize::MAX, |limit| usize::try_from(limit / ADMIN_SHARE).unwrap_or(usize::MAX).max(8))
    }

    /// A warning that fewer connections are accepted than configured, and what to do. `None` if all of them are
    /// accepted.
    pub(crate) fn shortage(self, wanted: usize, most: usize) -> Option<String> {
        let limit = self.limit.filter(|_| most < wanted)?;
        Some(format!(
            "warning: this process may have {limit} files open, so that {most} connections of callers are taken at once instead of \
             {wanted} (`server.max_connections`); raise the limit (`ulimit -Hn`, or `LimitNOFILE=` of the service)"
        ))
    }
}

/// Scales `of_peer` by `most` / `wanted`. The result is at least one.
pub(crate) fn in_proportion(of_peer: usize, wanted: usize, most: usize) -> usize {
    if most >= wanted {
        return of_peer;
    }
    let share = (of_peer as u128 * most as u128).div_ceil((wanted as u128).max(1));
    usize::try_from(share).unwrap_or(most).clamp(1, most.max(1))
}

/// Registers the number of open files and their limit, under the names that Prometheus clients use.
pub(crate) fn register(metrics: &Metrics) {
    #[allow(clippy::cast_precision_loss, reason = "no count comes near 2^53")]
    let (open, most) = (
        Box::new(|| open_now().map_or(-1.0, |open| open as f64)),
        Box::new(|| getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |limit| limit as f64)),
    );
    metrics.register_gauge(
        "process_open_fds",
        "Files and sockets that the process has open; -1 if unknown.",
        &[],
        open,
    );
    metrics.register_gauge("process_max_fds", "Files and sockets that the process may have open.", &[], most);
}

/// The number of open files. `None` if the system does not report it, or no descriptor is left to look.
fn open_now() -> Option<usize> {
    let listed = std::fs::read_dir("/proc/self/fd").or_else(|_| std::fs::read_dir("/dev/fd")).ok()?;
    // One of them belongs to the listing itself.
    Some(listed.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_never_get_all_descriptors() {
        for (limit, sends_on, most) in [
            (1_024, false, 704),
            (1_024, true, 352),
            (256, false, 96),
            (64, false, 24),
            (65_536, false, 4_096),
            (65_536, true, 4_096),
            (4_096, false, 3_072),
            (1, false, 1),
        ] {
            assert_eq!(
                DescriptorLimit::of(limit).most_connections(4_096, sends_on),
                most,
                "{limit} {sends_on}"
            );
        }
        assert_eq!(DescriptorLimit { limit: None }.most_connections(4_096, true), 4_096);
        assert_eq!(DescriptorLimit::of(1_024).most_operators(), 64);
    }

    #[test]
    fn a_peer_keeps_its_share_of_fewer_connections() {
        for (of_peer, wanted, most, share) in [
            (2_048, 4_096, 704, 352),
            (4_096, 4_096, 704, 704),
            (1, 4_096, 704, 1),
            (2_048, 4_096, 4_096, 2_048),
            (9_999, 4_096, 704, 704),
        ] {
            assert_eq!(in_proportion(of_peer, wanted, most), share, "{of_peer} of {wanted}, {most}");
        }
    }

    #[test]
    fn a_shortage_names_the_limit_and_the_way_out() {
        let few = DescriptorLimit::of(1_024);
        let words = few.shortage(4_096, 704).unwrap();
        assert!(words.contains("1024") && words.contains("704") && words.contains("LimitNOFILE"), "{words}");
        assert_eq!(few.shortage(700, 700), None);
    }

    #[test]
    fn open_files_are_counted() {
        let before = open_now().unwrap();
        let held: Vec<_> = (0..32).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close files meanwhile.
        assert!(open_now().unwrap() > before.saturating_sub(16), "{before}");
        drop(held);
    }
}
