//! One persistent pool of threads: an operation is cut into tasks that the threads and the caller take in turn.
//! Must not know: what a task computes. No thread is started per operation.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::KernelError;
use crate::flush::FlushGuard;

/// Polls before a waiting worker parks: a few hundred microseconds, longer than the gap between two operations of a
/// step and than most gaps between two steps.
const SPINS_BEFORE_PARK: u32 = 20_000;
/// Polls between two offers of the core to other threads.
const SPINS_BEFORE_YIELD: u32 = 64;

/// The most threads a pool takes.
pub const MAX_THREADS: usize = 1024;

/// A pool of `threads − 1` workers; the caller is the last thread. Denormals are flushed while tasks run.
pub struct Pool {
    shared: Arc<Inner>,
    workers: Vec<JoinHandle<()>>,
}

/// Packed into one word so that entering a job is one compare-and-swap: the job's number (high half), whether it
/// still takes workers, and how many are inside.
const OPEN: u64 = 1 << 31;
const ONE_JOB: u64 = 1 << 32;
const INSIDE: u64 = OPEN - 1;

struct Inner {
    gate: AtomicU64,
    job: UnsafeCell<Job>,
    /// The task to be taken next in each stretch, one per thread.
    next: Box<[Counter]>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    panicked: Mutex<Option<String>>,
}

// SAFETY: `job` is written only by the caller while the gate is closed and nobody is inside, and read only by
// workers that have entered through the gate (acquire) after it was opened (release). The rest is atomics and locks.
unsafe impl Sync for Inner {}
// SAFETY: the raw pointer in `job` is only followed inside `run`, whose closure is `Sync`.
unsafe impl Send for Inner {}

/// On a cache line of its own (two, as they are fetched in pairs), so that threads do not slow each other down.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicUsize);

#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    /// How many stretches of consecutive tasks there are.
    stretches: usize,
    data: *const (),
    call: unsafe fn(*const (), usize, usize),
}

impl Job {
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
/// None: the job that a new pool holds until its first.
unsafe fn call_nothing(_data: *const (), _task: usize, _worker: usize) {}

impl Pool {
    /// A pool of `threads` threads, the caller included (0 counts as 1). Errors when a thread cannot be started.
    pub fn new(threads: usize) -> Result<Pool, KernelError> {
        let threads = threads.clamp(1, MAX_THREADS);
        let shared = Arc::new(Inner {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(Job { tasks: 0, stretches: 1, data: std::ptr::null(), call: call_nothing }),
            next: (0..threads).map(|_| Counter::default()).collect(),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            panicked: Mutex::new(None),
        });
        let mut pool = Pool { shared, workers: Vec::new() };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("kernel-{worker}"))
                .spawn(move || shared.work(worker))
                .map_err(|error| KernelError::Threads { message: error.to_string() })?;
            pool.workers.push(thread);
        }
        Ok(pool)
    }

    /// How many threads take part, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(index, worker)` for every index below `tasks`, each once, in any order, on any thread; `worker` is
    /// below [`Pool::threads`] and no two tasks run at once under one worker number. Returns when all are done. A panic in a task
    /// skips the tasks not yet begun and is returned as an error. Tasks are begun in ascending order.
    pub fn run<F: Fn(usize, usize) + Sync>(&mut self, tasks: usize, task: F) -> Result<(), KernelError> {
        self.run_in(1, tasks, task)
    }

    /// As [`Pool::run`], but each thread begins with a stretch of consecutive tasks of its own and helps the others when it is done
    /// with that: for tasks that read memory one behind the other, so that a thread can ask for what it will read next.
    pub fn run_in_stretches<F: Fn(usize, usize) + Sync>(
        &mut self,
        tasks: usize,
        task: F,
    ) -> Result<(), KernelError> {
        self.run_in(self.threads(), tasks, task)
    }

    fn run_in<F: Fn(usize, usize) + Sync>(
        &mut self,
        stretches: usize,
        tasks: usize,
        task: F,
    ) -> Result<(), KernelError> {
        let inner = &*self.shared;
        let _flush = FlushGuard::new();
        let job = Job { tasks, stretches, data: (&raw const task).cast(), call: call::<F> };
        if tasks <= 1 || self.workers.is_empty() {
            inner.lay_out(job);
            inner.take_tasks(job, 0);
            return inner.verdict();
        }
        // SAFETY: the gate is closed and nobody is inside: the previous `run` waited for that, and `&mut self` keeps
        // out another caller.
        unsafe { *inner.job.get() = job };
        inner.lay_out(job);
        let number = inner.gate.load(Ordering::Relaxed) & !(ONE_JOB - 1);
        inner.gate.store(number.wrapping_add(ONE_JOB) | OPEN, Ordering::SeqCst);
        inner.wake_sleepers();
        inner.take_tasks(job, 0);
        inner.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while inner.gate.load(Ordering::Acquire) & INSIDE != 0 {
            relax(&mut spins);
        }
        inner.verdict()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.gate.fetch_add(ONE_JOB, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so there is nothing to learn from joining it.
            let _ = worker.join();
        }
    }
}

