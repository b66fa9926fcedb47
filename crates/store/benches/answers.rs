//! Measures how many answers per second reach the disk, from one writer and from many at once, which share its fsync.
//! Run with `cargo bench -p headrace-store`.

use std::error::Error;
use std::time::{Duration, Instant};

use headrace_domain::{ProjectId, RequestId, UnixNanos};
use headrace_objects::{ObjectLimits, ObjectStore, ResponseRecord, ResponseStatus};
use headrace_store::objects::SqliteObjects;

/// Bytes per answer.
const BODY: usize = 4_000;
const FOR: Duration = Duration::from_secs(2);

fn record(number: u128) -> Result<ResponseRecord, Box<dyn Error + Send + Sync>> {
    Ok(ResponseRecord {
        id: format!("resp_{:032x}", RequestId::from_bits(number).bits()),
        project: ProjectId::new("p").map_err(|_| "a name")?,
        created: UnixNanos::new(1),
        expires: UnixNanos::new(u64::MAX),
        status: ResponseStatus::Ended,
        previous: None,
        conversation: None,
        input: "[]".to_owned(),
        output: "[]".to_owned(),
        body: "x".repeat(BODY),
        events: None,
    })
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    for writers in [1_u128, 2, 8, 32] {
        let dir = tempfile::tempdir()?;
        let store = SqliteObjects::open(&dir.path().join("objects.db"), ObjectLimits::default())
            .map_err(|error| error.to_string())?;
        let begun = Instant::now();
        let write = &|writer: u128| -> Result<Vec<Duration>, Box<dyn Error + Send + Sync>> {
            let mut took = Vec::new();
            while begun.elapsed() < FOR {
                let from = Instant::now();
                let number = writer << 64 | took.len() as u128;
                store.put_response(&record(number)?, &[]).map_err(|error| error.to_string())?;
                took.push(from.elapsed());
            }
            Ok(took)
        };
        let mut took = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..writers).map(|writer| scope.spawn(move || write(writer))).collect();
            threads.into_iter().flat_map(|thread| thread.join().ok()).collect::<Result<Vec<_>, _>>()
        })?
        .concat();
        took.sort_unstable();
        let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or_default();
        println!(
            "{writers:3} writers: {:7.0} answers/s · p50 {:.2?} · p99 {:.2?}",
            took.len() as f64 / FOR.as_secs_f64(),
            at(0.5),
            at(0.99)
        );
    }
    Ok(())
}
