//! Regular expressions as GBNF, for texts as they are written in JSON. Must not know schemas.

use std::fmt::Write;

use regex_automata::Input;
use regex_automata::dfa::{Automaton, dense};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};
use serde_json::Value;

use super::literal::literal;
use crate::bounds::{AUTOMATON_BYTES, AUTOMATON_SET_BYTES};

/// Most repetitions: llama.cpp accepts no more.
pub(super) const MOST_TIMES: u64 = 1_000;
/// The name of the rule for one character.
pub(super) const CHAR: &str = "json-char";
/// Characters left out, because dialects disagree whether `.` and `\s` match them, or JSON escapes them only by number.
const LEFT_OUT: [(char, char); 6] = [
    ('\0', '\u{8}'),
    ('\u{b}', '\u{c}'),
    ('\u{e}', '\u{1f}'),
    ('\u{7f}', '\u{85}'),
    ('\u{2028}', '\u{2029}'),
    ('\u{feff}', '\u{feff}'),
];

/// The expression for the characters of a text that matches `pattern` somewhere, as in JSON Schema. It may use
/// [`CHAR`]. It may not allow every text that matches. `None` if GBNF cannot express the pattern.
pub(super) fn of(pattern: &str) -> Option<String> {
    let hir = regex_syntax::parse(&llguidance::regex_to_lark(pattern, "dw")).ok()?;
    anywhere(&hir)
}

/// The expression for texts of a format. It covers the usual ones.
pub(super) fn of_format(format: &str) -> Option<String> {
    const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const NAME: &str =
        "[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,20}){0,2}(\\.[a-zA-Z0-9]{1,20}(-[a-zA-Z0-9]{1,20}){0,2}){0,3}";
    const PART: &str = "[a-zA-Z0-9._~!$&'()*+,;=:@-]";
    let pattern = match format {
        "uuid" => "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$".to_owned(),
        "ipv4" => format!("^({OCTET}\\.){{3}}{OCTET}$"),
        "ipv6" => "^(([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,6}:[0-9a-f]{1,4}|::([0-9a-f]{1,4}:){0,5}[0-9a-f]{1,4}|::)$"
            .to_owned(),
        "duration" => {
            const TIME: &str = "T(N}H(N}M(N}S)?)?|N}M(N}S)?|N}S)";
            let days = "N}Y(N}M(N}D)?)?|N}M(N}D)?|N}D";
            format!("^P(({days})({TIME})?|{TIME}|N}}W)$").replace("N}", "[0-9]{1,6}")
        }
        "uri" => format!(
            "^([a-z][a-z0-9+.-]{{0,20}}://{NAME}(:[1-9][0-9]{{0,3}})?(/{PART}{{0,200}}){{0,20}}|(mailto|urn|tel|data):{PART}{{1,200}})\
             (\\?{PART}{{0,200}})?(#{PART}{{0,200}})?$"
        ),
        _ => return None,
    };
    of(&pattern)
}

/// Whether `pattern` matches somewhere in a text. Also `true` if that cannot be determined.
pub(super) fn may_match(pattern: &str, text: &str) -> bool {
    let pattern = llguidance::regex_to_lark(pattern, "dw");
    let config = dense::Config::new()
        .dfa_size_limit(Some(AUTOMATON_BYTES))
        .determinize_size_limit(Some(AUTOMATON_SET_BYTES));
    let found = dense::Builder::new().configure(config).build(&pattern).ok();
    found.and_then(|dfa| dfa.try_search_fwd(&Input::new(text)).ok()).is_none_or(|found| found.is_some())
}

