//! Turns required or constrained tool calls into a grammar. Must not know how a grammar is compiled.

use std::borrow::Cow;
use std::cell::Cell;

use headrace_call_state::Rejection;
use headrace_catalog::{ServedModel, TokenBackend};
use headrace_domain::{
    Call, Code, Conversation, CustomInput, Endpoint, GrammarSyntax, JsonForm, Prompt, ResponseFormat, Stage,
    Tool, ToolChoice,
};
use headrace_engine_api::FormKinds;
use headrace_grammar::{GrammarFault, in_lark, loose_tool_schema, strict, tool_schema, within_json};
use headrace_prompt::{ReplyFamily, TEXT_GRAMMAR, TEXT_PATTERN};
use serde_json::{Value, json};

/// Whether tool calls of the answer may have to be constrained.
pub(crate) fn are_constrained(call: &Call) -> bool {
    matches!(&call.prompt, Prompt::Conversation(conversation)
        if !conversation.tools.is_empty() || wanted(conversation, false).is_some())
}

/// The form of an answer's tool calls.
pub(crate) struct CallForm {
    pub(crate) form: ResponseFormat,
    /// The parameter that asks for it.
    pub(crate) param: &'static str,
    /// The request does not ask for it, so an unconstrained answer is acceptable.
    pub(crate) is_optional: bool,
}

/// The form of an answer's tool calls. `None` if it is unconstrained.
///
/// If the request asks for no form, calls may still be constrained to the offered names and schemas. This needs an
/// engine with grammars, and a model that writes a mark before each call.
pub(crate) fn tool_call_form(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
) -> Result<Option<CallForm>, Rejection> {
    let Prompt::Conversation(conversation) = &call.prompt else { return Ok(None) };
    if keeps_forbidden_tools(backend, conversation) {
        // A format excludes calls by itself.
        return Ok(if call.form.is_some() { None } else { without_calls(backend) });
    }
    if !may_call(conversation) {
        return Ok(None);
    }
    // The grammar of an engine can also name markup tokens by id, which never occur in message text. Grammars for other
    // servers treat only control tokens as special, which have no text at all.
    let (own, named) = (backend.capabilities.grammars, Cell::new(false));
    let asked = wanted(conversation, call.form.is_some());
    let is_optional = asked.is_none();
    let param = asked.unwrap_or("tools");
    if is_optional && !(own && backend.replies.family.marks_json_calls()) {
        return schemas_of(conversation).map(|()| None);
    }
    let beside = call.form.as_deref().filter(|_| !is_required(conversation));
    let conversation = prepared(conversation, call.endpoint, backend, beside.is_some())?;
    let special = |mark: &str| {
        let id = backend.tokenizer.id_of(mark)?;
        let special = backend.tokenizer.is_control(id) || own && backend.tokenizer.is_markup(id);
        named.set(named.get() || special);
        special.then_some(id)
    };
    // If calls are optional, GBNF cannot express the text before them, so tags are preferred.
    let forms = backend.capabilities.forms;
    if !own
        && !forms.has(FormKinds::LARK)
        && forms.has(FormKinds::TAGS)
        && let Some(tags) = backend.replies.family.calls_as_tags(&conversation, &special)
    {
        return Ok(Some(CallForm { form: ResponseFormat::Tags(tags), param, is_optional }));
    }
    let Some(calls) = backend.replies.family.calls_as_grammar(&conversation, &special) else {
        let message = format!(
            "`{param}`: how `{}` writes calls of tools is not known, so its answers cannot be constrained to them. Leave it out.",
            model.name
        );
        return Err(Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param));
    };
    if named.get() && !own {
        let message = format!(
            "`{param}`: `{}` writes calls of tools with special tokens, which a grammar for its server cannot name. Leave it out.",
            model.name
        );
        return Err(Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param));
    }
    let text = match beside {
        None => calls,
        Some(form) => either(&calls, form)?,
    };
    let form = ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark };
    Ok(Some(CallForm { form, param, is_optional }))
}

fn may_call(conversation: &Conversation) -> bool {
    !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None
}

