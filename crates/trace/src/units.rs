//! Formats numbers for people: durations, shares, counts, UTC times, and text that is safe to print in a terminal.
//! Knows no record.

use headrace_domain::{NanoDollars, UnixNanos, steers_terminals};

/// A duration with three significant digits in the unit that fits: `0.42 µs`, `31.5 µs`, `212 µs`, `1.20 ms`,
/// `84.1 ms`, `1.92 s`, `1203 s`.
pub fn humane_duration(nanos: u64) -> String {
    if nanos == 0 {
        return "0 µs".to_owned();
    }
    for (unit, name) in [(1e3, "µs"), (1e6, "ms")] {
        let value = nanos as f64 / unit;
        if value < 999.5 {
            return format!("{} {name}", three_digits(value));
        }
    }
    format!("{} s", three_digits(nanos as f64 / 1e9))
}

/// Three significant digits, but never fewer than all digits before the decimal point.
pub fn three_digits(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// A part of a whole as a percentage: `62.1%`, `<0.1%`, `100%`. Empty if the whole is zero.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    let value = part as f64 * 100.0 / whole as f64;
    if part == 0 {
        "0%".to_owned()
    } else if value < 0.1 {
        "<0.1%".to_owned()
    } else if value >= 99.95 {
        format!("{value:.0}%")
    } else {
        format!("{value:.1}%")
    }
}

/// Digits in groups of three: `412`, `32,768`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `2026-11-21`
pub fn utc_date(time: UnixNanos) -> String {
    format_utc(time, "%Y-%m-%d")
}

/// Midnight UTC of a day in the format of [`utc_date`]. `None` if the text is not a day.
pub fn utc_midnight(date: &str) -> Option<UnixNanos> {
    let day = jiff::civil::Date::strptime("%Y-%m-%d", date).ok()?;
    let midnight = day.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
    u64::try_from(midnight.as_nanosecond()).ok().map(UnixNanos::new)
}

/// `01:34:08`
pub fn utc_time(time: UnixNanos) -> String {
    format_utc(time, "%H:%M:%S")
}

/// Formats a time in UTC with a `strftime` pattern.
pub(crate) fn format_utc(time: UnixNanos, pattern: &str) -> String {
    // 2⁶⁴ nanoseconds end in the year 2554, well within the range of a timestamp.
    let stamp = jiff::Timestamp::from_nanosecond(time.get().into()).unwrap_or_default();
    stamp.strftime(pattern).to_string()
}

/// Nanoseconds in microseconds, with decimals.
pub(crate) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// An amount in dollars without the currency sign, so that a program can parse it: `0.000091`, `-1.50`.
pub(crate) fn bare_dollars(amount: NanoDollars) -> String {
    amount.to_string().replacen('$', "", 1)
}

/// Makes a caller's text safe for a terminal. Replaces control characters (which start escape sequences), direction
/// overrides and invisible characters.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if steers_terminals(c) { '\u{FFFD}' } else { c }).collect()
}

/// Formats a table. The first `texts` columns are left-aligned, the others right-aligned.
pub(crate) fn aligned(lines: &[Vec<String>], texts: usize) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|text| cells(text)).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut out = String::new();
    for line in lines {
        let mut row = String::new();
        for (at, (text, width)) in line.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cells(text));
            row += &if at < texts { format!("{text}{gap}  ") } else { format!("{gap}{text}  ") };
        }
        out += row.trim_end();
        out.push('\n');
    }
    out
}

/// A line of comma-separated values (RFC 4180). A text that a spreadsheet would take for a formula gets a leading
/// apostrophe.
pub(crate) fn csv_line(fields: &[String]) -> String {
    let field = |text: &String| {
        let is_number = text.parse::<f64>().is_ok();
        let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && !is_number;
        let text = if is_formula { format!("'{text}") } else { text.clone() };
        if text.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text
        }
    };
    let line: Vec<String> = fields.iter().map(field).collect();
    line.join(",") + "\r\n"
}

/// Number of terminal cells that a text takes: two for wide East Asian characters and emoji, one for others.
pub fn cells(text: &str) -> usize {
    text.chars().map(cells_of).sum()
}

/// The text in at most `width` cells. If it was cut, the last cell is `…`.
pub fn clipped(text: &str, width: usize) -> String {
    if cells(text) <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += cells_of(c);
        if used > width {
            break;
        }
        out.push(c);
    }
    if width > 0 {
        out.push('…');
    }
    out
}

/// A count with its noun: `1 call`, `12 calls`, `3 tries`.
pub fn counted(of: u64, what: &str) -> String {
    let stem = what.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']));
    match (of, stem) {
        (1, _) => format!("1 {what}"),
        (of, Some(stem)) => format!("{} {stem}ies", grouped(of)),
        (of, None) => format!("{} {what}s", grouped(of)),
    }
}

fn cells_of(c: char) -> usize {
    let wide = matches!(u32::from(c),
        0x1100..=0x115F | 0x2E80..=0xA4CF | 0xAC00..=0xD7A3 | 0xF900..=0xFAFF | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60 | 0xFFE0..=0xFFE6 | 0x1F300..=0x1F64F | 0x1F900..=0x1F9FF | 0x20000..=0x3FFFD);
    if wide { 2 } else { 1 }
}

/// Wraps a text at spaces into lines of at most `width` cells. Clips words that are longer than a line.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let word = clipped(word, width);
        match lines.last_mut() {
            Some(line) if cells(line) + 1 + cells(&word) <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_never_round_up_to_a_thousand() {
        for (nanos, text) in [
            (0, "0 µs"),
            (4, "0.00 µs"),
            (420, "0.42 µs"),
            (9_994, "9.99 µs"),
            (9_996, "10.0 µs"),
            (31_520, "31.5 µs"),
            (212_000, "212 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (84_123_000, "84.1 ms"),
            (999_500_000, "1.00 s"),
            (1_920_000_000, "1.92 s"),
            (1_203_400_000_000, "1203 s"),
        ] {
            assert_eq!(humane_duration(nanos), text, "{nanos}");
        }
    }

    #[test]
    fn shares_counts_and_times() {
        assert_eq!(percent(0, 5), "0%");
        assert_eq!(percent(1, 5_000), "<0.1%");
        assert_eq!(percent(1, 3), "33.3%");
        assert_eq!(percent(5, 5), "100%");
        assert_eq!(percent(1, 0), "");
        assert_eq!(
            (grouped(999), grouped(32_768), grouped(1_234_567)),
            ("999".into(), "32,768".into(), "1,234,567".into())
        );
        assert_eq!(
            [
                counted(0, "block"),
                counted(1, "block"),
                counted(1_200, "call"),
                counted(2, "try"),
                counted(2, "key")
            ],
            ["0 blocks", "1 block", "1,200 calls", "2 tries", "2 keys"]
        );
        let time = UnixNanos::new(1_795_224_848_123_456_789);
        assert_eq!(format!("{} {}", utc_date(time), utc_time(time)), "2026-11-21 01:34:08");
    }

    #[test]
    fn text_from_callers_cannot_drive_the_terminal() {
        assert_eq!(plain("gpt\u{1b}[2J\u{202e}x\n"), "gpt\u{fffd}[2J\u{fffd}x\u{fffd}");
        assert_eq!((cells("abc"), cells("模型")), (3, 4));
        assert_eq!(
            (clipped("abcdef", 4), clipped("模型模型", 4), clipped("abc", 0)),
            ("abc…".into(), "模…".into(), String::new())
        );
    }
}
