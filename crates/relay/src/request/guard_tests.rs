//! Extras and addresses that are recorded in bodies of both dialects, and parameters that are refused because the
//! gateway decides them.

use bytes::Bytes;
use headrace_domain::{Call, ConcernKind, Endpoint, FieldConcern, Prompt, RelayedBody};
use serde_json::{Value, json};

use super::{place_of, skim};
use headrace_wire::{BadRequest, WireLimits};

fn read(endpoint: Endpoint, body: &str) -> Result<Call, BadRequest> {
    skim(endpoint, Bytes::copy_from_slice(body.as_bytes()), &WireLimits::default())
}

fn relayed(endpoint: Endpoint, more: &Value) -> RelayedBody {
    let mut body = json!({"model": "m", "max_tokens": 5});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    match read(endpoint, &body.to_string()).unwrap_or_else(|bad| panic!("{bad} of {more}")).prompt {
        Prompt::Relayed(relayed) => relayed,
        _ => panic!("a body that is sent on"),
    }
}

/// Each concern as text, with its path.
fn concerns(endpoint: Endpoint, more: &Value) -> Vec<String> {
    let relayed = relayed(endpoint, more);
    let word = |concern: &FieldConcern| {
        let place = place_of(&relayed.body, concern.at);
        match &concern.ask {
            ConcernKind::Extra { name, value: None } => format!("{name} at {place}"),
            ConcernKind::Extra { name, value: Some(value) } => format!("{name} {value} at {place}"),
            ConcernKind::WebSearch { most } => format!("search {most:?} at {place}"),
            ConcernKind::Url(url) => format!("{url} at {place}"),
        }
    };
    relayed.concerns.iter().map(word).collect()
}

