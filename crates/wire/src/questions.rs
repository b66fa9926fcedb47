//! Requests about texts and tokens: Anthropic's `count_tokens`, vLLM's `tokenize` and `detokenize`. Knows no tokenizer.
//!
//! Sources: <https://docs.anthropic.com/en/api/messages-count-tokens>, <https://docs.vllm.ai/en/latest/serving/openai_compatible_server>.

use bytes::BytesMut;
use headrace_domain::{Call, Code, Conversation, Endpoint, Prompt, PromptItem};

use crate::anthropic::messages;
use crate::common::params::{CommonParams, ids};
use crate::common::{answer_options, tools};
use crate::fault::{BadRequest, FieldFault, Read};
use crate::json::JsonReader;
use crate::json::writer::{list, raw, value};
use crate::limits::WireLimits;
use crate::openai::chat;

/// Reads the body of a message whose prompt tokens are to be counted. It may lack the parameters for an answer.
///
/// # Errors
/// The same as for [`crate::parse`].
pub fn parse_count(body: &[u8], limits: &WireLimits) -> Result<Call, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(messages::read_count(&mut reader, limits)?)
}

/// The request of `POST /tokenize`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    /// The name of the model in the request.
    pub model: String,
    /// A conversation, or one raw text.
    pub prompt: Prompt,
    /// A conversation ends with the start of an answer.
    pub add_generation_prompt: bool,
    /// A raw text gets the special tokens that the model puts around every text.
    pub add_special_tokens: bool,
    /// The answer also shows each token as the vocabulary spells it.
    pub return_token_strs: bool,
}

/// Reads the body of `POST /tokenize`.
///
/// # Errors
/// The same as for [`crate::parse`].
pub fn parse_tokenize(body: &[u8], limits: &WireLimits) -> Result<TokenizeRequest, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(tokenize(&mut reader, limits)?)
}

