//! Answers in a requested form. They are checked once they are complete, then rejected, requested again or passed on,
//! as the model's operator wants. Also tool calls that a grammar constrains, which are streamed as they are generated.

use std::sync::Arc;

use headrace_catalog::{Backend, ModelPolicy, OffForm, ServedModel};
use headrace_domain::{
    AttemptOutcome, CallOutcome, Dialect, Endpoint, GrammarSyntax, ResponseFormat, RoundOutcome, Stage,
};
use headrace_engine_api::FormKinds;
use serde_json::{Value, json};

use crate::races::by_policy;
use crate::scripted_server::{
    ScriptedServer, answer_of, body, chat, chunk, data_event, delta, finish, head, server, spent, usage,
    whole, world,
};
use crate::swaps::{offer, swap};
use crate::world::{Script, Setup, World, chat_body, read, read_to_the_end, trace_of};

fn number() -> Value {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}})
}

/// A world whose upstream model has this policy.
fn relayed(servers: &[Arc<ScriptedServer>], off_form: OffForm) -> World {
    let world = world(servers);
    let fleet = Arc::clone(world.gateway.catalog().fleet());
    by_policy(&world, fleet, ModelPolicy { off_form, ..ModelPolicy::default() }, &[]);
    world
}

/// A world whose engine accepts grammars, but says whatever its script says.
fn embedded(off_form: OffForm) -> World {
    let world = World::new(Setup::default());
    let mut offer = offer(&world, 1, "other");
    for model in &mut offer.models {
        let model: &mut ServedModel = Arc::make_mut(model);
        model.policy.off_form = off_form;
        if let Backend::Tokens(backend) = &mut model.backend {
            backend.capabilities.grammars = true;
        }
    }
    swap(&world, offer);
    world
}

fn with(fields: &Value, stream: bool) -> Value {
    let mut body = chat_body(stream);
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn failed_for_its_form(outcome: &AttemptOutcome) -> bool {
    matches!(outcome, AttemptOutcome::Failed { code, .. } if code == "answer_off_form")
}

/// Compiling is a part of rendering with a figure of its own. It is not counted as template or tokenizer time.
#[tokio::test]
async fn the_time_that_compiling_a_form_takes_is_recorded() {
    let world = embedded(OffForm::Pass);
    let answer = world.call(Endpoint::ChatCompletions, with(&number(), false)).await;
    let record = trace_of(&world, answer).await;
    assert!(record.form_ns > 0, "{:?}", record.outcome);
    let answer = world.chat(false).await;
    let record = trace_of(&world, answer).await;
    assert_eq!(record.form_ns, 0, "no form, no time for one");
}

#[tokio::test]
async fn an_answer_of_somebody_elses_server_that_is_off_its_form_is_refused_and_free() {
    for (said, words) in [
        (r#"{"n": "1"}"#, "at `/n` it does not keep to `type`"),
        ("{}", "as a whole it does not keep to `required`"),
        ("Sure: {\"n\": 1}", "it is no JSON"),
    ] {
        let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of(said))]);
        let world = relayed(&[server], OffForm::Refuse);
        let answer = chat(&world, false, &number()).await;
        assert_eq!(answer.status, 502);
        let text = read(answer).await;
        assert!(text.contains("answer_off_form") && text.contains(words), "{text}");
        assert_eq!(spent(world.balance_when_idle().await), 0, "nobody pays for it");
        let record = world.last_trace();
        let CallOutcome::Failed { stage: Stage::Postprocess, message } = &record.outcome else {
            panic!("{:?}", record.outcome)
        };
        assert!(message.contains("of the form that was asked for") && !message.contains("/n"), "{message}");
        assert!(failed_for_its_form(&record.attempts[0].outcome), "{:?}", record.attempts);
        let [round] = &record.rounds[..] else { panic!("{:?}", record.rounds) };
        assert_eq!(round.outcome, RoundOutcome::Failed { code: "answer_off_form".into() });
    }
    // Answers that match, ended early, refuse or call a tool are passed on, and so are answers without a requested
    // form.
    let mut cut = answer_of("{\"n\":");
    cut["choices"][0]["finish_reason"] = json!("length");
    let mut refuses = answer_of("");
    refuses["choices"][0]["message"] = json!({"role": "assistant", "content": null, "refusal": "No."});
    let mut calls = answer_of("");
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    calls["choices"][0]["message"] = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    calls["choices"][0]["finish_reason"] = json!("tool_calls");
    for (said, asked) in [
        (answer_of(" {\"n\": 1} "), number()),
        (cut, number()),
        (refuses, number()),
        (calls, number()),
        (answer_of("Hi"), json!({})),
        (answer_of("Hi"), json!({"response_format": {"type": "text"}})),
    ] {
        let server = server("gpu", Dialect::OpenAi, vec![whole(&said)]);
        let world = relayed(&[server], OffForm::Refuse);
        let answer = chat(&world, false, &asked).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!((status, text), (200, said.to_string()));
    }
}

