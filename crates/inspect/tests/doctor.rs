//! Diagnoses checkpoints that were broken on purpose, and whole ones, which must have no findings.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use headrace_checkpoint::{CheckpointError, ModelRefusal, Wording};
use headrace_inspect::{Diagnosis, Examined, Severity, diagnose};
use serde_json::{Value, json};

/// The files of a model, which a test can break.
#[derive(Clone)]
struct Files {
    config: Value,
    generation: Value,
    tokenizer: Value,
    tokenizer_config: Value,
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint").join(file)
}

fn read(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

impl Files {
    fn demo() -> Self {
        Self {
            config: read(path("config.json")),
            generation: read(path("generation_config.json")),
            tokenizer: read(path("tokenizer.json")),
            tokenizer_config: read(path("tokenizer_config.json")),
        }
    }

    fn template(&self) -> &str {
        self.tokenizer_config["chat_template"].as_str().unwrap()
    }

    fn with_template(&mut self, from: &str, to: &str) {
        let changed = self.template().replace(from, to);
        assert_ne!(changed, self.template(), "`{from}` does not stand in the template");
        self.tokenizer_config["chat_template"] = json!(changed);
    }

    /// Adds the tokens that do not exist yet, after all others.
    fn add_tokens(&mut self, texts: &[String], special: bool) {
        let added = self.tokenizer["added_tokens"].as_array().unwrap();
        let known: Vec<String> =
            added.iter().map(|token| token["content"].as_str().unwrap().to_owned()).collect();
        let vocab = self.tokenizer["model"]["vocab"].as_object().unwrap();
        let last = vocab.values().chain(added.iter().map(|token| &token["id"]));
        let mut next = last.filter_map(Value::as_u64).max().unwrap();
        for text in texts.iter().filter(|text| !known.contains(text)) {
            next += 1;
            self.tokenizer["added_tokens"].as_array_mut().unwrap().push(json!({
                "id": next, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }));
        }
        self.config["vocab_size"] = json!(next + 1);
    }

    fn wording(&self) -> Wording {
        let files = [
            ("config.json", &self.config),
            ("generation_config.json", &self.generation),
            ("tokenizer.json", &self.tokenizer),
            ("tokenizer_config.json", &self.tokenizer_config),
        ];
        let files = files.map(|(name, json)| (name.to_owned(), Cow::Owned(json.to_string().into_bytes())));
        Wording::from_files(files.into()).unwrap()
    }

    fn diagnose(&self) -> Diagnosis {
        let wording = self.wording();
        diagnose(&Examined::of(&wording))
    }
}

fn found(diagnosis: &Diagnosis) -> Vec<(&'static str, Severity)> {
    diagnosis.findings.iter().map(|finding| (finding.code, finding.severity)).collect()
}

#[test]
fn nothing_is_wrong_with_the_demo_model() {
    let diagnosis = Files::demo().diagnose();
    assert!(found(&diagnosis).is_empty(), "{:#?}", diagnosis.findings);
    assert_eq!(diagnosis.facts.family, "hermes");
    assert!(diagnosis.facts.shows_tools && diagnosis.facts.context.is_some(), "{:?}", diagnosis.facts);
    assert_eq!(diagnosis.facts.opens.as_deref(), Some("<|im_end|>\n<|im_start|>assistant\n"));
}

#[test]
fn an_encoder_needs_neither_a_template_nor_an_end() {
    let mut files = Files::demo();
    for json in [&mut files.config, &mut files.generation] {
        json.as_object_mut().unwrap().remove("eos_token_id");
    }
    files.tokenizer_config.as_object_mut().unwrap().remove("chat_template");
    let wording = files.wording();
    let of = |is_encoder| found(&diagnose(&Examined { is_encoder, ..Examined::of(&wording) }));
    assert_eq!(of(true), []);
    assert_eq!(of(false), [("eos_missing", Severity::Fault), ("no_template", Severity::Warning)]);
}

#[test]
fn a_model_that_no_engine_computes_has_a_way_out() {
    let wording = Files::demo().wording();
    let error = CheckpointError::UnsupportedArchitecture {
        found: "Llama9ForCausalLM".to_owned(),
        supported: &["LlamaForCausalLM"],
    };
    let diagnosis = diagnose(&Examined { refused: Some(&error), ..Examined::of(&wording) });
    let refusal = ModelRefusal::from(&error);
    let finding = &diagnosis.findings[0];
    assert_eq!(found(&diagnosis), [("not_computed_here", Severity::Warning)]);
    assert_eq!((&finding.evidence, &finding.way_out), (&refusal.message, &refusal.way_out));
    assert_eq!(refusal.nearest.as_deref(), Some("LlamaForCausalLM"));
}

/// The damage, a function that causes it, and the expected finding.
type Row = (&'static str, fn(&mut Files), &'static str, Severity);

const BROKEN: &[Row] = &[
    ("the markers are no tokens any longer", lose_markers, "marker_split", Severity::Fault),
    ("one marker is none", lose_one_marker, "marker_split", Severity::Fault),
    (
        "the answer is not opened",
        |files| files.with_template(OPENS, "{%- endif -%}"),
        "generation_prompt_missing",
        Severity::Fault,
    ),
    (
        "the answer is opened by another role's head",
        |files| {
            files.with_template(
                "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}",
                "{%- if add_generation_prompt -%}{{- '<|im_start|>model\\n' -}}",
            )
        },
        "generation_prompt_differs",
        Severity::Warning,
    ),
    ("the template writes BOS twice", double_bos, "bos_doubled", Severity::Fault),
    (
        "the tokenizer adds BOS and the template writes it",
        bos_by_both,
        "bos_doubled_elsewhere",
        Severity::Note,
    ),
    ("the tokenizer adds BOS and the template does not", bos_by_tokenizer, "bos_missing", Severity::Warning),
    (
        "the block of tools is gone",
        |files| {
            files.with_template(
                "{%- if ns.sys or tools -%}",
                "{%- set tools = [] -%}{%- if ns.sys or tools -%}",
            );
        },
        "tools_not_shown",
        Severity::Warning,
    ),
    (
        "calls are left out of the conversation",
        |files| files.with_template("{%- for c in (m.tool_calls or []) -%}", "{%- for c in [] -%}"),
        "calls_not_shown",
        Severity::Warning,
    ),
    (
        "calls are written as nobody reads them",
        |files| {
            files.with_template(
                "'<tool_call>\\n{\"name\": \"' + f.name + '\", \"arguments\": '",
                "'CALL ' + f.name + ' WITH '",
            );
            files.with_template("+ '}\\n</tool_call>' -}}", "+ ' NOW' -}}");
        },
        "reply_family_wrong",
        Severity::Fault,
    ),
    (
        "another token ends an answer",
        |files| {
            files.generation["eos_token_id"] = json!([0]);
            files.config["eos_token_id"] = json!(0);
        },
        "eos_mismatch",
        Severity::Fault,
    ),
    (
        "the tokenizer's file names another end",
        |files| {
            files.generation["eos_token_id"] = json!([2]);
            files.tokenizer_config["eos_token"] = json!("<|endoftext|>");
        },
        "eos_disagrees",
        Severity::Warning,
    ),
    (
        "nothing ends an answer",
        |files| {
            files.generation.as_object_mut().unwrap().remove("eos_token_id");
            files.config.as_object_mut().unwrap().remove("eos_token_id");
        },
        "eos_missing",
        Severity::Fault,
    ),
    (
        "an end that the tokenizer does not know",
        |files| {
            files.config["vocab_size"] = json!(9000);
            files.generation["eos_token_id"] = json!([2, 8999]);
        },
        "eos_unknown",
        Severity::Fault,
    ),
    (
        "every text is ended",
        |files| files.tokenizer_config["add_eos_token"] = json!(true),
        "eos_appended",
        Severity::Warning,
    ),
    (
        "a prompt is over before its answer",
        |files| files.with_template(OPENS, "{{- '<|im_start|>assistant\\n<|im_end|>' -}}{%- endif -%}"),
        "prompt_ends_with_eos",
        Severity::Fault,
    ),
    (
        "an answer that was given has no end",
        |files| {
            files.with_template(
                "{%- endfor -%}\n{{- '<|im_end|>\\n' -}}\n{%- else -%}",
                "{%- endfor -%}\n{{- '\\n' -}}\n{%- else -%}",
            )
        },
        "eos_mismatch",
        Severity::Fault,
    ),
    (
        "turns are told in words alone",
        |files| {
            files.with_template("<|im_start|>", "");
            files.with_template("<|im_end|>", "");
        },
        "turn_without_end",
        Severity::Warning,
    ),
    (
        "a tokenizer with more ids than the model has rows",
        |files| files.config["vocab_size"] = json!(2000),
        "ids_beyond_vocabulary",
        Severity::Fault,
    ),
    (
        "a longer context is claimed",
        |files| files.tokenizer_config["model_max_length"] = json!(1_000_000),
        "context_disagrees",
        Severity::Warning,
    ),
    (
        "a shorter context is known",
        |files| files.tokenizer_config["model_max_length"] = json!(512),
        "context_disagrees",
        Severity::Warning,
    ),
    (
        "no context is said",
        |files| {
            files.config.as_object_mut().unwrap().remove("max_position_embeddings");
        },
        "context_unknown",
        Severity::Warning,
    ),
    (
        "the answer fills the context",
        |files| files.generation["max_new_tokens"] = json!(4096),
        "answer_beyond_context",
        Severity::Warning,
    ),
    (
        "the template takes no instructions",
        |files| {
            files.with_template("{%- set ns = namespace", "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}{%- set ns = namespace")
        },
        "template_fails",
        Severity::Warning,
    ),
    (
        "the template takes one turn alone",
        |files| {
            files.with_template("{%- set ns = namespace", "{%- if messages|length > 1 -%}{{ raise_exception('one turn') }}{%- endif -%}{%- set ns = namespace")
        },
        "template_fails",
        Severity::Fault,
    ),
    (
        "earlier questions are dropped",
        |files| files.with_template("{%- for m in messages -%}", "{%- for m in messages[-1:] -%}"),
        "message_dropped",
        Severity::Fault,
    ),
    (
        "the time stands in the prompt",
        |files| {
            files.with_template(
                "{%- set ns = namespace",
                "{{- strftime_now('%d %b %Y') -}}{%- set ns = namespace",
            )
        },
        "template_tells_time",
        Severity::Note,
    ),
    (
        "the template does not compile",
        |files| files.with_template("{%- endif -%}", "{%- endwhile -%}"),
        "template_unusable",
        Severity::Fault,
    ),
    (
        "there is no template",
        |files| {
            files.tokenizer_config.as_object_mut().unwrap().remove("chat_template");
        },
        "no_template",
        Severity::Warning,
    ),
    (
        "the tokenizer is none",
        |files| files.tokenizer = json!({"model": {"type": "Nonesuch"}}),
        "tokenizer_unusable",
        Severity::Fault,
    ),
];

/// The text that opens an answer in the demo model's template.
const OPENS: &str = "{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

fn lose_markers(files: &mut Files) {
    let lost = ["<|im_start|>", "<|im_end|>"];
    files.tokenizer["added_tokens"]
        .as_array_mut()
        .unwrap()
        .retain(|token| !lost.contains(&token["content"].as_str().unwrap()));
    let vocab = files.tokenizer["model"]["vocab"].as_object_mut().unwrap();
    lost.into_iter().for_each(|text| drop(vocab.remove(text)));
}

fn lose_one_marker(files: &mut Files) {
    files.tokenizer["added_tokens"]
        .as_array_mut()
        .unwrap()
        .retain(|token| token["content"] != "<|im_start|>");
    files.tokenizer["model"]["vocab"].as_object_mut().unwrap().remove("<|im_start|>");
    files.tokenizer_config["additional_special_tokens"] = json!([]);
}

fn with_bos(files: &mut Files) {
    files.add_tokens(&["<s>".to_owned()], true);
    files.tokenizer_config["bos_token"] = json!("<s>");
}

fn double_bos(files: &mut Files) {
    with_bos(files);
    files.with_template("{%- set ns = namespace", "{{- bos_token + '<s>' -}}{%- set ns = namespace");
}

fn bos_by_both(files: &mut Files) {
    with_bos(files);
    files.tokenizer_config["add_bos_token"] = json!(true);
    files.with_template("{%- set ns = namespace", "{{- bos_token -}}{%- set ns = namespace");
}

fn bos_by_tokenizer(files: &mut Files) {
    with_bos(files);
    files.tokenizer_config["add_bos_token"] = json!(true);
}

#[test]
fn each_breakage_is_found_by_name_with_evidence_and_a_way_out() {
    for (what, breaks, code, severity) in BROKEN {
        let mut files = Files::demo();
        breaks(&mut files);
        let diagnosis = files.diagnose();
        let finding = diagnosis.findings.iter().find(|finding| finding.code == *code);
        let Some(finding) = finding else { panic!("{what}: {:?} and no {code}", found(&diagnosis)) };
        assert_eq!(finding.severity, *severity, "{what}: {finding:#?}");
        assert!(!finding.evidence.is_empty() && finding.way_out.len() > 10, "{what}: {finding:#?}");
        assert_eq!(diagnosis.worst(), diagnosis.findings.first().map(|worst| worst.severity), "{what}");
    }
}

#[test]
fn what_the_files_leave_open_is_a_warning() {
    let wording = Files::demo().wording();
    let warnings = ["m.gguf: `tokenizer.ggml.pre` is missing".to_owned()];
    let diagnosis = diagnose(&Examined { warnings: &warnings, ..Examined::of(&wording) });
    let finding = diagnosis.findings.iter().find(|finding| finding.code == "files_leave_open").unwrap();
    assert_eq!((finding.severity, finding.evidence.as_str()), (Severity::Warning, warnings[0].as_str()));
}

#[test]
fn a_family_that_is_set_wrong_is_told_with_the_right_one() {
    let files = Files::demo();
    let wording = files.wording();
    let family = headrace_prompt::ReplyFamily::named("mistral");
    let diagnosis = diagnose(&Examined { family, ..Examined::of(&wording) });
    let finding = diagnosis.findings.iter().find(|finding| finding.code == "reply_family_wrong").unwrap();
    assert!(finding.way_out.contains("reply = \"hermes\""), "{finding:#?}");
}

#[test]
fn a_report_is_json() {
    let mut files = Files::demo();
    lose_markers(&mut files);
    let json = serde_json::to_value(files.diagnose()).unwrap();
    assert_eq!(json["findings"][0]["severity"], "fault");
    assert_eq!(json["facts"]["family"], "hermes");
    assert!(json["findings"][0]["way_out"].is_string());
}
