//! The settings of access: sign-in of operators, proxies in front of the API, and client certificates. Must not know how
//! they are read.

use headrace_edge::AddressHeader;

use super::field::{SettingField, field, joined};
use super::value::SettingKind;
use super::{billing_fields, limit_source};

/// Names of settings that are read one by one.
pub(super) const SIGN_IN: &str = "admin.sign_in";
pub(super) const NETWORKS: &str = "server.trusted_proxies";
pub(super) const PROXY_PROTOCOL: &str = "server.proxy_protocol";
pub(super) const HEADER: &str = "server.client_address_header";
pub(super) const CLIENT_CA: &str = "server.client_ca";
pub(super) const CLIENT_CERTIFICATES: &str = "server.client_certificates";
pub(super) const CLIENT_CRL: &str = "server.client_crl";

/// The settings of access, of a server that counts limits, and of billing.
pub(super) const FIELDS: &[SettingField] =
    &joined::<{ WITH_LIMITS.len() + billing_fields::FIELDS.len() }>(WITH_LIMITS, billing_fields::FIELDS);
const WITH_LIMITS: &[SettingField] =
    &joined::<{ OWN.len() + limit_source::FIELDS.len() }>(OWN, limit_source::FIELDS);

const OWN: &[SettingField] = &[
    field(
        SIGN_IN,
        SettingKind::Tables,
        "",
        "Each table is an OpenID Connect provider at which operators sign in to the console. `name` (lower-case letters, digits, hyphens) is in addresses and in the audit log, and `label` on the button. `issuer` is the `iss` of the provider's tokens. `client_id`, and `client_secret_file` unless the client is public, are those of this server at the provider. Register the redirect URI `ADMIN_URL/admin/v1/sign-in/NAME/callback` there, where `ADMIN_URL` is `admin.url`. `scopes` (`[\"profile\", \"email\"]`) are requested besides `openid`. `session` (`\"8h\"`, at most `\"12h\"`) bounds a session. `ca_file` is a PEM file of further authorities. `users_of` lists the organisations whose deactivated users lose their sessions; by default, those without operators of their own. `rules` is a list of tables, and the first that matches decides: `{ when = { groups = \"platform\" }, role = \"admin\" }`. `when` is as in `identity.issuers`. Roles are `owner`, `admin`, `billing`, `developer` and `viewer`. A session ends when a reload changes the rules of its provider. See [sign in to the console](recipes/console-sign-in.md).",
    ),
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
        PROXY_PROTOCOL,
        SettingKind::Flag,
        "false",
        "Whether the proxies of `server.trusted_proxies` begin each connection with a PROXY header of version 2, before TLS. The header names the client's address for all requests of the connection. A connection of any other sender, or without a valid header, is closed. Health checks must come through the proxy, or with a header of their own (`LOCAL`).",
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
        "Each table has `names`, and `project` or `service_account`: a client whose certificate has one of the names needs no other credential. Names are URI names as they are (`\"spiffe://acme/agent\"`), and DNS names as `\"dns:agent.example.com\"`. `service_account` is an id (`svc_…`), or a name with its `org`; the client then makes calls of the service account in its project, until that is deactivated. Optional keys are `org`, `models`, `requests_per_minute`, `tokens_per_minute` and `concurrency`, as in rules of `identity.issuers`. An API key beside such a certificate is refused, and so is a token, unless it is bound to the certificate (`cnf.x5t#S256`). Needs `server.client_ca`.",
    ),
];
