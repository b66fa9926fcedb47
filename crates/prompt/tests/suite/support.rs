//! The recorded templates, the demo model's template, and helpers to compile them.

use std::sync::{Arc, LazyLock};

use headrace_checkpoint::TokenizerConfig;
use headrace_domain::UnixNanos;
use headrace_prompt::{ChatTemplate, RenderOptions, SpecialTokenTexts, TemplateLimits};
use headrace_tokenizer::Tokenizer;

pub(crate) fn data(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn demo_tokenizer() -> Arc<Tokenizer> {
    static LOADED: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
        Arc::new(Tokenizer::new(&data("demo-tokenizer.json"), &TokenizerConfig::default()).unwrap())
    });
    Arc::clone(&LOADED)
}

pub(crate) fn demo_source() -> String {
    String::from_utf8(data("demo-template.jinja")).unwrap()
}

pub(crate) fn demo_template() -> ChatTemplate {
    let tokens = SpecialTokenTexts::new(&demo_tokenizer(), None, Some("<|im_end|>".to_owned()), None, None);
    ChatTemplate::compile(&demo_source(), &tokens, TemplateLimits::default()).unwrap()
}

pub(crate) fn compile(source: &str, markup: &[&str]) -> ChatTemplate {
    let tokens = SpecialTokenTexts {
        bos: Some("<s>".to_owned()),
        eos: Some("</s>".to_owned()),
        markup: markup.iter().map(|token| (*token).to_owned()).collect(),
        ..SpecialTokenTexts::default()
    };
    ChatTemplate::compile(source, &tokens, TemplateLimits::default()).unwrap()
}

pub(crate) fn options(add_generation_prompt: bool) -> RenderOptions<'static> {
    RenderOptions { add_generation_prompt, now: UnixNanos::new(1_773_065_106_000_000_000), reasoning: None }
}
