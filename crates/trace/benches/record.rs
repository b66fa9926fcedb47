//! Measures what recording a finished request costs the request's own task. The budget is 2 µs. The records are made
//! beforehand, and the recorder's thread drains them into a store that discards them.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use headrace_domain::{RequestId, TraceRecord, TraceSink};
use headrace_trace::{
    Metrics, MetricsConfig, RecorderConfig, TraceError, TraceRecorder, TraceStore, WaterfallOptions,
    decode_record, encode_record, waterfall,
};

struct Forgetting;

impl TraceStore for Forgetting {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        black_box(batch);
        Ok(())
    }
}

fn record(criterion: &mut Criterion) {
    let Ok(golden) = decode_record(include_str!("../tests/data/completed.json")) else { return };
    let models = vec!["headrace-demo-20m".to_owned()];
    let metrics = Arc::new(Metrics::new(&MetricsConfig { models, version: String::new() }));
    let start =
        TraceRecorder::start(Some(Box::new(Forgetting)), Arc::clone(&metrics), RecorderConfig::default());
    let Ok(recorder) = start else { return };

    // Record in bursts that the queue can hold, as under a server's load. The time between bursts is not counted.
    criterion.bench_function("record", |bench| {
        bench.iter_custom(|count| {
            let mut spent = Duration::ZERO;
            let mut left = count;
            while left > 0 {
                let burst = left.min(1_000);
                let records: Vec<Box<TraceRecord>> = (0..burst)
                    .map(|n| {
                        let mut record = golden.clone();
                        record.request_id = RequestId::from_bits(u128::from(left - n));
                        Box::new(record)
                    })
                    .collect();
                let start = Instant::now();
                for record in records {
                    recorder.record(record);
                }
                spent += start.elapsed();
                recorder.flush(Duration::from_secs(10));
                left -= burst;
            }
            spent
        });
    });
    println!("dropped while measuring: {}", recorder.dropped());
    criterion.bench_function("metrics only", |bench| bench.iter(|| metrics.observe(black_box(&golden))));
    criterion.bench_function("encode (recorder's thread)", |bench| {
        bench.iter(|| encode_record(black_box(&golden)))
    });
    criterion.bench_function("prometheus page", |bench| bench.iter(|| metrics.prometheus()));
    let options = WaterfallOptions::default();
    criterion.bench_function("waterfall", |bench| bench.iter(|| waterfall(black_box(&golden), &options)));
    recorder.close(Duration::from_secs(10));
}

criterion_group!(benches, record);
criterion_main!(benches);
