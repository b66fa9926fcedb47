//! Writes metric families in the two formats that Prometheus reads: its text format 0.0.4, and OpenMetrics 1.0.0, which
//! has exemplars. Escapes names and values. Knows no metric.
//! Sources: <https://prometheus.io/docs/instrumenting/exposition_formats/>,
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>.

use std::fmt::{self, Write as _};

use crate::family::{Exemplar, FamilyKind, HistogramBuckets, MetricFamily, SampleValue};

/// Decimal places of nanoseconds in seconds.
const NANO: u32 = 9;

/// The format of a metrics page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageFormat {
    /// `text/plain; version=0.0.4`
    #[default]
    Text,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
}

impl PageFormat {
    /// Chooses the format for an `Accept` header: OpenMetrics if the header names it with a quality above 0. Prometheus
    /// itself names OpenMetrics first.
    pub fn accepted(accept: Option<&str>) -> Self {
        let takes = |part: &str| {
            let mut words = part.split(';').map(str::trim);
            let named =
                words.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            named
                && !words.any(|word| {
                    word.starts_with("q=0") && word.trim_start_matches("q=").parse::<f64>() == Ok(0.0)
                })
        };
        match accept.is_some_and(|accept| accept.split(',').any(takes)) {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    /// The `Content-Type` header of the page.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes a page with these families.
pub(crate) fn page(families: &[MetricFamily], format: PageFormat) -> String {
    let mut page = ExpositionPage { out: String::new(), format };
    families.iter().for_each(|family| page.family(family));
    if format == PageFormat::OpenMetrics {
        page.line(format_args!("# EOF"));
    }
    page.out
}

/// Labels of one sample. The names are valid; the values may be any text.
type Labels<'a> = &'a [(String, String)];

struct ExpositionPage {
    out: String,
    format: PageFormat,
}

impl ExpositionPage {
    fn family(&mut self, family: &MetricFamily) {
        let name = match (self.format, family.kind) {
            // In OpenMetrics, a counter's family has no `_total` suffix, but its samples have it.
            (PageFormat::OpenMetrics, FamilyKind::Counter) => family.name.trim_end_matches("_total"),
            _ => &family.name,
        };
        // Only OpenMetrics escapes quotation marks in help texts.
        let quotes = self.format == PageFormat::OpenMetrics;
        let help = Escaped { text: &family.help, quotes };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", family.kind.name()));
        for sample in &family.samples {
            let labels = LabelSet { labels: &sample.labels, le: None };
            let name = &family.name;
            match &sample.value {
                SampleValue::Count(count) => self.line(format_args!("{name}{labels} {count}")),
                SampleValue::Number(number) => self.line(format_args!("{name}{labels} {}", Float(*number))),
                SampleValue::Histogram(buckets) => self.histogram(name, &sample.labels, buckets),
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, of: &HistogramBuckets) {
        let digits = of.digits;
        let bounds = of.bounds.iter().copied().map(Some).chain([None]);
        let exemplars = of.exemplars.iter().copied().chain(std::iter::repeat(None));
        let mut total = 0_u64;
        for ((bound, count), exemplar) in bounds.zip(&of.counts).zip(exemplars) {
            total = total.saturating_add(*count);
            let le = bound.map_or_else(|| "+Inf".to_owned(), |value| self.bound(value, digits));
            let labels = LabelSet { labels, le: Some(&le) };
            match exemplar.filter(|_| self.format == PageFormat::OpenMetrics) {
                None => self.line(format_args!("{name}_bucket{labels} {total}")),
                Some(seen) => {
                    let seen = ShownExemplar { seen, digits };
                    self.line(format_args!("{name}_bucket{labels} {total} # {seen}"));
                }
            }
        }
        let labels = LabelSet { labels, le: None };
        self.line(format_args!("{name}_sum{labels} {}", Decimal { value: of.sum, digits }));
        self.line(format_args!("{name}_count{labels} {total}"));
    }

    /// Formats a bucket bound. OpenMetrics writes whole bounds with a fraction.
    fn bound(&self, value: u64, digits: u32) -> String {
        let text = Decimal { value, digits }.to_string();
        match self.format == PageFormat::OpenMetrics && !text.contains('.') {
            true => format!("{text}.0"),
            false => text,
        }
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.out.write_fmt(line);
        self.out.push('\n');
    }
}

/// An exemplar in OpenMetrics format: labels, value, time in seconds.
struct ShownExemplar {
    seen: Exemplar,
    digits: u32,
}

impl fmt::Display for ShownExemplar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exemplar { value, at, request, context } = self.seen;
        write!(f, "{{trace_id=\"{:032x}\",request_id=\"{request}\"}} ", context.trace)?;
        let value = Decimal { value, digits: self.digits };
        write!(f, "{value} {}", Decimal { value: at.get(), digits: NANO })
    }
}

/// An integer in units of 10⁻`digits`, printed exactly and without trailing zeros.
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

/// A floating-point value in the format's spelling.
#[derive(Clone, Copy)]
struct Float(f64);

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

/// Escaped text. Help texts escape `\` and newlines; label values also escape `"`.
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
        let labels = self.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let le = self.le.map(|bound| ("le", bound));
        let mut separator = '{';
        for (name, value) in labels.chain(le) {
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

    #[test]
    fn openmetrics_goes_to_whoever_names_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.3";
        for (accept, expected) in [
            (None, PageFormat::Text),
            (Some(""), PageFormat::Text),
            (Some("*/*"), PageFormat::Text),
            (Some("text/plain"), PageFormat::Text),
            (Some(prometheus), PageFormat::OpenMetrics),
            (Some("Application/OpenMetrics-Text"), PageFormat::OpenMetrics),
            (Some("application/openmetrics-text;q=0, text/plain"), PageFormat::Text),
        ] {
            assert_eq!(PageFormat::accepted(accept), expected, "{accept:?}");
        }
    }
}
