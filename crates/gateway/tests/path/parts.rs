//! Calls with more than plain text: parts that a model cannot see, spelled-out control tokens, gaps to be filled, items
//! that are only referenced, and conversations that have grown too long.

use std::path::Path;
use std::sync::Arc;

use headrace_call_api::{Question, RequestTarget};
use headrace_catalog::{Backend, ControlTokenPolicy, ModelPolicy, ServedModel};
use headrace_checkpoint::TokenizerConfig;
use headrace_domain::{Endpoint, ModelName};
use headrace_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::races::by_policy;
use crate::world::{MODEL, Setup, World, read};

async fn told(world: &World, endpoint: Endpoint, body: Value) -> (u16, Value) {
    let answer = world.call(endpoint, body).await;
    let status = answer.status;
    (status, serde_json::from_str(&read(answer).await).unwrap())
}

fn prompts(world: &World) -> Vec<Arc<[u32]>> {
    world.engine.jobs.lock().unwrap().iter().map(|job| Arc::clone(&job.prompt)).collect()
}

fn tokenizer(world: &World) -> Arc<Tokenizer> {
    let model = world.gateway.catalog().models().next().cloned().unwrap();
    let Backend::Tokens(backend) = &model.backend else { panic!("a model that takes tokens") };
    Arc::clone(&backend.tokenizer)
}

