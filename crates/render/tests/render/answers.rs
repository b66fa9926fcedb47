//! What constrains an answer: response formats, calls of tools, and the budget of its reasoning.

use headrace_call_state::Rejection;
use headrace_catalog::{ModelPolicy, ServedModel, ThinkingPolicy, TokenBackend};
use headrace_domain::{Call, Endpoint, GrammarSyntax, Prompt, ResponseFormat};
use headrace_engine_api::{Capabilities, FormKinds, SharedGrammar};
use headrace_grammar::FormOwner;
use headrace_prompt::ReplyFamily;
use headrace_render::{compile_grammar, constrained_tools, is_constrained, reasoning_budget};
use serde_json::{Value, json};

use crate::models::{
    DEMO, THINKER, call, capabilities, changed, chat, demo, refused, token_model, tokenizer, tokens, with,
};

/// Opens the reasoning in the prompt unless thinking is switched off.
const THINKS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
    {% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think></think>{% endif %}";
const PLAIN: &str = "{{ messages[0].content }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}";

/// The demo model with an engine that has grammars.
fn with_grammars() -> ServedModel {
    changed(demo(), |backend| backend.capabilities.grammars = true)
}

/// A model whose server takes these forms itself.
fn with_forms(forms: FormKinds) -> ServedModel {
    changed(demo(), |backend| backend.capabilities.forms = forms)
}

fn compiled(model: &ServedModel, call: &Call) -> Result<Option<SharedGrammar>, Rejection> {
    compile_grammar(model, tokens(model), call, "", &FormOwner::default())
}

fn schema(strict: bool) -> Value {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "number", "strict": strict, "schema": schema}}})
}

fn tool(more: Value) -> Value {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
        "additionalProperties": false});
    json!({"type": "function", "function": with(json!({"name": "f", "parameters": parameters}), more)})
}

fn tools(more: Value) -> Value {
    with(json!({"tools": [tool(json!({}))]}), more)
}

#[test]
fn a_grammar_is_compiled_for_a_format_and_for_calls() {
    for (more, expected) in [
        (json!({}), false),
        (json!({"response_format": {"type": "text"}}), false),
        (json!({"response_format": {"type": "json_object"}}), true),
        (schema(false), true),
        (json!({"structured_outputs": {"choice": ["a", "b"]}}), true),
        (tools(json!({})), true),
        (tools(json!({"tool_choice": "required"})), true),
        (tools(json!({"tool_choice": "none"})), true),
        (json!({"tools": [tool(json!({"strict": true}))], "tool_choice": "none"}), true),
    ] {
        assert_eq!(is_constrained(&chat(more.clone())), expected, "{more}");
    }
    assert!(!is_constrained(&call(Endpoint::Completions, json!({"prompt": "x"}))));
}

#[test]
fn a_format_becomes_a_grammar_of_its_source() {
    let all = FormKinds::JSON.or(FormKinds::CHOICE);
    for model in [with_grammars(), with_forms(all)] {
        for more in [
            schema(false),
            json!({"response_format": {"type": "json_object"}}),
            json!({"structured_outputs": {"choice": ["a", "b"]}}),
        ] {
            let call = chat(more.clone());
            let grammar = compiled(&model, &call).unwrap().unwrap();
            assert_eq!(Some(grammar.form()), call.form.as_ref(), "{more}");
            assert!(grammar.thought().is_none());
        }
        assert!(compiled(&model, &chat(json!({}))).unwrap().is_none());
    }
}

