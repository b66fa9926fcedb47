//! Same bits on the device. A sequence's logits are identical alone and among others, in any chunks beside decoding
//! neighbours, over other blocks, in passes of any length, recorded or launched. The tests are seeded, and
//! HEADRACE_SEED repeats one run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::borrow::Cow;
use std::collections::BTreeMap;

use headrace_checkpoint::Checkpoint;
use headrace_cuda::device::Buffer;
use headrace_cuda::{CudaModel, LoadOptions};
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::{BLOCK_TOKENS, BlockTables, FREED, KvGroup};
use headrace_model::KvBlocks;

use crate::common::Emulated;

const VOCAB: usize = 130;
const BLOCKS: usize = 128;

/// Blocks of the layers with a window. Another number than [`BLOCKS`], so that their memory is recognized by its size.
const WINDOW_BLOCKS: usize = 120;

/// A small model, and the length of its sequences.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    class: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    inner: usize,
    length: usize,
    window: Option<usize>,
}

const LLAMA: Sizes = Sizes {
    class: "LlamaForCausalLM",
    layers: 2,
    hidden: 128,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    inner: 256,
    length: 530,
    window: None,
};

/// The first model has grouped heads over more than one split of 256. The second has three query heads per key head,
/// and padded heads and MLP. In the third, every query head has its own keys. All layers of the next ones have a window:
/// of less than a block, and of more than a split. Of the sixth, five of six layers have a window that ends within a
/// block. The last two are Gemma 2 with wide heads and caps and a window in every other layer, and Gemma 3.
const MODELS: [Sizes; 8] = [
    LLAMA,
    Sizes { class: "Qwen3ForCausalLM", hidden: 96, heads: 6, head_dim: 48, inner: 104, length: 150, ..LLAMA },
    Sizes { hidden: 64, heads: 2, head_dim: 32, inner: 64, length: 70, ..LLAMA },
    Sizes { window: Some(7), ..small("MistralForCausalLM", 130) },
    Sizes { window: Some(300), ..small("MistralForCausalLM", 620) },
    Sizes { window: Some(75), layers: 6, ..small("Olmo3ForCausalLM", 340) },
    Sizes { window: Some(40), heads: 2, kv_heads: 1, head_dim: 256, ..small("Gemma2ForCausalLM", 110) },
    Sizes { window: Some(33), layers: 6, kv_heads: 1, ..small("Gemma3ForCausalLM", 90) },
];

const fn small(class: &'static str, length: usize) -> Sizes {
    Sizes { class, hidden: 64, heads: 4, head_dim: 32, inner: 64, length, ..LLAMA }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn weight(&mut self, scale: f32) -> f32 {
        ((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    }
}

fn seed() -> u64 {
    std::env::var("HEADRACE_SEED").map_or(7, |seed| seed.parse().unwrap())
}

/// A small model with random bf16 weights.
fn checkpoint(sizes: &Sizes) -> Checkpoint {
    let &Sizes { class, layers, hidden, heads, kv_heads, head_dim, inner, window, .. } = sizes;
    let mut config = serde_json::json!({
        "architectures": [class], "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": inner, "vocab_size": VOCAB,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "hidden_act": "silu", "eos_token_id": 2, "bos_token_id": 1,
    });
    if let Some(window) = window {
        config["sliding_window"] = window.into();
        if class == "Olmo3ForCausalLM" {
            let kind = |layer| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
            config["layer_types"] = (0..layers).map(kind).collect();
        }
    }
    let parsed = headrace_checkpoint::ModelConfig::from_json(config.to_string().as_bytes()).unwrap();
    let (mut header, mut bytes, mut random) = (BTreeMap::new(), Vec::new(), Random(3));
    for (name, shape) in parsed.tensors() {
        let begin = bytes.len();
        for _ in 0..shape.iter().product::<usize>() {
            let value = if shape.len() == 1 { 1.0 + random.weight(0.1) } else { random.weight(0.2) };
            bytes.extend(half::bf16::from_f32(value).to_le_bytes());
        }
        header.insert(
            name,
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, bytes.len()]}),
        );
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat();
    Checkpoint::from_files(vec![
        ("config.json".to_owned(), Cow::Owned(config.to_string().into_bytes())),
        ("model.safetensors".to_owned(), Cow::Owned(file)),
        ("tokenizer.json".to_owned(), Cow::Borrowed(b"{}")),
    ])
    .unwrap()
}

