//! Jinja2's filters that the template engine lacks or implements differently, according to Jinja2's documentation.
//! Message texts are masked, and filters that inspect them ignore the masks. Must not know conversations.

use std::sync::{Arc, LazyLock};

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use regex::Regex;

use crate::bounds::TooLong;
use crate::json;
use crate::mask::MaskTable;
use crate::percent;
use crate::wrap;

/// Adds the filters to an environment.
pub(crate) fn add(environment: &mut Environment<'static>, masks: &Arc<MaskTable>, max_bytes: usize) {
    let text = move |value: &Value| json::python_str(value, max_bytes);
    let folded = {
        let masks = Arc::clone(masks);
        move |value: &Value| Ok::<_, Error>(masks.fold(&json::python_str(value, max_bytes)?))
    };
    environment.add_filter("center", move |value: &Value, width: Option<usize>| {
        center(&text(value)?, width.unwrap_or(80), max_bytes)
    });
    for name in ["escape", "e"] {
        environment.add_filter(name, {
            let masks = Arc::clone(masks);
            move |value: &Value| match value.is_safe() {
                true => Ok(value.clone()),
                false => Ok(Value::from_safe_string(escape(&text(value)?, &masks))),
            }
        });
    }
    environment.add_filter("forceescape", {
        let masks = Arc::clone(masks);
        move |value: &Value| Ok::<_, Error>(Value::from_safe_string(escape(&text(value)?, &masks)))
    });
    environment.add_filter("filesizeformat", |value: &Value, binary: Option<bool>| {
        file_size(value, binary.unwrap_or(false))
    });
    environment.add_filter("format", move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        percent::format(&text(value)?, &args, &kwargs, max_bytes)
    });
    // Always the same answer: the first item.
    environment
        .add_filter("random", |value: &Value| Ok::<_, Error>(value.try_iter()?.next().unwrap_or_default()));
    environment.add_filter("truncate", move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        truncate(&text(value)?, &args, &kwargs)
    });
    environment.add_filter("wordcount", {
        let folded = folded.clone();
        move |value: &Value| Ok::<_, Error>(word_count(&folded(value)?))
    });
    environment.add_filter("wordwrap", move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        word_wrap(&text(value)?, &args, &kwargs, max_bytes)
    });
    environment.add_filter("striptags", {
        let masks = Arc::clone(masks);
        move |value: &Value| Ok::<_, Error>(strip_tags(&text(value)?, &masks))
    });
    environment.add_filter("xmlattr", {
        let masks = Arc::clone(masks);
        move |value: &Value, autospace: Option<bool>| {
            xml_attributes(value, autospace.unwrap_or(true), &masks, max_bytes)
        }
    });
    environment.add_filter("urlize", move |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        urlize(&folded(value)?, &args, &kwargs)
    });
}

/// Arguments by position or by name, as Python takes them.
pub(crate) struct FilterArgs<'a> {
    pub(crate) given: &'a [Value],
    pub(crate) named: &'a Kwargs,
}

impl FilterArgs<'_> {
    pub(crate) fn get(&self, at: usize, name: &str) -> Result<Option<Value>, Error> {
        let named: Option<Value> = self.named.get(name)?;
        Ok(self.given.get(at).cloned().or(named).filter(|value| !value.is_none() && !value.is_undefined()))
    }

    pub(crate) fn count(&self, at: usize, name: &str, default: usize) -> Result<usize, Error> {
        self.get(at, name)?.map_or(Ok(default), usize::try_from)
    }

    pub(crate) fn flag(&self, at: usize, name: &str, default: bool) -> Result<bool, Error> {
        Ok(self.get(at, name)?.map_or(default, |value| value.is_true()))
    }

    pub(crate) fn text(&self, at: usize, name: &str) -> Result<Option<String>, Error> {
        Ok(self.get(at, name)?.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
    }
}

/// Python's `str.center`. If the padding cannot be split evenly, the extra space is on the left for an odd width.
fn center(text: &str, width: usize, max_bytes: usize) -> Result<String, Error> {
    let count = text.chars().count();
    let Some(pad) = width.checked_sub(count) else { return Ok(text.to_owned()) };
    if pad > max_bytes {
        return Err(TooLong::error());
    }
    let left = (pad / 2).saturating_add(pad & width & 1);
    Ok(" ".repeat(left) + text + &" ".repeat(pad.saturating_sub(left)))
}

/// Escapes as markupsafe does.
fn escape(text: &str, masks: &MaskTable) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match masks.fold_char(c) {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    out
}

