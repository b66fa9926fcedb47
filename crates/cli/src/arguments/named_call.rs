//! The name of a call on the command line. Must not know where calls are found.

/// A call as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedCall {
    /// The request id in the name, if it has one.
    pub(crate) id: Option<headrace_domain::RequestId>,
    /// The name. It may also be the id that an upstream gave its answer, or a W3C trace id.
    pub(crate) name: String,
}

/// Maximum length of a name, in bytes.
const MAX_CALL_NAME_BYTES: usize = 256;

pub(crate) fn call_id(text: &str) -> Result<NamedCall, String> {
    let text = text.trim();
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
    if text.is_empty() || text.len() > MAX_CALL_NAME_BYTES || !text.chars().all(is_plain) {
        return Err("it must be an id such as req_0192..., the id of an answer such as chatcmpl-0192..., or a W3C trace id"
            .to_owned());
    }
    let name = headrace_wire::named_trace(text).unwrap_or_else(|| text.to_owned());
    Ok(NamedCall { id: headrace_wire::named_request(text), name })
}
