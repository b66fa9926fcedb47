//! Determines which parts of a conversation a template writes out unchanged, by rendering test conversations when the
//! template is compiled. Must not know tokens or the use of the results.

use headrace_domain::{Conversation, Message, Role, Tool, ToolCall, ToolChoice};
use serde_json::json;

use crate::values;

/// The text that is searched for in rendered test conversations. It contains inner white space and words at which
/// templates cut. Repeated [`WITNESS_REPEATS`] times, it is longer than any length to which templates shorten texts.
const WITNESS: &str = "Witness é  of\n\n two </think> [/THINK] <|channel|> <|END_THINKING|> #|# parts. ";
const WITNESS_REPEATS: usize = 128;
/// The same for JSON, in which quotes, backslashes and control characters are escaped.
const JSON_WITNESS: &str = "Witness é  of JSON <tool_call> ";

/// The parts that a template shows unchanged, apart from white space at their ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShownParts {
    /// A first message with instructions.
    system: bool,
    user: bool,
    assistant: bool,
    tool_result: bool,
    /// Strings in the arguments of calls.
    arguments: bool,
    /// All strings of offered tools.
    tools: bool,
    /// Any part of offered tools.
    some_of_tools: bool,
}

impl ShownParts {
    /// Determines what a template shows. `render` renders a conversation, and returns an empty text if the template
    /// rejects it.
    pub(crate) fn by(render: &dyn Fn(&Conversation) -> String) -> Self {
        let witness = WITNESS.repeat(WITNESS_REPEATS);
        let witness = witness.trim();
        let json_witness = JSON_WITNESS.repeat(WITNESS_REPEATS);
        let json_witness = json_witness.trim();
        let message = |role, content: &str| Message::text(role, content);
        let (hello, hi) = (message(Role::User, "hello"), message(Role::Assistant, "hi"));
        let call = |arguments: String| Message {
            content: None,
            tool_calls: vec![ToolCall { id: "call00001".to_owned(), name: "look".to_owned(), arguments }],
            ..message(Role::Assistant, "")
        };
        let result =
            |text: &str| Message { tool_call_id: Some("call00001".to_owned()), ..message(Role::Tool, text) };
        let count = |messages: &[&Message], witness: &str| {
            let messages = messages.iter().map(|message| (*message).clone()).collect();
            render(&Conversation { messages, ..Conversation::default() }).matches(witness).count()
        };
        let shows = |messages: &[&Message], witness: &str| count(messages, witness) > 0;
        let twice = |messages: &[&Message]| count(messages, json_witness) >= 2;
        let question = message(Role::User, witness);
        let answer = message(Role::Assistant, witness);
        let called = call(json!({ "what": json_witness, "more": [{ "deep": json_witness }] }).to_string());
        Self {
            system: shows(&[&message(Role::System, witness), &hello], witness),
            user: shows(&[&question], witness) && shows(&[&question, &hi, &hello], witness),
            assistant: shows(&[&hello, &answer, &hello], witness) && shows(&[&hello, &answer], witness),
            tool_result: shows(&[&hello, &call("{}".to_owned()), &result(witness)], witness),
            arguments: twice(&[&hello, &called, &result("done"), &hi, &hello])
                && twice(&[&hello, &called, &result("done")]),
            ..Self::tools(render, &hello, json_witness)
        }
    }

    fn tools(render: &dyn Fn(&Conversation) -> String, hello: &Message, witness: &str) -> Self {
        let places = 7;
        let parameters = json!({
            "type": "object", "title": witness, "x-other": witness,
            "properties": { "a": { "type": "string", "description": witness, "enum": [witness] } },
            "required": ["a"], "$defs": { "b": { witness: { "const": witness } } },
        });
        let tool = |parameters| Tool::function("look", Some(witness.to_owned()), Some(parameters));
        let with = |tools: Vec<Tool>| {
            render(&Conversation { messages: vec![hello.clone()], tools, ..Conversation::default() })
        };
        let text = with(vec![tool(parameters)]);
        Self {
            tools: text.matches(witness).count() >= places,
            some_of_tools: text != with(Vec::new()),
            ..Self::default()
        }
    }

    /// Whether offered tools change the prompt.
    pub(crate) const fn some_of_tools(self) -> bool {
        self.some_of_tools
    }

