//! List items as they are stored: each is a JSON object with an id. Interprets nothing else.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::ItemRecord;

/// The items of an input, as they are listed. A plain text becomes a message. An item without an id gets one that is
/// derived from `of`, the id of the answer. Returns no items if the input is not JSON.
pub fn input_items(input: &str, of: &str) -> Vec<ItemRecord> {
    if !input.trim_start().starts_with('"') {
        return items_with_ids(input, of);
    }
    let Ok(text) = serde_json::from_str::<String>(input) else { return Vec::new() };
    let Value::Object(item) = json!({"type": "message", "role": "user", "content": text}) else {
        return Vec::new();
    };
    vec![record(item, of, 0)]
}

/// The items of a list, each with its id. Returns no items if `list` is not a JSON list, and skips items that are not
/// objects.
pub fn items_with_ids(list: &str, of: &str) -> Vec<ItemRecord> {
    // Parse one item into a tree at a time: trees take many times the memory of the text.
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(list) else { return Vec::new() };
    let objects = items.into_iter().filter_map(|item| serde_json::from_str(item.get()).ok());
    objects.enumerate().map(|(at, item)| record(item, of, at)).collect()
}

/// The items as a JSON list.
pub fn list_of(items: &[ItemRecord]) -> String {
    let mut list = String::with_capacity(list_bytes(items));
    push_list(&mut list, items);
    list
}

/// Size of the JSON list in bytes.
pub(crate) fn list_bytes(items: &[ItemRecord]) -> usize {
    items.iter().map(|item| item.json.len() + 1).sum::<usize>() + 2
}

/// Appends the items as a JSON list.
pub(crate) fn push_list(json: &mut String, items: &[ItemRecord]) {
    json.push('[');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            json.push(',');
        }
        json.push_str(&item.json);
    }
    json.push(']');
}

fn record(mut item: Map<String, Value>, of: &str, at: usize) -> ItemRecord {
    // Clients may send a message without its type.
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    item.entry("type").or_insert_with(|| json!(kind));
    if kind == "message" {
        as_parts(&mut item);
        item.entry("status").or_insert_with(|| json!("completed"));
    }
    let id = match item.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()) {
        Some(id) => id.to_owned(),
        None => format!("{}_{}i{at:04x}", prefix(&kind), digits(of)),
    };
    item.insert("id".to_owned(), json!(id));
    ItemRecord { id, json: Value::Object(item).to_string() }
}

/// Converts a message's text into the content parts that answers have.
fn as_parts(item: &mut Map<String, Value>) {
    let spoken = item.get("role").and_then(Value::as_str) == Some("assistant");
    let Some(Value::String(text)) = item.get("content") else { return };
    let part = match spoken {
        true => json!({"type": "output_text", "text": text, "annotations": []}),
        false => json!({"type": "input_text", "text": text}),
    };
    item.insert("content".to_owned(), json!([part]));
}

fn prefix(kind: &str) -> &'static str {
    match kind {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        "compaction" => "cmp",
        "mcp_list_tools" => "mcpl",
        "mcp_call" => "mcp",
        "mcp_approval_request" => "mcpr",
        "mcp_approval_response" => "mcpa",
        "file_search_call" => "fs",
        "code_interpreter_call" => "ci",
        "web_search_call" => "ws",
        _ => "item",
    }
}

fn digits(id: &str) -> &str {
    id.split_once('_').map_or(id, |(_, digits)| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_has_a_type_and_an_id_and_keeps_its_own() {
        let items = input_items("\"hi\"", "resp_7");
        assert_eq!(items.len(), 1);
        let item: Value = serde_json::from_str(&items[0].json).unwrap();
        assert_eq!(
            (&item["id"], &item["type"], &item["role"]),
            (&json!("msg_7i0000"), &json!("message"), &json!("user"))
        );
        assert_eq!(item["content"], json!([{"type": "input_text", "text": "hi"}]));
        let list = json!([
            {"role": "assistant", "content": "a"},
            {"type": "function_call", "id": "fc_own", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
            7,
        ]);
        let items = input_items(&list.to_string(), "resp_7");
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["msg_7i0000", "fc_own", "fco_7i0002"]);
        assert!(items[0].json.contains("output_text"));
        assert!(input_items("{}", "resp_7").is_empty() && items_with_ids("\"x\"", "resp_7").is_empty());
    }
}
