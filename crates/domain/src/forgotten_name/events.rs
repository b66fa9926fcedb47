//! The texts that a stream of events carries in pieces, joined again. Must not know dialects: pieces belong together if
//! they have the same place in their events.

use std::collections::BTreeMap;

use serde_json::Value;

/// Joins the strings that have the same place in successive events. Empty for bytes that are no stream of events.
pub(super) fn joined_texts(bytes: &[u8]) -> Vec<String> {
    let mut texts = BTreeMap::new();
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Array(events)) => {
            events.iter().for_each(|event| add(&mut texts, &mut String::new(), event))
        }
        Ok(_) => {}
        Err(_) => {
            for line in String::from_utf8_lossy(bytes).lines() {
                let data = line.strip_prefix("data:").map(serde_json::from_str::<Value>);
                if let Some(Ok(event)) = data {
                    add(&mut texts, &mut String::new(), &event);
                }
            }
        }
    }
    texts.into_values().collect()
}

/// Adds the strings of a value. `place` is the path to the value within its event.
fn add(texts: &mut BTreeMap<String, String>, place: &mut String, value: &Value) {
    let length = place.len();
    match value {
        Value::String(text) => texts.entry(place.clone()).or_default().push_str(text),
        Value::Array(items) => {
            for (position, item) in (0_u64..).zip(items) {
                // An event names the choice or the tool call that it continues by `index`.
                let index = item.get("index").and_then(Value::as_u64).unwrap_or(position);
                place.push_str(&format!("/{index}"));
                add(texts, place, item);
                place.truncate(length);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                place.push('/');
                place.push_str(name);
                add(texts, place, field);
                place.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_text_are_joined_by_their_place_in_the_events() {
        let chat = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"mail eva@\"}}]}\n\n\
            data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"}}]}\n\n\
            data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"example.com\"}}]}\n\ndata: [DONE]\n\n";
        let messages = "event: content_block_delta\ndata: {\"index\":0,\"delta\":{\"partial_json\":\"{\\\"to\\\":\\\"eva@\"}}\n\n\
            event: content_block_delta\ndata: {\"index\":0,\"delta\":{\"partial_json\":\"example.com\\\"}\"}}\n\n";
        let array = r#"[{"delta":"eva@","type":"d"},{"delta":"example.com","type":"d"}]"#;
        for stream in [chat, messages, array] {
            let texts = joined_texts(stream.as_bytes());
            assert!(texts.iter().any(|text| text.contains("eva@example.com")), "{texts:?}");
        }
        for none in ["", "{}", r#"{"a":"eva@example.com"}"#, "data: {", "text"] {
            assert_eq!(joined_texts(none.as_bytes()), [""; 0], "{none}");
        }
    }
}
