//! Model directories that are served by name over real sockets. Their answers must equal recorded ones (transformers,
//! float32).
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::{Path, PathBuf};

use common::Server;
use serde_json::{Value, json};

/// Small checkpoints with recorded answers, from the tests of the `model` crate.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_supported_architecture_answers_as_recorded_over_http() {
    let names =
        ["llama-gqa-untied", "llama-mha-f32-sharded", "llama-tied-rope3", "qwen2", "qwen3", "qwen3-tied"];
    let dir = tempfile::tempdir().unwrap();
    let models: Vec<String> =
        names.iter().map(|name| format!("{name}={}", data(name).to_string_lossy())).collect();
    let flags: Vec<&str> = models.iter().flat_map(|model| ["--model", model]).collect();
    let mut server = Server::up(dir.path(), &flags);
    for name in names {
        let expected: Value =
            serde_json::from_slice(&std::fs::read(data(name).join("expected.json")).unwrap()).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            check(&server, name, case).await;
        }
    }
    server.stop();
}

async fn check(server: &Server, name: &str, case: &Value) {
    let greedy: Vec<u64> = case["greedy"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let body = json!({
        "model": name, "prompt": case["ids"], "max_tokens": greedy.len(), "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "logprobs": 5, "echo": true,
    });
    let http = reqwest::Client::new();
    let sent =
        http.post(format!("{}/v1/completions", server.url)).bearer_auth(&server.key).json(&body).send().await;
    let answer: Value = sent.unwrap().json().await.unwrap();
    let choice = &answer["choices"][0];
    let ids: Vec<u64> = choice["token_ids"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"))
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect();
    let gaps = case["gaps"].as_array().unwrap();
    for (step, (ours, theirs)) in ids.iter().zip(&greedy).enumerate() {
        if ours != theirs {
            let gap = gaps[step].as_f64().unwrap();
            assert!(gap < 1e-4, "{name}, step {step}: {ours} for {theirs}, and the gap is {gap}");
            return;
        }
    }
    assert_eq!(ids.len(), greedy.len());
    let ours = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(ours[0].is_null(), "nothing predicts the first token");
    for (index, theirs) in case["prompt_token_logprobs"].as_array().unwrap().iter().enumerate() {
        let difference = ours[index + 1].as_f64().unwrap() - theirs.as_f64().unwrap();
        assert!(difference.abs() < 1e-3, "{name}, prompt token {}: off by {difference}", index + 1);
    }
}

/// The demo model as the text model of a model that also takes images.
fn with_images(folder: &Path) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
    std::fs::create_dir(folder).unwrap();
    for entry in std::fs::read_dir(&demo).unwrap() {
        let name = entry.unwrap().file_name();
        std::fs::copy(demo.join(&name), folder.join(&name)).unwrap();
    }
    let mut text: Value = serde_json::from_slice(&std::fs::read(demo.join("config.json")).unwrap()).unwrap();
    text.as_object_mut().unwrap().remove("architectures");
    text["model_type"] = json!("qwen3_vl_text");
    let config = json!({
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "text_config": text,
        "tie_word_embeddings": true, "vision_config": {"depth": 1}, "image_token_id": 7,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_for_text_and_images_answers_texts_and_refuses_images_by_place() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("vl");
    with_images(&folder);
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
    let models = [format!("vl={}", folder.display()), format!("text={}", demo.display())];
    let flags: Vec<&str> = models.iter().flat_map(|model| ["--model", model]).collect();
    let mut server = Server::up(&dir.path().join("data"), &flags);
    let ask = |model: &str, content: Value| {
        json!({"model": model, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
            "max_tokens": 16, "temperature": 0})
    };
    let question = json!("What happens when I call an LLM API?");
    let (status, theirs) = server.chat(&server.key, ask("text", question.clone())).await;
    assert_eq!(status, 200, "{theirs}");
    let (_, ours) = server.chat(&server.key, ask("vl", question)).await;
    assert_eq!(ours["choices"][0]["message"], theirs["choices"][0]["message"]);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}});
    let parts = json!([{"type": "text", "text": "What is this?"}, image]);
    let (status, refused) = server.chat(&server.key, ask("vl", parts)).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("messages[1].content[1]")), "{refused}");
    let says = |refused: &Value, place: &str| {
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("`{place}`: image. The model `vl` takes text alone.")),
            "{message}"
        );
        assert!(message.contains("Say what it shows as text"), "{message}");
    };
    says(&refused, "messages[1].content[1]");
    let source = json!({"type": "base64", "media_type": "image/png", "data": "QUJD"});
    let body = json!({"model": "vl", "max_tokens": 16, "messages": [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "And this?"}]}]});
    let http = reqwest::Client::new();
    let sent = http
        .post(format!("{}/v1/messages", server.url))
        .bearer_auth(&server.key)
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(sent.status().as_u16(), 400);
    says(&sent.json().await.unwrap(), "messages[2].content[0]");
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_models_and_names_that_look_like_paths_are_404() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &[]);
    for name in
        ["../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "no-such-model", "headrace-demo/../x"]
    {
        let (status, error) = server
            .chat(&server.key, json!({"model": name, "messages": [{"role": "user", "content": "x"}]}))
            .await;
        assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")), "{error}");
    }
    server.stop();
}
