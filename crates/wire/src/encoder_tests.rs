//! Requests for encoders: bodies that are accepted, bodies that are refused by name, and the answers.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{
    Code, EncodeText, EncodeWish, Endpoint, FinishReason, Prompt, PromptItem, ReplyEvent, RequestId,
    ServiceTier, ToEncode, UnixNanos, Usage,
};
use serde_json::{Value, json};

use crate::common::encoder::ReplyMeta;
use crate::encode::encoder;
use crate::fault::BadRequest;
use crate::limits::WireLimits;
use crate::request::parse;

fn read(endpoint: Endpoint, body: &Value) -> Result<ToEncode, BadRequest> {
    let call = parse(endpoint, body.to_string().as_bytes(), &WireLimits::default())?;
    assert_eq!((call.model.as_str(), call.sampling.max_tokens), ("m", Some(0)));
    match call.prompt {
        Prompt::Encode(to_encode) => Ok(to_encode),
        other => panic!("{other:?}"),
    }
}

#[test]
fn input_is_a_text_texts_ids_or_lists_of_ids() {
    let text = |text: &str| EncodeText::One(PromptItem::Text(text.into()));
    let ids = |ids: &[u32]| EncodeText::One(PromptItem::Ids(ids.to_vec()));
    for (input, expected) in [
        (json!("a"), vec![text("a")]),
        (json!(["a", "b"]), vec![text("a"), text("b")]),
        (json!([1, 2]), vec![ids(&[1, 2])]),
        (json!([[1], [2, 3]]), vec![ids(&[1]), ids(&[2, 3])]),
    ] {
        assert_eq!(
            read(Endpoint::Embeddings, &json!({"model": "m", "input": input})).unwrap().texts,
            expected
        );
    }
    let most = vec!["a"; 2048];
    assert_eq!(read(Endpoint::Embeddings, &json!({"model": "m", "input": most})).unwrap().texts.len(), 2048);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let many = vec!["a"; 2049];
    for (endpoint, body, code, param) in [
        (Endpoint::Embeddings, json!({}), Code::MissingRequiredParameter, "input"),
        (Endpoint::Embeddings, json!({"input": []}), Code::EmptyArray, "input"),
        (Endpoint::Embeddings, json!({"input": [[]]}), Code::EmptyArray, "input[0]"),
        (Endpoint::Embeddings, json!({"input": ""}), Code::EmptyPrompt, "input"),
        (Endpoint::Embeddings, json!({"input": ["a", " \t"]}), Code::EmptyPrompt, "input[1]"),
        (Endpoint::Embeddings, json!({"input": ["\u{200b}"]}), Code::EmptyPrompt, "input[0]"),
        (Endpoint::Rerank, json!({"query": "\n", "documents": ["d"]}), Code::EmptyPrompt, "query"),
        (Endpoint::Rerank, json!({"query": "q", "documents": ["d", ""]}), Code::EmptyPrompt, "documents[1]"),
        (
            Endpoint::Rerank,
            json!({"query": "q", "documents": [{"text": "\u{feff}"}]}),
            Code::EmptyPrompt,
            "documents[0].text",
        ),
        (Endpoint::Score, json!({"text_1": "", "text_2": "b"}), Code::EmptyPrompt, "text_1"),
        (Endpoint::Score, json!({"text_1": "a", "text_2": ["b", " "]}), Code::EmptyPrompt, "text_2[1]"),
        (Endpoint::Embeddings, json!({"input": ["a", 1]}), Code::InvalidType, "input[1]"),
        (Endpoint::Embeddings, json!({"input": 1}), Code::InvalidType, "input"),
        (Endpoint::Embeddings, json!({"input": many}), Code::ArrayAboveMaxLength, "input"),
        (
            Endpoint::Embeddings,
            json!({"input": "a", "encoding_format": "int8"}),
            Code::InvalidValue,
            "encoding_format",
        ),
        (
            Endpoint::Embeddings,
            json!({"input": "a", "dimensions": 0}),
            Code::IntegerBelowMinValue,
            "dimensions",
        ),
        (Endpoint::Embeddings, json!({"input": "a", "stream": true}), Code::UnsupportedParameter, "stream"),
        (
            Endpoint::Embeddings,
            json!({"input": "a", "temperature": 1}),
            Code::UnknownParameter,
            "temperature",
        ),
        (Endpoint::Rerank, json!({"documents": ["a"]}), Code::MissingRequiredParameter, "query"),
        (Endpoint::Rerank, json!({"query": "q", "documents": []}), Code::EmptyArray, "documents"),
        (Endpoint::Rerank, json!({"query": "q", "documents": many}), Code::ArrayAboveMaxLength, "documents"),
        (
            Endpoint::Rerank,
            json!({"query": "q", "documents": [{"text": "a", "title": "t"}]}),
            Code::UnsupportedParameter,
            "documents[0].title",
        ),
        (
            Endpoint::Rerank,
            json!({"query": "q", "documents": ["a"], "top_n": 0}),
            Code::IntegerBelowMinValue,
            "top_n",
        ),
        (
            Endpoint::Rerank,
            json!({"query": "q", "documents": ["a"], "max_tokens_per_doc": 9}),
            Code::UnsupportedParameter,
            "max_tokens_per_doc",
        ),
        (Endpoint::Score, json!({"text_1": "a"}), Code::MissingRequiredParameter, "text_2"),
        (Endpoint::Score, json!({"text_1": ["a", "b"], "text_2": ["c"]}), Code::InvalidValue, "text_2"),
    ] {
        let mut body = body;
        body["model"] = json!("m");
        let refused = read(endpoint, &body).unwrap_err();
        assert_eq!((refused.code, refused.param.as_deref()), (code, Some(param)), "{body}");
    }
}

