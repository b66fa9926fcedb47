//! A model's access to the threads of the process. An operation is split into tasks, which the threads and the caller
//! take in turn.
//! Must not know: what a task computes. No thread is started per operation.

mod slot;
mod workers;

use std::sync::Arc;

use crate::error::KernelError;
use crate::flush::FlushGuard;
use slot::{Job, Slot};

pub use slot::panic_message;
pub use workers::{MAX_THREADS, Workers};

/// One caller's pool over [`Workers`], which other pools may share. The caller computes too, as worker 0. Jobs of
/// different pools run concurrently. Denormals are flushed while tasks run.
pub struct Pool {
    workers: Arc<Workers>,
    slot: Arc<Slot>,
    /// Whether the caller is between [`Pool::begin`] and [`Pool::end`].
    working: bool,
}

impl Pool {
    /// Creates a pool with its own `threads` threads, including the caller (0 counts as 1). Fails if a thread cannot
    /// be started.
    pub fn new(threads: usize) -> Result<Pool, KernelError> {
        Ok(Pool::over(&Workers::new(threads)?, threads))
    }

    /// Creates a pool of `threads` threads, including the caller, over workers that other pools may use too. If there
    /// are fewer threads, the pool uses all of them.
    pub fn over(workers: &Arc<Workers>, threads: usize) -> Pool {
        Pool { workers: Arc::clone(workers), slot: workers.join(threads), working: false }
    }

    /// Returns the number of threads that take part, including the caller.
    pub fn threads(&self) -> usize {
        self.slot.threads()
    }

    /// Begins a series of operations. Until [`Pool::end`] the caller counts as a busy thread, even between
    /// operations, so that the workers need not regroup for each one. Results do not depend on it.
    pub fn begin(&mut self) {
        if !self.working {
            self.working = true;
            self.workers.begin(&self.slot);
        }
    }

    /// Ends the series of operations.
    pub fn end(&mut self) {
        if self.working {
            self.working = false;
            self.workers.end(&self.slot);
        }
    }

    /// Runs `task(index, worker)` once for every index below `tasks`, on any thread, and returns when all tasks are
    /// done. Tasks start in ascending order and finish in any order. `worker` is below [`Pool::threads`], and no two
    /// tasks run at once under one worker number. A panic in a task skips the tasks that have not started and is
    /// returned as an error.
    pub fn run<F: Fn(usize, usize) + Sync>(&mut self, tasks: usize, task: F) -> Result<(), KernelError> {
        self.run_in(1, tasks, task)
    }

    /// As [`Pool::run`], but each thread starts with its own stretch of consecutive tasks, then helps the others.
    /// Meant for tasks that read adjacent memory, so that a thread can prefetch for its next task.
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
        let _flush = FlushGuard::new();
        let job = Job::of(tasks, stretches, &task);
        if tasks <= 1 || self.threads() == 1 {
            // SAFETY: `&mut self` excludes a second caller. `task` lives until the end of this function.
            unsafe { self.slot.alone(job) };
            return self.slot.verdict();
        }
        let began = !self.working;
        self.begin();
        // SAFETY: as above. `close` returns after every worker has left the job.
        unsafe {
            if self.workers.can_help() {
                self.slot.open(job);
                self.workers.notify(&self.slot);
                self.slot.close(job);
            } else {
                self.slot.alone(job);
            }
        }
        if began {
            self.end();
        }
        self.slot.verdict()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
        self.workers.part(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
        // The first task waits until the other thread has done everything else: its own half, and the rest of this
        // half.
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

    #[test]
    fn pools_over_the_same_workers_run_side_by_side() {
        for (threads, pools) in [(1, 2), (2, 2), (3, 2), (2, 3), (8, 3)] {
            let workers = Workers::new(threads).unwrap();
            std::thread::scope(|scope| {
                for number in 0..pools {
                    let mut pool = Pool::over(&workers, threads);
                    scope.spawn(move || {
                        for round in 0..300 {
                            // In some rounds all operations form one series. In the others they are separate.
                            if (round + number) % 3 != 0 {
                                pool.begin();
                            }
                            for tasks in [2, 7, 64] {
                                let counts: Vec<AtomicUsize> =
                                    (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                                let taken: Vec<AtomicBool> =
                                    (0..threads).map(|_| AtomicBool::new(false)).collect();
                                let task = |task: usize, worker: usize| {
                                    assert!(
                                        !taken[worker].swap(true, Ordering::SeqCst),
                                        "one task at a time"
                                    );
                                    counts[task].fetch_add(1, Ordering::Relaxed);
                                    taken[worker].store(false, Ordering::SeqCst);
                                };
                                pool.run_in_stretches(tasks, task).unwrap();
                                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                            }
                            pool.end();
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_pool_of_few_threads_uses_no_more_of_the_workers() {
        let workers = Workers::new(6).unwrap();
        let (mut few, mut all) = (Pool::over(&workers, 2), Pool::over(&workers, 100));
        assert_eq!((few.threads(), all.threads()), (2, 6));
        few.run(100, |_, worker| assert!(worker < 2)).unwrap();
        all.run(100, |_, worker| assert!(worker < 6)).unwrap();
        // The workers outlive the handle that started them. They stop with the last pool.
        drop(workers);
        few.run(100, |_, _| ()).unwrap();
        drop(few);
        all.run(100, |_, _| ()).unwrap();
    }

    #[test]
    fn a_worker_yields_to_another_caller() {
        let workers = Workers::new(2).unwrap();
        let (mut first, mut second) = (Pool::over(&workers, 2), Pool::over(&workers, 2));
        second.begin();
        // Two callers are two threads, so the one worker must not help.
        first.run(200, |_, worker| assert_eq!(worker, 0)).unwrap();
        second.end();
        let helped = AtomicBool::new(false);
        first
            .run(2_000, |_, worker| {
                helped.fetch_or(worker == 1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(u64::from(
                    !helped.load(Ordering::SeqCst),
                )));
            })
            .unwrap();
        assert!(helped.into_inner(), "it is back when the other caller is done");
    }

    #[test]
    fn a_panic_in_one_pool_is_no_error_of_the_other() {
        let workers = Workers::new(2).unwrap();
        let (mut bad, mut good) = (Pool::over(&workers, 2), Pool::over(&workers, 2));
        assert!(bad.run(10, |task, _| assert!(task != 3)).is_err());
        good.run(10, |_, _| ()).unwrap();
        bad.run(10, |_, _| ()).unwrap();
    }
}
