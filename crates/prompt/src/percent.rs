//! Python's `%` formatting of text, for Jinja2's filter `format`. Must not know templates.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

use crate::bounds::TooLong;
use crate::json;

/// One `%…` field of a pattern.
#[derive(Debug, Default)]
struct FormatField {
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    width: usize,
    precision: Option<usize>,
}

/// Returns `pattern % args`. Named fields take their values from `kwargs`.
pub(crate) fn format(
    pattern: &str,
    args: &[Value],
    kwargs: &Kwargs,
    max_bytes: usize,
) -> Result<String, Error> {
    let mut out = String::new();
    let mut args = args.iter();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let (name, after) = match after.strip_prefix('(') {
            Some(named) => {
                named.split_once(')').map(|(name, after)| (Some(name), after)).ok_or_else(incomplete)?
            }
            None => (None, after),
        };
        let (field, after) = field(after)?;
        let mut chars = after.trim_start_matches(['h', 'l', 'L']).chars();
        let kind = chars.next().ok_or_else(incomplete)?;
        rest = chars.as_str();
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match name {
            Some(name) => kwargs.get::<Value>(name)?,
            None => {
                args.next().cloned().ok_or_else(|| wrong("format: not enough arguments for the pattern"))?
            }
        };
        if field.width > max_bytes || field.precision.is_some_and(|precision| precision > max_bytes) {
            return Err(TooLong::error());
        }
        out.push_str(&written(&field, kind, &value, max_bytes)?);
        if out.len() > max_bytes {
            return Err(TooLong::error());
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn field(text: &str) -> Result<(FormatField, &str), Error> {
    let mut field = FormatField::default();
    let mut rest = text;
    while let Some(flag) = rest.chars().next().filter(|c| "-0+ #".contains(*c)) {
        match flag {
            '-' => field.left = true,
            '0' => field.zeros = true,
            '+' => field.plus = true,
            ' ' => field.space = true,
            _ => {}
        }
        rest = rest.get(1..).unwrap_or("");
    }
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = |text: &str| match text {
        "" => Ok(0),
        text => text.parse().map_err(|_| TooLong::error()),
    };
    let (width, after) = rest.split_at_checked(digits(rest)).unwrap_or((rest, ""));
    field.width = number(width)?;
    rest = after;
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = after.split_at_checked(digits(after)).unwrap_or((after, ""));
        field.precision = Some(number(precision)?);
        rest = after;
    }
    Ok((field, rest))
}

fn written(field: &FormatField, kind: char, value: &Value, max_bytes: usize) -> Result<String, Error> {
    let float = || f64::try_from(value.clone()).map_err(|_| wrong("format: a number is needed"));
    let integer = || match i128::try_from(value.clone()) {
        Ok(number) => Ok(number),
        #[allow(clippy::cast_possible_truncation, reason = "as Python cuts a float to an integer")]
        Err(_) => float().map(|number| number.trunc() as i128),
    };
    let precision = field.precision.unwrap_or(6);
    let (negative, digits) = match kind {
        's' | 'r' | 'a' => {
            let text = match (kind, value.as_str()) {
                ('s', _) | (_, None) => json::python_str(value, max_bytes)?,
                (_, Some(text)) => json::python_repr(text),
            };
            let most = field.precision.unwrap_or(usize::MAX);
            return Ok(padded(field, &text.chars().take(most).collect::<String>()));
        }
        'c' => return Ok(padded(field, &json::python_str(value, max_bytes)?)),
        'd' | 'i' | 'u' => signed(integer()?, |number| number.to_string()),
        'x' => signed(integer()?, |number| format!("{number:x}")),
        'X' => signed(integer()?, |number| format!("{number:X}")),
        'o' => signed(integer()?, |number| format!("{number:o}")),
        'f' | 'F' => {
            let number = float()?;
            (number.is_sign_negative(), format!("{:.precision$}", number.abs()))
        }
        'e' | 'E' => {
            let number = float()?;
            let text = format!("{:.precision$e}", number.abs());
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            (number.is_sign_negative(), format!("{digits}{}{sign}{exponent:0>2}", kind))
        }
        _ => return Err(wrong("format: this kind of field is not known")),
    };
    let sign = match negative {
        true => "-",
        false if field.plus => "+",
        false if field.space => " ",
        false => "",
    };
    if field.zeros && !field.left {
        let zeros = field.width.saturating_sub(sign.len()).saturating_sub(digits.len());
        return Ok(format!("{sign}{}{digits}", "0".repeat(zeros)));
    }
    Ok(padded(field, &format!("{sign}{digits}")))
}

fn signed(number: i128, write: impl Fn(u128) -> String) -> (bool, String) {
    (number < 0, write(number.unsigned_abs()))
}

fn padded(field: &FormatField, text: &str) -> String {
    let pad = " ".repeat(field.width.saturating_sub(text.chars().count()));
    if field.left { text.to_owned() + &pad } else { pad + text }
}

fn incomplete() -> Error {
    wrong("format: the pattern ends within a field")
}

fn wrong(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
