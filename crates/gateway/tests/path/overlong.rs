//! Upstream answers that exceed what was requested. The caller's memory is charged before bytes are kept, the answer is
//! cut, its end has a name, and the bill stays within the hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headrace_call_state::MemoryBounds;
use headrace_domain::{Dialect, Endpoint};
use headrace_engine_api::{AnswerBounds, AnswerMemoryFull, RelayError, RelayEvent};
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, ScriptedServer, answer_of, chunk, data_event, delta, failed, finish, head, offer, server, usage,
    whole, world,
};
use crate::world::{Setup, World, read, read_to_the_end};

const MIB: u64 = 1 << 20;

/// A world whose keys may take `key_mib` MiB each.
fn small_world(server: &Arc<ScriptedServer>, key_mib: u64) -> World {
    let memory = MemoryBounds { call: 64 * MIB, key: key_mib * MIB, all: 64 * MIB };
    let world = World::new(Setup { memory, ..Setup::default() });
    offer(&world, &[("far", &[Arc::clone(server)])], std::collections::BTreeMap::new());
    world
}

async fn until(met: impl Fn() -> bool) {
    while !met() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_that_grows_is_charged_to_its_key_before_it_is_kept_and_given_back() {
    for (end, status, code) in [
        (whole(&answer_of("Hi you")), 200, "Hi you"),
        (failed(RelayError::NoMemory), 502, "upstream_answer_too_large"),
        (failed(RelayError::TooLarge { what: "answer", limit: 7 }), 502, "upstream_answer_too_large"),
    ] {
        let mut script = vec![head(), None];
        script.extend(end.into_iter().filter(|event| !matches!(event, Some(RelayEvent::Head(_)))));
        let server = server("gpu", Dialect::OpenAi, vec![script]);
        server.gate.shut();
        let world = small_world(&server, 8);
        let test = async {
            until(|| !server.memories.lock().unwrap().is_empty()).await;
            let memory = server.memories.lock().unwrap().pop().unwrap().upgrade().unwrap();
            let before = world.gateway.memory_taken();
            memory.reserve(AnswerBounds::FREE_BYTES as u64).unwrap();
            assert_eq!(world.gateway.memory_taken(), before, "a short answer is in the call's estimate");
            memory.reserve(2 * MIB).unwrap();
            let grown = world.gateway.memory_taken();
            assert!(grown >= before + 2 * MIB - AnswerBounds::FREE_BYTES as u64, "{before} {grown}");
            memory.reserve(MIB).unwrap();
            assert_eq!(world.gateway.memory_taken(), grown, "what is paid for is not paid for twice");
            assert_eq!(memory.reserve(9 * MIB), Err(AnswerMemoryFull), "the key may have eight");
            assert_eq!(world.gateway.memory_taken(), grown, "a refusal takes nothing");
            drop(memory);
            server.gate.open();
        };
        let nothing = json!({});
        let (answer, ()) = tokio::join!(crate::scripted_server::chat(&world, false, &nothing), test);
        assert_eq!(answer.status, status, "{code}");
        let text = read(answer).await;
        assert!(text.contains(code), "{text}");
        world.balance_when_idle().await;
        until(|| world.gateway.memory_taken() == 0).await;
    }
}

/// Two concurrent answers are both charged, and calls of another key continue.
#[tokio::test]
async fn answers_of_one_key_share_its_memory() {
    let script = || vec![head(), None, Some(RelayEvent::Failed(RelayError::NoMemory))];
    let server = server("gpu", Dialect::OpenAi, vec![script(), script()]);
    server.gate.shut();
    let world = small_world(&server, 48);
    let test = async {
        until(|| server.memories.lock().unwrap().len() == 2).await;
        let memories = std::mem::take(&mut *server.memories.lock().unwrap());
        let memory = |at: usize| memories[at].upgrade().unwrap();
        memory(0).reserve(5 * MIB).unwrap();
        assert_eq!(memory(1).reserve(12 * MIB), Err(AnswerMemoryFull));
        memory(1).reserve(MIB).unwrap();
        server.gate.open();
    };
    let nothing = json!({});
    let ask = || crate::scripted_server::chat(&world, false, &nothing);
    let (first, second, ()) = tokio::join!(ask(), ask(), test);
    let texts = [read(first).await, read(second).await];
    assert!(texts.iter().any(|text| text.contains("key_memory_full")), "{texts:?}");
    world.balance_when_idle().await;
    until(|| world.gateway.memory_taken() == 0).await;
}

#[tokio::test]
async fn an_answer_far_beyond_what_was_asked_for_is_cut_by_name() {
    let endless = || -> Script {
        let deltas = std::iter::repeat_with(|| chunk(&delta(&"a".repeat(1000)))).take(1000);
        std::iter::once(head()).chain(deltas).collect()
    };
    for (endpoint, dialect) in [
        (Endpoint::ChatCompletions, Dialect::OpenAi),
        // Its answer is parsed and written again.
        (Endpoint::Messages, Dialect::OpenAi),
    ] {
        let server = server("gpu", dialect, vec![endless()]);
        let world = world(&[Arc::clone(&server)]);
        let body = json!({"model": "far", "stream": true, "max_tokens": 10,
            "messages": [{"role": "user", "content": "hello"}]});
        let (text, _) = read_to_the_end(world.call(endpoint, body).await).await;
        assert!(text.contains("upstream_answer_too_large"), "{}", &text[text.len().saturating_sub(400)..]);
        assert!(!text.contains("[DONE]") && !text.contains("message_stop"));
        let said = text.matches('a').count();
        assert!(said < 4 * 10 * 32 + (20 << 10), "{said} bytes for 10 tokens");
        assert_eq!(server.dropped_answers.load(Ordering::SeqCst), 1, "the upstream's answer is broken off");
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert!(record.cost <= record.held, "{:?} of {:?}", record.cost, record.held);
        until(|| world.gateway.memory_taken() == 0).await;
    }
    let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of(&"a".repeat(1 << 20)))]);
    let world = world(&[server]);
    let answer = crate::scripted_server::chat(&world, false, &json!({})).await;
    assert_eq!(answer.status, 502);
    assert!(read(answer).await.contains("upstream_answer_too_large"));
    assert_eq!(crate::scripted_server::spent(world.balance_when_idle().await), 0, "nothing was delivered");
}

