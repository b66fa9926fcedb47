//! Exports traces, metrics and logs by OTLP over HTTP, outside the path of calls. Queues are bounded, a separate thread
//! sends, and every loss is counted. Names follow OpenTelemetry's semantic conventions 1.41.1. Must not know keys,
//! money, engines or a call's text: no word of a prompt or an answer is exported.

mod attributes;
mod config;
mod exporter;
mod genai;
mod logs;
mod points;
mod proto;
mod record_queue;
mod send;
mod spans;

pub use config::{Target, TelemetryConfig, TelemetryError};
pub use exporter::Telemetry;
