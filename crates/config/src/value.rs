//! The kinds of setting values, and their parsers. Values come as TOML from a file, or as text from the environment and
//! flags. Knows no setting by name.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use headrace_domain::NanoDollars;

/// The kind of a setting's value, with its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// Any text.
    Text,
    /// A URL. Its password is not shown.
    Url,
    /// The path of a file or directory.
    Path,
    /// `HOST:PORT`.
    Address,
    /// An integer.
    Count {
        /// Minimum, inclusive.
        least: u64,
        /// Maximum, inclusive.
        most: u64,
    },
    /// A size such as `"256MiB"`, or an integer number of bytes.
    Bytes {
        /// Minimum in bytes, inclusive.
        least: u64,
        /// Maximum in bytes, inclusive.
        most: u64,
    },
    /// A duration such as `"30s"`, or an integer number of seconds.
    Duration {
        /// Minimum, inclusive.
        least: Duration,
        /// Maximum, inclusive.
        most: Duration,
    },
    /// An amount in dollars such as `"2.50"`.
    Dollars,
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An array of tables.
    Tables,
    /// A table that maps names to texts.
    Names,
}

/// A parsed value.
#[derive(Debug, Clone, PartialEq)]
pub enum ParsedValue {
    /// A value of kind `Text` or `Choice`.
    Text(String),
    /// A value of kind `Path`.
    Path(PathBuf),
    /// A value of kind `Address`.
    Address(SocketAddr),
    /// A value of kind `Count`, or of kind `Bytes` in bytes.
    Count(u64),
    /// A value of kind `Duration`.
    Duration(Duration),
    /// A value of kind `Dollars`.
    Dollars(NanoDollars),
    /// A value of kind `Flag`.
    Flag(bool),
    /// A value of kind `Tables` or `Names`, as TOML.
    Raw(toml::Value),
}

impl SettingKind {
    /// Describes what to write, for messages and the reference.
    pub fn describe(self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Url => "a URL".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Address => "an address such as \"127.0.0.1:8080\"".to_owned(),
            Self::Count { least, most } if most >= u64::from(u32::MAX) => format!("an integer from {least}"),
            Self::Count { least, most } => format!("an integer from {least} to {most}"),
            Self::Bytes { least, most } => {
                format!("a size such as \"256MiB\", from {} to {}", bytes_text(least), bytes_text(most))
            }
            Self::Duration { least, most } => {
                format!(
                    "a duration such as \"30s\", from {} to {}",
                    duration_text(least),
                    duration_text(most)
                )
            }
            Self::Dollars => "dollars as text such as \"2.50\"".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Choice(names) => format!("one of {}", names.join(", ")),
            Self::Tables => "an array of tables".to_owned(),
            Self::Names => "a table of text".to_owned(),
        }
    }

    /// Parses a value from the environment or a flag. Text-like kinds are taken literally; all others are parsed as
    /// TOML.
    pub fn parse_text(self, text: &str) -> Result<ParsedValue, String> {
        let plain = matches!(
            self,
            Self::Text
                | Self::Url
                | Self::Path
                | Self::Address
                | Self::Choice(_)
                | Self::Duration { .. }
                | Self::Bytes { .. }
                | Self::Dollars
        );
        if plain {
            return self.parse(&toml::Value::String(text.to_owned()));
        }
        let wrapped: Result<toml::Table, _> = toml::from_str(&format!("value = {text}"));
        match wrapped.ok().and_then(|mut table| table.remove("value")) {
            Some(value) => self.parse(&value),
            None => Err(format!("`{text}` is not {}", self.describe())),
        }
    }

    /// Returns a value as it may be shown: without the password of a URL.
    pub(crate) fn shown(self, written: String) -> String {
        match self {
            Self::Url => without_password(&written),
            _ => written,
        }
    }

    /// Parses a TOML value.
    pub fn parse(self, value: &toml::Value) -> Result<ParsedValue, String> {
        let wrong = || format!("{} is not {}", shown(value), self.describe());
        match self {
            // A value that is no text has no password.
            Self::Text | Self::Url => {
                value.as_str().map(|text| ParsedValue::Text(text.to_owned())).ok_or_else(wrong)
            }
            Self::Path => {
                let text = value.as_str().filter(|text| !text.is_empty()).ok_or_else(wrong)?;
                Ok(ParsedValue::Path(PathBuf::from(text)))
            }
            Self::Address => value.as_str().and_then(address).map(ParsedValue::Address).ok_or_else(wrong),
            Self::Count { least, most } => {
                let count = value.as_integer().and_then(|n| u64::try_from(n).ok()).ok_or_else(wrong)?;
                if (least..=most).contains(&count) { Ok(ParsedValue::Count(count)) } else { Err(wrong()) }
            }
            Self::Bytes { least, most } => {
                let count = bytes(value).ok_or_else(wrong)?;
                if (least..=most).contains(&count) { Ok(ParsedValue::Count(count)) } else { Err(wrong()) }
            }
            Self::Duration { least, most } => {
                let time = duration(value).ok_or_else(wrong)?;
                if (least..=most).contains(&time) { Ok(ParsedValue::Duration(time)) } else { Err(wrong()) }
            }
            Self::Dollars => {
                let text = match value {
                    toml::Value::Integer(n) => n.to_string(),
                    other => other.as_str().ok_or_else(wrong)?.to_owned(),
                };
                let amount = NanoDollars::from_dollars(&text).map_err(|error| error.to_string())?;
                if amount.is_negative() { Err(wrong()) } else { Ok(ParsedValue::Dollars(amount)) }
            }
            Self::Flag => value.as_bool().map(ParsedValue::Flag).ok_or_else(wrong),
            Self::Choice(names) => {
                let text = value.as_str().ok_or_else(wrong)?;
                let found = names.iter().find(|name| name.eq_ignore_ascii_case(text.trim()));
                found.map(|name| ParsedValue::Text((*name).to_owned())).ok_or_else(wrong)
            }
            Self::Tables => match value {
                toml::Value::Array(items) if items.iter().all(toml::Value::is_table) => {
                    Ok(ParsedValue::Raw(value.clone()))
                }
                _ => Err(wrong()),
            },
            Self::Names => match value {
                toml::Value::Table(table) if table.values().all(toml::Value::is_str) => {
                    Ok(ParsedValue::Raw(value.clone()))
                }
                _ => Err(wrong()),
            },
        }
    }
}

