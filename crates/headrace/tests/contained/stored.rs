//! Short requests that refer to large stored objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::raw;
use crate::upstream::{GOOD, SILENT};
use crate::world::{Attack, World};

/// Number of simultaneous short requests.
const REQUESTS: usize = 60;
/// Characters of one item.
const ITEM: usize = 380_000;
/// Items that one request adds.
const ITEMS: usize = 18;
/// Bytes of a file.
const FILE: usize = 48 << 20;
/// Number of requests that build a large object.
const ROUNDS: usize = 4;

fn items() -> Vec<Value> {
    let text = "a b ".repeat(ITEM / 4);
    vec![json!({"type": "message", "role": "user", "content": text}); ITEMS]
}

/// A conversation of 27 MB.
async fn conversation(world: &World) -> String {
    let made = world.ok(&world.attacker, "/v1/conversations", &json!({})).await;
    let id = made["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/conversations/{id}/items");
    for _ in 0..ROUNDS {
        world.ok(&world.attacker, &path, &json!({"items": items()})).await;
    }
    id
}

/// Sixty short calls continue a long conversation.
pub(crate) async fn long_conversation(world: Arc<World>) -> Attack {
    let id = conversation(&world).await;
    world.begin();
    let body = json!({"model": "headrace-demo", "input": "hi", "conversation": id, "max_output_tokens": 1,
        "truncation": "auto"});
    answered(&world.at_once(REQUESTS, "/v1/responses", body.to_string()).await)
}

/// Sixty requests to shorten a long conversation.
pub(crate) async fn compact_conversation(world: Arc<World>) -> Attack {
    let id = conversation(&world).await;
    world.begin();
    let body = json!({"model": "headrace-demo", "conversation": id});
    answered(&world.at_once(REQUESTS, "/v1/responses/compact", body.to_string()).await)
}

/// Sixty requests for the token count of a long conversation.
pub(crate) async fn count_conversation(world: Arc<World>) -> Attack {
    let id = conversation(&world).await;
    world.begin();
    let body = json!({"model": "headrace-demo", "input": "hi", "conversation": id});
    answered(&world.at_once(REQUESTS, "/v1/responses/input_tokens", body.to_string()).await)
}

/// Responses of the scripted upstream that continue each other, of 27 MB in total. Returns the id of the last one.
async fn chain(world: &World) -> String {
    let mut last: Option<String> = None;
    for _ in 0..ROUNDS {
        let mut body = json!({"model": format!("up/{GOOD}"), "input": items(), "max_output_tokens": 4});
        if let Some(id) = &last {
            body["previous_response_id"] = id.as_str().into();
        }
        let (status, text) = world.post(&world.attacker, "/v1/responses", &body).await;
        if status != 200 {
            // Longer chains are refused.
            break;
        }
        let made: Value = serde_json::from_str(&text).unwrap();
        last = made["id"].as_str().map(str::to_owned);
    }
    last.expect("a response of 7 MB is stored")
}

/// Sixty short calls continue a long chain of responses.
pub(crate) async fn long_chain(world: Arc<World>) -> Attack {
    let id = chain(&world).await;
    world.begin();
    let body = json!({"model": "headrace-demo", "input": "hi", "previous_response_id": id,
        "max_output_tokens": 1, "truncation": "auto"});
    answered(&world.at_once(REQUESTS, "/v1/responses", body.to_string()).await)
}

/// Sixty clients ask for the items of a conversation and read none of them.
pub(crate) async fn unread_items(world: Arc<World>) -> Attack {
    let id = conversation(&world).await;
    unread(world, format!("/v1/conversations/{id}/items?limit=100")).await
}

/// Sixty clients ask for the input items of a response and read none of them.
pub(crate) async fn unread_input(world: Arc<World>) -> Attack {
    let id = chain(&world).await;
    unread(world, format!("/v1/responses/{id}/input_items?limit=100")).await
}

/// Sixty clients ask for a file of 48 MiB and read none of it.
pub(crate) async fn unread_file(world: Arc<World>) -> Attack {
    let id = world.upload(&world.attacker, "user_data", &"a".repeat(FILE)).await?;
    unread(world, format!("/v1/files/{id}/content")).await
}

/// Background responses, each with an input of 380 KB, from a silent upstream.
pub(crate) async fn background(world: Arc<World>) -> Attack {
    let input = &items()[..1];
    let body = json!({"model": format!("up/{SILENT}"), "input": input, "background": true}).to_string();
    answered(&world.at_once(4 * REQUESTS, "/v1/responses", body).await)
}

/// Sends the requests and reads only each answer's head, so that the program holds the rest.
async fn unread(world: Arc<World>, path: String) -> Attack {
    world.begin();
    let mut asked = Vec::new();
    for _ in 0..REQUESTS {
        let Some(mut stream) = raw::connect(world.server.address()).await else { continue };
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", world.attacker);
        raw::push(&mut stream, head.as_bytes()).await;
        asked.push(tokio::spawn(async move { (raw::status(&mut stream).await, stream) }));
    }
    let (mut statuses, mut open) = (Vec::new(), Vec::new());
    for one in asked {
        let (status, stream) = one.await.unwrap();
        statuses.push(status);
        open.push(stream);
    }
    answered(&statuses)?;
    Ok(Box::new(open))
}

/// Checks that each request got an answer or a refusal.
fn answered(statuses: &[u16]) -> Attack {
    match statuses.iter().all(|status| matches!(status, 200 | 400 | 413 | 429 | 503)) {
        true => Ok(Box::new(())),
        false => Err(format!("{statuses:?}")),
    }
}
