//! Required forms of answers in the fields of each kind of server. Forms that a kind does not support are refused by
//! name.

use std::sync::Arc;

use headrace_domain::{FormTag, GrammarSyntax, JsonForm, ResponseFormat, Sampling, TaggedForm};
use headrace_engine_api::{
    CompiledGrammar, Engine as _, FormKinds, FormThought, GrammarState, Job, JobError, JobEvent,
    SubmitRefusal,
};
use headrace_fault_server::{FaultServer, Request, event_stream};
use headrace_upstream::UpstreamKind;
use serde_json::{Value, json};

use crate::tokens::{ids, job, model_of, read};

/// A grammar that consists only of its form. It is never compiled or followed here.
#[derive(Debug)]
struct FixedGrammar(Arc<ResponseFormat>, Option<FormThought>);

impl CompiledGrammar for FixedGrammar {
    fn form(&self) -> &Arc<ResponseFormat> {
        &self.0
    }

    fn thought(&self) -> Option<&FormThought> {
        self.1.as_ref()
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        unreachable!("nothing is followed here")
    }

    fn state_bytes(&self) -> usize {
        0
    }
}

fn held(form: ResponseFormat, thought: Option<FormThought>) -> Job {
    let sampling = Sampling { max_tokens: 20, ..Sampling::default() };
    Job { grammar: Some(Arc::new(FixedGrammar(Arc::new(form), thought))), ..job(sampling) }
}