fn file_size(value: &Value, binary: bool) -> Result<String, Error> {
    let number = match value.as_str() {
        Some(text) => text.trim().parse().map_err(|_| wrong("filesizeformat: a number is needed"))?,
        None => f64::try_from(value.clone())?,
    };
    let (base, prefixes) = match binary {
        true => (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if number == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if number < base {
        return Ok(format!("{} Bytes", number.trunc()));
    }
    let (mut size, mut named) = (number / base, "");
    for prefix in prefixes {
        named = prefix;
        if size < base {
            break;
        }
        size /= base;
    }
    Ok(format!("{size:.1} {named}"))
}

fn truncate(text: &str, args: &[Value], kwargs: &Kwargs) -> Result<String, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let length = args.count(0, "length", 255)?;
    let kills_words = args.flag(1, "killwords", false)?;
    let end = args.text(2, "end")?.unwrap_or_else(|| "...".to_owned());
    let leeway = args.count(3, "leeway", 5)?;
    kwargs.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept =
        if kills_words { &kept } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(kept, _)| kept) };
    Ok(kept.to_owned() + &end)
}

fn word_count(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

fn word_wrap(text: &str, args: &[Value], kwargs: &Kwargs, max_bytes: usize) -> Result<String, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let wrap = wrap::WrapOptions {
        width: args.count(0, "width", 79)?,
        breaks_words: args.flag(1, "break_long_words", true)?,
        breaks_hyphens: args.flag(3, "break_on_hyphens", true)?,
    };
    let between = args.text(2, "wrapstring")?.unwrap_or_else(|| "\n".to_owned());
    kwargs.assert_all_used()?;
    if wrap.width == 0 {
        return Err(wrong("wordwrap: the width must be at least 1"));
    }
    let lines: Vec<String> = text.lines().map(|line| wrap.line(line).join(&between)).collect();
    let wrapped = lines.join(&between);
    if wrapped.len() > max_bytes { Err(TooLong::error()) } else { Ok(wrapped) }
}

/// Removes tags and comments, collapses white space to one space, and replaces entities by their characters.
fn strip_tags(text: &str, masks: &MaskTable) -> String {
    let chars: Vec<(char, char)> = text.chars().map(|c| (masks.fold_char(c), c)).collect();
    let (mut kept, mut at) = (String::new(), 0usize);
    let closes = |from: usize, mark: &[char]| {
        let rest = chars.get(from..)?;
        let found = rest.windows(mark.len()).position(|window| window.iter().map(|(c, _)| c).eq(mark));
        Some(from.saturating_add(found?).saturating_add(mark.len()))
    };
    let opens = |at: usize, mark: &[char]| {
        chars.get(at..).is_some_and(|rest| {
            rest.len() >= mark.len() && rest.iter().map(|(c, _)| c).take(mark.len()).eq(mark)
        })
    };
    while let Some((folded, c)) = chars.get(at) {
        let end = match folded {
            '<' if opens(at, &['<', '!', '-', '-']) => closes(at, &['-', '-', '>']),
            '<' => closes(at, &['>']),
            _ => None,
        };
        match end {
            Some(end) => at = end,
            None => {
                kept.push(*c);
                at = at.saturating_add(1);
            }
        }
    }
    let kept = kept.split_whitespace().collect::<Vec<_>>().join(" ");
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", "\u{a0}"),
        ("&amp;", "&"),
    ];
    entities.iter().fold(kept, |text, (entity, c)| text.replace(entity, c))
}

fn xml_attributes(
    value: &Value,
    autospace: bool,
    masks: &MaskTable,
    max_bytes: usize,
) -> Result<String, Error> {
    if value.kind() != ValueKind::Map {
        return Err(wrong("xmlattr: a mapping is needed"));
    }
    let mut out = String::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let key = json::python_str(&key, max_bytes)?;
        if masks.fold(&key).contains(|c: char| c.is_whitespace() || matches!(c, '/' | '>' | '=')) {
            return Err(wrong("xmlattr: a name must not have white space, `/`, `>` or `=` in it"));
        }
        out.push_str(if out.is_empty() && !autospace { "" } else { " " });
        let item = escape(&json::python_str(&item, max_bytes)?, masks);
        out.push_str(&format!("{}=\"{item}\"", escape(&key, masks)));
    }
    Ok(out)
}

