//! What a model thinks before it answers: told as such, counted as such, and switched by who calls.

use headrace_domain::Endpoint;
use serde_json::{Value, json};

use crate::world::{Script, Setup, World, chat_body, read};

/// It opens a thought in the prompt unless it is told not to.
const THINKS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
    {% if style %}style {{ style }}\n{% endif %}\
    {% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think></think>{% endif %}";
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
const SAID: &str = "Hmm, <b>.\n</think>\n\nYes.";
/// Characters up to the end of the thought, each of which is a token in tests.
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
