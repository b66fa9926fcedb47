//! Families of tokenizers by their names in GGUF: a GGUF file, the family's `tokenizer.json` and Hugging Face's
//! library give the same ids (`data/families/make.py` recorded them).

use headrace_checkpoint::gguf::Numbers;
use headrace_checkpoint::gguf::writer::{Setting, Writer};
use headrace_checkpoint::{Checkpoint, DType, TokenizerConfig};
use headrace_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::common::data;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

fn table() -> Value {
    serde_json::from_slice(&data("families/families.json")).unwrap()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// Returns a GGUF file with this tokenizer and the smallest possible model.
fn gguf(tokens: &[&str], types: &[i32], merges: &[&str], settings: &[(&str, Setting)]) -> Checkpoint {
    let mut writer = Writer::new();
    writer.set("general.architecture", Setting::Text("llama".to_owned()));
    for (key, n) in [
        ("context_length", 16),
        ("embedding_length", 8),
        ("block_count", 1),
        ("feed_forward_length", 8),
        ("attention.head_count", 2),
    ] {
        writer.set(&format!("llama.{key}"), Setting::U32(n));
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", Setting::F32(1e-5));
    let texts = |list: &[&str]| Setting::Texts(list.iter().copied().collect());
    writer.set("tokenizer.ggml.tokens", texts(tokens));
    writer.set("tokenizer.ggml.token_type", Setting::Numbers(Numbers::of_i32(types)));
    writer.set("tokenizer.ggml.merges", texts(merges));
    settings.iter().for_each(|(key, value)| writer.set(key, value.clone()));
    let mut tensors = vec![("token_embd.weight".to_owned(), vec![tokens.len(), 8])];
    tensors.push(("output_norm.weight".to_owned(), vec![8]));
    for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        tensors.push((format!("blk.0.{part}.weight"), vec![8, 8]));
    }
    for part in ["attn_norm", "ffn_norm"] {
        tensors.push((format!("blk.0.{part}.weight"), vec![8]));
    }
    tensors.iter().for_each(|(name, shape)| writer.tensor(name, DType::F32, shape).unwrap());
    let mut body = writer.begin(Vec::new()).unwrap();
    for (_, shape) in &tensors {
        body.tensor(&vec![0; 4 * shape.iter().product::<usize>()]).unwrap();
    }
    Checkpoint::from_files(vec![("m.gguf".to_owned(), body.finish().unwrap().into())]).unwrap()
}

fn tokenizer_of(checkpoint: &Checkpoint) -> Tokenizer {
    Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config()).unwrap()
}

fn tokenizer(file: &Value) -> Tokenizer {
    Tokenizer::new(file.to_string().as_bytes(), &TokenizerConfig::default()).unwrap()
}

#[test]
fn a_gguf_name_gives_the_ids_of_the_familys_tokenizer_json() {
    let table = table();
    let texts = strings(&table["texts"]);
    let (mut tokens, merges) = (strings(&table["tokens"]), strings(&table["merges"]));
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, text)| ((*text).to_owned(), json!(id))).collect();
    let mut types = vec![NORMAL; tokens.len()];
    for token in table["added"].as_array().unwrap() {
        tokens.push(token["content"].as_str().unwrap());
        types.push(if token["special"] == true { CONTROL } else { USER_DEFINED });
    }
    let mut names = 0;
    for family in table["families"].as_array().unwrap() {
        let theirs = tokenizer(&json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": table["added"],
            "normalizer": family["normalizer"], "pre_tokenizer": family["pre_tokenizer"], "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": family["ignore_merges"], "vocab": vocab, "merges": merges,
            },
        }));
        for name in strings(&family["pre"]) {
            let file = gguf(
                &tokens,
                &types,
                &merges,
                &[
                    ("tokenizer.ggml.model", Setting::Text("gpt2".to_owned())),
                    ("tokenizer.ggml.pre", Setting::Text(name.to_owned())),
                ],
            );
            let ours = tokenizer_of(&file);
            for (text, expected) in texts.iter().zip(family["ids"].as_array().unwrap()) {
                let expected = ids(expected);
                assert_eq!(theirs.encode(text, false).unwrap(), expected, "{name}, tokenizer.json: {text:?}");
                assert_eq!(ours.encode(text, false).unwrap(), expected, "{name}, GGUF: {text:?}");
                assert_eq!(
                    ours.decode(&expected, false),
                    theirs.decode(&expected, false),
                    "{name}: {text:?}"
                );
            }
            names += 1;
        }
    }
    assert_eq!(names, 14);
}