/// The patterns of web and mail addresses, taken from Jinja2.
static WEB: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let pattern = r"(?ix)^(
          (https?://|www\.)(([\w%-]+\.)+)?([a-z]{2,63}|xn--[\w%]{2,59})
        | ([\w%-]{2,63}\.)+(com|net|int|edu|gov|org|info|mil)
        | (https?://)((([\d]{1,3})(\.[\d]{1,3}){3})|(\[([\da-f]{0,4}:){2}([\da-f]{0,4}:?){1,6}\]))
        )(:[\d]{1,5})?([/?\#]\S*)?$";
    Regex::new(pattern).ok()
});
static MAIL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\S+@\w[\w.-]*\.\w+$").ok());

fn urlize(text: &str, args: &[Value], kwargs: &Kwargs) -> Result<String, Error> {
    let args = FilterArgs { given: args, named: kwargs };
    let limit = args.get(0, "trim_url_limit")?.map(usize::try_from).transpose()?;
    let mut rel: Vec<String> = vec!["noopener".to_owned()];
    if args.flag(1, "nofollow", false)? {
        rel.push("nofollow".to_owned());
    }
    let target = args.text(2, "target")?;
    rel.extend(args.text(3, "rel")?.iter().flat_map(|rel| rel.split_whitespace()).map(str::to_owned));
    let schemes = args.get(4, "extra_schemes")?;
    kwargs.assert_all_used()?;
    let schemes: Vec<String> = match schemes {
        Some(schemes) => schemes.try_iter()?.map(|scheme| scheme.to_string()).collect(),
        None => Vec::new(),
    };
    rel.sort();
    rel.dedup();
    let plain = MaskTable::default();
    let mut attributes = format!(" rel=\"{}\"", escape(&rel.join(" "), &plain));
    if let Some(target) = target {
        attributes.push_str(&format!(" target=\"{}\"", escape(&target, &plain)));
    }
    let links = UrlizeOptions { limit, attributes, schemes };
    let (mut out, mut word) = (String::new(), String::new());
    for c in escape(text, &plain).chars() {
        if c.is_whitespace() {
            out.push_str(&links.word(&word));
            word.clear();
            out.push(c);
        } else {
            word.push(c);
        }
    }
    Ok(out + &links.word(&word))
}

struct UrlizeOptions {
    limit: Option<usize>,
    attributes: String,
    schemes: Vec<String>,
}

impl UrlizeOptions {
    /// Returns a word, as a link if it is an address. Brackets and full stops around it are not part of the address.
    fn word(&self, word: &str) -> String {
        let mut middle = word;
        while let Some(rest) = ["(", "<", "&lt;"].iter().find_map(|open| middle.strip_prefix(open)) {
            middle = rest;
        }
        let head = word.get(..word.len().saturating_sub(middle.len())).unwrap_or("");
        let whole = middle;
        while let Some(rest) = [")", ">", ".", ",", "&gt;"].iter().find_map(|end| middle.strip_suffix(end)) {
            middle = rest;
        }
        let mut end = middle.len();
        // A bracket that is opened within an address is closed there.
        for (open, close) in [("(", ")"), ("<", ">"), ("&lt;", "&gt;")] {
            let (within, tail) = whole.split_at_checked(end).unwrap_or((whole, ""));
            let opened = within.matches(open).count();
            if opened > within.matches(close).count() {
                for (at, _) in tail.match_indices(close).take(opened) {
                    end = within.len().saturating_add(at).saturating_add(close.len());
                }
            }
        }
        let (middle, tail) = whole.split_at_checked(end).unwrap_or((whole, ""));
        format!("{head}{}{tail}", self.link(middle))
    }

    fn link(&self, middle: &str) -> String {
        let is = |pattern: &LazyLock<Option<Regex>>, text: &str| {
            pattern.as_ref().is_some_and(|pattern| pattern.is_match(text))
        };
        let scheme =
            self.schemes.iter().any(|scheme| middle != scheme && middle.starts_with(scheme.as_str()));
        if is(&WEB, middle) || scheme {
            let whole = middle.starts_with("https://") || middle.starts_with("http://") || !is(&WEB, middle);
            let before = if whole { "" } else { "https://" };
            let shown = match self.limit.filter(|limit| middle.chars().count() > *limit) {
                Some(limit) => middle.chars().take(limit).collect::<String>() + "...",
                None => middle.to_owned(),
            };
            return format!("<a href=\"{before}{middle}\"{}>{shown}</a>", self.attributes);
        }
        if let Some(address) = middle.strip_prefix("mailto:").filter(|address| is(&MAIL, address)) {
            return format!("<a href=\"{middle}\">{address}</a>");
        }
        let mail = middle.contains('@') && !middle.starts_with("www.") && !middle.starts_with('@');
        if mail && !middle.contains(':') && is(&MAIL, middle) {
            return format!("<a href=\"mailto:{middle}\">{middle}</a>");
        }
        middle.to_owned()
    }
}

fn wrong(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
