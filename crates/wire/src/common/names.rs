//! Reads the names that callers give to tools and schemas, and checks their characters. Knows nothing about the named
//! things.

use headrace_domain::Code;

use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;

/// Longest name of a tool in OpenAI's dialect, in bytes.
const MAX_TOOL_NAME_BYTES: usize = 64;
/// Longest name of a tool in Anthropic's dialect, in bytes.
const MAX_ANTHROPIC_TOOL_NAME_BYTES: usize = 128;
/// Longest name of a schema in OpenAI's dialect, in bytes.
const MAX_SCHEMA_NAME_BYTES: usize = 64;

/// Reads a tool's name in OpenAI's dialect.
pub(crate) fn tool_name(r: &mut JsonReader<'_>) -> Read<String> {
    name(r, MAX_TOOL_NAME_BYTES)
}

/// Reads a tool's name in Anthropic's dialect.
pub(crate) fn anthropic_tool_name(r: &mut JsonReader<'_>) -> Read<String> {
    name(r, MAX_ANTHROPIC_TOOL_NAME_BYTES)
}

/// Reads a schema's name.
pub(crate) fn schema_name(r: &mut JsonReader<'_>) -> Read<String> {
    name(r, MAX_SCHEMA_NAME_BYTES)
}

/// Reads a name of 1 to `max_bytes` characters out of a-z, A-Z, 0-9, `_`, `-`.
fn name(r: &mut JsonReader<'_>, max_bytes: usize) -> Read<String> {
    let name = r.string()?;
    let fits = !name.is_empty()
        && name.len() <= max_bytes
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if !fits {
        let message = format!("it must be 1 to {max_bytes} of the characters a-z, A-Z, 0-9, `_`, `-`");
        return Err(FieldFault::new(Code::InvalidValue, message));
    }
    Ok(name.into_owned())
}
