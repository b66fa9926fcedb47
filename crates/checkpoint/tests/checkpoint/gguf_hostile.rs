//! Malicious GGUF files. Each row of a table of damages must be refused with file, key or tensor. No bytes may make the
//! reader panic or read outside the file. A failing case is printed, shrunk, and kept in `proptest-regressions`.

use std::borrow::Cow;

use headrace_checkpoint::gguf::writer::Setting;
use headrace_checkpoint::gguf::{Header, Numbers};
use headrace_checkpoint::{Checkpoint, DType, limits};
use proptest::prelude::*;

use crate::gguf::{Small, words};

/// One row of a table: the damage, the file, and the pieces that the refusal must contain.
type Row = (&'static str, Vec<u8>, &'static [&'static str]);

fn check_refused(rows: Vec<Row>) {
    for (what, bytes, pieces) in rows {
        let message = match Checkpoint::from_files(vec![("m.gguf".to_owned(), Cow::Owned(bytes))]) {
            Ok(_) => panic!("{what}: was not refused"),
            Err(error) => error.to_string(),
        };
        for piece in [&["m.gguf"], pieces].concat() {
            assert!(message.contains(piece), "{what}: {message:?} does not say {piece:?}");
        }
        assert!(message.chars().count() < 1_200, "{what}: the message is {} long", message.len());
        assert!(!message.contains(char::is_control), "{what}: control characters in {message:?}");
    }
}

/// A header built by hand: version, tensors, keys, then the rest unchanged.
fn head(version: u32, tensors: u64, keys: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    rest.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

/// A key with a value of the given type.
fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name), &kind.to_le_bytes()[..], value].concat()
}

fn array(kind: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), items].concat()
}

