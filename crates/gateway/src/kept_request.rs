//! The body of a request whose content is recorded, until its call has ended. Must not know what is done with it.

use bytes::Bytes;

/// See the top of the file.
pub(crate) struct KeptRequest {
    pub(crate) body: Bytes,
    /// The end of the body is missing.
    pub(crate) is_cut: bool,
    /// What a response repeats of its call, if content rules redacted that.
    pub(crate) echo: Option<String>,
}

impl KeptRequest {
    /// Keeps at most `most` bytes of a body. The allocation of a longer body is not kept.
    pub(crate) fn of(body: &Bytes, most: usize) -> Self {
        match body.get(..most) {
            Some(start) if body.len() > most => {
                Self { body: Bytes::copy_from_slice(start), is_cut: true, echo: None }
            }
            _ => Self { body: body.clone(), is_cut: false, echo: None },
        }
    }
}
