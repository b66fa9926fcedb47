//! The body that is sent to somebody who speaks another dialect than its caller.
//! Must not know what comes back.

use bytes::Bytes;
use headrace_domain::{Call, Code, Dialect};

use super::edit::{Edits, edited};
use crate::BadRequest;

/// The body of a call that [`super::skim`] read, as a receiver that speaks `to` gets it, with the edits. In its caller's own
/// dialect it is [`edited`].
///
/// # Errors
/// [`BadRequest`] names the first field that the other dialect has nothing for: nothing is dropped in silence.
pub fn translated(call: &Call, to: Dialect, edits: &Edits<'_>) -> Result<Bytes, BadRequest> {
    if call.endpoint.dialect() == to {
        return edited(call, edits);
    }
    let message =
        "the model's upstream speaks another dialect than this path; call it by its own path".to_owned();
    Err(BadRequest { param: None, code: Code::UnsupportedValue, message })
}
