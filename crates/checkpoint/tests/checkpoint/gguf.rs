//! GGUF files: the same model gives the same configuration and the same weights from a directory and from a file, row
//! for row. Also split files, and the writer.

use std::path::{Path, PathBuf};

use headrace_checkpoint::gguf::writer::{Setting, Writer};
use headrace_checkpoint::gguf::{self, Header, Value};
use headrace_checkpoint::{Checkpoint, DType, Format, ModelConfig, RopeScaling, UniformConfig, Wording};

/// The path of a directory in the model crate's test data, or of the GGUF file made from it.
pub(crate) fn model(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(path)
}

pub(crate) fn words(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/gguf/{name}.gguf"))
}

fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        DType::BF16 => {
            let wide = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            bytes.as_chunks::<2>().0.iter().map(wide).collect()
        }
        other => panic!("no test data of {}", other.name()),
    }
}

#[test]
fn a_gguf_file_holds_the_model_of_its_directory() {
    for (name, dtype, scaled) in [
        ("llama-gqa-untied", DType::F32, false),
        ("llama-tied-rope3", DType::BF16, true),
        ("llama-yarn", DType::BF16, false),
        ("qwen2", DType::BF16, false),
        ("qwen3", DType::BF16, false),
    ] {
        let directory = Checkpoint::open(&model(name)).unwrap();
        let file = Checkpoint::open(&model(&format!("gguf/{name}.gguf"))).unwrap();
        assert_eq!((directory.format(), file.format()), (Format::Safetensors, Format::Gguf));
        let uniform = |checkpoint: &Checkpoint| checkpoint.config().uniform.clone().unwrap();
        let mut expected = uniform(&directory);
        // The GGUF file also lists end-of-reply ids that are recognised by their text, and stores Llama 3's scaling as
        // factors.
        let config = UniformConfig { eos: file.config().eos.clone(), ..expected.clone() };
        assert!(expected.eos.iter().all(|id| file.config().eos.contains(id)), "{name}: {:?}", config.eos);
        assert_eq!(file.generation().eos.as_ref(), Some(&file.config().eos));
        expected = config;
        if scaled {
            let RopeScaling::Divided { factors } = &file.config().rotary[0].rope.scaling else {
                panic!("{name}")
            };
            assert_eq!((factors.len(), factors[0]), (8, 1.0));
            assert!(factors.is_sorted() && factors[7] == 8.0, "{factors:?}");
            expected.rope.scaling = file.config().rotary[0].rope.scaling.clone();
        }
        assert_eq!(*file.config(), ModelConfig::from(expected), "{name}");
        assert!(file.tensor_names().eq(directory.tensor_names()), "{name}");
        for tensor in directory.tensor_names() {
            let (theirs, ours) = (directory.tensor(tensor).unwrap(), file.tensor(tensor).unwrap());
            assert_eq!((ours.name, ours.shape), (tensor, theirs.shape), "{name}");
            assert_eq!(ours.dtype, if ours.shape.len() == 1 { DType::F32 } else { dtype }, "{name} {tensor}");
            let (theirs, ours) = (floats(theirs.dtype, &theirs.bytes), floats(ours.dtype, &ours.bytes));
            assert!(ours == theirs, "{name} {tensor}: rows differ");
        }
    }
}

#[test]
fn templates_and_special_tokens_are_read() {
    let file = Checkpoint::open(&words("bytebpe-llama3")).unwrap();
    assert_eq!(file.chat_template(), Some("D"));
    assert_eq!(file.chat_template_named("tool_use"), Some("T"));
    assert_eq!(file.chat_template_named("other"), None);
    let config = file.tokenizer_config();
    assert_eq!(config.bos_token.as_deref(), Some("<|begin_of_text|>"));
    assert_eq!(config.eos_token.as_deref(), Some("<|eot_id|>"));
    assert_eq!((config.add_bos_token, config.add_eos_token), (Some(true), Some(false)));
    // <|eot_id|> by its metadata key, <|end_of_text|> and <|eom_id|> by their text.
    assert_eq!(file.config().eos, [1022, 1018, 1021]);
    let file = Checkpoint::open(&words("spbpe-llama2")).unwrap();
    let config = file.tokenizer_config();
    assert_eq!((config.bos_token.as_deref(), config.unk_token.as_deref()), (Some("<s>"), Some("<unk>")));
    assert_eq!((file.config().bos, file.config().eos.as_slice()), (Some(1), &[2][..]));
}