/// Adds any characters before and after a match, unless the expression is anchored there.
fn anywhere(hir: &Hir) -> Option<String> {
    let is = |part: &Hir, look| matches!(part.kind(), HirKind::Look(it) if *it == look);
    match hir.kind() {
        HirKind::Capture(capture) => anywhere(&capture.sub),
        HirKind::Alternation(parts) if !hir.properties().look_set().is_empty() => {
            let parts = parts.iter().map(anywhere).collect::<Option<Vec<_>>>()?;
            Some(format!("({})", parts.join(" | ")))
        }
        HirKind::Concat(parts) => {
            let begins = parts.iter().take_while(|part| is(part, Look::Start)).count();
            let ends = parts.iter().rev().take_while(|part| is(part, Look::End)).count();
            let inner = parts.get(begins..parts.len().checked_sub(ends)?)?;
            let mut all = if begins == 0 { vec![format!("{CHAR}*")] } else { Vec::new() };
            for part in inner {
                all.push(expression(part)?);
            }
            if ends == 0 {
                all.push(format!("{CHAR}*"));
            }
            Some(if all.is_empty() { r#""""#.to_owned() } else { all.join(" ") })
        }
        HirKind::Look(Look::Start | Look::End) => Some(format!("{CHAR}*")),
        _ => Some(format!("{CHAR}* {} {CHAR}*", expression(hir)?)),
    }
}

fn expression(hir: &Hir) -> Option<String> {
    Some(match hir.kind() {
        HirKind::Empty => r#""""#.to_owned(),
        HirKind::Literal(text) => {
            let text = Value::from(std::str::from_utf8(&text.0).ok()?).to_string();
            literal(text.strip_prefix('"')?.strip_suffix('"')?)
        }
        HirKind::Class(Class::Unicode(class)) => characters(class)?,
        HirKind::Class(Class::Bytes(bytes)) => {
            let ranges = bytes.to_unicode_class()?;
            characters(&ranges)?
        }
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            let (least, most) = (u64::from(repetition.min), repetition.max.map(u64::from));
            let most = most.map(|most| most.min(MOST_TIMES));
            let times = match (least, most) {
                (_, Some(0)) => return Some(r#""""#.to_owned()),
                (0, Some(1)) => "?".to_owned(),
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (least, _) if least > MOST_TIMES => return None,
                (least, None) => format!("{{{least},}}"),
                (least, Some(most)) => format!("{{{least},{most}}}"),
            };
            format!("({}){times}", expression(&repetition.sub)?)
        }
        HirKind::Capture(capture) => expression(&capture.sub)?,
        HirKind::Concat(parts) => {
            let parts = parts.iter().map(expression).collect::<Option<Vec<_>>>()?;
            format!("({})", parts.join(" "))
        }
        HirKind::Alternation(parts) => {
            // If one alternative cannot be expressed, the others remain.
            let parts: Vec<String> = parts.iter().filter_map(expression).collect();
            (!parts.is_empty()).then(|| format!("({})", parts.join(" | ")))?
        }
    })
}

/// One character of a class, as JSON writes it.
fn characters(class: &ClassUnicode) -> Option<String> {
    let has = |c: char| class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&c));
    let mut plain = class.clone();
    let left_out = LEFT_OUT.iter().copied().chain([('\t', '\n'), ('\r', '\r'), ('"', '"'), ('\\', '\\')]);
    plain.difference(&ClassUnicode::new(left_out.map(|(from, to)| ClassUnicodeRange::new(from, to))));
    let mut cases = Vec::new();
    if !plain.ranges().is_empty() {
        let mut set = String::from("[");
        for range in plain.ranges() {
            put(&mut set, range.start());
            if range.end() > range.start() {
                set.push('-');
                put(&mut set, range.end());
            }
        }
        cases.push(set + "]");
    }
    // `.` matches a carriage return here, but not in other dialects.
    for (c, written, may) in [
        ('"', "\\\"", true),
        ('\\', "\\\\", true),
        ('\t', "\\t", true),
        ('\n', "\\n", true),
        ('\r', "\\r", has('\n')),
    ] {
        if may && has(c) {
            cases.push(literal(written));
        }
    }
    match cases.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        cases => Some(format!("({})", cases.join(" | "))),
    }
}

/// Writes a character of a class in a form that every GBNF parser knows.
fn put(set: &mut String, c: char) {
    // Writing to a string cannot fail.
    let _ = match u32::from(c) {
        _ if c.is_ascii_alphanumeric() => set.write_char(c),
        code @ 0..=0x7f => write!(set, "\\x{code:02X}"),
        code @ 0x80..=0xffff => write!(set, "\\u{code:04X}"),
        code => write!(set, "\\U{code:08X}"),
    };
}
