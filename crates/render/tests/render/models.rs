//! Models, calls and refusals of the tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_call_api::MemoryReservation;
use headrace_call_state::{CallMemory, MemoryBounds, Rejection};
use headrace_catalog::{
    Backend, EncoderOutput, MessageBackend, ModelPolicy, ServedModel, TokenBackend, VectorBackend,
};
use headrace_checkpoint::{Checkpoint, TokenizerConfig};
use headrace_domain::{Call, Endpoint, KeyId, ModelName, SamplingDefaults};
use headrace_engine_api::{Capabilities, FormKinds, ResumeSupport};
use headrace_grammar::FormCompiler;
use headrace_limits::LimitSpec;
use headrace_prompt::{ChatTemplate, ReplyStyle, SpecialTokenTexts, TemplateLimits};
use headrace_tokenizer::Tokenizer;
use headrace_wire::{WireLimits, parse};
use serde_json::{Value, json};

/// A model with a template and marks of tool calls.
pub(crate) const DEMO: &str = "demo-model/checkpoint";
/// A vocabulary with marks of reasoning.
pub(crate) const THINKER: &str = "crates/model/tests/data/qwen3";
/// An encoder whose tokenizer puts special tokens around texts.
pub(crate) const ENCODER: &str = "crates/model/tests/data/bert-embed";

/// Tokens of the context window.
pub(crate) const WINDOW: u32 = 512;
/// Ids of the demo model.
pub(crate) const VOCAB: u32 = 4096;

fn folder(dir: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(dir)
}

/// The `tokenizer.json` of a checkpoint.
pub(crate) fn tokenizer_json(dir: &str) -> String {
    std::fs::read_to_string(folder(dir).join("tokenizer.json")).unwrap()
}

pub(crate) fn tokenizer(dir: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(tokenizer_json(dir).as_bytes(), &TokenizerConfig::default()).unwrap())
}

pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        model: "m".to_owned(),
        compute_mode: "exact".to_owned(),
        numerics: "none".to_owned(),
        vocab: VOCAB,
        context_window: WINDOW,
        max_logprobs: 20,
        kv_tokens: 4096,
        continues: ResumeSupport::Never,
        grammars: false,
        thought_caps: false,
        forms: FormKinds::NONE,
        short_context: None,
    }
}

fn served(backend: Backend) -> ServedModel {
    ServedModel {
        name: ModelName::new("m").unwrap(),
        backend,
        created_unix_s: 0,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
        policy: ModelPolicy::default(),
    }
}

/// A model that takes tokens, with the tokenizer of a checkpoint and this template.
pub(crate) fn token_model(tokenizer: Arc<Tokenizer>, template: &str) -> ServedModel {
    let texts = SpecialTokenTexts::new(&tokenizer, None, Some("<|im_end|>".to_owned()), None, None);
    served(Backend::Tokens(TokenBackend {
        template: Some(Arc::new(ChatTemplate::compile(template, &texts, TemplateLimits::default()).unwrap())),
        replies: ReplyStyle::detect(template),
        grammars: Arc::new(FormCompiler::new(Arc::clone(&tokenizer), &[], VOCAB)),
        tokenizer,
        defaults: SamplingDefaults::default(),
        capabilities: capabilities(),
    }))
}

/// The demo model.
pub(crate) fn demo() -> ServedModel {
    let checkpoint = Checkpoint::open(&folder(DEMO)).unwrap();
    token_model(tokenizer(DEMO), checkpoint.chat_template().unwrap())
}

/// A model of another provider.
pub(crate) fn relayed() -> ServedModel {
    served(Backend::Messages(MessageBackend::default()))
}

/// An encoder that makes `makes`. Its prompt for queries is `query: `.
pub(crate) fn encoder(dir: &str, makes: EncoderOutput) -> ServedModel {
    served(Backend::Vectors(VectorBackend {
        tokenizer: tokenizer(dir),
        capabilities: Capabilities { vocab: 1024, ..capabilities() },
        makes,
        lower_case: false,
        prompts: BTreeMap::from([("query".to_owned(), "query: ".to_owned())]),
        default_prompt: None,
    }))
}

/// The model with a changed token backend.
pub(crate) fn changed(mut model: ServedModel, change: impl FnOnce(&mut TokenBackend)) -> ServedModel {
    if let Backend::Tokens(backend) = &mut model.backend {
        change(backend);
    }
    model
}

pub(crate) fn tokens(model: &ServedModel) -> &TokenBackend {
    model.backend.tokens().unwrap()
}

pub(crate) fn vectors(model: &ServedModel) -> &VectorBackend {
    let Backend::Vectors(backend) = &model.backend else { panic!("an encoder") };
    backend
}

/// The call of a body that needs no model and no bound.
pub(crate) fn call(endpoint: Endpoint, mut body: Value) -> Call {
    body["model"] = json!("m");
    if endpoint == Endpoint::Messages {
        body["max_tokens"] = json!(2000);
    }
    parse(endpoint, body.to_string().as_bytes(), &WireLimits::default())
        .unwrap_or_else(|bad| panic!("{bad:?} of {body}"))
}

/// A chat of one message of the user, with further fields.
pub(crate) fn chat(more: Value) -> Call {
    call(Endpoint::ChatCompletions, with(json!({"messages": [{"role": "user", "content": "hi"}]}), more))
}

/// An object with further fields.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub(crate) fn memory() -> MemoryReservation {
    memory_within(MemoryBounds::default())
}

pub(crate) fn memory_within(bounds: MemoryBounds) -> MemoryReservation {
    CallMemory::new(bounds).none_yet(&KeyId::new("key").unwrap())
}

/// The code and the field of a rejection. Empty if it names no field.
pub(crate) fn refusal(rejection: &Rejection) -> (&'static str, &str) {
    (rejection.code.name(), rejection.param.as_deref().unwrap_or_default())
}

/// The code and the field of an outcome that must be a rejection, whose message must have `says`.
pub(crate) fn refused<T>(outcome: Result<T, Rejection>, says: &str) -> (&'static str, String) {
    let Err(rejection) = outcome else { panic!("it must be refused: {says}") };
    assert!(rejection.message.contains(says), "{} has no `{says}`", rejection.message);
    let (code, param) = refusal(&rejection);
    (code, param.to_owned())
}