/// The smallest valid model. Tests may change every key and tensor.
pub(crate) struct Small {
    pub(crate) settings: Vec<(String, Setting)>,
    pub(crate) tensors: Vec<(String, DType, Vec<usize>)>,
}

impl Small {
    pub(crate) fn new() -> Self {
        let numbers = [
            ("llama.context_length", 16),
            ("llama.embedding_length", 32),
            ("llama.block_count", 1),
            ("llama.feed_forward_length", 32),
            ("llama.attention.head_count", 2),
            ("tokenizer.ggml.eos_token_id", 2),
        ];
        let mut settings: Vec<(String, Setting)> =
            numbers.map(|(key, n)| (key.to_owned(), Setting::U32(n))).to_vec();
        let texts = |list: &[&str]| Setting::Texts(list.iter().copied().collect());
        let mut add = |key: &str, value| settings.push((key.to_owned(), value));
        add("general.architecture", Setting::Text("llama".to_owned()));
        add("llama.attention.layer_norm_rms_epsilon", Setting::F32(1e-5));
        add("tokenizer.ggml.model", Setting::Text("gpt2".to_owned()));
        add("tokenizer.ggml.pre", Setting::Text("gpt-2".to_owned()));
        add("tokenizer.ggml.tokens", texts(&["a", "b", "</s>", "ab"]));
        add("tokenizer.ggml.token_type", Setting::Numbers(gguf::Numbers::of_i32(&[1, 1, 3, 1])));
        add("tokenizer.ggml.merges", texts(&["a b"]));
        let mut tensors = vec![("token_embd.weight".to_owned(), DType::F16, vec![4, 32])];
        tensors.push(("output_norm.weight".to_owned(), DType::F32, vec![32]));
        for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
            tensors.push((format!("blk.0.{part}.weight"), DType::BF16, vec![32, 32]));
        }
        for part in ["attn_norm", "ffn_norm"] {
            tensors.push((format!("blk.0.{part}.weight"), DType::F32, vec![32]));
        }
        Self { settings, tensors }
    }

    pub(crate) fn set(mut self, key: &str, value: Setting) -> Self {
        self.settings.retain(|(other, _)| other != key);
        self.settings.push((key.to_owned(), value));
        self
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.set(key, Setting::Text(value.to_owned()))
    }

    pub(crate) fn unset(mut self, key: &str) -> Self {
        self.settings.retain(|(other, _)| other != key);
        self
    }

    pub(crate) fn tensor(mut self, name: &str, dtype: DType, shape: &[usize]) -> Self {
        self.tensors.retain(|(other, ..)| other != name);
        self.tensors.push((name.to_owned(), dtype, shape.to_vec()));
        self
    }

    /// Returns the file. The n-th tensor is filled with the byte n.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.settings.into_iter().for_each(|(key, value)| writer.set(&key, value));
        for (name, dtype, shape) in &self.tensors {
            writer.tensor(name, *dtype, shape).unwrap();
        }
        let mut body = writer.begin(Vec::new()).unwrap();
        for (n, (_, dtype, shape)) in self.tensors.iter().enumerate() {
            let (inner, outer) = shape.split_last().unwrap();
            let bytes = dtype.row_bytes(*inner).unwrap() * outer.iter().product::<usize>();
            body.tensor(&vec![n as u8; bytes]).unwrap();
        }
        body.finish().unwrap()
    }

    pub(crate) fn open(self) -> Result<Checkpoint, headrace_checkpoint::CheckpointError> {
        open(vec![("m.gguf", self.bytes())])
    }
}

fn open(files: Vec<(&str, Vec<u8>)>) -> Result<Checkpoint, headrace_checkpoint::CheckpointError> {
    Checkpoint::from_files(files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.into())).collect())
}