/// Gives the model another policy, and another tokenizer if one is given.
fn change(world: &World, policy: ModelPolicy, tokenizer: Option<Arc<Tokenizer>>) {
    let fleet = Arc::clone(world.gateway.catalog().fleet());
    by_policy(world, fleet, policy, &[]);
    let Some(tokenizer) = tokenizer else { return };
    let with = |model: &Arc<ServedModel>| {
        let mut model = (**model).clone();
        if let Backend::Tokens(backend) = &mut model.backend {
            backend.tokenizer = Arc::clone(&tokenizer);
        }
        Arc::new(model)
    };
    crate::races::by_models(world, with);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_eyes_names_the_part_and_its_place() {
    let world = World::new(Setup::default());
    let before = world.balance_when_idle().await;
    let url = "https://x/a.png";
    let chat = json!({"model": MODEL, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [
        {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]}]});
    let claude = json!({"model": MODEL, "max_tokens": 9, "system": "s", "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}}]}]});
    let response = json!({"model": MODEL, "instructions": "i", "input": [{"role": "user", "content": "x"},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}]}]});
    for (endpoint, body, place, kind) in [
        (Endpoint::ChatCompletions, chat, "messages[1].content[1]", "image"),
        (Endpoint::Messages, claude.clone(), "messages[0].content[0]", "document"),
        (Endpoint::Responses, response, "input[1].content[0]", "audio"),
    ] {
        let (status, refused) = told(&world, endpoint, body).await;
        let error = &refused["error"];
        assert_eq!((status, &error["code"]), (400, &json!("unsupported_content")), "{refused}");
        assert_eq!(error["param"], place, "{refused}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("`{place}`: {kind}.")) && message.contains(MODEL), "{message}");
    }
    let answer = world.request(RequestTarget::Question(Question::CountTokens), claude.to_string()).await;
    assert_eq!(answer.status, 400);
    assert!(prompts(&world).is_empty());
    assert_eq!(world.balance_when_idle().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_tokens_are_read_from_a_prompt_where_that_is_allowed() {
    let world = World::new(Setup::default());
    let ask = |more: Value| {
        let mut body = json!({"model": MODEL, "max_tokens": 2, "prompt": "<|im_start|>user\nhi<|im_end|>\n"});
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        told(&world, Endpoint::Completions, body)
    };
    let special = json!({"parse_special": true});
    let (status, refused) = ask(special.clone()).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("parse_special")));
    assert!(refused["error"]["message"].as_str().unwrap().contains("`parse_special` in `[[models]]`"));
    let key = world.directory.list().pop().unwrap().id;
    for (spellers, expected) in [
        (ControlTokenPolicy::Keys(Arc::new([key.clone()].into())), 200),
        (ControlTokenPolicy::Keys(Arc::default()), 400),
        (ControlTokenPolicy::All, 200),
    ] {
        change(&world, ModelPolicy { parse_special: spellers, ..ModelPolicy::default() }, None);
        assert_eq!(ask(special.clone()).await.0, expected);
    }
    assert_eq!(ask(json!({})).await.0, 200);
    let tokenizer = tokenizer(&world);
    let text = "<|im_start|>user\nhi<|im_end|>\n";
    let (spelt, plain) = (tokenizer.encode(text, true).unwrap(), tokenizer.encode_plain(text, true).unwrap());
    assert!(spelt.contains(&tokenizer.id_of("<|im_end|>").unwrap()));
    let all = prompts(&world);
    assert_eq!(all.iter().map(|ids| ids.to_vec()).collect::<Vec<_>>(), [spelt.clone(), spelt, plain]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_marked_as_the_model_was_taught_it() {
    let world = World::new(Setup::default());
    let body = json!({"model": MODEL, "max_tokens": 2, "prompt": "def f(<|im_end|>", "suffix": "return x"});
    let (status, refused) = told(&world, Endpoint::Completions, body.clone()).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("suffix")), "{refused}");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint/tokenizer.json");
    let own = std::fs::read_to_string(dir).unwrap();
    let rows = [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], "012"),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "012"),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], "012"),
        (["▁<PRE>", "▁<SUF>", "▁<MID>"], "012"),
        (["[SUFFIX]", "[PREFIX]", "[NONE]"], "01"),
    ];
    for (marks, order) in rows {
        let named = ["<tool_call>", "</tool_call>", "<tool_response>"].into_iter().zip(marks);
        let text = named.fold(own.clone(), |text, (from, to)| text.replace(from, to));
        let with = Arc::new(Tokenizer::new(text.as_bytes(), &TokenizerConfig::default()).unwrap());
        change(&world, ModelPolicy::default(), Some(Arc::clone(&with)));
        assert_eq!(told(&world, Endpoint::Completions, body.clone()).await.0, 200, "{marks:?}");
        let ids = prompts(&world).pop().unwrap().to_vec();
        let id = |mark: &str| with.id_of(mark).unwrap();
        let found: Vec<usize> =
            ids.iter().filter_map(|found| marks.iter().position(|mark| id(mark) == *found)).collect();
        assert_eq!(found.iter().map(usize::to_string).collect::<String>(), order, "{marks:?}");
        // The caller's own text yields no control token, and the marks are where the family puts them.
        assert!(!ids.contains(&id("<|im_end|>")));
        let spm = marks[0] == "[SUFFIX]";
        let (one, two) =
            if spm { ("return x", "def f(<|im_end|>") } else { ("def f(<|im_end|>", "return x") };
        let last = if spm { "" } else { marks[2] };
        assert_eq!(
            with.decode(&ids, false),
            format!("{}{one}{}{two}{last}", marks[0], marks[1]),
            "{marks:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_turns_are_left_out_where_that_is_asked_for() {
    let world = World::new(Setup::default());
    let window = tokens_window(&world);
    let turn = |at: usize| json!({"role": if at.is_multiple_of(2) { "user" } else { "assistant" }, "content": format!("{at} {}", "word ".repeat(40))});
    let input: Vec<Value> = (0..2 * (window / 40) + 1).map(turn).collect();
    let body = |more: Value| {
        let mut body =
            json!({"model": MODEL, "instructions": "Be brief.", "max_output_tokens": 4, "input": input});
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        body
    };
    let (status, refused) = told(&world, Endpoint::Responses, body(json!({}))).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("context_length_exceeded")));
    let (status, cut) = told(&world, Endpoint::Responses, body(json!({"truncation": "auto"}))).await;
    assert_eq!((status, &cut["truncation"]), (200, &json!("auto")), "{cut}");
    let prompt = prompts(&world).pop().unwrap();
    let text = tokenizer(&world).decode(&prompt, false);
    let last = input.len() - 1;
    assert!(
        text.contains("Be brief.") && text.contains(&format!("{last} word")) && !text.contains("\n0 word")
    );
    // As much remains as fits: one more user turn with its answer would not.
    assert!(prompt.len() + 4 <= window && prompt.len() + 4 + 2 * 60 > window, "{} of {window}", prompt.len());
    // A single turn that does not fit is rejected as usual.
    let long = json!({"truncation": "auto", "input": "word ".repeat(window * 2)});
    assert_eq!(told(&world, Endpoint::Responses, body(long)).await.0, 400);
    // A conversation that fits is unchanged.
    let short = |truncation: &str| body(json!({"truncation": truncation, "input": "hi"}));
    assert_eq!(told(&world, Endpoint::Responses, short("auto")).await.0, 200);
    assert_eq!(told(&world, Endpoint::Responses, short("disabled")).await.0, 200);
    let both = prompts(&world);
    assert_eq!(both[both.len() - 1], both[both.len() - 2]);
}

