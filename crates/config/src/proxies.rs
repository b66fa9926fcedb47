//! Settings of what the API's listener knows about a client: proxies in front of it, and client certificates. Must not
//! know how a header or a certificate is read.

use headrace_edge::{AddressHeader, ClientAuthorities, TrustedProxies};

use super::SettingsReader;
use super::field::{SettingField, field};
use super::value::SettingKind;

const NETWORKS: &str = "server.trusted_proxies";
const HEADER: &str = "server.client_address_header";
const CLIENT_CA: &str = "server.client_ca";
const CLIENT_CERTIFICATES: &str = "server.client_certificates";
const CLIENT_CRL: &str = "server.client_crl";

/// The settings of proxies.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        NETWORKS,
        SettingKind::Text,
        "",
        "Networks and addresses of proxies in front of the API, separated by commas, such as `\"10.0.0.0/8, 192.0.2.7\"`. For their requests, the client's address is read from `server.client_address_header`: from the right, the first address that is none of these proxies. An entry that is no address ends the search at the proxy that wrote it. The address counts for `allowed_ips` of keys and for `server.max_refusals_per_peer`; connections are still counted by their own address. The header of any other sender is ignored. Default: none.",
    ),
    field(
        HEADER,
        SettingKind::Choice(AddressHeader::NAMES),
        "\"x-forwarded-for\"",
        "The header in which the proxies of `server.trusted_proxies` write the client's address. Only this one is read. Each proxy must add to it or replace it.",
    ),
    field(
        CLIENT_CA,
        SettingKind::Path,
        "",
        "PEM file of the authorities that issue client certificates. With it, the API's listener asks clients for a certificate (mutual TLS). Needs `server.tls_cert`. A reload reads the files again, for new connections. Sessions of TLS are then not resumed. Default: no certificate is asked for.",
    ),
    field(
        CLIENT_CERTIFICATES,
        SettingKind::Choice(&["optional", "required"]),
        "\"optional\"",
        "Whether a client must show a certificate of `server.client_ca`. With `required`, a connection without one is refused in the handshake.",
    ),
    field(
        CLIENT_CRL,
        SettingKind::Path,
        "",
        "PEM file of the revocation lists of the authorities in `server.client_ca`. A revoked certificate, one whose authority has no list, and every certificate once the list has expired, is refused. Default: certificates are good until they expire.",
    ),
    field(
        "identity.certificates",
        SettingKind::Tables,
        "",
        "Each table has `names` and `project`: a client whose certificate has one of the names needs no other credential. Names are URI names as they are (`\"spiffe://acme/agent\"`), and DNS names as `\"dns:agent.example.com\"`. Optional keys are `org`, `models`, `requests_per_minute`, `tokens_per_minute` and `concurrency`, as in rules of `identity.issuers`. An API key beside such a certificate is refused, and so is a token, unless it is bound to the certificate (`cnf.x5t#S256`). Needs `server.client_ca`.",
    ),
];

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

    pub(super) fn trusted_proxies(&mut self) -> TrustedProxies {
        let header = self.text(HEADER).as_deref().and_then(AddressHeader::named).unwrap_or_default();
        let networks = self.text(NETWORKS).unwrap_or_default();
        TrustedProxies::parse(&networks, header).unwrap_or_else(|why| {
            self.fault(NETWORKS, why);
            TrustedProxies::default()
        })
    }
}
