//! Every fault of the fault server, in both dialects, streamed and whole: the outcome of each, and that the next call
//! works.

use std::time::Duration;

use headrace_domain::Endpoint;
use headrace_engine_api::{RelayError, RelayEvent, RelayWait};
use headrace_fault_server::{Fault, FaultServer};
use headrace_upstream::{Upstream, UpstreamKind};

use crate::calls::{KEY, all, ask, spec};

/// The expected outcome of a fault.
enum Expected {
    /// An answer that is valid for the transport.
    Through,
    /// A whole answer, although a stream was requested.
    Whole,
    /// An error whose text begins like this, after this number of events.
    Failed(usize, &'static str),
    /// An error that passes this check, after this number of events. For errors with a long text.
    Is(usize, fn(&RelayError) -> bool),
}

use Expected::{Failed, Is, Through, Whole};

fn streamed(fault: Fault) -> Expected {
    match fault {
        Fault::Stall => Failed(2, "the next bytes of its answer did not come within 0.4 s"),
        Fault::Cut | Fault::Short => {
            Failed(2, "its answer broke off: the connection ended before the answer did")
        }
        Fault::Reset => Failed(2, "its answer broke off: the connection was reset"),
        Fault::CutClean => Failed(2, "its answer broke off: it ended within an event"),
        Fault::BadChunk => Failed(2, "its answer broke off: "),
        Fault::HtmlInDisguise => Failed(0, "its answer is not of its dialect: a page of HTML"),
        Fault::EndlessComments => Failed(0, "the next event of its answer did not come within 1.5 s"),
        Fault::TenMbLine | Fault::EndlessBody => Failed(2, "its answer's event has more than 1048576 bytes"),
        Fault::NotUtf8 => Failed(2, "its answer is not of its dialect: a line that is not UTF-8"),
        Fault::AlwaysWhole => Whole,
        _ => common(fault),
    }
}

fn whole(fault: Fault) -> Expected {
    match fault {
        Fault::Stall | Fault::EndlessComments => Failed(0, "the end of its answer did not come within 1.5 s"),
        Fault::Cut | Fault::Short => {
            Failed(0, "its answer broke off: the connection ended before the answer did")
        }
        Fault::Reset => Failed(0, "its answer broke off: the connection was reset"),
        Fault::BadChunk => Failed(0, "its answer broke off: "),
        Fault::HtmlInDisguise => Failed(0, "its answer is not of its dialect: a page of HTML"),
        Fault::EndlessBody => Failed(0, "its answer's body has more than 1048576 bytes"),
        Fault::AlwaysStream => Failed(0, "its answer is not of its dialect: a stream of events"),
        _ => common(fault),
    }
}

fn common(fault: Fault) -> Expected {
    match fault {
        Fault::Html => Is(0, |error| {
            matches!(error, RelayError::NotTheDialect { what, beginning }
                if what == "a page of HTML" && beginning.contains("Welcome to nginx!"))
        }),
        Fault::Empty => Failed(0, "its answer is not of its dialect: an empty body"),
        Fault::NoContent => Failed(0, "its answer is not of its dialect: the status 204"),
        Fault::Redirect => Is(0, |error| {
            *error == RelayError::Redirect { status: 307, to: "http://127.0.0.1:1/v1/elsewhere".into() }
        }),
        Fault::EndlessHeaders | Fault::HugeHeaders => {
            Failed(0, "its answer's headers has more than 65536 bytes")
        }
        Fault::DrippingHeaders | Fault::EndlessInterim | Fault::NoHead => {
            Is(0, |error| matches!(error, RelayError::Timeout { what: RelayWait::Head, .. }))
        }
        Fault::CloseBeforeHead => {
            Failed(0, "its answer broke off: the connection was closed before the answer began")
        }
        Fault::ResetBeforeHead => Is(0, |error| matches!(error, RelayError::Cut { .. })),
        Fault::RateLimited => Is(0, |error| status(error) == Some((429, Some(7000)))),
        Fault::LimitHeaders => Is(0, |error| status(error) == Some((429, Some(90_000)))),
        Fault::Unauthorized => Is(0, |error| status(error) == Some((401, None))),
        Fault::NotFound => Is(0, |error| status(error) == Some((404, None))),
        Fault::TooLong => Is(0, |error| status(error) == Some((400, None))),
        Fault::ServerError | Fault::Flaky => Is(0, |error| status(error) == Some((500, None))),
        Fault::EndlessError => Is(
            0,
            |error| matches!(error, RelayError::Status { status: 503, body, .. } if body.len() == 64 << 10),
        ),
        Fault::Gzip => Failed(0, "its answer is not of its dialect: it is compressed (`gzip`)"),
        Fault::NotHttp => Failed(0, "its answer broke off: what came is no HTTP"),
        // Only code that knows the dialect can detect these faults.
        _ => Through,
    }
}

fn status(error: &RelayError) -> Option<(u16, Option<u128>)> {
    match error {
        RelayError::Status { status, retry_after, .. } => {
            Some((*status, retry_after.map(|wait| wait.as_millis())))
        }
        _ => None,
    }
}

async fn check(upstream: &Upstream, endpoint: Endpoint, fault: Fault, stream: bool) {
    let shown = format!("{} at {} stream={stream}", fault.name(), endpoint.name());
    let events =
        tokio::time::timeout(Duration::from_secs(60), all(upstream, ask(endpoint, fault.name(), stream)));
    let events = events.await.unwrap_or_else(|_| panic!("{shown}: it takes too long"));
    let text = format!("{events:?}");
    assert!(!text.contains(KEY), "{shown}: {text}");
    let count = events.iter().filter(|event| matches!(event, RelayEvent::Event(_))).count();
    let failed = events.last().and_then(|event| match event {
        RelayEvent::Failed(error) => Some(error),
        _ => None,
    });
    let has_whole = matches!(events.last(), Some(RelayEvent::Whole(_)));
    match (if stream { streamed(fault) } else { whole(fault) }, failed) {
        (Through, None) => {
            assert!(
                matches!(events.first(), Some(RelayEvent::Head(head)) if head.request_id.as_deref() == Some("fault-server-1")
                || !text.contains("fault-server-1")),
                "{shown}: {text}"
            );
            assert!(if stream { count > 0 } else { has_whole }, "{shown}: {text}");
        }
        (Whole, None) => assert!(has_whole && count == 0, "{shown}: {text}"),
        (Failed(after, words), Some(error)) => {
            assert!(
                error.to_string().starts_with(words) && count == after,
                "{shown}: {error}, {count} events"
            );
        }
        (Is(after, check), Some(error)) => assert!(check(error) && count == after, "{shown}: {error:?}"),
        _ => panic!("{shown}: {text}"),
    }
}

/// Returns whether a limit of time ends the answer.
fn ends_by_time(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Stall
            | Fault::EndlessComments
            | Fault::DrippingHeaders
            | Fault::EndlessInterim
            | Fault::NoHead
    )
}