fn tokens_window(world: &World) -> usize {
    let name = ModelName::new(MODEL).unwrap();
    let catalog = world.gateway.catalog();
    let model = catalog.models().find(|model| model.name == name).unwrap();
    model.backend.context_window().unwrap() as usize
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_old_tool_calls_are_cleared_and_that_is_told() {
    let world = World::new(Setup::default());
    let mut messages = vec![json!({"role": "user", "content": "look"})];
    for at in 0..4 {
        let (id, result) = (format!("t{at}"), format!("result-{at} {}", "word ".repeat(30)));
        messages.push(json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}}]}));
        messages.push(json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": result}]}));
    }
    let body = |edit: Value, stream: bool| {
        json!({"model": MODEL, "max_tokens": 4, "stream": stream, "messages": messages,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "context_management": {"edits": [edit]}})
    };
    let edit = |trigger: u32, least: u32| {
        json!({"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": trigger},
            "keep": {"type": "tool_uses", "value": 1}, "clear_at_least": {"type": "input_tokens", "value": least}})
    };
    let mut sizes = Vec::new();
    for (edit, cleared) in [(edit(9, 0), 0), (edit(2, 0), 3), (edit(2, 100_000), 0)] {
        let (status, answer) = told(&world, Endpoint::Messages, body(edit, false)).await;
        assert_eq!(status, 200, "{answer}");
        let prompt = prompts(&world).pop().unwrap();
        sizes.push(prompt.len() as u64);
        let text = tokenizer(&world).decode(&prompt, false);
        let left = (0..4).filter(|at| text.contains(&format!("result-{at}"))).count();
        assert_eq!((left, text.contains("result-3")), (4 - cleared, true), "{text}");
        let applied = &answer["context_management"]["applied_edits"];
        if cleared == 0 {
            assert_eq!(applied, &json!([]));
        } else {
            assert_eq!(applied[0]["cleared_tool_uses"], cleared);
            assert_eq!(applied[0]["cleared_input_tokens"], sizes[0] - sizes[1]);
        }
    }
    let answer = world.call(Endpoint::Messages, body(edit(2, 0), true)).await;
    let text = read(answer).await;
    assert!(text.contains(
        r#""context_management":{"applied_edits":[{"type":"clear_tool_uses_20250919","cleared_tool_uses":3"#
    ));
    let plain = json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]});
    let (_, plain) = told(&world, Endpoint::Messages, plain).await;
    assert_eq!(plain.get("context_management"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_may_be_named_instead_of_sent() {
    let world = World::new(Setup::default());
    let ask = |input: Value| {
        told(&world, Endpoint::Responses, json!({"model": MODEL, "max_output_tokens": 4, "input": input}))
    };
    let (_, first) = ask(json!("say ha")).await;
    let item = &first["output"][0];
    let id = item["id"].as_str().unwrap();
    let digits = first["id"].as_str().unwrap().trim_start_matches("resp_");
    let asked = format!("msg_{digits}i0000");
    let named = json!([{"type": "item_reference", "id": asked}, {"type": "item_reference", "id": id}, {"role": "user", "content": "more"}]);
    let (status, told) = ask(named).await;
    assert_eq!(status, 200, "{told}");
    let sent = json!([{"role": "user", "content": "say ha"}, item, {"role": "user", "content": "more"}]);
    ask(sent).await;
    let all = prompts(&world);
    assert_eq!(all[1], all[2]);
    let other = format!("msg_{}0009", &id[4..36]);
    for missing in ["msg_0123", other.as_str(), "msg_é", "resp"] {
        let (status, refused) = ask(json!([{"type": "item_reference", "id": missing}])).await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("item_not_found")), "{missing}");
    }
}
