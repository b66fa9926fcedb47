//! Calls of tools that must come, or must be of a form, as a grammar. Must not know how a grammar is compiled.

use std::borrow::Cow;
use std::cell::Cell;

use headrace_domain::{
    Call, Code, Conversation, CustomInput, Endpoint, Form, GrammarSyntax, JsonForm, Prompt, Stage, Tool,
    ToolChoice,
};
use headrace_engine_api::FormKinds;
use headrace_grammar::{GrammarFault, in_lark, strict, tool_schema, within_json};
use headrace_prompt::{ReplyFamily, TEXT_GRAMMAR, TEXT_PATTERN};
use serde_json::{Value, json};

use crate::catalog::ServedModel;
use crate::lane::TokenLane;
use crate::refused::Why;

/// Whether calls may have to be held to anything.
pub(super) fn are_held(call: &Call) -> bool {
    matches!(&call.prompt, Prompt::Conversation(conversation) if wanted(conversation, false).is_some())
}

/// What an answer's calls are held to, and the parameter that asks for it; `None`: to nothing.
pub(super) fn form(
    model: &ServedModel,
    lane: &TokenLane,
    call: &Call,
) -> Result<Option<(Form, &'static str)>, Why> {
    let Prompt::Conversation(conversation) = &call.prompt else { return Ok(None) };
    let may_call = !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None;
    let Some(param) = wanted(conversation, call.form.is_some()).filter(|_| may_call) else { return Ok(None) };
    let beside = call.form.as_deref().filter(|_| !is_required(conversation));
    let conversation = prepared(conversation, call.endpoint, lane.replies.family, beside.is_some())?;
    // What is no text of a message has an id of its own in a grammar, too. Elsewhere only what has no text at all.
    let (own, named) = (lane.capabilities.grammars, Cell::new(false));
    let special = |mark: &str| {
        let id = lane.tokenizer.id_of(mark)?;
        let special = lane.tokenizer.is_control(id) || own && lane.tokenizer.is_markup(id);
        named.set(named.get() || special);
        special.then_some(id)
    };
    // Where calls may come and need not, GBNF has no words for the text before them.
    let forms = lane.capabilities.forms;
    if !own
        && !forms.has(FormKinds::LARK)
        && forms.has(FormKinds::TAGS)
        && let Some(tags) = lane.replies.family.calls_as_tags(&conversation, &special)
    {
        return Ok(Some((Form::Tags(tags), param)));
    }
    let Some(calls) = lane.replies.family.calls_as_grammar(&conversation, &special) else {
        let message = format!(
            "`{param}`: how `{}` writes calls of tools is not known, so its answers cannot be held to them. Leave it out.",
            model.name
        );
        return Err(Why::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param));
    };
    if named.get() && !own {
        let message = format!(
            "`{param}`: `{}` writes calls of tools with special tokens, which a grammar for its server cannot name. Leave it out.",
            model.name
        );
        return Err(Why::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param));
    }
    let text = match beside {
        None => calls,
        Some(form) => either(&calls, form)?,
    };
    Ok(Some((Form::Grammar { text, syntax: GrammarSyntax::Lark }, param)))
}

/// Whether the grammar of a call holds the calls of a tool to the whole of its schema, so that nothing in them can be wrong.
pub(crate) fn held(conversation: &Conversation, has_form: bool) -> impl Fn(&str) -> bool {
    let all = is_required(conversation) || has_form;
    let any = wanted(conversation, has_form).is_some();
    let whole = move |tool: &Tool| {
        let strict = tool.strict || matches!(tool.custom, Some(CustomInput::Form(_)));
        strict || all && tool.parameters.as_ref().is_none_or(|schema| tool_schema(schema).is_ok())
    };
    move |name| any && conversation.tools.iter().find(|tool| tool.name == name).is_some_and(whole)
}

/// The parameter because of which calls are held to anything.
fn wanted(conversation: &Conversation, has_form: bool) -> Option<&'static str> {
    let Conversation { tools, tool_choice, one_call, .. } = conversation;
    let custom = |tool: &Tool| matches!(tool.custom, Some(CustomInput::Form(_)));
    match tool_choice {
        ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { .. } => Some("tool_choice"),
        ToolChoice::Auto | ToolChoice::None if *one_call => Some("parallel_tool_calls"),
        ToolChoice::Auto | ToolChoice::None if tools.iter().any(|tool| tool.strict || custom(tool)) => {
            Some("tools")
        }
        // An answer of a form must not shut out calls that may come instead.
        ToolChoice::Auto | ToolChoice::None => has_form.then_some("tools"),
    }
}

fn is_required(conversation: &Conversation) -> bool {
    matches!(
        conversation.tool_choice,
        ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { required: true, .. }
    )
}

