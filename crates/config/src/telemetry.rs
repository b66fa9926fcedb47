//! Builds the telemetry configuration from the settings of OTLP export. Must not know what is sent, or how.

use std::path::Path;

use headrace_telemetry::{Target, Telemetry, TelemetryConfig};

use super::SettingsReader;
use crate::ca::read_authorities;

/// A signal and its own settings.
struct OtlpSignal {
    /// The setting of its address.
    address: &'static str,
    /// The setting that switches it on or off.
    switch: &'static str,
    /// Its path below the common address.
    path: &'static str,
    /// The variable of its headers: `name=value,name=value`, values percent-encoded. Headers may be secrets, so there
    /// is no setting for them.
    headers: &'static str,
}

const SIGNALS: [OtlpSignal; 3] = [
    OtlpSignal {
        address: "telemetry.traces_endpoint",
        switch: "telemetry.traces",
        path: "/v1/traces",
        headers: "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    },
    OtlpSignal {
        address: "telemetry.metrics_endpoint",
        switch: "telemetry.metrics",
        path: "/v1/metrics",
        headers: "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    },
    OtlpSignal {
        address: "telemetry.logs_endpoint",
        switch: "telemetry.logs",
        path: "/v1/logs",
        headers: "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
    },
];
/// The variable of the headers for all signals.
const ALL_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

impl SettingsReader {
    /// Reads which signals are sent, and their destinations.
    pub(super) fn telemetry(&mut self) -> TelemetryConfig {
        let usual = TelemetryConfig::default();
        let common = self.text("telemetry.endpoint").filter(|text| !text.is_empty());
        let file = self.path("telemetry.headers_file").map(|path| headers_file(&path));
        let listed = file.transpose().map_err(|why| self.fault("telemetry.headers_file", why));
        let listed = listed.ok().flatten().unwrap_or_default();
        let off = self.is_on("telemetry.off");
        let [traces, metrics, logs] = SIGNALS.map(|of| {
            let below =
                || common.as_ref().map(|common| format!("{}{}", common.trim_end_matches('/'), of.path));
            let url = self.text(of.address).filter(|text| !text.is_empty()).or_else(below);
            let headers = || [listed.clone(), of_variable(ALL_HEADERS), of_variable(of.headers)].concat();
            url.filter(|_| self.is_on(of.switch) && !off).map(|url| Target { url, headers: headers() })
        });
        let pem = self.path("telemetry.ca_file").map(|path| read_authorities(&path));
        let pem = pem.transpose().map_err(|why| self.fault("telemetry.ca_file", why)).ok().flatten();
        let mut resource = pairs(&self.text("telemetry.resource").unwrap_or_default());
        let name = self.text("telemetry.service_name").unwrap_or_default();
        resource.retain(|(key, _)| key != "service.name" || name.is_empty());
        resource.push(("service.name".to_owned(), name));
        resource.push(("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
        let config = TelemetryConfig {
            traces,
            metrics,
            logs,
            resource,
            extra_roots_pem: pem,
            timeout: self.duration("telemetry.timeout"),
            metrics_every: self.duration("telemetry.metrics_every"),
            queue_records: self.size("telemetry.queue_records").unwrap_or(usual.queue_records),
            batch_records: self.size("telemetry.batch_records").unwrap_or(usual.batch_records),
            linger: self.duration("telemetry.linger"),
            retry_for: self.duration("telemetry.retry_for"),
            sample_percent: self.long("telemetry.sample_percent").unwrap_or(usual.sample_percent),
        };
        if let Err(why) = Telemetry::check(&config) {
            self.fault("telemetry", why);
        }
        config
    }
}

/// Reads the headers of a file: one `name: value` per line.
fn headers_file(path: &Path) -> Result<Vec<(String, String)>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) =
                line.split_once(':').ok_or("a line of it is no header: write `name: value`")?;
            Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect()
}

fn of_variable(name: &str) -> Vec<(String, String)> {
    pairs(&std::env::var(name).unwrap_or_default())
}

/// Parses `name=value,name=value` with percent-encoded values, in the format of W3C Baggage.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().to_owned(), decoded(value.trim()))).filter(|(name, _)| !name.is_empty())
    };
    text.split(',').filter_map(pair).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let (before, behind) = rest.split_at(at);
        bytes.extend_from_slice(before.as_bytes());
        match behind.get(1..3).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(b'%');
                rest = behind.get(1..).unwrap_or_default();
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::ServerSettings;
    use super::super::layers::SettingLayers;
    use super::*;

    fn read_with(file: &str, variables: &[(&str, &str)]) -> Result<TelemetryConfig, String> {
        let mut settings = SettingLayers::defaults();
        settings.file(Path::new("h.toml"), file);
        settings.environment(variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
        let config = ServerSettings::from_settings(settings, false).map_err(|error| error.to_string())?;
        Ok(config.telemetry)
    }

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        let quiet = read_with("", &[]).unwrap();
        assert!(!quiet.is_on());
        let usual = TelemetryConfig { resource: quiet.resource.clone(), ..TelemetryConfig::default() };
        assert_eq!(quiet, usual, "the defaults are the room's own");
        // OpenTelemetry's machine-wide variables must not stop a server that exports nothing.
        let machine = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_TRACES_EXPORTER", "console"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ];
        assert_eq!(read_with("", &machine).unwrap(), quiet);
        let off = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://far:4318"), ("OTEL_SDK_DISABLED", "true")];
        assert!(!read_with("", &off).unwrap().is_on());
    }

    #[test]
    fn the_variables_of_opentelemetrys_sdks_are_taken_and_ours_count_more() {
        let common = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://far:4318/");
        let more = [
            common,
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://logs/own"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_SERVICE_NAME", "theirs"),
            ("HEADRACE_TELEMETRY__SERVICE_NAME", "ours"),
        ];
        let read = read_with("", &more).unwrap();
        let url = |target: &Option<Target>| target.as_ref().map(|target| target.url.clone());
        assert_eq!(url(&read.traces).as_deref(), Some("http://far:4318/v1/traces"));
        assert_eq!(url(&read.logs).as_deref(), Some("http://logs/own"));
        assert_eq!((url(&read.metrics), read.timeout.as_millis()), (None, 1500));
        assert!(read.resource.contains(&("service.name".to_owned(), "ours".to_owned())));
        let file = "[telemetry]\nendpoint = \"http://file\"";
        let refused = read_with(file, &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap_err();
        assert!(refused.contains("OTEL_EXPORTER_OTLP_PROTOCOL") && refused.contains("http/protobuf"));
        let bad = read_with("[telemetry]\nendpoint = \"far:4318\"", &[]).unwrap_err();
        assert!(bad.contains("telemetry"), "{bad}");
    }

    #[test]
    fn headers_and_attributes_are_read_as_opentelemetry_writes_them() {
        let expected = [("a", "1 2"), ("x-key", "se=cret"), ("odd", "100%")];
        let read = pairs("a=1%202, x-key=se=cret,odd=100%,=none,");
        assert!(read.iter().map(|(name, value)| (name.as_str(), value.as_str())).eq(expected), "{read:?}");
    }
}
