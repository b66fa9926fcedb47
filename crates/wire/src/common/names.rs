//! Reads the names that callers give to tools and schemas, and checks their characters. Knows nothing about the named
//! things.

use headrace_domain::Code;

use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;

/// Longest name of a tool in OpenAI's dialect, in bytes.
const MAX_TOOL_NAME_BYTES: usize = 64;
/// Bytes of a tool's name before the hash that makes it unique.
const SHOWN_BYTES: usize = MAX_TOOL_NAME_BYTES - "_0123456789abcdef".len();
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

/// Returns the name under which a model calls a tool of an MCP server: `LABEL__TOOL`. Names that do not fit, or that
/// another pair could have too, end with a hash of both instead. Different pairs thus have different names.
pub(crate) fn mcp_tool_name(server_label: &str, tool: &str) -> String {
    let fits = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    let plain = format!("{server_label}__{tool}");
    // The first two underscores in a row end the label.
    let is_clear = !server_label.contains("__") && !server_label.ends_with('_');
    if is_clear && fits(&plain) && plain.len() <= MAX_TOOL_NAME_BYTES {
        return plain;
    }
    // FNV-1a over both parts, with a byte between them that no text contains.
    let bytes = server_label.bytes().chain([0xff]).chain(tool.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let shown = plain.chars().map(|c| if fits(c.encode_utf8(&mut [0; 4])) { c } else { '_' });
    let shown: String = shown.take(SHOWN_BYTES).collect();
    format!("{shown}_{hash:016x}")
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn different_tools_of_servers_have_different_names_that_fit() {
        assert_eq!(mcp_tool_name("docs", "search"), "docs__search");
        assert_eq!(mcp_tool_name("docs", "_search"), "docs___search");
        let long = "x".repeat(128);
        let pairs = [
            ("docs", "search"),
            ("docs", "_search"),
            ("docs_", "search"),
            ("docs__a", "b"),
            ("docs", "a__b"),
            ("docs", "a.b"),
            ("docs", "a_b"),
            ("do.cs", "a_b"),
            ("dócs", "a_b"),
            ("d\u{f6}cs", "a_b"),
            ("docs", long.as_str()),
            ("docs2", long.as_str()),
            (long.as_str(), "search"),
            (long.as_str(), "find"),
        ];
        let names: HashSet<String> = pairs.iter().map(|(label, tool)| mcp_tool_name(label, tool)).collect();
        assert_eq!(names.len(), pairs.len(), "{names:?}");
        for name in names {
            let text = format!("\"{name}\"");
            let mut reader = JsonReader::new(text.as_bytes(), 1, 1).unwrap();
            assert_eq!(tool_name(&mut reader).unwrap(), name);
        }
    }
}
