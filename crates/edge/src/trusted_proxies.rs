//! The client's address behind proxies that the operator trusts (RFC 7239). A header of another sender decides nothing.
//! Must not know what an address is used for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ipnet::IpNet;

/// Maximum number of networks.
const MAX_NETWORKS: usize = 100;

/// The header in which trusted proxies write addresses. Only one is read: a proxy that writes the one passes the other on
/// as its sender wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressHeader {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.1`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7, for="[2001:db8::1]:443"`
    Forwarded,
}

impl AddressHeader {
    /// The names of the headers.
    pub const NAMES: &'static [&'static str] = &["x-forwarded-for", "forwarded"];

    /// The header with this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "x-forwarded-for" => Some(Self::XForwardedFor),
            "forwarded" => Some(Self::Forwarded),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }
}

/// The proxies whose header is believed. None by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustedProxies {
    networks: Box<[IpNet]>,
    header: AddressHeader,
}

/// Why a text is not a list of networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadNetwork {
    /// The entry at fault, and what is wrong with it.
    pub why: String,
}

impl fmt::Display for BadNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for BadNetwork {}

impl TrustedProxies {
    /// Parses networks and addresses, separated by commas, such as `10.0.0.0/8, 192.0.2.7`.
    ///
    /// # Errors
    /// The first entry that is no network, or more than 100 entries.
    pub fn parse(text: &str, header: AddressHeader) -> Result<Self, BadNetwork> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let networks: Vec<IpNet> = entries.map(network).collect::<Result<_, _>>()?;
        if networks.len() > MAX_NETWORKS {
            let why = format!("has {} networks; at most {MAX_NETWORKS} are read", networks.len());
            return Err(BadNetwork { why });
        }
        Ok(Self { networks: networks.into(), header })
    }

    /// Returns the client of a request that a trusted proxy sent: walks the header from the right, past the trusted
    /// proxies, to the first other address. The walk ends before an entry that is no address, at the proxy that wrote
    /// it. `None` if the sender is not trusted, or its header names no address. The port is 0, because proxies seldom
    /// write it.
    pub(crate) fn client(&self, sender: SocketAddr, headers: &HeaderMap) -> Option<SocketAddr> {
        if !self.trusts(sender.ip()) {
            return None;
        }
        let mut client = None;
        // Several header lines are one list (RFC 9110, 5.3).
        for value in headers.get_all(self.header.name()).iter().rev() {
            let Ok(list) = value.to_str() else { break };
            for entry in list.rsplit(',') {
                let Some(address) = self.address(entry) else { return client };
                client = Some(SocketAddr::new(address, 0));
                if !self.trusts(address) {
                    return client;
                }
            }
        }
        client
    }

    /// Whether no proxy is trusted.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Whether an address is that of a trusted proxy.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Reads the address of one entry. `None` for `unknown`, names such as `_hidden`, and malformed entries.
    fn address(&self, entry: &str) -> Option<IpAddr> {
        let node = match self.header {
            AddressHeader::XForwardedFor => entry.trim(),
            AddressHeader::Forwarded => {
                let mut pairs = entry.split(';').filter_map(|pair| pair.trim().split_once('='));
                let (_, node) = pairs.find(|(name, _)| name.eq_ignore_ascii_case("for"))?;
                match node.strip_prefix('"') {
                    Some(quoted) => quoted.strip_suffix('"')?,
                    None => node,
                }
            }
        };
        address_of(node).map(|address| address.to_canonical())
    }
}

/// An address without or with a port, an IPv6 address also in brackets.
fn address_of(node: &str) -> Option<IpAddr> {
    if let Some(rest) = node.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let is_port =
            port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
        return is_port.then(|| address.parse().ok().map(IpAddr::V6)).flatten();
    }
    node.parse().ok().or_else(|| node.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
}

