//! The parts that a prompt begins with, as raw bytes. Callers use them to send a call to the worker that has seen the
//! same start.
//! Must not know that worker.

use headrace_domain::RelayedBody;

use super::body_fields::fields_of;
use super::fields::items;

/// Returns tools, system prompt and messages, in the order in which servers render them. A raw prompt is one part.
/// Empty if the body has another shape.
pub fn beginning(relayed: &RelayedBody) -> Vec<&[u8]> {
    let (body, fields) = (relayed.body.as_ref(), fields_of(relayed));
    let first = [fields.tools, fields.system, fields.prompt].into_iter().filter_map(|span| span.of(body));
    first.chain(fields.messages.of(body).into_iter().flat_map(items)).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headrace_domain::RelayedBody;

    use super::beginning;

    #[test]
    fn a_body_begins_with_tools_system_and_messages_wherever_they_stand() {
        let parts = |body: &'static str| -> Vec<String> {
            let relayed = RelayedBody {
                body: Bytes::from_static(body.as_bytes()),
                text_bytes: 0,
                media: 0,
                prompts: 1,
                has_own_fields: false,
                concerns: Vec::new(),
                fields: None,
            };
            let parts = beginning(&relayed).into_iter();
            parts.map(|part| String::from_utf8(part.to_vec()).unwrap()).collect()
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
