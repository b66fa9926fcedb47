//! Tests grammars of calls: llguidance accepts them, they allow only what a family's template writes, and everything
//! that they allow is parsed as calls of offered tools.

use std::sync::Arc;

use headrace_domain::{Conversation, FinishReason, ReplyEvent, Tool, ToolChoice};
use headrace_prompt::{
    CallIds, OfferedTools, ReplyFamily, ReplyForm, ReplyParser, ReplyStyle, TEXT_GRAMMAR, TEXT_PATTERN,
};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

/// Returns a vocabulary of bytes.
fn bytes() -> TokEnv {
    ApproximateTokEnv::single_byte_env()
}

fn matcher(lark: &str) -> Matcher {
    let factory = ParserFactory::new(&bytes(), InferenceCapabilities::default(), &[]).unwrap();
    let parser = factory.create_parser(TopLevelGrammar::from_lark(lark.to_owned()));
    let matcher = Matcher::new(parser);
    assert!(!matcher.is_error(), "{:?}\n{lark}", matcher.get_error());
    matcher
}

/// Whether a grammar allows `text` as a complete answer.
fn takes(lark: &str, text: &str) -> bool {
    let mut matcher = matcher(lark);
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    matcher.try_consume_tokens(&ids).unwrap() == ids.len() && matcher.is_accepting().unwrap()
}

fn tools() -> Vec<Tool> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
            "unit": { "enum": ["c", "f"] },
            "exact": { "type": "boolean" },
        },
        "required": ["city"],
        "additionalProperties": false,
        "x-guidance": { "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " },
    });
    vec![Tool::function("get_weather", None, Some(weather)), Tool::function("now", None, None)]
}

fn asked(tool_choice: ToolChoice, one_call: bool) -> Conversation {
    Conversation { tools: tools(), tool_choice, one_call, ..Conversation::default() }
}

fn lark(family: ReplyFamily, conversation: &Conversation) -> String {
    family.calls_as_grammar(conversation, &|_| None).unwrap()
}