#[tokio::test]
async fn an_answer_off_its_form_is_asked_for_again_or_passed_on_where_that_is_wanted() {
    let bad = || whole(&answer_of("{\"n\": 1.5}"));
    let good = || whole(&answer_of("{\"n\": 2}"));
    let one = server("gpu", Dialect::OpenAi, vec![bad(), good()]);
    let world = relayed(&[Arc::clone(&one)], OffForm::Retry);
    let answer = chat(&world, false, &number()).await;
    let (status, text) = (answer.status, read(answer).await);
    assert_eq!((status, text), (200, answer_of("{\"n\": 2}").to_string()));
    assert_eq!(spent(world.balance_when_idle().await), 20_000 + 8_000, "the answer that came is paid for");
    let record = world.last_trace();
    let outcomes: Vec<bool> =
        record.attempts.iter().map(|attempt| failed_for_its_form(&attempt.outcome)).collect();
    assert_eq!(outcomes, [true, false], "{:?}", record.attempts);
    let [off, kept] = &record.rounds[..] else { panic!("{:?}", record.rounds) };
    assert_eq!(off.outcome, RoundOutcome::Failed { code: "answer_off_form".into() });
    assert_eq!(kept.outcome, RoundOutcome::Answered { finish: Some("stop".into()) });
    assert_eq!((off.usage, kept.usage), (record.usage, record.usage), "only the second one is charged");
    assert_eq!(
        (&off.model, off.worker.as_deref(), kept.worker.as_deref()),
        (&None, Some("gpu"), Some("gpu"))
    );
    assert_eq!(one.asked.lock().unwrap().len(), 2);

    let three = server("gpu", Dialect::OpenAi, vec![bad(), bad(), bad(), good()]);
    let world = relayed(&[Arc::clone(&three)], OffForm::Retry);
    let answer = chat(&world, false, &number()).await;
    assert_eq!(answer.status, 502, "not for ever");
    assert_eq!(three.asked.lock().unwrap().len(), 3);
    assert_eq!(spent(world.balance_when_idle().await), 0);

    let passed = server("gpu", Dialect::OpenAi, vec![bad()]);
    let world = relayed(&[passed], OffForm::Pass);
    assert_eq!(chat(&world, false, &number()).await.status, 200);
}

