//! Parses arbitrary bytes as a job and as a worker's answer to one. Nothing may panic, and no event may exceed what was
//! requested. Run in `crates/worker` with `RUSTC_BOOTSTRAP=1 cargo fuzz run frames -- -max_len=4096`.
#![no_main]

use std::sync::Arc;

use headrace_domain::{CacheLife, CachePin, CacheSalt, RequestId, Sampling, UnixNanos};
use headrace_engine_api::{Job, JobEvent, Priority, Tenant};
use headrace_worker::{FrameMeaning, FrameReader, JobAudit, JobRequest, PackedAssets};
use libfuzzer_sys::fuzz_target;

const VOCAB: u32 = 100;
const MOST: usize = 16;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = JobRequest::read(bytes) {
        let job = request.into_job(0);
        assert!(job.pins.iter().all(|pin| pin.tokens as usize <= job.prompt.len()));
    }
    let _ = PackedAssets::taken(bytes.to_vec().into(), "");
    let mut audit = JobAudit::new(&job(), VOCAB, 1_000);
    let mut reader = FrameReader::default();
    let mut ids = [0; 2];
    for piece in bytes.chunks(7) {
        reader.push(piece);
        while let Ok(Some(frame)) = reader.next_frame() {
            let Ok(meaning) = audit.take(frame) else { return };
            match meaning {
                FrameMeaning::Event(JobEvent::Tokens { choice, ids: more, .. }) => {
                    ids[choice as usize] += more.len();
                    assert!(ids[choice as usize] <= MOST && more.iter().all(|id| *id < VOCAB));
                }
                FrameMeaning::Over(_, report) => {
                    let usage = report.within(audit.prompt(), 0).usage;
                    assert!(usage.prompt_tokens() <= 3 && usage.cache_writes() <= 2);
                }
                _ => {}
            }
        }
    }
});

fn job() -> Job {
    Job {
        request: RequestId::fresh(UnixNanos::new(0)),
        first_choice: 0,
        prompt: Arc::from([1, 2, 3]),
        generated: 0,
        sampling: Sampling { n: 2, logprobs: Some(1), ..Sampling::default() },
        salt: CacheSalt::from_bytes([0; 32]),
        keys: None,
        pins: Arc::from([CachePin { tokens: 2, life: CacheLife::Hour }]),
        held: None,
        grammar: None,
        thought: None,
        tenant: Tenant(0),
        weight: 1,
        priority: Priority::Normal,
        start_deadline_ns: None,
        trace: None,
        unread_bytes: 0,
    }
}
