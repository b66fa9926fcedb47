//! The bits of a sequence depend on neither its batch nor the copy of a state that it continues from.

use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables, StateCopy, StateSlots};
use headrace_model::Model;

use crate::common::isas;
use crate::support::{Case, Expected, all_rows, blocks, checkpoint, data, expected, load, same_bits, tables};

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_a_batch_on_any_number_of_threads() {
    for isa in isas() {
        for name in [
            "granite-hybrid",
            "lfm2-moe",
            "llama-gqa-untied",
            "nemotron-h-latent",
            "qwen3-next",
            "qwen2",
            "qwen3-tied",
            "gemma2",
            "gemma3-text",
            "gpt2",
            "gpt-oss",
            "mixtral",
            "olmo2",
            "deepseek-v2",
            "deepseek-v3-yarn",
            "qwen2-moe-ct-w4a16",
            "qwen3-moe-fp8",
            "gemma4-moe",
            "gemma4-ple",
            "glm4-moe-lite",
        ] {
            let checkpoint = checkpoint(&data(name), "config.json");
            let mut cases = expected::<Expected>(&data(name)).cases;
            // Each sequence of the batch has eight blocks.
            cases.retain(|case| case.ids.len() <= 8 * BLOCK_TOKENS);
            cases.truncate(3);
            let mut alone = load(&checkpoint, isa, 1);
            let wanted: Vec<Vec<Vec<f32>>> = cases
                .iter()
                .map(|case| all_rows(&mut alone, &case.ids, 5, &blocks(case.ids.len(), 1)))
                .collect();
            for threads in [1, 2, 3] {
                let mut model = load(&checkpoint, isa, threads);
                batch_of_all(&mut model, &cases, &wanted, &format!("{name} on {isa}, {threads} threads"));
            }
        }
    }
}

/// Computes all cases in two steps: the first tokens of each, then the rest. The second step requests only the last row
/// of each case, and no row of the second case.
fn batch_of_all(model: &mut Model, cases: &[Case], wanted: &[Vec<Vec<f32>>], what: &str) {
    let each: Vec<Vec<u32>> =
        (0..cases.len() as u32).map(|case| (case * 12..case * 12 + 12).rev().collect()).collect();
    let (mut out, first) = (Logits::default(), 3);
    let chunks: Vec<_> = cases
        .iter()
        .zip(&each)
        .map(|(case, blocks)| SequenceChunk {
            tokens: &case.ids[..first],
            start: 0,
            tables: tables(blocks, blocks[0]),
            logits: LogitsWanted::All,
            long_context: model.shape().is_long(case.ids.len()),
        })
        .collect();
    model.step(&chunks, &mut out).unwrap();
    for (index, rows) in wanted.iter().enumerate() {
        for (row, want) in rows[..first].iter().enumerate() {
            same_bits(what, out.row(index * first + row).unwrap(), want);
        }
    }
    let chunks: Vec<_> = cases
        .iter()
        .zip(&each)
        .enumerate()
        .map(|(index, (case, blocks))| SequenceChunk {
            tokens: &case.ids[first..],
            start: first,
            tables: tables(blocks, blocks[0]),
            logits: if index == 1 { LogitsWanted::None } else { LogitsWanted::Last },
            long_context: model.shape().is_long(case.ids.len()),
        })
        .collect();
    model.step(&chunks, &mut out).unwrap();
    let lasts = wanted.iter().enumerate().filter(|(index, _)| *index != 1);
    assert_eq!(out.rows(), wanted.len() - 1);
    for (row, (_, rows)) in lasts.enumerate() {
        same_bits(what, out.row(row).unwrap(), rows.last().unwrap());
    }
}

/// A sequence that begins with the same 50 tokens as another one, computed from the copy of its state at a block's end.
#[test]
fn a_sequence_continues_from_the_copy_of_a_state_with_the_same_bits() {
    for isa in isas() {
        for name in ["granite-hybrid", "lfm2-moe", "nemotron-h-moe", "qwen35", "qwen35-moe"] {
            let checkpoint = checkpoint(&data(name), "config.json");
            let cases = expected::<Expected>(&data(name)).cases;
            let [first, second] = [&cases[3], &cases[4]];
            let shared = 3 * BLOCK_TOKENS;
            assert_eq!(first.ids[..shared], second.ids[..shared]);
            let mut model = load(&checkpoint, isa, 2);
            let table = blocks(first.ids.len().max(second.ids.len()), 3);
            let wanted = all_rows(&mut model, &second.ids, usize::MAX, &table);
            let mut out = Logits::default();
            let mut step = |tokens: &[u32], start: usize, states: StateSlots| -> Vec<f32> {
                let tables = BlockTables { states: Some(states), ..BlockTables::same(&table) };
                let chunk =
                    SequenceChunk { tokens, start, tables, logits: LogitsWanted::All, long_context: false };
                model.step(&[chunk], &mut out).unwrap();
                out.values().to_vec()
            };
            let copy = Some(StateCopy { position: shared, slot: 9 });
            step(&first.ids, 0, StateSlots { from: 0, own: 0, copy });
            for size in [100, 5] {
                let (mut rows, mut start, mut from) = (Vec::new(), shared, 9);
                for tokens in second.ids[shared..].chunks(size) {
                    let own = if from == 10 { 11 } else { 10 };
                    rows.extend(step(tokens, start, StateSlots { from, own, copy: None }));
                    (start, from) = (start + tokens.len(), own);
                }
                same_bits(&format!("{name} on {isa} by {size}"), &wanted[shared..].concat(), &rows);
            }
        }
    }
}
