//! Texts for encoders: the ids of each, and what an encoder cannot take.

use headrace_call_state::{MemoryBounds, Rejection, TokenizerMemory};
use headrace_catalog::{EncoderOutput, ServedModel};
use headrace_domain::{Call, EncodeText, EncodeWish, Endpoint, Prompt, PromptItem, ToEncode, VectorWish};
use headrace_render::{encode_texts, encoder_rejection, generator_rejection, text_ids};
use serde_json::{Value, json};

use crate::models::{
    DEMO, ENCODER, WINDOW, call, chat, demo, encoder, memory, memory_within, refusal, refused, vectors, with,
};

const VECTORS: EncoderOutput = EncoderOutput::Vectors { width: 4 };
/// More tokens than any call here has.
const MANY: u32 = 100_000;

fn input(input: Value) -> Call {
    call(Endpoint::Embeddings, json!({"input": input}))
}

fn encoded(model: &ServedModel, call: &Call) -> Result<Vec<Vec<u32>>, Rejection> {
    encoded_within(model, call, MANY)
}

fn encoded_within(model: &ServedModel, call: &Call, most_tokens: u32) -> Result<Vec<Vec<u32>>, Rejection> {
    let memory = memory();
    let ids = encode_texts(model, vectors(model), call, most_tokens, TokenizerMemory(&memory))?;
    Ok(ids.iter().map(|ids| ids.to_vec()).collect())
}

#[test]
fn texts_get_their_special_tokens_and_ids_get_none() {
    let model = encoder(ENCODER, VECTORS);
    let tokenizer = &vectors(&model).tokenizer;
    let plain = |text: &str| tokenizer.encode_plain(text, true).unwrap();
    for (more, expected) in [
        (json!({"input": "hello there"}), vec![plain("hello there")]),
        (json!({"input": ["b", "a", "b"]}), vec![plain("b"), plain("a"), plain("b")]),
        (json!({"input": [[1, 2, 3], [4]]}), vec![vec![1, 2, 3], vec![4]]),
        (json!({"input": "hello", "prompt_name": "query"}), vec![plain("query: hello")]),
        (json!({"input": "[SEP] hello", "dimensions": 4}), vec![plain("[SEP] hello")]),
    ] {
        let call = call(Endpoint::Embeddings, more.clone());
        assert_eq!(encoded(&model, &call).unwrap(), expected, "{more}");
    }
    // Text is no control token: the special tokens are those around it.
    let separator = tokenizer.id_of("[SEP]").unwrap();
    let separators = |text: &str| plain(text).iter().filter(|id| **id == separator).count();
    assert_eq!((separators("hello"), separators("[SEP] hello")), (1, 1));

    let scores = encoder(ENCODER, EncoderOutput::Scores);
    let pair = |document: &str| tokenizer.encode_pair("which", document).unwrap();
    let ranked = call(Endpoint::Rerank, json!({"query": "which", "documents": ["one", "two"]}));
    assert_eq!(encoded(&scores, &ranked).unwrap(), [pair("one"), pair("two")]);
    let scored = call(Endpoint::Score, json!({"text_1": "which", "text_2": "one"}));
    assert_eq!(encoded(&scores, &scored).unwrap(), [pair("one")]);
}

#[test]
fn a_default_prompt_and_lower_case_are_the_models_own() {
    let mut model = encoder(DEMO, VECTORS);
    if let headrace_catalog::Backend::Vectors(backend) = &mut model.backend {
        backend.lower_case = true;
        backend.default_prompt = Some("Text: ".to_owned());
    }
    let tokenizer = &vectors(&model).tokenizer;
    let plain = |text: &str| tokenizer.encode_plain(text, true).unwrap();
    assert_eq!(encoded(&model, &input(json!("HELLO"))).unwrap(), [plain("text: hello")]);
    let named = call(Endpoint::Embeddings, json!({"input": "HELLO", "prompt_name": "query"}));
    assert_eq!(encoded(&model, &named).unwrap(), [plain("query: hello")]);
    let memory = memory();
    let ids = |special| {
        text_ids(&model, vectors(&model), "HELLO".to_owned(), special, TokenizerMemory(&memory)).unwrap()
    };
    assert_eq!((ids(true), ids(false)), (plain("hello"), plain("hello")), "this tokenizer adds none");
}