#[test]
fn what_the_writer_writes_is_read_back() {
    let small = Small::new();
    let (settings, tensors) = (small.settings.clone(), small.tensors.clone());
    let bytes = small.bytes();
    let header = Header::parse("m.gguf", &bytes).unwrap();
    assert_eq!((header.version, header.alignment), (3, 32));
    assert_eq!(header.metadata.len(), settings.len() + 1);
    assert_eq!(header.metadata["general.alignment"], Value::Integer(32));
    assert_eq!(header.metadata["llama.attention.layer_norm_rms_epsilon"], Value::Float(1e-5f32.into()));
    for (n, (name, dtype, shape)) in tensors.iter().enumerate() {
        let entry = &header.tensors[name];
        assert_eq!((entry.kind.dtype(), &entry.shape), (Some(*dtype), shape), "{name}");
        assert!(bytes[entry.range.clone()].iter().all(|byte| *byte == n as u8), "{name}");
    }
    let mut writer = Writer::new();
    writer.tensor("t", DType::F32, &[2]).unwrap();
    let refused = writer.tensor("t", DType::F32, &[2]).unwrap_err().to_string();
    assert!(refused.contains("twice"), "{refused}");
    let q8 = DType::from_name("Q8_0").unwrap();
    assert!(writer.tensor("u", q8, &[2, 33]).unwrap_err().to_string().contains("whole blocks"));
    let mut body = writer.begin(Vec::new()).unwrap();
    assert!(body.tensor(&[0; 9]).unwrap_err().to_string().contains("8 were announced"));
    let mut writer = Writer::new();
    writer.tensor("t", DType::F32, &[2]).unwrap();
    assert!(writer.begin(Vec::new()).unwrap().finish().unwrap_err().to_string().contains("was not written"));
}

#[test]
fn a_file_that_does_not_name_its_pre_tokenizer_is_read_with_a_warning() {
    let pre = "tokenizer.ggml.pre";
    for (small, expected) in [
        (Small::new(), None),
        (Small::new().unset(pre), Some("`tokenizer.ggml.pre` is missing")),
        (Small::new().text(pre, "default"), Some("is `default`, which names no family")),
    ] {
        let bytes = small.bytes();
        let files = || vec![("m.gguf".to_owned(), bytes.clone().into())];
        let checkpoint = Checkpoint::from_files(files()).unwrap();
        let warnings = checkpoint.warnings();
        assert_eq!(warnings.len(), usize::from(expected.is_some()), "{warnings:?}");
        assert_eq!(Wording::from_files(files()).unwrap().warnings(), warnings);
        for part in expected.into_iter().chain(warnings.first().map(|_| "m.gguf: ")) {
            assert!(
                warnings[0].contains(part) && warnings[0].contains("download a newer file"),
                "{warnings:?}"
            );
        }
    }
}

#[test]
fn version_2_and_other_alignments_are_read() {
    let mut bytes = Small::new().bytes();
    bytes[4] = 2;
    assert_eq!(Header::parse("m.gguf", &bytes).unwrap().version, 2);
    assert!(open(vec![("m.gguf", bytes.clone())]).is_ok());
    // Every offset is also a multiple of 8, but the data starts at a multiple of 32.
    let key = bytes.windows(17).position(|part| part == b"general.alignment").unwrap();
    bytes[key + 21] = 8;
    let header = Header::parse("m.gguf", &bytes).unwrap();
    assert_eq!((header.alignment, header.data_start % 8), (8, 0));
}

#[test]
fn every_block_format_may_be_a_weight() {
    for kind in ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4"] {
        let dtype = DType::from_name(kind).unwrap();
        let small = Small::new().tensor("blk.0.attn_q.weight", dtype, &[32, 32]);
        let checkpoint = small.open().unwrap();
        let tensor = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").unwrap();
        assert_eq!((tensor.dtype, tensor.bytes.len()), (dtype, 32 * dtype.row_bytes(32).unwrap()));
    }
    for kind in ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"] {
        let dtype = DType::from_name(kind).unwrap();
        assert!(Writer::new().tensor("t", dtype, &[2, 256]).is_ok() && dtype.row_bytes(128).is_none());
    }
}

type Files = Vec<(String, Vec<u8>)>;

/// The small model split into three files: all metadata and no tensor, the first four tensors, the rest.
fn split() -> Files {
    let whole = Small::new();
    let cuts = [0..0, 0..4, 4..whole.tensors.len()];
    let total = whole.tensors.len() as u32;
    let part = |number: usize, range: std::ops::Range<usize>| {
        let mut part = Small::new();
        part.tensors = whole.tensors[range].to_vec();
        if number > 0 {
            part.settings.clear();
        }
        let part = part.set("split.no", Setting::U32(number as u32)).set("split.count", Setting::U32(3));
        part.set("split.tensors.count", Setting::U32(total)).bytes()
    };
    let name = |number: usize| format!("m-{:05}-of-00003.gguf", number + 1);
    cuts.into_iter().enumerate().map(|(number, range)| (name(number), part(number, range))).collect()
}