fn tokenize(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<TokenizeRequest> {
    let mut params = CommonParams::new(Endpoint::ChatCompletions, limits);
    let (mut text, mut messages, mut offered) = (None, None, Vec::new());
    let mut ending = chat::PromptEnding::default();
    let (mut special, mut strings) = (None, false);
    r.object(|r, key| {
        match key.as_ref() {
            "prompt" => text = r.optional(|r| r.string().map(String::from))?,
            "messages" => messages = r.optional(|r| chat::read_messages(r, limits))?,
            "tools" => offered = r.optional(|r| tools::openai_tools(r, limits))?.unwrap_or_default(),
            "add_generation_prompt" => ending.begins = r.optional(JsonReader::bool)?,
            "continue_final_message" => ending.continues = r.optional(JsonReader::bool)?,
            "add_special_tokens" => special = r.optional(JsonReader::bool)?,
            "return_token_strs" => strings = r.optional(JsonReader::bool)?.unwrap_or(false),
            "chat_template" | "mm_processor_kwargs" => {
                let message = "templates come from the model alone; leave it out";
                r.optional(|_| Err::<(), _>(FieldFault::new(Code::UnsupportedParameter, message)))?;
            }
            "model" | "chat_template_kwargs" => {
                let _ = params.take_common(key, r)? || answer_options::take(&mut params, key, r)?;
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    let settled = params.settle(1)?;
    let begins = ending.begins;
    let prompt = match (text, messages) {
        (Some(text), None) => Prompt::Raw(vec![PromptItem::Text(text)]),
        (None, Some(messages)) => {
            if special == Some(true) {
                let message = "a conversation's template writes its special tokens; leave it out";
                return Err(FieldFault::at("add_special_tokens", Code::UnsupportedParameter, message));
            }
            // For this endpoint, a conversation may end without the start of an answer.
            let continues = chat::PromptEnding { begins: None, ..ending }.settle(&messages)?;
            let template = std::mem::take(&mut params.template);
            Prompt::Conversation(Conversation {
                messages,
                tools: offered,
                continues,
                template,
                ..Conversation::default()
            })
        }
        (Some(_), Some(_)) => {
            return Err(FieldFault::at("prompt", Code::InvalidValue, "send it or `messages`"));
        }
        (None, None) => return Err(FieldFault::missing("prompt")),
    };
    Ok(TokenizeRequest {
        model: settled.model,
        prompt,
        add_generation_prompt: begins.unwrap_or(true),
        add_special_tokens: special.unwrap_or(true),
        return_token_strs: strings,
    })
}

/// The request of `POST /detokenize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// The name of the model in the request.
    pub model: String,
    /// The token ids.
    pub tokens: Vec<u32>,
}

/// Reads the body of `POST /detokenize`.
///
/// # Errors
/// The same as for [`crate::parse`].
pub fn parse_detokenize(body: &[u8], limits: &WireLimits) -> Result<DetokenizeRequest, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(detokenize(&mut reader, limits)?)
}

fn detokenize(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<DetokenizeRequest> {
    let mut params = CommonParams::new(Endpoint::Completions, limits);
    let mut tokens = None;
    r.object(|r, key| {
        match key.as_ref() {
            "tokens" => tokens = Some(ids(r, limits.max_prompt_ids)?),
            "model" => params.take_common(key, r).map(drop)?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    let model = params.settle(1)?.model;
    Ok(DetokenizeRequest { model, tokens: tokens.ok_or_else(|| FieldFault::missing("tokens"))? })
}

/// The answer to `count_tokens`. It marks a number that is an estimate.
pub fn count_body(input_tokens: u64, is_estimate: bool) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(64);
    raw(&mut out, "{\"input_tokens\":");
    value(&mut out, &input_tokens);
    if is_estimate {
        raw(&mut out, ",\"headrace\":{\"estimated\":true}");
    }
    raw(&mut out, "}");
    out.to_vec()
}

/// The answer to `tokenize`: the tokens, their number, and the size of the model's context window. `strings` adds the
/// vocabulary's spelling of each token, if requested.
pub fn tokenize_body(tokens: &[u32], max_model_len: u32, strings: Option<&[String]>) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(64 + tokens.len().saturating_mul(7));
    raw(&mut out, "{\"count\":");
    value(&mut out, &tokens.len());
    raw(&mut out, ",\"max_model_len\":");
    value(&mut out, &max_model_len);
    raw(&mut out, ",\"tokens\":");
    value(&mut out, tokens);
    raw(&mut out, ",\"token_strs\":");
    match strings {
        None => raw(&mut out, "null"),
        Some(strings) => {
            raw(&mut out, "[");
            list(&mut out, strings, value);
            raw(&mut out, "]");
        }
    }
    raw(&mut out, "}");
    out.to_vec()
}

/// The answer to `detokenize`.
pub fn detokenize_body(text: &str) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(text.len() + 32);
    raw(&mut out, "{\"prompt\":");
    value(&mut out, text);
    raw(&mut out, "}");
    out.to_vec()
}

#[cfg(test)]
mod tests {
    use headrace_domain::{Message, Role};
    use serde_json::{Value, json};

    use super::*;

    fn tokenize(body: &Value) -> Result<TokenizeRequest, BadRequest> {
        parse_tokenize(body.to_string().as_bytes(), &WireLimits::default())
    }

    #[test]
    fn texts_and_conversations_are_read() {
        let text = tokenize(&json!({"model": "m", "prompt": "hi", "add_special_tokens": false})).unwrap();
        assert_eq!(text.prompt, Prompt::Raw(vec![PromptItem::Text("hi".into())]));
        assert!(!text.add_special_tokens && !text.return_token_strs);
        let messages = json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]);
        let talk = tokenize(&json!({
            "model": "m", "messages": messages, "add_generation_prompt": false, "continue_final_message": true,
            "return_token_strs": true, "chat_template_kwargs": {"x": 1},
            "tools": [{"type": "function", "function": {"name": "f"}}]
        }))
        .unwrap();
        assert!(!talk.add_generation_prompt && talk.return_token_strs);
        let Prompt::Conversation(conversation) = talk.prompt else { panic!() };
        assert_eq!(conversation.messages[1], Message::text(Role::Assistant, "a"));
        assert!(conversation.continues && conversation.tools.len() == 1 && conversation.template.len() == 1);
        // Neither does a new answer begin, nor is the last message continued.
        let plain =
            tokenize(&json!({"model": "m", "messages": messages, "add_generation_prompt": false})).unwrap();
        assert!(!plain.add_generation_prompt);
        for (body, param) in [
            (json!({"model": "m"}), "prompt"),
            (json!({"prompt": "x"}), "model"),
            (json!({"model": "m", "prompt": "x", "messages": messages}), "prompt"),
            (json!({"model": "m", "prompt": ["x"]}), "prompt"),
            (json!({"model": "m", "messages": messages, "add_special_tokens": true}), "add_special_tokens"),
            (json!({"model": "m", "prompt": "x", "chat_template": "y"}), "chat_template"),
            (json!({"model": "m", "prompt": "x", "stream": true}), "stream"),
        ] {
            assert_eq!(tokenize(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        let read = |body: Value| parse_detokenize(body.to_string().as_bytes(), &WireLimits::default());
        let detokenize = read(json!({"model": "m", "tokens": [1, 2]})).unwrap();
        assert_eq!(detokenize, DetokenizeRequest { model: "m".into(), tokens: vec![1, 2] });
        assert_eq!(read(json!({"model": "m"})).unwrap_err().param.as_deref(), Some("tokens"));
        assert_eq!(
            read(json!({"model": "m", "tokens": [-1]})).unwrap_err().param.as_deref(),
            Some("tokens[0]")
        );
    }

    #[test]
    fn golden() {
        let text = |body: Vec<u8>| String::from_utf8(body).unwrap();
        assert_eq!(text(count_body(7, false)), r#"{"input_tokens":7}"#);
        assert_eq!(text(count_body(7, true)), r#"{"input_tokens":7,"headrace":{"estimated":true}}"#);
        assert_eq!(
            text(tokenize_body(&[1, 2], 9, None)),
            r#"{"count":2,"max_model_len":9,"tokens":[1,2],"token_strs":null}"#
        );
        assert_eq!(
            text(tokenize_body(&[1], 9, Some(&["\"".to_owned()]))),
            r#"{"count":1,"max_model_len":9,"tokens":[1],"token_strs":["\""]}"#
        );
        assert_eq!(text(detokenize_body("a\n")), r#"{"prompt":"a\n"}"#);
    }
}
