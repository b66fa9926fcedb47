//! Python's string methods, which templates use heavily. They compare without regard to masks, so a template finds in a
//! message what it would find without masks. Must not know the purpose of the masks.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use crate::bounds::TooLong;
use crate::mask::MaskTable;

/// Calls `method` on `value`. The string methods that compare are implemented here, all others by the engine.
pub(crate) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
    masks: &MaskTable,
    max_bytes: usize,
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        let text = MaskedText { text, masks };
        if let Some(result) = text.call(method, args, max_bytes) {
            return result;
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// A string that is searched without regard to masks.
struct MaskedText<'a> {
    text: &'a str,
    masks: &'a MaskTable,
}

impl<'a> MaskedText<'a> {
    fn call(&self, method: &str, args: &[Value], max_bytes: usize) -> Option<Result<Value, Error>> {
        Some(match method {
            "startswith" | "endswith" => self.affix(args, method == "startswith"),
            "removeprefix" | "removesuffix" => self.remove_affix(args, method == "removeprefix"),
            "split" => self.split(args, false),
            "rsplit" => self.split(args, true),
            "partition" | "rpartition" => self.partition(args, method == "rpartition"),
            "find" | "rfind" | "index" | "rindex" => self.find(method, args),
            "count" => from_args(args).map(|(what,): (&str,)| Value::from(self.matches(what).len())),
            "replace" => self.replace(args, max_bytes),
            "strip" => self.strip(args, true, true),
            "lstrip" => self.strip(args, true, false),
            "rstrip" => self.strip(args, false, true),
            _ => return None,
        })
    }

    /// Returns the byte length of `prefix` in `text` if `text` begins with it.
    fn prefix(&self, text: &str, prefix: &str) -> Option<usize> {
        let mut chars = text.chars();
        let mut length = 0usize;
        for wanted in prefix.chars() {
            let c = chars.next()?;
            if self.masks.fold_char(c) != self.masks.fold_char(wanted) {
                return None;
            }
            length = length.saturating_add(c.len_utf8());
        }
        Some(length)
    }

    fn suffix(&self, suffix: &str) -> Option<usize> {
        let skip = self.text.chars().count().checked_sub(suffix.chars().count())?;
        let start = self.text.char_indices().nth(skip).map_or(self.text.len(), |(at, _)| at);
        self.prefix(self.text.get(start..)?, suffix).map(|_| start)
    }

