//! Reasoning before an answer: sent as reasoning, counted as reasoning, and switched on and off by the caller.

use headrace_catalog::{ModelPolicy, ThinkingPolicy};
use headrace_domain::{CallOutcome, Endpoint};
use headrace_engine_api::Capabilities;
use serde_json::{Value, json};

use crate::world::{Script, Setup, World, capabilities, chat_body, read};

/// Opens the reasoning in the prompt unless thinking is switched off.
const THINKS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
    {% if style %}style {{ style }}\n{% endif %}\
    {% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think></think>{% endif %}";
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
const SAID: &str = "Hmm, <b>.\n</think>\n\nYes.";
/// Characters up to the end of the reasoning. Each is one token in these tests.
const THOUGHT_TOKENS: u64 = 18;
const TOKENS: u64 = 24;

fn with(fields: Value, stream: bool) -> Value {
    let mut body = chat_body(stream);
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thought_is_no_text_and_is_counted_by_itself() {
    let world = World::new(Setup { template: Some(THINKS), ..Setup::default() });
    world.script(Script::Say(SAID));
    for fields in [json!({}), json!({"chat_template_kwargs": {"enable_thinking": true}})] {
        let answer = world.call(Endpoint::ChatCompletions, with(fields, false)).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!(status, 200, "{text}");
        let whole: Value = serde_json::from_str(&text).unwrap();
        let message = &whole["choices"][0]["message"];
        assert_eq!(
            (&message["reasoning_content"], &message["content"]),
            (&json!("Hmm, <b>."), &json!("Yes."))
        );
        let usage = &whole["usage"];
        assert_eq!(usage["completion_tokens"], TOKENS);
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], THOUGHT_TOKENS);
        world.balance_when_idle().await;
        let trace = world.last_trace();
        let used = trace.usage;
        assert_eq!((used.reasoning, used.output), (THOUGHT_TOKENS, TOKENS - THOUGHT_TOKENS));
    }
    let answer = world.call(Endpoint::ChatCompletions, with(json!({}), true)).await;
    let text = read(answer).await;
    let joined = |key: &str| -> String {
        let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        let chunks = chunks.map(|rest| serde_json::from_str::<Value>(&format!("{{{rest}")).unwrap());
        chunks.filter_map(|chunk| chunk["choices"][0]["delta"][key].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((joined("reasoning_content").as_str(), joined("content").as_str()), ("Hmm, <b>.", "Yes."));
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_is_switched_where_the_template_has_a_switch() {
    let world = World::new(Setup { template: Some(THINKS), ..Setup::default() });
    world.script(Script::Say("Yes."));
    for off in
        [json!({"chat_template_kwargs": {"enable_thinking": false}}), json!({"reasoning_effort": "none"})]
    {
        let answer = world.call(Endpoint::ChatCompletions, with(off.clone(), false)).await;
        let text = read(answer).await;
        let whole: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(whole["choices"][0]["message"]["content"], "Yes.", "{off} {text}");
        assert!(whole["choices"][0]["message"]["reasoning_content"].is_null(), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_cannot_do_about_its_thoughts_is_refused() {
    for (template, fields, says) in [
        (PLAIN, json!({"reasoning_effort": "high"}), "does not think"),
        (THINKS, json!({"reasoning_effort": "high"}), "not how much"),
        ("{{ messages[0].content }}<think>\n</think>", json!({"reasoning_effort": "none"}), "no switch"),
    ] {
        let world = World::new(Setup { template: Some(template), ..Setup::default() });
        let answer = world.call(Endpoint::ChatCompletions, with(fields, false)).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!(status, 400, "{text}");
        assert!(text.contains("\"param\":\"reasoning_effort\"") && text.contains(says), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_the_template_reach_it() {
    let world = World::new(Setup { template: Some(THINKS), ..Setup::default() });
    world.script(Script::Say("Yes."));
    let tokens = async |fields: Value| {
        let answer = world.call(Endpoint::ChatCompletions, with(fields, false)).await;
        let whole: Value = serde_json::from_str(&read(answer).await).unwrap();
        whole["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = tokens(json!({})).await;
    assert!(tokens(json!({"chat_template_kwargs": {"style": "terse"}})).await > plain);
}

/// A world whose vocabulary has the marks of reasoning.
fn thinker(template: &'static str, thought_caps: bool, policy: ModelPolicy) -> World {
    World::new(Setup {
        template: Some(template),
        words_of: "../model/tests/data/qwen3",
        capabilities: Capabilities { vocab: 1024, thought_caps, ..capabilities() },
        policy,
        ..Setup::default()
    })
}

const OPENED: u32 = 1022;
const CLOSED: u32 = 1023;

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_of_thought_reaches_the_engine_in_ids() {
    let last_words = Some("Enough.\n".into());
    let mut budgets = [None; ThinkingPolicy::EFFORTS.len()];
    budgets[1] = Some(300);
    let thinking = ThinkingPolicy { budgets, last_words };
    let with_words = ModelPolicy { thinking: thinking.clone(), ..ModelPolicy::default() };
    let without =
        ModelPolicy { thinking: ThinkingPolicy { last_words: None, ..thinking }, ..ModelPolicy::default() };
    let plain = "{{ messages[0].content }}{# </think> #}";
    for (template, policy, fields, most, words, is_open) in [
        (THINKS, &without, json!({"thinking_token_budget": 7}), 7, 0, true),
        (THINKS, &without, json!({"thinking_token_budget": 0}), 0, 0, true),
        (THINKS, &with_words, json!({"thinking_token_budget": 100}), 95, 5, true),
        // The last words do not fit: the reasoning is closed without them.
        (THINKS, &with_words, json!({"thinking_token_budget": 5}), 5, 0, true),
        (THINKS, &without, json!({"thinking_token_budget": 7, "reasoning_effort": "low"}), 7, 0, true),
        (THINKS, &without, json!({"reasoning_effort": "low"}), 300, 0, true),
        (plain, &without, json!({"thinking_token_budget": 7}), 7, 0, false),
    ] {
        let world = thinker(template, true, policy.clone());
        world.script(Script::Say("Hm.</think>Yes."));
        let answer = world.call(Endpoint::ChatCompletions, with(fields.clone(), false)).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!(status, 200, "{fields} {text}");
        let job = world.engine.jobs.lock().unwrap().pop().unwrap();
        let cap = job.thought.unwrap();
        assert_eq!((cap.most_tokens, cap.is_open), (most, is_open), "{fields}");
        assert_eq!((cap.open.as_slice(), cap.close), (&[OPENED][..], CLOSED));
        assert_eq!(cap.ending.last(), Some(&CLOSED));
        assert_eq!(cap.ending.len(), words + 1, "{fields}: {:?}", cap.ending);
    }
    // Without a request there is no budget. An effort without a number is rejected.
    let world = thinker(THINKS, true, without);
    world.script(Script::Say("Hm.</think>Yes."));
    read(world.call(Endpoint::ChatCompletions, with(json!({}), false)).await).await;
    assert_eq!(world.engine.jobs.lock().unwrap().pop().unwrap().thought, None);
    let answer =
        world.call(Endpoint::ChatCompletions, with(json!({"reasoning_effort": "high"}), false)).await;
    assert!(read(answer).await.contains("not how much"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_nobody_can_keep_to_is_refused_by_its_name() {
    let seed = "{{ messages[0].content }}{# </seed:think> #}";
    for (template, caps, endpoint, says) in [
        (PLAIN, true, Endpoint::ChatCompletions, "does not think"),
        (seed, true, Endpoint::ChatCompletions, "no token that ends a thought"),
        (THINKS, false, Endpoint::ChatCompletions, "server that cannot end a thought"),
        (THINKS, false, Endpoint::Messages, "server that cannot end a thought"),
    ] {
        let world = thinker(template, caps, ModelPolicy::default());
        let (param, body) = match endpoint {
            Endpoint::Messages => (
                "thinking.budget_tokens",
                json!({"model": "demo", "max_tokens": 1025, "messages": [{"role": "user", "content": "hi"}],
                    "thinking": {"type": "enabled", "budget_tokens": 1024}, "stream": false}),
            ),
            _ => ("thinking_token_budget", with(json!({"thinking_token_budget": 5}), false)),
        };
        let answer = world.call(endpoint, body).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!(status, 400, "{text}");
        assert!(text.contains(param) && text.contains(says), "{text}");
        assert!(world.engine.jobs.lock().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_that_ends_a_thought_is_seen() {
    let world = World::new(Setup { template: Some(THINKS), ..Setup::default() });
    for (said, content, finish) in
        [("Hmm, ", "", "stop:stop_string_in_thought"), ("Hmm.</think>Yes ", "Yes ", "stop")]
    {
        world.script(Script::SayToStop(said));
        let asked = with(json!({"stop": ["END"]}), false);
        let text = read(world.call(Endpoint::ChatCompletions, asked).await).await;
        let whole: Value = serde_json::from_str(&text).unwrap();
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), content, "{text}");
        assert_eq!(
            (&choice["finish_reason"], &choice["stop_reason"]),
            (&json!("stop"), &json!("END")),
            "{text}"
        );
        world.balance_when_idle().await;
        assert_eq!(world.last_trace().outcome, CallOutcome::Completed { finish: vec![finish.to_owned()] });
    }
}
