//! Compiles the response format of a call for the model that takes it, or says why that is impossible. Must not run on
//! the event loop.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::{ServedModel, TokenBackend};
use headrace_domain::{Call, Code, Endpoint, GrammarSyntax, JsonForm, ResponseFormat, Stage};
use headrace_engine_api::{FormKinds, FormThought, SharedGrammar};
use headrace_grammar::{FormLimits, FormOwner, GrammarFault, calls_as_gbnf, strict};

use crate::tool_call_form::{CallForm, are_constrained, tool_call_form};

/// Whether the answers of a call may have to be constrained, so that a grammar is compiled.
pub fn is_constrained(call: &Call) -> bool {
    call.form.is_some() || are_constrained(call)
}

/// The grammar of a call's answers. `None` if they are unconstrained. `prompt` is the text of its prompt.
///
/// # Errors
/// The form is invalid or too costly, or the model cannot be constrained to it. Names the parameter.
pub fn compile_grammar(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    prompt: &str,
    owner: &FormOwner<'_>,
) -> Result<Option<SharedGrammar>, Rejection> {
    let calls = tool_call_form(model, backend, call)?;
    if let Some(CallForm { form, param, is_optional: true }) = calls {
        let compiled = compile(backend, owner, thought(backend, prompt), &Arc::new(form), param);
        return match compiled {
            Err(rejection) if rejection.code == Code::FormsBusy => Err(rejection),
            // Unconstrained calls are acceptable: they are parsed and checked when they are complete.
            compiled => Ok(compiled.ok()),
        };
    }
    let (form, param) = match (calls, &call.form) {
        (Some(CallForm { form, param, .. }), _) => {
            (Arc::new(in_its_notation(model, backend, form, param)?), param)
        }
        (None, Some(form)) => (Arc::clone(form), param(call.endpoint, form)),
        (None, None) => return Ok(None),
    };
    let thought = thought(backend, prompt);
    if let Some(what) = cannot(backend, &form, thought.as_ref()) {
        let message = format!("`{param}`: what computes `{}` cannot hold an answer to {what}", model.name);
        return Err(Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param));
    }
    if let Some(ResponseFormat::JsonSchema(JsonForm { strict: true, schema, name, .. })) =
        call.form.as_deref()
        && let Err(fault) = strict::check(schema)
    {
        let message = format!("Invalid schema for {param}{}: {fault}", QuotedName(name.as_deref()));
        return Err(invalid(Code::InvalidJsonSchema, message, param));
    }
    compile(backend, owner, thought, &form, param).map(Some)
}

/// The form of calls in a notation that the model's server understands: GBNF if it does not know Lark.
fn in_its_notation(
    model: &ServedModel,
    backend: &TokenBackend,
    form: ResponseFormat,
    param: &'static str,
) -> Result<ResponseFormat, Rejection> {
    let (grammars, forms) = (backend.capabilities.grammars, backend.capabilities.forms);
    let ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark } = &form else { return Ok(form) };
    if grammars || forms.has(FormKinds::LARK) || !forms.has(FormKinds::GBNF) {
        return Ok(form);
    }
    match calls_as_gbnf(text) {
        Ok(text) => Ok(ResponseFormat::Grammar { text, syntax: GrammarSyntax::Gbnf }),
        Err(fault) => {
            let message = format!(
                "`{param}`: the server of `{}` is told the form of calls in GBNF, which cannot say all of this one: {fault}. \
                 Leave that out, or use another model.",
                model.name
            );
            Err(invalid(Code::UnsupportedParameter, message, param))
        }
    }
}

/// The part of a form that the model's server cannot enforce, with advice for the caller. `None` if it can enforce all
/// of it.
fn cannot(backend: &TokenBackend, form: &ResponseFormat, thought: Option<&FormThought>) -> Option<String> {
    if backend.capabilities.grammars {
        return None;
    }
    let (kind, name) = FormKinds::of(form);
    if backend.capabilities.forms == FormKinds::NONE {
        return Some("a format. Describe it in the prompt, or use another model.".to_owned());
    }
    if !backend.capabilities.forms.has(kind) {
        return Some(format!("{name}. Ask for another kind of format, or use another model."));
    }
    // The server applies the form from the first token, and would constrain the reasoning too.
    let thinks = thought.is_some_and(|thought| thought.is_open);
    thinks.then(|| "a format behind a thought. Switch thinking off, or use another model.".to_owned())
}

