//! Parses the body of a batch of messages, which contains its requests. Each request is parsed only down to its body.
//! Knows no store, and runs nothing.
//!
//! Source: <https://docs.anthropic.com/en/api/creating-message-batches>.

use std::collections::HashSet;

use headrace_domain::Code;

use crate::common::batch_line::{BatchLine, object_line};
use crate::fault::{BadRequest, FieldFault, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;

/// Limit in bytes for a client's id of a request.
const MAX_MESSAGE_CUSTOM_ID: usize = 64;

/// Reads a batch of messages, whose body contains its requests.
///
/// # Errors
/// [`BadRequest`] names the first invalid field or request.
pub fn message_batch(body: &[u8], limits: &WireLimits, most: usize) -> Result<Vec<BatchLine>, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, usize::MAX)?;
    Ok(read_messages(&mut reader, most)?)
}

fn read_messages(r: &mut JsonReader<'_>, most: usize) -> Read<Vec<BatchLine>> {
    let mut lines = None;
    r.object(|r, key| {
        match key.as_ref() {
            "requests" => {
                let (mut found, mut ids) = (Vec::new(), HashSet::new());
                r.array(most, |r, _| {
                    let (id, body) = message_request(r)?;
                    if !ids.insert(id.clone()) {
                        let message = "another request of the batch has it";
                        return Err(FieldFault::at("custom_id", Code::InvalidValue, message));
                    }
                    found.push((id, body));
                    Ok(())
                })?;
                lines = Some(found);
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    let lines = lines.ok_or_else(|| FieldFault::missing("requests"))?;
    if lines.is_empty() {
        return Err(FieldFault::at("requests", Code::InvalidValue, "there must be one request at least"));
    }
    Ok(lines)
}

fn message_request(r: &mut JsonReader<'_>) -> Read<BatchLine> {
    let (mut id, mut params) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "custom_id" => {
                let text = r.string()?.into_owned();
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
                if text.is_empty() || text.len() > MAX_MESSAGE_CUSTOM_ID || !text.bytes().all(fits) {
                    let message =
                        format!("it must be 1 to {MAX_MESSAGE_CUSTOM_ID} letters, digits, `_` or `-`");
                    return Err(FieldFault::new(Code::InvalidValue, message));
                }
                id = Some(text);
            }
            "params" => params = Some(object_line(r)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    Ok((
        id.ok_or_else(|| FieldFault::missing("custom_id"))?,
        params.ok_or_else(|| FieldFault::missing("params"))?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_messages_comes_with_its_requests() {
        let limits = WireLimits::default();
        let read = |body: &str| message_batch(body.as_bytes(), &limits, 2);
        let one = |id: &str| format!("{{\"custom_id\":\"{id}\",\"params\":{{\"model\":\n\"m\"}}}}");
        let of = |requests: &[String]| format!("{{\"requests\":[{}]}}", requests.join(","));
        assert_eq!(
            read(&of(&[one("a"), one("b")])).unwrap()[1],
            ("b".to_owned(), "{\"model\": \"m\"}".to_owned())
        );
        for (body, param) in [
            (of(&[one("a"), one("a")]), "requests[1].custom_id"),
            (of(&[one("a b")]), "requests[0].custom_id"),
            (of(&[one(&"a".repeat(65))]), "requests[0].custom_id"),
            (of(&[one("a"), one("b"), one("c")]), "requests"),
            (of(&[]), "requests"),
            ("{}".to_owned(), "requests"),
            (of(&["{\"custom_id\":\"a\"}".to_owned()]), "requests[0].params"),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
