//! The job of one pool while it runs: the gate through which threads enter, and the tasks that are left.
//! Must not know: which threads there are, or how they wait.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::KernelError;

/// Polls between two yields of the core to other threads.
const SPINS_BEFORE_YIELD: u32 = 64;

/// The gate's state is packed into one word, so that a worker enters a job with one compare-and-swap. The word holds
/// the job's number (high half), whether the job still accepts workers, and how many workers are inside.
const OPEN: u64 = 1 << 31;
const ONE_JOB: u64 = 1 << 32;
const INSIDE: u64 = OPEN - 1;

/// One pool's registration with the workers.
pub(crate) struct Slot {
    gate: AtomicU64,
    job: UnsafeCell<Job>,
    /// Index of the next task in each stretch, one counter per thread.
    next: Box<[Counter]>,
    panicked: Mutex<Option<String>>,
    /// Whether the pool's caller is busy, so that workers should look for tasks here.
    busy: AtomicBool,
    /// Index (from 0) of the worker that has number 1 in this slot.
    first: usize,
}

// SAFETY: only the caller writes `job`, while the gate is closed and no worker is inside. Workers read it only after
// they entered through the gate (acquire), which was opened before (release). Everything else is atomics and locks.
unsafe impl Sync for Slot {}
// SAFETY: the raw pointer in `job` is only followed between `open` and `close`, and its closure is `Sync`.
unsafe impl Send for Slot {}

/// A counter on its own pair of cache lines, because processors fetch lines in pairs. Threads then do not slow each
/// other down.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicUsize);

/// A number of tasks and the closure that runs them.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    tasks: usize,
    /// Number of stretches of consecutive tasks.
    stretches: usize,
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
}

impl Job {
    /// Creates a job of `tasks` tasks in `stretches` stretches (at least one). The job must not outlive `task`.
    pub(crate) fn of<F: Fn(usize, usize) + Sync>(tasks: usize, stretches: usize, task: &F) -> Job {
        Job { tasks, stretches, data: std::ptr::from_ref(task).cast(), call: call::<F> }
    }

    /// Returns the task indices of a stretch.
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
/// None. This is the call of the empty job that a new slot holds.
unsafe fn call_nothing(_data: *const (), _task: usize, _worker: usize) {}

impl Slot {
    /// Creates a slot for `threads` threads, including the caller. Worker `first` (counted from 0) gets number 1.
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

    /// Returns the number of threads that take part, including the caller.
    pub(crate) fn threads(&self) -> usize {
        self.next.len()
    }

    /// Returns the number in this slot of worker `index` out of `count` (counted from 0). The caller has number 0.
    /// `None` if the worker takes no part.
    pub(crate) fn number(&self, index: usize, count: usize) -> Option<usize> {
        let number = (index + count - self.first % count) % count + 1;
        (number < self.threads()).then_some(number)
    }

    /// Whether the caller is busy.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Sets whether the caller is busy.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Runs a job on this thread alone.
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
    /// Only the slot's one caller may call this, while no job is open. The job's closure lives until [`Slot::close`]
    /// has returned.
    pub(crate) unsafe fn open(&self, job: Job) {
        // SAFETY: the gate is closed, there is one caller, and the previous `close` waited until no worker was
        // inside.
        unsafe { *self.job.get() = job };
        self.lay_out(job);
        let number = self.gate.load(Ordering::Relaxed) & !(ONE_JOB - 1);
        self.gate.store(number.wrapping_add(ONE_JOB) | OPEN, Ordering::Release);
    }

    /// Runs the remaining tasks of the open job as number 0, closes the gate, and waits until every worker has left.
    ///
    /// # Safety
    /// Only the slot's one caller may call this, with the job that it opened.
    pub(crate) unsafe fn close(&self, job: Job) {
        // SAFETY: the caller's contract.
        unsafe { self.take_tasks(job, 0, || true) };
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.gate.load(Ordering::Acquire) & INSIDE != 0 {
            relax(&mut spins);
        }
    }

    /// Enters the open job unless its number is `done`. Runs tasks as `number` while `stays` returns true, then
    /// leaves. Returns `None` if there was no such job.
    pub(crate) fn help(&self, done: u64, number: usize, stays: impl Fn() -> bool) -> Option<HelpResult> {
        let entered = self.gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
            (gate / ONE_JOB != done && gate & OPEN != 0).then_some(gate + 1)
        });
        let job_number = entered.ok()? / ONE_JOB;
        // SAFETY: this worker has entered, so the caller has published the job. The caller waits for this worker
        // before it changes the job, and keeps the closure alive.
        let all = unsafe { self.take_tasks(*self.job.get(), number, stays) };
        self.gate.fetch_sub(1, Ordering::Release);
        Some(HelpResult { job: job_number, all })
    }

    /// Returns the first panic of the job's tasks as an error, or `Ok` if no task panicked.
    pub(crate) fn verdict(&self) -> Result<(), KernelError> {
        match lock(&self.panicked).take() {
            None => Ok(()),
            Some(message) => Err(KernelError::Panicked { message }),
        }
    }

    /// Resets every stretch to its first task.
    fn lay_out(&self, job: Job) {
        for (index, next) in self.next.iter().enumerate().take(job.stretches) {
            next.0.store(job.stretch(index).start, Ordering::Relaxed);
        }
    }

    /// Takes tasks from this worker's stretch, then from the other stretches, while `stays` returns true. Returns
    /// whether no task is left to take.
    ///
    /// # Safety
    /// The job's closure is alive.
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

/// The result of a worker's help with a job.
#[derive(Clone, Copy)]
pub(crate) struct HelpResult {
    /// The job's number.
    pub(crate) job: u64,
    /// Whether no task of the job is left to take.
    pub(crate) all: bool,
}

/// Spins once, and yields the core to another thread every [`SPINS_BEFORE_YIELD`] calls.
pub(crate) fn relax(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    if spins.is_multiple_of(SPINS_BEFORE_YIELD) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Locks a mutex whose previous holder may have panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the text of a caught panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
