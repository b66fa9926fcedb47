//! The threads that all pools of a process share. Each thread looks for tasks, spins briefly, and then parks.
//! Must not know: what a task computes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::error::KernelError;
use crate::flush::FlushGuard;
use crate::pool::slot::{Slot, lock, relax};

/// Polls before a waiting worker parks. They take a few hundred microseconds, longer than the gap between two
/// operations of a step and than most gaps between two steps.
const SPINS_BEFORE_PARK: u32 = 20_000;

/// Most threads that a process may use for arithmetic.
pub const MAX_THREADS: usize = 1024;

/// `threads − 1` workers. Together with one caller they make `threads` threads. Each additional busy caller idles one
/// worker, and the remaining workers divide themselves among the callers. No more than `threads` threads therefore
/// compute at once.
pub struct Workers {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Increases when a job is opened.
    news: AtomicU64,
    /// Number of busy callers.
    callers: AtomicUsize,
    /// All workers plus one caller.
    threads: usize,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Increases when `slots` changes.
    edition: AtomicU64,
    stop: AtomicBool,
    /// Which workers are parked or about to park.
    asleep: Box<[AtomicBool]>,
}

impl Workers {
    /// Starts workers for `threads` threads, including one caller (0 counts as 1). Fails if a thread cannot be
    /// started.
    pub fn new(threads: usize) -> Result<Arc<Workers>, KernelError> {
        let threads = threads.clamp(1, MAX_THREADS);
        let shared = Arc::new(Shared {
            news: AtomicU64::new(0),
            callers: AtomicUsize::new(0),
            threads,
            slots: Mutex::new(Vec::new()),
            edition: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut workers = Workers { shared, workers: Vec::new() };
        for index in 0..threads - 1 {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new()
                .name(format!("kernel-{}", index + 1))
                .spawn(move || shared.work(index))
                .map_err(|error| KernelError::Threads { message: error.to_string() })?;
            workers.workers.push(thread);
        }
        Ok(Arc::new(workers))
    }

    /// Returns the number of threads, including one caller.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Registers a pool of `threads` threads. Its workers differ from those of earlier pools as long as there are
    /// unused ones.
    pub(crate) fn join(&self, threads: usize) -> Arc<Slot> {
        let mut slots = lock(&self.shared.slots);
        let taken: usize = slots.iter().map(|slot| slot.threads() - 1).sum();
        let slot = Arc::new(Slot::new(threads.clamp(1, self.threads()), taken));
        slots.push(Arc::clone(&slot));
        self.shared.edition.fetch_add(1, Ordering::Release);
        slot
    }

    /// Removes a pool's slot.
    pub(crate) fn part(&self, slot: &Arc<Slot>) {
        lock(&self.shared.slots).retain(|other| !Arc::ptr_eq(other, slot));
        self.shared.edition.fetch_add(1, Ordering::Release);
    }

    /// Marks a caller as busy.
    pub(crate) fn begin(&self, slot: &Slot) {
        slot.set_busy(true);
        self.shared.callers.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks a caller as no longer busy.
    pub(crate) fn end(&self, slot: &Slot) {
        slot.set_busy(false);
        self.shared.callers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether any worker is free to help a busy caller.
    pub(crate) fn can_help(&self) -> bool {
        self.shared.callers.load(Ordering::Relaxed) < self.shared.threads
    }

    /// Signals that a job was opened in `slot`, and wakes the parked workers that could help.
    ///
    /// Pairs with `wait`. A worker sets its `asleep` flag before it reads `news`. This function increases `news`
    /// before it reads the flags. Both are sequentially consistent, so at least one side sees the other.
    pub(crate) fn notify(&self, slot: &Slot) {
        let shared = &*self.shared;
        shared.news.fetch_add(1, Ordering::SeqCst);
        let callers = shared.callers.load(Ordering::Relaxed);
        let count = self.workers.len();
        for (index, (asleep, worker)) in shared.asleep.iter().zip(&self.workers).enumerate() {
            let helps = || shared.has_room(index, callers) && slot.number(index, count).is_some();
            if asleep.load(Ordering::SeqCst) && helps() && asleep.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.news.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so `join` has nothing to report.
            let _ = worker.join();
        }
    }
}

/// A pool's slot, as seen by one worker.
struct WorkerSlot {
    slot: Arc<Slot>,
    /// The worker's number in the slot.
    number: usize,
    /// Number of the last job in which the worker found no task left.
    done: u64,
}

impl Shared {
    /// Whether worker `index` may compute while `callers` callers are busy.
    fn has_room(&self, index: usize, callers: usize) -> bool {
        index + 1 + callers <= self.threads
    }

    fn work(&self, index: usize) {
        let _flush = FlushGuard::new();
        let mut known = Vec::new();
        let mut edition = None;
        loop {
            let news = self.news.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let now = self.edition.load(Ordering::Acquire);
            if edition.replace(now) != Some(now) {
                known = self.slots_of(index);
            }
            let callers = self.callers.load(Ordering::Acquire);
            if !self.help(index, &mut known, callers) {
                self.wait(index, news, callers);
            }
        }
    }

    /// Returns the slots in which worker `index` takes part.
    fn slots_of(&self, index: usize) -> Vec<WorkerSlot> {
        let count = self.asleep.len();
        let slots = lock(&self.slots);
        let known = slots.iter().filter_map(|slot| {
            Some(WorkerSlot { number: slot.number(index, count)?, slot: Arc::clone(slot), done: 0 })
        });
        known.collect()
    }

    /// Helps one of the busy callers until their number differs from `callers`. Returns whether there was a job.
    fn help(&self, index: usize, known: &mut [WorkerSlot], callers: usize) -> bool {
        let busy = known.iter().filter(|known| known.slot.is_busy()).count();
        if busy == 0 || !self.has_room(index, callers) {
            return false;
        }
        let Some(own) = known.iter_mut().filter(|known| known.slot.is_busy()).nth(index % busy) else {
            return false;
        };
        let stays = || self.callers.load(Ordering::Relaxed) == callers;
        let Some(helped) = own.slot.help(own.done, own.number, stays) else { return false };
        if helped.all {
            own.done = helped.job;
        }
        true
    }

    /// Spins, then parks, until `news` differs from `seen`. A worker that has no room beside `callers` busy callers
    /// parks at once. A spinning worker returns as soon as the number of busy callers changes.
    fn wait(&self, index: usize, seen: u64, callers: usize) {
        let mut spins = 0;
        while spins < SPINS_BEFORE_PARK && self.has_room(index, callers) {
            if self.news.load(Ordering::Acquire) != seen || self.callers.load(Ordering::Relaxed) != callers {
                return;
            }
            relax(&mut spins);
        }
        let Some(asleep) = self.asleep.get(index) else { return };
        loop {
            asleep.store(true, Ordering::SeqCst);
            if self.news.load(Ordering::SeqCst) != seen {
                break;
            }
            std::thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }
}
