//! Tools as generators write them (Pydantic, MCP, OpenAI's and Anthropic's helpers, LangChain, zod, the AI SDK) in
//! every template.

use headrace_domain::{Conversation, Message, Role, Tool};
use serde_json::Value;

use crate::support::{compile, data, demo_source, options};

/// The ways in which chat templates of checkpoints write tools.
const FORMS: [(&str, &str); 8] = [
    (
        "type in upper case",
        "{% for t in tools %}{{ t.function.name }}{% for k, v in t.function.parameters.properties | dictsort %}{{ k ~ ':' ~ v['type'] | upper }}{% endfor %}{% endfor %}",
    ),
    (
        "description joined",
        "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}{% for k, v in t.function.parameters.properties.items() %}{{ k + ' (' + v.type + '): ' + v.description }}{% endfor %}{% endfor %}",
    ),
    (
        "required joined",
        "{% for t in tools %}{{ t.function.name }}{{ t.function.parameters.required | join(', ') }}{% for k in t.function.parameters.required %}{{ k + ' ' + t.function.parameters.properties[k].type }}{% endfor %}{% endfor %}",
    ),
    (
        "properties iterated",
        "{% for t in tools %}{{ t.function.name }}{% for k in t.function.parameters['properties'] %}{{ k }}{% if k in t.function.parameters.required %}*{% endif %}{% endfor %}{% endfor %}",
    ),
    (
        "schema as JSON",
        "{% for t in tools %}{{ t.function.name }}{{ t.function.parameters | tojson }}{% endfor %}",
    ),
    (
        "description trimmed",
        "{% for t in tools %}{{ t.function.name }}{{ t.function.description.strip() }}{% for k, v in t.function.parameters.properties | items %}{{ (v.type | string) ~ v.description | trim }}{% endfor %}{% endfor %}",
    ),
    (
        "type by type",
        "{% macro kind(s) %}{% if s.type == 'array' %}{{ 'list[' + kind(s['items']) + ']' }}{% elif s.type == 'object' %}{% if s.additionalProperties is mapping %}{{ 'dict[str, ' + kind(s.additionalProperties) + ']' }}{% else %}dict{% endif %}{% elif s.type is string %}{{ s.type }}{% elif s.type is iterable %}{{ s.type | join('|') }}{% else %}Any{% endif %}{% endmacro %}{% for t in tools %}{{ t.function.name }}{% for k, v in t.function.parameters.properties | items %}{{ k + ': ' + kind(v) }}{% endfor %}{% endfor %}",
    ),
    (
        "refuses without a type",
        "{% for t in tools %}{{ t.function.name }}{% for k, v in t.function.parameters.properties | items %}{% if not v.type %}{{ raise_exception('no type') }}{% endif %}{{ k }}{% endfor %}{% endfor %}",
    ),
];

fn tools() -> Vec<(String, Tool)> {
    let all: Vec<Value> = serde_json::from_slice(&data("generated-tools.json")).unwrap();
    let tool = |row: &Value, description: Option<String>| {
        Tool::function(row["name"].as_str().unwrap(), description, Some(row["schema"].clone()))
    };
    let mut tools: Vec<(String, Tool)> = Vec::new();
    for row in &all {
        let generator = row["generator"].as_str().unwrap();
        tools.push((generator.to_owned(), tool(row, row["description"].as_str().map(str::to_owned))));
        tools.push((format!("{generator}, no description"), tool(row, None)));
    }
    tools.push(("no parameters".to_owned(), Tool::function("nothing", None, None)));
    tools
}

fn templates() -> Vec<(String, String)> {
    let recorded: Value = serde_json::from_slice(&data("templates.json")).unwrap();
    let recorded = recorded["templates"].as_object().unwrap();
    let recorded = recorded.iter().map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned()));
    let forms = FORMS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    recorded.chain(forms).chain([("demo".to_owned(), demo_source())]).collect()
}

#[test]
fn every_generated_tool_is_written_by_every_template() {
    let tools = tools();
    assert!(tools.len() > 100);
    for (name, source) in templates() {
        let template = compile(&source, &["<|im_start|>", "<|im_end|>"]);
        for (generator, tool) in &tools {
            let conversation = Conversation {
                messages: vec![Message::text(Role::User, "hi")],
                tools: vec![tool.clone()],
                ..Conversation::default()
            };
            let rendered = template.render(&conversation, &options(true));
            let text = rendered.unwrap_or_else(|error| panic!("{name}, {generator}: {error}")).into_text();
            assert_eq!(text.contains(&tool.name), template.shows_tools(), "{name}, {generator}: {text}");
        }
    }
}

/// A template that can write a schema as sent receives it unchanged.
#[test]
fn a_template_that_can_write_a_schema_gets_it_as_it_came() {
    let template = compile("{% for t in tools %}{{ t | tojson }}{% endfor %}", &[]);
    let schema = serde_json::json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": ["object", "null"]}}});
    let conversation = Conversation {
        messages: vec![Message::text(Role::User, "hi")],
        tools: vec![Tool::function("t", None, Some(schema.clone()))],
        ..Conversation::default()
    };
    let text = template.render(&conversation, &options(true)).unwrap().into_text();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["function"]["parameters"], schema);
}

#[test]
fn the_demo_template_names_types_and_values() {
    let schema = serde_json::json!({
        "$defs": {"Unit": {"enum": ["c", "f"], "type": "string"}},
        "properties": {
            "unit": {"$ref": "#/$defs/Unit", "default": "c"},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null},
        },
        "type": "object",
    });
    let conversation = Conversation {
        messages: vec![Message::text(Role::User, "hi")],
        tools: vec![Tool::function("look", Some("Looks.".to_owned()), Some(schema))],
        ..Conversation::default()
    };
    let text = compile(&demo_source(), &[]).render(&conversation, &options(true)).unwrap().into_text();
    let line = r#"{"name": "look", "arguments": {"unit": "c|f", "days": "integer"}} Looks."#;
    assert!(text.contains(line), "{text}");
}
