//! A server whose disk is full, or whose stores cannot be opened. It starts, answers what needs no store, and refuses
//! the rest by name. It recovers without a restart.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::time::Instant;

use common::{PATIENCE, Server, program, question, said};
use serde_json::{Value, json};

const KEY: &str = "sk-integration-test-0123456789abcdef";

async fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let call = reqwest::Client::new().post(format!("{}{path}", server.url)).bearer_auth(&server.key);
    let call = call.header("content-type", "application/json").body(body.to_string());
    told(call).await
}

async fn upload(server: &Server) -> (u16, Value) {
    let part =
        |head: &str, body: &str| format!("--x\r\ncontent-disposition: form-data; {head}\r\n\r\n{body}\r\n");
    let form =
        part("name=\"purpose\"", "user_data") + &part("name=\"file\"; filename=\"a\"", "bytes") + "--x--\r\n";
    let call = reqwest::Client::new().post(format!("{}/v1/files", server.url)).bearer_auth(&server.key);
    told(call.header("content-type", "multipart/form-data; boundary=x").body(form)).await
}

async fn told(call: reqwest::RequestBuilder) -> (u16, Value) {
    let response = call.timeout(PATIENCE).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

fn response(store: bool) -> Value {
    json!({"model": "headrace-demo", "input": "What is prefill?", "max_output_tokens": 4, "store": store})
}

async fn is_answered(server: &Server) {
    let (status, told) = server.chat(&server.key, question(json!({"max_tokens": 4}))).await;
    assert_eq!(status, 200, "{told}");
    let (status, told) = post(server, "/v1/responses", &response(false)).await;
    assert_eq!(status, 200, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_take_the_reserve_is_refused_and_all_else_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // More than any disk has.
    let more = ["--set", "objects.min_free_disk=1125899906842624"];
    let server = Server::up(&dir.path().join("data"), &more);
    is_answered(&server).await;
    let (status, refused) = upload(&server).await;
    assert_eq!((status, &refused["error"]["code"]), (507, &json!("disk_full")), "{refused}");
    for body in [response(true), json!({"model": "headrace-demo", "input": "a", "stream": true})] {
        let (status, refused) = post(&server, "/v1/responses", &body).await;
        assert_eq!((status, &refused["error"]["code"]), (507, &json!("disk_full")), "{refused}");
    }
    let (status, refused) = post(&server, "/v1/conversations", &json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (507, &json!("disk_full")), "{refused}");
    assert_eq!(server.get("/v1/files").await.0, 200);
    server.ok(&["keys", "create", "--name", "beside"]);
    let status = server.ok(&["status"]);
    assert!(status.contains("objects.min_free_disk"), "{status}");
    is_answered(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_beside_stores_that_cannot_be_opened_and_uses_them_once_they_can() {
    let root = tempfile::tempdir().unwrap();
    let (data, objects) = (root.path().join("data"), root.path().join("objects"));
    let stores = [
        data.join("traces.sqlite"),
        data.join("usage.sqlite"),
        objects.join("objects.sqlite"),
        objects.join("files.sqlite"),
    ];
    // A file cannot be opened if a directory has its name.
    stores.iter().for_each(|store| std::fs::create_dir_all(store).unwrap());
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_OBJECTS_DIR", &objects).arg("up");
    let server = Server::begin(command, &data, &[], KEY);
    is_answered(&server).await;
    let (status, refused) = upload(&server).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("objects_unavailable")), "{refused}");
    let (status, refused) = post(&server, "/v1/responses", &response(true)).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("objects_unavailable")), "{refused}");
    server.ok(&["keys", "create", "--name", "beside"]);
    stores.iter().for_each(|store| std::fs::remove_dir(store).unwrap());
    let (status, told) = upload(&server).await;
    assert_eq!(status, 200, "{told}");
    let (status, told) = post(&server, "/v1/responses", &response(true)).await;
    assert_eq!(status, 200, "{told}");
    let id = told["id"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("/v1/responses/{id}")).await.0, 200);
    let began = Instant::now();
    loop {
        let usage = server.command(&["usage"]);
        let status = server.ok(&["status"]);
        if usage.status.success() && stores.iter().all(|store| store.is_file()) && !status.contains("CANNOT")
        {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{status}{}", said(&usage));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