/// Options whose `pass_rows` and `partial_bytes` select different ways of computing.
fn options(pass_rows: usize, partial_bytes: usize, recorded_rows: usize) -> LoadOptions {
    LoadOptions {
        kv_blocks: Some(KvBlocks { full: BLOCKS, window: WINDOW_BLOCKS, states: 0 }),
        chunk: 300,
        pass_rows,
        logit_rows: 40,
        partial_bytes,
        recorded_rows,
        reserve_bytes: 0,
        threads: 1,
        ..LoadOptions::default()
    }
}

fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> CudaModel {
    CudaModel::load(common::device(), checkpoint, options, &mut |_, _| ()).unwrap()
}

/// Loads a model, and finds the memory of the layers with a window on an emulated device.
fn load_with_pages(
    checkpoint: &Checkpoint,
    sizes: &Sizes,
    options: &LoadOptions,
) -> (CudaModel, Vec<Buffer>) {
    if common::is_real() {
        return (load(checkpoint, options), Vec::new());
    }
    let device = Emulated::new();
    let memory = device.buffers.clone();
    let model = CudaModel::load(Box::new(device), checkpoint, options, &mut |_, _| ()).unwrap();
    let groups = model.shape().kv;
    let window = groups.groups().window();
    let layers = |is_window: fn(usize) -> bool| (0..sizes.layers).filter(|&layer| is_window(layer)).count();
    let with_window = match sizes.class {
        "Gemma2ForCausalLM" => layers(|layer| layer % 2 == 0),
        "MistralForCausalLM" => sizes.layers,
        _ => layers(|layer| layer % 6 != 5),
    };
    let bytes = window.block_count * window.bytes_per_block / with_window / 2;
    let memory = memory.lock().unwrap();
    let pages = memory.iter().filter(|buffer| window.is_used() && buffer.bytes == bytes);
    let pages: Vec<Buffer> = pages.copied().collect();
    assert_eq!(
        pages.len(),
        if window.is_used() { 2 * with_window } else { 0 },
        "keys and values of each layer"
    );
    (model, pages)
}

fn tokens(sequence: usize, length: usize) -> Vec<u32> {
    (0..length).map(|i| ((i * 37 + sequence * 11 + i * i) % VOCAB) as u32).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// Bits of the logits at every position of a sequence, computed alone in one step.
fn alone(model: &mut CudaModel, sequence: usize, length: usize) -> Vec<Vec<u32>> {
    let table: Vec<u32> = (0..length.div_ceil(BLOCK_TOKENS) as u32).collect();
    let (tokens, mut out) = (tokens(sequence, length), Logits::default());
    let chunk = SequenceChunk {
        tokens: &tokens,
        start: 0,
        tables: both(&table),
        logits: LogitsWanted::All,
        long_context: false,
    };
    model.step(&[chunk], &mut out).unwrap();
    (0..length).map(|row| bits(out.row(row).unwrap())).collect()
}

/// Tables with the same ids in both groups.
fn both(blocks: &[u32]) -> BlockTables<'_> {
    BlockTables { full: blocks, window: blocks, states: None }
}

/// The blocks of the layers with a window: taken when a sequence grows, and released once they are before its window.
struct WindowBlocks {
    group: KvGroup,
    free: Vec<u32>,
    tables: Vec<Vec<u32>>,
    /// Keys and values of each layer on an emulated device.
    pages: Vec<Buffer>,
    released: usize,
}

