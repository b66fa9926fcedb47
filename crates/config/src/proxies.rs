//! Settings of what the API's listener knows about a client: proxies in front of it, and client certificates. Must not
//! know how a header or a certificate is read.

use headrace_edge::{AddressHeader, ClientAuthorities, TrustedProxies};

use super::SettingsReader;
use super::access_fields::{CLIENT_CA, CLIENT_CERTIFICATES, CLIENT_CRL, HEADER, NETWORKS, PROXY_PROTOCOL};

impl SettingsReader {
    pub(super) fn client_authorities(&mut self) -> Option<ClientAuthorities> {
        let (authorities, revocations) = (self.path(CLIENT_CA), self.path(CLIENT_CRL));
        let is_required = self.text(CLIENT_CERTIFICATES).is_some_and(|text| text == "required");
        let Some(authorities) = authorities else {
            for (path, is_set) in [(CLIENT_CRL, revocations.is_some()), (CLIENT_CERTIFICATES, is_required)] {
                if is_set {
                    self.fault(path, "needs `server.client_ca`");
                }
            }
            return None;
        };
        if self.path("server.tls_cert").is_none() {
            self.fault(CLIENT_CA, "needs `server.tls_cert` and `server.tls_key` (--tls-cert, --tls-key)");
        }
        Some(ClientAuthorities { authorities, revocations, is_required })
    }

    pub(super) fn proxy_protocol(&mut self) -> bool {
        let is_on = self.is_on(PROXY_PROTOCOL);
        if is_on && self.text(NETWORKS).is_none_or(|text| text.trim().is_empty()) {
            self.fault(PROXY_PROTOCOL, "needs `server.trusted_proxies`: no sender would be let in");
        }
        is_on
    }

    pub(super) fn trusted_proxies(&mut self) -> TrustedProxies {
        let header = self.text(HEADER).as_deref().and_then(AddressHeader::named).unwrap_or_default();
        let networks = self.text(NETWORKS).unwrap_or_default();
        TrustedProxies::parse(&networks, header).unwrap_or_else(|why| {
            self.fault(NETWORKS, why);
            TrustedProxies::default()
        })
    }
}
