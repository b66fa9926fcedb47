//! Settings of proxies in front of the API. Must not know how a header is read.

use headrace_edge::{AddressHeader, TrustedProxies};

use super::SettingsReader;
use super::field::{SettingField, field};
use super::value::SettingKind;

const NETWORKS: &str = "server.trusted_proxies";
const HEADER: &str = "server.client_address_header";

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
];

impl SettingsReader {
    pub(super) fn trusted_proxies(&mut self) -> TrustedProxies {
        let header = self.text(HEADER).as_deref().and_then(AddressHeader::named).unwrap_or_default();
        let networks = self.text(NETWORKS).unwrap_or_default();
        TrustedProxies::parse(&networks, header).unwrap_or_else(|why| {
            self.fault(NETWORKS, why);
            TrustedProxies::default()
        })
    }
}