impl WindowBlocks {
    fn new(model: &CudaModel, pages: Vec<Buffer>, sequences: usize, random: &mut Random) -> WindowBlocks {
        let group = *model.shape().kv.groups().window();
        let free = shuffled(random, group.block_count);
        WindowBlocks { group, free, tables: vec![Vec::new(); sequences], pages, released: 0 }
    }

    /// Takes blocks for a sequence of `end` tokens. Blocks that were released before come first.
    fn grow(&mut self, sequence: usize, end: usize) {
        while self.tables[sequence].len() < self.group.blocks_for(end) {
            self.tables[sequence].push(self.free.pop().expect("a block"));
        }
    }

    /// Releases the blocks before the window of the next token, and fills them with NaN.
    fn release(&mut self, sequence: usize, computed: usize) {
        let outside = self.group.blocks_outside(computed).min(self.tables[sequence].len());
        for block in &mut self.tables[sequence][..outside] {
            if *block == FREED {
                continue;
            }
            for page in &self.pages {
                let bytes = page.bytes / self.group.block_count;
                common::poison(page.part(*block as usize * bytes, bytes).unwrap());
            }
            self.free.push(*block);
            *block = FREED;
            self.released += 1;
        }
    }
}

/// The ids of `count` blocks in random order.
fn shuffled(random: &mut Random, count: usize) -> Vec<u32> {
    let mut blocks: Vec<u32> = (0..count as u32).collect();
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, random.below(i + 1));
    }
    blocks
}

/// Computes sequences in one batch, each cut at random: long chunks beside single tokens. Returns the first difference
/// from the results of each sequence alone, or the number of rows compared.
fn mixed(
    (model, pages): (&mut CudaModel, Vec<Buffer>),
    expected: &[Vec<Vec<u32>>],
    random: &mut Random,
) -> Result<usize, String> {
    let (count, length) = (expected.len(), expected[0].len());
    let each = length.div_ceil(BLOCK_TOKENS);
    let blocks = shuffled(random, BLOCKS);
    let mut windows = WindowBlocks::new(model, pages, count, random);
    let tables: Vec<&[u32]> = blocks.chunks(each).take(count).collect();
    let all: Vec<Vec<u32>> = (0..count).map(|sequence| tokens(sequence, length)).collect();
    let (mut done, mut out, mut compared) = (vec![0; count], Logits::default(), 0);
    // Each sequence ends near the full length. It takes chunks of random length until its last tokens.
    let ends: Vec<usize> = (0..count).map(|_| length - random.below(12)).collect();
    while (0..count).any(|s| done[s] < ends[s]) {
        let mut owners = Vec::new();
        for s in 0..count {
            let left = ends[s] - done[s];
            if left == 0 || random.below(5) == 0 {
                continue;
            }
            let length = match random.below(4) {
                0 => 1,
                1 => 1 + random.below(8),
                2 => 1 + random.below(70),
                _ => 1 + random.below(300),
            };
            // The last tokens come one by one, as in decoding.
            let length = length.min(if left > 6 { left - 6 } else { 1 });
            let logits = [LogitsWanted::All, LogitsWanted::Last, LogitsWanted::None][random.below(3)];
            windows.grow(s, done[s] + length);
            owners.push((s, length, logits));
        }
        let chunk = |&(s, length, logits): &(usize, usize, LogitsWanted)| SequenceChunk {
            tokens: &all[s][done[s]..done[s] + length],
            start: done[s],
            tables: BlockTables { full: tables[s], window: &windows.tables[s], states: None },
            logits,
            long_context: false,
        };
        let batch: Vec<_> = owners.iter().map(chunk).collect();
        model.step(&batch, &mut out).unwrap();
        let mut row = 0;
        for (s, length, logits) in owners {
            let end = done[s] + length;
            for (back, want) in expected[s][..end].iter().rev().take(logits.rows(length)).rev().enumerate() {
                if bits(out.row(row).unwrap()) != *want {
                    let position = end - logits.rows(length) + back;
                    return Err(format!("sequence {s}, position {position}, in a chunk of {length}"));
                }
                row += 1;
                compared += 1;
            }
            done[s] = end;
            windows.release(s, end);
        }
        assert_eq!(row, out.rows());
    }
    assert_eq!(windows.released > 0, windows.group.is_used(), "blocks were released");
    Ok(compared)
}

