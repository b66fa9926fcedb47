//! Finds the input items that only name another item (`item_reference`), and replaces them. Knows no store.

use std::collections::HashMap;

use bytes::BytesMut;

use crate::fault::Read;
use crate::json::writer::{raw, value};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// Returns the ids that items of the body's input name, in order and with repetitions. Empty if the body cannot be
/// read: the call's own parser then names the fault.
pub fn item_references(body: &[u8], limits: &WireLimits) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    let read = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values).and_then(|mut r| {
        r.object(|r, key| {
            if key.as_ref() != "input" || r.kind()? != ValueKind::Array {
                return r.skip();
            }
            r.array(limits.max_messages, |r, _| {
                let text = r.raw()?;
                ids.extend(named(&r.inner(text))?);
                Ok(())
            })
        })
    });
    if read.is_ok() { ids } else { Vec::new() }
}

/// Returns the body with `items` in place of the references to them. `None` if the body cannot be read.
pub fn with_items(body: &[u8], items: &HashMap<String, String>, limits: &WireLimits) -> Option<Vec<u8>> {
    let mut out = BytesMut::with_capacity(body.len());
    raw(&mut out, "{");
    let mut first = true;
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values).ok()?;
    let read = reader.object(|r, key| {
        if !std::mem::take(&mut first) {
            raw(&mut out, ",");
        }
        value(&mut out, key.as_ref());
        raw(&mut out, ":");
        if key.as_ref() != "input" || r.kind()? != ValueKind::Array {
            raw(&mut out, r.raw()?);
            return Ok(());
        }
        raw(&mut out, "[");
        r.array(limits.max_messages, |r, index| {
            if index > 0 {
                raw(&mut out, ",");
            }
            let text = r.raw()?;
            let item = named(&r.inner(text))?.and_then(|id| items.get(&id));
            raw(&mut out, item.map_or(text, String::as_str));
            Ok(())
        })?;
        raw(&mut out, "]");
        Ok(())
    });
    read.and_then(|()| reader.end()).ok()?;
    raw(&mut out, "}");
    Some(out.to_vec())
}

/// Returns the id that a reference names. An item is a reference by its type, or if it has only an id.
fn named(r: &JsonReader<'_>) -> Read<Option<String>> {
    let mut r = r.again();
    if r.kind()? != ValueKind::Object {
        return Ok(None);
    }
    let (mut is_reference, mut id, mut others) = (None, None, false);
    r.object(|r, key| {
        match key.as_ref() {
            "type" if r.kind()? == ValueKind::String => is_reference = Some(r.string()? == "item_reference"),
            "type" => r.skip()?,
            "id" if r.kind()? == ValueKind::String => id = Some(r.string()?.into_owned()),
            _ => {
                others = true;
                r.skip()?;
            }
        }
        Ok(())
    })?;
    Ok(id.filter(|_| is_reference.unwrap_or(!others)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_names_an_item_is_found_and_replaced_and_nothing_else() {
        let limits = WireLimits::default();
        let body = json!({"model": "m", "a\"b": {"input": [{"id": "x"}]}, "input": [
            {"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "u", "id": "msg_9"}, {"id": "rs_2"},
            {"id": "msg_1", "type": null}, {"type": "item_reference", "id": "gone"}]});
        let body = body.to_string();
        assert_eq!(item_references(body.as_bytes(), &limits), ["msg_1", "rs_2", "msg_1", "gone"]);
        let items = [("msg_1", "{\"k\":1.50}"), ("rs_2", "{}")];
        let items = items.map(|(id, json)| (id.to_owned(), json.to_owned())).into();
        let with = with_items(body.as_bytes(), &items, &limits).unwrap();
        let expected = body
            .replace(r#"{"type":"item_reference","id":"msg_1"}"#, "{\"k\":1.50}")
            .replace(r#"{"id":"rs_2"}"#, "{}")
            .replace(r#"{"id":"msg_1","type":null}"#, "{\"k\":1.50}");
        assert_eq!(String::from_utf8(with).unwrap(), expected);
        for none in [r#"{"input": "msg_1"}"#, r#"{"input": [{"id": 1}]}"#, "{\"input\": [", "[]"] {
            assert!(item_references(none.as_bytes(), &limits).is_empty(), "{none}");
        }
    }
}
