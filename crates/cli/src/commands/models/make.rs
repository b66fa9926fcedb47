//! `headrace models make`: makes a checkpoint with random weights and a real shape, for measurements. Any engine that
//! reads the format can load it. Its output is meaningless.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use headrace_checkpoint::DType;
use headrace_checkpoint::decoder::TensorSpec;
use headrace_checkpoint::gguf::writer::{Setting, WriteError, Writer};
use headrace_checkpoint::gguf::{ElementChange, FileDescription, Numbers, RowOrigin};
use headrace_kernels::exp_f32;
use headrace_quant::quantize_row;
use headrace_server::machine;
use headrace_terminal::output;
use headrace_terminal::progress::ProgressLine;
use serde_json::{Map, Value, json};

use crate::arguments::MakeArgs;

use super::noise::NoiseWeights;
use super::plan::{CheckpointPlan, PlannedTensor};
use super::words::{MOST_WORDS, TEMPLATE, VocabularyPlan};

/// Number of weights that a thread makes at a time.
const PIECE_WEIGHTS: usize = 1 << 18;

/// Makes the checkpoint and describes it.
pub(super) fn run(args: &MakeArgs) -> Result<(), String> {
    let plan = CheckpointPlan::of(args)?;
    let dense = plan.tensors.iter().all(|tensor| !matches!(tensor.dtype, DType::Block(_)));
    if args.format == "safetensors" && !dense {
        return Err("safetensors files hold f32, f16 and bf16; for block types give --format gguf".to_owned());
    }
    if args.out.exists() {
        return Err(format!("{} is there already; give another path, or remove it", args.out.display()));
    }
    plan.fallbacks.iter().for_each(|line| output::note(line));
    let words = VocabularyPlan::of_size(plan.config.vocab_size.min(MOST_WORDS));
    match &plan.description {
        Some(description) => write_gguf(args, (&plan, description), &words)?,
        None => write_directory(args, &plan, &words)?,
    }
    let weights: u64 = plan.tensors.iter().map(PlannedTensor::weights).sum();
    let bytes: u64 = plan.tensors.iter().map(|tensor| tensor.bytes() as u64).sum();
    output::say(&format!(
        "{}: {} random weights of seed {} in {} ({}), a vocabulary of {}, a ChatML template\n\
         look into it with `headrace models inspect {0}`, serve it with `headrace up --model {0}`\n",
        args.out.display(),
        scaled(weights, [" thousand", " million", " billion"]),
        args.seed,
        scaled(bytes, [" KB", " MB", " GB"]),
        args.r#type,
        headrace_trace::counted(words.tokens.len() as u64, "token"),
    ));
    Ok(())
}

/// Formats a count with three digits, in thousands, millions or billions.
fn scaled(count: u64, units: [&str; 3]) -> String {
    let [thousand, million, billion] = units;
    let (unit, size) = match count {
        0..1_000_000 => (thousand, 1e3),
        1_000_000..1_000_000_000 => (million, 1e6),
        _ => (billion, 1e9),
    };
    format!("{}{unit}", headrace_trace::three_digits(count as f64 / size))
}

/// A file that has another name until it is complete.
struct UnfinishedFile {
    path: PathBuf,
    target: PathBuf,
}