/// Whether the prompt shows tools that the caller forbids to call. It does if a grammar can forbid the calls: a cached
/// prefix with the tools then stays useful. The engine must have grammars of its own, which name markup tokens by id,
/// and the model must write a mark before each call. Otherwise such tools are left out of the prompt.
pub(crate) fn keeps_forbidden_tools(backend: &TokenBackend, conversation: &Conversation) -> bool {
    conversation.tool_choice == ToolChoice::None
        && !conversation.tools.is_empty()
        && backend.capabilities.grammars
        && backend.replies.family.marks_calls()
}

/// The form of an answer that calls no tools.
fn without_calls(backend: &TokenBackend) -> Option<CallForm> {
    let special = |mark: &str| {
        let id = backend.tokenizer.id_of(mark)?;
        (backend.tokenizer.is_control(id) || backend.tokenizer.is_markup(id)).then_some(id)
    };
    let text = backend.replies.family.no_calls_as_grammar(&special)?;
    let form = ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark };
    Some(CallForm { form, param: "tool_choice", is_optional: false })
}

/// Rejects the first tool whose parameters are not a JSON Schema.
fn schemas_of(conversation: &Conversation) -> Result<(), Rejection> {
    for (at, tool) in conversation.tools.iter().enumerate() {
        let Some(schema) = tool.parameters.as_ref().filter(|_| tool.custom.is_none()) else { continue };
        if let Err(fault @ GrammarFault::Invalid { .. }) = loose_tool_schema(schema) {
            return Err(invalid(at, &tool.name, &format!("{fault}.")));
        }
    }
    Ok(())
}

/// Returns whether a tool's calls are constrained to its schema, as far as a grammar can, by the grammar that an engine
/// with grammars enforces.
pub fn constrained_tools(conversation: &Conversation) -> impl Fn(&str) -> bool {
    let whole = |tool: &Tool| {
        let strict = tool.strict || matches!(tool.custom, Some(CustomInput::Form(_)));
        strict || tool.parameters.as_ref().is_none_or(|schema| loose_tool_schema(schema).is_ok())
    };
    move |name| conversation.tools.iter().find(|tool| tool.name == name).is_some_and(whole)
}

/// The parameter that requires constrained calls.
fn wanted(conversation: &Conversation, has_form: bool) -> Option<&'static str> {
    let Conversation { tools, tool_choice, one_call, .. } = conversation;
    let custom = |tool: &Tool| matches!(tool.custom, Some(CustomInput::Form(_)));
    match tool_choice {
        ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { .. } => Some("tool_choice"),
        ToolChoice::Auto | ToolChoice::None if *one_call => Some("parallel_tool_calls"),
        ToolChoice::Auto | ToolChoice::None if tools.iter().any(|tool| tool.strict || custom(tool)) => {
            Some("tools")
        }
        // An answer with a response format must not exclude calls in its place.
        ToolChoice::Auto | ToolChoice::None => has_form.then_some("tools"),
    }
}

fn is_required(conversation: &Conversation) -> bool {
    matches!(
        conversation.tool_choice,
        ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { required: true, .. }
    )
}

