//! Calls for encoders take the whole governed path: they are read, rendered, held for and charged by their input, and
//! rejected by name.

use headrace_call_api::{Question, RequestTarget};
use headrace_catalog::EncoderOutput;
use headrace_domain::{CallOutcome, Code, Endpoint, NanoDollars};
use serde_json::{Value, json};

use crate::world::{MODEL, Script, Setup, World, read, trace_of};

fn world(setup: Setup) -> World {
    let world = World::new(Setup { makes: Some(EncoderOutput::Vectors { width: 4 }), ..setup });
    world.script(Script::Encode(4));
    world
}

fn body(input: Value) -> Value {
    json!({"model": MODEL, "input": input})
}

/// The status, error code and parameter.
async fn refusal(world: &World, endpoint: Endpoint, body: Value) -> (u16, String, Value) {
    let answer = world.call(endpoint, body).await;
    let status = answer.status;
    let said: Value = serde_json::from_str(&read(answer).await).unwrap();
    let error = &said["error"];
    (status, error["code"].as_str().unwrap_or_default().to_owned(), error["param"].clone())
}

#[tokio::test]
async fn vectors_are_charged_by_their_input_and_traced() {
    let world = world(Setup::default());
    let answer = world.call(Endpoint::Embeddings, body(json!([[1, 2, 3], [4, 5]]))).await;
    assert_eq!(answer.status, 200);
    let record = trace_of(&world, answer).await;
    assert_eq!((record.usage.input, record.usage.total()), (5, 5));
    assert_eq!(
        (record.endpoint, &record.outcome),
        (Some(Endpoint::Embeddings), &CallOutcome::Completed { finish: vec!["stop".to_owned(); 2] })
    );
    // $1 per million tokens.
    assert_eq!(record.cost, NanoDollars::new(5_000));
    assert!(record.held >= record.cost && record.loss == NanoDollars::ZERO);
    assert_eq!(world.balance_when_idle().await, NanoDollars::new(1_000_000_000 - 5_000));
    let jobs = world.engine.jobs.lock().unwrap();
    assert_eq!(jobs.iter().map(|job| job.prompt.to_vec()).collect::<Vec<_>>(), [vec![1, 2, 3], vec![4, 5]]);
    assert!(jobs.iter().all(|job| job.sampling.max_tokens == 0 && job.sampling.n == 1));
}

/// An encoder's tokens can be listed like any model's, as its own calls would have them, by keys that may use it.
#[tokio::test]
async fn tokens_of_an_encoder_are_told() {
    let world = world(Setup::default());
    let ask = async |question, body: Value| {
        let answer = world.request(RequestTarget::Question(question), body.to_string()).await;
        let status = answer.status;
        (status, serde_json::from_str::<Value>(&read(answer).await).unwrap())
    };
    let (status, told) = ask(Question::Tokenize, json!({"model": MODEL, "prompt": "hello there"})).await;
    assert_eq!(status, 200, "{told}");
    let ids = told["tokens"].clone();
    assert_eq!(told["count"], json!(ids.as_array().unwrap().len()));
    let answer = world.call(Endpoint::Embeddings, body(json!("hello there"))).await;
    assert_eq!(answer.status, 200);
    read(answer).await;
    let asked = world.engine.jobs.lock().unwrap().last().unwrap().prompt.to_vec();
    assert_eq!(json!(asked), ids, "as a call has them");
    let (status, told) = ask(Question::Detokenize, json!({"model": MODEL, "tokens": ids})).await;
    assert_eq!((status, told["prompt"].as_str().unwrap().contains("hello there")), (200, true), "{told}");
    let (status, told) = ask(Question::Detokenize, json!({"model": MODEL, "tokens": [4_000_000]})).await;
    assert_eq!((status, &told["error"]["param"]), (400, &json!("tokens")), "{told}");
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]});
    let (status, told) = ask(Question::Tokenize, chat).await;
    assert_eq!((status, &told["error"]["code"]), (400, &json!("wrong_kind_of_model")), "{told}");
}

#[tokio::test]
async fn an_answer_has_a_vector_of_each_text_in_their_order() {
    let world = world(Setup::default());
    let texts: Vec<String> = (0..2048).map(|at| format!("text {at}")).collect();
    let said: Value =
        serde_json::from_str(&read(world.call(Endpoint::Embeddings, body(json!(texts))).await).await)
            .unwrap();
    let rows = said["data"].as_array().unwrap();
    assert_eq!(rows.len(), 2048);
    assert!(
        rows.iter()
            .enumerate()
            .all(|(at, row)| row["index"] == at && row["embedding"] == json!([1.0, 2.0, 3.0, 4.0]))
    );
    assert_eq!(said["usage"]["prompt_tokens"], said["usage"]["total_tokens"]);
    let cut = json!({"model": MODEL, "input": "a", "dimensions": 2});
    let said: Value = serde_json::from_str(&read(world.call(Endpoint::Embeddings, cut).await).await).unwrap();
    let got: Vec<f64> =
        said["data"][0]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(got.len(), 2);
    assert!((got[0] - 1.0 / 5_f64.sqrt()).abs() < 1e-6 && (got[1] - 2.0 / 5_f64.sqrt()).abs() < 1e-6);
}