impl UnfinishedFile {
    fn create(target: &Path) -> Result<(Self, BufWriter<File>), String> {
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let this = Self { path: name.into(), target: target.to_owned() };
        let file = File::create(&this.path).map_err(|error| this.failed(&error))?;
        Ok((this, BufWriter::with_capacity(1 << 20, file)))
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> String {
        format!("{}: {error}", self.path.display())
    }

    fn finish(self) -> Result<(), String> {
        std::fs::rename(&self.path, &self.target).map_err(|error| self.failed(&error))
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        // A finished file was renamed, so this removes nothing. Half a checkpoint is useless.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn write_gguf(
    args: &MakeArgs,
    (plan, description): (&CheckpointPlan, &FileDescription),
    words: &VocabularyPlan,
) -> Result<(), String> {
    let mut writer = Writer::new();
    for (key, value) in [
        ("general.type", Setting::Text("model".to_owned())),
        ("general.name", Setting::Text(format!("random weights of seed {}", args.seed))),
        ("general.quantization_version", Setting::U32(2)),
        ("general.file_type", Setting::U32(file_type(&args.r#type))),
    ] {
        writer.set(key, value);
    }
    description.settings.iter().for_each(|(key, value)| writer.set(key, value.clone()));
    describe_words(&mut writer, words, plan.config.vocab_size);
    let said = |error: WriteError| error.to_string();
    for (name, factors) in &description.rope_factors {
        writer.tensor(name, DType::F32, &[factors.len()]).map_err(said)?;
    }
    for tensor in &plan.tensors {
        writer.tensor(tensor.name(), tensor.dtype, tensor.shape()).map_err(said)?;
    }
    let (unfinished, file) = UnfinishedFile::create(&args.out)?;
    let failed = |error: WriteError| unfinished.failed(&error);
    let mut body = writer.begin(file).map_err(failed)?;
    for (_, factors) in &description.rope_factors {
        let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        body.tensor(&bytes).map_err(failed)?;
    }
    let mut maker = TensorMaker::new(args.seed, plan, &format!("making {}", args.out.display()));
    for tensor in &plan.tensors {
        body.tensor(&maker.bytes(tensor)?).map_err(failed)?;
    }
    body.finish().map_err(failed)?;
    maker.progress.end();
    unfinished.finish()
}

/// llama.cpp's number for a file that is mostly of this type.
fn file_type(name: &str) -> u32 {
    match name.to_ascii_lowercase().as_str() {
        "f32" => 0,
        "q4_0" => 2,
        "q4_1" => 3,
        "q8_0" => 7,
        "q5_0" => 8,
        "q5_1" => 9,
        "q4_k" => 14,
        "q5_k" => 16,
        "q6_k" => 18,
        "iq4_nl" => 25,
        "bf16" => 32,
        "mxfp4" => 38,
        _ => 1,
    }
}

fn describe_words(writer: &mut Writer, words: &VocabularyPlan, rows: usize) {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const UNUSED: i32 = 5;
    let mut tokens = words.tokens.clone();
    let mut kinds = vec![NORMAL; words.first_control()];
    kinds.resize(tokens.len(), CONTROL);
    // llama.cpp takes the number of tokens as the number of rows, so pad to it.
    tokens.extend((tokens.len()..rows).map(|id| format!("[PAD{id}]")));
    kinds.resize(tokens.len(), UNUSED);
    let merges: Vec<String> = words.merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let texts = |list: &[String]| Setting::Texts(list.iter().map(String::as_str).collect());
    let mut set = |key: &str, value| writer.set(&format!("tokenizer.{key}"), value);
    set("ggml.model", Setting::Text("gpt2".to_owned()));
    set("ggml.pre", Setting::Text("llama-bpe".to_owned()));
    set("ggml.tokens", texts(&tokens));
    set("ggml.token_type", Setting::Numbers(Numbers::of_i32(&kinds)));
    set("ggml.merges", texts(&merges));
    set("ggml.bos_token_id", Setting::U32(words.control("<|endoftext|>")));
    set("ggml.eos_token_id", Setting::U32(words.control("<|im_end|>")));
    set("ggml.padding_token_id", Setting::U32(words.control("<|endoftext|>")));
    set("ggml.add_bos_token", Setting::Bool(false));
    set("chat_template", Setting::Text(TEMPLATE.to_owned()));
}

fn write_directory(args: &MakeArgs, plan: &CheckpointPlan, words: &VocabularyPlan) -> Result<(), String> {
    let dir = &args.out;
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let dtype = match plan.tensors.first().map(|tensor| tensor.dtype) {
        Some(DType::F32) => "float32",
        Some(DType::F16) => "float16",
        _ => "bfloat16",
    };
    let mut members = plan.members.clone();
    members.insert("torch_dtype".to_owned(), json!(dtype));
    let tokenizer_config = json!({
        "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "add_bos_token": false, "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast",
    });
    for (name, value) in [
        ("config.json", Value::Object(members)),
        ("tokenizer.json", words.json()),
        ("tokenizer_config.json", tokenizer_config),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, format!("{value:#}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    write_safetensors(args, plan, &dir.join("model.safetensors"))
}

fn write_safetensors(args: &MakeArgs, plan: &CheckpointPlan, path: &Path) -> Result<(), String> {
    let (mut header, mut end) = (Map::new(), 0_usize);
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    for tensor in &plan.tensors {
        let begin = end;
        end = end.saturating_add(tensor.bytes());
        let dtype = tensor.dtype.name().to_ascii_uppercase();
        let entry = json!({"dtype": dtype, "shape": tensor.shape(), "data_offsets": [begin, end]});
        header.insert(tensor.name().to_owned(), entry);
    }
    let mut text = Value::Object(header).to_string();
    // The data begins at a multiple of eight, as in the format's own library.
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let (unfinished, mut file) = UnfinishedFile::create(path)?;
    let failed = |error: std::io::Error| unfinished.failed(&error);
    file.write_all(&(text.len() as u64).to_le_bytes()).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    let mut maker = TensorMaker::new(args.seed, plan, &format!("making {}", args.out.display()));
    for tensor in &plan.tensors {
        file.write_all(&maker.bytes(tensor)?).map_err(failed)?;
    }
    file.flush().map_err(failed)?;
    maker.progress.end();
    unfinished.finish()
}

/// Makes tensors one after the other, each on all processors.
struct TensorMaker<'p> {
    noise: CheckpointNoise<'p>,
    progress: ProgressLine,
    done: u64,
    total: u64,
}

impl<'p> TensorMaker<'p> {
    fn new(seed: u64, plan: &'p CheckpointPlan, what: &str) -> Self {
        let total = plan.tensors.iter().map(|tensor| tensor.bytes() as u64).sum();
        let noise = CheckpointNoise { seed, norms: plan.config.norm_weights() };
        Self { noise, progress: ProgressLine::new(what), done: 0, total }
    }

    fn bytes(&mut self, tensor: &PlannedTensor) -> Result<Vec<u8>, String> {
        let (rows, k) = tensor.rows();
        let row_bytes =
            tensor.dtype.row_bytes(k).ok_or_else(|| format!("{}: no whole blocks", tensor.name()))?;
        let mut bytes = vec![0_u8; row_bytes.saturating_mul(rows)];
        let rows_a_piece = (PIECE_WEIGHTS / k.max(1)).max(1);
        let pieces = bytes.chunks_mut(rows_a_piece.saturating_mul(row_bytes).max(1)).enumerate();
        let shared = Mutex::new((pieces, Ok(())));
        let noise = &self.noise;
        let (mut done, total, progress) = (self.done, self.total, &mut self.progress);
        let next = || shared.lock().unwrap_or_else(PoisonError::into_inner).0.next();
        let work = |mut after: Option<&mut dyn FnMut(usize)>| {
            while let Some((piece, out)) = next() {
                if let Err(why) = noise.rows(tensor, piece * rows_a_piece, (k, row_bytes), out) {
                    shared.lock().unwrap_or_else(PoisonError::into_inner).1 = Err(why);
                    return;
                }
                if let Some(after) = &mut after {
                    after(out.len());
                }
            }
        };
        let threads = machine::processors().max(1);
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(|| work(None))));
            // Other threads are about as fast, so this thread's progress counts once for each thread.
            work(Some(&mut |bytes| {
                done = done.saturating_add(bytes as u64 * threads as u64);
                progress.bytes(done.min(total), total);
            }));
        });
        shared.into_inner().unwrap_or_else(PoisonError::into_inner).1?;
        self.done = self.done.saturating_add(bytes.len() as u64);
        Ok(bytes)
    }
}

/// The weights of a whole checkpoint, by Hugging Face's names and order.
struct CheckpointNoise<'p> {
    seed: u64,
    /// The factors of norms, each with the value that changes nothing.
    norms: BTreeMap<&'p str, f32>,
}

impl CheckpointNoise<'_> {
    fn of(&self, tensor: &TensorSpec) -> NoiseWeights {
        let name = tensor.name.as_str();
        let (mean, sigma) = match (self.norms.get(name), &*tensor.shape) {
            (Some(neutral), _) => (*neutral, 0.05),
            (None, [_, .., k]) if !name.ends_with("bias") => (0.0, 1.0 / (*k as f32).sqrt()),
            (None, _) => (0.0, 0.02),
        };
        NoiseWeights::new(self.seed, name, mean, sigma)
    }