/// The reasoning that may precede the answer, if the model marks it with tokens.
fn thought(backend: &TokenBackend, prompt: &str) -> Option<FormThought> {
    let marks = backend.replies.thought?;
    let (open, close) = (backend.tokenizer.id_of(marks.open)?, backend.tokenizer.id_of(marks.close)?);
    if prompt.trim_end().ends_with(marks.close) {
        // The prompt says not to reason, or the reasoning is over.
        return None;
    }
    let between = ["\n\n", "\n"].into_iter();
    let one = |text: &str| backend.tokenizer.encode_plain(text, false).ok().filter(|ids| ids.len() == 1);
    Some(FormThought {
        open,
        close,
        is_open: marks.is_open_at_end(prompt),
        between: between.filter_map(one).flatten().collect(),
        most_ids: None,
    })
}

fn compile(
    backend: &TokenBackend,
    owner: &FormOwner<'_>,
    thought: Option<FormThought>,
    form: &Arc<ResponseFormat>,
    param: &'static str,
) -> Result<SharedGrammar, Rejection> {
    let fault = match backend.grammars.compile_behind(thought, owner, form, &FormLimits::default()) {
        Ok(grammar) => return Ok(grammar),
        Err(fault) => fault,
    };
    let (code, name) = match &**form {
        ResponseFormat::JsonSchema(form) => (Code::InvalidJsonSchema, form.name.as_deref()),
        ResponseFormat::Tags(_) => (Code::InvalidJsonSchema, None),
        ResponseFormat::JsonObject
        | ResponseFormat::Regex(_)
        | ResponseFormat::Choice(_)
        | ResponseFormat::Grammar { .. } => (Code::InvalidGrammar, None),
    };
    let what = if code == Code::InvalidJsonSchema { "schema" } else { "grammar" };
    let message = format!("Invalid {what} for {param}{}: {fault}.", QuotedName(name));
    Err(match fault {
        GrammarFault::TooLarge { .. } | GrammarFault::TooCostly { .. } => {
            invalid(Code::FormTooCostly, message, param)
        }
        GrammarFault::Busy | GrammarFault::NoMemory { .. } => {
            let message = format!("`{param}`: {fault}. Nothing was charged.");
            Rejection::new(Code::FormsBusy, message).retry_after(std::time::Duration::from_secs(1))
        }
        GrammarFault::Vocabulary { .. } => {
            invalid(Code::UnsupportedParameter, format!("`{param}`: {fault}."), param)
        }
        // The fault may repeat the caller's form, which must not be logged.
        GrammarFault::Broke { .. } => {
            tracing::error!(param, "a form could not be compiled: what compiles it broke");
            let message = format!("`{param}`: compiling it failed on this side. Nothing was charged.");
            Rejection::new(Code::RenderFailed, message)
        }
        GrammarFault::Unsupported { .. }
        | GrammarFault::Invalid { .. }
        | GrammarFault::Unsatisfiable { .. } => invalid(code, message, param),
    })
}

fn invalid(code: Code, message: String, param: &'static str) -> Rejection {
    // The message repeats words of the caller.
    let kept = format!("`{param}` was refused.");
    Rejection::new(code, message).at(Stage::Render).with_param(param).keeping(kept)
}

/// The parameter in which the caller asked for it.
fn param(endpoint: Endpoint, form: &ResponseFormat) -> &'static str {
    match (endpoint, form) {
        (Endpoint::Messages, _) => "output_config.format",
        (Endpoint::Responses, _) => "text.format",
        (_, ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_) | ResponseFormat::Tags(_)) => {
            "response_format"
        }
        (_, ResponseFormat::Regex(_) | ResponseFormat::Choice(_) | ResponseFormat::Grammar { .. }) => {
            "structured_outputs"
        }
    }
}

/// ` 'NAME'`, as OpenAI writes it.
struct QuotedName<'a>(Option<&'a str>);

impl std::fmt::Display for QuotedName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, " '{name}'"))
    }
}
