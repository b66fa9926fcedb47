//! Cancels grammar work that takes too long. A thread checks all running work at intervals. The limit is CPU time, if
//! the system reports it. Knows no grammar.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;
use parking_lot::{Condvar, Mutex};

use crate::bounds::SLOWED_TIMES;
use crate::effort::{CpuTime, CpuTimer};

/// Interval of the checks.
const EVERY: Duration = Duration::from_millis(5);
/// Number of checks without any work after which the thread sleeps until there is some.
const IDLE_LOOKS: u32 = 200;

/// All watched work of this process.
#[derive(Default)]
struct WorkWatch {
    running: Mutex<RunningWork>,
    /// Signalled when work begins while the thread sleeps.
    begins: Condvar,
}

#[derive(Default)]
struct RunningWork {
    work: Vec<WatchedItem>,
    next: u64,
    /// Whether the thread sleeps until it is signalled.
    asleep: bool,
    /// Whether the thread was started.
    started: bool,
}

struct WatchedItem {
    number: u64,
    begun: Instant,
    most: Duration,
    effort: Arc<CpuTimer>,
    /// CPU time of the work's thread at the first check.
    first: Option<Duration>,
    handle: CancellationHandle,
}

/// Watches work until this is dropped.
pub(crate) struct WatchGuard(u64);

thread_local! {
    static MINE: Arc<CpuTimer> = {
        let effort = Arc::new(CpuTimer::default());
        effort.is_mine();
        effort
    };
}

fn watch() -> &'static WorkWatch {
    static WATCH: OnceLock<WorkWatch> = OnceLock::new();
    WATCH.get_or_init(WorkWatch::default)
}

impl WatchGuard {
    /// Cancels `handle` if this thread uses more than `most` of CPU time from now on.
    pub(crate) fn begin(handle: &CancellationHandle, most: Duration) -> Self {
        let watch = watch();
        let effort = MINE.with(Arc::clone);
        let (begun, handle) = (Instant::now(), handle.clone());
        let mut running = watch.running.lock();
        running.next += 1;
        let number = running.next;
        running.work.push(WatchedItem { number, begun, most, effort, first: None, handle });
        if !running.started {
            let builder = std::thread::Builder::new().name("grammar-watch".to_owned());
            // If the thread cannot start, the limits on units of work remain.
            running.started = builder.spawn(look).is_ok();
        }
        if std::mem::take(&mut running.asleep) {
            watch.begins.notify_one();
        }
        Self(number)
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        watch().running.lock().work.retain(|work| work.number != self.0);
    }
}

/// The watching thread. It runs for the life of the process.
fn look() {
    let (watch, mut idle) = (watch(), 0);
    loop {
        std::thread::sleep(EVERY);
        let mut running = watch.running.lock();
        if running.work.is_empty() {
            idle += 1;
            if idle >= IDLE_LOOKS {
                running.asleep = true;
                while running.asleep {
                    watch.begins.wait(&mut running);
                }
                idle = 0;
            }
            continue;
        }
        idle = 0;
        let now = Instant::now();
        running.work.iter_mut().for_each(|work| work.look(now));
    }
}

impl WatchedItem {
    fn look(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.begun);
        let is_over = match (self.effort.spent(), self.first) {
            (CpuTime::Time(spent), None) => {
                // The time before this check counts in full as CPU time.
                self.first = Some(spent.saturating_sub(elapsed));
                false
            }
            (CpuTime::Time(spent), Some(first)) => {
                elapsed >= self.most && spent.saturating_sub(first) >= self.most
            }
            (CpuTime::All | CpuTime::Unknown, _) => elapsed >= self.most,
        };
        if is_over || elapsed >= self.most * SLOWED_TIMES {
            self.handle.cancel();
        }
    }
}
