//! The operator's limits on the content of a request, above and below the default, wherever a call is read again after
//! its parsing.

use std::sync::Arc;

use headrace_catalog::{ModelPolicy, OffForm};
use headrace_domain::{Dialect, Endpoint};
use headrace_wire::WireLimits;
use serde_json::{Value, json};

use crate::races::by_policy;
use crate::scripted_server::{answer_of, body, limited_world, server, whole};
use crate::world::{World, read};

async fn status_and_text(world: &World, endpoint: Endpoint, body: Value) -> (u16, String) {
    let answer = world.call(endpoint, body).await;
    (answer.status, read(answer).await)
}

/// The response format of a relayed body is read again to check the answer.
#[tokio::test]
async fn the_format_of_a_relayed_body_is_read_within_the_operators_limits() {
    let usual = WireLimits::default().max_free_form_values;
    let examples = vec![0; usual + 1_000];
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "examples": examples});
    let format = json!({"type": "json_schema", "json_schema": {"name": "number", "schema": schema}});
    for (max_free_form_values, status, code) in
        [(usual * 2, 502, "answer_off_form"), (usual, 400, ""), (100, 400, "")]
    {
        let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of(r#"{"n": "1"}"#))]);
        let wire = WireLimits { max_free_form_values, ..WireLimits::default() };
        let world = limited_world(&[server], wire);
        let fleet = Arc::clone(world.gateway.catalog().fleet());
        by_policy(&world, fleet, ModelPolicy { off_form: OffForm::Refuse, ..ModelPolicy::default() }, &[]);
        let body = body(false, &json!({"response_format": format}));
        let (answered, text) = status_and_text(&world, Endpoint::ChatCompletions, body).await;
        assert_eq!(answered, status, "{max_free_form_values}: {text}");
        assert!(text.contains(code), "{max_free_form_values}: {text}");
    }
}

/// A response with media is read again after its conversion to a chat.
#[tokio::test]
async fn a_response_that_becomes_a_chat_is_read_within_the_operators_limits() {
    let usual = WireLimits::default().max_tools;
    let tools = |count: usize| -> Vec<Value> {
        (0..count).map(|at| json!({"type": "function", "name": format!("f{at}")})).collect()
    };
    let input = json!([{"role": "user", "content": [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}]}]);
    for (max_tools, count, status) in
        [(usual + 20, usual + 20, 200), (usual + 20, usual + 21, 400), (2, 2, 200), (2, 3, 400)]
    {
        let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of("ha"))]);
        let world = limited_world(&[server], WireLimits { max_tools, ..WireLimits::default() });
        let body = json!({"model": "far", "store": false, "input": input, "tools": tools(count)});
        let (answered, text) = status_and_text(&world, Endpoint::Responses, body).await;
        assert_eq!(answered, status, "{max_tools}, {count}: {text}");
    }
}