    /// Returns the occurrences of `what` as byte ranges that do not overlap, from the left. An empty `what` occurs
    /// between all characters.
    fn matches(&self, what: &str) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut from = 0;
        let ends = self.text.char_indices().map(|(at, _)| at).chain([self.text.len()]);
        for at in ends {
            if at < from {
                continue;
            }
            if let Some(length) = self.text.get(at..).and_then(|rest| self.prefix(rest, what)) {
                found.push((at, at.saturating_add(length)));
                from = at.saturating_add(length.max(1));
            }
        }
        found
    }

    fn matches_from_right(&self, what: &str, limit: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut until = self.text.len();
        for (at, _) in self.text.char_indices().rev() {
            if found.len() >= limit {
                break;
            }
            let end = self.text.get(at..until).and_then(|rest| self.prefix(rest, what));
            if let Some(length) = end {
                found.push((at, at.saturating_add(length)));
                until = at;
            }
        }
        found.reverse();
        found
    }

    fn slice(&self, from: usize, to: usize) -> &'a str {
        self.text.get(from..to).unwrap_or("")
    }

    fn affix(&self, args: &[Value], front: bool) -> Result<Value, Error> {
        let (affix,): (&Value,) = from_args(args)?;
        let stands = |affix: &str| {
            if front { self.prefix(self.text, affix).is_some() } else { self.suffix(affix).is_some() }
        };
        if let Some(affix) = affix.as_str() {
            return Ok(Value::from(stands(affix)));
        }
        if !matches!(affix.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Err(wrong("a string or a tuple of strings is needed"));
        }
        for affix in affix.try_iter()? {
            if stands(affix.as_str().ok_or_else(|| wrong("the tuple must hold strings only"))?) {
                return Ok(Value::from(true));
            }
        }
        Ok(Value::from(false))
    }

    fn remove_affix(&self, args: &[Value], front: bool) -> Result<Value, Error> {
        let (affix,): (&str,) = from_args(args)?;
        let rest = if front {
            self.prefix(self.text, affix).map(|length| self.slice(length, self.text.len()))
        } else {
            self.suffix(affix).map(|start| self.slice(0, start))
        };
        Ok(Value::from(rest.unwrap_or(self.text)))
    }

    fn split(&self, args: &[Value], from_right: bool) -> Result<Value, Error> {
        let (separator, limit): (Option<Value>, Option<i64>) = from_args(args)?;
        let limit = limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let Some(separator) = separator.filter(|separator| !separator.is_none()) else {
            return Ok(self.split_space(limit, from_right));
        };
        let separator = separator.as_str().ok_or_else(|| wrong("the separator must be a string"))?;
        if separator.is_empty() {
            return Err(wrong("empty separator"));
        }
        let found =
            if from_right { self.matches_from_right(separator, limit) } else { self.matches(separator) };
        let mut from = 0;
        let mut pieces = Vec::with_capacity(found.len().saturating_add(1));
        for (start, end) in found.into_iter().take(limit) {
            pieces.push(Value::from(self.slice(from, start)));
            from = end;
        }
        pieces.push(Value::from(self.slice(from, self.text.len())));
        Ok(Value::from(pieces))
    }

    fn split_space(&self, limit: usize, from_right: bool) -> Value {
        let mut pieces = Vec::new();
        let mut rest = self.text.trim();
        while !rest.is_empty() {
            let cut = if pieces.len() >= limit {
                None
            } else if from_right {
                rest.rfind(char::is_whitespace)
            } else {
                rest.find(char::is_whitespace)
            };
            let Some(at) = cut else {
                pieces.push(Value::from(rest));
                break;
            };
            let (left, right) = rest.split_at(at);
            if from_right {
                pieces.push(Value::from(right.trim_start()));
                rest = left.trim_end();
            } else {
                pieces.push(Value::from(left));
                rest = right.trim_start();
            }
        }
        if from_right {
            pieces.reverse();
        }
        Value::from(pieces)
    }

    fn partition(&self, args: &[Value], from_right: bool) -> Result<Value, Error> {
        let (separator,): (&str,) = from_args(args)?;
        let found = if from_right {
            self.matches_from_right(separator, 1).pop()
        } else {
            self.matches(separator).into_iter().next()
        };
        let parts = match (found, from_right) {
            (Some((start, end)), _) => {
                [self.slice(0, start), self.slice(start, end), self.slice(end, self.text.len())]
            }
            (None, false) => [self.text, "", ""],
            (None, true) => ["", "", self.text],
        };
        Ok(Value::from(Tuple::from(parts.map(Value::from))))
    }

    fn find(&self, method: &str, args: &[Value]) -> Result<Value, Error> {
        let (what,): (&str,) = from_args(args)?;
        let found = if method.starts_with('r') {
            self.matches_from_right(what, 1).pop()
        } else {
            self.matches(what).into_iter().next()
        };
        match found {
            Some((start, _)) => Ok(Value::from(self.slice(0, start).chars().count())),
            None if method.ends_with("index") => Err(wrong("substring not found")),
            None => Ok(Value::from(-1)),
        }
    }

    fn replace(&self, args: &[Value], max_bytes: usize) -> Result<Value, Error> {
        let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
        let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        self.replaced(old, new, count, max_bytes).map(Value::from)
    }

    fn replaced(&self, old: &str, new: &str, count: usize, max_bytes: usize) -> Result<String, Error> {
        let mut out = String::new();
        let mut from = 0;
        for (start, end) in self.matches(old).into_iter().take(count) {
            out.push_str(self.slice(from, start));
            out.push_str(new);
            from = end;
            if out.len() > max_bytes {
                return Err(TooLong::error());
            }
        }
        out.push_str(self.slice(from, self.text.len()));
        Ok(out)
    }

    fn strip(&self, args: &[Value], front: bool, back: bool) -> Result<Value, Error> {
        let (chars,): (Option<&str>,) = from_args(args)?;
        let strips = |c: char| match chars {
            Some(chars) => {
                chars.chars().any(|wanted| self.masks.fold_char(wanted) == self.masks.fold_char(c))
            }
            None => python_space(c),
        };
        let text = if front { self.text.trim_start_matches(strips) } else { self.text };
        Ok(Value::from(if back { text.trim_end_matches(strips) } else { text }))
    }
}

/// Whether Python's `str.strip` removes `c`.
fn python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The filter `trim`, with Python's definition of white space.
pub(crate) fn trim(text: &str, chars: Option<&str>, masks: &MaskTable) -> Result<Value, Error> {
    let args: Vec<Value> = chars.map(Value::from).into_iter().collect();
    MaskedText { text, masks }.strip(&args, true, true)
}

/// The filter `replace`.
pub(crate) fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
    masks: &MaskTable,
    max_bytes: usize,
) -> Result<String, Error> {
    MaskedText { text, masks }.replaced(old, new, count.unwrap_or(usize::MAX), max_bytes)
}

fn wrong(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
