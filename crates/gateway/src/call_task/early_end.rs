//! Why a call is ended while its answer is still being made: its key is no longer valid, or it took too long.

use std::time::Duration;

use headrace_call_state::{Rejection, unauthenticated};
use headrace_domain::{Code, Stage};
use headrace_identity::AuthRefusal;

/// A call whose key is no longer valid. The answer ends with an error in its own format.
pub(super) fn key_over(refusal: &AuthRefusal) -> Rejection {
    let what = match refusal {
        AuthRefusal::Expired => "API key expired",
        AuthRefusal::OwnerInactive => "caller's user or service account was deactivated",
        _ => "API key was revoked",
    };
    let mut rejection = match refusal {
        AuthRefusal::OwnerInactive => Rejection::new(Code::UserInactive, ""),
        refusal => unauthenticated(refusal),
    };
    rejection.rule = Some(refusal.rule());
    rejection.message =
        format!("The {what} while the call ran. The call ended, and what was computed by then is charged.");
    rejection.at(Stage::Decode)
}

/// A call that took as long as its hold may live.
pub(super) fn too_long(longest: Duration) -> Rejection {
    let seconds = longest.as_secs();
    Rejection::new(
        Code::CallTooLong,
        format!(
            "The call was not done after {seconds} s, the longest that its money is held for (`gateway.hold_lifetime`). \
             What was not delivered is not charged. Ask for fewer tokens, stream, or call when less waits."
        ),
    )
    .with_limit("hold_lifetime", "seconds", seconds, seconds)
}

pub(super) fn cut_off() -> Rejection {
    Rejection::new(
        Code::ShuttingDown,
        "The server is shutting down and the time for calls in flight is over. What was not delivered is not charged.",
    )
    .at(Stage::Decode)
    .retry_after(Duration::from_secs(2))
}
