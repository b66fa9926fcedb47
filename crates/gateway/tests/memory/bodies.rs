//! Compares the memory that bodies take while they are read with the reserved amount: many elements of few bytes, in
//! each place that has a list.

use headrace_call_state::MemoryBounds;
use headrace_domain::Endpoint;
use serde_json::{Value, json};

use super::world::{MODEL, Script, Setup, World, capabilities};
use super::{ALONE, hold_to_estimates, rich};

#[tokio::test(flavor = "multi_thread")]
async fn no_body_of_many_elements_takes_more_than_was_reserved_for_it() {
    let _alone = ALONE.lock().await;
    let bounds = MemoryBounds { call: 4 << 30, key: 8 << 30, all: 8 << 30 };
    let capabilities = headrace_engine_api::Capabilities { context_window: 1 << 20, ..capabilities() };
    let world = World::new(Setup { memory: bounds, capabilities, credit: rich(), ..Setup::default() });
    world.script(Script::Answer);
    let with = |endpoint: Endpoint, mut body: Value, more: Value| {
        body["model"] = json!(MODEL);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (endpoint, body)
    };
    let chat = |more| {
        with(
            Endpoint::ChatCompletions,
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
            more,
        )
    };
    let raw = |more| with(Endpoint::Completions, json!({"prompt": "hi", "max_tokens": 1}), more);
    let messages = |more| {
        with(
            Endpoint::Messages,
            json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
            more,
        )
    };
    let response = |more| {
        with(Endpoint::Responses, json!({"input": "hi", "max_output_tokens": 1, "store": false}), more)
    };
    let tool = |parameters: &Value| json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}]);
    let schema = |values: Value| json!({"type": "object", "properties": {}, "x": values});
    let many = 49_000;
    let keys: Value =
        (0..many).map(|at| (format!("{at:x}"), json!(0))).collect::<serde_json::Map<_, _>>().into();
    let parts = json!({"role": "user", "content": vec![json!({"type": "text", "text": ""}); 1_000]});
    let called: Vec<Value> = (0..128)
        .map(|at| {
            json!({"id": format!("c{at}"), "type": "function",
        "function": {"name": "f", "arguments": json!({"a": vec![json!([]); 380]}).to_string()}})
        })
        .collect();
    let results: Vec<Value> =
        (0..128).map(|at| json!({"role": "tool", "tool_call_id": format!("c{at}"), "content": ""})).collect();
    let calls: Vec<Value> =
        [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "tool_calls": called})]
            .into_iter()
            .chain(results)
            .collect();
    let rows = [
        chat(json!({"tools": tool(&schema(json!(vec![json!([]); many])))})),
        chat(json!({"tools": tool(&schema(json!(vec![json!({}); many])))})),
        chat(json!({"tools": tool(&schema(json!(vec![0; many])))})),
        chat(json!({"tools": tool(&schema(json!(vec![""; many])))})),
        chat(json!({"tools": tool(&schema(json!(vec![json!({"": 0}); many / 2])))})),
        chat(json!({"tools": tool(&schema(keys.clone()))})),
        chat(json!({"tools": tool(&json!(vec![json!([]); many + 2_000]))})),
        chat(json!({"messages": vec![json!({"role": "user", "content": ""}); 4_096]})),
        chat(json!({"messages": vec![json!({"role": "user", "content": "."}); 4_096]})),
        chat(json!({"messages": vec![json!({"role": "user", "content": ""}); 100_000]})),
        chat(json!({"messages": vec![json!({}); 200_000]})),
        chat(json!({"messages": vec![json!([]); 200_000]})),
        chat(json!({"messages": vec![parts.clone(); 64]})),
        chat(json!({"messages": calls})),
        chat(json!({"stop": vec!["a"; 200_000]})),
        chat(json!({"metadata": keys.clone()})),
        chat(json!({"logit_bias": keys.clone()})),
        chat(json!({"chat_template_kwargs": {"a": vec![json!([]); many]}})),
        chat(json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n",
            "schema": {"enum": vec![json!([]); many]}}}})),
        chat(json!({"structured_outputs": {"choice": vec![""; 200_000]}})),
        raw(json!({"prompt": vec!["a"; 200_000]})),
        raw(json!({"prompt": vec![""; 200_000]})),
        raw(json!({"prompt": vec![json!([]); 200_000]})),
        raw(json!({"prompt": vec![json!({}); 200_000]})),
        raw(json!({"prompt": vec![1; 131_072]})),
        raw(json!({"prompt": vec![1; 200_000]})),
        raw(json!({"prompt": vec![vec![1; 1_000]; 128]})),
        raw(json!({"stop_token_ids": vec![1; 200_000]})),
        messages(json!({"messages": vec![json!({"role": "user", "content": ""}); 4_096]})),
        messages(json!({"messages": vec![json!({"role": "user", "content": "."}); 4_096]})),
        messages(json!({"messages": vec![parts; 64]})),
        messages(json!({"tools": vec![json!({"name": "f", "input_schema": {"type": "object"}}); 100_000]})),
        messages(json!({"system": vec![json!({"type": "text", "text": ""}); 1_000]})),
        messages(json!({"stop_sequences": vec!["a"; 200_000]})),
        response(json!({"input": vec![json!({"role": "user", "content": ""}); 4_096]})),
        response(json!({"input": vec![json!({"role": "user", "content": "."}); 4_096]})),
        response(json!({"input": vec![json!({}); 200_000]})),
        response(json!({"include": vec![""; 200_000]})),
        response(json!({"metadata": keys})),
    ];
    hold_to_estimates(&world, &rows).await;
}
