//! Encoder directories: which directories count as encoders, the files of sentence-transformers, and refusals that name
//! file and field.

use std::path::{Path, PathBuf};

use headrace_checkpoint::{EncoderBody, EncoderCheckpoint, Pooling, ScoreActivation};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The path of an encoder with random weights, from the test data of the model crate's oracles.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name)
}

/// A copy of an encoder whose configuration and extra files the test may change.
fn copy(name: &str, change: impl FnOnce(&mut Value), files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(data(name).join(file), folder.path().join(file)).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(data(name).join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    for (file, contents) in files {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents.to_string()).unwrap();
    }
    folder
}

fn modules(kinds: &[(&str, &str)]) -> (&'static str, Value) {
    let module = |(at, (kind, path)): (usize, &(&str, &str))| json!({"idx": at, "name": at.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")});
    ("modules.json", kinds.iter().enumerate().map(module).collect())
}

const USUAL: [(&str, &str); 3] =
    [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")];

fn pooling(field: &str) -> (&'static str, Value) {
    (
        "1_Pooling/config.json",
        json!({"word_embedding_dimension": 64, "pooling_mode_cls_token": false, field: true}),
    )
}

#[test]
fn encoders_are_told_from_decoders() {
    let is_one = |folder: &Path| EncoderCheckpoint::is_one(folder).unwrap();
    for name in ["bert-embed", "xlmr-embed", "qwen3-embed", "modernbert-embed", "roberta-embed", "bert-rank"]
    {
        assert!(is_one(&data(name)), "{name}");
    }
    for name in ["qwen3", "qwen2", "llama-yarn"] {
        assert!(!is_one(&data(name)), "{name}");
    }
    // A decoder's own name means an encoder if sentence-transformers' files are beside it.
    let named = |config: &mut Value| config["architectures"] = json!(["Qwen3ForCausalLM"]);
    assert!(!is_one(copy("qwen3-embed", named, &[]).path()));
    let last = pooling("pooling_mode_lasttoken");
    let folder = copy("qwen3-embed", named, &[modules(&USUAL), last]);
    assert!(is_one(folder.path()));
    let checkpoint = EncoderCheckpoint::open(folder.path()).unwrap();
    assert_eq!((checkpoint.modules().pooling, checkpoint.modules().normalize), (Pooling::Last, true));
    assert!(matches!(checkpoint.config().body, EncoderBody::Causal(_)));
}

#[test]
fn what_sentence_transformers_says_is_honoured() {
    let plain = EncoderCheckpoint::open(&data("bert-embed")).unwrap();
    let modules_of = |files: &[(&str, Value)]| {
        let folder = copy("bert-embed", |_| {}, files);
        let checkpoint = EncoderCheckpoint::open(folder.path()).unwrap();
        assert_ne!(checkpoint.fingerprint(), plain.fingerprint());
        (checkpoint.modules().clone(), checkpoint.max_tokens())
    };
    assert_eq!(
        (plain.modules().pooling, plain.modules().normalize, plain.max_tokens()),
        (Pooling::Mean, true, 128)
    );
    let (found, _) = modules_of(&[modules(&USUAL[..2]), pooling("pooling_mode_cls_token")]);
    assert_eq!((found.given, found.pooling, found.normalize), (true, Pooling::Cls, false));
    let newer = ("1_Pooling/config.json", json!({"embedding_dimension": 64, "pooling_mode": "lasttoken"}));
    let (found, _) = modules_of(&[modules(&USUAL), newer]);
    assert_eq!((found.pooling, found.normalize), (Pooling::Last, true));
    let (found, most) = modules_of(&[
        ("sentence_bert_config.json", json!({"max_seq_length": 100, "do_lower_case": true})),
        (
            "config_sentence_transformers.json",
            json!({"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}),
        ),
    ]);
    assert_eq!((most, found.lower_case, found.prompts.len()), (100, true, 2));
    assert_eq!(found.default_prompt.as_deref(), Some("query: "));
}

#[test]
fn scores_go_through_what_their_configuration_says() {
    let activation = |change: fn(&mut Value)| {
        let folder = copy("bert-rank", change, &[]);
        EncoderCheckpoint::open(folder.path()).unwrap().config().score.unwrap().1
    };
    assert_eq!(activation(|_| {}), ScoreActivation::Sigmoid);
    let identity = "torch.nn.modules.linear.Identity";
    assert_eq!(
        activation(|config| config["sentence_transformers"] =
            json!({"activation_fn": "torch.nn.modules.linear.Identity"})),
        ScoreActivation::Identity
    );
    let old =
        copy("bert-rank", |config| config["sbert_ce_default_activation_function"] = json!(identity), &[]);
    let old = EncoderCheckpoint::open(old.path()).unwrap();
    assert_eq!(old.config().score.unwrap().1, ScoreActivation::Identity);
}

#[test]
fn what_is_not_computed_is_refused_by_file_and_field() {
    let set = |field: &'static str, value: Value| move |config: &mut Value| config[field] = value;
    let refused = |folder: TempDir| EncoderCheckpoint::open(folder.path()).unwrap_err().to_string();
    let cases = [
        (
            "bert-embed",
            refused(copy("bert-embed", set("position_embedding_type", json!("relative_key")), &[])),
            "position_embedding_type",
        ),
        ("act", refused(copy("bert-embed", set("hidden_act", json!("mish")), &[])), "hidden_act"),
        ("decoder", refused(copy("bert-embed", set("is_decoder", json!(true)), &[])), "is_decoder"),
        (
            "heads",
            refused(copy("bert-embed", set("num_attention_heads", json!(5)), &[])),
            "num_attention_heads",
        ),
        ("types", refused(copy("bert-embed", set("type_vocab_size", json!(3)), &[])), "type_vocab_size"),
        (
            "padding",
            refused(copy("xlmr-embed", set("pad_token_id", json!(500)), &[])),
            "max_position_embeddings",
        ),
        (
            "labels",
            refused(copy("bert-embed", set("architectures", json!(["BertForSequenceClassification"])), &[])),
            "classifier",
        ),
        ("family", refused(copy("bert-embed", set("architectures", json!(["T5Model"])), &[])), "T5Model"),
        (
            "layers",
            refused(copy("modernbert-embed", set("layer_types", json!(["full_attention"])), &[])),
            "layer_types",
        ),
        (
            "classifier",
            refused(copy("modernbert-rank", set("classifier_pooling", json!("max")), &[])),
            "classifier_pooling",
        ),
        (
            "activation",
            refused(copy(
                "bert-rank",
                set("sbert_ce_default_activation_function", json!("torch.nn.Tanh")),
                &[],
            )),
            "sbert_ce_default_activation_function",
        ),
        (
            "dense",
            refused(copy(
                "bert-embed",
                |_| {},
                &[modules(&[USUAL[0], USUAL[1], ("Dense", "2_Dense")]), pooling("pooling_mode_mean_tokens")],
            )),
            "Dense",
        ),
        ("no pooling", refused(copy("bert-embed", |_| {}, &[modules(&USUAL[..1])])), "Pooling"),
        ("missing", refused(copy("bert-embed", |_| {}, &[modules(&USUAL)])), "1_Pooling/config.json"),
        (
            "max",
            refused(copy("bert-embed", |_| {}, &[modules(&USUAL), pooling("pooling_mode_max_tokens")])),
            "pooling_mode_max_tokens",
        ),
        (
            "two",
            refused(copy(
                "bert-embed",
                |_| {},
                &[
                    modules(&USUAL),
                    (
                        "1_Pooling/config.json",
                        json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
                    ),
                ],
            )),
            "one of mean, cls and lasttoken",
        ),
        (
            "width",
            refused(copy(
                "bert-embed",
                |_| {},
                &[modules(&USUAL), ("1_Pooling/config.json", json!({"word_embedding_dimension": 32}))],
            )),
            "word_embedding_dimension",
        ),
        (
            "elsewhere",
            refused(copy("bert-embed", |_| {}, &[modules(&[USUAL[0], ("Pooling", "../1_Pooling")])])),
            "plain name",
        ),
        (
            "prompt",
            refused(copy(
                "bert-embed",
                |_| {},
                &[("config_sentence_transformers.json", json!({"prompts": {"a": 1}}))],
            )),
            "prompts.a",
        ),
        (
            "default",
            refused(copy(
                "bert-embed",
                |_| {},
                &[("config_sentence_transformers.json", json!({"prompts": {}, "default_prompt_name": "b"}))],
            )),
            "default_prompt_name",
        ),
    ];
    for (what, said, expected) in cases {
        assert!(said.contains(expected), "{what}: {said}");
    }
}
