//! Reads the settings of what is recorded of calls. Knows no store.

use headrace_domain::{ClientAddressPolicy, RecordPolicy};

use super::SettingsReader;
use super::record_fields::ContentBounds;

impl SettingsReader {
    /// The policy of projects that set none.
    pub(super) fn record_policy(&self) -> RecordPolicy {
        let level = self.text("records.level").and_then(|name| name.parse().ok());
        let keep_seconds = self.duration("records.keep").as_secs();
        RecordPolicy { level: level.unwrap_or_default(), keep_seconds }
    }

    /// What traces record of clients' addresses.
    pub(super) fn client_address(&self) -> ClientAddressPolicy {
        let name = self.text("traces.client_address");
        let known =
            ClientAddressPolicy::ALL.into_iter().find(|policy| Some(policy.name()) == name.as_deref());
        known.unwrap_or_default()
    }

    /// Bounds on requests and answers.
    pub(super) fn content_bounds(&self) -> ContentBounds {
        ContentBounds {
            max_call_bytes: self.size("records.max_call").unwrap_or(1),
            max_total_bytes: self.long("records.max_size").unwrap_or(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{ServerSettings, SettingLayers};

    #[test]
    fn the_policy_for_addresses_of_clients_is_read_by_its_name() {
        for policy in ClientAddressPolicy::ALL {
            let mut settings = SettingLayers::defaults();
            let text = format!("[traces]\nclient_address = \"{}\"\n", policy.name());
            settings.file(Path::new("h.toml"), &text);
            let read = ServerSettings::from_settings(settings, false).unwrap();
            assert_eq!(read.gateway.client_address, policy);
        }
    }
}
