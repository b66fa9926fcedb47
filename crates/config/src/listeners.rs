//! Reads the settings of the admin listener. Must not know who listens.

use super::SettingsReader;
use super::admin::{AdminListen, AdminSettings};
use super::value::{ParsedValue, SettingKind};

const LISTEN: &str = "admin.listen";
const URL: &str = "admin.url";
const TLS: &str = "admin.tls";

impl SettingsReader {
    pub(super) fn admin(&mut self) -> AdminSettings {
        let listen = match self.text(LISTEN).as_deref() {
            None => AdminListen::Usual,
            Some("off") => AdminListen::Off,
            Some(text) => match SettingKind::Address.parse_text(text) {
                Ok(ParsedValue::Address(at)) => AdminListen::At(at),
                _ => {
                    self.fault(
                        LISTEN,
                        format!("\"{text}\" is neither an address such as \"127.0.0.1:8081\" nor \"off\""),
                    );
                    AdminListen::Off
                }
            },
        };
        let url = self.text(URL);
        if let Some(url) = &url {
            let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let host = host.map(|host| host.trim_end_matches('/'));
            if !host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' '])) {
                let why = "must be a scheme and a host, such as \"https://console.example.com\"";
                self.fault(URL, why);
            }
        }
        let tls = self.is_on(TLS);
        if tls && self.path("server.tls_cert").is_none() {
            self.fault(TLS, "needs `server.tls_cert` and `server.tls_key` (--tls-cert, --tls-key)");
        }
        let url = url.map(|url| url.trim_end_matches('/').to_owned());
        let sign_in = self.sign_in();
        let is_local = !matches!(listen, AdminListen::At(at) if !at.ip().is_loopback());
        if !sign_in.is_empty() && url.is_none() && !is_local {
            let why = "is missing: identity providers lead browsers back to this URL (`admin.sign_in`)";
            self.fault(URL, why);
        }
        AdminSettings { listen, url, tls, sign_in, most_connections: usize::MAX }
    }
}