#[test]
fn calls_become_a_grammar_in_the_notation_of_the_model() {
    let model = with_grammars();
    let text = |more: Value| {
        let grammar = compiled(&model, &chat(more)).unwrap()?;
        let ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark } = &**grammar.form() else {
            panic!("{:?}", grammar.form())
        };
        Some(text.clone())
    };
    // The engine follows a grammar of calls even if none is required, since the model marks its calls.
    for more in [json!({}), json!({"tool_choice": "required"}), json!({"parallel_tool_calls": false})] {
        let text = text(tools(more.clone())).unwrap();
        assert!(text.contains("\\\"f\\\"") || text.contains("\"f\""), "{more}: {text}");
    }
    let beside = text(with(tools(json!({})), schema(false))).unwrap();
    assert!(beside.starts_with("start: only_calls | only_json\n"), "{beside}");
    // Where calls are forbidden, the grammar names no tool, and a format excludes calls by itself.
    let none = json!({"tool_choice": "none"});
    let forbidden = text(tools(none.clone())).unwrap();
    assert!(forbidden.starts_with("start: TEXT\n") && !forbidden.contains("<["), "{forbidden}");
    let formatted = with(tools(none.clone()), schema(false));
    let grammar = compiled(&model, &chat(formatted.clone())).unwrap().unwrap();
    assert_eq!(Some(grammar.form()), chat(formatted).form.as_ref());
    let unmarked = changed(with_grammars(), |backend| backend.replies.family = ReplyFamily::LlamaJson);
    for model in [&demo(), &unmarked] {
        assert!(compiled(model, &chat(tools(none.clone()))).unwrap().is_none());
    }
    // Without an engine's grammars, calls that are not required are not constrained.
    assert!(compiled(&demo(), &chat(tools(json!({})))).unwrap().is_none());
}

/// Another server gets the form in a notation that it takes. GBNF cannot express the text before calls that are not
/// required.
#[test]
fn calls_are_written_as_the_models_server_takes_them() {
    let required = || chat(tools(json!({"tool_choice": "required"})));
    let strict = || chat(json!({"tools": [tool(json!({"strict": true}))]}));
    let tags_or_gbnf = FormKinds::TAGS.or(FormKinds::GBNF);
    for (forms, call, expected) in [
        (FormKinds::LARK, required(), FormKinds::LARK),
        (FormKinds::GBNF, required(), FormKinds::GBNF),
        (FormKinds::GBNF.or(FormKinds::LARK), required(), FormKinds::LARK),
        (tags_or_gbnf, required(), FormKinds::GBNF),
        (tags_or_gbnf, strict(), FormKinds::TAGS),
        (FormKinds::TAGS.or(FormKinds::LARK), strict(), FormKinds::LARK),
    ] {
        let grammar = compiled(&with_forms(forms), &call).unwrap().unwrap();
        assert_eq!(FormKinds::of(grammar.form()).0, expected, "{forms:?}");
    }
    for (forms, call, param) in [
        (FormKinds::JSON, required(), "tool_choice"),
        (FormKinds::TAGS, required(), "tool_choice"),
        (FormKinds::JSON, strict(), "tools"),
    ] {
        let refused = refused(compiled(&with_forms(forms), &call), "a grammar in Lark");
        assert_eq!(refused, ("unsupported_parameter", param.to_owned()), "{forms:?}");
    }
}

