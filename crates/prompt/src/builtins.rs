//! Jinja2's filters, tests and functions on values that the template engine implements differently: numbers, mappings,
//! and searches in lists. Jinja2's documentation describes them, and `tests/data/jinja2.json` contains its results.
//! Must not know conversations.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::bounds::TooLong;
use crate::filters::FilterArgs;
use crate::json;
use crate::mask::MaskTable;
use crate::pretty;

/// Adds the filters, tests and functions to an environment.
pub(crate) fn add(environment: &mut Environment<'static>, masks: &Arc<MaskTable>, max_bytes: usize) {
    environment.add_filter("attr", attribute);
    for name in ["default", "d"] {
        environment.add_filter(name, |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
            default(value, &args, &kwargs)
        });
    }
    environment.add_filter("dictsort", {
        let masks = Arc::clone(masks);
        move |value: &Value, args: Rest<Value>, kwargs: Kwargs| sort_pairs(value, &args, &kwargs, &masks)
    });
    for (name, wanted) in [("max", Ordering::Greater), ("min", Ordering::Less)] {
        environment.add_filter(name, {
            let masks = Arc::clone(masks);
            move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
                extreme(value, &args, &kwargs, wanted, &masks)
            }
        });
    }
    environment.add_filter("int", {
        let masks = Arc::clone(masks);
        move |value: &Value, args: Rest<Value>, kwargs: Kwargs| integer(value, &args, &kwargs, &masks)
    });
    environment.add_filter("float", {
        let masks = Arc::clone(masks);
        move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
            let wanted = FilterArgs { given: &args, named: &kwargs }.get(0, "default")?;
            kwargs.assert_all_used()?;
            Ok::<_, Error>(
                number(value, &masks).map_or(wanted.unwrap_or_else(|| Value::from(0.0)), Value::from),
            )
        }
    });
    environment.add_filter("indent", move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        indent(&json::python_str(value, max_bytes)?, &args, &kwargs, max_bytes)
    });
    environment.add_filter("pprint", {
        let masks = Arc::clone(masks);
        move |value: &Value| pretty::print(value, &masks, max_bytes)
    });
    environment.add_filter("urlencode", {
        let masks = Arc::clone(masks);
        move |value: &Value| url_encode(value, &masks, max_bytes)
    });
    environment.add_test("callable", callable);
    // `none` is not iterable. Published templates contain `tools is iterable and tools|length > 0`, and `tools` is
    // `none` if there are no tools.
    environment.add_test("iterable", |value: &Value| {
        value.kind() == ValueKind::String || (!value.is_none() && value.try_iter().is_ok())
    });
    environment.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Bytes => true,
        // A range knows its length, a generator does not.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    });
    environment.add_function("joiner", |between: Option<Value>| minijinja_contrib::globals::joiner(between));
    environment.add_function("cycler", |items: Rest<Value>| {
        if items.is_empty() {
            return Err(wrong("cycler: at least one item is needed"));
        }
        Ok(Value::from_object(Cycler { items: items.to_vec(), at: AtomicUsize::new(0) }))
    });
}

/// Whether a value can be called: functions, macros and joiners. Of the plain objects, only cyclers cannot be called.
fn callable(value: &Value) -> bool {
    let is_macro = value.as_object().is_some_and(|object| object.type_name().contains("Macro"));
    is_macro || (value.kind() == ValueKind::Plain && value.downcast_object_ref::<Cycler>().is_none())
}

/// Returns an attribute, never an item. A mapping has no attributes except methods, and methods are not values here.
fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    let own = value.as_object().is_some_and(|object| object.type_name().contains("Namespace"));
    if value.kind() == ValueKind::Map && !own { Ok(Value::UNDEFINED) } else { value.get_attr(name) }
}

fn default(value: &Value, args: &[Value], kwargs: &Kwargs) -> Result<Value, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let instead = args.given.first().cloned().or(kwargs.get("default_value")?);
    let also_false = args.flag(1, "boolean", false)?;
    kwargs.assert_all_used()?;
    let lacking = value.is_undefined() || (also_false && !value.is_true());
    Ok(if lacking { instead.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

/// Compares texts by their characters, without regard to case unless requested. The engine orders all other values.
fn compare(a: &Value, b: &Value, case_sensitive: bool, masks: &MaskTable) -> Ordering {
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) if case_sensitive => masks.fold(a).cmp(&masks.fold(b)),
        (Some(a), Some(b)) => masks.fold(a).to_lowercase().cmp(&masks.fold(b).to_lowercase()),
        _ => a.cmp(b),
    }
}

