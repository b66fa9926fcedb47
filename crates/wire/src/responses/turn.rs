//! Converts a message of a responses socket to the body of a call. Knows no connection.
//!
//! Source: <https://developers.openai.com/api/docs/guides/websocket-mode>, the types of OpenAI's SDK (`ResponsesClientEvent`).

use bytes::{BufMut, Bytes, BytesMut};
use headrace_domain::Code;

use crate::fault::{BadRequest, FieldFault, Read};
use crate::json::JsonReader;
use crate::json::writer::{raw, value};
use crate::limits::WireLimits;

/// The type of the message that begins a turn.
const CREATE: &str = "response.create";

/// Returns the body of a streamed `POST /v1/responses` for a message. Fields stay as they came.
///
/// # Errors
/// The same as for [`crate::parse`]. Also fails if the message begins no turn, or asks for a feature that a responses
/// socket lacks.
pub fn turn_body(message: &[u8], limits: &WireLimits) -> Result<Bytes, BadRequest> {
    let mut reader = JsonReader::new(message, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(read(&mut reader, message.len())?)
}

fn read(r: &mut JsonReader<'_>, bytes: usize) -> Read<Bytes> {
    let mut out = BytesMut::with_capacity(bytes);
    raw(&mut out, "{\"stream\":true");
    let mut kind = None;
    let unsupported = |why: &'static str| Err(FieldFault::new(Code::UnsupportedParameter, why));
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?.into_owned()),
            // Every turn is a stream.
            "stream" => {
                if r.optional(JsonReader::bool)? == Some(false) {
                    return unsupported("every turn is answered as a stream of events; leave it out");
                }
            }
            "background" => {
                if r.optional(JsonReader::bool)? == Some(true) {
                    return unsupported(
                        "turns are not worked on in the background; use `POST /v1/responses`",
                    );
                }
            }
            "generate" => {
                if r.optional(JsonReader::bool)? == Some(false) {
                    return unsupported("every turn is answered; leave it out");
                }
            }
            "stream_id" => {
                if r.optional(|r| r.skip())?.is_some() {
                    return unsupported(
                        "turns of a connection run one after the other; open one for each stream",
                    );
                }
            }
            // A client's own id of its message.
            "event_id" => r.skip()?,
            key => {
                raw(&mut out, ",");
                value(&mut out, key);
                raw(&mut out, ":");
                out.put_slice(r.raw()?.as_bytes());
            }
        }
        Ok(())
    })?;
    r.end()?;
    match kind.as_deref() {
        Some(CREATE) => {}
        Some(_) => {
            let message =
                format!("only `{CREATE}` is taken: turns run one after the other, and none is steered");
            return Err(FieldFault::at("type", Code::UnsupportedValue, message));
        }
        None => return Err(FieldFault::missing("type")),
    }
    raw(&mut out, "}");
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_the_body_of_a_streamed_call() {
        let read = |message: &str| {
            let body = turn_body(message.as_bytes(), &WireLimits::default());
            body.map(|body| String::from_utf8(body.to_vec()).unwrap())
                .map_err(|bad| bad.param.unwrap_or_default())
        };
        let message = r#"{"model":"m","type":"response.create","input":[{"z":1.50, "a":2}],"stream":null,"event_id":"e"}"#;
        assert_eq!(read(message).unwrap(), r#"{"stream":true,"model":"m","input":[{"z":1.50, "a":2}]}"#);
        assert_eq!(read(r#"{"type":"response.create"}"#).unwrap(), r#"{"stream":true}"#);
        for (more, param) in [
            (json!({"type": "response.cancel"}), "type"),
            (json!({"type": null}), "type"),
            (json!({"stream": false}), "stream"),
            (json!({"background": true}), "background"),
            (json!({"generate": false}), "generate"),
            (json!({"stream_id": "s"}), "stream_id"),
        ] {
            let mut message = json!({"type": "response.create", "input": "x"});
            message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(read(&message.to_string()).unwrap_err(), param, "{message}");
        }
        assert_eq!(read(r#"{"input":"x"}"#).unwrap_err(), "type");
        assert!(read("[]").is_err() && read("{").is_err());
    }
}
