//! What an answer is held to, compiled for the model that takes the call; or why it cannot be. Must not run where others wait.

use std::sync::Arc;

use headrace_domain::{Call, Code, Endpoint, Form, JsonForm, Stage};
use headrace_engine_api::SharedGrammar;
use headrace_grammar::{Bounds, GrammarFault, strict};

use crate::catalog::ServedModel;
use crate::lane::TokenLane;
use crate::refused::Why;

/// The grammar of a call's answers; `None`: they are held to nothing.
pub(super) fn grammar(
    model: &ServedModel,
    lane: &TokenLane,
    call: &Call,
) -> Result<Option<SharedGrammar>, Why> {
    let Some(form) = &call.form else { return Ok(None) };
    let param = param(call.endpoint, form);
    if !lane.capabilities.grammars {
        let message = format!(
            "`{param}`: what computes `{}` cannot hold an answer to a format. Describe it in the prompt, or use another model.",
            model.name
        );
        return Err(Why::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param));
    }
    if let Form::JsonSchema(JsonForm { strict: true, schema, name, .. }) = &**form
        && let Err(fault) = strict::check(schema)
    {
        let message = format!("Invalid schema for {param}{}: {fault}", Named(name.as_deref()));
        return Err(invalid(Code::InvalidJsonSchema, message, param));
    }
    compile(lane, form, param).map(Some)
}

fn compile(lane: &TokenLane, form: &Arc<Form>, param: &'static str) -> Result<SharedGrammar, Why> {
    let fault = match lane.grammars.compile(form, &Bounds::default()) {
        Ok(grammar) => return Ok(grammar),
        Err(fault) => fault,
    };
    let (code, name) = match &**form {
        Form::JsonSchema(form) => (Code::InvalidJsonSchema, form.name.as_deref()),
        Form::Tags(_) => (Code::InvalidJsonSchema, None),
        Form::JsonObject | Form::Regex(_) | Form::Choice(_) | Form::Grammar { .. } => {
            (Code::InvalidGrammar, None)
        }
    };
    let what = if code == Code::InvalidJsonSchema { "schema" } else { "grammar" };
    let message = format!("Invalid {what} for {param}{}: {fault}.", Named(name));
    Err(match fault {
        GrammarFault::TooLarge { .. } | GrammarFault::TooCostly { .. } => {
            invalid(Code::FormTooCostly, message, param)
        }
        GrammarFault::Busy => {
            let message = format!("`{param}`: {fault}. Nothing was charged.");
            Why::new(Code::FormsBusy, message).retry_after(std::time::Duration::from_secs(1))
        }
        GrammarFault::Vocabulary { .. } => {
            invalid(Code::UnsupportedParameter, format!("`{param}`: {fault}."), param)
        }
        GrammarFault::Broke { detail } => {
            tracing::error!(detail, "a form could not be compiled");
            let message = format!("`{param}`: compiling it failed on this side. Nothing was charged.");
            Why::new(Code::RenderFailed, message)
        }
        GrammarFault::Unsupported { .. }
        | GrammarFault::Invalid { .. }
        | GrammarFault::Unsatisfiable { .. } => invalid(code, message, param),
    })
}

fn invalid(code: Code, message: String, param: &'static str) -> Why {
    // It repeats words of the caller.
    let kept = format!("`{param}` was refused.");
    Why::new(code, message).at(Stage::Render).with_param(param).keeping(kept)
}

/// Where the caller wrote it.
fn param(endpoint: Endpoint, form: &Form) -> &'static str {
    match (endpoint, form) {
        (Endpoint::Messages, _) => "output_config.format",
        (_, Form::JsonObject | Form::JsonSchema(_) | Form::Tags(_)) => "response_format",
        (_, Form::Regex(_) | Form::Choice(_) | Form::Grammar { .. }) => "structured_outputs",
    }
}

/// ` 'NAME'`, as OpenAI writes it.
struct Named<'a>(Option<&'a str>);

impl std::fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, " '{name}'"))
    }
}
