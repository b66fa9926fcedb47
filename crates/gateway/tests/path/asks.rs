//! Questions about text and tokens. The counts equal those of the corresponding calls, cost nothing, and count as
//! requests. Also features of Anthropic's dialect: prompts read ahead, answers begun by their caller, billing headers.

use headrace_call_api::{CallService, Question, RequestTarget};
use headrace_domain::{CallOutcome, Endpoint, NanoDollars};
use headrace_identity::RateLimits;
use serde_json::{Value, json};

use crate::world::{MODEL, Setup, World, header, read};

/// The status and body of the answer to a question.
async fn ask(world: &World, question: Question, body: &Value) -> (u16, Value) {
    let answer = world.request(RequestTarget::Question(question), body.to_string()).await;
    assert!(header(&answer, "x-request-id").is_some());
    let status = answer.status;
    (status, serde_json::from_str(&read(answer).await).unwrap())
}

fn message() -> Value {
    json!({
        "model": MODEL, "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "What is 模?"}, {"role": "system", "content": "In English."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look_up", "input": {"z": 1.50, "a": "模"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "model"}, {"type": "text", "text": "So?"}]}],
        "tools": [{"name": "look_up", "description": "d", "input_schema": {"type": "object", "properties": {"z": {"type": "number"}, "a": {"type": "string"}}}}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_is_that_of_the_prompt_which_is_charged() {
    let world = World::new(Setup::default());
    let (status, counted) = ask(&world, Question::CountTokens, &message()).await;
    assert_eq!((status, counted.get("headrace")), (200, None));
    let mut called = message();
    called["max_tokens"] = json!(2);
    let answer = world.call(Endpoint::Messages, called).await;
    assert_eq!(answer.status, 200);
    let answer: Value = serde_json::from_str(&read(answer).await).unwrap();
    let of = |name: &str| answer["usage"][name].as_u64().unwrap();
    let sum = of("input_tokens") + of("cache_read_input_tokens") + of("cache_creation_input_tokens");
    assert_eq!(counted, json!({"input_tokens": sum}));
    assert_eq!(world.engine.jobs.lock().unwrap()[0].prompt.len() as u64, sum);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_free_and_count_as_requests() {
    let limits = RateLimits { requests_per_minute: Some(2), tokens_per_minute: Some(1), concurrency: None };
    let world = World::new(Setup { credit: NanoDollars::ZERO, limits, ..Setup::default() });
    assert_eq!(ask(&world, Question::CountTokens, &message()).await.0, 200);
    assert_eq!(ask(&world, Question::Tokenize, &json!({"model": MODEL, "prompt": "x"})).await.0, 200);
    let (status, refused) = ask(&world, Question::CountTokens, &message()).await;
    assert_eq!((status, &refused["type"]), (429, &json!("error")), "{refused}");
    assert_eq!(world.gateway.memory_taken(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_go_there_and_back() {
    let world = World::new(Setup::default());
    let text = "Hello, 模 <|im_end|>!";
    let body =
        json!({"model": MODEL, "prompt": text, "add_special_tokens": false, "return_token_strs": true});
    let (status, told) = ask(&world, Question::Tokenize, &body).await;
    assert_eq!((status, told["max_model_len"].as_u64()), (200, Some(512)));
    let tokens = told["tokens"].as_array().unwrap();
    assert_eq!(told["count"], json!(tokens.len()));
    assert_eq!(told["token_strs"].as_array().unwrap().len(), tokens.len());
    let (status, back) = ask(&world, Question::Detokenize, &json!({"model": MODEL, "tokens": tokens})).await;
    assert_eq!((status, back), (200, json!({"prompt": text})));

    let messages = json!([{"role": "user", "content": "hi"}]);
    let of = async |more: Value| {
        let mut body = json!({"model": MODEL, "messages": messages});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&world, Question::Tokenize, &body).await.1["tokens"].clone()
    };
    let (whole, open) = (of(json!({})).await, of(json!({"add_generation_prompt": false})).await);
    assert_eq!(world.chat_prompt(&messages).await, whole);
    let (whole, open) = (whole.as_array().unwrap().clone(), open.as_array().unwrap().clone());
    assert!(open.len() < whole.len() && whole.starts_with(&open), "{open:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_questions_are_refused_as_calls_are() {
    let world = World::new(Setup::default());
    let long = "word ".repeat(20_000);
    for (question, body, status, code, param) in [
        (Question::CountTokens, json!({"model": MODEL}), 400, "missing_required_parameter", "messages"),
        (
            Question::CountTokens,
            json!({"model": "no-such", "messages": message()["messages"]}),
            404,
            "model_not_found",
            "model",
        ),
        (
            Question::CountTokens,
            json!({"model": MODEL, "messages": [{"role": "user", "content": long}]}),
            400,
            "context_length_exceeded",
            "messages",
        ),
        (
            Question::Tokenize,
            json!({"model": MODEL, "prompt": long}),
            400,
            "context_length_exceeded",
            "prompt",
        ),
        (Question::Tokenize, json!({"model": MODEL}), 400, "missing_required_parameter", "prompt"),
        (
            Question::Detokenize,
            json!({"model": MODEL, "tokens": [4_000_000]}),
            400,
            "invalid_value",
            "tokens",
        ),
        (Question::Detokenize, json!({"model": "no-such", "tokens": [1]}), 404, "model_not_found", "model"),
    ] {
        let (told, error) = ask(&world, question, &body).await;
        let error = &error["error"];
        assert_eq!(
            (told, error["code"].as_str(), error["param"].as_str()),
            (status, Some(code), Some(param)),
            "{error}"
        );
        let trace = world.last_trace();
        assert!(matches!(&trace.outcome, CallOutcome::Refused(refusal) if refusal.code == code), "{body}");
        assert_eq!(trace.model_asked.as_deref(), body["model"].as_str(), "{body}");
        assert_eq!(trace.request_id.to_string(), error["request_id"].as_str().unwrap());
        assert!(trace.project.is_some() && trace.key.is_some() && trace.model_served.is_none());
    }
    let mut stranger = world.head(RequestTarget::Question(Question::Tokenize));
    stranger.caller.credentials = Default::default();
    assert_eq!(world.gateway.admit(stranger).err().unwrap().status, 401);
    assert_eq!(world.gateway.memory_taken(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_read_ahead_without_an_answer() {
    let world = World::new(Setup::default());
    for stream in [false, true] {
        let body = json!({"model": MODEL, "max_tokens": 0, "stream": stream, "messages": [{"role": "user", "content": "hi"}]});
        let answer = world.call(Endpoint::Messages, body).await;
        assert_eq!(answer.status, 200);
        let text = read(answer).await;
        assert!(!text.contains("\"type\":\"text\"") && text.contains("\"output_tokens\":0"), "{text}");
    }
    // Only the engine decides the finish reason.
    assert!(world.engine.jobs.lock().unwrap().iter().all(|job| job.sampling.max_tokens == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_where_its_caller_began_it() {
    let world = World::new(Setup::default());
    let user = json!({"role": "user", "content": "hi"});
    let begun = json!([user, {"role": "assistant", "content": "The answer is"}]);
    let mut prompts = Vec::new();
    for (endpoint, body) in [
        (Endpoint::Messages, json!({"model": MODEL, "max_tokens": 2, "messages": begun})),
        (
            Endpoint::ChatCompletions,
            json!({"model": MODEL, "max_tokens": 2, "messages": begun, "continue_final_message": true, "add_generation_prompt": false}),
        ),
        (Endpoint::ChatCompletions, json!({"model": MODEL, "max_tokens": 2, "messages": [user]})),
    ] {
        let answer = world.call(endpoint, body).await;
        assert_eq!(answer.status, 200);
        let _ = read(answer).await;
        prompts.push(world.engine.jobs.lock().unwrap().pop().unwrap().prompt);
    }
    assert_eq!(prompts[0], prompts[1]);
    // The prompt without a begun answer, followed by the beginning.
    assert!(prompts[0].len() > prompts[2].len() && prompts[0].starts_with(&prompts[2]));
    let tail = json!({"model": MODEL, "tokens": prompts[0][prompts[2].len()..]});
    assert_eq!(ask(&world, Question::Detokenize, &tail).await.1, json!({"prompt": "The answer is"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_pays_does_not_change_the_prompt() {
    let world = World::new(Setup::default());
    let mut prompts = Vec::new();
    for cch in ["fa690", "0b1c2", ""] {
        let mut system = vec![json!({"type": "text", "text": "You help with code."})];
        if !cch.is_empty() {
            let text =
                format!("x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={cch};");
            system.insert(0, json!({"type": "text", "text": text}));
        }
        let body = json!({"model": MODEL, "max_tokens": 2, "system": system, "messages": [{"role": "user", "content": "hi"}]});
        let _ = read(world.call(Endpoint::Messages, body).await).await;
        prompts.push(world.engine.jobs.lock().unwrap().pop().unwrap().prompt);
    }
    assert!(prompts.iter().all(|prompt| *prompt == prompts[0]));
}

impl World {
    /// The tokens of a chat's prompt, as the engine receives them.
    async fn chat_prompt(&self, messages: &Value) -> Value {
        let body = json!({"model": MODEL, "max_tokens": 2, "messages": messages});
        let _ = read(self.call(Endpoint::ChatCompletions, body).await).await;
        json!(*self.engine.jobs.lock().unwrap().pop().unwrap().prompt)
    }
}