fn schema(compact: bool, white_space: Option<&str>) -> ResponseFormat {
    // The keys are in an order that no sorting produces.
    let schema =
        serde_json::from_str(r#"{"type":"object","properties":{"z":{"type":"integer"},"a":{}}}"#).unwrap();
    ResponseFormat::JsonSchema(JsonForm {
        name: None,
        schema,
        strict: false,
        compact,
        white_space: white_space.map(str::to_owned),
    })
}

fn grammar(text: &str, syntax: GrammarSyntax) -> ResponseFormat {
    ResponseFormat::Grammar { text: text.to_owned(), syntax }
}

fn tags() -> ResponseFormat {
    let tag =
        FormTag { begin: "<f=a>".to_owned(), schema: json!({"type": "object"}), end: "</f>".to_owned() };
    ResponseFormat::Tags(TaggedForm { tags: vec![tag], triggers: vec!["<f=".to_owned()] })
}

fn choice() -> ResponseFormat {
    ResponseFormat::Choice(vec!["yes (or so)".to_owned(), "no\n\"x\"\\".to_owned()])
}

/// An answer in the format of each kind, with only these ids and its end.
fn answer(kind: UpstreamKind, text: &[u32], request: &Request) -> Vec<u8> {
    let whole = |body: &Value| {
        let body = body.to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    match kind {
        UpstreamKind::Sglang => {
            let meta = json!({"id": "r", "finish_reason": {"type": "stop", "matched": 3}, "completion_tokens": text.len()});
            let event = json!({"text": "x", "output_ids": text, "meta_info": meta}).to_string();
            event_stream([event.as_str(), "[DONE]"])
        }
        UpstreamKind::LlamaCpp if request.json()["stream"] == true => {
            let event = json!({"content": "x", "tokens": text, "stop": true, "stop_type": "eos", "tokens_predicted": text.len()});
            event_stream([event.to_string().as_str()])
        }
        UpstreamKind::LlamaCpp => whole(
            &json!({"content": "x", "tokens": text, "stop": true, "stop_type": "eos", "tokens_predicted": text.len()}),
        ),
        _ => {
            let part = json!({"index": 0, "finish_reason": "stop", "token_ids": text});
            event_stream([json!({"choices": [part]}).to_string().as_str(), "[DONE]"])
        }
    }
}

/// Returns the path and body of a request with a form, after reading the answer to its end.
async fn asked(kind: UpstreamKind, form: ResponseFormat) -> Result<(String, Value), SubmitRefusal> {
    let text = ids("{}");
    let said = text.clone();
    let fault_server =
        FaultServer::start_with(move |request| Some(answer(kind, &said, request))).await.unwrap();
    let model = model_of(kind, &fault_server.url(), "m");
    let (said, last) = read(model.submit(held(form, None))?, 1).await;
    assert!(matches!(last, JobEvent::Done(_)) && said[0].ids == text, "{last:?}");
    let requests = fault_server.seen().requests;
    assert_eq!(requests.len(), 1);
    Ok((requests[0].path.clone(), requests[0].json()))
}

#[tokio::test]
async fn each_kind_is_told_a_form_in_its_own_words() {
    let lark = "start: /[a-z]+/";
    let gbnf = "root ::= [a-z]+";
    let tagged = json!({"type": "structural_tag", "structures": [{"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f="]});
    let schema_text = r#"{"type":"object","properties":{"z":{"type":"integer"},"a":{}}}"#;
    let object: Value = serde_json::from_str(schema_text).unwrap();
    let vllm = "/sampling_params/structured_outputs";
    let tagged = tagged.to_string();
    for (kind, form, at, expected) in [
        (UpstreamKind::Vllm, ResponseFormat::JsonObject, vllm, json!({"json_object": true})),
        (UpstreamKind::Vllm, schema(false, None), vllm, json!({"json": object})),
        (
            UpstreamKind::Vllm,
            schema(true, None),
            vllm,
            json!({"json": object, "disable_any_whitespace": true}),
        ),
        (
            UpstreamKind::Vllm,
            schema(false, Some(" ?")),
            vllm,
            json!({"json": object, "whitespace_pattern": " ?"}),
        ),
        (UpstreamKind::Vllm, ResponseFormat::Regex("a+".into()), vllm, json!({"regex": "a+"})),
        (UpstreamKind::Vllm, choice(), vllm, json!({"choice": ["yes (or so)", "no\n\"x\"\\"]})),
        (UpstreamKind::Vllm, grammar(lark, GrammarSyntax::Lark), vllm, json!({"grammar": lark})),
        (UpstreamKind::Vllm, grammar(gbnf, GrammarSyntax::Either), vllm, json!({"grammar": gbnf})),
        (UpstreamKind::Vllm, tags(), vllm, json!({"structural_tag": tagged})),
        (
            UpstreamKind::Sglang,
            ResponseFormat::JsonObject,
            "/sampling_params/json_schema",
            json!(r#"{"type":"object"}"#),
        ),
        (UpstreamKind::Sglang, schema(false, None), "/sampling_params/json_schema", json!(schema_text)),
        (UpstreamKind::Sglang, ResponseFormat::Regex("a+".into()), "/sampling_params/regex", json!("a+")),
        (UpstreamKind::Sglang, choice(), "/sampling_params/regex", json!("(yes \\(or so\\)|no\\n\"x\"\\\\)")),
        (UpstreamKind::Sglang, grammar(gbnf, GrammarSyntax::Either), "/sampling_params/ebnf", json!(gbnf)),
        (UpstreamKind::Sglang, tags(), "/sampling_params/structural_tag", json!(tagged)),
        (UpstreamKind::LlamaCpp, ResponseFormat::JsonObject, "/json_schema", json!({"type": "object"})),
        (UpstreamKind::LlamaCpp, schema(false, None), "/json_schema", object.clone()),
        (
            UpstreamKind::LlamaCpp,
            choice(),
            "/grammar",
            json!("root ::= \"yes (or so)\" | \"no\\x0A\\\"x\\\"\\\\\""),
        ),
        (UpstreamKind::LlamaCpp, grammar(gbnf, GrammarSyntax::Gbnf), "/grammar", json!(gbnf)),
    ] {
        let (path, body) = asked(kind, form).await.unwrap();
        assert_eq!(body.pointer(at), Some(&expected), "{kind} {path}: {body}");
        // The keys keep the order in which they were sent.
        let text = body.to_string();
        assert!(
            !text.contains("properties") || text.contains(&schema_text[17..40]) || text.contains("\\\"z\\\""),
            "{text}"
        );
        // An answer with a form is not streamed, because ids that a stream leaves out could not be requested again.
        assert_eq!(body["stream"], kind != UpstreamKind::LlamaCpp, "{kind}");
    }
}

#[tokio::test]
async fn what_a_kind_cannot_be_told_is_refused_by_name() {
    for (kind, form, words) in [
        (
            UpstreamKind::Sglang,
            schema(true, None),
            "JSON whose white space is prescribed: servers of kind `sglang`",
        ),
        (UpstreamKind::Sglang, grammar("start: \"a\"", GrammarSyntax::Either), "a grammar in Lark"),
        (
            UpstreamKind::LlamaCpp,
            ResponseFormat::Regex("a".into()),
            "a regular expression: servers of kind `llamacpp`",
        ),
        (UpstreamKind::LlamaCpp, tags(), "a structural tag"),
        (UpstreamKind::LlamaCpp, schema(false, Some(" ")), "white space"),
    ] {
        let model = model_of(kind, "http://127.0.0.1:1", "m");
        assert!(!model.capabilities().grammars && model.capabilities().forms.has(FormKinds::JSON));
        let refusal = model.submit(held(form, None)).map(drop).unwrap_err();
        assert!(matches!(&refusal, SubmitRefusal::Invalid { what } if what.contains(words)), "{refusal}");
    }
    let model = model_of(UpstreamKind::Vllm, "http://127.0.0.1:1", "m");
    let thought = |is_open| FormThought { open: 1, close: 2, is_open, between: Vec::new(), most_ids: None };
    let refusal = model.submit(held(ResponseFormat::JsonObject, Some(thought(true)))).map(drop).unwrap_err();
    assert!(refusal.to_string().contains("a form behind a thought"), "{refusal}");
    let begun = Job { generated: 1, ..held(ResponseFormat::JsonObject, None) };
    let refusal = model.submit(begun).map(drop).unwrap_err();
    assert!(refusal.to_string().contains("begun elsewhere"), "{refusal}");
}

/// The answer of vLLM 0.32 to a schema that its backend does not support.
#[tokio::test]
async fn a_form_that_a_server_does_not_take_is_the_callers_to_mend() {
    let fault_server = FaultServer::start_with(|_| {
        let body = r#"{"error":{"message":"The provided JSON schema contains features not supported by xgrammar.","type":"BadRequestError","param":null,"code":400}}"#;
        let head = format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}",
            body.len()
        );
        Some(format!("{head}\r\n\r\n{body}").into_bytes())
    });
    let fault_server = fault_server.await.unwrap();
    let model = model_of(UpstreamKind::Vllm, &fault_server.url(), "m");
    let (_, last) = read(model.submit(held(schema(false, None), None)).unwrap(), 1).await;
    let JobEvent::Failed { error: JobError::Refused(SubmitRefusal::Invalid { what }), .. } = &last else {
        panic!("{last:?}")
    };
    assert!(what.contains("JSON: its server does not take it"), "{what}");
    // Without a form, the error is the server's fault.
    let (_, last) = read(model.submit(job(Sampling::default())).unwrap(), 1).await;
    assert!(matches!(&last, JobEvent::Failed { error: JobError::Internal { .. }, .. }), "{last:?}");
}
