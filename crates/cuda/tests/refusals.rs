//! Options, weights, memory and batches that must be refused by name and with a remedy. Also tests a step that fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use headrace_checkpoint::Checkpoint;
use headrace_cuda::{CudaModel, LoadError, LoadOptions, bytes_beside_kv, kv_groups};
use headrace_kernels::forward::{Forward, ForwardError, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::{BlockTables, KvGroupKind};
use headrace_model::{KvBlocks, KvUse};

use crate::common::{Emulated, MULTIPROCESSORS, Trouble, data, directory};

fn open(name: &str) -> Checkpoint {
    match name.ends_with(".gguf") {
        true => Checkpoint::open(&data(name)).unwrap(),
        false => directory(&data(name)).unwrap(),
    }
}

fn options() -> LoadOptions {
    LoadOptions {
        kv_blocks: Some(KvBlocks::same(8)),
        pass_rows: 32,
        logit_rows: 32,
        partial_bytes: 1 << 16,
        reserve_bytes: 0,
        threads: 2,
        ..LoadOptions::default()
    }
}

fn load(device: Emulated, checkpoint: &Checkpoint, options: &LoadOptions) -> Result<CudaModel, LoadError> {
    CudaModel::load(Box::new(device), checkpoint, options, &mut |_, _| ())
}

fn step(model: &mut CudaModel, token: u32, block: u32) -> Result<Vec<f32>, ForwardError> {
    let mut out = Logits::default();
    let (tokens, table) = ([token], [block]);
    let tables = BlockTables::single(&table[..]);
    let chunk =
        SequenceChunk { tokens: &tokens, start: 0, tables, logits: LogitsWanted::Last, long_context: false };
    model.step(&[chunk], &mut out)?;
    Ok(out.row(0).unwrap().to_vec())
}

#[test]
fn options_that_cannot_be_are_named() {
    let checkpoint = open("qwen2");
    for (options, named) in [
        (LoadOptions { kv_blocks: Some(KvBlocks::default()), ..options() }, "kv_blocks"),
        (LoadOptions { max_positions: Some(0), ..options() }, "max_positions"),
        (LoadOptions { pass_rows: 0, ..options() }, "pass_rows"),
        (LoadOptions { logit_rows: 0, ..options() }, "logit_rows"),
        (LoadOptions { threads: 0, ..options() }, "threads"),
        (LoadOptions { sequences: 0, ..options() }, "sequences"),
        (LoadOptions { chunk: 0, ..options() }, "chunk"),
    ] {
        let error = load(Emulated::new(), &checkpoint, &options).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn parts_that_are_not_computed_are_named_with_their_layer() {
    for (name, part, found) in [
        ("mixtral", "feed-forward: layer 0", "experts"),
        ("gemma4-moe", "attention: layer 0", "normalizes values"),
        ("gemma4-ple", "layer_inputs", "inputs of their own"),
        ("lfm2", "mixer: layer 0", "a short convolution"),
        ("qwen35", "mixer: layer 0", "the gated delta rule"),
        ("granite-hybrid", "mixer: layer 0", "a Mamba2 mixer"),
        ("deepseek-v2-lite", "mixer: layer 0", "latent attention"),
        ("gpt2", "embedding", "learned positions"),
        ("stablelm", "norm", "LayerNorm"),
        ("gpt-oss", "attention: layer 0", "has attention sinks"),
    ] {
        let loaded = load(Emulated::new(), &open(name), &options());
        let error = loaded.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(found), "{name}: {error}");
        assert!(error.contains("a GPU computes") && error.contains("The CPU engine computes"), "{error}");
    }
}

#[test]
fn weights_in_blocks_are_refused_by_the_tensors_name() {
    // A GGUF file of plain floats loads, and its results are close to those of the directory from which it was made.
    let rows = |name: &str| {
        let mut model = load(Emulated::new(), &open(name), &options()).unwrap();
        step(&mut model, 5, 1).unwrap()
    };
    let (directory, gguf) = (rows("qwen2"), rows("gguf/qwen2.gguf"));
    assert_eq!(directory.len(), gguf.len());
    assert!(directory.iter().zip(&gguf).all(|(a, b)| (a - b).abs() < 1e-2));
    struct Blocks(Checkpoint);
    impl headrace_cuda::Tensors for Blocks {
        fn tensor(
            &self,
            name: &str,
        ) -> Result<headrace_checkpoint::Tensor<'_>, headrace_checkpoint::CheckpointError> {
            let mut tensor = self.0.tensor(name)?;
            if name.ends_with("1.mlp.up_proj.weight") {
                let q8 = headrace_checkpoint::DType::from_name("q8_0");
                tensor.dtype = q8.unwrap();
            }
            Ok(tensor)
        }
        fn bytes(&self) -> u64 {
            self.0.weight_bytes()
        }
        fn release_pages(&self) {}
    }
    let blocks = Blocks(open("qwen2"));
    let device = Box::new(Emulated::new());
    let loaded = CudaModel::load_from(device, blocks.0.config(), &blocks, &options(), &mut |_, _| ());
    let error = loaded.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("layers.1.mlp.up_proj.weight") && error.contains("q8_0"), "{error}");
    assert!(error.contains("CPU"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let checkpoint = open("llama-gqa-untied");
    let config = checkpoint.config();
    let beside = bytes_beside_kv(config, &options(), MULTIPROCESSORS).unwrap();
    let block = kv_groups(config).unwrap().bytes(KvBlocks::same(1));
    let with = |bytes: usize, options: &LoadOptions| {
        let mut device = Emulated::new();
        device.memory_bytes = bytes;
        load(device, &checkpoint, options)
    };
    // The estimate is exact to the byte.
    let model = with(beside + 8 * block, &options()).unwrap();
    assert_eq!((model.shape().kv.first().block_count, model.shape().kv.first().bytes_per_block), (8, block));
    let error = with(beside + 8 * block - 1, &options()).map(|_| ()).unwrap_err();
    assert!(matches!(error, LoadError::TooLarge { .. }));
    assert!(error.to_string().contains("112 tokens would fit"), "{error}");
    let error = with(beside - 1, &options()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("MiB would fit") && error.contains("emulated"), "{error}");
    let error = with(1 << 16, &options()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("nothing would fit: end the other programs"), "{error}");
    // A pool that is sized by free memory takes the rest of it, within its limit.
    let free = LoadOptions { kv_blocks: None, ..options() };
    assert_eq!(with(beside + 30 * block + 1, &free).unwrap().shape().kv.first().block_count, 30);
    let bounded = LoadOptions { most_kv_blocks: 20, ..free.clone() };
    assert_eq!(with(beside + 30 * block, &bounded).unwrap().shape().kv.first().block_count, 20);
    let kept = LoadOptions { reserve_bytes: 5 * block, ..free };
    assert_eq!(with(beside + 30 * block, &kept).unwrap().shape().kv.first().block_count, 25);
}

#[test]
fn memory_is_divided_between_the_groups_as_for_the_cpu() {
    // Three of four layers have a window of 11.
    let checkpoint = open("olmo3");
    let config = checkpoint.config();
    let options = LoadOptions { kv_blocks: None, sequences: 3, chunk: 40, ..options() };
    let beside = bytes_beside_kv(config, &options, MULTIPROCESSORS).unwrap();
    let groups = kv_groups(config).unwrap();
    let each: Vec<_> = groups.groups().map(|group| (group.kind, group.bytes_per_block)).collect();
    let layer = each[0].1;
    assert_eq!(each, [(KvGroupKind::Full, layer), (KvGroupKind::Window(11), 3 * layer)]);
    let usage = KvUse { sequences: 3, chunk: 40, tokens: config.max_positions };
    for first in [16, 23, 48] {
        let blocks = groups.beside(first, usage);
        // A window of 11 and a chunk of 40 take five blocks of each sequence.
        assert_eq!((blocks.full, blocks.window), (first, first.min(5 * 4 + 1)));
        let mut device = Emulated::new();
        device.memory_bytes = beside + groups.bytes(blocks);
        let model = load(device, &checkpoint, &options).unwrap();
        let counts: Vec<_> = model.shape().kv.used().map(|group| group.block_count).collect();
        assert_eq!(counts, [blocks.full, blocks.window]);
        assert_eq!(model.shape().max_positions, config.max_positions.min(first * 16));
    }
    let mut device = Emulated::new();
    device.memory_bytes = beside + groups.bytes(groups.beside(16, usage)) - 1;
    let error = load(device, &checkpoint, &options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("a KV cache of 256 tokens") && error.contains("240 tokens would fit"), "{error}");
}

#[test]
fn loading_tells_its_progress() {
    let checkpoint = open("qwen3");
    let mut seen = Vec::new();
    let progress = &mut |done, total| seen.push((done, total));
    let model = CudaModel::load(Box::new(Emulated::new()), &checkpoint, &options(), progress).unwrap();
    let total = checkpoint.weight_bytes();
    assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
    assert!(seen.is_sorted() && seen.len() > 10, "{seen:?}");
    assert!(model.shape().weight_bytes as u64 >= total);
    assert_eq!(model.numerics(), "cuda/emulated/bf16/kv-bf16/v3");
}

#[test]
fn a_bad_batch_is_refused_and_the_model_goes_on() {
    let mut model = load(Emulated::new(), &open("qwen2"), &options()).unwrap();
    let mut out = Logits::default();
    model.step(&[], &mut out).unwrap();
    assert_eq!(out.rows(), 0);
    let good = step(&mut model, 5, 2).unwrap();
    for (tokens, start, blocks, named) in [
        (&[5000][..], 0, &[0][..], "token 5000"),
        (&[5], 0, &[8], "block 8"),
        (&[5], 16, &[0], "1 blocks"),
        (&[], 0, &[0], "no tokens"),
        (&[5], 1 << 40, &[0], "pass position"),
    ] {
        let bad = SequenceChunk {
            tokens,
            start,
            tables: BlockTables::single(blocks),
            logits: LogitsWanted::Last,
            long_context: false,
        };
        match model.step(&[bad], &mut out) {
            Err(ForwardError::BadBatch { chunk: 0, message }) => {
                assert!(message.contains(named), "{message}")
            }
            other => panic!("{named}: {other:?}"),
        }
        assert_eq!(out.rows(), 0);
    }
    assert_eq!(step(&mut model, 5, 3).unwrap(), good);
}

#[test]
fn a_step_that_fails_or_panics_is_an_error_with_its_reason_and_the_next_one_is_computed() {
    let checkpoint = open("qwen2");
    let good = step(&mut load(Emulated::new(), &checkpoint, &options()).unwrap(), 5, 1).unwrap();
    for at in [0, 3, 9] {
        for (trouble, named) in
            [(Trouble::Fails, "an illegal address"), (Trouble::Panics, "a launch that panics")]
        {
            let mut device = Emulated::new();
            device.trouble = Some((at, trouble));
            let mut model = load(device, &checkpoint, &options()).unwrap();
            let error = step(&mut model, 5, 1).unwrap_err();
            let is_panic = matches!(error, ForwardError::Panicked { .. });
            assert_eq!(is_panic, trouble == Trouble::Panics, "{error}");
            assert!(error.to_string().contains(named), "{error}");
            if trouble == Trouble::Fails {
                assert_eq!(step(&mut model, 5, 1).unwrap(), good, "after launch {at} failed");
            }
        }
    }
}

/// Runs on machines without a driver, which are most machines that build this crate.
#[cfg(feature = "cuda")]
#[test]
fn a_machine_without_a_gpu_says_what_is_missing() {
    match headrace_cuda::device::Nvidia::open(0) {
        Ok(device) => assert!(!headrace_cuda::device::Device::name(&device).is_empty()),
        Err(error) => {
            let said = error.to_string();
            assert!(["driver", "NVRTC", "no CUDA device"].iter().any(|what| said.contains(what)), "{said}");
        }
    }
}