#[tokio::test]
async fn a_prompt_of_the_models_own_is_put_before_each_text() {
    let world = world(Setup::default());
    let named = json!({"model": MODEL, "input": "hello", "prompt_name": "query"});
    read(world.call(Endpoint::Embeddings, named).await).await;
    read(world.call(Endpoint::Embeddings, body(json!("query: hello"))).await).await;
    {
        let jobs = world.engine.jobs.lock().unwrap();
        assert_eq!(jobs[0].prompt, jobs[1].prompt);
    }
    let unknown = json!({"model": MODEL, "input": "hello", "prompt_name": "passage"});
    assert_eq!(
        refusal(&world, Endpoint::Embeddings, unknown).await,
        (400, Code::InvalidValue.name().to_owned(), json!("prompt_name"))
    );
}

#[tokio::test]
async fn what_an_encoder_does_not_do_is_refused_by_name() {
    let vectors = world(Setup::default());
    let scores = World::new(Setup { makes: Some(EncoderOutput::Scores), ..Setup::default() });
    let words = World::new(Setup::default());
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]});
    let pairs = json!({"model": MODEL, "query": "a", "documents": ["b"]});
    let kind = Code::WrongKindOfModel.name();
    for (world, endpoint, body) in [
        (&vectors, Endpoint::ChatCompletions, chat.clone()),
        (&vectors, Endpoint::Completions, json!({"model": MODEL, "prompt": "hello"})),
        (&vectors, Endpoint::Rerank, pairs.clone()),
        (&scores, Endpoint::ChatCompletions, chat),
        (&scores, Endpoint::Embeddings, body(json!("a"))),
        (&words, Endpoint::Embeddings, body(json!("a"))),
        (&words, Endpoint::Rerank, pairs),
    ] {
        assert_eq!(
            refusal(world, endpoint, body).await,
            (400, kind.to_owned(), json!("model")),
            "{endpoint:?}"
        );
        assert_eq!(world.balance_when_idle().await, NanoDollars::from_dollars("1").unwrap());
        assert!(world.engine.jobs.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn what_is_too_much_is_refused_with_its_parameter() {
    let world = world(Setup::default());
    let long = Code::ContextLengthExceeded.name();
    for (given, code, param) in [
        (body(json!([[1], vec![1; 513]])), long, "input"),
        // 600 texts of 512 tokens are more than 300,000.
        (body(json!(vec![vec![1; 512]; 600])), long, "input"),
        (body(json!([1, 4096])), Code::InvalidValue.name(), "input"),
        (json!({"model": MODEL, "input": "a", "dimensions": 5}), Code::InvalidValue.name(), "dimensions"),
    ] {
        assert_eq!(refusal(&world, Endpoint::Embeddings, given).await, (400, code.to_owned(), json!(param)));
    }
    assert!(world.engine.jobs.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_engine_that_takes_nothing_or_fails_costs_nothing() {
    let world = world(Setup::default());
    world.script(Script::Full);
    let (status, ..) = refusal(&world, Endpoint::Embeddings, body(json!(["a", "b"]))).await;
    assert_eq!(status, 503);
    world.script(Script::ThenFail(0));
    world.engine.may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
    let (status, ..) = refusal(&world, Endpoint::Embeddings, body(json!(["a", "b"]))).await;
    assert!(status >= 500, "{status}");
    assert_eq!(world.balance_when_idle().await, NanoDollars::from_dollars("1").unwrap());
}

#[tokio::test]
async fn rules_see_every_text_and_every_pair() {
    let rules = json!([{"name": "secret", "kind": "regex", "pattern": "xyzzy", "action": "block"}]);
    let rules = || serde_json::from_value(rules.clone()).unwrap();
    let vectors = world(Setup { rules: rules(), ..Setup::default() });
    let scores = World::new(Setup { makes: Some(EncoderOutput::Scores), rules: rules(), ..Setup::default() });
    let blocked = Code::ContentPolicy.name();
    for (world, endpoint, body) in [
        (&vectors, Endpoint::Embeddings, body(json!(["fine", "say xyzzy"]))),
        (&scores, Endpoint::Rerank, json!({"model": MODEL, "query": "xyzzy", "documents": ["fine"]})),
        (&scores, Endpoint::Score, json!({"model": MODEL, "text_1": "fine", "text_2": ["fine", "xyzzy"]})),
    ] {
        assert_eq!(refusal(world, endpoint, body).await.1, blocked);
    }
}
