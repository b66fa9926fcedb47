//! Compares attention with this machine's limits, measured in the same run. Decode is a fraction of the read
//! bandwidth, prefill a fraction of the f32 multiply-add peak.
//! `cargo bench -p headrace-kernels --bench attention -- [f32|f16|bf16|q8 ...] [part of a line ...]`. `HEADRACE_ISA`
//! and `HEADRACE_THREADS` select the instruction set and the number of threads.

mod common;

use std::time::Instant;

use headrace_kernels::attention::{KvShape, KvSlot, KvStore, KvType, KvValues, Sees, Span};
use headrace_kernels::{Kernels, Queries, roofline};
use headrace_kv_layout::BLOCK_TOKENS;

use crate::common::machine;

type Failure = Box<dyn std::error::Error>;

/// Tokens in the pool: 32 sequences of 16K. Far larger than any last-level cache in every type.
const POOL_TOKENS: usize = 32 * 16_384;
/// Tokens stored at a time when the pool is filled.
const FILL_TOKENS: usize = 4096;
/// Query heads, key/value heads, elements of a head.
const SHAPES: [(usize, usize, usize); 2] = [(14, 2, 64), (32, 8, 64)];
const CONTEXTS: [usize; 3] = [512, 4096, 16_384];
const BATCHES: [usize; 3] = [1, 8, 32];
const PREFILL: usize = 512;
const PREFILL_STARTS: [usize; 2] = [0, 3584];
/// Seconds per measurement. The best call counts, because other load can only make one slower.
const SECONDS: f64 = 0.25;
/// Minimum number of calls per measurement.
const CALLS: usize = 20;

struct Limits {
    bytes_per_second: f64,
    flops_per_second: f64,
}

fn main() -> Result<(), Failure> {
    let (isa, threads) = machine()?;
    let asked = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let (types, lines): (Vec<String>, Vec<String>) =
        asked.partition(|word| KvType::from_name(word).is_some());
    let mut kernels = Kernels::new(isa, threads)?;
    for shape in SHAPES {
        for kv_type in KvType::ALL {
            if types.is_empty() || types.iter().any(|name| name == kv_type.name()) {
                // Measured again for each pool, because the speed of a shared machine changes over minutes.
                let limits = Limits::new(&mut kernels)?;
                Bench::new(&mut kernels, kv_type, shape, &lines)?.run(&limits)?;
            }
        }
    }
    Ok(())
}

impl Limits {
    /// Measures and prints the limits, above the column titles of the results.
    fn new(kernels: &mut Kernels) -> Result<Limits, Failure> {
        let bytes_per_second = roofline::read_bytes_per_second(kernels)?;
        let flops_per_second = roofline::flops_per_second(kernels)?;
        let (isa, threads) = (kernels.isa(), kernels.pool().threads());
        let (read, flops) = (bytes_per_second / 1e9, flops_per_second / 1e9);
        println!("{isa}, {threads} threads: reads {read:.1} GB/s, f32 {flops:.0} GFLOP/s");
        println!(
            "{:>10} {:>5} {:>22} {:>10} {:>9} {:>6} {:>9} {:>6}",
            "heads", "kv", "work", "µs", "GB/s", "%", "GFLOP/s", "%"
        );
        Ok(Limits { bytes_per_second, flops_per_second })
    }
}

/// A full pool of one type and shape.
struct Bench<'a> {
    kernels: &'a mut Kernels,
    kv_type: KvType,
    store: KvStore,
    heads: usize,
    /// Filters: only lines that contain one of these are measured. Empty: all lines.
    lines: &'a [String],
    /// Every block of the pool once, in random order.
    blocks: Vec<u32>,
    queries: Vec<f32>,
    out: Vec<f32>,
}