    /// Makes rows from `first` on, of `k` weights and `row_bytes` bytes each, as many as `out` can hold.
    fn rows(
        &self,
        tensor: &PlannedTensor,
        first: usize,
        (k, row_bytes): (usize, usize),
        out: &mut [u8],
    ) -> Result<(), String> {
        let mut weights = vec![0.0_f32; k];
        for (index, row) in out.chunks_exact_mut(row_bytes.max(1)).enumerate() {
            let origin = tensor.origin(first + index);
            self.row(
                &origin.ok_or_else(|| format!("{}: a row without origin", tensor.name()))?,
                &mut weights,
            );
            store(tensor.dtype, &weights, row)?;
        }
        Ok(())
    }

    fn row(&self, origin: &RowOrigin<'_>, out: &mut [f32]) {
        let noise = self.of(origin.tensor);
        let width = origin.tensor.shape.last().copied().unwrap_or(1).max(1);
        match origin.first_of_following() {
            Some(first) if out.len() == width && first.is_multiple_of(width) => {
                noise.fill(first / width, out);
            }
            _ => {
                for (column, weight) in out.iter_mut().enumerate() {
                    let at = origin.element(column);
                    *weight = noise.element(at / width, at % width);
                }
            }
        }
        match origin.change {
            ElementChange::None => {}
            ElementChange::PlusOne => out.iter_mut().for_each(|weight| *weight += 1.0),
            ElementChange::NegativeExponential => {
                out.iter_mut().for_each(|weight| *weight = -exp_f32(*weight))
            }
        }
    }
}

fn store(dtype: DType, weights: &[f32], out: &mut [u8]) -> Result<(), String> {
    match dtype {
        DType::F32 => {
            for (to, weight) in out.as_chunks_mut::<4>().0.iter_mut().zip(weights) {
                *to = weight.to_le_bytes();
            }
        }
        DType::F16 => {
            for (to, weight) in out.as_chunks_mut::<2>().0.iter_mut().zip(weights) {
                *to = half::f16::from_f32(*weight).to_le_bytes();
            }
        }
        DType::BF16 => {
            for (to, weight) in out.as_chunks_mut::<2>().0.iter_mut().zip(weights) {
                *to = half::bf16::from_f32(*weight).to_le_bytes();
            }
        }
        DType::Block(kind) => return quantize_row(kind, weights, out).map_err(|error| error.to_string()),
    }
    Ok(())
}
