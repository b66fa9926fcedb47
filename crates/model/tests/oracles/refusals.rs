//! Batches and options that are refused, and the progress of loading.

use std::borrow::Cow;

use headrace_checkpoint::Checkpoint;
use headrace_checkpoint::gguf::Header;
use headrace_kernels::Isa;
use headrace_kernels::forward::{Forward, ForwardError, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::BlockTables;
use headrace_model::{KvBlocks, LoadOptions, Model};

use crate::support::{checkpoint, data, load};

#[test]
fn a_state_that_grows_is_refused() {
    let mut bytes = std::fs::read(data("gguf/qwen35.gguf")).unwrap();
    let range = Header::parse("m.gguf", &bytes).unwrap().tensors["blk.0.ssm_a"].range.clone();
    bytes[range][..4].copy_from_slice(&1_f32.to_le_bytes());
    let checkpoint = Checkpoint::from_files(vec![("m.gguf".to_owned(), Cow::Owned(bytes))]).unwrap();
    let options = LoadOptions::exact(Isa::best(), 1, 1);
    let error = Model::load(&checkpoint, options, &mut |_, _| ()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("linear_attn.A_log") && error.contains("a rate of 1;"), "{error}");
}

#[test]
fn a_chunk_without_a_slot_is_refused() {
    let mut model = load(&checkpoint(&data("lfm2"), "config.json"), Isa::best(), 1);
    let tables = BlockTables { states: None, ..BlockTables::same(&[0]) };
    let chunk =
        SequenceChunk { tokens: &[5], start: 0, tables, logits: LogitsWanted::Last, long_context: false };
    let error = model.step(&[chunk], &mut Logits::default()).unwrap_err();
    assert!(error.to_string().contains("no slot for its state"), "{error}");
}

#[test]
fn a_bad_batch_is_refused_and_the_model_goes_on() {
    let mut model = load(&checkpoint(&data("qwen2"), "config.json"), Isa::best(), 2);
    let mut out = Logits::default();
    model.step(&[], &mut out).unwrap();
    assert_eq!(out.rows(), 0);
    let bad = SequenceChunk {
        tokens: &[5000],
        start: 0,
        tables: BlockTables::same(&[0]),
        logits: LogitsWanted::Last,
        long_context: false,
    };
    assert!(matches!(model.step(&[bad], &mut out), Err(ForwardError::BadBatch { chunk: 0, .. })));
    let good = SequenceChunk {
        tokens: &[5],
        start: 0,
        tables: BlockTables::same(&[0]),
        logits: LogitsWanted::Last,
        long_context: false,
    };
    model.step(&[good], &mut out).unwrap();
    assert_eq!(out.rows(), 1);
    assert_eq!(
        model.numerics(),
        format!("{}/exact/kv-f32/v{}", Isa::best(), headrace_kernels::KERNEL_VERSION)
    );
}

#[test]
fn loading_tells_its_progress_and_refuses_impossible_options() {
    let checkpoint = checkpoint(&data("qwen3"), "config.json");
    let mut seen = Vec::new();
    let options = LoadOptions { max_positions: Some(20), ..LoadOptions::exact(Isa::Scalar, 1, 2) };
    let model =
        Model::load(&checkpoint, options.clone(), &mut |done, total| seen.push((done, total))).unwrap();
    assert_eq!(model.shape().max_positions, 20);
    assert_eq!(seen.last(), Some(&(checkpoint.weight_bytes(), checkpoint.weight_bytes())));
    assert!(seen.is_sorted() && seen.len() > 10);
    for (options, field) in [
        (LoadOptions { kv_blocks: KvBlocks::default(), ..options.clone() }, "kv_blocks"),
        (LoadOptions { threads: 0, ..options.clone() }, "threads"),
        (LoadOptions { max_positions: Some(0), ..options }, "max_positions"),
    ] {
        let error = Model::load(&checkpoint, options, &mut |_, _| ()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
}