/// A tensor's entry. Dimensions are in the file's order.
fn entry(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

#[test]
fn corrupt_containers_are_refused() {
    let good = Small::new().bytes();
    let one_key = |key: Vec<u8>| head(3, 0, 1, &[&key]);
    let mut magic = good.clone();
    magic[0] = b'X';
    let huge = (limits::MAX_GGUF_TEXT_BYTES as u64 + 1).to_le_bytes();
    let alignment = |n: u32| one_key(key("general.alignment", 4, &n.to_le_bytes()));
    let rude = "\u{1b}[2J".repeat(100);
    check_refused(vec![
        ("empty", vec![], &["m.gguf: is empty", "download it again"]),
        ("another format", magic, &["starts with \"XGUF\"", "not a GGUF file"]),
        ("version 1", head(1, 0, 0, &[]), &["is GGUF version 1; supported are 2 and 3"]),
        ("version 4", head(4, 0, 0, &[]), &["is GGUF version 4"]),
        (
            "big-endian",
            head(3u32.swap_bytes(), 0, 0, &[]),
            &["is big-endian (version 3)", "gguf-convert-endian"],
        ),
        ("tensors 2^64-1", head(3, u64::MAX, 0, &[]), &["18446744073709551615 tensors, the most is 262144"]),
        ("keys 2^64-1", head(3, 0, u64::MAX, &[]), &["18446744073709551615 keys, the most is 65536"]),
        (
            "more tensors than bytes",
            head(3, 1000, 0, &[&[0; 64]]),
            &["1000 tensors, which 64 more bytes cannot hold"],
        ),
        (
            "more keys than bytes",
            head(3, 0, 1000, &[&[0; 64]]),
            &["1000 keys, which 64 more bytes cannot hold"],
        ),
        (
            "key length 2^64-1",
            one_key([u64::MAX.to_le_bytes(), [0; 8]].concat()),
            &["a key before byte", "65535"],
        ),
        ("key of nothing", one_key([[0; 8], [0; 8]].concat()), &["a key of no characters"]),
        (
            "key not UTF-8",
            one_key([&2u64.to_le_bytes()[..], &[0xff, 0xfe, 0, 0, 0, 0]].concat()),
            &["is not UTF-8"],
        ),
        ("rude key", one_key(key(&rude, 99, &[])), &["has type 99", "…"]),
        ("value of no type", one_key(key("k", 13, &[])), &["field \"k\"", "has type 13"]),
        ("truth beyond 1", one_key(key("k", 7, &[2])), &["field \"k\"", "truth value"]),
        ("truths beyond 1", one_key(key("k", 9, &array(7, 3, &[0, 1, 2]))), &["field \"k\"", "truth value"]),
        ("cut number", one_key(key("key", 12, &[0; 7])), &["ends inside a number", "7 are left"]),
        ("text 64 MiB", one_key(key("k", 8, &huge)), &["67108865 bytes long", "MAX_GGUF_TEXT_BYTES"]),
        ("text past the end", one_key(key("k", 8, &9u64.to_le_bytes())), &["ends inside a text", "9 bytes"]),
        (
            "text not UTF-8",
            one_key(key("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff])),
            &["field \"k\"", "not UTF-8"],
        ),
        (
            "array of arrays",
            one_key(key("k", 9, &array(9, 1, &[0; 32]))),
            &["field \"k\"", "array of arrays"],
        ),
        (
            "array of no type",
            one_key(key("k", 9, &array(77, 1, &[0; 32]))),
            &["field \"k\"", "array of type 77"],
        ),
        (
            "array 2^61",
            one_key(key("k", 9, &array(10, 1 << 61, &[0; 32]))),
            &["items in k", "the most is 16777216"],
        ),
        (
            "array past the end",
            one_key(key("k", 9, &array(10, 5, &[0; 32]))),
            &["5 items in k, which 32 more"],
        ),
        (
            "texts past the end",
            one_key(key("k", 9, &array(8, 9, &[0; 64]))),
            &["9 items in k, which 64 more"],
        ),
        (
            "text in texts",
            one_key(key("k", 9, &array(8, 2, &[255; 16]))),
            &["a text of an array", "67108864"],
        ),
        (
            "texts not UTF-8",
            one_key(key("k", 9, &array(8, 1, &[1, 0, 0, 0, 0, 0, 0, 0, 0xc0]))),
            &["field \"k\"", "[0] is not UTF-8"],
        ),
        (
            "a key twice",
            head(3, 0, 2, &[&key("k", 0, &[1]), &key("k", 0, &[1])]),
            &["field \"k\"", "given twice"],
        ),
        ("alignment 0", alignment(0), &["general.alignment", "found 0", "power of two"]),
        ("alignment 48", alignment(48), &["general.alignment", "found 48"]),
        ("alignment 2^31", alignment(1 << 31), &["general.alignment", "from 8 to 65536"]),
        ("alignment of text", one_key(key("general.alignment", 8, &text("32"))), &["found \"32\""]),
        ("cut inside the list", good[..good.len() / 3].to_vec(), &["cut off? download it again"]),
        ("cut inside the data", good[..good.len() - 1].to_vec(), &["ends past the file's", "cut off"]),
    ]);
}

#[test]
fn lying_tensors_are_refused() {
    let list = |entries: &[Vec<u8>], data: usize| {
        let parts: Vec<&[u8]> = entries.iter().map(Vec::as_slice).collect();
        let mut bytes = head(3, entries.len() as u64, 0, &parts);
        bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
        bytes
    };
    let one = |dimensions: &[u64], kind, offset| list(&[entry("t", dimensions, kind, offset)], 128);
    let long = list(&[entry(&"n".repeat(513), &[1], 0, 0)], 32);
    check_refused(vec![
        ("name too long", long, &["a tensor's name", "513 bytes long", "MAX_TENSOR_NAME_BYTES"]),
        ("no name", list(&[entry("", &[1], 0, 0)], 32), &["tensor \"\": name is empty"]),
        ("five dimensions", one(&[1; 5], 0, 0), &["tensor \"t\": shape has more than 4 dimensions"]),
        (
            "dimensions 2^32-1",
            head(3, 1, 0, &[&text("t"), &[255; 4], &[0; 64]]),
            &["tensor \"t\": shape has more than 4"],
        ),
        ("a dimension of 0", one(&[4, 0], 0, 0), &["tensor \"t\": shape has a dimension that cannot be"]),
        ("dimension 2^64-1", one(&[u64::MAX, 3], 0, 0), &["tensor \"t\": shape", "overflows"]),
        ("product 2^64", one(&[1 << 32, 1 << 32], 0, 0), &["tensor \"t\": shape", "overflows"]),
        ("product 2^64 + 4", one(&[1 << 31, 1 << 31, 2, 2], 1, 0), &["tensor \"t\": shape", "overflows"]),
        ("no such type", one(&[4], 99, 0), &["tensor \"t\": dtype 99 is not the number of a type"]),
        ("a removed type", one(&[4], 4, 0), &["tensor \"t\": dtype 4 is not"]),
        (
            "half a block",
            one(&[48], 8, 0),
            &["tensor \"t\": shape [48] has rows of 48", "Q8_0's blocks of 32"],
        ),
        ("half a superblock", one(&[128, 2], 12, 0), &["[2, 128] has rows of 128", "Q4_K's blocks of 256"]),
        ("past the end", one(&[33], 0, 0), &["offset 0 with 132 bytes ends past the file's 128 data bytes"]),
        ("offset past the end", one(&[1], 0, 128), &["offset 128 with 4 bytes ends past"]),
        ("offset 2^64-1", one(&[1], 0, u64::MAX), &["offset 18446744073709551615 with 4 bytes ends past"]),
        ("offset 2^64-8", one(&[1], 0, u64::MAX - 7), &["ends past"]),
        ("not aligned", one(&[1], 0, 4), &["offset 4 is not a multiple of the alignment 32"]),
        (
            "overlap",
            list(&[entry("a", &[16], 0, 0), entry("b", &[1], 0, 32)], 128),
            &["tensor \"b\": offset 32 lies within the bytes of tensor \"a\""],
        ),
        (
            "the same place",
            list(&[entry("a", &[1], 0, 0), entry("b", &[1], 0, 0)], 128),
            &["offset 0 lies within the bytes of tensor"],
        ),
        (
            "a name twice",
            list(&[entry("a", &[1], 0, 0), entry("a", &[1], 0, 32)], 128),
            &["tensor \"a\": name is given twice"],
        ),
        ("no model in it", one(&[1], 0, 0), &["general.architecture", "is missing"]),
    ]);
}

#[test]
fn models_that_are_not_supported_are_refused_by_name() {
    let small = Small::new;
    let number = |key: &str, n| Small::new().set(&format!("llama.{key}"), Setting::U32(n)).bytes();
    let float = |key: &str, n| Small::new().set(&format!("llama.{key}"), Setting::F32(n)).bytes();
    let tensor = |name: &str, shape: &[usize]| small().tensor(name, DType::F32, shape).bytes();
    let without = |name: &str| {
        let mut small = small();
        small.tensors.retain(|(other, ..)| other != name);
        small.bytes()
    };
    let per_layer = |values: &[i32]| Setting::Numbers(Numbers::of_i32(values));
    // The type of a matrix of F32 becomes another one of four bytes.
    let of_i32 = |name: &str| {
        let mut bytes = small().tensor(name, DType::F32, &[32, 32]).bytes();
        let at = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
        let kind = at + name.len() + 4 + 2 * 8;
        bytes[kind] = 26;
        bytes
    };
    let q8 = DType::from_name("q8_0").unwrap();
    check_refused(vec![
        (
            "architecture",
            small().text("general.architecture", "gemma3n").bytes(),
            &[
                "general.architecture",
                "\"gemma3n\" (it needs AltUp and LAuReL blocks) is not supported",
                "supported are \"llama\", \"qwen2\", \"qwen3\"",
            ],
        ),
        ("projector", small().text("general.type", "mmproj").bytes(), &["general.type", "\"mmproj\""]),
        ("experts", number("expert_count", 8), &["llama.expert_used_count", "is missing"]),
        (
            "experts without tensors",
            small()
                .set("llama.expert_count", Setting::U32(8))
                .set("llama.expert_used_count", Setting::U32(2))
                .bytes(),
            &["blk.0.ffn_down.weight", "the metadata contradicts it"],
        ),
        ("shared experts", number("expert_shared_count", 1), &["expert_shared_count", "1 is not supported"]),
        ("gating", number("expert_gating_func", 2), &["expert_gating_func", "2 is not supported"]),
        (
            "softcap",
            float("attn_logit_softcapping", 50.0),
            &["attn_logit_softcapping", "50 is not supported"],
        ),
        ("scale", float("attention.scale", 0.5), &["attention.scale", "0.5 is not supported"]),
        ("logit scale", float("logit_scale", 0.25), &["logit_scale", "0.25 is not supported"]),
        (
            "partial rotation",
            number("rope.dimension_count", 8),
            &["rope.dimension_count", "8 is not supported", "16"],
        ),
        ("value width", number("attention.value_length", 8), &["value_length", "8 is not supported"]),
        ("odd head", number("attention.key_length", 15), &["key_length", "15 must be even"]),
        (
            "heads",
            number("attention.head_count_kv", 3),
            &["head_count_kv", "3 does not divide llama.attention.head_count 2"],
        ),
        ("no heads", number("attention.head_count", 0), &["head_count", "found 0"]),
        ("heads of text", small().text("llama.attention.head_count", "2").bytes(), &["found \"2\""]),
        (
            "heads by layer",
            small().set("llama.attention.head_count_kv", per_layer(&[1, 2])).bytes(),
            &["head_count_kv", "a list of 2 numbers is not supported", "the same for every layer"],
        ),
        (
            "heads for no layer",
            small().set("llama.attention.head_count", per_layer(&[])).bytes(),
            &["head_count", "found a list of 0 numbers"],
        ),
        (
            "no width",
            small().unset("llama.embedding_length").bytes(),
            &["llama.embedding_length", "is missing"],
        ),
        (
            "no context",
            small().unset("llama.context_length").bytes(),
            &["llama.context_length", "is missing"],
        ),
        (
            "layers 2^32-1",
            number("block_count", u32::MAX),
            &["llama.block_count", "found 4294967295", "1024"],
        ),
        (
            "layers that are not there",
            number("block_count", 2),
            &["blk.1.attn_norm.weight", "is missing", "the metadata"],
        ),
        ("no epsilon", float("attention.layer_norm_rms_epsilon", 0.0), &["rms_epsilon", "found 0"]),
        ("epsilon NaN", float("attention.layer_norm_rms_epsilon", f32::NAN), &["rms_epsilon", "found NaN"]),
        (
            "scaling",
            small().text("llama.rope.scaling.type", "longrope").bytes(),
            &["scaling.type", "\"longrope\""],
        ),
        (
            "no factor",
            small().text("llama.rope.scaling.type", "yarn").bytes(),
            &["scaling.factor", "is missing"],
        ),
        ("shrinking", float("rope.scaling.factor", 0.5), &["scaling.factor", "at least 1"]),
        ("base", float("rope.freq_base", -1.0), &["rope.freq_base", "found -1"]),
        (
            "a tensor too many",
            tensor("blk.0.attn_sinks.weight", &[2]),
            &["blk.0.attn_sinks.weight", "not a tensor of"],
        ),
        (
            "a layer too many",
            tensor("blk.1.attn_norm.weight", &[32]),
            &["blk.1.attn_norm.weight", "1 layers"],
        ),
        (
            "experts' tensor",
            tensor("blk.0.ffn_gate_exps.weight", &[2, 32]),
            &["ffn_gate_exps", "not a tensor of"],
        ),
        (
            "norms of heads",
            tensor("blk.0.attn_q_norm.weight", &[16]),
            &["attn_q_norm", "the metadata contradicts it"],
        ),
        ("one bias of three", tensor("blk.0.attn_q.bias", &[32]), &["blk.0.attn_k.bias", "is missing"]),
        ("no embedding", without("token_embd.weight"), &["token_embd.weight", "is missing"]),
        ("no norm", without("blk.0.ffn_norm.weight"), &["blk.0.ffn_norm.weight", "is missing"]),
        (
            "wrong shape",
            tensor("blk.0.ffn_up.weight", &[31, 32]),
            &["ffn_up", "is [31, 32]", "says [32, 32]"],
        ),
        (
            "a type that is not computed",
            of_i32("blk.0.ffn_up.weight"),
            &["blk.0.ffn_up.weight", "dtype I32 is not supported", "BF16, Q8_0", "IQ4_XS and MXFP4"],
        ),
        (
            "a norm in blocks",
            small().tensor("output_norm.weight", q8, &[32]).bytes(),
            &["output_norm.weight", "dtype Q8_0 is for matrices"],
        ),
        (
            "factors",
            tensor("rope_freqs.weight", &[4]),
            &["rope_freqs.weight", "shape", "expected [8] of F32"],
        ),
        ("factors of 0", tensor("rope_freqs.weight", &[8]), &["rope_freqs.weight", "values has a factor"]),
    ]);
}

#[test]
fn tokenizers_that_make_no_sense_are_refused_by_key() {
    let small = Small::new;
    let list = |items: &[&str]| Setting::Texts(items.iter().copied().collect());
    let tokens = |items: &[&str]| small().set("tokenizer.ggml.tokens", list(items)).bytes();
    let merges = |items: &[&str]| small().set("tokenizer.ggml.merges", list(items)).bytes();
    let long = "x".repeat(limits::MAX_TOKEN_BYTES + 1);
    let big: Vec<String> = (0..70u8).map(|n| format!("{n:>4096}")).collect();
    let big: Vec<&str> = big.iter().map(String::as_str).collect();
    let scored = small()
        .text("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.scores", Setting::Numbers(Numbers::of_f32(&[0.0; 70])))
        .unset("tokenizer.ggml.token_type")
        .set("tokenizer.ggml.tokens", list(&big))
        .tensor("token_embd.weight", DType::F16, &[70, 32]);
    check_refused(vec![
        (
            "model",
            small().text("tokenizer.ggml.model", "bert").bytes(),
            &["tokenizer.ggml.model", "\"bert\" is not", "\"gemma4\""],
        ),
        ("no model", small().unset("tokenizer.ggml.model").bytes(), &["tokenizer.ggml.model", "is missing"]),
        (
            "pre",
            small().text("tokenizer.ggml.pre", "chameleon").bytes(),
            &[
                "tokenizer.ggml.pre",
                "\"chameleon\" is not supported",
                "llama-bpe",
                "qwen2",
                "smollm",
                "default",
            ],
        ),
        (
            "no tokens",
            small().unset("tokenizer.ggml.tokens").bytes(),
            &["tokenizer.ggml.tokens", "is missing"],
        ),
        ("empty tokens", tokens(&[]), &["tokenizer.ggml.tokens", "has 0 tokens"]),
        ("tokens past the embedding", tokens(&["a"; 5]), &["has 5 tokens, but the embedding has 4 rows"]),
        ("the same token", tokens(&["a", "b", "</s>", "a"]), &["[0] and [3] are both \"a\""]),
        ("a long token", tokens(&["a", "b", &long, "ab"]), &["[2] is 4097 bytes long"]),
        (
            "types of others",
            small().set("tokenizer.ggml.tokens", list(&["a"])).bytes(),
            &["token_type", "1 numbers"],
        ),
        (
            "no merges",
            small().unset("tokenizer.ggml.merges").bytes(),
            &["tokenizer.ggml.merges", "is missing"],
        ),
        ("merge of one", merges(&["ab"]), &["merges", "[0] is \"ab\", which are not two tokens"]),
        ("merge of strangers", merges(&["a b", "b b"]), &["merges", "[1] is \"b b\""]),
        ("merge of nothing", merges(&[""]), &["merges", "[0] is \"\""]),
        (
            "id of text",
            small().text("tokenizer.ggml.bos_token_id", "1").bytes(),
            &["bos_token_id", "found \"1\", expected the id of a token"],
        ),
        (
            "template",
            small().set("tokenizer.chat_template", Setting::U32(1)).bytes(),
            &["chat_template", "found 1"],
        ),
        (
            "large template",
            small().text("tokenizer.chat_template", &"x".repeat(2 << 20)).bytes(),
            &["tokenizer.chat_template", "2097152 bytes"],
        ),
        (
            "no scores",
            small().text("tokenizer.ggml.model", "llama").bytes(),
            &["tokenizer.ggml.scores", "is missing"],
        ),
        (
            "a score of no place",
            small()
                .text("tokenizer.ggml.model", "llama")
                .set("tokenizer.ggml.scores", Setting::Numbers(Numbers::of_f32(&[0.0, -1.0, f32::NAN, -2.0])))
                .bytes(),
            &["tokenizer.ggml.scores", "[2] is NaN"],
        ),
        (
            "endless taking apart",
            scored.bytes(),
            &["tokenizer.ggml.tokens", "1174405120 bytes", "1073741824"],
        ),
    ]);
}

/// Invariants that hold for every file.
fn sound(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    if let Ok(header) = Header::parse("m.gguf", &bytes) {
        let mut ends: Vec<_> = header.tensors.values().map(|entry| entry.range.clone()).collect();
        ends.sort_by_key(|range| (range.start, range.end));
        for pair in ends.windows(2) {
            prop_assert!(pair[0].end <= pair[1].start);
        }
        for (name, entry) in &header.tensors {
            prop_assert!(bytes.get(entry.range.clone()).is_some(), "{name} lies outside the file");
            let elements: usize = entry.shape.iter().product();
            let blocks = elements / entry.kind.block_elements;
            prop_assert_eq!(entry.range.len(), blocks * entry.kind.block_bytes);
        }
    }
    let Ok(checkpoint) = Checkpoint::from_files(vec![("m.gguf".to_owned(), bytes.into())]) else {
        return Ok(());
    };
    for name in checkpoint.tensor_names() {
        if let Ok(tensor) = checkpoint.tensor(name) {
            let (inner, outer) = tensor.shape.split_last().unwrap();
            let rows: usize = outer.iter().product();
            prop_assert_eq!(Some(tensor.bytes.len()), tensor.dtype.row_bytes(*inner).map(|row| row * rows));
        }
    }
    Ok(())
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(usize, u8),
    /// Overwrites a number of eight bytes.
    Number(usize, u64),
    Insert(usize, u8),
    Remove(usize),
    Cut(usize),
}

fn damage(span: usize, length: usize) -> impl Strategy<Value = Damage> {
    let lies =
        vec![0, 1, 2, 31, 33, 255, 1 << 16, 1 << 31, 1 << 32, (1 << 62) + 1, 1 << 63, u64::MAX - 7, u64::MAX];
    prop_oneof![
        3 => (0..span, 1..=u8::MAX).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        3 => (0..span, prop::sample::select(lies)).prop_map(|(at, number)| Damage::Number(at, number)),
        1 => (0..span, any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        1 => (0..span).prop_map(Damage::Remove),
        1 => (0..length).prop_map(Damage::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    match *damage {
        Damage::Flip(at, mask) => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= mask),
        Damage::Number(at, number) => {
            for (to, from) in bytes.iter_mut().skip(at).zip(number.to_le_bytes()) {
                *to = from;
            }
        }
        Damage::Insert(at, byte) if at <= bytes.len() => bytes.insert(at, byte),
        Damage::Remove(at) if at < bytes.len() => drop(bytes.remove(at)),
        Damage::Cut(at) => bytes.truncate(at),
        Damage::Insert(..) | Damage::Remove(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_files_never_lead_outside(damages in prop::collection::vec(damage(1_800, 20_000), 1..5)) {
        let mut bytes = Small::new().bytes();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        sound(bytes)?;
    }

    #[test]
    fn arbitrary_bytes_never_panic(rest in prop::collection::vec(any::<u8>(), 0..300), tensors in 0u64..4, keys in 0u64..4) {
        sound(head(3, tensors, keys, &[&rest]))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn damaged_tokenizers_never_panic(
        name in prop::sample::select(vec!["bytebpe-llama3", "bytebpe-qwen", "spbpe-llama2"]),
        damages in prop::collection::vec(damage(29_000, 40_000), 1..3),
    ) {
        let mut bytes = std::fs::read(words(name)).unwrap();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        sound(bytes)?;
    }
}

#[test]
fn every_cut_of_the_header_is_refused() {
    let bytes = Small::new().bytes();
    let start = Header::parse("m.gguf", &bytes).unwrap().data_start;
    for length in 0..start {
        assert!(Header::parse("m.gguf", &bytes[..length]).is_err(), "{length} bytes");
    }
}
