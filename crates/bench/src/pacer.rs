//! Keeps the time of an open loop on a thread of its own: the runtime's timers are a millisecond coarse, a sleeping
//! thread's are not, and its schedule does not depend on what the runtime is busy with. Knows no answers.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::Sessions;
use crate::session::{Prepared, Stage};

/// How long it sleeps at most before it looks whether it is still needed.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// Hands each session over at the moment it is due, with that moment. Its first body is written by then.
pub(crate) fn pace(
    stage: Arc<Stage>,
    sessions: Sessions,
) -> io::Result<UnboundedReceiver<(Prepared, Instant)>> {
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
