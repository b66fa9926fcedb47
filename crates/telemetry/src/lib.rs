//! Traces, metrics and logs out to others' tools by OTLP over HTTP, beside the path of calls: bounded queues, tasks of their own, every
//! loss counted. Names are those of OpenTelemetry's semantic conventions 1.41.1.
//! Must not know keys, money, engines or what a call's words were; no word of a prompt or an answer leaves by here.

mod attributes;
mod config;
mod exporter;
mod genai;
mod lane;
mod logs;
mod points;
mod proto;
mod send;
mod spans;

pub use config::{Target, TelemetryConfig, TelemetryError};
pub use exporter::Telemetry;
