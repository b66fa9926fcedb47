//! The environment that `transformers` gives to chat templates: filters, functions and methods that behave as in
//! Python, within limits. Must not know conversations.

use std::fmt;
use std::sync::Arc;

use headrace_domain::UnixNanos;
use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Template, UndefinedBehavior};

use crate::bounds::{CAP, TemplateLimits, TooLong, count};
use crate::builtins;
use crate::filters;
use crate::json::{self, DumpStyle};
use crate::mask::MaskTable;
use crate::strings;

/// The maximum nesting depth of macros that call each other.
const MAX_RECURSION: usize = 100;

/// The source of an engine error for a template's `raise_exception`.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The name of the template in its environment.
const NAME: &str = "chat_template";

/// A template in its environment.
pub(crate) struct CompiledTemplate {
    environment: Environment<'static>,
    pub(crate) max_output_bytes: usize,
}

impl CompiledTemplate {
    pub(crate) fn new(source: String, limits: TemplateLimits, masks: &Arc<MaskTable>) -> Result<Self, Error> {
        let mut environment = new(limits, Arc::clone(masks));
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment, max_output_bytes: limits.max_output_bytes })
    }

    pub(crate) fn template(&self) -> Result<Template<'_, '_>, Error> {
        self.environment.get_template(NAME)
    }

    /// Returns the syntax of the template.
    pub(crate) fn syntax(&self) -> &SyntaxConfig {
        self.environment.syntax()
    }
}

/// Creates an environment like `transformers`' sandbox: no loader, no auto-escaping, blocks trimmed.
fn new(limits: TemplateLimits, masks: Arc<MaskTable>) -> Environment<'static> {
    let max_bytes = limits.max_output_bytes;
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_formatter(move |out, state, value| match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Number => {
            let text = json::python_str(value, max_bytes)?;
            count(text.len(), max_bytes)?;
            out.write_str(&text).map_err(|_| Error::from(ErrorKind::WriteFailure))
        }
        _ => {
            count(value.as_str().map_or(0, str::len), max_bytes)?;
            minijinja::escape_formatter(out, state, value)
        }
    });
    let table = Arc::clone(&masks);
    environment.set_unknown_method_callback(move |state, value, method, args| {
        strings::call(state, value, method, args, &table, max_bytes)
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("items", items);
    environment.add_filter(CAP, move |value: &Value| cap(value, max_bytes).map(|()| value.clone()));
    environment.add_filter("string", move |value: &Value| json::python_str(value, max_bytes));
    filters::add(&mut environment, &masks, max_bytes);
    builtins::add(&mut environment, &masks, max_bytes);
    let table = Arc::clone(&masks);
    environment.add_filter("trim", move |text: &Value, chars: Option<&str>| {
        strings::trim(&json::python_str(text, max_bytes)?, chars, &table)
    });
    let table = Arc::clone(&masks);
    environment.add_filter("replace", move |text: &Value, old: &str, new: &str, count: Option<usize>| {
        strings::replace(&json::python_str(text, max_bytes)?, old, new, count, &table, max_bytes)
    });
    environment
        .add_filter("tojson", move |value: &Value, args: Kwargs| tojson(value, &args, &masks, max_bytes));
    environment
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

/// Returns `strftime_now`: Python's `datetime.now().strftime(format)`, in UTC.
pub(crate) fn strftime_now(now: UnixNanos) -> Value {
    Value::from_function(move |format: &str| {
        let fail =
            |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
        let now = Timestamp::from_nanosecond(i128::from(now.get())).map_err(fail)?.to_zoned(TimeZone::UTC);
        strtime::format(format, &now).map_err(fail)
    })
}

/// Fails for a value that exceeded the limit. Without this check, `x ~ x`, stored and repeated, doubles a text within a
/// few instructions.
fn cap(value: &Value, max_bytes: usize) -> Result<(), Error> {
    let within = |value: &Value| {
        let size = value.as_str().map(str::len).or_else(|| value.len());
        size.is_none_or(|size| size <= max_bytes)
    };
    let parts = value.is_tuple().then(|| value.try_iter().ok()).flatten();
    let fits = within(value) && parts.into_iter().flatten().all(|part| within(&part));
    if fits { Ok(()) } else { Err(TooLong::error()) }
}

/// Jinja's `items`. Returns an empty list for an undefined value.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    minijinja::filters::items(value)
}

/// `transformers`' `tojson`: `json.dumps` without HTML escaping. The output is ASCII only if `ensure_ascii` is set.
fn tojson(value: &Value, args: &Kwargs, masks: &MaskTable, max_bytes: usize) -> Result<String, Error> {
    let ascii = args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = args.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    let sort_keys = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    args.assert_all_used()?;
    let indent = match indent {
        None => None,
        Some(indent) => match (indent.as_str(), usize::try_from(indent.clone())) {
            (Some(text), _) => Some(text.to_owned()),
            (None, Ok(spaces)) if spaces <= max_bytes => Some(" ".repeat(spaces)),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson: indent must be a number within the output limit, or text",
                ));
            }
        },
    };
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: two separators are needed")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = DumpStyle { ascii, indent, sort_keys, item_separator, key_separator };
    json::dumps(value, &style, masks, max_bytes)
}