impl Inner {
    fn work(&self, worker: usize) {
        let _flush = FlushGuard::new();
        let mut last = 0;
        loop {
            last = self.wait_for_job(last);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if self.enter(last) {
                // SAFETY: entered, so the caller has published the job and waits for us before it changes it.
                let job = unsafe { *self.job.get() };
                self.take_tasks(job, worker);
                self.gate.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Spins, then parks, until the job's number is no longer `last`; returns the new number.
    fn wait_for_job(&self, last: u64) -> u64 {
        let number = |gate: u64| gate / ONE_JOB;
        let mut spins = 0;
        while spins < SPINS_BEFORE_PARK {
            let now = number(self.gate.load(Ordering::Acquire));
            if now != last {
                return now;
            }
            relax(&mut spins);
        }
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut now = number(self.gate.load(Ordering::SeqCst));
        while now == last {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            now = number(self.gate.load(Ordering::SeqCst));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        now
    }

    /// Joins job `number` unless it is closed or another one runs already: a worker that wakes late is not waited for.
    fn enter(&self, number: u64) -> bool {
        self.gate
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
                (gate / ONE_JOB == number && gate & OPEN != 0).then_some(gate + 1)
            })
            .is_ok()
    }

    /// Sets every stretch to its first task.
    fn lay_out(&self, job: Job) {
        for (index, next) in self.next.iter().enumerate().take(job.stretches) {
            next.0.store(job.stretch(index).start, Ordering::Relaxed);
        }
    }

    /// Takes tasks of the worker's own stretch, then of the others.
    fn take_tasks(&self, job: Job, worker: usize) {
        for step in 0..job.stretches {
            let index = (worker + step) % job.stretches;
            let Some(next) = self.next.get(index) else { return };
            let end = job.stretch(index).end;
            loop {
                let task = next.0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                // SAFETY: `data` is the closure that `run` borrows until every worker has left.
                let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, task, worker) }));
                if let Err(payload) = result {
                    lock(&self.panicked).get_or_insert_with(|| panic_message(&*payload));
                    self.next.iter().for_each(|next| next.0.store(job.tasks, Ordering::Relaxed));
                }
            }
        }
    }

    fn verdict(&self) -> Result<(), KernelError> {
        match lock(&self.panicked).take() {
            None => Ok(()),
            Some(message) => Err(KernelError::Panicked { message }),
        }
    }

    /// Pairs with `wait_for_job`: it counts itself before it looks at the gate, we open the gate before we look at
    /// the count, both sequentially consistent, so one of us sees the other.
    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }
}

fn relax(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    if spins.is_multiple_of(SPINS_BEFORE_YIELD) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 100] {
                for _ in 0..50 {
                    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    let task = |task: usize, worker| {
                        assert!(worker < threads);
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    };
                    pool.run(tasks, task).unwrap();
                    pool.run_in_stretches(tasks, task).unwrap();
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2));
                }
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_survives() {
        for threads in [1, 2, 3] {
            let mut pool = Pool::new(threads).unwrap();
            let fall = |task, _| assert!(task != 3, "task {task} fell");
            for error in [pool.run(10, fall), pool.run_in_stretches(10, fall)] {
                assert_eq!(error, Err(KernelError::Panicked { message: "task 3 fell".to_owned() }));
            }
            pool.run(10, |_, _| ()).unwrap();
        }
    }

    #[test]
    fn a_thread_without_work_of_its_own_helps_the_others() {
        let mut pool = Pool::new(2).unwrap();
        let taken = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let own = AtomicUsize::new(0);
        // The first task waits until the other thread has done everything else: its own half, and the rest of this one.
        pool.run_in_stretches(100, |task, worker| {
            own.fetch_add(usize::from((task < 50) == (worker == 0)), Ordering::Relaxed);
            if taken[worker].fetch_add(1, Ordering::SeqCst) == 0 && worker == 0 {
                while taken[1].load(Ordering::SeqCst) < 99 {
                    std::thread::yield_now();
                }
            }
        })
        .unwrap();
        assert_eq!(taken.map(AtomicUsize::into_inner), [1, 99]);
        assert_eq!(own.into_inner(), 51, "each begins with its own");
    }

    #[test]
    fn parked_workers_wake_again() {
        let mut pool = Pool::new(3).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let done = AtomicUsize::new(0);
            pool.run(64, |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(done.load(Ordering::Relaxed), 64);
        }
    }

    #[test]
    fn denormals_are_flushed_on_every_thread_and_restored_on_the_callers() {
        let halve = |x: f32| std::hint::black_box(x) * std::hint::black_box(0.5);
        let mut pool = Pool::new(2).unwrap();
        pool.run(64, |_, _| assert_eq!(halve(f32::MIN_POSITIVE), 0.0)).unwrap();
        assert!(halve(f32::MIN_POSITIVE) > 0.0);
    }
}