#[test]
fn logits_do_not_depend_on_batch_chunks_blocks_or_passes() {
    let seed = seed();
    for (index, sizes) in MODELS.iter().enumerate() {
        let checkpoint = checkpoint(sizes);
        let mut one = load(&checkpoint, &options(1024, 1 << 20, 0));
        let expected: Vec<_> = (0..3).map(|sequence| alone(&mut one, sequence, sizes.length)).collect();
        let finite = expected.iter().flatten().flatten().all(|&bits| f32::from_bits(bits).is_finite());
        assert!(finite && expected[0][5] != expected[1][5], "{sizes:?}");
        // The second variant has passes so short that chunks are cut, partial results for one entry at a time, and
        // recorded decode steps.
        for (way, options) in [options(1024, 1 << 20, 0), options(48, 0, 16)].iter().enumerate() {
            let mut random = Random(seed.wrapping_add((index * 10 + way) as u64));
            let (mut model, pages) = load_with_pages(&checkpoint, sizes, options);
            match mixed((&mut model, pages), &expected, &mut random) {
                Ok(compared) => println!("{sizes:?}, seed {seed}, way {way}: {compared} rows alike"),
                Err(difference) => panic!("{sizes:?}, way {way}, HEADRACE_SEED={seed}: {difference}"),
            }
        }
    }
}

#[test]
fn recorded_decode_steps_give_the_bits_of_launched_ones() {
    // The last token sees the window that begins within its first block.
    for sizes in [MODELS[2], MODELS[3], Sizes { window: Some(17), ..MODELS[5] }] {
        recorded_steps(&sizes);
    }
}

fn recorded_steps(sizes: &Sizes) {
    let checkpoint = checkpoint(sizes);
    let mut launched = load(&checkpoint, &options(1024, 1 << 20, 0));
    let mut recorded = load(&checkpoint, &options(1024, 1 << 20, 64));
    let blocks: Vec<u32> = (0..WINDOW_BLOCKS as u32).collect();
    let tables: Vec<&[u32]> = blocks.chunks(5).collect();
    let all: Vec<Vec<u32>> = (0..19).map(|sequence| tokens(sequence, 40)).collect();
    let (mut a, mut b) = (Logits::default(), Logits::default());
    for model in [&mut launched, &mut recorded] {
        let prompts: Vec<_> = (0..19)
            .map(|s| SequenceChunk {
                tokens: &all[s][..20 + s % 3],
                start: 0,
                tables: both(tables[s]),
                logits: LogitsWanted::None,
                long_context: false,
            })
            .collect();
        model.step(&prompts, &mut a).unwrap();
    }
    for step in 0..8 {
        // Batches grow and shrink, and sequences come in any order.
        let count = [1, 3, 8, 9, 19, 19, 2, 1][step];
        let batch: Vec<_> = (0..count)
            .map(|i| (i * 5 + step) % 19)
            .map(|s| SequenceChunk {
                tokens: &all[s][19..20],
                start: 19,
                tables: both(tables[s]),
                logits: LogitsWanted::Last,
                long_context: false,
            })
            .collect();
        launched.step(&batch, &mut a).unwrap();
        recorded.step(&batch, &mut b).unwrap();
        assert_eq!(a.rows(), count);
        assert_eq!(bits(a.values()), bits(b.values()), "{sizes:?}, step {step}, {count} sequences");
    }
    assert!(recorded.recordings() >= 2 && launched.recordings() == 0, "{}", recorded.recordings());
}
