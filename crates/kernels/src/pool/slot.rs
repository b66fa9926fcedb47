//! Where one pool's job stands while it runs: the gate through which threads enter it, and the tasks that are left.
//! Must not know: which threads there are, or how they wait.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::KernelError;

/// Polls between two offers of the core to other threads.
const SPINS_BEFORE_YIELD: u32 = 64;

/// Packed into one word so that entering a job is one compare-and-swap: the job's number (high half), whether it
/// still takes workers, and how many are inside.
const OPEN: u64 = 1 << 31;
const ONE_JOB: u64 = 1 << 32;
const INSIDE: u64 = OPEN - 1;

/// One pool's place among the workers.
pub(crate) struct Slot {
    gate: AtomicU64,
    job: UnsafeCell<Job>,
    /// The task to be taken next in each stretch, one per thread.
    next: Box<[Counter]>,
    panicked: Mutex<Option<String>>,
    /// Its caller is at work, so that threads should look here for tasks.
    busy: AtomicBool,
    /// The worker that is number 1 here, counted from 0.
    first: usize,
}

// SAFETY: `job` is written only by the caller while the gate is closed and nobody is inside, and read only by
// workers that have entered through the gate (acquire) after it was opened (release). The rest is atomics and locks.
unsafe impl Sync for Slot {}
// SAFETY: the raw pointer in `job` is only followed between `open` and `close`, whose closure is `Sync`.
unsafe impl Send for Slot {}

/// On a cache line of its own (two, as they are fetched in pairs), so that threads do not slow each other down.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicUsize);

/// Some tasks, and what does them.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    tasks: usize,
    /// How many stretches of consecutive tasks there are.
    stretches: usize,
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
}

impl Job {
    /// `tasks` tasks in `stretches` stretches (at least one). The job must not outlive `task`.
    pub(crate) fn of<F: Fn(usize, usize) + Sync>(tasks: usize, stretches: usize, task: &F) -> Job {
        Job { tasks, stretches, data: std::ptr::from_ref(task).cast(), call: call::<F> }
    }

    /// The tasks of a stretch.
    fn stretch(&self, index: usize) -> std::ops::Range<usize> {
        let at =
            |index: usize| self.tasks / self.stretches * index + (self.tasks % self.stretches).min(index);
        at(index)..at(index + 1)
    }
}

/// # Safety
/// `data` points to a live `F`.
unsafe fn call<F: Fn(usize, usize) + Sync>(data: *const (), task: usize, worker: usize) {
    // SAFETY: the caller's contract.
    let task_fn = unsafe { &*data.cast::<F>() };
    task_fn(task, worker);
}

/// # Safety
/// None: the job that a new slot holds until its first.
unsafe fn call_nothing(_data: *const (), _task: usize, _worker: usize) {}

impl Slot {
    /// A slot of `threads` threads, the caller included, whose number 1 is worker `first` (counted from 0).
    pub(crate) fn new(threads: usize, first: usize) -> Slot {
        Slot {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(Job { tasks: 0, stretches: 1, data: std::ptr::null(), call: call_nothing }),
            next: (0..threads).map(|_| Counter::default()).collect(),
            panicked: Mutex::new(None),
            busy: AtomicBool::new(false),
            first,
        }
    }

    /// How many threads take part, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.next.len()
    }

    /// Which number worker `index` of `count` (counted from 0) has here, the caller being 0; `None` if it takes no part.
    pub(crate) fn number(&self, index: usize, count: usize) -> Option<usize> {
        let number = (index + count - self.first % count) % count + 1;
        (number < self.threads()).then_some(number)
    }

    /// Whether the caller is at work.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Says whether the caller is at work.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Does a job on this thread alone.
    ///
    /// # Safety
    /// As for [`Slot::open`].
    pub(crate) unsafe fn alone(&self, job: Job) {
        self.lay_out(job);
        // SAFETY: the caller's contract.
        unsafe { self.take_tasks(job, 0, || true) };
    }

    /// Opens the gate to a job.
    ///
    /// # Safety
    /// Called by the slot's one caller, while no job is open; what the job calls lives until [`Slot::close`] has returned.
    pub(crate) unsafe fn open(&self, job: Job) {
        // SAFETY: the gate is closed and nobody is inside: the `close` before waited for that, and there is one caller.
        unsafe { *self.job.get() = job };
        self.lay_out(job);
        let number = self.gate.load(Ordering::Relaxed) & !(ONE_JOB - 1);
        self.gate.store(number.wrapping_add(ONE_JOB) | OPEN, Ordering::Release);
    }

    /// Does what is left of the open job as its number 0, closes the gate, and waits until everybody has left.
    ///
    /// # Safety
    /// Called by the slot's one caller, with the job that it opened.
    pub(crate) unsafe fn close(&self, job: Job) {
        // SAFETY: the caller's contract.
        unsafe { self.take_tasks(job, 0, || true) };
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.gate.load(Ordering::Acquire) & INSIDE != 0 {
            relax(&mut spins);
        }
    }

    /// Joins the job that is open, unless it is job `done`; helps with it as `number` while `stays` says so, and leaves. `None`
    /// where there was nothing to join.
    pub(crate) fn help(&self, done: u64, number: usize, stays: impl Fn() -> bool) -> Option<Helped> {
        let entered = self.gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
            (gate / ONE_JOB != done && gate & OPEN != 0).then_some(gate + 1)
        });
        let job_number = entered.ok()? / ONE_JOB;
        // SAFETY: entered, so the caller has published the job, waits for us before it changes it, and keeps what it calls.
        let all = unsafe { self.take_tasks(*self.job.get(), number, stays) };
        self.gate.fetch_sub(1, Ordering::Release);
        Some(Helped { job: job_number, all })
    }

    /// What became of the job: nothing, or the first panic of its tasks.
    pub(crate) fn verdict(&self) -> Result<(), KernelError> {
        match lock(&self.panicked).take() {
            None => Ok(()),
            Some(message) => Err(KernelError::Panicked { message }),
        }
    }

    /// Sets every stretch to its first task.
    fn lay_out(&self, job: Job) {
        for (index, next) in self.next.iter().enumerate().take(job.stretches) {
            next.0.store(job.stretch(index).start, Ordering::Relaxed);
        }
    }

    /// Takes tasks of the own stretch, then of the others, while it `stays`. Returns whether none are left to be taken.
    ///
    /// # Safety
    /// What the job calls lives.
    unsafe fn take_tasks(&self, job: Job, worker: usize, stays: impl Fn() -> bool) -> bool {
        for step in 0..job.stretches {
            let index = (worker + step) % job.stretches;
            let Some(next) = self.next.get(index) else { return true };
            let end = job.stretch(index).end;
            loop {
                if !stays() {
                    return false;
                }
                let task = next.0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                // SAFETY: the caller's contract.
                let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, task, worker) }));
                if let Err(payload) = result {
                    lock(&self.panicked).get_or_insert_with(|| panic_message(&*payload));
                    self.next.iter().for_each(|next| next.0.store(job.tasks, Ordering::Relaxed));
                }
            }
        }
        true
    }
}

/// What a worker has done for a job.
#[derive(Clone, Copy)]
pub(crate) struct Helped {
    /// The job's number.
    pub(crate) job: u64,
    /// Whether none of its tasks are left to be taken.
    pub(crate) all: bool,
}

/// Waits a moment, and now and then offers the core to another thread.
pub(crate) fn relax(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    if spins.is_multiple_of(SPINS_BEFORE_YIELD) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// A lock whose holder may have panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of a caught panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
