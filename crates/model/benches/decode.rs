//! Decode and prefill of a 1.04-billion-parameter bf16 model with random weights, each rate beside the limit that was measured
//! in the same run (medians of steps; the first prefill also touches its memory for the first time). `cargo bench -p headrace-model`; `HEADRACE_ISA` and `HEADRACE_THREADS` choose.

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use headrace_checkpoint::Checkpoint;
use headrace_kernels::forward::{Forward, Logits, LogitsWanted, SequenceChunk};
use headrace_kernels::isa::ISA_VARIABLE;
use headrace_kernels::{Isa, Kernels, roofline};
use headrace_model::{LoadOptions, Model};

type Failure = Box<dyn std::error::Error>;
/// File names and contents.
type Files = Vec<(String, Cow<'static, [u8]>)>;

const HIDDEN: usize = 2048;
const LAYERS: usize = 16;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const INNER: usize = 8192;
const VOCAB: usize = 32_000;
const PROMPT: usize = 512;
const DECODE_STEPS: usize = 32;
const KV_BLOCKS: usize = 4096;

fn main() -> Result<(), Failure> {
    let isa = Isa::choose(std::env::var(ISA_VARIABLE).ok().as_deref())?;
    let threads = match std::env::var("HEADRACE_THREADS") {
        Ok(text) => text.parse()?,
        Err(_) => std::thread::available_parallelism()?.get(),
    };
    let mut kernels = Kernels::new(isa, threads)?;
    let bandwidth = roofline::read_bytes_per_second(&mut kernels)?;
    let flops = roofline::flops_per_second(&mut kernels)?;
    drop(kernels);
    println!("{isa}, {threads} threads: reads {:.1} GB/s, f32 {:.0} GFLOP/s", bandwidth / 1e9, flops / 1e9);

    let begin = Instant::now();
    let checkpoint = Checkpoint::from_files(random_files()?)?;
    println!("random weights in {:.1} s", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let options = LoadOptions { isa, threads, kv_blocks: KV_BLOCKS, max_positions: Some(8192) };
    let mut model = Model::load(&checkpoint, options, &mut |_, _| ())?;
    drop(checkpoint);
    println!("packed in {:.1} s", begin.elapsed().as_secs_f64());

    let layer_weights = HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * HIDDEN * INNER;
    let (body, head) = (layer_weights * LAYERS, HIDDEN * VOCAB);
    println!("{:.2} B parameters", (body + head) as f64 / 1e9);
    for _ in 0..3 {
        prefill(&mut model, body, flops)?;
    }
    for batch in [1, 2, 4, 8, 16, 32] {
        decode(&mut model, batch, 2 * (body + head), bandwidth, flops)?;
    }
    Ok(())
}

fn prefill(model: &mut Model, body: usize, flops: f64) -> Result<(), Failure> {
    let tokens: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 37 + 11) % VOCAB as u32).collect();
    let blocks: Vec<u32> = (0..KV_BLOCKS as u32).collect();
    let chunk = SequenceChunk { tokens: &tokens, start: 0, blocks: &blocks, logits: LogitsWanted::Last };
    let mut out = Logits::default();
    let begin = Instant::now();
    model.step(&[chunk], &mut out)?;
    let seconds = begin.elapsed().as_secs_f64();
    let done = 2.0 * body as f64 * PROMPT as f64 / seconds;
    println!(
        "prefill {PROMPT}: {:7.1} tokens/s, {:6.0} GFLOP/s, {:4.1} % of the peak",
        PROMPT as f64 / seconds,
        done / 1e9,
        100.0 * done / flops
    );
    Ok(())
}

fn decode(model: &mut Model, batch: usize, bytes: usize, bandwidth: f64, flops: f64) -> Result<(), Failure> {
    let tables: Vec<Vec<u32>> = (0..batch as u32).map(|s| (s * 64..(s + 1) * 64).collect()).collect();
    let mut out = Logits::default();
    let mut step = |position: usize| -> Result<(), Failure> {
        let token = [(position * 97 % VOCAB) as u32];
        let chunks: Vec<_> = tables
            .iter()
            .map(|blocks| SequenceChunk {
                tokens: &token,
                start: position,
                blocks,
                logits: LogitsWanted::Last,
            })
            .collect();
        Ok(model.step(&chunks, &mut out)?)
    };
    step(0)?;
    let mut times = Vec::new();
    for position in 1..=DECODE_STEPS {
        let begin = Instant::now();
        step(position)?;
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let seconds = times.get(DECODE_STEPS / 2).copied().unwrap_or(f64::NAN);
    let read = bytes as f64 / seconds;
    println!(
        "decode batch {batch:2}: {:6.1} tokens/s, {:5.1} GB/s, {:4.1} % of bandwidth, {:4.1} % of the f32 peak",
        batch as f64 / seconds,
        read / 1e9,
        100.0 * read / bandwidth,
        100.0 * bytes as f64 * batch as f64 / seconds / flops
    );
    Ok(())
}

/// A checkpoint in memory: `config.json`, a tokenizer (which the model does not read) and one file of weights.
fn random_files() -> Result<Files, Failure> {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": INNER, "vocab_size": VOCAB, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1,
    });
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama-gqa-untied/tokenizer.json");
    Ok(vec![
        ("config.json".to_owned(), Cow::Owned(serde_json::to_vec(&config)?)),
        ("tokenizer.json".to_owned(), Cow::Owned(std::fs::read(tokenizer)?)),
        ("model.safetensors".to_owned(), Cow::Owned(random_weights()?)),
    ])
}

fn random_weights() -> Result<Vec<u8>, Failure> {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.k_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.v_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD_DIM]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![INNER, HIDDEN]),
            ("mlp.up_proj", vec![INNER, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INNER]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0_usize);
    for (name, shape) in &tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}),
        );
    }
    let header = serde_json::to_vec(&header)?;
    let mut file = Vec::with_capacity(8 + header.len() + end);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(&header);
    // xorshift64: four bf16 of magnitude 2⁻⁷ to 2⁻⁶ and either sign at a time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..end / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let four = (state & 0x807f_807f_807f_807f) | 0x3c00_3c00_3c00_3c00;
        file.extend_from_slice(&four.to_le_bytes());
    }
    Ok(file)
}