/// The conversation with schemas that can be held to. Of a tool that is not strict, one that cannot becomes any object. With
/// `alone`, an answer is calls and nothing else.
fn prepared(
    conversation: &Conversation,
    endpoint: Endpoint,
    family: ReplyFamily,
    alone: bool,
) -> Result<Conversation, Why> {
    let mut prepared = conversation.clone();
    prepared.messages.clear();
    for (at, tool) in prepared.tools.iter_mut().enumerate() {
        let custom = match &tool.custom {
            Some(CustomInput::Form(form)) => Some(CustomArguments::of(form, at, family)?),
            Some(CustomInput::Text) | None => None,
        };
        tool.strict |= custom.is_some();
        let held = tool.strict;
        let own = custom.as_ref().map(|custom| Cow::Borrowed(&custom.schema));
        let Some(schema) = own.or(tool.parameters.as_ref().map(Cow::Borrowed)) else { continue };
        let is_openai = endpoint != Endpoint::Messages && tool.custom.is_none();
        if held
            && is_openai
            && let Err(fault) = strict::check(&schema)
        {
            return Err(invalid(at, &tool.name, &fault.to_string()));
        }
        let mut fitting = match tool_schema(&schema) {
            Ok(schema) => schema,
            Err(fault) if held => return Err(invalid(at, &tool.name, &fault.to_string())),
            Err(_) => {
                tool_schema(&json!({ "type": "object" })).unwrap_or_else(|_| json!({ "type": "object" }))
            }
        };
        if let Some(custom) = custom {
            custom.say_beside(&mut fitting);
        }
        tool.parameters = Some(fitting);
    }
    if alone {
        prepared.tool_choice = match prepared.tool_choice {
            ToolChoice::Allowed { names, .. } => ToolChoice::Allowed { names, required: true },
            _ => ToolChoice::Required,
        };
    }
    Ok(prepared)
}

/// The arguments of a tool that takes a text of a form, and what is said of the text beside their schema.
struct CustomArguments {
    schema: Value,
    beside: Option<(&'static str, String)>,
}

impl CustomArguments {
    fn of(form: &Form, at: usize, family: ReplyFamily) -> Result<Self, Why> {
        let faulty = |fault: GrammarFault| {
            let code = match fault {
                GrammarFault::Unsupported { .. } => Code::UnsupportedParameter,
                _ => Code::InvalidGrammar,
            };
            refused_format(code, at, &format!("{fault}."))
        };
        let of_text = |input: Value, beside| Self {
            schema: json!({"type": "object", "properties": {"input": input}, "required": ["input"], "additionalProperties": false}),
            beside,
        };
        match form {
            Form::Regex(pattern) => {
                let input = json!({"type": "string", "pattern": format!("^(?:{pattern})$")});
                let beside = (TEXT_PATTERN, in_lark(pattern).map_err(faulty)?);
                Ok(of_text(input, Some(beside)))
            }
            Form::Choice(choices) => Ok(of_text(json!({"type": "string", "enum": choices}), None)),
            Form::Grammar { text, syntax: GrammarSyntax::Lark } if family.holds_texts() => {
                let beside = (TEXT_GRAMMAR, within_json(text).map_err(faulty)?);
                Ok(of_text(json!({"type": "string"}), Some(beside)))
            }
            Form::JsonObject | Form::JsonSchema(_) | Form::Grammar { .. } | Form::Tags(_) => {
                let why = "calls of this model carry texts between tags, where a text of a grammar could go on over their end. \
                           Use `syntax: \"regex\"`, or a model that writes calls in JSON.";
                Err(refused_format(Code::UnsupportedParameter, at, why))
            }
        }
    }

    /// Says beside a schema that was prepared what no schema says.
    fn say_beside(self, fitting: &mut Value) {
        let Some((key, text)) = self.beside else { return };
        let place =
            if key == TEXT_PATTERN { fitting.pointer_mut("/properties/input") } else { Some(fitting) };
        if let Some(Value::Object(place)) = place {
            place.insert(key.to_owned(), text.into());
        }
    }
}

fn refused_format(code: Code, at: usize, why: &str) -> Why {
    let param = format!("tools[{at}].custom.format");
    let kept = format!("`{param}` was refused.");
    Why::new(code, format!("`{param}`: {why}")).at(Stage::Render).with_param(&param).keeping(kept)
}

/// Calls, or an answer of a form.
fn either(calls: &str, form: &Form) -> Result<String, Why> {
    let schema = match form {
        Form::JsonObject => Ok(json!({"type": "object"})),
        Form::JsonSchema(JsonForm { schema, .. }) => tool_schema(schema).map_err(|fault| fault.to_string()),
        Form::Regex(_) | Form::Choice(_) | Form::Grammar { .. } | Form::Tags(_) => {
            Err("beside tools that may be called only JSON can be asked for; set `tool_choice` to `none`"
                .to_owned())
        }
    };
    let schema = schema.map_err(|why| {
        let message = format!("Invalid schema for response_format: {why}.");
        let why = Why::new(Code::InvalidJsonSchema, message).at(Stage::Render).with_param("response_format");
        why.keeping("`response_format` was refused.")
    })?;
    // A grammar begins with `start`: the one of the calls becomes a rule of this one.
    let calls: Vec<String> = calls
        .lines()
        .map(|line| line.replacen("start:", "only_calls:", usize::from(line.starts_with("start:"))))
        .collect();
    Ok(format!("start: only_calls | only_json\nonly_json: %json {schema}\n{}\n", calls.join("\n")))
}

fn invalid(at: usize, name: &str, fault: &str) -> Why {
    let param = format!("tools[{at}].function.parameters");
    let message = format!("Invalid schema for function '{name}': {fault}");
    let why = Why::new(Code::InvalidJsonSchema, message).at(Stage::Render).with_param(&param);
    why.keeping(format!("`{param}` was refused."))
}
