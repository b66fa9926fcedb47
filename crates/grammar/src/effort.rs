//! Measures the CPU time of a thread from another thread. On a busy machine it is less than the elapsed time. Linux
//! reports it in a file. Other systems do not report it here.

use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// A thread whose CPU time is measured.
#[derive(Debug, Default)]
pub(crate) struct CpuTimer(OnceLock<Option<PathBuf>>);

/// The CPU time of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuTime {
    /// CPU time so far.
    Time(Duration),
    /// The thread has ended.
    All,
    /// The system does not report it.
    Unknown,
}

impl CpuTimer {
    /// Registers the calling thread. Called by the measured thread when it starts.
    pub(crate) fn is_mine(&self) {
        let of_process = std::fs::read_link("/proc/thread-self").ok();
        let _ = self.0.set(of_process.map(|thread| Path::new("/proc").join(thread).join("schedstat")));
    }

    /// The thread's CPU time until now.
    pub(crate) fn spent(&self) -> CpuTime {
        if !cfg!(target_os = "linux") {
            return CpuTime::Unknown;
        }
        // The thread has not started yet.
        let Some(path) = self.0.get() else { return CpuTime::Time(Duration::ZERO) };
        path.as_deref().map_or(CpuTime::Unknown, read_cpu_time)
    }
}

/// Parses a thread's `schedstat` file.
fn read_cpu_time(path: &Path) -> CpuTime {
    let content = match std::fs::read_to_string(path) {
        Ok(content) => content,
        Err(error) if is_gone(&error, path) => return CpuTime::All,
        // A kernel without these statistics has no such file.
        Err(_) => return CpuTime::Unknown,
    };
    // Nanoseconds on a processor, nanoseconds waiting for one, and number of time slices. No time slice means that
    // nothing is counted.
    let mut numbers = content.split_ascii_whitespace().map_while(|number| number.parse().ok());
    match (numbers.next(), numbers.nth(1)) {
        (Some(nanos), Some(1..)) => CpuTime::Time(Duration::from_nanos(nanos)),
        _ => CpuTime::Unknown,
    }
}

/// Whether a thread has ended, even while its file was read.
fn is_gone(error: &Error, path: &Path) -> bool {
    const NO_SUCH_PROCESS: i32 = 3;
    error.raw_os_error() == Some(NO_SUCH_PROCESS) || path.parent().is_some_and(|thread| !thread.exists())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_that_sleeps_spends_nothing() {
        if !cfg!(target_os = "linux") {
            return;
        }
        let effort = Arc::new(CpuTimer::default());
        assert_eq!(effort.spent(), CpuTime::Time(Duration::ZERO));
        let ((asleep, told), (wake, woken)) = (channel(), channel::<()>());
        let its = Arc::clone(&effort);
        let thread = std::thread::spawn(move || {
            its.is_mine();
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            asleep.send(()).unwrap();
            let _ = woken.recv();
        });
        told.recv().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let CpuTime::Time(spent) = effort.spent() else { panic!("{:?}", effort.spent()) };
        assert!(!spent.is_zero());
        std::thread::sleep(Duration::from_millis(50));
        let CpuTime::Time(later) = effort.spent() else { panic!("{:?}", effort.spent()) };
        assert!(later - spent < Duration::from_millis(5), "{spent:?}, then {later:?}");
        drop(wake);
        thread.join().unwrap();
        // The kernel lists a thread for a moment after it was joined.
        let until = Instant::now() + Duration::from_secs(10);
        while effort.spent() != CpuTime::All {
            assert!(Instant::now() < until, "{:?}", effort.spent());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn where_nobody_counts_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schedstat");
        assert_eq!(read_cpu_time(&path), CpuTime::Unknown, "no such file, beside a thread that is there");
        for (told, spent) in [
            ("0 0 0", CpuTime::Unknown),
            ("version 17", CpuTime::Unknown),
            ("", CpuTime::Unknown),
            ("0 9 1", CpuTime::Time(Duration::ZERO)),
            ("7000 9 3", CpuTime::Time(Duration::from_micros(7))),
        ] {
            std::fs::write(&path, told).unwrap();
            assert_eq!(read_cpu_time(&path), spent, "{told}");
        }
        assert_eq!(read_cpu_time(&folder.path().join("1/schedstat")), CpuTime::All);
    }
}