fn network(text: &str) -> Result<IpNet, BadNetwork> {
    let bad = |why: String| BadNetwork { why: format!("{text:?} {why}") };
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address.to_canonical()));
    }
    let network: IpNet = text
        .parse()
        .map_err(|_| bad("is no IP address and no network such as 10.0.0.0/8 or 2001:db8::/32".to_owned()))?;
    if network.trunc() != network {
        return Err(bad(format!("has bits after its prefix: write {}", network.trunc())));
    }
    if matches!(network, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some()) {
        return Err(bad("is an IPv4 network in IPv6 form: write it as IPv4".to_owned()));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn client(header: AddressHeader, sender: &str, values: &[&str]) -> Option<String> {
        let proxies = TrustedProxies::parse("10.0.0.0/8, 192.0.2.7, 2001:db8::/32", header).unwrap();
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header.name(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let sender = SocketAddr::new(sender.parse().unwrap(), 4711);
        proxies.client(sender, &headers).map(|client| client.ip().to_string())
    }

    #[test]
    fn the_first_address_from_the_right_that_is_no_trusted_proxy_is_the_client() {
        let xff = AddressHeader::XForwardedFor;
        for (sender, values, expected) in [
            // One proxy, and several.
            ("10.0.0.1", &["203.0.113.7"][..], Some("203.0.113.7")),
            ("10.0.0.1", &["203.0.113.7, 10.0.0.2, 192.0.2.7"], Some("203.0.113.7")),
            ("10.0.0.1", &["203.0.113.7,10.0.0.2", "192.0.2.7"], Some("203.0.113.7")),
            ("::ffff:10.0.0.1", &["203.0.113.7"], Some("203.0.113.7")),
            ("2001:db8::1", &["2001:db9::2"], Some("2001:db9::2")),
            // What a client wrote before its first proxy is left of the client, and decides nothing.
            ("10.0.0.1", &["127.0.0.1, 203.0.113.7"], Some("203.0.113.7")),
            ("10.0.0.1", &["10.9.9.9, 203.0.113.7, 10.0.0.2"], Some("203.0.113.7")),
            ("10.0.0.1", &["127.0.0.1", "203.0.113.7"], Some("203.0.113.7")),
            ("10.0.0.1", &["127.0.0.1, nonsense, 203.0.113.7"], Some("203.0.113.7")),
            // A sender that is not trusted.
            ("203.0.113.9", &["127.0.0.1"], None),
            ("203.0.113.9", &["127.0.0.1, 10.0.0.1"], None),
            ("192.0.2.8", &["203.0.113.7"], None),
            // No address: the proxy itself, or the one before the malformed entry.
            ("10.0.0.1", &[], None),
            ("10.0.0.1", &[""], None),
            ("10.0.0.1", &["unknown"], None),
            ("10.0.0.1", &["203.0.113.7, unknown, 10.0.0.2"], Some("10.0.0.2")),
            ("10.0.0.1", &["203.0.113.7,, 10.0.0.2"], Some("10.0.0.2")),
            ("10.0.0.1", &["203.0.113.7 10.0.0.2"], None),
            ("10.0.0.1", &["203.0.113.256"], None),
            ("10.0.0.1", &["\u{e9}"], None),
            // Only proxies: the outermost one.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], Some("10.0.0.3")),
            // Ports and other forms.
            ("10.0.0.1", &["203.0.113.7:50000"], Some("203.0.113.7")),
            ("10.0.0.1", &["[2001:db9::2]:50000"], Some("2001:db9::2")),
            ("10.0.0.1", &["[2001:db9::2]"], Some("2001:db9::2")),
            ("10.0.0.1", &["[2001:db9::2]x"], None),
            ("10.0.0.1", &["[203.0.113.7]"], None),
            ("10.0.0.1", &["::ffff:203.0.113.7"], Some("203.0.113.7")),
            ("10.0.0.1", &["203.0.113.7, ::ffff:10.0.0.2"], Some("203.0.113.7")),
        ] {
            assert_eq!(client(xff, sender, values).as_deref(), expected, "{sender} {values:?}");
        }
    }

    #[test]
    fn forwarded_is_read_as_rfc_7239_writes_it() {
        for (values, expected) in [
            (&["for=203.0.113.7"][..], Some("203.0.113.7")),
            (&["For=\"[2001:db9::2]:4711\";proto=https, for=10.0.0.2;by=10.0.0.1"], Some("2001:db9::2")),
            (&["for=127.0.0.1, for=203.0.113.7;host=x", "for=10.0.0.2"], Some("203.0.113.7")),
            (&["for=203.0.113.7, for=_hidden, for=10.0.0.2"], Some("10.0.0.2")),
            (&["for=203.0.113.7, proto=https"], None),
            (&["for=\"203.0.113.7"], None),
            (&["203.0.113.7"], None),
        ] {
            assert_eq!(
                client(AddressHeader::Forwarded, "10.0.0.1", values).as_deref(),
                expected,
                "{values:?}"
            );
        }
        // The other header decides nothing.
        let proxies = TrustedProxies::parse("10.0.0.0/8", AddressHeader::Forwarded).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_static("203.0.113.7"));
        assert_eq!(proxies.client(([10, 0, 0, 1], 1).into(), &headers), None);
    }

    #[test]
    fn a_bad_network_is_named() {
        let why = |text: &str| TrustedProxies::parse(text, AddressHeader::default()).unwrap_err().to_string();
        assert!(why("10.0.0.0/8, x").contains("\"x\" is no IP address"));
        assert!(why("10.0.0.1/8").contains("write 10.0.0.0/8"));
        assert!(why("::ffff:10.0.0.0/104").contains("write it as IPv4"));
        assert!(why(&["10.0.0.1"; 101].join(",")).contains("at most 100"));
        let none = TrustedProxies::parse("", AddressHeader::default()).unwrap();
        assert_eq!(none, TrustedProxies::default());
        assert_eq!(none.client(([10, 0, 0, 1], 1).into(), &HeaderMap::new()), None);
    }
}
