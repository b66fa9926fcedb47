//! Finds the end user and the opening of a conversation without reading the rest of the body. Callers use both to send
//! the same user or conversation along the same route. Must not know the route.
//!
//! The route decides which reader visits the body, so this search comes before the visit (`walk`). It checks nothing, and
//! finds the same in a body that the visit refuses.

use std::fmt;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::Value;

use super::body_fields::BodyField;
use super::fields::ObjectFields;

/// Separates two texts. UTF-8 text cannot contain this byte.
const BETWEEN: u8 = 0xff;

/// Returns the end user that a call names: OpenAI's `safety_identifier`, else its `user`, else Anthropic's
/// `metadata.user_id`.
pub fn user_named(body: &[u8]) -> Option<String> {
    let (mut safety, mut user) = (None, None);
    for field in ObjectFields::of(body)? {
        let value = || serde_json::from_slice::<Value>(body.get(field.value.clone())?).ok();
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        match BodyField::named(&field.key) {
            BodyField::SafetyIdentifier => safety = value().as_ref().and_then(text),
            BodyField::User => user = value().as_ref().and_then(text).or(user),
            BodyField::Metadata => {
                user = user.or_else(|| value().as_ref().and_then(|value| text(value.get("user_id")?)));
            }
            _ => {}
        }
    }
    safety.or(user)
}

/// Returns the texts that open a conversation: the system prompt and all messages up to the first user message. They
/// stay the same while the conversation grows. Cache marks are left out, because they move from turn to turn. Empty if
/// the body has no user message.
pub fn opening(body: &[u8]) -> Vec<u8> {
    let (mut system, mut first) = (Vec::new(), Vec::new());
    for field in ObjectFields::of(body).into_iter().flatten() {
        let Some(value) = body.get(field.value.clone()) else { break };
        match BodyField::named(&field.key) {
            BodyField::System => {
                if let Ok(value) = serde_json::from_slice(value) {
                    add(&value, &mut system);
                }
            }
            BodyField::Messages => {
                // Returns an error if the list was not read to its end.
                let _ =
                    serde_json::Deserializer::from_slice(value).deserialize_seq(OpeningHasher(&mut first));
            }
            _ => {}
        }
    }
    if first.is_empty() {
        return first;
    }
    system.append(&mut first);
    system
}

/// Reads messages up to the first user message.
struct OpeningHasher<'a>(&'a mut Vec<u8>);

impl<'de> Visitor<'de> for OpeningHasher<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(message) = items.next_element::<Value>()? {
            if let Some(content) = message.get("content") {
                add(content, self.0);
            }
            if message.get("role").and_then(Value::as_str) == Some("user") {
                self.0.push(BETWEEN);
                return Ok(());
            }
        }
        self.0.clear();
        Ok(())
    }
}

