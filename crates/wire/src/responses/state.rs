//! Stored state in the JSON of this dialect: the history of a call, a response that has only begun, and the bodies of
//! conversations. Knows no store.

use bytes::BytesMut;
use headrace_domain::{Call, Code, Endpoint, MessageOrigin, Prompt, RequestId, Role};
use serde_json::{Value, json};

use super::answer::{ResponseAnswer, ResponseEnd};
use super::items::{self, InputTurns};
use super::sealed::SealedReasoning;
use super::tools;
use crate::common::answer_id::answer_id;
use crate::common::encoder::ReplyMeta;
use crate::common::metadata::metadata;
use crate::fault::{BadRequest, FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// Returns the id of the response to a request.
pub fn response_id(request: RequestId) -> String {
    answer_id(Endpoint::Responses, request)
}

/// Returns a response without any output, as an object with this status.
pub fn response_begun(call: &Call, meta: ReplyMeta, status: &str) -> String {
    let mut out = BytesMut::new();
    ResponseAnswer::new(call, meta).write_as(status, &ResponseEnd::default(), &mut out);
    super::echo::text_of(out)
}

/// Puts the history of a call before the call's own input. Each of `lists` is a JSON list of items. Instructions stay
/// first, and only those of this call apply.
///
/// # Errors
/// Fails if items cannot be read, or if there are more messages or tools than a call may have. Also fails if the tool
/// choice names a tool that is not offered, or if an output names no call.
pub fn with_history(mut call: Call, lists: &[&str], limits: &WireLimits) -> Result<Call, BadRequest> {
    let mut before = InputTurns::default();
    for list in lists {
        let mut reader =
            JsonReader::new(list.as_bytes(), limits.max_json_depth, limits.max_free_form_values)?;
        before.input(&mut reader, limits).map_err(|fault| fault.under_key("previous_response_id"))?;
    }
    before.finish();
    let Prompt::Conversation(conversation) = &mut call.prompt else { return Ok(call) };
    // Tools that earlier turns offered are still available, unless this call offers another tool with the same name.
    for tool in before.tools.tools {
        if conversation.tools.iter().all(|own| own.name != tool.name) {
            conversation.tools.push(tool);
        }
    }
    tools::check(&conversation.tool_choice, &conversation.tools)?;
    let most = limits.max_tools;
    if conversation.tools.len() > most {
        let message = format!("with those of what it continues, there are more than {most}");
        return Err(FieldFault::at("tools", Code::ArrayAboveMaxLength, message).into());
    }
    let mut own = std::mem::take(&mut conversation.messages);
    let instructed = call.origins.first() == Some(&MessageOrigin::System)
        && own.first().is_some_and(|first| first.role == Role::System);
    let rest = own.split_off(usize::from(instructed).min(own.len()));
    let mut first = own;
    let most = limits.max_messages;
    if before.messages.len().saturating_add(first.len()).saturating_add(rest.len()) > most {
        let message = format!("with what it continues, the conversation has more than {most} messages");
        return Err(FieldFault::at("input", Code::ArrayAboveMaxLength, message).into());
    }
    let mut origins = vec![MessageOrigin::System; first.len() + before.messages.len()];
    origins.extend(call.origins.iter().skip(first.len()));
    first.extend(before.messages);
    first.extend(rest);
    conversation.messages = first;
    call.origins = origins;
    items::check(conversation, &call.origins)?;
    Ok(call)
}

/// Turns the answer to a compaction request into a compaction object, which contains the answer's text in encoded form.
/// `None` if the response lacks a field of an answer.
pub fn compaction(response: &[u8]) -> Option<String> {
    let response: Value = serde_json::from_slice(response).ok()?;
    let output = response.get("output")?.as_array()?;
    let messages = output.iter().filter(|item| item.get("type") == Some(&json!("message")));
    let texts = messages.filter_map(|item| item.pointer("/content/0/text")?.as_str());
    let text: String = texts.collect();
    let id = response.get("id")?.as_str()?;
    let item = json!({
        "id": format!("cmp_{}", id.trim_start_matches("resp_")),
        "type": "compaction",
        "encrypted_content": SealedReasoning::Text(text).to_field(),
    });
    let compacted = json!({
        "id": id,
        "object": "response.compaction",
        "created_at": response.get("created_at")?,
        "output": [item],
        "usage": response.get("usage")?,
    });
    Some(compacted.to_string())
}

/// The body of a request about a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConversationBody {
    /// Items, as a JSON list.
    pub items: Option<String>,
    /// Labels, as a JSON object.
    pub metadata: Option<String>,
}