/// The conversation with schemas that a grammar can enforce. In a tool that is not strict, keywords that cannot be
/// enforced are left out. With `alone`, the answer consists of calls only.
fn prepared(
    conversation: &Conversation,
    endpoint: Endpoint,
    backend: &TokenBackend,
    alone: bool,
) -> Result<Conversation, Rejection> {
    let family = backend.replies.family;
    let mut prepared = conversation.clone();
    prepared.messages.clear();
    for (at, tool) in prepared.tools.iter_mut().enumerate() {
        let custom = match &tool.custom {
            Some(CustomInput::Form(form)) => Some(CustomArguments::of(form, at, family)?),
            Some(CustomInput::Text) | None => None,
        };
        tool.strict |= custom.is_some();
        let is_strict = tool.strict;
        // An engine with grammars constrains every call to its schema.
        tool.strict |= backend.capabilities.grammars;
        let own = custom.as_ref().map(|custom| Cow::Borrowed(&custom.schema));
        let Some(schema) = own.or(tool.parameters.as_ref().map(Cow::Borrowed)) else { continue };
        let is_openai = endpoint != Endpoint::Messages && tool.custom.is_none();
        if is_strict
            && is_openai
            && let Err(fault) = strict::check(&schema)
        {
            return Err(invalid(at, &tool.name, &fault.to_string()));
        }
        let fitting = if is_strict { tool_schema(&schema) } else { loose_tool_schema(&schema) };
        let mut fitting = match fitting {
            Ok(schema) => schema,
            Err(fault) if is_strict => return Err(invalid(at, &tool.name, &fault.to_string())),
            Err(fault @ GrammarFault::Invalid { .. }) => {
                return Err(invalid(at, &tool.name, &format!("{fault}.")));
            }
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

/// The arguments of a tool whose input is a constrained text, and the constraint if their schema cannot express it.
struct CustomArguments {
    schema: Value,
    beside: Option<(&'static str, String)>,
}

impl CustomArguments {
    fn of(form: &ResponseFormat, at: usize, family: ReplyFamily) -> Result<Self, Rejection> {
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
            ResponseFormat::Regex(pattern) => {
                let input = json!({"type": "string", "pattern": format!("^(?:{pattern})$")});
                let beside = (TEXT_PATTERN, in_lark(pattern).map_err(faulty)?);
                Ok(of_text(input, Some(beside)))
            }
            ResponseFormat::Choice(choices) => Ok(of_text(json!({"type": "string", "enum": choices}), None)),
            ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark } if family.holds_texts() => {
                let beside = (TEXT_GRAMMAR, within_json(text).map_err(faulty)?);
                Ok(of_text(json!({"type": "string"}), Some(beside)))
            }
            ResponseFormat::JsonObject
            | ResponseFormat::JsonSchema(_)
            | ResponseFormat::Grammar { .. }
            | ResponseFormat::Tags(_) => {
                let reason = "calls of this model carry texts between tags, where a text of a grammar could go on over their end. \
                           Use `syntax: \"regex\"`, or a model that writes calls in JSON.";
                Err(refused_format(Code::UnsupportedParameter, at, reason))
            }
        }
    }

    /// Adds the constraint to a prepared schema.
    fn say_beside(self, fitting: &mut Value) {
        let Some((key, text)) = self.beside else { return };
        let place =
            if key == TEXT_PATTERN { fitting.pointer_mut("/properties/input") } else { Some(fitting) };
        if let Some(Value::Object(place)) = place {
            place.insert(key.to_owned(), text.into());
        }
    }
}

fn refused_format(code: Code, at: usize, reason: &str) -> Rejection {
    let param = format!("tools[{at}].custom.format");
    let kept = format!("`{param}` was refused.");
    Rejection::new(code, format!("`{param}`: {reason}")).at(Stage::Render).with_param(&param).keeping(kept)
}

/// A grammar for either calls or an answer in a format.
fn either(calls: &str, form: &ResponseFormat) -> Result<String, Rejection> {
    let schema = match form {
        ResponseFormat::JsonObject => Ok(json!({"type": "object"})),
        ResponseFormat::JsonSchema(JsonForm { schema, .. }) => {
            tool_schema(schema).map_err(|fault| fault.to_string())
        }
        ResponseFormat::Regex(_)
        | ResponseFormat::Choice(_)
        | ResponseFormat::Grammar { .. }
        | ResponseFormat::Tags(_) => {
            Err("beside tools that may be called only JSON can be asked for; set `tool_choice` to `none`"
                .to_owned())
        }
    };
    let schema = schema.map_err(|fault| {
        let message = format!("Invalid schema for response_format: {fault}.");
        let rejection =
            Rejection::new(Code::InvalidJsonSchema, message).at(Stage::Render).with_param("response_format");
        rejection.keeping("`response_format` was refused.")
    })?;
    // A grammar begins with `start`: that of the calls becomes a rule of this one.
    let calls: Vec<String> = calls
        .lines()
        .map(|line| line.replacen("start:", "only_calls:", usize::from(line.starts_with("start:"))))
        .collect();
    Ok(format!("start: only_calls | only_json\nonly_json: %json {schema}\n{}\n", calls.join("\n")))
}

fn invalid(at: usize, name: &str, fault: &str) -> Rejection {
    let param = format!("tools[{at}].function.parameters");
    let message = format!("Invalid schema for function '{name}': {fault}");
    let rejection = Rejection::new(Code::InvalidJsonSchema, message).at(Stage::Render).with_param(&param);
    rejection.keeping(format!("`{param}` was refused."))
}
