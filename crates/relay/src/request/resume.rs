//! Builds the body that resumes an interrupted answer: the text so far becomes the last turn. Must not know which
//! worker failed or which one resumes.

use bytes::{BufMut, Bytes, BytesMut};
use headrace_domain::{Call, Endpoint, FieldSpan, Prompt};
use headrace_wire::fault::Read;
use headrace_wire::json::JsonReader;
use headrace_wire::json::writer::{raw, value};

use super::body_fields::{BodyField, fields_of, place};
use super::look::BodyVisitor;
use super::walk;

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
    call.endpoint != Endpoint::Completions && fields_of(relayed).only_plain
}

/// Returns a receiver's body, changed so that it resumes an answer. `None` if the messages do not end with a user
/// message. The body must be one that [`super::edited`] returned.
pub fn resumed(body: &[u8], so_far: &SoFar<'_>) -> Option<Bytes> {
    let mut reader = JsonReader::new(body, usize::MAX, usize::MAX).ok()?;
    let mut turns = TurnVisitor::default();
    walk::body(&mut turns, &mut reader, None, &walk::no_limits(), |_, r, _, _| r.skip()).ok()?;
    if turns.is_broken || turns.last_role != Some(TurnRole::User) {
        return None;
    }
    let end = place(turns.messages, body)?.end;
    let mut turn = BytesMut::new();
    raw(&mut turn, ",{\"role\":\"assistant\",\"content\":");
    value(&mut turn, so_far.text);
    raw(&mut turn, "}]");
    if so_far.flagged {
        raw(&mut turn, ",\"continue_final_message\":true,\"add_generation_prompt\":false");
    }
    let bounds = turns.bounds.iter().filter_map(|bound| place(*bound, body));
    let mut cuts: Vec<_> =
        bounds.map(|place| (place, BytesMut::from(&*so_far.max_tokens.to_string()))).collect();
    cuts.push((end.checked_sub(1)?..end, turn));
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

/// The role of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnRole {
    User,
    Other,
}

impl TurnRole {
    fn named(role: &str) -> Self {
        if role == "user" { Self::User } else { Self::Other }
    }
}

/// Finds the places that a continuation changes, and the role of the last turn.
#[derive(Default)]
struct TurnVisitor {
    messages: FieldSpan,
    /// The fields that bound the answer's length.
    bounds: Vec<FieldSpan>,
    /// The role of the current turn, if it was read.
    role: Option<TurnRole>,
    last_role: Option<TurnRole>,
    /// A turn has no role, or the messages are no list.
    is_broken: bool,
}

impl TurnVisitor {
    fn turn_end(&mut self, role: Option<TurnRole>) {
        self.is_broken |= role.is_none();
        self.last_role = role;
    }
}

impl BodyVisitor for TurnVisitor {
    fn checks(&self) -> bool {
        false
    }

    fn wants(&self, field: BodyField) -> bool {
        field == BodyField::Messages
    }

    fn field_end(&mut self, field: BodyField, start: usize, end: usize) {
        match field {
            BodyField::Messages => self.messages = FieldSpan::new(start, end),
            BodyField::MaxTokens | BodyField::MaxCompletionTokens => {
                self.bounds.push(FieldSpan::new(start, end));
            }
            _ => {}
        }
    }

    fn messages_end(&mut self, is_list: bool) -> Read<()> {
        self.is_broken |= !is_list;
        Ok(())
    }

    fn message_begin(&mut self, _index: usize) {
        self.role = None;
    }

    fn role(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.role = Some(TurnRole::named(&r.string()?));
        Ok(())
    }

    fn message_end(&mut self) -> Read<()> {
        let role = self.role.take();
        self.turn_end(role);
        Ok(())
    }

    // A list of a role alone counts as a turn.
    fn no_message(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let turn = serde_json::from_str::<(String,)>(r.raw()?).ok();
        self.turn_end(turn.map(|(role,)| TurnRole::named(&role)));
        Ok(())
    }

    fn text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.skip_string().map(drop)
    }

    fn opaque(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.skip_string().map(drop)
    }

    fn found(&mut self, _text: &str) {}

    fn key(&mut self, _key: &str) {}
}

#[cfg(test)]
mod tests {
    use headrace_domain::Endpoint;
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::super::fields::{ObjectField, ObjectFields};
    use super::super::skim;
    use super::*;
    use headrace_wire::WireLimits;

    #[derive(Deserialize)]
    struct LastTurn {
        role: String,
    }

    /// The same body, from a search of its fields.
    fn searched(body: &[u8], so_far: &SoFar<'_>) -> Option<String> {
        let fields: Vec<ObjectField<'_>> = ObjectFields::of(body)?.collect();
        let turns = &fields.iter().find(|field| field.key == "messages")?.value;
        let read: Vec<LastTurn> = serde_json::from_slice(body.get(turns.clone())?).ok()?;
        read.last().filter(|last| last.role == "user")?;
        let text = serde_json::to_string(so_far.text).ok()?;
        let mut resumed = String::from_utf8(body.to_vec()).ok()?;
        for field in fields.iter().rev() {
            match field.key.as_ref() {
                "messages" => resumed
                    .insert_str(field.value.end - 1, &format!(r#",{{"role":"assistant","content":{text}}}"#)),
                "max_tokens" | "max_completion_tokens" => {
                    resumed.replace_range(field.value.clone(), &so_far.max_tokens.to_string());
                }
                _ => {}
            }
        }
        Some(resumed)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_visit_and_a_search_resume_alike(
            fields in prop::collection::hash_map(
                select(vec!["messages", "max_tokens", "max_completion_tokens", "model", "system", "input", "a\"b"]),
                prop::collection::vec(
                    select(vec![
                        json!({"role": "user", "content": "a"}),
                        json!({"content": [{"role": "assistant"}], "role": "user"}),
                        json!({"role": "assistant", "content": "]}"}),
                        json!({"role": "user", "Role": "x", "content": {"role": 1}, "tool_calls": [7]}),
                        json!({"role": 5}),
                        json!({"content": "a"}),
                        json!(["user"]),
                        json!(["user", "user"]),
                        json!([]),
                        json!("user"),
                    ]),
                    0..4,
                ),
                0..6,
            ),
            is_list in any::<bool>(),
        ) {
            let value = |name: &str, turns: &[Value]| match name {
                "messages" if is_list || turns.is_empty() => json!(turns),
                "messages" => turns[0].clone(),
                "max_tokens" | "max_completion_tokens" => json!(turns.len()),
                _ => json!({"messages": turns, "max_tokens": 3}),
            };
            let body: Value = fields.iter().map(|(name, turns)| (*name, value(name, turns))).collect();
            for body in [body.to_string(), serde_json::to_string_pretty(&body).unwrap()] {
                let made = resumed(body.as_bytes(), &so_far("b\n"));
                let made = made.map(|made| String::from_utf8(made.to_vec()).unwrap());
                prop_assert_eq!(made, searched(body.as_bytes(), &so_far("b\n")), "{}", body);
            }
        }
    }

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

    /// `edited` returns no such body.
    #[test]
    fn a_body_that_names_a_field_twice_is_not_resumed() {
        let twice = r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":9,"max_tokens":8}"#;
        assert_eq!(resumed(twice.as_bytes(), &so_far("b")), None);
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
            let mut call = skim(endpoint, body, &WireLimits::default()).unwrap();
            assert_eq!(can_resume(&call), expected, "{more}");
            let Prompt::Relayed(relayed) = &mut call.prompt else { panic!("a body") };
            relayed.fields = None;
            assert_eq!(can_resume(&call), expected, "{more}, searched");
        }
    }
}
