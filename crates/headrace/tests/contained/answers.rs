//! Upstream answers that are larger than requested.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;

use crate::common::PATIENCE;
use crate::upstream::{ENDLESS, GROW};
use crate::world::{Attack, World};

/// Number of simultaneous calls, each for at most fifty tokens.
const CALLS: usize = 24;
const MAX_TOKENS: u32 = 50;

/// Whole answers of 32 MiB to calls for fifty tokens.
pub(crate) async fn growing_answers(world: Arc<World>) -> Attack {
    let statuses = world.at_once(CALLS, "/v1/chat/completions", asked(GROW, false)).await;
    match statuses.contains(&200) {
        true => Err(format!("{statuses:?}: an answer without an end counts as one")),
        false => Ok(Box::new(())),
    }
}

/// Streams with one event of 32 MiB to calls for fifty tokens.
pub(crate) async fn growing_events(world: Arc<World>) -> Attack {
    world.at_once(CALLS, "/v1/chat/completions", asked(GROW, true)).await;
    Ok(Box::new(()))
}

/// A stream of 48 MiB to a call for fifty tokens. The client reads everything.
pub(crate) async fn endless_stream(world: Arc<World>) -> Attack {
    let call = world.http.post(format!("{}/v1/chat/completions", world.server.url));
    let call = call.bearer_auth(&world.attacker).header("content-type", "application/json");
    let mut answer = call.body(asked(ENDLESS, true)).timeout(PATIENCE * 3).send().await.unwrap();
    let (status, mut read) = (answer.status().as_u16(), 0);
    while let Ok(Some(bytes)) = answer.chunk().await {
        read += bytes.len();
    }
    let seen = &world.upstream.as_ref().unwrap().seen;
    // The upstream notices on its own connection, which may be a moment later.
    let ended = async {
        while seen.cut.load(Ordering::Relaxed) + seen.taken.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.map_err(|_| "the upstream's stream stays open".to_owned())?;
    match seen.cut.load(Ordering::Relaxed) {
        0 => Err(format!("{status}: the client read {read} bytes of a call for {MAX_TOKENS} tokens")),
        _ => Ok(Box::new(())),
    }
}

/// A list of models of 64 MiB.
pub(crate) async fn large_list(world: Arc<World>) -> Attack {
    let seen = &world.upstream.as_ref().unwrap().seen;
    seen.lists_much.store(true, Ordering::Relaxed);
    let command = {
        let world = Arc::clone(&world);
        tokio::task::spawn_blocking(move || world.server.command(&["upstreams", "probe", "up"]))
    };
    command.await.unwrap();
    let listed = async {
        while seen.lists.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(PATIENCE / 1000).await;
        }
    };
    tokio::time::timeout(PATIENCE * 3, listed)
        .await
        .map_err(|_| "the list was never asked for".to_owned())?;
    Ok(Box::new(()))
}

fn asked(model: &str, stream: bool) -> String {
    json!({"model": format!("up/{model}"), "max_tokens": MAX_TOKENS, "stream": stream,
        "messages": [{"role": "user", "content": "hi"}]})
    .to_string()
}