fn sort_pairs(value: &Value, args: &[Value], kwargs: &Kwargs, masks: &MaskTable) -> Result<Value, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let case_sensitive = args.flag(0, "case_sensitive", false)?;
    let by = args.text(1, "by")?;
    let reverse = args.flag(2, "reverse", false)?;
    kwargs.assert_all_used()?;
    let by_value = match by.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(_) => return Err(wrong("dictsort: `by` is `key` or `value`")),
    };
    let mut rows = pairs(value)?;
    rows.sort_by(|a, b| {
        let (a, b) = if by_value { (&a.1, &b.1) } else { (&a.0, &b.0) };
        let order = compare(a, b, case_sensitive, masks);
        if reverse { order.reverse() } else { order }
    });
    Ok(rows.into_iter().map(|(key, item)| Value::from(Tuple::from([key, item]))).collect())
}

fn pairs(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    if value.kind() != ValueKind::Map {
        return Err(wrong("a mapping is needed"));
    }
    value.try_iter()?.map(|key| Ok((key.clone(), value.get_item(&key)?))).collect()
}

/// Returns the first item that no other item exceeds in the order `wanted`. Compares the items or an attribute of them.
/// Undefined if there are no items.
fn extreme(
    value: &Value,
    args: &[Value],
    kwargs: &Kwargs,
    wanted: Ordering,
    masks: &MaskTable,
) -> Result<Value, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let case_sensitive = args.flag(0, "case_sensitive", false)?;
    let by = args.get(1, "attribute")?;
    kwargs.assert_all_used()?;
    let mut found: Option<(Value, Value)> = None;
    for item in value.try_iter()? {
        let key = by.as_ref().map_or(Ok(item.clone()), |path| within(&item, path))?;
        let beyond =
            found.as_ref().is_none_or(|(best, _)| compare(&key, best, case_sensitive, masks) == wanted);
        if beyond {
            found = Some((key, item));
        }
    }
    Ok(found.map_or(Value::UNDEFINED, |(_, item)| item))
}

/// Returns the value within `value` at a dotted path or at an index.
fn within(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return value.get_item(path) };
    let mut at = value.clone();
    for step in path.split('.') {
        at = match step.parse::<usize>() {
            Ok(index) => at.get_item(&Value::from(index))?,
            Err(_) => at.get_item(&Value::from(step))?,
        };
    }
    Ok(at)
}

/// Python's `int`. A text that is not an integer gives the integer part of its number.
fn integer(value: &Value, args: &[Value], kwargs: &Kwargs, masks: &MaskTable) -> Result<Value, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let instead = args.get(0, "default")?.unwrap_or_else(|| Value::from(0));
    let base = args.count(1, "base", 10)?;
    kwargs.assert_all_used()?;
    if value.is_integer() {
        return Ok(value.clone());
    }
    let read = value.as_str().and_then(|text| whole(&masks.fold(text), base));
    #[allow(clippy::cast_possible_truncation, reason = "as Python cuts a float to an integer")]
    let cut =
        || number(value, masks).filter(|number| number.is_finite()).map(|number| number.trunc() as i128);
    Ok(read.or_else(cut).map_or(instead, Value::from))
}

/// Parses digits in a base as Python does: with white space around them, `_` between two digits, and the prefix of the
/// base.
fn whole(text: &str, base: usize) -> Option<i128> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixes = [("0b", 2_u32), ("0o", 8), ("0x", 16)];
    let named = prefixes.iter().find_map(|(prefix, of)| Some((lower.strip_prefix(prefix)?, *of)));
    let (digits, base) = match (named, u32::try_from(base).ok()?) {
        (Some((rest, of)), base) if base == 0 || base == of => (rest.strip_prefix('_').unwrap_or(rest), of),
        (None, 0) => (lower.as_str(), 10),
        (_, base @ 2..=36) => (lower.as_str(), base),
        _ => return None,
    };
    let digits = without_underscores(digits)?;
    let plain = !digits.starts_with(['+', '-']);
    plain.then(|| i128::from_str_radix(&format!("{sign}{digits}"), base).ok()).flatten()
}