/// Adds the texts of a message's content: a string, or the parts that have a text.
fn add(content: &Value, to: &mut Vec<u8>) {
    match content {
        Value::String(text) => {
            to.extend_from_slice(text.as_bytes());
            to.push(BETWEEN);
        }
        Value::Array(parts) => {
            parts
                .iter()
                .filter_map(|part| part.get("text").or_else(|| part.is_string().then_some(part)))
                .for_each(|text| add(text, to));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::Endpoint;
    use headrace_wire::WireLimits;
    use serde_json::json;

    use super::super::skim;
    use super::*;

    #[test]
    fn a_user_is_found_by_every_dialects_name() {
        for (body, user) in [
            (json!({"messages": [], "user": "u"}), Some("u")),
            (json!({"user": "u", "safety_identifier": "s"}), Some("s")),
            (json!({"metadata": {"user_id": "m"}, "model": "x"}), Some("m")),
            (json!({"metadata": {"user_id": "m"}, "user": "u"}), Some("u")),
            (json!({"metadata": {"user": "m"}, "messages": [{"user": "u"}]}), None),
            (json!({"user": 5, "metadata": null}), None),
            (json!({"user": ""}), None),
        ] {
            assert_eq!(user_named(body.to_string().as_bytes()).as_deref(), user, "{body}");
        }
        assert_eq!(user_named(b"[1"), None);
    }

    #[test]
    fn a_conversation_is_known_by_its_opening_as_it_goes_on() {
        let turn = |more: serde_json::Value, cached: bool| {
            let mut text = json!({"type": "text", "text": "hello"});
            if cached {
                text["cache_control"] = json!({"type": "ephemeral"});
            }
            let mut messages = vec![json!({"role": "user", "content": [text]})];
            messages.extend(more.as_array().unwrap().iter().cloned());
            opening(json!({"model": "m", "messages": messages, "system": "be brief"}).to_string().as_bytes())
        };
        let first = turn(json!([]), true);
        assert_eq!(
            first,
            turn(json!([{"role": "assistant", "content": "hi"}, {"role": "user", "content": "x"}]), false)
        );
        let of = |body: serde_json::Value| opening(body.to_string().as_bytes());
        let user = |text: &str| json!({"role": "user", "content": text});
        let rows = [
            of(json!({"messages": [user("hello")]})),
            of(json!({"messages": [user("other")]})),
            of(json!({"messages": [{"role": "system", "content": "be brief"}, user("other")]})),
            of(json!({"messages": [user("be brief"), user("other")]})),
        ];
        for (at, row) in rows.iter().enumerate() {
            assert!(!row.is_empty() && rows.iter().skip(at + 1).all(|other| other != row), "{at}: {row:?}");
        }
        for none in [
            json!({"prompt": "hello"}),
            json!({"messages": []}),
            json!({"messages": 5, "system": "x"}),
            json!([]),
        ] {
            assert!(of(none.clone()).is_empty(), "{none}");
        }
        assert!(opening(br#"{"messages":[{"role":"assistant","content":"x"}"#).is_empty());
    }

    /// A route is chosen before any reader refuses the body.
    #[test]
    fn a_body_that_is_refused_later_keeps_its_user_and_its_opening() {
        for (body, user) in [
            (r#"{"user":"a","user":"b"}"#, Some("b")),
            (r#"{"safety_identifier":"s","user":"u","safety_identifier":5}"#, Some("u")),
            (r#"{"metadata":{"user_id":"a","user_id":"b"}}"#, Some("b")),
            (r#"{"user":"u","messages":[{]}"#, Some("u")),
            (r#"{"user":"u","x":"\ud800","n":"#, Some("u")),
        ] {
            assert_eq!(user_named(body.as_bytes()).as_deref(), user, "{body}");
            let read = skim(Endpoint::ChatCompletions, body.as_bytes().into(), &WireLimits::default());
            assert!(read.is_err(), "{body}");
        }
        for (messages, texts) in [
            (r#"[{"role":"user","content":"a","content":"b"}]"#, "b"),
            (r#"[{"content":"a"},{"Role":"x","role":"user"},{]"#, "a"),
            (r#"[{"content":"a"},{"role":"user","content":"\ud800"}]"#, "a"),
            (r#"[{"content":[{"text":"a"},{"type":"image_embeds","text":"b"}],"role":"user"}]"#, "a b"),
        ] {
            let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
            let found = opening(body.as_bytes());
            let found: Vec<&str> = found
                .split(|byte| *byte == BETWEEN)
                .map(|text| std::str::from_utf8(text).unwrap())
                .filter(|text| !text.is_empty())
                .collect();
            assert_eq!(found.join(" "), texts, "{body}");
            let read = skim(Endpoint::ChatCompletions, body.into(), &WireLimits::default());
            assert!(read.is_err(), "{messages}");
        }
    }

    /// Readers accept these bodies.
    #[test]
    fn an_opening_is_what_a_tree_shows_of_it() {
        for (messages, texts) in [
            (r#"[{"role":"user","content":[{"type":"later","text":["a",{"text":"b"}]}]}]"#, "a b"),
            (r#"[{"role":"user","content":[{"type":"tool_result","content":[{"text":"a"}]},"b"]}]"#, "b"),
            (r#"[{"role":"system","content":"a"},{"role":"user","content":"b","x":1e999}]"#, "a"),
            (r#"["x",{"role":"user","content":{"text":"a"}}]"#, ""),
        ] {
            let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
            let found = opening(body.as_bytes());
            let found = String::from_utf8_lossy(&found).replace('\u{fffd}', " ");
            assert_eq!(found.trim(), texts, "{body}");
            assert!(
                skim(Endpoint::ChatCompletions, body.into(), &WireLimits::default()).is_ok(),
                "{messages}"
            );
        }
    }
}
