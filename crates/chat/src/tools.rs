//! The tools that a person offers in a chat, read from a file in OpenAI's format. Runs no tool.

use std::path::Path;

use serde_json::Value;

/// Maximum size of a file of tools, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of offered tools.
const MAX_TOOLS: usize = 128;

/// Reads the tools of a file: a list, or an object with a list `tools`. An entry is `{"type": "function", "function":
/// {…}}`, or only the function.
///
/// # Errors
/// A message that says what is wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Value>, String> {
    let shown = path.display();
    let length = std::fs::metadata(path).map_err(|error| format!("{shown} cannot be read: {error}"))?.len();
    if length > MAX_FILE_BYTES {
        return Err(format!("{shown} has {length} bytes; a file of tools has at most {MAX_FILE_BYTES}"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    of(&text).map_err(|why| format!("{shown}: {why}"))
}

fn of(text: &str) -> Result<Vec<Value>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
    let list = match value {
        Value::Array(list) => list,
        Value::Object(mut object) => match object.remove("tools") {
            Some(Value::Array(list)) => list,
            _ => vec![Value::Object(object)],
        },
        _ => return Err("must be a list of tools".to_owned()),
    };
    if list.is_empty() || list.len() > MAX_TOOLS {
        return Err(format!("has {} tools; it must have 1 to {MAX_TOOLS}", list.len()));
    }
    list.into_iter()
        .enumerate()
        .map(|(at, tool)| one(tool).map_err(|why| format!("tools[{at}] {why}")))
        .collect()
}

fn one(tool: Value) -> Result<Value, String> {
    let wrapped = match (tool.get("type").and_then(Value::as_str), tool.get("function").is_some()) {
        (Some("function") | None, true) => tool,
        (None, false) => serde_json::json!({"type": "function", "function": tool}),
        // The format of the Responses API.
        (Some("function"), false) => {
            let mut function = tool;
            if let Some(object) = function.as_object_mut() {
                object.shift_remove("type");
            }
            serde_json::json!({"type": "function", "function": function})
        }
        (Some(other), _) => return Err(format!("is of type `{other}`: only functions can be offered here")),
    };
    match name(&wrapped) {
        Some(_) => Ok(wrapped),
        None => Err("has no name".to_owned()),
    }
}

fn name(tool: &Value) -> Option<&str> {
    tool.get("function")?.get("name")?.as_str().filter(|name| !name.is_empty())
}

/// Describes each tool in a line: its name, its parameters and its description.
pub(super) fn described(tools: &[Value]) -> String {
    let line = |tool: &Value| {
        let function = tool.get("function");
        let properties =
            function.and_then(|function| function.get("parameters")?.get("properties")?.as_object());
        let takes: Vec<_> = properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let what = function.and_then(|function| function.get("description")?.as_str()).unwrap_or_default();
        let line = format!("{}({})  {what}", name(tool).unwrap_or_default(), takes.join(", "));
        line.trim_end().to_owned() + "\n"
    };
    tools.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_read_as_people_write_them() {
        let function = r#"{"name": "get_weather", "description": "Weather now", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "unit": {}}}}"#;
        let openai = format!(r#"{{"type": "function", "function": {function}}}"#);
        let responses = function.replacen('{', r#"{"type": "function", "#, 1);
        let expected = of(&openai).unwrap();
        assert_eq!(expected[0]["function"]["name"], "get_weather");
        for text in [
            format!("[{openai}]"),
            format!(r#"{{"tools": [{openai}]}}"#),
            format!("[{function}]"),
            format!("[{responses}]"),
            function.to_owned(),
        ] {
            assert_eq!(of(&text).unwrap(), expected, "{text}");
        }
        assert_eq!(described(&expected), "get_weather(city, unit)  Weather now\n");
        for (text, why) in [
            ("x", "is no JSON"),
            ("7", "must be a list"),
            ("[]", "has 0 tools"),
            (r#"[{"type": "web_search"}]"#, "tools[0] is of type `web_search`"),
            (r#"[{"type": "function", "function": {}}]"#, "tools[0] has no name"),
        ] {
            let said = of(text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        assert!(read(Path::new("/nowhere")).unwrap_err().contains("cannot be read"));
    }
}
