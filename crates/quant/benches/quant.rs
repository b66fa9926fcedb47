//! Measures weights per second through each format in both directions, on one thread. Must not know: files.
#![allow(missing_docs, reason = "criterion's macros write undocumented items")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use headrace_quant::{BlockType, dequantize_row, quantize_row};

const WEIGHTS: usize = 1 << 16;

fn formats(criterion: &mut Criterion) {
    // Bell-shaped weights: the sum of four draws of a linear congruential generator.
    let mut state = 1_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as f32 / 65_536.0 - 0.5
    };
    let weights: Vec<f32> = (0..WEIGHTS).map(|_| (draw() + draw() + draw() + draw()) / 32.0).collect();
    for kind in BlockType::QUANTIZED {
        let mut group = criterion.benchmark_group(kind.name());
        group.throughput(Throughput::Elements(WEIGHTS as u64));
        group
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1))
            .sample_size(20);
        let mut blocks = vec![0; kind.row_bytes(WEIGHTS).unwrap()];
        let mut back = vec![0.0; WEIGHTS];
        group.bench_function("quantize", |bencher| {
            bencher.iter(|| quantize_row(kind, black_box(&weights), black_box(&mut blocks)).unwrap());
        });
        group.bench_function("dequantize", |bencher| {
            bencher.iter(|| dequantize_row(kind, black_box(&blocks), black_box(&mut back)).unwrap());
        });
    }
}

criterion_group!(benches, formats);
criterion_main!(benches);