#[test]
fn a_file_in_parts_is_one_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in split() {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let whole = Small::new().open().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("m-00001-of-00003.gguf")] {
        let parts = Checkpoint::open(&path).unwrap();
        assert!(parts.tensor_names().eq(whole.tensor_names()));
        assert_eq!(parts.config(), whole.config());
        assert_eq!(parts.weight_files().count(), 3);
        assert_eq!(parts.weight_bytes(), whole.weight_bytes());
    }
    let message = Checkpoint::open(&dir.path().join("m-00002-of-00003.gguf")).unwrap_err().to_string();
    assert!(message.contains("general.architecture"), "{message}");
    let changed = |change: &dyn Fn(&mut Files)| {
        let mut files = split();
        change(&mut files);
        let files = files.into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        Checkpoint::from_files(files).unwrap_err().to_string()
    };
    for (message, pieces) in [
        (changed(&|files| drop(files.pop())), &["config.json", "2 GGUF files"][..]),
        (
            changed(&|files| files[2].1 = files[1].1.clone()),
            &["m-00003-of-00003.gguf", "split.no", "part 3 of 3"],
        ),
        (
            changed(&|files| {
                let one_less =
                    Small::new().set("split.no", Setting::U32(0)).set("split.count", Setting::U32(3));
                let mut one_less = one_less.set("split.tensors.count", Setting::U32(10));
                one_less.tensors.clear();
                files[0].1 = one_less.bytes();
            }),
            &["m-00001-of-00003.gguf", "split.tensors.count", "is 10, but the parts have 11"],
        ),
        (
            changed(&|files| files[0].1 = Small::new().set("split.count", Setting::U32(4)).bytes()),
            &["m-00001-of-00003.gguf", "split.count", "NAME-00001-of-00004.gguf"],
        ),
        (
            changed(&|files| files[2].1 = Small::new().set("split.no", Setting::U32(2)).bytes()),
            &["m-00003-of-00003.gguf", "part 3 of 3"],
        ),
    ] {
        for piece in pieces {
            assert!(message.contains(piece), "{message}: {piece}");
        }
    }
}

#[test]
fn a_file_is_found_by_its_path_or_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, Small::new().bytes()).unwrap();
    let by_path = Checkpoint::open(&path).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().fingerprint(), by_path.fingerprint());
    // A renamed file has the same fingerprint.
    std::fs::rename(&path, dir.path().join("other.gguf")).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().fingerprint(), by_path.fingerprint());
    std::fs::copy(dir.path().join("other.gguf"), dir.path().join("two.gguf")).unwrap();
    let message = Checkpoint::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("config.json") && message.contains("2 GGUF files"), "{message}");
    std::fs::write(dir.path().join("text.txt"), "x").unwrap();
    let message = Checkpoint::open(&dir.path().join("text.txt")).unwrap_err().to_string();
    assert!(message.contains("is not a directory") && message.contains("or a GGUF file"), "{message}");
    assert!(Checkpoint::open(&dir.path().join("absent.gguf")).is_err());
    #[cfg(unix)]
    {
        // A link given by the caller is followed.
        let elsewhere = tempfile::tempdir().unwrap();
        let link = elsewhere.path().join("link.gguf");
        std::os::unix::fs::symlink(dir.path().join("two.gguf"), &link).unwrap();
        assert_eq!(Checkpoint::open(&link).unwrap().fingerprint(), by_path.fingerprint());
    }
}

/// If two merges have the same score, the one with longer parts comes first. 0 and -0 are the same score.
#[test]
fn merges_of_scores_are_ordered_as_floats_compare() {
    for (scores, first) in [
        ([0.0, 0.0, 0.0, -0.0], ["ab", "a"]),
        ([0.0, 0.0, -0.0, 0.0], ["ab", "a"]),
        ([0.0, 0.0, -1.0, -2.0], ["a", "b"]),
        ([0.0, 0.0, f32::NEG_INFINITY, f32::INFINITY], ["ab", "a"]),
    ] {
        let tokens = Setting::Texts(["a", "b", "ab", "aba"].into_iter().collect());
        let bytes = Small::new()
            .text("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.tokens", tokens)
            .unset("tokenizer.ggml.token_type")
            .set("tokenizer.ggml.scores", Setting::Numbers(gguf::Numbers::of_f32(&scores)))
            .bytes();
        let checkpoint = open(vec![("m.gguf", bytes)]).unwrap();
        let tokenizer: serde_json::Value = serde_json::from_slice(checkpoint.tokenizer_json()).unwrap();
        assert_eq!(tokenizer["model"]["merges"][0], serde_json::json!(first), "{scores:?}");
    }
}
