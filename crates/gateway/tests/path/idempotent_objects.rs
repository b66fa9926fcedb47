//! Requests for stored resources with an idempotency key: done once, with the same answer for every repeat.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{BodyPieces, BodyRefusal, BodySource, ObjectMethod, ObjectOperation, RequestTarget};
use headrace_call_state::Answer;
use headrace_domain::NanoDollars;
use headrace_objects::FileLimits;
use headrace_store::{Storage, StorageUrl};
use serde_json::{Value, json};

use crate::idempotency::keyed;
use crate::world::{Arrival, MODEL, Setup, World, ask, header, read};

fn target(method: ObjectMethod, path: &str) -> RequestTarget {
    RequestTarget::Object(ObjectOperation { method, path: path.to_owned(), query: Vec::new() })
}

/// Sends a `POST` with a key. Returns its status, its JSON and whether it is a replay.
async fn post<B: BodySource>(world: &World, key: &str, path: &str, body: B) -> (u16, Value, bool) {
    let head = keyed(world.head(target(ObjectMethod::Post, path)), key, &format!("POST /v1/{path}"));
    seen(ask(&world.gateway, Arrival { head, body }).await).await
}

async fn seen(answer: Answer) -> (u16, Value, bool) {
    let (status, replayed) = (answer.status, header(&answer, "idempotent-replayed").is_some());
    assert!(header(&answer, "x-request-id").is_some());
    (status, serde_json::from_str(&read(answer).await).unwrap(), replayed)
}

async fn get(world: &World, path: &str) -> Value {
    let answer = world.request(target(ObjectMethod::Get, path), "").await;
    serde_json::from_str(&read(answer).await).unwrap()
}

fn json_body(body: &Value) -> Bytes {
    Bytes::from(body.to_string())
}

/// A form with a boundary of its own, as SDKs send it anew with each try.
struct FormBody {
    content_type: String,
    body: Bytes,
}

