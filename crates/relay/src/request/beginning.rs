//! The parts that a prompt begins with, as raw bytes. Callers use them to send a call to the worker that has seen the
//! same start.
//! Must not know that worker.

use super::fields::{ObjectFields, items};

/// Returns tools, system prompt and messages, in the order in which servers render them. A raw prompt is one part.
/// Empty if the body has another shape.
pub fn beginning(body: &[u8]) -> Vec<&[u8]> {
    let (mut first, mut messages) = ([None; 3], Vec::new());
    for field in ObjectFields::of(body).into_iter().flatten() {
        let Some(value) = body.get(field.value) else { continue };
        match field.key.as_ref() {
            "tools" => first[0] = Some(value),
            "system" => first[1] = Some(value),
            "prompt" => first[2] = Some(value),
            "messages" => messages = items(value).collect(),
            _ => {}
        }
    }
    first.into_iter().flatten().chain(messages).collect()
}

#[cfg(test)]
mod tests {
    use super::beginning;

    #[test]
    fn a_body_begins_with_tools_system_and_messages_wherever_they_stand() {
        let parts = |body: &'static str| -> Vec<&str> {
            beginning(body.as_bytes()).into_iter().map(|part| std::str::from_utf8(part).unwrap()).collect()
        };
        assert_eq!(
            parts(r#"{"messages" : [ {"a":[1,"]"]} , "b",3 ], "n":1, "system":"s,]", "tools":[{"t":1}]}"#),
            [r#"[{"t":1}]"#, r#""s,]""#, r#"{"a":[1,"]"]}"#, r#""b""#, "3"]
        );
        assert_eq!(parts(r#"{"prompt":["x"],"model":"m"}"#), [r#"["x"]"#]);
        for none in ["{}", "[]", "", r#"{"messages":[]}"#, r#"{"messages":7}"#] {
            assert_eq!(parts(none), [""; 0], "{none}");
        }
    }
}
