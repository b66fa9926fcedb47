//! Builds the body that resumes an interrupted answer: the text so far becomes the last turn. Must not know which
//! worker failed or which one resumes.

use bytes::{BufMut, Bytes, BytesMut};
use headrace_domain::{Call, Endpoint, Prompt};
use serde::Deserialize;

use super::edit::OWN;
use super::fields::{ObjectField, ObjectFields};
use headrace_wire::json::writer::{raw, value};

/// Fields of calls with a plain text answer whose continuation depends only on the turns and the text so far. Stop
/// strings are not among them, because one may begin before the interruption and end after it.
const PLAIN: &[&str] = &[
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "min_p",
    "model",
    "prompt_cache_key",
    "safety_identifier",
    "seed",
    "service_tier",
    "stream",
    "stream_options",
    "system",
    "temperature",
    "top_k",
    "top_p",
    "user",
];
/// Fields that bound the answer's length.
const BOUNDS: &[&str] = &["max_completion_tokens", "max_tokens"];

/// The part of an answer that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoFar<'a> {
    /// The text so far.
    pub text: &'a str,
    /// The number of tokens that may still follow.
    pub max_tokens: u32,
    /// Whether the server needs a flag to continue the last turn (vLLM, SGLang).
    pub flagged: bool,
}

/// Whether the answer to a call that [`super::skim`] read can be resumed from its text alone, at any point.
pub fn can_resume(call: &Call) -> bool {
    let Prompt::Relayed(relayed) = &call.prompt else { return false };
    let known =
        |field: ObjectField<'_>| PLAIN.contains(&field.key.as_ref()) || OWN.contains(&field.key.as_ref());
    call.endpoint != Endpoint::Completions
        && ObjectFields::of(&relayed.body).is_some_and(|mut fields| fields.all(known))
}

#[derive(Deserialize)]
struct LastTurn {
    role: String,
}

/// Returns a receiver's body, changed so that it resumes an answer. `None` if the messages do not end with a user
/// message.
pub fn resumed(body: &[u8], so_far: &SoFar<'_>) -> Option<Bytes> {
    let fields: Vec<ObjectField<'_>> = ObjectFields::of(body)?.collect();
    let turns = &fields.iter().find(|field| field.key == "messages")?.value;
    let read: Vec<LastTurn> = serde_json::from_slice(body.get(turns.clone())?).ok()?;
    read.last().filter(|last| last.role == "user")?;
    let mut turn = BytesMut::new();
    raw(&mut turn, ",{\"role\":\"assistant\",\"content\":");
    value(&mut turn, so_far.text);
    raw(&mut turn, "}]");
    if so_far.flagged {
        raw(&mut turn, ",\"continue_final_message\":true,\"add_generation_prompt\":false");
    }
    let bounds = fields.iter().filter(|field| BOUNDS.contains(&field.key.as_ref()));
    let mut cuts: Vec<_> =
        bounds.map(|field| (field.value.clone(), BytesMut::from(&*so_far.max_tokens.to_string()))).collect();
    cuts.push((turns.end.checked_sub(1)?..turns.end, turn));
    cuts.sort_unstable_by_key(|(place, _)| place.start);
    let (mut out, mut at) = (BytesMut::with_capacity(body.len() + so_far.text.len() + 128), 0);
    for (place, text) in cuts {
        out.put_slice(body.get(at..place.start)?);
        out.put_slice(&text);
        at = place.end;
    }
    out.put_slice(body.get(at..)?);
    Some(out.freeze())
}

#[cfg(test)]
mod tests {
    use headrace_domain::Endpoint;
    use serde_json::{Value, json};

    use super::super::skim;
    use super::*;
    use headrace_wire::WireLimits;

    fn so_far(text: &str) -> SoFar<'_> {
        SoFar { text, max_tokens: 7, flagged: false }
    }

    #[test]
    fn what_there_is_stands_as_the_last_turn() {
        let body = r#"{"max_tokens": 20, "messages": [ {"role":"user","content":"[hi]"} ] ,"model":"m"}"#;
        let expected = r#"{"max_tokens": 7, "messages": [ {"role":"user","content":"[hi]"} ,{"role":"assistant","content":"so \"far\""}] ,"model":"m"}"#;
        assert_eq!(resumed(body.as_bytes(), &so_far("so \"far\"")).unwrap(), expected.as_bytes());
        let flagged = resumed(body.as_bytes(), &SoFar { flagged: true, ..so_far("x") }).unwrap();
        let read: Value = serde_json::from_slice(&flagged).unwrap();
        assert_eq!(
            (&read["continue_final_message"], &read["add_generation_prompt"]),
            (&json!(true), &json!(false))
        );
        assert_eq!((&read["model"], &read["messages"][1]["content"]), (&json!("m"), &json!("x")));
        let chat = r#"{"messages":[{"role":"user","content":"a"}],"max_completion_tokens":9}"#;
        let read: Value = serde_json::from_slice(&resumed(chat.as_bytes(), &so_far("b")).unwrap()).unwrap();
        assert_eq!(read["max_completion_tokens"], 7);
    }

    #[test]
    fn turns_that_do_not_end_with_the_user_go_on_with_nothing() {
        for turns in
            ["[]", r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#, "7", "[7]"]
        {
            let body = format!(r#"{{"messages":{turns},"max_tokens":9}}"#);
            assert_eq!(resumed(body.as_bytes(), &so_far("b")), None, "{turns}");
        }
        assert_eq!(resumed(br#"{"max_tokens":9}"#, &so_far("b")), None);
    }

    #[test]
    fn only_plain_text_goes_on() {
        for (endpoint, more, expected) in [
            (Endpoint::ChatCompletions, json!({}), true),
            (Endpoint::ChatCompletions, json!({"temperature": 1, "stream": true, "timeout": 3}), true),
            (Endpoint::Messages, json!({"system": "be brief"}), true),
            (Endpoint::ChatCompletions, json!({"tools": []}), false),
            (Endpoint::ChatCompletions, json!({"n": 2}), false),
            (Endpoint::ChatCompletions, json!({"stop": ["x"]}), false),
            (Endpoint::ChatCompletions, json!({"response_format": {"type": "json_object"}}), false),
            (Endpoint::Messages, json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}), false),
            (Endpoint::Messages, json!({"something": "new"}), false),
        ] {
            let mut body =
                json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "u"}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let body = Bytes::from(body.to_string());
            let call = skim(endpoint, body, &WireLimits::default()).unwrap();
            assert_eq!(can_resume(&call), expected, "{more}");
        }
    }
}