#[test]
fn gemma_4_has_a_tokenizer_model_of_its_own() {
    let table = &table()["gemma4"];
    let file = &table["file"];
    let mut tokens: Vec<(&str, u64)> = file["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (text.as_str(), id.as_u64().unwrap()))
        .collect();
    tokens.sort_by_key(|(_, id)| *id);
    let tokens: Vec<&str> = tokens.into_iter().map(|(text, _)| text).collect();
    let types: Vec<i32> = ids(&table["types"]).into_iter().map(|kind| i32::try_from(kind).unwrap()).collect();
    let merges: Vec<String> =
        file["model"]["merges"].as_array().unwrap().iter().map(|pair| strings(pair).join(" ")).collect();
    let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
    let id = |text: &str| u32::try_from(tokens.iter().position(|token| *token == text).unwrap()).unwrap();
    let checkpoint = gguf(
        &tokens,
        &types,
        &merges,
        &[
            ("tokenizer.ggml.model", Setting::Text("gemma4".to_owned())),
            ("tokenizer.ggml.bos_token_id", Setting::U32(id("<bos>"))),
            ("tokenizer.ggml.eos_token_id", Setting::U32(id("<eos>"))),
            ("tokenizer.ggml.add_bos_token", Setting::Bool(false)),
        ],
    );
    let (ours, theirs) = (tokenizer_of(&checkpoint), tokenizer(file));
    for (text, expected) in strings(&table["texts"]).into_iter().zip(table["ids"].as_array().unwrap()) {
        let expected = ids(expected);
        assert_eq!(theirs.encode(text, false).unwrap(), expected, "tokenizer.json: {text:?}");
        assert_eq!(ours.encode(text, false).unwrap(), expected, "GGUF: {text:?}");
        for skips in [false, true] {
            assert_eq!(ours.decode(&expected, skips), theirs.decode(&expected, skips), "{text:?}");
        }
        // The beginning token is added even if the file says otherwise.
        assert_eq!(ours.encode(text, true).unwrap(), [&[id("<bos>")], expected.as_slice()].concat());
    }
    let ends = ["<eos>", "<|tool_response>", "<turn|>", "<|im_end|>"].map(id);
    assert_eq!(checkpoint.config().eos, ends);
    assert!(ours.is_control(id("<|channel>")) && !ours.is_markup(id("\n\n")));
}

/// Groups of digits are counted from the end of a number. The time must not grow with the square of its length.
#[test]
fn long_numbers_are_cut_in_linear_time() {
    let table = table();
    let (tokens, merges) = (strings(&table["tokens"]), strings(&table["merges"]));
    let types = vec![NORMAL; tokens.len()];
    let digits = "1234567890".repeat(20_000);
    for name in ["superbpe", "afmoe"] {
        let file = gguf(
            &tokens,
            &types,
            &merges,
            &[
                ("tokenizer.ggml.model", Setting::Text("gpt2".to_owned())),
                ("tokenizer.ggml.pre", Setting::Text(name.to_owned())),
            ],
        );
        let tokenizer = tokenizer_of(&file);
        let started = std::time::Instant::now();
        let ids = tokenizer.encode(&digits, false).unwrap();
        assert!(started.elapsed().as_secs() < 20, "{name}");
        assert_eq!(tokenizer.decode(&ids, false), digits, "{name}");
        // 200,000 digits are two digits and groups of three.
        let first = tokenizer.encode("12", false).unwrap();
        assert!(ids.starts_with(&first), "{name}");
        assert_eq!(&ids[first.len()..], tokenizer.encode(&digits[2..], false).unwrap(), "{name}");
    }
}
