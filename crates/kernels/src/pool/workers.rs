//! The threads that all pools of a process share. Each looks where tasks are to be had, spins briefly, and then parks.
//! Must not know: what a task computes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::error::KernelError;
use crate::flush::FlushGuard;
use crate::pool::slot::{Slot, lock, relax};

/// Polls before a waiting worker parks: a few hundred microseconds, longer than the gap between two operations of a
/// step and than most gaps between two steps.
const SPINS_BEFORE_PARK: u32 = 20_000;

/// The most threads that a process may have for arithmetic.
pub const MAX_THREADS: usize = 1024;

/// `threads − 1` workers: together with one caller, `threads` threads. Where several callers are at work, as many workers as
/// there are further callers stand back, and the others divide themselves among the callers, so that no more than `threads`
/// threads compute.
pub struct Workers {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Rises when a job has been opened.
    news: AtomicU64,
    /// Callers at work.
    callers: AtomicUsize,
    /// Workers and one caller.
    threads: usize,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Rises when `slots` has changed.
    edition: AtomicU64,
    stop: AtomicBool,
    /// Which workers are parked, or about to.
    asleep: Box<[AtomicBool]>,
}

impl Workers {
    /// Workers for `threads` threads, a caller included (0 counts as 1). Errors when a thread cannot be started.
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

    /// How many threads there are, a caller included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// A place for a pool of `threads` threads. Its workers are not those of earlier pools, as long as there are others.
    pub(crate) fn join(&self, threads: usize) -> Arc<Slot> {
        let mut slots = lock(&self.shared.slots);
        let taken: usize = slots.iter().map(|slot| slot.threads() - 1).sum();
        let slot = Arc::new(Slot::new(threads.clamp(1, self.threads()), taken));
        slots.push(Arc::clone(&slot));
        self.shared.edition.fetch_add(1, Ordering::Release);
        slot
    }

    /// Takes a pool's place away.
    pub(crate) fn part(&self, slot: &Arc<Slot>) {
        lock(&self.shared.slots).retain(|other| !Arc::ptr_eq(other, slot));
        self.shared.edition.fetch_add(1, Ordering::Release);
    }

    /// A caller begins its work.
    pub(crate) fn begin(&self, slot: &Slot) {
        slot.set_busy(true);
        self.shared.callers.fetch_add(1, Ordering::AcqRel);
    }

    /// A caller has ended its work.
    pub(crate) fn end(&self, slot: &Slot) {
        slot.set_busy(false);
        self.shared.callers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether any worker is there to help a caller at work.
    pub(crate) fn can_help(&self) -> bool {
        self.shared.callers.load(Ordering::Relaxed) < self.shared.threads
    }

    /// Tells the workers that a job was opened in `slot`, and wakes those that could help.
    ///
    /// Pairs with `wait`: a worker says that it sleeps before it looks for news, we have news before we look who sleeps,
    /// both sequentially consistent, so one of us sees the other.
    pub(crate) fn tell(&self, slot: &Slot) {
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
            // A worker catches its tasks' panics, so there is nothing to learn from joining it.
            let _ = worker.join();
        }
    }
}

/// A pool's place as a worker knows it.
struct Known {
    slot: Arc<Slot>,
    /// The worker's number there.
    number: usize,
    /// The last job of which it found nothing left.
    done: u64,
}

impl Shared {
    /// Whether worker `index` may compute beside so many callers.
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

    /// The places in which worker `index` takes part.
    fn slots_of(&self, index: usize) -> Vec<Known> {
        let count = self.asleep.len();
        let slots = lock(&self.slots);
        let known = slots.iter().filter_map(|slot| {
            Some(Known { number: slot.number(index, count)?, slot: Arc::clone(slot), done: 0 })
        });
        known.collect()
    }

    /// Helps one of the `callers` at work, while their number stays as it is. Returns whether there was a job.
    fn help(&self, index: usize, known: &mut [Known], callers: usize) -> bool {
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

    /// Spins, then parks, until the news are no longer `seen`. A worker for which there is no room beside the `callers`
    /// parks at once; one that spins looks again when their number has changed.
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
