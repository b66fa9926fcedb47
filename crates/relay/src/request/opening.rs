//! Finds the end user and the opening of a conversation without reading the rest of the body. Callers use both to send
//! the same user or conversation along the same route. Must not know the route.

use std::fmt;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::Value;

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
        match field.key.as_ref() {
            "safety_identifier" => safety = value().as_ref().and_then(text),
            "user" => user = value().as_ref().and_then(text).or(user),
            "metadata" => {
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
        match field.key.as_ref() {
            "system" => {
                if let Ok(value) = serde_json::from_slice(value) {
                    add(&value, &mut system);
                }
            }
            "messages" => {
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
    use serde_json::json;

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
}
