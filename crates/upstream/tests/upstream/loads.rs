//! Load reports of a server: polled, in a header, separate per model, and with their age.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use headrace_engine_api::{LoadReport, MessageRelay as _, RelayEvent, ReportAge};
use headrace_fault_server::{FaultServer, Request};
use headrace_upstream::{RelayModel, Upstream, UpstreamKind};

use crate::calls::{all, chat, spec};

const SOON: Duration = Duration::from_secs(60);

fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn page(model: &str, running: u32, waiting: u32) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"0\",model_name=\"{model}\"}} {running}.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"{model}\"}} {waiting}.0\n"
    )
}

fn upstream(fault_server: &FaultServer, kind: UpstreamKind, every: Duration) -> Upstream {
    let mut spec = spec(&fault_server.url(), kind);
    spec.load_every = every;
    Upstream::new(spec).unwrap()
}

async fn known(model: &RelayModel) -> LoadReport {
    let wait = async {
        while model.load().reported == ReportAge::Never {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap();
    model.load()
}

async fn fault(upstream: &Upstream) -> String {
    let wait = async {
        loop {
            if let Some(fault) = upstream.load_fault() {
                return fault;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap()
}

fn asked(fault_server: &FaultServer, path: &str) -> usize {
    fault_server.seen().requests.iter().filter(|request| request.path == path).count()
}

#[tokio::test]
async fn each_model_has_its_own_load_and_its_age() {
    let fault_server = FaultServer::start_with(|request: &Request| {
        (request.path == "/metrics").then(|| answer("200 OK", &(page("a", 3, 1) + &page("b", 50, 9))))
    })
    .await
    .unwrap();
    let upstream = upstream(&fault_server, UpstreamKind::Vllm, Duration::from_secs(3600));
    let (a, b) = (upstream.model("a", None), upstream.model("b", None));
    assert_eq!(a.load().reported, ReportAge::Never);
    let following = tokio::spawn(upstream.follow_load());
    let load = known(&a).await;
    assert_eq!((load.running, load.waiting), (3, 1));
    assert_eq!((b.load().running, b.load().waiting), (50, 9));
    let age = |model: &RelayModel| match model.load().reported {
        ReportAge::Ago { nanos } => nanos,
        other => panic!("{other:?}"),
    };
    let before = age(&a);
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(age(&a) >= before + 30_000_000, "{before} {}", age(&a));
    // The key is sent, because some operators protect this endpoint as well.
    assert!(fault_server.seen().requests[0].header("authorization").is_some());
    following.abort();
}

#[tokio::test]
async fn it_is_asked_again_and_again_and_by_nobody_when_it_is_gone() {
    let count = Arc::new(AtomicUsize::new(0));
    let fault_server = {
        let count = Arc::clone(&count);
        FaultServer::start_with(move |_| {
            let at = u32::try_from(count.fetch_add(1, Ordering::Relaxed)).unwrap();
            Some(answer("200 OK", &page("m", at, 0)))
        })
        .await
        .unwrap()
    };
    let upstream = upstream(&fault_server, UpstreamKind::Vllm, Duration::from_millis(10));
    let model = upstream.model("m", None);
    let following = tokio::spawn(upstream.follow_load());
    let wait = async {
        while model.load().running < 5 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap();
    drop((upstream, model));
    tokio::time::timeout(SOON, following).await.unwrap().unwrap();
}

#[tokio::test]
async fn where_one_place_is_not_there_the_next_is_asked() {
    let loads = r#"{"loads":[{"num_running_reqs":4,"num_waiting_reqs":2,"num_waiting_uncached_tokens":77}]}"#;
    for (kind, place, body, expected) in [
        (UpstreamKind::Sglang, "/v1/loads", loads.to_owned(), (4, 2, 77)),
        (UpstreamKind::Sglang, "/get_load", r#"[{"num_reqs":6,"num_waiting_reqs":2}]"#.to_owned(), (4, 2, 0)),
        (
            UpstreamKind::Sglang,
            "/metrics",
            "sglang:num_running_reqs 4\nsglang:num_queue_reqs 2\n".to_owned(),
            (4, 2, 0),
        ),
        (
            UpstreamKind::LlamaCpp,
            "/metrics",
            "llamacpp:requests_processing 4\nllamacpp:requests_deferred 2\n".to_owned(),
            (4, 2, 0),
        ),
        (
            UpstreamKind::LlamaCpp,
            "/slots",
            r#"[{"is_processing":true},{"is_processing":false}]"#.to_owned(),
            (1, 0, 0),
        ),
    ] {
        let fault_server = FaultServer::start_with(move |request| {
            let there = request.path == place;
            Some(if there { answer("200 OK", &body) } else { answer("404 Not Found", "{}") })
        })
        .await
        .unwrap();
        let upstream = upstream(&fault_server, kind, Duration::from_millis(20));
        let model = upstream.model("m", None);
        let following = tokio::spawn(upstream.follow_load());
        let load = known(&model).await;
        assert_eq!((load.running, load.waiting, load.waiting_tokens), expected, "{kind} {place}");
        while asked(&fault_server, place) < 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let first = fault_server.seen().requests[0].path.clone();
        assert!(first == place || asked(&fault_server, &first) == 1, "{place}: {first} was asked once");
        following.abort();
    }
}

#[tokio::test]
async fn what_is_no_load_leaves_it_unknown_and_says_why() {
    let huge = page("m", 1, 1).repeat(80_000);
    for (body, status, told) in [
        (page("m", 1, 1).replace("1.0", "NaN"), "200 OK", "is no number"),
        (page("m", 1, 1) + &page("m", 1, 1), "200 OK", "twice"),
        (String::new(), "200 OK", "statistics off"),
        (huge, "200 OK", "4194304 bytes or more"),
        ("{\"detail\":\"Not Found\"}".to_owned(), "404 Not Found", "404: Not Found"),
        ("{}".to_owned(), "500 Broken", "500"),
    ] {
        let fault_server = FaultServer::start_with(move |_| Some(answer(status, &body))).await.unwrap();
        let upstream = upstream(&fault_server, UpstreamKind::Vllm, Duration::from_secs(3600));
        let model = upstream.model("m", None);
        let following = tokio::spawn(upstream.follow_load());
        let fault = fault(&upstream).await;
        assert!(fault.contains(told) && fault.contains("`/metrics`"), "{fault} should say {told}");
        assert_eq!(model.load().reported, ReportAge::Never);
        following.abort();
    }
}

/// A poll without an answer is abandoned after its timeout, and there is never more than one at a time.
#[tokio::test]
async fn a_server_that_hangs_is_asked_once_at_a_time() {
    let fault_server = FaultServer::start().await.unwrap();
    let mut spec = spec(&format!("{}/no_head", fault_server.url()), UpstreamKind::Vllm);
    spec.load_every = Duration::from_millis(5);
    spec.timeouts.head = Duration::from_millis(150);
    let upstream = Upstream::new(spec).unwrap();
    let following = tokio::spawn(upstream.follow_load());
    let fault = fault(&upstream).await;
    assert!(fault.contains("did not come within 0.15 s"), "{fault}");
    // In this time one that did not wait would have asked thirty times. A second question may follow the fault.
    assert!(fault_server.seen().requests.len() <= 2, "{}", fault_server.seen().requests.len());
    following.abort();
}

#[tokio::test]
async fn nobody_is_asked_who_tells_nothing_or_is_not_to_be() {
    let fault_server = FaultServer::start().await.unwrap();
    for (kind, every) in [
        (UpstreamKind::OpenAi, 1),
        (UpstreamKind::Anthropic, 1),
        (UpstreamKind::Headrace, 1),
        (UpstreamKind::Vllm, 0),
        (UpstreamKind::Sglang, 0),
    ] {
        let following = upstream(&fault_server, kind, Duration::from_millis(every)).follow_load();
        tokio::time::timeout(SOON, following).await.unwrap();
    }
    assert_eq!(fault_server.seen().requests.len(), 0);
}

#[tokio::test]
async fn the_header_of_an_answer_counts_where_nothing_whole_was_told() {
    for (kind, header, expected) in [
        (
            UpstreamKind::Vllm,
            r#"JSON {"named_metrics":{"num_requests_waiting":7.0,"kv_cache_usage_perc":0.5}}"#,
            Some((1, 7)),
        ),
        (
            UpstreamKind::OpenAi,
            "TEXT named_metrics.num_requests_waiting=3, num_requests_running=9",
            Some((9, 3)),
        ),
        (UpstreamKind::OpenAi, "TEXT num_requests_waiting=NaN", None),
        (UpstreamKind::OpenAi, "TEXT kv_cache_usage_perc=0.5", None),
    ] {
        let fault_server = FaultServer::start_with(move |_| {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2";
            Some(format!("{head}\r\nendpoint-load-metrics: {header}\r\n\r\n{{}}").into_bytes())
        })
        .await
        .unwrap();
        let upstream = upstream(&fault_server, kind, Duration::ZERO);
        let model = upstream.model("any", None);
        let events = all(&upstream, chat("any", false)).await;
        assert!(matches!(events.last(), Some(RelayEvent::Whole(_))), "{events:?}");
        let load = model.load();
        let told = matches!(load.reported, ReportAge::Ago { .. }).then_some((load.running, load.waiting));
        assert_eq!(told, expected, "{header}");
        // The report is requested from a server that sends it only on request and is not polled.
        let wanted =
            fault_server.seen().requests[0].header("endpoint-load-metrics-format").map(str::to_owned);
        assert_eq!(wanted.as_deref(), (kind == UpstreamKind::Vllm).then_some("JSON"));
    }
}

/// A complete report takes precedence over a partial one that comes with an answer.
#[tokio::test]
async fn half_a_report_does_not_replace_a_whole_one() {
    let fault_server = FaultServer::start_with(|request| {
        if request.path == "/metrics" {
            return Some(answer("200 OK", &page("any", 20, 5)));
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2";
        Some(format!("{head}\r\nendpoint-load-metrics: TEXT num_requests_waiting=1\r\n\r\n{{}}").into_bytes())
    })
    .await
    .unwrap();
    let upstream = upstream(&fault_server, UpstreamKind::Vllm, Duration::from_secs(3600));
    let model = upstream.model("any", None);
    let following = tokio::spawn(upstream.follow_load());
    known(&model).await;
    all(&upstream, chat("any", false)).await;
    assert_eq!((model.load().running, model.load().waiting), (20, 5));
    following.abort();
}
