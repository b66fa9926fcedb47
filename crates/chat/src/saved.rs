//! Saves a conversation to a file: messages as JSON in the API's format, or Markdown for people. Must not know
//! sessions.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use headrace_client::ChatMessage;

/// The generated file name for the time of writing.
pub(super) fn unnamed(utc: &str) -> PathBuf {
    let digits: String = utc.chars().filter(char::is_ascii_digit).collect();
    PathBuf::from(format!("headrace-chat-{digits}.md"))
}

/// Writes a new file that only its owner can read.
///
/// # Errors
/// A message. An existing file stays unchanged.
pub(super) fn save(path: &Path, model: &str, messages: &[ChatMessage]) -> Result<(), String> {
    let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let text = if json { as_json(model, messages) } else { Ok(as_markdown(model, messages)) }?;
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("{} is there already: name another file", path.display())
        }
        _ => format!("{} cannot be written: {error}", path.display()),
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(said)?;
    file.write_all(text.as_bytes()).map_err(said)
}

/// The body of a call, without optional parameters.
fn as_json(model: &str, messages: &[ChatMessage]) -> Result<String, String> {
    let body = serde_json::json!({"model": model, "messages": messages});
    let text = serde_json::to_string_pretty(&body).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

fn as_markdown(model: &str, messages: &[ChatMessage]) -> String {
    let mut text = format!("# Conversation with {model}\n");
    for message in messages {
        let who = match message.role.as_str() {
            "assistant" => model,
            "user" => "You",
            "system" => "System",
            other => other,
        };
        text.push_str(&format!("\n## {who}\n"));
        if !message.content.is_empty() {
            text.push_str(&format!("\n{}\n", message.content.trim_end()));
        }
        for call in &message.tool_calls {
            let function = &call.function;
            text.push_str(&format!("\n`{}({})`\n", function.name, function.arguments));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use headrace_client::{FunctionBody, ToolCallBody};

    use super::*;

    #[test]
    fn what_was_said_is_in_the_file_and_nothing_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let function = FunctionBody { name: "f".into(), arguments: "{}".into() };
        let calls = vec![ToolCallBody { id: "c".into(), kind: "function".into(), function }];
        let messages = [
            ChatMessage::new("system", "be brief"),
            ChatMessage::new("user", "hi\n"),
            ChatMessage { tool_calls: calls, ..ChatMessage::new("assistant", "") },
            ChatMessage { tool_call_id: Some("c".into()), ..ChatMessage::new("tool", "21") },
            ChatMessage::new("assistant", "**21**"),
        ];
        let (md, json) = (dir.path().join("a.md"), dir.path().join("a.json"));
        save(&md, "demo", &messages).unwrap();
        save(&json, "demo", &messages).unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(
            read(&md),
            "# Conversation with demo\n\n## System\n\nbe brief\n\n## You\n\nhi\n\n## demo\n\n`f({})`\n\n## tool\n\n21\n\n## demo\n\n**21**\n"
        );
        let body: serde_json::Value = serde_json::from_str(&read(&json)).unwrap();
        assert_eq!(body["messages"][2]["tool_calls"][0]["function"]["name"], "f");
        assert_eq!(body["messages"][3]["tool_call_id"], "c");
        assert_eq!(std::fs::metadata(&md).unwrap().mode() & 0o777, 0o600);
        let refused = save(&md, "demo", &[]).unwrap_err();
        assert!(refused.contains("is there already"), "{refused}");
        assert!(read(&md).contains("be brief"));
        assert!(save(Path::new("/nowhere/x.md"), "demo", &[]).is_err());
        assert_eq!(unnamed("2026-11-21 01:02:03"), Path::new("headrace-chat-20261121010203.md"));
    }
}
