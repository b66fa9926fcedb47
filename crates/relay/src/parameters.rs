//! Generates the page of parameters: the treatment of each parameter that a vendor documents. It uses the same tables
//! as the parsing of requests. Must not know models.

mod documented;
mod fate;
mod others;

use std::collections::BTreeMap;
use std::fmt::Write;

use headrace_domain::Endpoint;

use crate::request::DECIDED_HERE;
use headrace_wire::common::refused::{KnownParameters, rows};

use fate::fate;

/// An honoured parameter: its name, its endpoints (`c` chat, `t` completions, `m` messages, `r` responses), a value
/// that is accepted, and its effect.
type Row = (&'static str, &'static str, &'static str, &'static str);

const STOP_CHAT: &str = "up to four; they are looked for in all that the model writes, its thought included; an answer that ends within its thought has no text, names the string, and is `stop:stop_string_in_thought` in its trace";
const STOP_MESSAGES: &str = "up to `wire.max_stop_strings`; they are looked for in all that the model writes, its thought included; an answer that ends within its thought has no text, names the string, and is `stop:stop_string_in_thought` in its trace";

const HONOURED: &[Row] = &[
    ("add_generation_prompt", "c", "false", "false with `continue_final_message` alone"),
    ("best_of", "t", "1", "equal to `n`: answers are not ranked"),
    ("best_of", "c", "1", "equal to `n`: answers are not ranked"),
    (
        "cache_control",
        "m",
        r#"{"type":"ephemeral"}"#,
        "where a prefix ends that is kept for 5 minutes or an hour after its last use, on the models that are computed here or at workers; of four at most",
    ),
    ("cache_salt", "ctmr", r#""s""#, "narrows who shares cached prefixes"),
    (
        "chat_template_kwargs",
        "cm",
        r#"{"x":1}"#,
        "variables of the model's template; not those that the request or the model sets",
    ),
    (
        "context_management",
        "m",
        r#"{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]}"#,
        "thinking of earlier turns (`clear_thinking`) and results of old tool calls (`clear_tool_uses`) are left out; other edits are refused",
    ),
    ("continue_final_message", "c", "true", "the last message is the beginning of the answer"),
    (
        "diagnostics",
        "m",
        r#"{"previous_message_id":null}"#,
        "what was changed since the answer that it names, and where; known for an hour, on the models that are spoken to in tokens",
    ),
    ("echo", "t", "true", "the prompt precedes the answer"),
    ("enable_thinking", "c", "false", "whether the model thinks first, where its template has a switch"),
    ("frequency_penalty", "ctr", "1", "from -2 to 2"),
    (
        "headrace",
        "ctmr",
        r#"{"explain":true}"#,
        "Headrace's own: `explain` puts times and cost into the answer",
    ),
    ("ignore_eos", "ctr", "true", "the model's own end does not end the answer"),
    ("include_reasoning", "c", "false", "false leaves reasoning out of the answer"),
    ("logit_bias", "ctr", r#"{"1":5}"#, "from -100 to 100 for each token id"),
    ("logprobs", "c", "true", "with `top_logprobs`"),
    ("logprobs", "t", "5", "up to `wire.max_logprobs`"),
    ("max_completion_tokens", "c", "5", "the newer name of `max_tokens`"),
    ("max_tokens", "ct", "5", "as the model's window allows"),
    ("max_tokens", "m", "0", "as the model's window allows; 0 reads the prompt ahead and answers nothing"),
    (
        "messages",
        "cm",
        "",
        "text, calls of tools and their results; images, documents and sounds are refused by their place",
    ),
    (
        "metadata",
        "m",
        r#"{"user_id":"u"}"#,
        "a label of the caller's user, by which traces and usage can be distinguished",
    ),
    ("min_p", "ctr", "0.1", "from 0 to 1"),
    ("min_tokens", "ctr", "1", "no end before this many tokens"),
    ("model", "ctmr", "", "a model, an alias or a route"),
    ("n", "ct", "2", "up to `wire.max_n`, and `wire.max_choices` with all prompts"),
    (
        "output_config",
        "m",
        r#"{"effort":"low","format":{"type":"json_schema","schema":{}}}"#,
        "`format` holds the answer to a schema, `effort` says how hard to think; `task_budget` is refused",
    ),
    (
        "output_format",
        "m",
        r#"{"type":"json_schema","schema":{}}"#,
        "the older name of `output_config.format`",
    ),
    ("parallel_tool_calls", "cr", "false", "false: one call at most"),
    ("presence_penalty", "ctr", "1", "from -2 to 2"),
    (
        "parse_special",
        "t",
        "true",
        "llama.cpp's: control tokens spelt out in the prompt are taken as such, where `parse_special` of the model allows that to the key",
    ),
    ("prompt", "t", "", "text, texts, ids or lists of ids"),
    ("prompt_logprobs", "ct", "1", "up to `wire.max_logprobs`"),
    (
        "reasoning_effort",
        "c",
        r#""low""#,
        "`none` switches thinking off; other words reach the model's template, and may be a number of tokens by its configuration",
    ),
    ("repetition_penalty", "ctr", "1.1", "above 0 to 2"),
    (
        "response_format",
        "ct",
        r#"{"type":"json_object"}"#,
        "`text`, `json_object`, `json_schema`, and vLLM's `structural_tag`",
    ),
    ("return_token_ids", "ct", "true", "ids beside the text"),
    (
        "safety_identifier",
        "ct",
        r#""s""#,
        "a label of the end user, by which traces and usage can be distinguished",
    ),
    ("seed", "ctmr", "7", "same seed, same answer"),
    (
        "service_tier",
        "ctr",
        r#""flex""#,
        "`flex` runs when nothing else waits, and otherwise one request at a time; `auto` and `default` are the usual; others are refused",
    ),
    ("stop", "ctr", r#"["a"]"#, STOP_CHAT),
    ("stop_sequences", "m", r#"["a"]"#, STOP_MESSAGES),
    ("stop_token_ids", "ctr", "[1]", "up to `wire.max_stop_token_ids`"),
    ("stream", "ctmr", "true", "server-sent events"),
    (
        "stream_options",
        "ct",
        r#"{"include_usage":true}"#,
        "`include_usage`; padding and usage in every chunk are refused",
    ),
    (
        "structured_outputs",
        "ct",
        r#"{"regex":"a+"}"#,
        "one of `json`, `regex`, `choice`, `grammar`, `json_object`, `structural_tag`, and how white space is",
    ),
    (
        "system",
        "m",
        r#""s""#,
        "instructions; Claude Code's attribution at its head is kept out of the prompt",
    ),
    (
        "suffix",
        "t",
        r#""s""#,
        "what follows the gap that the answer fills, in the marks that the model was taught; one that has none refuses it",
    ),
    ("temperature", "ctr", "0.5", "from 0 to 2"),
    ("temperature", "m", "0.5", "from 0 to 1"),
    (
        "thinking",
        "m",
        r#"{"type":"adaptive","display":"omitted"}"#,
        "`enabled` with a budget, `disabled`, `adaptive`; `display: omitted` leaves its text out",
    ),
    (
        "thinking_token_budget",
        "c",
        "100",
        "the most tokens of thought, where a token of the model's ends one",
    ),
    ("timeout", "ctmr", "5", "Headrace's own: seconds within which the first token must come"),
    ("tool_choice", "cmr", "", "all of the dialect's; what must be called must be offered"),
    (
        "tools",
        "cm",
        "",
        "functions and custom tools in OpenAI's dialect, custom ones in Anthropic's; those that run at a server are refused",
    ),
    ("top_k", "ctmr", "5", "-1 and 0 switch it off"),
    ("top_logprobs", "c", "0", "up to `wire.max_logprobs`, with `logprobs`"),
    ("top_p", "ctmr", "0.5", "above 0 to 1"),
    ("user", "ct", r#""u""#, "the older name of `safety_identifier`"),
    (
        "verbosity",
        "c",
        r#""low""#,
        "`low` and `high` reach templates that have it, and servers that are asked in chat, and are refused by others",
    ),
    ("background", "r", "true", "it runs without a waiting client; needs `store`"),
    ("client_metadata", "r", r#"{"a":"b"}"#, "a client's labels (Codex): accepted, and changes no answer"),
    ("conversation", "r", r#""conv_1""#, "the input continues a stored conversation, and is added to it"),
    (
        "include",
        "r",
        r#"["reasoning.encrypted_content"]"#,
        "`message.output_text.logprobs` and `reasoning.encrypted_content`; what hosted tools would give is never there",
    ),
    (
        "input",
        "r",
        "",
        "a text, or items: messages, reasoning, compactions, calls with their outputs, additional tools, references to stored items",
    ),
    ("instructions", "r", r#""s""#, "instructions of this response alone"),
    ("max_output_tokens", "r", "5", "as the model's window allows"),
    ("max_tool_calls", "r", "5", "bounds calls of hosted tools, of which there are none"),
    ("metadata", "r", r#"{"a":"b"}"#, "up to 16 labels, which the answer repeats"),
    (
        "previous_response_id",
        "r",
        r#""resp_1""#,
        "continues a stored response, or the newest one of the same WebSocket",
    ),
    (
        "prompt_cache_key",
        "r",
        r#""k""#,
        "repeated in the answer; prompts are cached by content within a tenant",
    ),
    (
        "prompt_cache_options",
        "r",
        r#"{"mode":"explicit"}"#,
        "`mode`, `ttl` of `30m`, `comparison_response_id`",
    ),
    (
        "reasoning",
        "r",
        r#"{"effort":"low"}"#,
        "`effort` as chat's `reasoning_effort`; `summary`: thoughts are shown as one",
    ),
    (
        "safety_identifier",
        "r",
        r#""s""#,
        "a label of the end user, by which traces and usage can be distinguished; the answer repeats it",
    ),
    ("store", "r", "false", "stored unless false"),
    ("stream_options", "r", r#"{"include_obfuscation":false}"#, "padding is refused"),
    (
        "text",
        "r",
        r#"{"verbosity":"low"}"#,
        "`format` holds the answer to a form; `verbosity` reaches templates that have it, and servers that are asked in chat, and is refused by others",
    ),
    (
        "tools",
        "r",
        "",
        "functions and custom tools; those that run at OpenAI's are left out and named in `skipped_tools`, or refused by `responses.skip_hosted_tools`",
    ),
    ("top_logprobs", "r", "3", "up to `wire.max_logprobs`"),
    ("truncation", "r", r#""auto""#, "`auto` leaves out the oldest turns until the rest fits"),
    ("user", "r", r#""u""#, "the older name of `safety_identifier`; the answer repeats it"),
];

/// An endpoint on the page.
struct EndpointPage {
    title: &'static str,
    endpoint: Endpoint,
    /// The endpoint's letter in [`HONOURED`].
    letter: char,
    known: KnownParameters,
    /// The vendors that document parameters of the endpoint, each with its list.
    documented: &'static [(&'static str, &'static str)],
}

const PLACES: &[EndpointPage] = &[
    EndpointPage {
        title: "POST /v1/chat/completions",
        endpoint: Endpoint::ChatCompletions,
        letter: 'c',
        known: KnownParameters::Chat,
        documented: &[("OpenAI", documented::OPENAI_CHAT), ("vLLM", documented::VLLM_CHAT)],
    },
    EndpointPage {
        title: "POST /v1/completions",
        endpoint: Endpoint::Completions,
        letter: 't',
        known: KnownParameters::Completions,
        documented: &[("OpenAI", documented::OPENAI_COMPLETIONS), ("vLLM", documented::VLLM_COMPLETIONS)],
    },
    EndpointPage {
        title: "POST /v1/messages",
        endpoint: Endpoint::Messages,
        letter: 'm',
        known: KnownParameters::Messages,
        documented: &[("Anthropic", documented::ANTHROPIC_MESSAGES)],
    },
    EndpointPage {
        title: "POST /v1/responses",
        endpoint: Endpoint::Responses,
        letter: 'r',
        known: KnownParameters::Responses,
        documented: &[("OpenAI", documented::OPENAI_RESPONSES)],
    },
];

impl EndpointPage {
    /// Every parameter that the endpoint knows, with its treatment.
    fn fates(&self) -> BTreeMap<&'static str, String> {
        let honoured = HONOURED.iter().filter(|(_, on, ..)| on.contains(self.letter));
        let honoured = honoured.map(|(name, _, _, what)| (*name, format!("honoured: {what}")));
        rows(self.known).map(|(name, accept, why)| (*name, fate(accept, why))).chain(honoured).collect()
    }

    fn documented_by(&self, name: &str) -> &'static str {
        let lists = |list: &str| list.split_whitespace().any(|listed| listed == name);
        self.documented.iter().find(|(_, list)| lists(list)).map_or("–", |(who, _)| who)
    }
}

/// Returns the page `docs/parameters.md`.
pub fn parameters_page() -> String {
    let mut page = String::from(HEAD);
    for place in PLACES {
        // Writing to a string cannot fail.
        let (title, name) = (place.title, place.endpoint.name());
        let _ = write!(
            page,
            "\n## {title}\n\nIn traces, and in what keys may use: `{name}`.\n\n| parameter | documented by | what becomes of it |\n|---|---|---|\n"
        );
        for (name, fate) in place.fates() {
            let _ =
                writeln!(page, "| `{name}` | {} | {} |", place.documented_by(name), fate.replace('|', "\\|"));
        }
    }
    page.push_str(&others::sections());
    page.push_str(RELAYED);
    page.push_str("\n| parameter | why it is refused |\n|---|---|\n");
    for (name, _, why) in DECIDED_HERE {
        let _ = writeln!(page, "| `{name}` | {why} |");
    }
    page.push_str("\n## Models whose server speaks another dialect\n\n");
    // The title of the included page is left out.
    let translation = include_str!("request/translation.md").trim_start();
    page.push_str(translation.split_once('\n').map_or("", |(_, rest)| rest.trim_start()));
    page
}

const HEAD: &str = "\
# Parameters

<!-- Generated by `headrace config parameters`; a test keeps it true. -->

Every parameter that OpenAI, Anthropic or vLLM documents, and what becomes of it. The rule is one: what could change an answer is
honoured or refused by its name, and what nobody knows is refused as `unknown_parameter`. Null is as good as absent.

The first four tables are of models whose prompts are rendered here: the embedded engine, and servers that are asked by token ids.
What holds an answer to a form or forces calls of tools needs an engine that can be held; where it cannot, it is refused by name. What
concerns thinking reaches the model as far as its template has switches for it.
";

const RELAYED: &str = "
## Models that are asked in messages

A body in the dialect of the server that answers is passed on as it came, parameters that nobody here knows included: they mean what
that server says. Only what is decided here is refused, and what is Headrace's own (`headrace`, `timeout`) stays here.
";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use headrace_wire::WireLimits;
    use headrace_wire::common::refused::AcceptedValue;
    use headrace_wire::parse;

    fn body(place: &EndpointPage) -> Value {
        match place.endpoint {
            Endpoint::Completions => json!({"model": "m", "prompt": "x"}),
            Endpoint::Responses => json!({"model": "m", "input": "x"}),
            endpoint => {
                let messages =
                    json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]);
                let mut body = json!({"model": "m", "messages": messages});
                if endpoint == Endpoint::Messages {
                    body["max_tokens"] = json!(9);
                }
                body
            }
        }
    }

    #[test]
    fn every_documented_parameter_has_its_row() {
        for place in PLACES {
            let fates = place.fates();
            let names = place.documented.iter().flat_map(|(_, list)| list.split_whitespace());
            let missing: Vec<&str> = names.filter(|name| !fates.contains_key(name)).collect();
            assert!(missing.is_empty(), "{}: {missing:?}", place.title);
        }
    }

    #[test]
    fn what_is_called_honoured_is_taken() {
        for place in PLACES {
            for (name, _, value, _) in HONOURED.iter().filter(|(_, on, ..)| on.contains(place.letter)) {
                if value.is_empty() {
                    continue;
                }
                let mut body = body(place);
                let plain =
                    parse(place.endpoint, body.to_string().as_bytes(), &WireLimits::default()).unwrap();
                body[*name] = serde_json::from_str(value).unwrap();
                match *name {
                    "top_logprobs" if place.endpoint == Endpoint::ChatCompletions => {
                        body["logprobs"] = json!(true);
                    }
                    "stream_options" if place.endpoint != Endpoint::Responses => body["stream"] = json!(true),
                    "add_generation_prompt" => body["continue_final_message"] = json!(true),
                    _ => {}
                }
                let call = parse(place.endpoint, body.to_string().as_bytes(), &WireLimits::default());
                let call = call.unwrap_or_else(|bad| panic!("{} {name}: {bad}", place.title));
                // For these parameters, the value in the table is the default.
                let usual = match place.endpoint {
                    Endpoint::Responses => &["client_metadata", "stream_options"][..],
                    _ => &["best_of", "context_management"][..],
                };
                assert_eq!(call == plain, usual.contains(name), "{} {name}", place.title);
            }
        }
    }

    #[test]
    fn what_is_called_refused_is_refused_by_its_name() {
        for place in PLACES {
            for (name, accept, _) in rows(place.known) {
                if matches!(accept, AcceptedValue::Label | AcceptedValue::Labels | AcceptedValue::Hint) {
                    continue;
                }
                let mut body = body(place);
                body[*name] = json!({"x": 1});
                let bad =
                    parse(place.endpoint, body.to_string().as_bytes(), &WireLimits::default()).unwrap_err();
                assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(*name), "unsupported_parameter"));
            }
        }
    }

    #[test]
    fn the_page_is_what_is_generated() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parameters.md");
        let page = parameters_page();
        if std::env::var_os("HEADRACE_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap();
        assert!(found == page, "docs/parameters.md is out of date: HEADRACE_BLESS=1 writes it");
    }
}
