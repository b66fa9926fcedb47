//! The limit on parallel calls to one server, its queue, and draining by operators.

use std::time::Duration;

use headrace_engine_api::{EngineHealth, MessageRelay as _, RelayError, RelayEvent};
use headrace_fault_server::FaultServer;
use headrace_upstream::{QueueConfig, Upstream, UpstreamKind};

use crate::calls::{all, chat, failure, send, spec};

#[tokio::test]
async fn no_more_calls_than_allowed_are_under_way_and_the_next_waits_for_a_place() {
    let fault_server = FaultServer::start().await.unwrap();
    let mut spec = spec(&fault_server.url(), UpstreamKind::Vllm);
    spec.queue = QueueConfig { in_flight: Some(1), waiting: 1, wait: Duration::from_secs(60) };
    let upstream = Upstream::new(spec).unwrap();
    let mut first = send(&upstream, chat("stall", true));
    assert!(matches!(first.next().await, Some(RelayEvent::Head(_))));
    let waiting = {
        let upstream = upstream.clone();
        tokio::spawn(async move { all(&upstream, chat("good", false)).await })
    };
    while upstream.figures().waiting == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let load = upstream.model("m", None).load();
    assert_eq!((load.running, load.waiting), (1, 1));
    let error = failure(&upstream, chat("good", false)).await;
    let RelayError::Unavailable { why, retry_after } = &error else { panic!("{error}") };
    assert!(why.contains("all 1 places") && retry_after.is_some(), "{error:?}");
    assert_eq!(fault_server.seen().requests.len(), 1, "nobody was sent beyond the bound");
    drop(first);
    let events = waiting.await.unwrap();
    assert!(matches!(events.last(), Some(RelayEvent::Whole(_))), "{events:?}");
    let figures = upstream.figures();
    assert_eq!((figures.in_flight, figures.waiting, figures.calls, figures.failures[7]), (0, 0, 3, 1));
}

/// A place is held until the end of an answer, however it ends. A call that stops waiting leaves the queue.
#[tokio::test]
async fn places_come_back_whatever_happens() {
    let fault_server = FaultServer::start().await.unwrap();
    let mut spec = spec(&fault_server.url(), UpstreamKind::Vllm);
    spec.queue = QueueConfig { in_flight: Some(2), waiting: 4, wait: Duration::from_millis(500) };
    let upstream = Upstream::new(spec).unwrap();
    for model in ["good", "cut", "server_error", "close_before_head", "ten_mb_line", "good"] {
        all(&upstream, chat(model, true)).await;
    }
    let held: Vec<_> = (0..2).map(|_| send(&upstream, chat("stall", true))).collect();
    let mut begun = Vec::new();
    for mut answer in held {
        answer.next().await.unwrap();
        begun.push(answer);
    }
    for _ in 0..4 {
        let mut waiting = send(&upstream, chat("good", true));
        assert!(tokio::time::timeout(Duration::from_millis(5), waiting.next()).await.is_err());
    }
    assert!(failure(&upstream, chat("good", true)).await.to_string().contains("none became free in time"));
    drop(begun);
    assert!(all(&upstream, chat("good", true)).await.len() > 3);
    assert_eq!((upstream.figures().in_flight, upstream.figures().waiting), (0, 0));
}

#[tokio::test]
async fn a_drained_server_ends_what_it_has_and_takes_nothing_new() {
    let fault_server = FaultServer::start().await.unwrap();
    let upstream = Upstream::new(spec(&fault_server.url(), UpstreamKind::Vllm)).unwrap();
    let model = upstream.model("m", Some(4096));
    let mut under_way = send(&upstream, chat("slow", true));
    assert!(matches!(under_way.next().await, Some(RelayEvent::Head(_))));
    upstream.drain();
    assert_eq!((model.health(), upstream.health()), (EngineHealth::Draining, EngineHealth::Draining));
    let error = failure(&upstream, chat("good", true)).await;
    assert!(error.to_string().contains("drained by an operator"), "{error}");
    while let Some(event) = under_way.next().await {
        assert!(matches!(event, RelayEvent::Event(_)), "{event:?}");
    }
    upstream.resume();
    assert_eq!(model.health(), EngineHealth::Up);
    assert!(all(&upstream, chat("good", true)).await.len() > 3);
}

#[tokio::test]
async fn a_model_says_what_it_is() {
    let upstream = Upstream::new(spec("http://127.0.0.1:1", UpstreamKind::Anthropic)).unwrap();
    let model = upstream.model("claude", Some(200_000));
    let facts = model.facts();
    assert_eq!(
        (&*facts.upstream, &*facts.model, facts.context_window),
        ("fault-server", "claude", Some(200_000))
    );
    assert_eq!(facts.max_tokens_field, "max_tokens");
    assert!(format!("{model:?}").contains("claude"));
}