fn form(boundary: &str, purpose: &str, content: &str) -> FormBody {
    let field = |head: &str, value: &str| {
        format!("--{boundary}\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
    };
    let body = format!(
        "{}{}--{boundary}--\r\n",
        field("name=\"purpose\"", purpose),
        field("name=\"file\"; filename=\"a.jsonl\"", content)
    );
    FormBody { content_type: format!("multipart/form-data; boundary={boundary}"), body: Bytes::from(body) }
}

fn part(boundary: &str, content: &str) -> FormBody {
    let body = format!(
        "--{boundary}\r\ncontent-disposition: form-data; name=\"data\"; filename=\"p\"\r\n\r\n{content}\r\n--{boundary}--\r\n"
    );
    FormBody { content_type: format!("multipart/form-data; boundary={boundary}"), body: Bytes::from(body) }
}

impl BodySource for FormBody {
    async fn read(self) -> Result<Bytes, BodyRefusal> {
        Err(BodyRefusal::MediaType)
    }

    fn open(self, _most_bytes: u64) -> Result<impl BodyPieces, BodyRefusal> {
        Ok(FormPieces { content_type: self.content_type, body: Some(self.body) })
    }
}

struct FormPieces {
    content_type: String,
    body: Option<Bytes>,
}

impl BodyPieces for FormPieces {
    fn content_type(&self) -> Option<&str> {
        Some(&self.content_type)
    }

    async fn next(&mut self) -> Result<Option<Bytes>, BodyRefusal> {
        Ok(self.body.take())
    }
}

/// A world with files and batches, in a folder.
fn world() -> (World, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let storage = Storage::open(StorageUrl::of_folder(dir.path()), None);
    let files = storage.batches(FileLimits::default(), None).unwrap();
    let answers = storage.answers(1 << 30, None).unwrap();
    (World::new(Setup { files: Some(files), answers, ..Setup::default() }), dir)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_created_with_a_key_is_created_once() {
    let (world, _dir) = world();
    let balance = world.balance_when_idle().await;
    let body = json!({"metadata": {"a": "b"}});
    let (status, first, replayed) = post(&world, "c", "conversations", json_body(&body)).await;
    assert_eq!((status, replayed), (200, false), "{first}");
    let (status, again, replayed) = post(&world, "c", "conversations", json_body(&body)).await;
    assert_eq!((status, &again, replayed), (200, &first, true));
    let (status, other, _) = post(&world, "c", "conversations", json_body(&json!({}))).await;
    assert_eq!((status, &other["error"]["code"]), (422, &json!("idempotency_mismatch")));
    let items = format!("conversations/{}/items", first["id"].as_str().unwrap());
    let item = json!({"items": [{"type": "message", "role": "user", "content": "hello"}]});
    for _ in 0..3 {
        assert_eq!(post(&world, "i", &items, json_body(&item)).await.0, 200);
    }
    assert_eq!(get(&world, &items).await["data"].as_array().unwrap().len(), 1);
    // A refusal frees the key.
    let (status, _, _) = post(&world, "e", "conversations", Bytes::from_static(b"no JSON")).await;
    assert_eq!(status, 400);
    let (status, _, replayed) = post(&world, "e", "conversations", json_body(&body)).await;
    assert_eq!((status, replayed), (200, false));
    assert_eq!(world.balance_when_idle().await, balance, "nothing is charged, and no hold is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_sent_again_in_another_form_is_the_same_file() {
    let (world, _dir) = world();
    let line = json!({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {
        "model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "say ha"}]}});
    let line = line.to_string();
    let (status, file, replayed) = post(&world, "f", "files", form("B1", "batch", &line)).await;
    assert_eq!((status, replayed), (200, false), "{file}");
    let (status, again, replayed) = post(&world, "f", "files", form("B2", "batch", &line)).await;
    assert_eq!((status, &again, replayed), (200, &file, true));
    for other in [form("B3", "batch", "other"), form("B4", "assistants", &line)] {
        let (status, refused, _) = post(&world, "f", "files", other).await;
        assert_eq!((status, &refused["error"]["code"]), (422, &json!("idempotency_mismatch")), "{refused}");
    }
    assert_eq!(get(&world, "files").await["data"].as_array().unwrap().len(), 1);

    let body =
        json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let (status, batch, replayed) = post(&world, "b", "batches", json_body(&body)).await;
    assert_eq!((status, replayed), (200, false), "{batch}");
    let (status, again, replayed) = post(&world, "b", "batches", json_body(&body)).await;
    assert_eq!((status, &again, replayed), (200, &batch, true));
    assert_eq!(get(&world, "batches").await["data"].as_array().unwrap().len(), 1);
    let (status, refused, _) = post(&world, "f", "batches", json_body(&body)).await;
    assert_eq!(status, 422, "the key of another path: {refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_an_upload_is_added_once() {
    let (world, _dir) = world();
    let upload = json!({"filename": "a", "purpose": "batch", "bytes": 3, "mime_type": "text/plain"});
    let (status, upload, _) = post(&world, "u", "uploads", json_body(&upload)).await;
    assert_eq!(status, 200, "{upload}");
    let parts = format!("uploads/{}/parts", upload["id"].as_str().unwrap());
    let (status, first, _) = post(&world, "p", &parts, part("B1", "abc")).await;
    assert_eq!(status, 200, "{first}");
    let (status, again, replayed) = post(&world, "p", &parts, part("B2", "abc")).await;
    assert_eq!((status, &again, replayed), (200, &first, true));
    assert_eq!(post(&world, "p", &parts, part("B2", "abd")).await.0, 422);
    let complete = format!("uploads/{}/complete", upload["id"].as_str().unwrap());
    let body = json!({"part_ids": [first["id"]]});
    let (status, whole, _) = post(&world, "x", &complete, json_body(&body)).await;
    assert_eq!(status, 200, "{whole}");
    let (status, again, replayed) = post(&world, "x", &complete, json_body(&body)).await;
    assert_eq!((status, &again, replayed), (200, &whole, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn twins_that_create_something_create_one() {
    let (world, _dir) = world();
    let world = Arc::new(world);
    let twins: Vec<_> = (0..32)
        .map(|_| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                loop {
                    let (status, said, replayed) =
                        post(&world, "t", "conversations", json_body(&json!({}))).await;
                    if status == 200 {
                        return (said, replayed);
                    }
                    assert_eq!((status, &said["error"]["code"]), (409, &json!("idempotency_in_flight")));
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            })
        })
        .collect();
    let mut answers = Vec::new();
    for twin in twins {
        answers.push(twin.await.unwrap());
    }
    assert!(answers.iter().all(|(said, _)| *said == answers[0].0));
    assert_eq!(answers.iter().filter(|(_, replayed)| !replayed).count(), 1);
    assert_ne!(world.balance_when_idle().await, NanoDollars::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_neither_stores_nor_costs_heeds_no_key() {
    let (world, _dir) = world();
    let body = json!({"input": "hello"});
    for (path, body) in
        [("moderations", &body), ("responses/input_tokens", &json!({"model": MODEL, "input": "hello"}))]
    {
        for _ in 0..2 {
            let (status, said, replayed) = post(&world, "same for all", path, json_body(body)).await;
            assert!(!replayed && status != 409 && status != 422, "{path}: {said}");
        }
    }
}