#[tokio::test]
async fn a_stream_off_its_form_ends_with_an_error_and_never_as_if_it_were_well() {
    let script = || {
        let mut script =
            vec![head(), chunk(&delta("{\"n\":")), None, chunk(&delta(" \"x\"}")), chunk(&finish("stop"))];
        script.extend([chunk(&usage(20, 5, 2)), data_event("", "[DONE]")]);
        script
    };
    // In the caller's dialect, passed on as it comes, and translated into the other one.
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
        let server = server("gpu", Dialect::OpenAi, vec![script()]);
        let world = relayed(&[Arc::clone(&server)], OffForm::Retry);
        let asked = match endpoint {
            Endpoint::Messages => {
                let schema = number()["response_format"]["json_schema"]["schema"].clone();
                let mut body = body(
                    true,
                    &json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
                );
                body.as_object_mut().unwrap().remove("unknown_to_us");
                body
            }
            _ => body(true, &number()),
        };
        let answer = world.call(endpoint, asked).await;
        assert_eq!(answer.status, 200);
        server.gate.open();
        let (text, _) = read_to_the_end(answer).await;
        assert!(text.contains("answer_off_form") || text.contains("does not keep to"), "{endpoint:?} {text}");
        assert!(text.contains("at `/n` it does not keep to `type`"), "{text}");
        assert!(!text.contains("[DONE]") && !text.contains("message_stop"), "{text}");
        assert!(spent(world.balance_when_idle().await) > 0, "what was delivered is paid for");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_does_not_keep_to_a_grammar_is_found_out() {
    for (said, stream, off_form, status) in [
        ("{\"n\": 1}", false, OffForm::Refuse, 200),
        ("{\"n\": 1}", true, OffForm::Refuse, 200),
        ("{\"n\": []}", false, OffForm::Refuse, 502),
        ("{\"n\": []}", false, OffForm::Pass, 200),
    ] {
        let world = embedded(off_form);
        world.script(Script::Say(said));
        let answer = world.call(Endpoint::ChatCompletions, with(&number(), stream)).await;
        assert_eq!(answer.status, status, "{said}");
        assert!(world.engine.jobs.lock().unwrap().iter().all(|job| job.grammar.is_some()));
        let (text, _) = read_to_the_end(answer).await;
        assert_eq!(text.contains("answer_off_form"), status == 502, "{text}");
        assert_eq!(stream && text.contains("[DONE]"), stream, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_of_calls_that_a_grammar_holds_come_as_they_are_made() {
    let look = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tool = |strict: bool, parameters: &Value| json!([{"type": "function", "function": {"name": "look", "strict": strict, "parameters": parameters}}]);
    let mut closed = look.clone();
    closed["additionalProperties"] = json!(false);
    // A keyword that no grammar can enforce is left out.
    let loose =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "not": {"required": ["x"]}});
    // Arguments of a schema that no grammar can enforce are sent once they are complete.
    let patterns: serde_json::Map<_, _> = (0..9).map(|at| (format!("^x{at}"), json!({}))).collect();
    let mut unheld = look.clone();
    unheld["patternProperties"] = patterns.into();
    for (fields, comes_in_pieces) in [
        (json!({"tools": tool(false, &look), "tool_choice": "required"}), true),
        (json!({"tools": tool(true, &closed)}), true),
        (json!({"tools": tool(false, &look)}), true),
        (json!({"tools": tool(false, &look), "parallel_tool_calls": false}), true),
        (json!({"tools": tool(false, &loose), "tool_choice": "required"}), true),
        (json!({"tools": tool(false, &unheld), "tool_choice": "required"}), false),
    ] {
        let world = embedded(OffForm::Refuse);
        world.script(Script::Say(
            "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Lisbon\"}}\n</tool_call>",
        ));
        let text = read(world.call(Endpoint::ChatCompletions, with(&fields, true)).await).await;
        let events = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        let events = events.map(|rest| serde_json::from_str::<Value>(&format!("{{{rest}")).unwrap());
        let pieces: Vec<String> = events
            .filter_map(|event| {
                let call = &event["choices"][0]["delta"]["tool_calls"][0];
                call["function"]["arguments"].as_str().filter(|piece| !piece.is_empty()).map(str::to_owned)
            })
            .collect();
        assert_eq!(pieces.concat(), "{\"city\": \"Lisbon\"}", "{fields} {text}");
        assert_eq!(pieces.len() > 3, comes_in_pieces, "{fields} {pieces:?}");
    }
}

/// A world whose engine is an upstream that accepts forms of these kinds.
fn told_forms(forms: FormKinds) -> World {
    let world = World::new(Setup::default());
    let mut offer = offer(&world, 1, "other");
    for model in &mut offer.models {
        if let Backend::Tokens(backend) = &mut Arc::make_mut(model).backend {
            backend.capabilities.forms = forms;
        }
    }
    swap(&world, offer);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_must_come_are_told_in_gbnf_where_nobody_knows_lark() {
    let tool = |schema: Value| json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let object = |n: Value| json!({"type": "object", "properties": {"n": n}, "required": ["n"]});
    let asked = |schema| with(&json!({"tools": [tool(schema)], "tool_choice": "required"}), false);
    let gbnf = FormKinds::JSON.or(FormKinds::GBNF);
    let world = told_forms(gbnf);
    world.call(Endpoint::ChatCompletions, asked(object(json!({"type": "boolean"})))).await;
    let job = world.engine.jobs.lock().unwrap().pop().unwrap();
    let grammar = job.grammar.unwrap();
    let ResponseFormat::Grammar { text, syntax: GrammarSyntax::Gbnf } = &**grammar.form() else { panic!() };
    assert!(text.contains("root ::= ") && text.contains(r#"("true" | "false")"#), "{text}");
    // A schema that GBNF cannot express is rejected by name, and so is every call form if the server knows no such
    // notation.
    let refused = async |world: &World, schema: Value| {
        let answer = world.call(Endpoint::ChatCompletions, asked(schema)).await;
        assert_eq!(answer.status, 400);
        let error: Value = serde_json::from_str(&read(answer).await).unwrap();
        assert_eq!(error["error"]["param"], "tool_choice", "{error}");
        error["error"]["message"].as_str().unwrap().to_owned()
    };
    let told = refused(&world, object(json!({"type": "integer", "multipleOf": 3}))).await;
    assert!(told.contains("GBNF") && told.contains("`multipleOf` at `/properties/n`"), "{told}");
    let told = refused(&told_forms(FormKinds::JSON), object(json!({"type": "boolean"}))).await;
    assert!(told.contains("a grammar in Lark"), "{told}");
    assert!(world.engine.jobs.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_may_come_are_told_as_tags_where_nobody_knows_lark() {
    let object = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false});
    let tool = |strict| json!({"type": "function", "function": {"name": "f", "parameters": object, "strict": strict}});
    let world = told_forms(FormKinds::JSON.or(FormKinds::GBNF).or(FormKinds::TAGS));
    let of_last = |world: &World| world.engine.jobs.lock().unwrap().pop().unwrap().grammar;
    world.call(Endpoint::ChatCompletions, with(&json!({"tools": [tool(true)]}), false)).await;
    let grammar = of_last(&world).unwrap();
    let ResponseFormat::Tags(tagged) = &**grammar.form() else { panic!("{:?}", grammar.form()) };
    assert_eq!(tagged.triggers, ["<tool_call>"]);
    let [tag] = tagged.tags.as_slice() else { panic!("{tagged:?}") };
    assert_eq!(tag.begin, "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
    assert_eq!((&tag.schema["required"], tag.end.as_str()), (&json!(["n"]), "}\n</tool_call>"));
    assert!(tag.schema.get("x-guidance").is_none(), "{}", tag.schema);
    // If a call is required, GBNF is used. If nothing is required, no form is sent.
    let required = json!({"tools": [tool(true)], "tool_choice": "required"});
    world.call(Endpoint::ChatCompletions, with(&required, false)).await;
    let grammar = of_last(&world).unwrap();
    assert!(matches!(&**grammar.form(), ResponseFormat::Grammar { syntax: GrammarSyntax::Gbnf, .. }));
    world.call(Endpoint::ChatCompletions, with(&json!({"tools": [tool(false)]}), false)).await;
    assert!(of_last(&world).is_none());
    // Tags cannot express "at most one call".
    let one = json!({"tools": [tool(true)], "parallel_tool_calls": false});
    let answer = world.call(Endpoint::ChatCompletions, with(&one, false)).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_a_custom_tool_is_held_to_its_grammar() {
    let format = |definition: &str| json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}});
    let asked = |format: Value| {
        let tool = json!({"type": "custom", "custom": {"name": "f", "format": format}});
        let choice = json!({"type": "custom", "custom": {"name": "f"}});
        with(&json!({"tools": [tool], "tool_choice": choice}), false)
    };
    let world = embedded(OffForm::Refuse);
    world.call(Endpoint::ChatCompletions, asked(format("start: A+\nA: /[a\"]/\n"))).await;
    let job = world.engine.jobs.lock().unwrap().pop().unwrap();
    let grammar = job.grammar.unwrap();
    let ResponseFormat::Grammar { text, .. } = &**grammar.form() else { panic!() };
    assert!(text.contains("%lark {") && text.contains("{\\\"input\\\": \\\""), "{text}");
    for (definition, code, said) in [
        ("start: <|im_end|>", "unsupported_parameter", "`<…>`"),
        ("start: /(/", "invalid_grammar", "line 1"),
        ("start: nothing", "invalid_grammar", "nothing"),
    ] {
        let answer = world.call(Endpoint::ChatCompletions, asked(format(definition))).await;
        assert_eq!(answer.status, 400);
        let error: Value = serde_json::from_str(&read(answer).await).unwrap();
        let told = error["error"]["message"].as_str().unwrap();
        assert!(error["error"]["code"] == code && told.contains(said), "{error}");
    }
}