#[test]
fn a_custom_tools_input_follows_its_format() {
    let custom = |format: Value| {
        chat(json!({"tools": [{"type": "custom", "custom": {"name": "f", "format": format}}]}))
    };
    let grammar = |syntax: &str, definition: &str| {
        custom(json!({"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}))
    };
    let model = with_grammars();
    for (call, has) in
        [(grammar("regex", "a+b"), "pattern"), (grammar("lark", "start: A+\nA: /[a\"]/\n"), "%lark {")]
    {
        let grammar = compiled(&model, &call).unwrap().unwrap();
        let ResponseFormat::Grammar { text, .. } = &**grammar.form() else { panic!("a grammar") };
        assert!(text.contains(has), "{text}");
    }
    for (call, expected, says) in [
        (grammar("lark", "start: <|im_end|>"), ("unsupported_parameter", "tools[0].custom.format"), "`<…>`"),
        (grammar("regex", "("), ("invalid_grammar", "tools[0].custom.format"), ""),
        // The rules of a grammar are first read when it is compiled, with those of the other tools.
        (grammar("lark", "start: nothing"), ("invalid_grammar", "tools"), "nothing"),
    ] {
        let (code, param) = refused(compiled(&model, &call), says);
        assert_eq!((code, param.as_str()), expected, "{says}");
    }
}

#[test]
fn a_format_that_cannot_be_enforced_is_refused_by_its_field() {
    let regex = |pattern: &str| chat(json!({"structured_outputs": {"regex": pattern}}));
    let messages = call(
        Endpoint::Messages,
        json!({"messages": [{"role": "user", "content": "x"}],
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}),
    );
    let response = call(
        Endpoint::Responses,
        json!({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}}),
    );
    let (none, grammars) = (demo(), with_grammars());
    let json_alone = with_forms(FormKinds::JSON);
    for (model, call, expected, says) in [
        (&none, chat(schema(false)), ("unsupported_parameter", "response_format"), "a format"),
        (&none, messages, ("unsupported_parameter", "output_config.format"), "a format"),
        (&none, response, ("unsupported_parameter", "text.format"), "a format"),
        (&none, regex("a+"), ("unsupported_parameter", "structured_outputs"), "a format"),
        (&json_alone, regex("a+"), ("unsupported_parameter", "structured_outputs"), "a regular expression"),
        (&grammars, chat(schema(true)), ("invalid_json_schema", "response_format"), "'number'"),
        (&grammars, regex("("), ("invalid_grammar", "structured_outputs"), "Invalid grammar"),
    ] {
        let (code, param) = refused(compiled(model, &call), says);
        assert_eq!((code, param.as_str()), expected, "{says}");
    }
    // There is no memory to compile it in: the caller may try again.
    let reserve = |_: u64| -> Option<Box<dyn Send>> { None };
    let owner = FormOwner { tenant: 1, memory: Some(&reserve) };
    let outcome = compile_grammar(&grammars, tokens(&grammars), &chat(schema(false)), "", &owner);
    let Err(rejection) = outcome else { panic!("no memory") };
    assert_eq!((rejection.code.name(), rejection.retry_after.is_some()), ("forms_busy", true));
}

#[test]
fn calls_that_cannot_be_enforced_are_refused_by_their_field() {
    let plain = changed(token_model(tokenizer(DEMO), PLAIN), |backend| backend.capabilities.grammars = true);
    let grammars = with_grammars();
    let broken = tool(json!({"parameters": {"type": "object", "properties": {"a": {"type": "objekt"}}}}));
    let loose = tool(json!({"strict": true, "parameters": {"type": "object", "properties": {"a": {}}}}));
    let one = |tool: &Value| json!({"tools": [tool]});
    for (model, more, expected) in [
        (&plain, tools(json!({"tool_choice": "required"})), ("unsupported_parameter", "tool_choice")),
        (
            &plain,
            tools(json!({"parallel_tool_calls": false})),
            ("unsupported_parameter", "parallel_tool_calls"),
        ),
        (&plain, one(&tool(json!({"strict": true}))), ("unsupported_parameter", "tools")),
        (&plain, one(&broken), ("invalid_json_schema", "tools[0].function.parameters")),
        (&grammars, one(&broken), ("invalid_json_schema", "tools[0].function.parameters")),
        (&grammars, one(&loose), ("invalid_json_schema", "tools[0].function.parameters")),
        (
            &grammars,
            with(tools(json!({})), json!({"structured_outputs": {"regex": "a"}})),
            ("invalid_json_schema", "response_format"),
        ),
    ] {
        let (code, param) = refused(compiled(model, &chat(more.clone())), "");
        assert_eq!((code, param.as_str()), expected, "{more}");
    }
    assert!(
        compiled(&plain, &chat(tools(json!({})))).unwrap().is_none(),
        "they are checked when they are whole"
    );
}

#[test]
fn tools_are_constrained_if_a_grammar_can_follow_their_schema() {
    let named = |name: &str, more: Value| {
        with(tool(more), json!({})).as_object().map(|tool| {
            let mut tool = tool.clone();
            tool["function"]["name"] = json!(name);
            Value::Object(tool)
        })
    };
    let call = chat(json!({"tools": [
        named("plain", json!({})),
        named("any", json!({"parameters": {}})),
        named("strict", json!({"strict": true})),
    ]}));
    let Prompt::Conversation(conversation) = &call.prompt else { panic!("a conversation") };
    let constrained = constrained_tools(conversation);
    for (name, expected) in [("plain", true), ("any", true), ("strict", true), ("unknown", false)] {
        assert_eq!(constrained(name), expected, "{name}");
    }
}

/// A model whose vocabulary has the marks of reasoning.
fn thinker(template: &str, thought_caps: bool, policy: ModelPolicy) -> ServedModel {
    let model = token_model(tokenizer(THINKER), template);
    let mut model = changed(model, |backend: &mut TokenBackend| {
        backend.capabilities = Capabilities { vocab: 1024, thought_caps, ..capabilities() };
    });
    model.policy = policy;
    model
}

/// Ids of the marks in the thinker's vocabulary.
const OPENED: u32 = 1022;
const CLOSED: u32 = 1023;

#[test]
fn a_budget_of_reasoning_is_given_in_ids() {
    let mut budgets = [None; ThinkingPolicy::EFFORTS.len()];
    budgets[1] = Some(300);
    let policy = |last_words: Option<&str>| ModelPolicy {
        thinking: ThinkingPolicy { budgets, last_words: last_words.map(Into::into) },
        ..ModelPolicy::default()
    };
    let opened = "user: hi\n<think>\n";
    for (more, text, last_words, expected) in [
        (json!({}), opened, None, None),
        (json!({"thinking_token_budget": 7}), opened, None, Some((7, true))),
        (json!({"thinking_token_budget": 0}), opened, None, Some((0, true))),
        (json!({"thinking_token_budget": 7}), "user: hi\n", None, Some((7, false))),
        (json!({"reasoning_effort": "low"}), opened, None, Some((300, true))),
        (json!({"thinking_token_budget": 7, "reasoning_effort": "low"}), opened, None, Some((7, true))),
        // Of 100 tokens, the last words take as many as they have.
        (json!({"thinking_token_budget": 100}), opened, Some("Enough.\n"), Some((95, true))),
        // They do not fit into 5 tokens and are left out.
        (json!({"thinking_token_budget": 5}), opened, Some("Enough.\n"), Some((5, true))),
    ] {
        let model = thinker(THINKS, true, policy(last_words));
        let budget = reasoning_budget(&model, tokens(&model), &chat(more.clone()), (text, false)).unwrap();
        assert_eq!(budget.as_ref().map(|budget| (budget.most_tokens, budget.is_open)), expected, "{more}");
        let Some(budget) = budget else { continue };
        assert_eq!((budget.open.as_slice(), budget.close), (&[OPENED][..], CLOSED));
        assert_eq!(budget.ending.last(), Some(&CLOSED));
        let words = if expected == Some((95, true)) { 5 } else { 0 };
        assert_eq!(budget.ending.len(), words + 1, "{more}");
    }
    let raw = call(Endpoint::Completions, json!({"prompt": "x"}));
    let model = thinker(THINKS, true, ModelPolicy::default());
    assert!(reasoning_budget(&model, tokens(&model), &raw, ("x", false)).unwrap().is_none());
}

#[test]
fn a_budget_that_cannot_be_enforced_is_refused_by_its_field() {
    let budget = || chat(json!({"thinking_token_budget": 5}));
    let messages = || {
        call(
            Endpoint::Messages,
            json!({"messages": [{"role": "user", "content": "hi"}],
                "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        )
    };
    let seed = "{{ messages[0].content }}{# </seed:think> #}";
    for (template, caps, call, param, says) in [
        (PLAIN, true, budget(), "thinking_token_budget", "does not think"),
        (seed, true, budget(), "thinking_token_budget", "no token that ends a thought"),
        (THINKS, false, budget(), "thinking_token_budget", "server that cannot end a thought"),
        (THINKS, false, messages(), "thinking.budget_tokens", "server that cannot end a thought"),
    ] {
        let model = thinker(template, caps, ModelPolicy::default());
        let outcome = reasoning_budget(&model, tokens(&model), &call, ("", false));
        assert_eq!(refused(outcome, says), ("unsupported_parameter", param.to_owned()), "{says}");
    }
    // The budget of an effort is refused by the effort.
    let mut budgets = [None; ThinkingPolicy::EFFORTS.len()];
    budgets[1] = Some(300);
    let thinking = ThinkingPolicy { budgets, last_words: None };
    let model = thinker(THINKS, false, ModelPolicy { thinking, ..ModelPolicy::default() });
    let outcome =
        reasoning_budget(&model, tokens(&model), &chat(json!({"reasoning_effort": "low"})), ("", false));
    assert_eq!(
        refused(outcome, "cannot end a thought"),
        ("unsupported_parameter", "reasoning_effort".to_owned())
    );
}
