//! Reads the settings of a server of rate limits. Knows no connection.

use super::SettingsReader;
use super::limit_source::{LimitServerSettings, PREFIX, URL};

const SCHEMES: [&str; 4] = ["redis://", "rediss://", "valkey://", "valkeys://"];
/// Maximum bytes of a prefix.
const MAX_PREFIX_BYTES: usize = 64;

impl SettingsReader {
    /// Reads the server of rate limits. `None` without a URL.
    pub(super) fn limit_server(&mut self) -> Option<LimitServerSettings> {
        let url = self.text(URL).filter(|url| !url.is_empty())?;
        if !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            self.fault(
                URL,
                "it must begin with redis:// or, for TLS, rediss://, such as redis://10.0.0.5:6379/0",
            );
            return None;
        }
        let prefix = self.text(PREFIX).unwrap_or_default();
        if !(1..=MAX_PREFIX_BYTES).contains(&prefix.len())
            || !prefix.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
        {
            let fault = format!(
                "it must have 1 to {MAX_PREFIX_BYTES} letters, digits, hyphens, underscores, dots or colons"
            );
            self.fault(PREFIX, fault);
            return None;
        }
        let refuses = self.text("limits.valkey.when_unreachable").is_some_and(|policy| policy == "refuse");
        Some(LimitServerSettings { url, ca_file: self.path("limits.valkey.ca_file"), prefix, refuses })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ServerSettings;
    use crate::layers::SettingLayers;

    fn read(file: &str) -> (Option<LimitServerSettings>, Vec<String>) {
        let mut settings = SettingLayers::defaults();
        settings.file(Path::new("a.toml"), file);
        let (read, settings) = ServerSettings::read(settings, true);
        (read.limit_server, settings.problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_server_of_limits_is_read() {
        assert_eq!(read("").0, None);
        let (server, problems) = read("limits.valkey.url = \"redis://me:pw@h/1\"");
        let expected = LimitServerSettings {
            url: "redis://me:pw@h/1".to_owned(),
            ca_file: None,
            prefix: "headrace".to_owned(),
            refuses: false,
        };
        assert_eq!((server, problems), (Some(expected), vec![]));
        let file =
            "limits.valkey = { url = \"rediss://h\", when_unreachable = \"refuse\", prefix = \"eu-1\" }";
        let (server, problems) = read(file);
        assert!(server.is_some_and(|server| server.refuses && server.prefix == "eu-1"), "{problems:?}");
        for (file, fault) in [
            ("limits.valkey.url = \"http://h\"", "must begin with redis://"),
            ("limits.valkey = { url = \"redis://h\", prefix = \"{a}\" }", "must have 1 to 64"),
            ("limits.valkey = { url = \"redis://h\", when_unreachable = \"open\" }", "share"),
        ] {
            let problems = read(file).1;
            assert!(problems.iter().any(|problem| problem.contains(fault)), "{file}: {problems:?}");
        }
    }
}