fn without_underscores(digits: &str) -> Option<String> {
    let stray = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!stray).then(|| digits.replace('_', ""))
}

/// Python's `float`. Returns `None` if the value is not a number.
fn number(value: &Value, masks: &MaskTable) -> Option<f64> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => without_underscores(masks.fold(text).trim())?.parse().ok(),
        (None, ValueKind::Bool) => Some(if value.is_true() { 1.0 } else { 0.0 }),
        (None, ValueKind::Number) => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn indent(text: &str, args: &[Value], kwargs: &Kwargs, max_bytes: usize) -> Result<String, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let width = args.get(0, "width")?.unwrap_or_else(|| Value::from(4));
    let (first, blank) = (args.flag(1, "first", false)?, args.flag(2, "blank", false)?);
    kwargs.assert_all_used()?;
    let indention = match width.as_str() {
        Some(text) => text.to_owned(),
        None => match i64::try_from(width)? {
            spaces @ 0.. => {
                let spaces = usize::try_from(spaces).ok().filter(|spaces| *spaces <= max_bytes);
                " ".repeat(spaces.ok_or_else(TooLong::error)?)
            }
            _ => String::new(),
        },
    };
    let mut out = if first { indention.clone() } else { String::new() };
    // Jinja2 also adds a line end, to keep the last one.
    let text = text.to_owned() + "\n";
    for (at, line) in pretty::lines(&text).into_iter().enumerate() {
        let line =
            line.strip_suffix("\r\n").unwrap_or_else(|| line.strip_suffix(pretty::ends_line).unwrap_or(line));
        if at > 0 {
            out.push('\n');
            out.push_str(if blank || !line.is_empty() { &indention } else { "" });
        }
        out.push_str(line);
        if out.len() > max_bytes {
            return Err(TooLong::error());
        }
    }
    Ok(out)
}

fn url_encode(value: &Value, masks: &MaskTable, max_bytes: usize) -> Result<String, Error> {
    let rows = match value.kind() {
        ValueKind::Map => pairs(value)?,
        ValueKind::Seq | ValueKind::Iterable => value
            .try_iter()?
            .map(|row| match row.len() {
                Some(2) => Ok((row.get_item_by_index(0)?, row.get_item_by_index(1)?)),
                _ => Err(wrong("urlencode: pairs are needed")),
            })
            .collect::<Result<_, Error>>()?,
        _ => return Ok(percent(&json::python_str(value, max_bytes)?, "/", "%20", masks)),
    };
    let mut out = String::new();
    for (key, item) in rows {
        out.push_str(if out.is_empty() { "" } else { "&" });
        out.push_str(&percent(&json::python_str(&key, max_bytes)?, "", "+", masks));
        out.push('=');
        out.push_str(&percent(&json::python_str(&item, max_bytes)?, "", "+", masks));
        if out.len() > max_bytes {
            return Err(TooLong::error());
        }
    }
    Ok(out)
}

/// Percent-encodes a text. RFC 3986's unreserved characters and those in `safe` are kept, and a mask stays a mask.
fn percent(text: &str, safe: &str, space: &str, masks: &MaskTable) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let own = masks.fold_char(c);
        if own.is_ascii_alphanumeric() || "_.-~".contains(own) || safe.contains(own) {
            out.push(c);
        } else if own == ' ' {
            out.push_str(space);
        } else {
            for byte in own.encode_utf8(&mut [0; 4]).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    out
}

/// Jinja2's `cycler`: returns its items one after another, over and over.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        let at = self.at.load(Atomic::Relaxed).checked_rem(self.items.len());
        at.and_then(|at| self.items.get(at)).cloned().unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let () = from_args(args)?;
        match method {
            "next" => {
                let current = self.current();
                self.at.fetch_add(1, Atomic::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Atomic::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

fn wrong(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