/// Seeded random numbers (splitmix64).
struct Dice(u64);

impl Dice {
    /// From 0 to below `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

/// A random script: text in pieces of any size, pings, false usage, and no end, one or two.
fn by_chance(dice: &mut Dice, stream: bool) -> Script {
    let text = |dice: &mut Dice| {
        let bytes = if dice.roll(10) == 0 { dice.roll(200_000) } else { dice.roll(200) };
        "é".repeat(bytes / 2)
    };
    let lie = |dice: &mut Dice| {
        let any = [0, 1, 7, 1 << 20, 1 << 53];
        let mut one = || any[dice.roll(any.len())];
        usage(one(), one(), one())
    };
    if !stream {
        let content = text(dice);
        let mut body = answer_of(&content);
        body["usage"] = lie(dice)["usage"].clone();
        return whole(&body);
    }
    let mut script = vec![head()];
    for _ in 0..dice.roll(200) {
        script.push(match dice.roll(10) {
            0 => data_event("", ""),
            1 => chunk(&lie(dice)),
            2 => chunk(&json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c",
                "function": {"name": "f", "arguments": text(dice)}}]}}]})),
            _ => chunk(&delta(&text(dice))),
        });
    }
    match dice.roll(4) {
        0 => {}
        1 => script.push(Some(RelayEvent::Failed(RelayError::TooLarge { what: "answer", limit: 1 }))),
        2 => script.extend([chunk(&finish("stop")), data_event("", "[DONE]")]),
        _ => script.extend([
            chunk(&finish("stop")),
            chunk(&lie(dice)),
            data_event("", "[DONE]"),
            data_event("", "[DONE]"),
        ]),
    }
    script
}

#[tokio::test]
async fn whatever_an_upstream_sends_there_is_one_end_and_the_bill_is_within_the_hold() {
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let (stream, translated) = (dice.roll(10) < 7, dice.roll(2) == 0);
        // An upstream may send a whole answer although a stream was requested.
        let streams = stream && dice.roll(5) > 0;
        let server = server("gpu", Dialect::OpenAi, vec![by_chance(&mut dice, streams)]);
        let world = world(&[server]);
        let endpoint = if translated { Endpoint::Messages } else { Endpoint::ChatCompletions };
        let body = json!({"model": "far", "stream": stream, "max_tokens": 1 + dice.roll(199),
            "messages": [{"role": "user", "content": "hello"}]});
        let answer = world.call(endpoint, body).await;
        let status = answer.status;
        let (text, whole) = read_to_the_end(answer).await;
        if stream && status == 200 {
            let ends =
                ["data: [DONE]", "data:  [DONE]", "event: message_stop", "event: error", "\"error\":{"];
            let ends: usize = match whole {
                Ok(()) => ends.iter().map(|end| text.matches(end).count()).sum(),
                Err(_) => 1,
            };
            let tail = &text[text.floor_char_boundary(text.len().saturating_sub(300))..];
            assert!(ends >= 1 && (ends == 1 || translated), "seed {seed}: {ends} ends: {tail}");
        } else {
            let read: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read.get("error").is_some(), status != 200, "seed {seed}: {status}");
        }
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert!(record.cost <= record.held, "seed {seed}: {:?} of {:?}", record.cost, record.held);
        until(|| world.gateway.memory_taken() == 0).await;
    }
}
