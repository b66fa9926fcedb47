//! Two models in one process share its threads and compute at the same time. Each must give the same bits as alone.
//! This is a separate test program because it counts the threads of its process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Barrier;

use headrace_checkpoint::Checkpoint;
use headrace_kernels::Isa;
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kernels::pool::Workers;
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables};
use headrace_model::{LoadOptions, Model};

const THREADS: usize = 3;
const BLOCKS: usize = 16;
/// Decode steps after the prompt.
const STEPS: usize = 40;

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

/// The bits of all logits of a prompt and of the decode steps after it.
fn answer(model: &mut Model) -> Vec<Vec<u32>> {
    let blocks: Vec<u32> = (0..BLOCKS as u32).collect();
    let vocab = model.shape().vocab as u32;
    let prompt: Vec<u32> = (0..3 * BLOCK_TOKENS as u32 + 5).map(|i| (i * 37 + 11) % vocab).collect();
    let (mut out, mut rows) = (Logits::default(), Vec::new());
    let mut tokens = prompt.clone();
    let mut start = 0;
    for step in 0..=STEPS {
        let chunk = SequenceChunk {
            tokens: &tokens,
            start,
            tables: BlockTables::same(&blocks),
            logits: LogitsWanted::All,
            long_context: false,
        };
        model.step(&[chunk], &mut out).unwrap();
        rows.extend(
            (0..out.rows())
                .map(|row| out.row(row).unwrap().iter().map(|value| value.to_bits()).collect::<Vec<u32>>()),
        );
        start += tokens.len();
        tokens = vec![(step as u32 * 29 + 3) % vocab];
    }
    rows
}

/// Threads of this process that belong to a pool. `None` if the system does not report threads.
fn kernel_threads() -> Option<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Some(names.filter(|name| name.starts_with("kernel-")).count())
}

#[test]
fn two_models_at_once_share_threads_and_give_the_bits_of_each_alone() {
    let names = ["llama-gqa-untied", "qwen3-tied"];
    for isa in Isa::supported() {
        let options = LoadOptions::exact(isa, THREADS, BLOCKS);
        let alone = names.map(|name| {
            answer(&mut Model::load(&checkpoint(name), options.clone(), &mut |_, _| {}).unwrap())
        });
        let workers = Workers::new(THREADS).unwrap();
        let models = names.map(|name| {
            Model::load_over(&workers, &checkpoint(name), options.clone(), &mut |_, _| {}).unwrap()
        });
        let barrier = Barrier::new(names.len());
        let together = std::thread::scope(|scope| {
            let running = models.map(|mut model| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let answers = [(); 3].map(|()| {
                        barrier.wait();
                        answer(&mut model)
                    });
                    (answers, kernel_threads())
                })
            });
            running.map(|thread| thread.join().unwrap())
        });
        for ((name, alone), (answers, threads)) in names.iter().zip(&alone).zip(&together) {
            assert!(answers.iter().all(|rows| rows == alone), "{name} on {isa}");
            assert!(threads.is_none_or(|count| count == THREADS - 1), "{threads:?}");
        }
    }
}