/// Replaces what is between the scheme of a URL and its host. What has no scheme is replaced up to its last `@`.
fn without_password(url: &str) -> String {
    let Some((before, place)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
    if scheme.is_empty() { format!("…@{place}") } else { format!("{scheme}://…@{place}") }
}

/// A value as a message shows it: at most 60 characters.
fn shown(value: &toml::Value) -> String {
    const MOST_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST_CHARS) {
        None => text,
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?))),
        None => text.parse().ok(),
    }
}

/// A size in the largest unit that divides it evenly: `256MiB`.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let whole = units.into_iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bytes} bytes"), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// A duration in the largest unit that divides it evenly: `30s`.
fn duration_text(time: Duration) -> String {
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let millis = time.as_millis();
    let whole = units.into_iter().find(|(_, unit)| millis >= *unit && millis.is_multiple_of(*unit));
    match whole {
        Some((name, unit)) => format!("{}{name}", millis / unit),
        None if millis == 0 => "0s".to_owned(),
        None => format!("{millis}ms"),
    }
}

/// Parses a size: an integer number of bytes, or text with a unit.
fn bytes(value: &toml::Value) -> Option<u64> {
    if let Some(count) = value.as_integer() {
        return u64::try_from(count).ok();
    }
    let (number, unit) = split(value.as_str()?)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" | "k" => 1_000,
        "mb" | "m" => 1_000_000,
        "gb" | "g" => 1_000_000_000,
        "tb" | "t" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

fn duration(value: &toml::Value) -> Option<Duration> {
    if let Some(seconds) = value.as_integer() {
        return u64::try_from(seconds).ok().map(Duration::from_secs);
    }
    let (number, unit) = split(value.as_str()?)?;
    let seconds: u64 = match unit {
        "ms" => return Some(Duration::from_millis(number)),
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// Splits text into a whole number and its unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_values_or_say_what_was_expected() {
        let count = SettingKind::Count { least: 1, most: 100 };
        let bytes = SettingKind::Bytes { least: 17, most: 1 << 40 };
        let duration =
            SettingKind::Duration { least: Duration::from_millis(500), most: Duration::from_secs(120) };
        let rows: &[(SettingKind, &str, Option<ParsedValue>)] = &[
            (bytes, "256MiB", Some(ParsedValue::Count(256 << 20))),
            (bytes, "10 GB", Some(ParsedValue::Count(10_000_000_000))),
            (bytes, "17", Some(ParsedValue::Count(17))),
            (bytes, "16", None),
            (bytes, "2TiB", None),
            (bytes, "99999999999TiB", None),
            (bytes, "x", None),
            (duration, "500ms", Some(ParsedValue::Duration(Duration::from_millis(500)))),
            (duration, "2m", Some(ParsedValue::Duration(Duration::from_secs(120)))),
            (duration, "0s", None),
            (duration, "499ms", None),
            (duration, "121s", None),
            (duration, "-1s", None),
            (count, "100", Some(ParsedValue::Count(100))),
            (count, "0", None),
            (count, "101", None),
            (count, "\"7\"", None),
            (SettingKind::Address, "localhost:80", Some(ParsedValue::Address(([127, 0, 0, 1], 80).into()))),
            (SettingKind::Address, "nowhere", None),
            (SettingKind::Flag, "true", Some(ParsedValue::Flag(true))),
            (SettingKind::Flag, "yes", None),
            (SettingKind::Choice(&["avx2"]), "AVX2", Some(ParsedValue::Text("avx2".to_owned()))),
            (SettingKind::Choice(&["avx2"]), "sse9", None),
            (SettingKind::Dollars, "2.50", Some(ParsedValue::Dollars(NanoDollars::new(2_500_000_000)))),
            (SettingKind::Dollars, "-1", None),
        ];
        for (kind, text, expected) in rows {
            assert_eq!(kind.parse_text(text).ok(), *expected, "{kind:?} {text}");
        }
        assert!(SettingKind::Tables.parse_text("[{ name = \"a\" }]").is_ok());
        assert!(SettingKind::Tables.parse_text("[1]").is_err());
        assert_eq!(
            duration.parse_text("0s").unwrap_err(),
            "\"0s\" is not a duration such as \"30s\", from 500ms to 2m"
        );
        assert_eq!(
            bytes.parse_text("1").unwrap_err(),
            "\"1\" is not a size such as \"256MiB\", from 17 bytes to 1TiB"
        );
    }
}
