//! Makes shadow copies one after another. Knows no stage: a gateway runs each copy as a call.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use headrace_domain::Clock;
use tokio_util::sync::CancellationToken;

use super::{CopyCall, ShadowCopy, ShadowQueue};

/// Longest time that one shadow copy of a call may take.
const LONGEST_COPY: Duration = Duration::from_secs(600);

/// Runs copies as calls.
pub trait CopyRunner: Send + Sync + 'static {
    /// Cancelled when the server stops accepting calls.
    fn draining(&self) -> &CancellationToken;

    /// The clock.
    fn clock(&self) -> &dyn Clock;

    /// Takes a copy through the path, and discards its answer.
    fn run_copy(self: &Arc<Self>, copy: CopyCall) -> impl Future<Output = ()> + Send;
}

/// Makes copies until none is queued. The future is boxed: a copy is itself a call whose task can make copies, so the
/// unboxed type would contain itself.
pub fn run_copies<R: CopyRunner>(
    runner: Arc<R>,
    queue: Arc<ShadowQueue>,
    first: Box<ShadowCopy>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(run_each(runner, queue, first))
}

/// A drain does not wait for copies: it cancels the one in progress, and the rest are counted as left out.
async fn run_each<R: CopyRunner>(runner: Arc<R>, queue: Arc<ShadowQueue>, first: Box<ShadowCopy>) {
    let mut next = Some(first);
    while let Some(copy) = next {
        if runner.draining().is_cancelled() {
            queue.leave_out();
        } else {
            let run = async {
                if let Some(call) = copy.into_call(runner.clock()) {
                    runner.run_copy(call).await;
                }
            };
            let run = AssertUnwindSafe(run).catch_unwind();
            tokio::select! {
                biased;
                () = runner.draining().cancelled() => {}
                _ = tokio::time::timeout(LONGEST_COPY, run) => {}
            }
        }
        next = queue.next();
    }
}
