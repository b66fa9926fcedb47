//! The threads that run mask tasks, and the order of the tasks. The tenant that used the least time comes first, and
//! no tenant gets all threads. Must not know: what a task does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::{InlineMasks, MaskRunner, MaskTask};

/// Limits of the number of threads.
const MIN_THREADS: usize = 2;
const MAX_THREADS: usize = 4;
/// Processors per pool thread.
const PROCESSORS_PER_THREAD: usize = 4;

/// Threads for mask tasks. They start with the first task and end when the pool is dropped.
pub(crate) struct MaskPool {
    shared: Arc<Shared>,
    threads: usize,
    /// Number of threads that were started.
    started: usize,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when a task may be available.
    ready: Condvar,
}

/// Waiting tasks, by tenant.
struct Queue {
    tenants: HashMap<u64, TenantTasks>,
    /// Threads that one tenant may use at a time.
    max_per_tenant: usize,
    /// The used time of the tenant that was served last, at that moment. A new tenant starts from this value.
    served_ns: u64,
    closed: bool,
}

#[derive(Default)]
struct TenantTasks {
    accepts: VecDeque<MaskTask>,
    masks: VecDeque<MaskTask>,
    running: usize,
    used_ns: u64,
}

impl MaskPool {
    /// Creates a pool sized for this machine.
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (processors / PROCESSORS_PER_THREAD).clamp(MIN_THREADS, MAX_THREADS);
        let queue = Queue {
            tenants: HashMap::new(),
            max_per_tenant: (threads - 1).max(1),
            served_ns: 0,
            closed: false,
        };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), ready: Condvar::new() });
        Self { shared, threads, started: 0 }
    }
}

impl MaskRunner for MaskPool {
    fn submit(&mut self, task: MaskTask) {
        while self.started < self.threads {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name(format!("masks-{}", self.started));
            if builder.spawn(move || work(&shared)).is_err() {
                break;
            }
            self.started += 1;
        }
        if self.started == 0 {
            return InlineMasks.submit(task);
        }
        self.shared.queue.lock().push(task);
        self.shared.ready.notify_one();
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.ready.notify_all();
    }
}

impl Queue {
    fn push(&mut self, task: MaskTask) {
        let served_ns = self.served_ns;
        let tasks = self.tenants.entry(task.tenant()).or_insert_with(|| TenantTasks {
            // Unused time gives a tenant no credit.
            used_ns: served_ns,
            ..TenantTasks::default()
        });
        if task.is_accept() { tasks.accepts.push_back(task) } else { tasks.masks.push_back(task) }
    }

    /// Returns the next task. It belongs to the tenant that used the least time, among those below their thread
    /// limit.
    fn take(&mut self) -> Option<MaskTask> {
        let max = self.max_per_tenant;
        let waits = |tasks: &TenantTasks| !(tasks.accepts.is_empty() && tasks.masks.is_empty());
        let may = self.tenants.iter().filter(|(_, tasks)| tasks.running < max && waits(tasks));
        let tenant =
            may.min_by_key(|(tenant, tasks)| (tasks.used_ns, **tenant)).map(|(tenant, _)| *tenant)?;
        let tasks = self.tenants.get_mut(&tenant)?;
        let task = tasks.accepts.pop_front().or_else(|| tasks.masks.pop_front())?;
        tasks.running += 1;
        self.served_ns = self.served_ns.max(tasks.used_ns);
        Some(task)
    }

    /// Records that a piece of a tenant's task took `nanos`. `left` is the rest of the task.
    fn done(&mut self, tenant: u64, nanos: u64, left: Option<MaskTask>) {
        if let Some(tasks) = self.tenants.get_mut(&tenant) {
            tasks.running = tasks.running.saturating_sub(1);
            tasks.used_ns = tasks.used_ns.saturating_add(nanos);
        }
        if let Some(task) = left {
            self.push(task);
        }
        let served_ns = self.served_ns;
        self.tenants.retain(|_, tasks| {
            let waits = !(tasks.accepts.is_empty() && tasks.masks.is_empty());
            // A tenant that is ahead of the others stays ahead if it returns at once.
            waits || tasks.running > 0 || tasks.used_ns > served_ns
        });
    }
}

/// The main function of a pool thread. Returns when the pool is dropped.
fn work(shared: &Shared) {
    let mut queue = shared.queue.lock();
    loop {
        if queue.closed {
            return;
        }
        let Some(task) = queue.take() else {
            shared.ready.wait(&mut queue);
            continue;
        };
        drop(queue);
        let (tenant, begun) = (task.tenant(), Instant::now());
        let left = task.run_piece();
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        queue = shared.queue.lock();
        queue.done(tenant, nanos, left);
        // The tenant has a free thread again.
        shared.ready.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use headrace_engine_api::GrammarState;

    use super::*;
    use crate::any_ids::AnyIds;
    use crate::masks::{TaskLink, WorkBudget};

    fn task(tenant: u64) -> MaskTask {
        let link = TaskLink {
            dropped: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            wake: Arc::new(|| {}),
        };
        let home: (Box<dyn GrammarState>, _) = (Box::new(AnyIds), Vec::new());
        MaskTask::new(tenant, home, (Vec::new(), 0), WorkBudget::of_choice(1), (channel().0, Arc::new(link)))
    }

    fn queue(max_per_tenant: usize) -> Queue {
        Queue { tenants: HashMap::new(), max_per_tenant, served_ns: 0, closed: false }
    }

    #[test]
    fn no_tenant_has_all_threads_and_the_one_that_used_least_comes_first() {
        let mut queue = queue(1);
        for _ in 0..10 {
            queue.push(task(1));
        }
        let slow = queue.take().unwrap();
        assert!(queue.take().is_none(), "the other thread is left for another tenant");
        queue.push(task(2));
        let honest = queue.take().unwrap();
        assert_eq!((slow.tenant(), honest.tenant()), (1, 2));
        queue.done(2, 10, None);
        queue.done(1, 1_000_000, slow.run_piece());
        // However many tasks the first tenant has, another tenant's task waits only for pieces that are already
        // running.
        for _ in 0..1_000 {
            queue.push(task(2));
            let next = queue.take().unwrap();
            assert_eq!(next.tenant(), 2);
            queue.done(2, 10, None);
        }
        assert_eq!(queue.take().unwrap().tenant(), 1);
    }

    #[test]
    fn what_takes_ids_comes_before_masks_of_the_same_tenant() {
        let mut queue = queue(2);
        let mask = task(1).run_piece().unwrap();
        assert!(!mask.is_accept());
        queue.push(mask);
        queue.push(task(1));
        assert!(queue.take().unwrap().is_accept());
        assert!(!queue.take().unwrap().is_accept());
    }
}
