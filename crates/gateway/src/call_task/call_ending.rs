//! How the work of a call ends. Knows no step of it.

use std::time::Duration;

use headrace_call_state::Rejection;

/// How the work ended, before the client is answered or charged.
pub(super) enum CallEnding {
    Completed,
    /// The client went away. It pays for what was computed.
    ClientGone,
    /// The client stopped reading. It pays for what was written to it.
    Stalled {
        waited: Duration,
    },
    /// The key was revoked or expired. The client pays for what was computed.
    KeyOver(Rejection),
    /// The gateway or the engine failed. The client pays for what was delivered to it.
    Failed(Rejection),
    /// No worker took the call, or the hold never reached the disk. Nothing happened.
    Refused(Rejection),
}