#[test]
fn what_an_encoder_cannot_take_is_refused_by_its_field() {
    let model = encoder(ENCODER, VECTORS);
    let scores = encoder(ENCODER, EncoderOutput::Scores);
    let long = "hello ".repeat(WINDOW as usize);
    let wish = |more| call(Endpoint::Embeddings, with(json!({"input": "a"}), more));
    for (model, call, expected, says) in [
        (&model, wish(json!({"dimensions": 5})), ("invalid_value", "dimensions"), "has 4"),
        (&model, wish(json!({"prompt_name": "passage"})), ("invalid_value", "prompt_name"), "it has query"),
        (&model, input(json!([1, 1024])), ("invalid_value", "input"), "last id is 1023"),
        (
            &model,
            input(json!([[1], vec![1; 513]])),
            ("context_length_exceeded", "input"),
            "Text 1 has 513 tokens",
        ),
        (&model, input(json!(["a", long])), ("context_length_exceeded", "input"), "Text 1 has more than 512"),
        (
            &scores,
            call(Endpoint::Rerank, json!({"query": "q", "documents": ["a", long]})),
            ("context_length_exceeded", "documents"),
            "Text 1",
        ),
        (
            &scores,
            call(Endpoint::Score, json!({"text_1": "q", "text_2": [long]})),
            ("context_length_exceeded", "text_2"),
            "Text 0",
        ),
        (&scores, input(json!("a")), ("wrong_kind_of_model", "model"), "scores pairs"),
        (&model, chat(json!({})), ("wrong_kind_of_model", "model"), "makes embeddings"),
        (
            &model,
            call(Endpoint::Score, json!({"text_1": "q", "text_2": "a"})),
            ("wrong_kind_of_model", "model"),
            "makes embeddings",
        ),
    ] {
        let (code, param) = refused(encoded(model, &call), says);
        assert_eq!((code, param.as_str()), expected, "{says}");
    }
}

/// Lower-casing a text divides its bytes by three at most.
#[test]
fn a_text_that_cannot_fit_is_refused_before_it_is_encoded() {
    let model = encoder(DEMO, VECTORS);
    let each = vectors(&model).tokenizer.most_bytes_per_token().unwrap();
    let text = "x".repeat(WINDOW as usize * each * 3 + 1);
    let refused_text = refused(encoded(&model, &input(json!(text))), "Text 0 has more than 512 tokens");
    assert_eq!(refused_text, ("context_length_exceeded", "input".to_owned()));
    let memory = memory();
    let outcome = text_ids(&model, vectors(&model), text, false, TokenizerMemory(&memory));
    assert_eq!(refused(outcome, "Shorten it"), ("context_length_exceeded", "prompt".to_owned()));
}

#[test]
fn texts_together_are_bounded() {
    let model = encoder(ENCODER, VECTORS);
    let call = input(json!([[1, 2], [3, 4], [5]]));
    assert!(encoded_within(&model, &call, 5).is_ok());
    let refused = refused(encoded_within(&model, &call, 4), "counted up to text 2");
    assert_eq!(refused, ("context_length_exceeded", "input".to_owned()));
}

#[test]
fn a_text_without_tokens_is_refused() {
    let model = encoder(DEMO, VECTORS);
    let mut call = input(json!("a"));
    call.prompt = Prompt::Encode(ToEncode {
        texts: vec![EncodeText::One(PromptItem::Text(String::new()))],
        wish: EncodeWish::Vectors(VectorWish::default()),
    });
    assert_eq!(refused(encoded(&model, &call), "Text 0 has no tokens"), ("empty_prompt", "input".to_owned()));
}

#[test]
fn a_text_whose_encoding_has_no_memory_is_refused() {
    let model = encoder(ENCODER, VECTORS);
    let memory = memory_within(MemoryBounds { call: 0, key: 0, all: 0 });
    let room = TokenizerMemory(&memory);
    let outcome = encode_texts(&model, vectors(&model), &input(json!("hello")), MANY, room);
    assert_eq!(refused(outcome, "memory"), ("call_too_large", "input".to_owned()));
    let outcome = text_ids(&model, vectors(&model), "hello".to_owned(), true, room);
    assert_eq!(refused(outcome, "memory"), ("call_too_large", String::new()));
}

#[test]
fn a_model_of_another_kind_says_which_endpoints_it_has() {
    let model = encoder(ENCODER, VECTORS);
    for (rejection, says) in [
        (encoder_rejection(&model, vectors(&model)), "/v1/embeddings"),
        (encoder_rejection(&model, vectors(&encoder(ENCODER, EncoderOutput::Scores))), "/v1/rerank"),
        (generator_rejection(&demo()), "/v1/chat/completions"),
    ] {
        assert_eq!(refusal(&rejection), ("wrong_kind_of_model", "model"));
        assert!(rejection.message.contains(says), "{}", rejection.message);
    }
}