#[test]
fn pairs_are_a_query_with_each_document_or_text_by_text() {
    let pair = |a: &str, b: &str| EncodeText::Pair(a.into(), b.into());
    let body = json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}]});
    assert_eq!(read(Endpoint::Rerank, &body).unwrap().texts, [pair("q", "a"), pair("q", "b")]);
    for (first, second, expected) in [
        (json!("q"), json!("a"), vec![pair("q", "a")]),
        (json!("q"), json!(["a", "b"]), vec![pair("q", "a"), pair("q", "b")]),
        (json!(["q"]), json!(["a", "b"]), vec![pair("q", "a"), pair("q", "b")]),
        (json!(["q", "r"]), json!(["a", "b"]), vec![pair("q", "a"), pair("r", "b")]),
    ] {
        let body = json!({"model": "m", "text_1": first, "text_2": second});
        assert_eq!(read(Endpoint::Score, &body).unwrap().texts, expected);
    }
}

/// Returns the answer to `body` if the texts have these values.
fn answer(endpoint: Endpoint, body: &Value, values: &[&[f32]]) -> Value {
    let call = parse(endpoint, body.to_string().as_bytes(), &WireLimits::default()).unwrap();
    let meta = ReplyMeta {
        request_id: RequestId::fresh(UnixNanos::new(0)),
        created_unix_s: 7,
        model: "served".to_owned(),
        system_fingerprint: String::new(),
        tier: ServiceTier::Standard,
        chosen: crate::common::encoder::ShownSampling::default(),
        diagnosis: None,
    };
    let (mut encoder, mut out) = (encoder(&call, meta), BytesMut::new());
    let usage = Usage { input: 9, ..Usage::default() };
    encoder.begin(&usage, &mut out);
    // The values may come in any order.
    for (choice, values) in values.iter().enumerate().rev() {
        let choice = u32::try_from(choice).unwrap();
        encoder.event(&ReplyEvent::Encoded { choice, values: Arc::from(*values) }, &mut out);
        encoder.event(&ReplyEvent::Finish { choice, reason: FinishReason::Stop }, &mut out);
    }
    assert!(out.is_empty(), "nothing goes out before the end");
    encoder.finish(&usage, None, &mut out);
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn vectors_come_as_numbers_or_as_the_bytes_of_little_endian_floats() {
    let body = json!({"model": "m", "input": ["a", "b"]});
    let got = answer(Endpoint::Embeddings, &body, &[&[0.5, -1.0], &[2.0, 0.1]]);
    let vector = |at: usize, values: Value| json!({"object": "embedding", "index": at, "embedding": values});
    assert_eq!(
        got,
        json!({
            "object": "list", "model": "served", "usage": {"prompt_tokens": 9, "total_tokens": 9},
            "data": [vector(0, json!([0.5, -1.0])), vector(1, json!([2.0, 0.1]))],
        })
    );
    let body = json!({"model": "m", "input": "a", "encoding_format": "base64"});
    let got = answer(Endpoint::Embeddings, &body, &[&[1.0, -2.0]]);
    // 00 00 80 3f · 00 00 00 c0
    assert_eq!(got["data"], json!([vector(0, json!("AACAPwAAAMA="))]));
}

#[test]
fn rankings_come_best_first_and_scores_in_the_order_of_the_texts() {
    let mut body = json!({"model": "m", "query": "q", "documents": ["a", "b", "c", "d"]});
    let scores: [&[f32]; 4] = [&[0.25], &[0.75], &[0.25], &[-1.0]];
    let got = answer(Endpoint::Rerank, &body, &scores);
    let order: Vec<u64> =
        got["results"].as_array().unwrap().iter().map(|row| row["index"].as_u64().unwrap()).collect();
    assert_eq!(order, [1, 0, 2, 3]);
    assert_eq!(got["results"][0], json!({"index": 1, "relevance_score": 0.75}));
    assert!(got["id"].as_str().unwrap().starts_with("rerank-"));
    body["top_n"] = json!(2);
    body["return_documents"] = json!(true);
    assert_eq!(
        answer(Endpoint::Rerank, &body, &scores)["results"],
        json!([
            {"index": 1, "document": {"text": "b"}, "relevance_score": 0.75},
            {"index": 0, "document": {"text": "a"}, "relevance_score": 0.25},
        ])
    );
    let body = json!({"model": "m", "text_1": "q", "text_2": ["a", "b"]});
    let got = answer(Endpoint::Score, &body, &[&[0.25], &[0.75]]);
    assert_eq!(
        got["data"],
        json!([{"index": 0, "object": "score", "score": 0.25}, {"index": 1, "object": "score", "score": 0.75}])
    );
    assert_eq!(got["object"], "list");
    assert_eq!(read(Endpoint::Score, &body).unwrap().wish, EncodeWish::Scores(Default::default()));
}
