//! Paces an open loop on its own thread. The runtime's timers have a resolution of one millisecond; a sleeping thread
//! is more precise and does not depend on the runtime's load. Knows no answers.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::SessionIter;
use crate::session::{BenchContext, PreparedSession};

/// Maximum sleep before the pacer checks whether it is still needed.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// Sends each session with its due time when it is due. The session's first body is already written.
pub(crate) fn pace(
    stage: Arc<BenchContext>,
    sessions: SessionIter,
) -> io::Result<UnboundedReceiver<(PreparedSession, Instant)>> {
    let (hand, handed) = unbounded_channel();
    thread::Builder::new().name("bench-pacer".to_owned()).spawn(move || {
        for session in sessions {
            let Some(due) = stage.start.checked_add(session.at) else { return };
            let Some(prepared) = stage.prepare(session) else { continue };
            loop {
                if stage.no_more.is_cancelled() {
                    return;
                }
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                thread::sleep(left.min(LONGEST_SLEEP));
            }
            if hand.send((prepared, due)).is_err() {
                return;
            }
        }
    })?;
    Ok(handed)
}
