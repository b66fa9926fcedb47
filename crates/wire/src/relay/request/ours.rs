//! What the body of a response says by which it cannot go to a server that speaks the Responses API itself, found without reading the
//! rest of it. Knows no server and no store.

use serde_json::Value;

use super::fields::Fields;

/// See the top of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseState {
    /// It asks for what is done here alone: to be worked on in the background, to be a part of a conversation that is kept here, or to
    /// tell of its times and cost.
    pub ours: bool,
    /// The response that it goes on from: who keeps that one answers.
    pub previous: Option<String>,
}

/// What a body says of state. Nothing, where it is no JSON.
pub fn response_state(body: &[u8]) -> ResponseState {
    let mut state = ResponseState::default();
    for field in Fields::of(body).into_iter().flatten() {
        let value = || serde_json::from_slice::<Value>(body.get(field.value.clone()).unwrap_or_default());
        match field.key.as_ref() {
            "background" => state.ours |= value().is_ok_and(|value| value == true),
            "conversation" => state.ours |= value().is_ok_and(|value| !value.is_null()),
            "headrace" => state.ours |= value().is_ok_and(|value| value["explain"] == true),
            "previous_response_id" => {
                state.previous = value().ok().and_then(|value| value.as_str().map(str::to_owned));
            }
            _ => {}
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_here_alone_is_seen_at_the_top_of_a_body() {
        let state =
            |ours, previous: Option<&str>| ResponseState { ours, previous: previous.map(str::to_owned) };
        for (body, expected) in [
            (r#"{"model":"m","input":"x"}"#, state(false, None)),
            (r#"{"background":true}"#, state(true, None)),
            (r#"{"background":false,"conversation":null,"headrace":{"explain":false}}"#, state(false, None)),
            (r#"{"conversation":"conv_1"}"#, state(true, None)),
            (r#"{"conversation":{"id":"conv_1"}}"#, state(true, None)),
            (r#"{"headrace":{"explain":true}}"#, state(true, None)),
            (
                r#"{"input":"\"background\":true","previous_response_id":"resp_1"}"#,
                state(false, Some("resp_1")),
            ),
            (r#"{"input":[{"background":true}],"previous_response_id":null}"#, state(false, None)),
            ("[", state(false, None)),
        ] {
            assert_eq!(response_state(body.as_bytes()), expected, "{body}");
        }
    }
}
