//! Finds the fields of a Responses body that tie it to this server, without reading the rest. Such a body cannot go to
//! a server that speaks the Responses API itself. Knows no server and no store.

use serde_json::Value;

use super::fields::ObjectFields;

/// The fields of a Responses body that tie it to this server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseState {
    /// The body requests what only this server does: background work, a stored conversation, or an explanation of times
    /// and cost.
    pub ours: bool,
    /// The previous response. The server that stores it must answer.
    pub previous: Option<String>,
}

/// Reads the state fields of a body. Returns the default if the body is not a JSON object.
pub fn response_state(body: &[u8]) -> ResponseState {
    let mut state = ResponseState::default();
    for field in ObjectFields::of(body).into_iter().flatten() {
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
