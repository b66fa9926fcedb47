//! Reads the settings of the stores besides keys and ledger. Knows no store.

use headrace_gateway::IdempotencyConfig;
use headrace_objects::{FileLimits, ObjectLimits};
use headrace_store::StorageUrl;
use headrace_store::trace::TraceRetention;

use super::storage::StorageSettings;
use super::{SettingsReader, TraceSettings};

/// The name of this machine, or of the container. `gateway` if it is not known.
fn machine_name() -> String {
    let of_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = of_kernel.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "gateway".to_owned() } else { name.to_owned() }
}

/// Maximum bytes of a gateway's name.
const MAX_NAME_BYTES: usize = 128;

impl SettingsReader {
    pub(super) fn storage(&mut self) -> StorageSettings {
        let data_dir = self.path("data_dir").unwrap_or_default();
        let url = self.text("storage.url").filter(|url| !url.is_empty());
        let url = url.and_then(|url| {
            let parsed = StorageUrl::parse_in(&url, &data_dir);
            parsed.map_err(|error| self.fault("storage.url", error)).ok()
        });
        StorageSettings {
            url,
            secret_file: self.path("storage.secret_file"),
            gateway_name: self.gateway_name(),
            gateway_address: self.gateway_address(),
            objects_dir: self.path("objects_dir"),
            max_total_bytes: self.long("objects.max_total"),
            min_free_bytes: self.long("objects.min_free_disk"),
            max_answers_bytes: self.long("idempotency.max_total").unwrap_or(1),
            max_trace_bytes: self.long("traces.max_size").unwrap_or(1),
        }
    }

    fn gateway_name(&mut self) -> String {
        let name = self.text("gateway.name").filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(machine_name);
        if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            let fault = format!("it must have at most {MAX_NAME_BYTES} bytes and no control characters");
            self.fault("gateway.name", fault);
        }
        name
    }

    fn gateway_address(&mut self) -> Option<String> {
        let address = self.text("gateway.advertise").filter(|address| !address.is_empty())?;
        let host = ["http://", "https://"].iter().find_map(|scheme| address.strip_prefix(scheme));
        let host = host.map(|host| host.trim_end_matches('/'));
        if !host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' '])) {
            let fault = "it must be the URL of this gateway's admin listener without a path, such as http://10.0.0.1:8081";
            self.fault("gateway.advertise", fault);
            return None;
        }
        Some(address.trim_end_matches('/').to_owned())
    }

    pub(super) fn objects(&self) -> ObjectLimits {
        let long = |path| self.long(path).unwrap_or(1);
        ObjectLimits {
            retention_seconds: self.duration("objects.retention").as_secs(),
            max_object_bytes: long("objects.max_object"),
            max_responses_per_project: long("objects.max_responses_per_project"),
            max_response_bytes_per_project: long("objects.max_response_bytes_per_project"),
            max_conversations_per_project: long("objects.max_conversations_per_project"),
            max_conversation_bytes_per_project: long("objects.max_conversation_bytes_per_project"),
            max_items_per_conversation: long("objects.max_items_per_conversation"),
            max_turns: self.size("objects.max_turns").unwrap_or(1),
            max_history_bytes: long("objects.max_history"),
            max_total_bytes: self.long("objects.max_total").unwrap_or(u64::MAX >> 1),
        }
    }

    pub(super) fn files(&self) -> FileLimits {
        let long = |path| self.long(path).unwrap_or(1);
        FileLimits {
            max_file_bytes: long("objects.max_file"),
            max_files_per_project: long("objects.max_files_per_project"),
            max_file_bytes_per_project: long("objects.max_file_bytes_per_project"),
            max_total_bytes: self.long("objects.max_total").unwrap_or(u64::MAX >> 1),
            max_open_batches_per_project: long("objects.max_open_batches_per_project"),
            max_requests_per_batch: long("objects.max_requests_per_batch"),
        }
    }

    pub(super) fn idempotency(&self) -> IdempotencyConfig {
        IdempotencyConfig {
            keep: self.duration("idempotency.keep"),
            max_answer_bytes: self.size("idempotency.max_answer").unwrap_or(1),
        }
    }

    pub(super) fn traces(&self) -> TraceSettings {
        let max_age = Some(self.duration("traces.max_age")).filter(|age| !age.is_zero());
        TraceSettings {
            retention: TraceRetention { max_records: self.long("traces.max_records").unwrap_or(1), max_age },
            queue_records: self.size("traces.queue_records").unwrap_or(1),
            recent_records: self.size("traces.recent_records").unwrap_or(0),
            strangers_per_second: self.count("traces.strangers_per_second").unwrap_or(0),
        }
    }
}