    /// Returns the minimum size of a prompt rendered from `conversation`, in bytes, without rendering it. It is the
    /// size of the texts that the template writes out unchanged, without white space at their ends.
    pub(crate) fn least_bytes(self, conversation: &Conversation) -> usize {
        let mut bytes = 0usize;
        for (index, message) in conversation.messages.iter().enumerate() {
            let counts = match message.role {
                Role::System => self.system && index == 0,
                Role::User => self.user,
                Role::Assistant => self.assistant,
                Role::Tool => self.tool_result,
            };
            if counts {
                bytes = bytes.saturating_add(message.content.as_deref().unwrap_or("").trim().len());
            }
            if self.arguments {
                let arguments = message.tool_calls.iter().map(|call| least_json_bytes(&call.arguments));
                bytes = arguments.fold(bytes, usize::saturating_add);
            }
        }
        if self.tools && conversation.tool_choice != ToolChoice::None {
            let mut strings = Vec::new();
            for tool in &conversation.tools {
                strings.extend(tool.description.as_deref());
                tool.parameters.iter().for_each(|parameters| values::json_strings(parameters, &mut strings));
            }
            bytes = strings.iter().map(|text| text.len()).fold(bytes, usize::saturating_add);
        }
        bytes
    }
}

/// Returns the minimum size of the strings in a JSON text, in bytes, in any notation. An escape counts as one byte.
fn least_json_bytes(json: &str) -> usize {
    let (mut bytes, mut inside) = (0usize, false);
    let mut rest = json.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => inside = !inside,
            b'\\' if inside => {
                if rest.next() == Some(b'u') {
                    rest.nth(3);
                }
                bytes = bytes.saturating_add(1);
            }
            _ => bytes = bytes.saturating_add(usize::from(inside)),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChatTemplate, SpecialTokenTexts, TemplateLimits};

    const DEMO: &str = include_str!("../tests/data/demo-template.jinja");

    fn compiled(source: &str) -> ChatTemplate {
        ChatTemplate::compile(source, &SpecialTokenTexts::default(), TemplateLimits::default()).unwrap()
    }

    #[test]
    fn what_a_template_shows_is_found_out() {
        let all = ShownParts {
            system: true,
            user: true,
            assistant: true,
            tool_result: true,
            arguments: true,
            tools: true,
            some_of_tools: true,
        };
        let plain = ShownParts { arguments: false, tools: false, some_of_tools: false, ..all };
        let each = |content: &str| format!("{{% for m in messages %}}{content}{{% endfor %}}");
        for (source, expected) in [
            (DEMO.to_owned(), ShownParts { tools: false, ..all }),
            (DEMO.to_owned() + "{{ tools | tojson }}", all),
            (each("{{ m.role }}: {{ m.content }}"), plain),
            (each("{{ m.content | trim }}"), plain),
            (each("{{ m.content.split('</think>')[-1] }}"), ShownParts::default()),
            (each("{{ m.content[:2000] }}"), ShownParts::default()),
            (
                each("{% if m.role != 'tool' %}{{ m.content }}{% endif %}"),
                ShownParts { tool_result: false, ..plain },
            ),
            (
                each("{% if loop.last %}{{ m.content }}{% endif %}"),
                ShownParts { tool_result: true, ..ShownParts::default() },
            ),
            ("{{ tools | length }}".to_owned(), ShownParts { some_of_tools: true, ..ShownParts::default() }),
            ("{{ raise_exception('never') }}".to_owned(), ShownParts::default()),
        ] {
            assert_eq!(compiled(&source).shown, expected, "{source}");
        }
    }

    #[test]
    fn a_prompt_is_never_shorter_than_is_said() {
        let (demo, text) = (compiled(&(DEMO.to_owned() + "{{ tools | tojson }}")), "  a \"b\"\n\u{1}é ");
        let call = ToolCall {
            id: "c".to_owned(),
            name: "look".to_owned(),
            arguments: json!({ text: [text, 1.5] }).to_string().replace('é', "\\u00e9"),
        };
        let tool = Tool::function(
            "look",
            Some(text.to_owned()),
            Some(json!({ "type": "object", "properties": { text: { "enum": [text] } } })),
        );
        let conversation = Conversation {
            messages: vec![
                Message::text(Role::System, text),
                Message::text(Role::User, text),
                Message { tool_calls: vec![call], ..Message::text(Role::Assistant, text) },
                Message { tool_call_id: Some("c".to_owned()), ..Message::text(Role::Tool, text) },
            ],
            tools: vec![tool],
            ..Conversation::default()
        };
        let least = demo.least_bytes(&conversation);
        assert!(least >= 9 * text.trim().len() - 2, "{least}");
        assert!(least <= demo.rendered_or_nothing(&conversation).len());
    }
}
