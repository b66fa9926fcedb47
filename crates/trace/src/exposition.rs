//! Writes the Prometheus text exposition format 0.0.4, escaping included. Knows no metric.
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::{self, Write as _};

use crate::histogram::Histogram;

/// The `TYPE` of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Labels of one sample: names known to be valid, values of any text.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

#[derive(Default)]
pub(crate) struct Exposition {
    out: String,
}

impl Exposition {
    pub(crate) fn finish(self) -> String {
        self.out
    }

    pub(crate) fn family(&mut self, name: &str, help: &str, kind: Kind) {
        let help = Escaped { text: help, quotes: false };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", kind.name()));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl fmt::Display) {
        self.line(format_args!("{name}{} {value}", LabelSet { labels, le: None }));
    }

    /// The samples of one histogram whose values are integers of 10⁻`digits` of the exposed unit.
    pub(crate) fn histogram(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram, digits: u32) {
        let (cumulative, sum) = histogram.read();
        let mut count = 0;
        for (bound, total) in cumulative {
            let le = bound.map_or_else(|| "+Inf".to_owned(), |b| Decimal { value: b, digits }.to_string());
            self.line(format_args!("{name}_bucket{} {total}", LabelSet { labels, le: Some(&le) }));
            count = total;
        }
        self.line(format_args!(
            "{name}_sum{} {}",
            LabelSet { labels, le: None },
            Decimal { value: sum, digits }
        ));
        self.line(format_args!("{name}_count{} {count}", LabelSet { labels, le: None }));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = self.out.write_fmt(line);
        self.out.push('\n');
    }
}

/// An integer of 10⁻`digits`, printed exactly and without trailing zeros.
#[derive(Clone, Copy)]
pub(crate) struct Decimal {
    pub(crate) value: u64,
    pub(crate) digits: u32,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u64.checked_pow(self.digits).unwrap_or(u64::MAX);
        let (whole, rest) = (self.value / unit, self.value % unit);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let width = usize::try_from(self.digits).unwrap_or(0);
        let fraction = format!("{rest:0width$}");
        write!(f, "{whole}.{}", fraction.trim_end_matches('0'))
    }
}

/// A floating value as the format spells it.
#[derive(Clone, Copy)]
pub(crate) struct Float(pub(crate) f64);

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value.is_nan() => f.write_str("NaN"),
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            value => write!(f, "{value}"),
        }
    }
}

/// Help text escapes `\` and newline; a label's value escapes `"` too.
struct Escaped<'a> {
    text: &'a str,
    quotes: bool,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.text.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '"' if self.quotes => f.write_str("\\\"")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

struct LabelSet<'a> {
    labels: Labels<'a>,
    le: Option<&'a str>,
}

impl fmt::Display for LabelSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let le = self.le.map(|bound| ("le", bound));
        let mut separator = '{';
        for (name, value) in self.labels.iter().copied().chain(le) {
            write!(f, "{separator}{name}=\"{}\"", Escaped { text: value, quotes: true })?;
            separator = ',';
        }
        if separator == ',' { f.write_char('}') } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        for (value, digits, text) in [
            (0, 9, "0"),
            (1, 9, "0.000000001"),
            (2_500, 9, "0.0000025"),
            (1_500_000_000, 9, "1.5"),
            (7, 0, "7"),
        ] {
            assert_eq!(Decimal { value, digits }.to_string(), text);
        }
    }
}