/// Reads the body of a request about a conversation. An empty body is valid.
///
/// # Errors
/// [`BadRequest`] names the first invalid field or item.
pub fn conversation_body(body: &[u8], limits: &WireLimits) -> Result<ConversationBody, BadRequest> {
    if body.trim_ascii().is_empty() {
        return Ok(ConversationBody::default());
    }
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(read_body(&mut reader, limits)?)
}

fn read_body(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ConversationBody> {
    let mut read = ConversationBody::default();
    r.object(|r, key| {
        match key.as_ref() {
            "items" => {
                read.items = r.optional(|r| {
                    r.require(ValueKind::Array)?;
                    let ((), text) = r.with_raw(|r| InputTurns::default().input(r, limits))?;
                    Ok(text.to_owned())
                })?;
            }
            "metadata" => read.metadata = r.optional(|r| metadata(r, limits))?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::parse;

    fn call(body: &Value) -> Call {
        parse(Endpoint::Responses, body.to_string().as_bytes(), &WireLimits::default()).unwrap()
    }

    fn texts(call: &Call) -> Vec<(Role, String)> {
        let Prompt::Conversation(conversation) = &call.prompt else { panic!("a conversation") };
        let text = |message: &headrace_domain::Message| message.content.clone().unwrap_or_default();
        conversation.messages.iter().map(|message| (message.role, text(message))).collect()
    }

    #[test]
    fn what_was_said_before_stands_behind_the_instructions_and_before_the_input() {
        let asked = call(&json!({"model": "m", "instructions": "i", "previous_response_id": "r", "input": [
            {"type": "function_call_output", "call_id": "c", "output": "o"}]}));
        let before = [
            r#"[{"role":"user","content":"u"}]"#,
            r#"[{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}","status":"completed"}]"#,
        ];
        let all = with_history(asked.clone(), &before, &WireLimits::default()).unwrap();
        let expected = [(Role::System, "i"), (Role::User, "u"), (Role::Assistant, ""), (Role::Tool, "o")];
        assert_eq!(texts(&all), expected.map(|(role, text)| (role, text.to_owned())));
        assert_eq!(all.origin(3), MessageOrigin::Message { index: 0, block: None });
        // Without its call, an output is refused.
        let refused = with_history(asked.clone(), &before[..1], &WireLimits::default()).unwrap_err();
        assert_eq!((refused.code, refused.param.as_deref()), (Code::InvalidValue, Some("input")));
        let few = WireLimits { max_messages: 3, ..WireLimits::default() };
        let refused = with_history(asked, &before, &few).unwrap_err();
        assert_eq!(refused.code, Code::ArrayAboveMaxLength);
    }

    #[test]
    fn bodies_of_conversations() {
        let read = |body: &str| conversation_body(body.as_bytes(), &WireLimits::default());
        assert_eq!(read(" "), Ok(ConversationBody::default()));
        let body = read(r#"{"items": [{"role": "user", "content": "u"}], "metadata": {"a": "b"}}"#).unwrap();
        assert_eq!(body.items.as_deref(), Some(r#"[{"role": "user", "content": "u"}]"#));
        assert_eq!(body.metadata.as_deref(), Some(r#"{"a": "b"}"#));
        for (bad, param) in [
            (r#"{"items": [{"role": "x", "content": "u"}]}"#, "items[0].role"),
            (r#"{"items": "u"}"#, "items"),
            (r#"{"metadata": {"a": 1}}"#, "metadata.a"),
            (r#"{"other": 1}"#, "other"),
        ] {
            assert_eq!(read(bad).unwrap_err().param.as_deref(), Some(param), "{bad}");
        }
    }
}