impl<'a> Bench<'a> {
    fn new(
        kernels: &'a mut Kernels,
        kv_type: KvType,
        (heads, kv_heads, head_dim): (usize, usize, usize),
        lines: &'a [String],
    ) -> Result<Bench<'a>, Failure> {
        let shape = KvShape { layers: 1, kv_heads, head_dim, values: KvValues::Own };
        let mut store = KvStore::new(shape, kv_type, POOL_TOKENS / BLOCK_TOKENS)?;
        let mut random = Random(7);
        let width = 2 * kv_heads * head_dim;
        let rows: Vec<f32> = (0..FILL_TOKENS * width).map(|_| random.number()).collect();
        for first in (0..POOL_TOKENS).step_by(FILL_TOKENS) {
            let slot = |i: usize| KvSlot { block: (i / BLOCK_TOKENS) as u32, offset: i % BLOCK_TOKENS };
            let slots: Vec<KvSlot> = (first..first + FILL_TOKENS).map(slot).collect();
            kernels.store_kv(&mut store, 0, &rows, 0, &slots)?;
        }
        let mut blocks: Vec<u32> = (0..(POOL_TOKENS / BLOCK_TOKENS) as u32).collect();
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, random.next() as usize % (i + 1));
        }
        let rows = PREFILL.max(32) * heads * head_dim;
        let queries = (0..rows).map(|_| random.number()).collect();
        Ok(Bench { kernels, kv_type, store, heads, lines, blocks, queries, out: vec![0.0; rows] })
    }

    fn run(&mut self, limits: &Limits) -> Result<(), Failure> {
        for context in CONTEXTS {
            for batch in BATCHES {
                self.measure(limits, &format!("{batch} × 1 at {context}"), &vec![(context - 1, 1); batch])?;
            }
        }
        self.measure(limits, "16K and 31 × 512", &[&[(16_383, 1)][..], &[(511, 1); 31]].concat())?;
        for start in PREFILL_STARTS {
            self.measure(limits, &format!("{PREFILL} on {start}"), &[(start, PREFILL)])?;
        }
        Ok(())
    }

    /// Calls attention with one span per (start, queries), over different blocks each time.
    fn measure(&mut self, limits: &Limits, what: &str, work: &[(usize, usize)]) -> Result<(), Failure> {
        let KvShape { kv_heads, head_dim, .. } = self.store.shape();
        let heads = format!("{}/{kv_heads}×{head_dim}", self.heads);
        let line = format!("{heads} {what}");
        if !self.lines.is_empty() && !self.lines.iter().any(|part| line.contains(part)) {
            return Ok(());
        }
        let blocks_of = |&(start, count): &(usize, usize)| (start + count).div_ceil(BLOCK_TOKENS);
        let needed: usize = work.iter().map(blocks_of).sum();
        let (mut at, mut calls, mut best, begin) = (0, 0, f64::INFINITY, Instant::now());
        while calls < CALLS || begin.elapsed().as_secs_f64() < SECONDS {
            calls += 1;
            if at + needed > self.blocks.len() {
                at = 0;
            }
            let (mut spans, mut row) = (Vec::new(), 0);
            for part in work {
                let blocks = self.blocks.get(at..at + blocks_of(part)).ok_or("the pool is too small")?;
                spans.push(Span {
                    query_row: row,
                    out_row: row,
                    count: part.1,
                    start: part.0,
                    blocks,
                    sees: Sees::Before,
                });
                (at, row) = (at + blocks.len(), row + part.1);
            }
            let stride = self.heads * head_dim;
            let queries = Queries {
                rows: &self.queries,
                stride,
                heads: self.heads,
                scale: 0.125,
                cap: None,
                sinks: &[],
            };
            let call = Instant::now();
            self.kernels.attention(&self.store, 0, queries, &spans, &mut self.out)?;
            best = best.min(call.elapsed().as_secs_f64());
        }
        let tokens: usize = work.iter().map(|&(start, count)| start + count).sum();
        let pairs: usize = work.iter().map(|&(start, count)| count * start + count * (count + 1) / 2).sum();
        let read = (tokens * self.kv_type.bytes_per_token(self.store.shape())) as f64 / best;
        let done = (4 * pairs * self.heads * head_dim) as f64 / best;
        println!(
            "{:>10} {:>5} {what:>22} {:>10.1} {:>9.1} {:>6.1} {:>9.0} {:>6.1}",
            heads,
            self.kv_type.name(),
            best * 1e6,
            read / 1e9,
            100.0 * read / limits.bytes_per_second,
            done / 1e9,
            100.0 * done / limits.flops_per_second
        );
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    /// Returns a number in −1..1.
    fn number(&mut self) -> f32 {
        (self.next() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0
    }
}