/// Returns the call in each family's notation: the weather of Lisbon for three days.
fn written(family: ReplyFamily) -> Option<String> {
    let json = r#"{"city": "Lisbon", "days": 3}"#;
    Some(match family {
        ReplyFamily::Plain => return None,
        ReplyFamily::Hermes => {
            format!("<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {json}}}\n</tool_call>")
        }
        ReplyFamily::Json => format!("{{\"name\": \"get_weather\", \"arguments\": {json}}}"),
        ReplyFamily::LlamaJson => format!("{{\"name\": \"get_weather\", \"parameters\": {json}}}"),
        ReplyFamily::QwenXml => {
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nLisbon\n</parameter>\n\
             <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
                .to_owned()
        }
        ReplyFamily::Pythonic => r#"[get_weather(city="Lisbon", days=3)]"#.to_owned(),
        ReplyFamily::MistralArray => {
            format!("[TOOL_CALLS][{{\"name\": \"get_weather\", \"arguments\": {json}}}]")
        }
        ReplyFamily::Mistral => format!("[TOOL_CALLS]get_weather[ARGS]{json}"),
        ReplyFamily::DeepSeekV3 => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{json}\n```\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        ReplyFamily::DeepSeekV31 => format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{json}<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>"
        ),
        ReplyFamily::DeepSeekDsml | ReplyFamily::DeepSeekV4 => {
            let all = if family == ReplyFamily::DeepSeekV4 { "tool_calls" } else { "function_calls" };
            format!(
                "<｜DSML｜{all}>\n<｜DSML｜invoke name=\"get_weather\">\n\
                 <｜DSML｜parameter name=\"city\" string=\"true\">Lisbon</｜DSML｜parameter>\n\
                 <｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n\
                 </｜DSML｜invoke>\n</｜DSML｜{all}>"
            )
        }
        ReplyFamily::Harmony => format!(
            "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary \
             to=functions.get_weather <|constrain|>json<|message|>{json}"
        ),
        ReplyFamily::Granite => {
            format!("<|tool_call|>[{{\"name\": \"get_weather\", \"arguments\": {json}}}]")
        }
        ReplyFamily::Glm => {
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Lisbon</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
                .to_owned()
        }
        ReplyFamily::Kimi => format!(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
             <|tool_call_argument_begin|>{json}<|tool_call_end|><|tool_calls_section_end|>"
        ),
        ReplyFamily::MiniMax => "<minimax:tool_call>\n<invoke name=\"get_weather\">\n\
             <parameter name=\"city\">Lisbon</parameter>\n<parameter name=\"days\">3</parameter>\n\
             </invoke>\n</minimax:tool_call>"
            .to_owned(),
        ReplyFamily::FunctionGemma => {
            "<start_function_call>call:get_weather{city:<escape>Lisbon<escape>,days:3}<end_function_call>"
                .to_owned()
        }
        ReplyFamily::Gemma => {
            "<|tool_call>call:get_weather{city:<|\"|>Lisbon<|\"|>,days:3}<tool_call|>".to_owned()
        }
        ReplyFamily::Olmo => {
            "<function_calls>\nget_weather(city=\"Lisbon\", days=3)\n</function_calls>".to_owned()
        }
        ReplyFamily::Phi => format!("functools[{{\"name\": \"get_weather\", \"arguments\": {json}}}]"),
        ReplyFamily::Cohere => format!(
            "<|START_ACTION|>[\n    {{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": \
             {json}}}\n]<|END_ACTION|>"
        ),
        ReplyFamily::Seed => in_functions("seed:tool_call"),
        ReplyFamily::MiMo => in_functions("tool_call"),
        ReplyFamily::Ernie => written(ReplyFamily::Hermes)?,
        ReplyFamily::Hunyuan => format!(
            "<tool_calls>\n{}\n</tool_calls>",
            written(ReplyFamily::Glm)?.replace("get_weather", "get_weather<tool_sep>")
        ),
        ReplyFamily::HunyuanSuffixed => written(ReplyFamily::Hunyuan)?.replace('>', ":opensource>"),
        ReplyFamily::HunyuanArray => {
            format!("<tool_calls>[{{\"name\": \"get_weather\", \"arguments\": {json}}}]</tool_calls>")
        }
        ReplyFamily::MiniMaxNested => "#<tool_call>\n#<invoke name=\"get_weather\">#<city>Lisbon#</city>\
             #<days>3#</days>#</invoke>\n#</tool_call>"
            .replace('#', "]<]minimax[>["),
        ReplyFamily::KimiXtml => "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|>\
             <|open|>argument key=\"city\" type=\"string\"<|sep|>Lisbon<|close|>argument<|sep|>\
             <|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|>\
             <|close|>call<|sep|><|close|>tools<|sep|>"
            .to_owned(),
        ReplyFamily::Step => "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>\
             <steptml:invoke name=\"get_weather\">\n<steptml:parameter name=\"city\">Lisbon</steptml:parameter>\n\
             <steptml:parameter name=\"days\">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n\
             <｜tool_calls_end｜>"
            .to_owned(),
        ReplyFamily::Apertus => format!("<|tools_prefix|>[{{\"get_weather\": {json}}}]<|tools_suffix|>"),
        ReplyFamily::LongCat => written(ReplyFamily::Hermes)?.replace("tool_call", "longcat_tool_call"),
        ReplyFamily::LongCatPairs => {
            written(ReplyFamily::Glm)?.replace("tool_call", "longcat_tool_call").replace("arg_", "longcat_arg_")
        }
    })
}

/// Returns the call in tags without line breaks around values.
fn in_functions(mark: &str) -> String {
    format!(
        "<{mark}>\n<function=get_weather>\n<parameter=city>Lisbon</parameter>\n\
         <parameter=days>3</parameter>\n</function>\n</{mark}>"
    )
}

fn writing() -> impl Iterator<Item = (ReplyFamily, String)> {
    ReplyFamily::ALL.into_iter().filter_map(|family| Some((family, written(family)?)))
}

#[test]
fn a_required_call_is_all_that_passes() {
    for (family, call) in writing() {
        let required = lark(family, &asked(ToolChoice::Required, false));
        assert!(takes(&required, &call), "{family:?}\n{call}\n{required}");
        for other in [
            String::new(),
            "Lisbon is warm.".to_owned(),
            format!("Let me look. {call}"),
            call.replace("get_weather", "get_wether"),
            call.replace("city", "town"),
            // Ten days are too many, and half a call is not a call.
            call.replace('3', "10"),
            call.chars().take(call.chars().count() / 2).collect(),
        ] {
            assert!(!takes(&required, &other), "{family:?} {other}\n{required}");
        }
        let named = lark(family, &asked(ToolChoice::Named("get_weather".to_owned()), false));
        assert!(takes(&named, &call), "{family:?}\n{named}");
        let now = lark(family, &asked(ToolChoice::Named("now".to_owned()), false));
        assert!(!takes(&now, &call), "{family:?}\n{now}");
    }
}

#[test]
fn text_is_free_up_to_a_call() {
    for (family, call) in writing().filter(|(family, _)| *family != ReplyFamily::Harmony) {
        let names = vec!["get_weather".to_owned()];
        let auto = lark(family, &asked(ToolChoice::Allowed { names, required: false }, false));
        assert!(takes(&auto, "Lisbon is warm.\nAnd < sunny > [today]."), "{family:?}\n{auto}");
        assert!(takes(&auto, &call), "{family:?}\n{auto}");
        assert!(!takes(&auto, &call.replace("get_weather", "now")), "{family:?}\n{auto}");
        let bare = matches!(family, ReplyFamily::Json | ReplyFamily::LlamaJson | ReplyFamily::Pythonic);
        if !bare {
            assert!(takes(&auto, &format!("Let me look.\n{call}")), "{family:?}\n{auto}");
        }
    }
}

#[test]
fn at_most_one_call_where_one_is_asked_for() {
    for (family, call) in writing() {
        let one = lark(family, &asked(ToolChoice::Required, true));
        assert!(takes(&one, &call), "{family:?}\n{one}");
        for between in ["", "\n", "; ", ", "] {
            assert!(!takes(&one, &format!("{call}{between}{call}")), "{family:?}\n{one}");
        }
    }
    let auto = lark(ReplyFamily::Hermes, &asked(ToolChoice::Auto, true));
    let call = written(ReplyFamily::Hermes).unwrap();
    assert!(takes(&auto, &format!("a\n{call}\nb")) && !takes(&auto, &format!("{call}\n{call}")));
}

#[test]
fn a_tool_that_names_no_arguments_is_called_without_any() {
    let nothing = [
        None,
        Some(json!({ "type": "object", "properties": {} })),
        Some(json!({ "type": "object", "properties": {}, "required": [], "description": "none" })),
    ];
    let anything = [
        json!({ "type": "object" }),
        json!({ "properties": {}, "additionalProperties": { "type": "integer" } }),
    ];
    let named = |parameters: Option<Value>| {
        let tools = vec![Tool::function("now", None, parameters)];
        let tool_choice = ToolChoice::Named("now".to_owned());
        lark(ReplyFamily::Hermes, &Conversation { tools, tool_choice, ..Conversation::default() })
    };
    let call = |arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"now\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    for parameters in nothing {
        let lark = named(parameters);
        assert!(takes(&lark, &call("{}")), "{lark}");
        for more in ["{\"a\": 1}", "{ }", "{\n\n\n}"] {
            assert!(!takes(&lark, &call(more)), "{more}: {lark}");
        }
    }
    for parameters in anything {
        let lark = named(Some(parameters));
        assert!(takes(&lark, &call("{}")) && takes(&lark, &call("{\"a\": 1}")), "{lark}");
    }
}

#[test]
fn special_tokens_are_named_by_their_ids() {
    let conversation = asked(ToolChoice::Required, false);
    let special = |mark: &str| (mark == "[TOOL_CALLS]").then_some(5);
    let lark = ReplyFamily::Mistral.calls_as_grammar(&conversation, &special).unwrap();
    assert!(lark.contains("<[5]>") && !lark.contains("TOOL_CALLS") && lark.contains("\"[ARGS]\""), "{lark}");
}

/// Returns the ids of a text in a vocabulary of bytes in which some marks are special tokens.
fn ids_with(special: &[&str], text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mark = special.iter().position(|mark| rest.starts_with(mark));
        let length = mark.map_or(1, |at| special[at].len());
        ids.push(mark.map_or(u32::from(rest.as_bytes()[0]), |at| u32::try_from(at).unwrap() + 1));
        // Marks and the texts around them are cut at characters. All other bytes here are ASCII.
        rest = &rest[length..];
    }
    ids
}

#[test]
fn marks_of_special_tokens_pass_around_answers_and_within_calls() {
    for (family, special, answer) in [
        (
            ReplyFamily::Cohere,
            &["<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"][..],
            "<|START_RESPONSE|>It is warm.<|END_RESPONSE|>",
        ),
        (
            ReplyFamily::KimiXtml,
            &["<|open|>", "<|close|>", "<|sep|>"][..],
            "<|open|>response<|sep|>It is warm.<|close|>response<|sep|><|close|>message<|sep|>",
        ),
        (ReplyFamily::MiniMaxNested, &["]<]minimax[>["][..], "It is warm."),
        (
            ReplyFamily::Step,
            &[
                "<｜tool_calls_begin｜>",
                "<｜tool_calls_end｜>",
                "<｜tool_call_begin｜>",
                "<｜tool_call_end｜>",
                "<｜tool_sep｜>",
            ][..],
            "It is warm.",
        ),
    ] {
        let id =
            |mark: &str| special.iter().position(|one| *one == mark).map(|at| u32::try_from(at).unwrap() + 1);
        let takes = |lark: &str, text: &str| {
            let mut matcher = matcher(lark);
            let ids = ids_with(special, text);
            matcher.try_consume_tokens(&ids).unwrap() == ids.len() && matcher.is_accepting().unwrap()
        };
        let call = written(family).unwrap();
        let of = |choice| family.calls_as_grammar(&asked(choice, false), &id).unwrap();
        let required = of(ToolChoice::Required);
        assert!(takes(&required, &call), "{family:?}\n{required}");
        assert!(!takes(&required, answer), "{family:?}\n{required}");
        assert!(!takes(&required, &call.replace("city", "town")), "{family:?}\n{required}");
        let auto = of(ToolChoice::Allowed { names: vec!["get_weather".to_owned()], required: false });
        for text in [answer.to_owned(), call.clone(), format!("{answer}{call}")] {
            assert!(takes(&auto, &text), "{family:?} {text}\n{auto}");
        }
        assert!(!takes(&auto, &call.replace("get_weather", "now")), "{family:?}\n{auto}");
    }
}

/// Values within arguments have tags of their own.
#[test]
fn nested_values_pass_in_their_tags() {
    let schema = json!({
        "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/place"},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/place"}},
            "free": {"type": "object"},
        },
        "required": ["place", "stops"],
        "additionalProperties": false,
    });
    let tools = vec![Tool::function("plan", None, Some(schema))];
    let conversation = Conversation { tools, tool_choice: ToolChoice::Required, ..Conversation::default() };
    let lark = lark(ReplyFamily::MiniMaxNested, &conversation);
    let call = |arguments: &str| {
        format!("#<tool_call>\n#<invoke name=\"plan\">{arguments}#</invoke>\n#</tool_call>")
            .replace('#', "]<]minimax[>[")
    };
    let place = "#<place>#<city>Lisbon#</city>#</place>";
    let stop = "#<item>#<city>Porto#</city>#</item>";
    for (arguments, passes) in [
        (format!("{place}#<stops>{stop}{stop}#</stops>"), true),
        (format!("{place}#<stops>#</stops>#<free>{{\"a\": 1}}#</free>"), true),
        (place.to_owned(), false),
        (format!("#<place>#</place>#<stops>{stop}#</stops>"), false),
        (format!("{place}#<stops>Porto#</stops>"), false),
    ] {
        assert_eq!(takes(&lark, &call(&arguments)), passes, "{arguments}\n{lark}");
    }
}

#[test]
fn a_text_is_held_to_a_grammar_or_a_pattern() {
    let of = |family, schema: Value| {
        let tools = vec![Tool { strict: true, ..Tool::function("get_weather", None, Some(schema)) }];
        lark(family, &Conversation { tools, tool_choice: ToolChoice::Required, ..Conversation::default() })
    };
    let schema = |city: Value| {
        json!({"type": "object", "properties": {"city": city, "days": {"type": "integer"}}, "required": ["city", "days"],
            "additionalProperties": false,
            "x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}})
    };
    let (mut by_grammar, mut by_pattern) = (0, 0);
    for (family, call) in writing() {
        if family.holds_texts() {
            let mut schema = schema(json!({"type": "string"}));
            schema[TEXT_GRAMMAR] = "start: A B{5}\nA: /[A-Z]/\nB: /[a-z]/".into();
            schema["properties"].as_object_mut().unwrap().remove("days");
            let lark = of(family, schema);
            let call = call.replace(", \"days\": 3", "");
            assert!(takes(&lark, &call), "{family:?}\n{lark}");
            assert!(!takes(&lark, &call.replace("Lisbon", "lisbon")), "{family:?}\n{lark}");
            by_grammar += 1;
        } else {
            let city = json!({"type": "string", "pattern": "^[A-Z][a-z]{5}$", TEXT_PATTERN: "[A-Z][a-z]{5}"});
            let lark = of(family, schema(city));
            assert!(takes(&lark, &call), "{family:?}\n{lark}");
            assert!(!takes(&lark, &call.replace("Lisbon", "lisbon")), "{family:?}\n{lark}");
            by_pattern += 1;
        }
    }
    assert!(by_grammar > 5 && by_pattern > 4, "{by_grammar} {by_pattern}");
}

#[test]
fn a_forbidden_call_cannot_be_written_and_any_other_text_can() {
    let unmarked = [ReplyFamily::Plain, ReplyFamily::LlamaJson, ReplyFamily::Pythonic, ReplyFamily::Json];
    for family in ReplyFamily::ALL {
        assert_eq!(family.marks_calls(), !unmarked.contains(&family), "{family:?}");
        let lark = family.no_calls_as_grammar(&|_| None);
        assert_eq!(lark.is_some(), family.marks_calls(), "{family:?}");
        let Some(lark) = lark else { continue };
        let call = written(family).unwrap();
        for text in [call.clone(), format!("I look it up. {call}"), format!("I look it up.\n\n{call}")] {
            let ids: Vec<u32> = text.bytes().map(u32::from).collect();
            let taken = matcher(&lark).try_consume_tokens(&ids).unwrap();
            assert!(taken < ids.len(), "{family:?} writes {text}\n{lark}");
        }
        let open = if family == ReplyFamily::Harmony { "<|channel|>final<|message|>" } else { "" };
        for text in ["It is warm.", "{\"name\": \"now\"}", "[now()]\n[1]", "a < b\n\n> c", "\u{1f600} é"] {
            assert!(takes(&lark, &format!("{open}{text}")), "{family:?} does not write {text}\n{lark}");
        }
    }
}

#[test]
fn nothing_is_held_where_nothing_need_be() {
    for (conversation, held) in [
        (asked(ToolChoice::Auto, false), false),
        (asked(ToolChoice::None, true), false),
        (Conversation { tool_choice: ToolChoice::Required, ..Conversation::default() }, false),
        (asked(ToolChoice::Auto, true), true),
    ] {
        let lark = ReplyFamily::Hermes.calls_as_grammar(&conversation, &|_| None);
        assert_eq!(lark.is_some(), held, "{conversation:?}");
    }
    let mut strict = asked(ToolChoice::Auto, false);
    strict.tools[0].strict = true;
    let lark = lark(ReplyFamily::Hermes, &strict);
    let call = written(ReplyFamily::Hermes).unwrap();
    assert!(takes(&lark, &call) && !takes(&lark, &call.replace("city", "town")));
    // The other tool accepts any arguments.
    let now = r#"<tool_call>
{"name": "now", "arguments": {"a": [1]}}
</tool_call>"#;
    assert!(takes(&lark, now), "{lark}");
}

/// Returns a text that a grammar allows, drawn at random: at most sixty bytes of noise, then the shortest way to the
/// end.
fn drawn(lark: &str, seed: u64) -> Option<String> {
    let mut matcher = matcher(lark);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = Vec::new();
    let prefer = b"\"}])>\n|";
    while text.len() < 900 {
        if matcher.is_stopped() || (matcher.is_accepting().unwrap() && text.len() > 40) {
            break;
        }
        let mask = matcher.compute_mask().unwrap();
        // Letters and signs that people write, and other bytes only if a mark contains them.
        let of = |range: std::ops::Range<u32>| range.filter(|id| mask.is_allowed(*id)).collect::<Vec<_>>();
        let plain = [of(10..11), of(32..127)].concat();
        let allowed = if plain.is_empty() { of(128..256) } else { plain };
        let forced = text.len() > 60;
        let closing = prefer.iter().map(|byte| u32::from(*byte)).find(|id| forced && allowed.contains(id));
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let at = usize::try_from(state >> 33).unwrap() % allowed.len().max(1);
        let Some(id) = closing.or(allowed.get(at).copied()) else { break };
        matcher.consume_token(id).unwrap();
        text.push(u8::try_from(id).unwrap());
    }
    // A grammar that allows nothing more stops.
    (matcher.is_stopped() || matcher.is_accepting().unwrap()).then(|| String::from_utf8(text).unwrap())
}

#[test]
fn whatever_passes_is_read_back() {
    let conversation = asked(ToolChoice::Required, true);
    let offered = Arc::new(OfferedTools::of(&conversation));
    for (family, _) in writing() {
        let lark = lark(family, &conversation);
        let mut read = 0;
        for seed in 0..80 {
            let Some(text) = drawn(&lark, seed) else { continue };
            let form = ReplyForm {
                style: ReplyStyle { family, thought: None },
                offered: Arc::clone(&offered),
                ..ReplyForm::default()
            };
            let mut parser = ReplyParser::new(&form, 0, CallIds::new(1));
            let mut events = Vec::new();
            parser.push(text.clone(), Vec::new(), Vec::new(), &mut events);
            parser.finish(FinishReason::Stop, &mut events);
            let mut arguments = String::new();
            for event in &events {
                match event {
                    ReplyEvent::ToolCallStart { index, .. } => assert_eq!(*index, 0),
                    ReplyEvent::ToolCallArguments { fragment, .. } => arguments += fragment,
                    ReplyEvent::Finish { reason, .. } => {
                        assert_eq!(*reason, FinishReason::ToolCalls, "{family:?} {text:?} {events:?}");
                    }
                    ReplyEvent::Reasoning { .. } => {}
                    other => panic!("{family:?} {text:?} {other:?}"),
                }
            }
            assert!(serde_json::from_str::<Value>(&arguments).unwrap().is_object());
            read += 1;
        }
        assert!(read >= 10, "{family:?}: {read}");
    }
}

#[test]
fn a_template_that_writes_a_familys_calls_is_told_by_them() {
    for (family, call) in writing() {
        // The notations of Python and JSON are not specific enough to identify a family.
        let bare = matches!(family, ReplyFamily::Json | ReplyFamily::LlamaJson | ReplyFamily::Pythonic);
        let expected = if bare { ReplyFamily::Plain } else { family };
        // The marks around the answer distinguish ERNIE from Hermes.
        let answer = if family == ReplyFamily::Ernie { "<response>" } else { "" };
        let template = format!("{{{{ x }}}} {call} {{{{ y }}}} {answer}");
        assert_eq!(ReplyFamily::detect(&template), expected, "{call}");
    }
    let hunyuan = "{% set HYTK = ':opensource' %}<tool_calls{}><arg_key{}>";
    assert_eq!(ReplyFamily::detect(hunyuan), ReplyFamily::HunyuanSuffixed);
    assert_eq!(ReplyFamily::detect("<|tool|>{{ tools }}<|/tool|>"), ReplyFamily::Phi);
    let llama = "<|start_header_id|>ipython {\"name\": function name, \"parameters\": dictionary}";
    assert_eq!(ReplyFamily::detect(llama), ReplyFamily::LlamaJson);
    assert_eq!(ReplyFamily::detect("[func_name1(params_name1=params_value1)]"), ReplyFamily::Pythonic);
}