#[test]
fn what_costs_extra_is_noted_by_its_field() {
    let tool = |kind: &str| json!({"tools": [{"type": "function", "function": {"name": "f"}}, {"type": kind, "name": "x"}]});
    let noted = |name: &str| vec![format!("{name} at tools[1].type")];
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
        for (kind, name) in [
            ("web_search", "web_search"),
            ("web_search_preview", "web_search"),
            ("web_search_preview_2025_03_11", "web_search"),
            ("web_fetch_20250910", "web_fetch"),
            ("code_execution_20250522", "code_execution"),
            ("code_interpreter", "code_execution"),
            ("computer_use_preview", "computer_use"),
            ("file_search", "file_search"),
            ("image_generation", "image_generation"),
            ("mcp", "mcp"),
            ("mcp_toolset", "mcp"),
            ("shell", "shell"),
            ("tool_search_tool_bm25", "tool_search"),
            ("browser_search", "unknown_tools"),
            ("Function", "unknown_tools"),
            ("", "unknown_tools"),
        ] {
            assert_eq!(concerns(endpoint, &tool(kind)), noted(name), "{kind}");
        }
        for kind in [
            "function",
            "custom",
            "local_shell",
            "bash_20250124",
            "computer_20250124",
            "text_editor_20250728",
        ] {
            assert_eq!(concerns(endpoint, &tool(kind)), [""; 0], "{kind}");
        }
        let nested = json!({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp", "server_url": "https://x.example"}]}]});
        assert_eq!(
            concerns(endpoint, &nested),
            ["https://x.example at tools[0].tools[0].server_url", "mcp at tools[0].tools[0].type"]
        );
        assert_eq!(
            concerns(endpoint, &json!({"tools": [{"google_search": {}}]})),
            ["unknown_tools at tools[0]"]
        );
        assert_eq!(concerns(endpoint, &json!({"tools": [{"name": "f", "input_schema": {}}]})), [""; 0]);
    }
    let search = |more: Value| concerns(Endpoint::Messages, &json!({"tools": [more]}));
    assert_eq!(
        search(json!({"type": "web_search_20250305", "max_uses": 3})),
        ["search Some(3) at tools[0].type"]
    );
    assert_eq!(
        search(json!({"max_uses": null, "type": "web_search_20250305"})),
        ["search None at tools[0].type"]
    );
    assert_eq!(
        search(json!({"max_uses": 1.5, "type": "web_search_20250305"})),
        ["search None at tools[0].type"]
    );
    for (endpoint, more, noted) in [
        (Endpoint::ChatCompletions, json!({"web_search_options": {}}), "web_search at web_search_options"),
        (Endpoint::ChatCompletions, json!({"modalities": ["text", "audio"]}), "audio at modalities"),
        (Endpoint::ChatCompletions, json!({"audio": {"voice": "x"}}), "audio at audio"),
        (Endpoint::ChatCompletions, json!({"prediction": {"content": "x"}}), "prediction at prediction"),
        (
            Endpoint::ChatCompletions,
            json!({"service_tier": "priority"}),
            "service_tier priority at service_tier",
        ),
        (Endpoint::ChatCompletions, json!({"store": true}), "store at store"),
        (Endpoint::ChatCompletions, json!({"plugins": [{"id": "web"}]}), "plugins at plugins"),
        (Endpoint::Responses, json!({"background": true}), "background at background"),
        (Endpoint::Responses, json!({"prompt": {"id": "p"}}), "prompt at prompt"),
        (Endpoint::Messages, json!({"speed": "fast"}), "speed at speed"),
        (Endpoint::Messages, json!({"inference_geo": "us"}), "inference_geo us at inference_geo"),
        (Endpoint::Messages, json!({"container": "c"}), "container at container"),
        (Endpoint::Messages, json!({"service_tier": 5}), "service_tier at service_tier"),
    ] {
        assert_eq!(concerns(endpoint, &more), [noted], "{more}");
    }
    let mcp = json!({"mcp_servers": [{"type": "url", "name": "x", "url": "https://x.example/"}]});
    assert_eq!(
        concerns(Endpoint::Messages, &mcp),
        ["https://x.example/ at mcp_servers[0].url", "mcp at mcp_servers"]
    );
    for nothing in [
        json!({"service_tier": "auto"}),
        json!({"service_tier": null, "speed": "standard", "mcp_servers": [], "container": null}),
        json!({"modalities": ["text"], "store": false, "background": false, "audio": null, "web_search_options": null}),
        json!({"service_tier": "flex"}),
    ] {
        assert_eq!(concerns(Endpoint::ChatCompletions, &nothing), [""; 0], "{nothing}");
    }
}

#[test]
fn addresses_are_noted_wherever_a_server_would_fetch_them() {
    let url = "http://169.254.169.254/x";
    let part = |part: Value| json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]});
    for (part_of, place) in [
        (json!({"type": "image_url", "image_url": {"url": url}}), "image_url.url"),
        (json!({"type": "image_url", "image_url": url}), "image_url"),
        (json!({"image_url": url}), "image_url"),
        (json!({"type": "audio_url", "audio_url": {"url": url}}), "audio_url.url"),
        (json!({"type": "video_url", "video_url": {"url": url}}), "video_url.url"),
        (json!({"type": "input_image", "image_url": url}), "image_url"),
        (json!({"type": "input_file", "file_url": url}), "file_url"),
        (json!({"type": "input_file", "file_data": url}), "file_data"),
        (json!({"type": "file", "file": {"file_data": url}}), "file.file_data"),
        (json!({"type": "file", "file": {"file_url": url}}), "file.file_url"),
        (json!({"type": "file", "file": {"deep": [{"a": url}]}}), "file.deep[0].a"),
        (json!({"type": "image", "source": {"type": "url", "url": url}}), "source.url"),
        (json!({"type": "document", "source": {"url": url, "type": "url"}}), "source.url"),
        (
            json!({"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {"url": url}}]}}),
            "source.content[0].source.url",
        ),
        (
            json!({"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}),
            "content[0].source.url",
        ),
        (json!({"type": "input_audio", "input_audio": {"data": url}}), "input_audio.data"),
        (json!({"type": "video", "video": ["data:video/mp4;base64,AA", url]}), "video[1]"),
        (json!({"type": "x", "new_field": {"y": [url]}}), "new_field.y[0]"),
        (json!({"type": "x", "url": url}), "url"),
    ] {
        let found = concerns(Endpoint::ChatCompletions, &part(part_of.clone()));
        assert_eq!(found, [format!("{url} at messages[0].content[1].{place}")], "{part_of}");
    }
    for (endpoint, more, place) in [
        (Endpoint::ChatCompletions, json!({"images": [url]}), "images[0]"),
        (Endpoint::ChatCompletions, json!({"mm_data": {"image": url}}), "mm_data.image"),
        (Endpoint::Embeddings, json!({"input": [{"image": url}]}), "input[0].image"),
        (
            Endpoint::Rerank,
            json!({"documents": [{"content": [{"image_url": {"url": url}}]}]}),
            "documents[0].content[0].image_url.url",
        ),
        (
            Endpoint::Responses,
            json!({"input": [{"type": "computer_call_output", "output": {"image_url": url}}]}),
            "input[0].output.image_url",
        ),
    ] {
        assert_eq!(concerns(endpoint, &more), [format!("{url} at {place}")], "{more}");
    }
    let image = |url: &str| {
        concerns(Endpoint::ChatCompletions, &part(json!({"type": "image_url", "image_url": {"url": url}})))
    };
    for bad in ["file:///etc/passwd", "/etc/passwd", "gopher://h", "\u{1}http://h", "javascript:x", "AAAA"] {
        assert_eq!(image(bad).len(), 1, "{bad}");
    }
    for good in ["data:image/png;base64,AA", "DATA:image/png,x", " data:image/png,x"] {
        assert_eq!(image(good), [""; 0], "{good}");
    }
    // No server fetches addresses in texts, schemas, arguments, labels and citations of earlier answers.
    let schema =
        json!({"type": "object", "$schema": url, "properties": {"url": {"type": "string", "default": url}}});
    for none in [
        part(json!({"type": "text", "text": url})),
        part(
            json!({"type": "text", "text": "x", "citations": [{"url": url}], "annotations": [{"url": url}]}),
        ),
        part(json!({"type": "web_search_result", "url": url, "title": url})),
        part(json!({"type": "search_result", "source": url, "content": [{"type": "text", "text": url}]})),
        part(json!({"type": "tool_use", "id": "t", "name": "f", "input": {"image_url": url}})),
        json!({"tools": [{"name": "f", "input_schema": schema, "description": url, "input_examples": [{"url": url}]}]}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        json!({"metadata": {"url": url}, "user": url}),
        json!({"documents": [url, {"text": url}], "query": url, "suffix": url, "instructions": url}),
        json!({"messages": [{"role": "assistant", "content": "x", "reasoning_details": [{"text": url}]}]}),
        part(json!({"type": "new", "deep": {"text": url, "content": url}})),
        json!({"messages": [{"role": "assistant", "content": url, "annotations": [{"url_citation": {"url": url}}],
            "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": format!("{{\"url\":\"{url}\"}}")}}]}]}),
    ] {
        assert_eq!(concerns(Endpoint::ChatCompletions, &none), [""; 0], "{none}");
    }
    let many: Vec<Value> = (0..65).map(|_| json!({"type": "image_url", "image_url": url})).collect();
    let body = json!({"model": "m", "messages": [{"role": "user", "content": many}]}).to_string();
    assert_eq!(read(Endpoint::ChatCompletions, &body).unwrap_err().code.name(), "array_above_max_length");
}

#[test]
fn what_the_gateway_decides_is_refused_by_name() {
    for (more, param) in [
        (json!({"chat_template": "{{ x }}"}), "chat_template"),
        (json!({"chat_template_kwargs": {"chat_template": "x"}}), "chat_template_kwargs.chat_template"),
        (json!({"chat_template_kwargs": {"tokenize": true}}), "chat_template_kwargs.tokenize"),
        (json!({"chat_template_kwargs": {"truncation": true}}), "chat_template_kwargs.truncation"),
        (json!({"request_id": "other"}), "request_id"),
        (json!({"rid": "other"}), "rid"),
        (json!({"lora_request": "x"}), "lora_request"),
        (json!({"lora_path": "x"}), "lora_path"),
        (json!({"vllm_xargs": {"a": "b"}}), "vllm_xargs"),
        (json!({"mm_processor_kwargs": {"x": 1}}), "mm_processor_kwargs"),
        (json!({"media_io_kwargs": {"x": 1}}), "media_io_kwargs"),
        (json!({"logits_processors": ["os.system"]}), "logits_processors"),
        (json!({"custom_logit_processor": "x"}), "custom_logit_processor"),
        (json!({"kv_transfer_params": {"remote_host": "h"}}), "kv_transfer_params"),
        (json!({"priority": -1}), "priority"),
        (json!({"id_slot": 0}), "id_slot"),
        (json!({"prompt_embeds": "x"}), "prompt_embeds"),
        (
            json!({"messages": [{"content": [{"type": "image_embeds", "image_embeds": "x"}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"messages": [{"content": [{"image_embeds": "x"}]}]}), "messages[0].content[0].image_embeds"),
        (json!({"best_of": 20}), "best_of"),
    ] {
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
            let mut body = json!({"model": "m", "max_tokens": 5});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let bad = read(endpoint, &body.to_string()).unwrap_err();
            assert_eq!(bad.param.as_deref(), Some(param), "{bad}");
        }
    }
    let kept = json!({"chat_template": null, "chat_template_kwargs": {"enable_thinking": true}, "best_of": 1, "n": 1});
    assert_eq!(concerns(Endpoint::ChatCompletions, &kept), [""; 0]);
}

#[test]
fn a_field_is_spelled_once() {
    for (more, param) in [
        (r#""Model":"dear""#, "Model"),
        (r#""\u004dodel":"dear""#, "Model"),
        (r#""MAX_TOKENS":100000"#, "MAX_TOKENS"),
        (r#""max_toKens":100000"#, "max_to\u{212a}ens"),
        (r#""meſſages":[]"#, "meſſages"),
        (r#""N":128"#, "N"),
        (r#""Service_Tier":"priority""#, "Service_Tier"),
        (r#""Chat_Template":"x""#, "Chat_Template"),
        (r#""new_field":1,"New_Field":2"#, "New_Field"),
        (r#""messages":[{"role":"user","Content":"x"}]"#, "messages[0].Content"),
        (r#""messages":[{"role":"user","content":[{"Type":"image_url"}]}]"#, "messages[0].content[0].Type"),
        (
            r#""messages":[{"role":"user","content":[{"type":"image_url","Image_URL":"x"}]}]"#,
            "messages[0].content[0].Image_URL",
        ),
        (
            r#""messages":[{"role":"user","content":[{"image_url":{"URL":"x"}}]}]"#,
            "messages[0].content[0].image_url.URL",
        ),
        (
            r#""messages":[{"role":"assistant","tool_calls":[{"Function":{}}]}]"#,
            "messages[0].tool_calls[0].Function",
        ),
        (r#""tools":[{"Type":"web_search"}]"#, "tools[0].Type"),
        (r#""tool_choice":{"Type":"x"}"#, "tool_choice.Type"),
        (r#""stream":true,"stream_options":{"Include_Usage":false}"#, "stream_options.Include_Usage"),
    ] {
        // The Kelvin sign replaces the `K` of the row above.
        let more = more.replace("max_toKens", "max_to\u{212a}ens");
        let bad = read(Endpoint::ChatCompletions, &format!(r#"{{"model":"m",{more}}}"#)).unwrap_err();
        assert_eq!(bad.param.as_deref(), Some(param), "{more}: {bad}");
    }
    let user = r#"{"model":"m","max_tokens":5,"metadata":{"User_Id":"x"}}"#;
    assert_eq!(read(Endpoint::Messages, user).unwrap_err().param.as_deref(), Some("metadata.User_Id"));
    // Callers choose the names of these keys.
    for free in [
        r#""New_Field":1,"other":{"A":1,"a":2}"#,
        r#""tools":[{"type":"function","function":{"name":"f","parameters":{"Type":1,"Name":2}}}]"#,
        r#""messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"Name":1}}}]}]"#,
        r#""metadata":{"Model":"x"}"#,
    ] {
        read(Endpoint::ChatCompletions, &format!(r#"{{"model":"m",{free}}}"#)).unwrap();
    }
}

#[test]
fn a_place_is_named_by_its_byte() {
    let body = r#" { "a" : [ 1 , {"b\u0063":"x"} ], "d":"y" } "#;
    let at = |text: &str| place_of(body.as_bytes(), body.find(text).unwrap());
    assert_eq!(
        (at("\"x\""), at("\"y\""), at("1")),
        ("a[1].bc".to_owned(), "d".to_owned(), "a[0]".to_owned())
    );
    assert_eq!(place_of(b"[", 0), "");
    assert_eq!(place_of(b"", 7), "");
}
