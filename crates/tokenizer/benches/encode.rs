//! Compares the cost of encoding with Hugging Face's library: one megabyte of text and a prompt of 500 characters. The
//! vocabularies are byte-level and SentencePiece-style, with 32,000 tokens, trained on the text of this repository.
//!
//! `HEADRACE_TOKENIZER_JSON` names other tokenizers (paths separated by colons), and `HEADRACE_TOKENIZER_TEXT` another
//! text.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use headrace_checkpoint::TokenizerConfig;
use headrace_tokenizer::{Segment, Tokenizer};
use serde_json::{Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as Library};

type Failure = Box<dyn Error + Send + Sync>;

const VOCABULARY: usize = 32_000;
const MEGABYTE: usize = 1_000_000;
const PROMPT_CHARACTERS: usize = 500;
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn bench(criterion: &mut Criterion) {
    if let Err(error) = run(criterion) {
        eprintln!("not measured: {error}");
    }
}

fn run(criterion: &mut Criterion) -> Result<(), Failure> {
    let text = text()?;
    let megabyte: String = text.chars().scan(0, |bytes, c| within(bytes, c, MEGABYTE).then_some(c)).collect();
    let prompt: String = text.chars().skip(2_000).take(PROMPT_CHARACTERS).collect();
    for (name, file) in tokenizers(&text)? {
        let ours = Tokenizer::new(&file, &TokenizerConfig::default())?;
        let theirs = Library::from_bytes(&file)?;
        if ours.encode(&megabyte, false)? != theirs.encode_fast(megabyte.as_str(), false)?.get_ids() {
            return Err(format!("{name}: the ids differ").into());
        }
        let mut group = criterion.benchmark_group(format!("{name}, 1 MB"));
        group.sample_size(10).throughput(Throughput::Bytes(megabyte.len() as u64));
        group.bench_function("headrace", |b| b.iter(|| ours.encode(black_box(&megabyte), false)));
        group.bench_function("tokenizers", |b| {
            b.iter(|| theirs.encode_fast(black_box(megabyte.as_str()), false))
        });
        group.finish();
        let mut group = criterion.benchmark_group(format!("{name}, {PROMPT_CHARACTERS} characters"));
        group.throughput(Throughput::Bytes(prompt.len() as u64));
        group.bench_function("headrace", |b| b.iter(|| ours.encode(black_box(&prompt), false)));
        let segments = [
            Segment::Trusted("<|im_start|>user\n"),
            Segment::Literal(&prompt),
            Segment::Trusted("<|im_end|>\n<|im_start|>assistant\n"),
        ];
        group.bench_function("headrace, in segments", |b| {
            b.iter(|| ours.encode_segments(black_box(&segments), true));
        });
        group.bench_function("tokenizers", |b| {
            b.iter(|| theirs.encode_fast(black_box(prompt.as_str()), false))
        });
        group.finish();
        let mut group = criterion.benchmark_group(format!("{name}, one letter a million times"));
        group.sample_size(10);
        let hostile = "a".repeat(MEGABYTE);
        group.bench_function("headrace", |b| b.iter(|| ours.encode(black_box(&hostile), false)));
        group.finish();
        let mut group = criterion.benchmark_group(format!("{name}, loading"));
        group.sample_size(10);
        group.bench_function("headrace", |b| b.iter(|| Tokenizer::new(&file, &TokenizerConfig::default())));
        group.bench_function("tokenizers", |b| b.iter(|| Library::from_bytes(&file)));
        group.finish();
    }
    Ok(())
}

fn within(bytes: &mut usize, c: char, limit: usize) -> bool {
    *bytes += c.len_utf8();
    *bytes <= limit
}

/// Returns all prose and source text of the repository, prose first.
fn text() -> Result<String, Failure> {
    if let Ok(path) = std::env::var("HEADRACE_TOKENIZER_TEXT") {
        return Ok(fs::read_to_string(path)?);
    }
    let mut files = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["crates", "docs", "xtask"] {
        gather(&root.join(folder), &mut files)?;
    }
    files.extend(["ARCHITECTURE.md", "README.md"].map(|name| root.join(name)));
    files.sort_by_key(|path| (path.extension().is_none_or(|kind| kind != "md"), path.clone()));
    let texts: Vec<String> = files.iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    Ok(texts.concat())
}

fn gather(folder: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, files)?;
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "md") {
            files.push(path);
        }
    }
    Ok(())
}

fn tokenizers(text: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    if let Ok(paths) = std::env::var("HEADRACE_TOKENIZER_JSON") {
        let read = |path: &str| Ok((path.rsplit('/').nth(1).unwrap_or(path).to_owned(), fs::read(path)?));
        return paths.split(':').map(read).collect();
    }
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
    // Splits as SentencePiece does when it trains: scripts apart, and a mark only before the word that it begins.
    let marked = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
        {"type": "Split", "pattern": {"Regex": r"▁?\p{L}+|▁?\p{N}|▁?[^\p{L}\p{N}▁]+|▁+"}, "behavior": "Isolated",
            "invert": false},
    ]});
    let plain = train(text, split, &[])?;
    let mut composed = plain.clone();
    composed["normalizer"] = json!({"type": "NFC"});
    let bytes: Vec<String> = (0u8..=255).map(|byte| format!("<{byte:#04X}>")).collect();
    let mut marks = train(text, marked, &bytes)?;
    marks["pre_tokenizer"] = Value::Null;
    marks["normalizer"] = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]});
    marks["model"]["byte_fallback"] = json!(true);
    if let Some(added) = marks["added_tokens"].as_array_mut() {
        added.retain(|token| token["content"].as_str().is_some_and(|content| !content.starts_with("<0x")));
    }
    let rows = [("bytes", plain), ("bytes, NFC", composed), ("marks", marks)];
    Ok(rows.map(|(name, file)| (name.to_owned(), file.to_string().into_bytes())).into())
}

/// Trains a tokenizer with the given pre-tokenizer on `text`, and returns its file.
fn train(text: &str, pre_tokenizer: Value, more: &[String]) -> Result<Value, Failure> {
    let mut library = Library::new(BPE::default());
    library
        .with_pre_tokenizer(Some(serde_json::from_value::<tokenizers::PreTokenizerWrapper>(pre_tokenizer)?));
    let special = ["<|im_start|>", "<|im_end|>"].into_iter().chain(more.iter().map(String::as_str));
    let trainer = BpeTrainer::builder()
        .vocab_size(VOCABULARY)
        .show_progress(false)
        .special_tokens(special.map(|token| AddedToken::from(token, true)).collect());
    let trainer = if more.is_empty() {
        trainer.initial_alphabet(ByteLevel::alphabet().into_iter().collect())
    } else {
        trainer
    };
    library.train(
        &mut TrainerWrapper::from(trainer.build()),
        text.lines().filter(|line| !line.contains("<|")).map(|line| format!("{line}\n")),
    )?;
    Ok(serde_json::from_str(&library.to_string(false)?)?)
}

criterion_group!(benches, bench);
criterion_main!(benches);
