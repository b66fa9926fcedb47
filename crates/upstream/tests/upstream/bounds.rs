//! Size limits of answers: at most what the request allows, and nothing that the caller has no memory for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_domain::Endpoint;
use headrace_engine_api::{AnswerBounds, AnswerMemory, AnswerMemoryFull, RelayError, RelayEvent};
use headrace_fault_server::{Fault, FaultServer};
use headrace_upstream::{Upstream, UpstreamKind};

use crate::calls::{all, ask, spec};

/// Memory with a limit. Records the largest request.
#[derive(Debug)]
struct Memory {
    bound: u64,
    most: AtomicU64,
}

impl AnswerMemory for Memory {
    fn reserve(&self, bytes: u64) -> Result<(), AnswerMemoryFull> {
        self.most.fetch_max(bytes, Ordering::Relaxed);
        if bytes <= self.bound { Ok(()) } else { Err(AnswerMemoryFull) }
    }
}

/// Reads an endless answer of the fault server under these limits. Returns the error and the largest amount of memory
/// requested.
async fn ended(stream: bool, fault: Fault, most_bytes: u64, bound: u64) -> (RelayError, u64) {
    let server = FaultServer::start().await.unwrap();
    let upstream = Upstream::new(spec(&server.url(), UpstreamKind::OpenAi)).unwrap();
    let memory = Arc::new(Memory { bound, most: AtomicU64::new(0) });
    let mut ask = ask(Endpoint::ChatCompletions, fault.name(), stream);
    ask.bounds = AnswerBounds { memory: Some(Arc::clone(&memory) as _), ..AnswerBounds::up_to(most_bytes) };
    let error = match all(&upstream, ask).await.pop() {
        Some(RelayEvent::Failed(error)) => error,
        other => panic!("{fault:?} should fail: {other:?}"),
    };
    (error, memory.most.load(Ordering::Relaxed))
}

#[tokio::test]
async fn an_endless_answer_ends_at_the_first_of_its_bounds() {
    let large = u64::MAX;
    for stream in [true, false] {
        // Stopped by the limit of the request.
        let (error, _) = ended(stream, Fault::EndlessBody, 100_000, large).await;
        assert_eq!(error, RelayError::TooLarge { what: "answer", limit: 100_000 }, "{stream}");
        // Stopped by the caller's memory, before the bytes are kept: one step beyond the limit was requested and
        // refused.
        let (error, most) = ended(stream, Fault::EndlessBody, large, 200_000).await;
        assert_eq!(error, RelayError::NoMemory, "{stream}");
        assert!(most > 200_000, "{most}");
        // Stopped by the upstream's own limit. Memory was reserved for everything until then.
        let (error, most) = ended(stream, Fault::EndlessBody, large, large).await;
        let what = if stream { "event" } else { "body" };
        assert_eq!(error, RelayError::TooLarge { what, limit: 1 << 20 }, "{stream}");
        assert!(most >= 1 << 19, "{most} of the 1 MiB that were kept");
    }
}

#[tokio::test]
async fn comments_and_pings_count_as_bytes_of_the_answer() {
    let (error, most) = ended(true, Fault::EndlessComments, 500, u64::MAX).await;
    assert_eq!(error, RelayError::TooLarge { what: "answer", limit: 500 });
    assert_eq!(most, 0, "none of them is kept");
}

#[tokio::test]
async fn a_usual_answer_asks_for_no_memory() {
    for stream in [true, false] {
        let server = FaultServer::start().await.unwrap();
        let upstream = Upstream::new(spec(&server.url(), UpstreamKind::OpenAi)).unwrap();
        let memory = Arc::new(Memory { bound: 0, most: AtomicU64::new(0) });
        let mut ask = ask(Endpoint::ChatCompletions, Fault::Good.name(), stream);
        ask.bounds = AnswerBounds { memory: Some(Arc::clone(&memory) as _), ..AnswerBounds::up_to(1 << 20) };
        let events = all(&upstream, ask).await;
        assert!(!events.iter().any(|event| matches!(event, RelayEvent::Failed(_))), "{events:?}");
        assert_eq!(memory.most.load(Ordering::Relaxed), 0);
    }
}