/// Checks every fault against the table above. Each has its own client and runs twice.
async fn every_fault(kind: UpstreamKind, endpoint: Endpoint) {
    let fault_server = FaultServer::start().await.unwrap();
    let mut tables = tokio::task::JoinSet::new();
    for fault in Fault::ALL.iter().copied() {
        let mut spec = spec(&fault_server.url(), kind);
        if !ends_by_time(fault) {
            // Limits that no machine reaches, so that only the fault itself can end its answers.
            let long = Duration::from_secs(50);
            (spec.timeouts.head, spec.timeouts.idle, spec.timeouts.whole) = (long, long, long);
        }
        let upstream = Upstream::new(spec).unwrap();
        tables.spawn(async move {
            for stream in [true, false] {
                check(&upstream, endpoint, fault, stream).await;
                check(&upstream, endpoint, Fault::Good, stream).await;
                if fault == Fault::Flaky {
                    // The second call of the flaky fault succeeds.
                    let events = all(&upstream, ask(endpoint, fault.name(), stream)).await;
                    assert!(
                        events.len() > 1 && matches!(events.first(), Some(RelayEvent::Head(_))),
                        "{events:?}"
                    );
                }
            }
            let figures = upstream.figures();
            assert_eq!((figures.in_flight, figures.waiting), (0, 0), "{figures:?}");
            assert!(!format!("{figures:?}{upstream:?}{:?}", upstream.spec()).contains(KEY));
        });
    }
    while let Some(done) = tables.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn every_fault_of_chats_has_its_name_and_leaves_the_next_call_working() {
    every_fault(UpstreamKind::Vllm, Endpoint::ChatCompletions).await;
}

#[tokio::test]
async fn every_fault_of_completions_has_its_name_and_leaves_the_next_call_working() {
    every_fault(UpstreamKind::OpenAi, Endpoint::Completions).await;
}

#[tokio::test]
async fn every_fault_of_messages_has_its_name_and_leaves_the_next_call_working() {
    every_fault(UpstreamKind::Anthropic, Endpoint::Messages).await;
}
