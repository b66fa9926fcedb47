//! Compares the memory that calls really take with their estimates. This is a program of its own, because every
//! allocation in it is counted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};

use headrace_call_api::AnswerFrames;
use headrace_call_state::{Answer, AnswerBody};
use headrace_domain::{Dialect, Endpoint, NanoDollars};
use serde_json::{Value, json};

mod bodies;
mod stored;
mod texts;

use scripted_server::{answer_of, chunk, data_event, delta, finish, head, server, usage, whole};
use world::{Script, Setup, World, ask};

#[allow(dead_code, reason = "the world has more in it than is measured")]
#[path = "../path/world.rs"]
mod world;

#[allow(dead_code, reason = "the servers can do more than is measured")]
#[path = "../path/scripted_server.rs"]
mod scripted_server;

/// Counts as the system's allocator rounds: multiples of 16 bytes, 16 more for itself.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(16) + 16
}

// SAFETY: every call goes unchanged to the system's allocator. The counters affect nothing.
#[allow(unsafe_code, reason = "the only way to see allocations")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(rounded(layout.size()), Ordering::Relaxed) + rounded(layout.size());
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(rounded(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Every allocation of the program counts, so one test runs at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends `body` and reads the answer. Returns its status, the most bytes allocated meanwhile and the most memory
/// reserved for it.
async fn measured(world: &World, endpoint: Endpoint, body: &Value) -> (u16, usize, u64) {
    let arrival = world.arrival(endpoint, body.to_string());
    // The reader of a body accounts for its bytes. They are kept alive here, so that nothing else is allocated in their
    // place.
    let _body = arrival.body.clone();
    of_answer(world, ask(&world.gateway, arrival)).await
}

/// The status of an answer that is read, the most bytes allocated meanwhile, and the most memory reserved for it.
async fn of_answer(world: &World, answer: impl Future<Output = Answer>) -> (u16, usize, u64) {
    world.gateway.take_memory_peak();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let Answer { status, body, .. } = answer.await;
    match body {
        AnswerBody::Stream(mut delivery) => while poll_fn(|cx| delivery.poll_frame(cx)).await.is_some() {},
        // Other answers are dropped at once.
        other => drop(other),
    }
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    world.balance_when_idle().await;
    (status, peak, world.gateway.take_memory_peak())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_takes_more_than_its_estimate() {
    let _alone = ALONE.lock().await;
    let bounds = headrace_call_state::MemoryBounds { call: 1 << 30, key: 2 << 30, all: 4 << 30 };
    let world = World::new(Setup { memory: bounds, ..Setup::default() });
    world.script(Script::AnswerFully);
    let raw = |more: Value| {
        let mut body = json!({"model": "demo", "prompt": vec![70; 400], "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (Endpoint::Completions, body)
    };
    let chat = |more: Value| {
        let mut body =
            json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (Endpoint::ChatCompletions, body)
    };
    let long = "<|".repeat(1 << 20);
    let tool = json!([{"type": "function", "function": {"name": "f", "description": long}}]);
    let stops: Vec<String> = (0..16).map(|n| format!("{n:01024}")).collect();
    let rows = [
        chat(json!({})),
        chat(json!({"n": 128, "max_tokens": 10})),
        chat(json!({"n": 128, "stop": stops})),
        chat(json!({"n": 16, "max_tokens": 200, "logprobs": true, "top_logprobs": 20})),
        chat(json!({"prompt_logprobs": 20, "n": 4, "return_token_ids": true})),
        chat(json!({"tools": tool})),
        raw(json!({"prompt_logprobs": 20})),
        raw(json!({"prompt_logprobs": 20, "n": 32})),
        raw(json!({"prompt_logprobs": 20, "n": 32, "stream": true})),
        raw(json!({"echo": true, "logprobs": 20, "n": 32})),
        raw(json!({"echo": true, "n": 128, "return_token_ids": true})),
        raw(json!({"max_tokens": 100, "logprobs": 0, "n": 64})),
        raw(json!({"prompt": vec![vec![70; 400]; 128]})),
    ];
    hold_to_estimates(&world, &rows).await;
}

/// A body that is sent on is scanned, not parsed and rendered.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_that_goes_on_takes_more_than_its_estimate() {
    let _alone = ALONE.lock().await;
    let streamed = || {
        let words = (0..64).map(|n| chunk(&delta(&format!(" word {n}"))));
        let ends = [chunk(&finish("stop")), chunk(&usage(70, 0, 64)), data_event("", "[DONE]")];
        std::iter::once(head()).chain(words).chain(ends).collect::<scripted_server::Script>()
    };
    let scripts = |make: &dyn Fn() -> scripted_server::Script| (0..200).map(|_| make()).collect();
    let chat = |characters: usize, stream: bool| {
        let messages = json!([{"role": "user", "content": "word ".repeat(characters / 5)}]);
        let body = json!({"model": "far", "max_tokens": 80, "messages": messages, "stream": stream});
        (Endpoint::ChatCompletions, body)
    };
    let shapes =
        [(false, &(|| whole(&answer_of("Hi"))) as &dyn Fn() -> scripted_server::Script), (true, &streamed)];
    for (stream, make) in shapes {
        let world = scripted_server::world(&[server("a", Dialect::OpenAi, scripts(make))]);
        let rows = [chat(10, stream), chat(100_000, stream), chat(400_000, stream)];
        for ((_, body), taken) in rows.iter().zip(hold_to_estimates(&world, &rows).await) {
            let bytes = body.to_string().len() as u64;
            assert!(taken < 4 * bytes + (128 << 10), "{taken} bytes to look through {bytes}");
        }
    }
    // A body that is translated into another dialect is parsed for that, with the memory of parsing, off the event
    // loop.
    let world = scripted_server::world(&[server("a", Dialect::Anthropic, Vec::new())]);
    for row in [chat(100_000, false), chat(400_000, false)] {
        let [taken] = hold_to_estimates(&world, std::slice::from_ref(&row)).await[..] else { unreachable!() };
        assert!(taken > 8 * 100_000, "{taken} bytes to read and translate");
    }
}

/// More money than any call here may take.
fn rich() -> NanoDollars {
    NanoDollars::from_dollars("100000").unwrap()
}

/// Measurements per row: a process makes some things once, and a task that ends late may still hold memory of the
/// previous call.
const TRIES: usize = 5;

/// Checks every row against its estimate. Returns the memory reserved for each.
async fn hold_to_estimates(world: &World, rows: &[(Endpoint, Value)]) -> Vec<u64> {
    let (mut too_low, mut most) = (Vec::new(), Vec::new());
    measured(world, rows[0].0, &rows[0].1).await;
    for (endpoint, body) in rows {
        let (mut status, mut peak, mut taken) = (0, 0, 0);
        let mut tries = 0;
        while tries == 0 || (peak as u64 > taken && tries < TRIES) {
            (status, peak, taken) = measured(world, *endpoint, body).await;
            tries += 1;
        }
        let mut shown = body.to_string();
        shown.truncate(shown.floor_char_boundary(200));
        println!("{status} {peak:>12} of {taken:>12} bytes: {shown}");
        if peak as u64 > taken {
            too_low.push(shown);
        }
        most.push(taken);
    }
    assert!(too_low.is_empty(), "more was allocated than was taken for {too_low:#?}");
    assert_eq!(world.gateway.memory_taken(), 0);
    most
}
