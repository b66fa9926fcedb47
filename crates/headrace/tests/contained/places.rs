//! Shared resources that a client holds without using them: descriptors, listener connections, batch slots, disk space.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::common::PATIENCE;
use crate::raw;
use crate::world::{Attack, World, id};

/// Number of connections of a client without a key. Exceeds the program's descriptors in this row.
const IDLE: usize = 700;
/// Exceeds the connections that the admin listener accepts.
const OPERATORS: usize = 300;
/// Number of lines of each of the two slow batches, and of the other caller's.
const SLOW_LINES: usize = 100;
const LINES: usize = 40;
/// Number of batches over one file, and the size of that file.
const BATCHES: usize = 20;
const FILE_BYTES: usize = 6 << 20;
/// Bytes that the project of these batches may store by the row's settings, and bytes that the program writes besides.
const PROJECT_BYTES: u64 = 16 << 20;
const OTHER_BYTES: u64 = 16 << 20;

/// A client opens more connections than the program has descriptors, and asks for nothing.
pub(crate) async fn idle(world: Arc<World>) -> Attack {
    let mut open = Vec::new();
    for _ in 0..IDLE {
        let Some(mut stream) = raw::connect(world.server.address()).await else { break };
        raw::push(&mut stream, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        open.push(stream);
    }
    command_succeeds(&world, &["keys", "create", "--name", "later"]).await?;
    Ok(Box::new(open))
}

/// A client without a key begins many requests at the admin listener.
pub(crate) async fn half_heads(world: Arc<World>) -> Attack {
    hold_operators(&world, "GET / HT").await
}

/// A viewer opens many event streams.
pub(crate) async fn event_streams(world: Arc<World>) -> Attack {
    let viewer = operator(&world, "viewer").await;
    let head = format!(
        "GET /admin/v1/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {viewer}\r\n\r\n",
        world.admin
    );
    hold_operators(&world, &head).await
}

/// Holds connections of the admin listener. Another operator must be answered.
async fn hold_operators(world: &Arc<World>, sent: &str) -> Attack {
    let owner = operator(world, "owner").await;
    let mut open = Vec::new();
    for _ in 0..OPERATORS {
        let Some(mut stream) = raw::connect(world.admin.parse().unwrap()).await else { break };
        raw::push(&mut stream, sent.as_bytes()).await;
        open.push(stream);
    }
    let asked = world.http.get(format!("http://{}/admin/v1/status", world.admin)).bearer_auth(owner);
    match asked.send().await.map(|answer| answer.status().as_u16()) {
        Ok(200) => {}
        answer => return Err(format!("beside {} connections an operator gets {answer:?}", open.len())),
    }
    command_succeeds(world, &["keys", "list"]).await?;
    Ok(Box::new(open))
}

/// The secret of a new operator.
async fn operator(world: &Arc<World>, role: &'static str) -> String {
    let made = {
        let world = Arc::clone(world);
        let args = ["operators", "create", "--name", role, "--role", role, "--json"];
        tokio::task::spawn_blocking(move || world.server.ok(&args)).await.unwrap()
    };
    let made: Value = serde_json::from_str(&made).unwrap();
    let made = made.get("value").unwrap_or(&made);
    made.get("secret").or_else(|| made.get("key")).and_then(Value::as_str).unwrap().to_owned()
}

/// Checks that a command of the machine's own operator succeeds.
async fn command_succeeds(world: &Arc<World>, args: &'static [&'static str]) -> Result<(), String> {
    let world = Arc::clone(world);
    let done = tokio::task::spawn_blocking(move || world.server.command(args)).await.unwrap();
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{args:?}: {}", String::from_utf8_lossy(&done.stderr))),
    }
}

/// Two keys with one request per minute have a batch each. Another organisation's batch must complete meanwhile.
pub(crate) async fn slow_batches(world: Arc<World>) -> Attack {
    let file = world.upload(&world.attacker, "batch", &lines(SLOW_LINES, 0)).await?;
    for _ in 0..2 {
        let slow = world.key(&["--requests-per-minute", "1"]);
        batch(&world, &slow, &file).await?;
    }
    let file = world.upload(&world.other, "batch", &lines(LINES, 0)).await?;
    let id = batch(&world, &world.other, &file).await?;
    let completed = async {
        loop {
            let now = show(&world, &world.other, &id).await;
            if now["status"] == "completed" {
                return;
            }
            tokio::time::sleep(PATIENCE / 400).await;
        }
    };
    if tokio::time::timeout(PATIENCE * 2, completed).await.is_err() {
        return Err(format!("another caller's batch: {}", show(&world, &world.other, &id).await));
    }
    Ok(Box::new(()))
}

/// A project creates many batches of one file. Its byte limit must hold on the disk.
pub(crate) async fn one_file_many_batches(world: Arc<World>) -> Attack {
    let before = stored_bytes(&world);
    let lines = lines(FILE_BYTES / 30_000, 30_000);
    let file = world.upload(&world.attacker, "batch", &lines).await?;
    let mut made = 0;
    for _ in 0..BATCHES {
        made += usize::from(batch(&world, &world.attacker, &file).await.is_ok());
    }
    // The lines are read in the background. A batch that has begun has read them.
    let listed = async {
        loop {
            let all = world.http.get(format!("{}/v1/batches?limit=100", world.server.url));
            let all: Value = all.bearer_auth(&world.attacker).send().await.unwrap().json().await.unwrap();
            if all["data"].as_array().unwrap().iter().all(|one| one["status"] != "validating") {
                return;
            }
            tokio::time::sleep(PATIENCE / 400).await;
        }
    };
    tokio::time::timeout(PATIENCE * 2, listed).await.map_err(|_| "batches are not read".to_owned())?;
    let grown = stored_bytes(&world).saturating_sub(before);
    match grown <= PROJECT_BYTES + OTHER_BYTES {
        true => Ok(Box::new(())),
        false => {
            Err(format!("{made} batches of a file of {FILE_BYTES} bytes took {grown} bytes of the disk"))
        }
    }
}

fn stored_bytes(world: &World) -> u64 {
    let entries = std::fs::read_dir(&world.server.dir).unwrap();
    entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
}

/// Lines of a batch, each with `padding` bytes in an unknown field.
fn lines(count: usize, padding: usize) -> String {
    let mut out = String::new();
    for at in 0..count {
        let mut body = json!({"model": "headrace-demo", "prompt": "hi", "max_tokens": 2});
        if padding > 0 {
            body["x_padding"] = "p".repeat(padding).into();
        }
        let line =
            json!({"custom_id": format!("l{at}"), "method": "POST", "url": "/v1/completions", "body": body});
        out += &format!("{line}\n");
    }
    out
}

async fn batch(world: &World, key: &str, file: &str) -> Result<String, String> {
    let asked = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
    let (status, text) = world.post(key, "/v1/batches", &asked).await;
    id(&text).ok_or(format!("batch: {status} {text}"))
}

async fn show(world: &World, key: &str, id: &str) -> Value {
    let call = world.http.get(format!("{}/v1/batches/{id}", world.server.url)).bearer_auth(key);
    call.send().await.unwrap().json().await.unwrap()
}
