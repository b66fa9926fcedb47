//! The address of a client as traces record it: a network, or the whole address, or nothing. Must not know how an address is
//! found.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bits of a recorded IPv4 network.
const V4_BITS: u8 = 24;
/// Bits of a recorded IPv6 network: what a provider gives to one customer at most.
const V6_BITS: u8 = 48;

/// What traces record of clients' addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientAddressPolicy {
    /// Nothing.
    None,
    /// The network: the first 24 bits of an IPv4 address, the first 48 bits of an IPv6 address.
    #[default]
    Network,
    /// The whole address.
    Full,
}

impl ClientAddressPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::None, Self::Network, Self::Full];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Network => "network",
            Self::Full => "full",
        }
    }

    /// What is recorded of an address. `None` if nothing is.
    pub fn record(self, address: IpAddr) -> Option<ClientAddress> {
        // An IPv4 client of an IPv6 socket has an address that maps to its own.
        let address = address.to_canonical();
        let network = ClientNetwork::of(address);
        match self {
            Self::None => None,
            Self::Network => Some(ClientAddress { network, address: None }),
            Self::Full => Some(ClientAddress { network, address: Some(address) }),
        }
    }
}

/// The address of a client in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientAddress {
    /// The network.
    pub network: ClientNetwork,
    /// The whole address. `None` if only the network is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

impl fmt::Display for ClientAddress {
    /// Writes what is recorded: the address, or the network such as `203.0.113.0/24`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => address.fmt(f),
            None => self.network.fmt(f),
        }
    }
}

/// A network of clients: 24 bits of IPv4, or 48 bits of IPv6. Its text is that of its first address, with the number of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClientNetwork {
    first: IpAddr,
}

impl ClientNetwork {
    /// The network of an address.
    pub fn of(address: IpAddr) -> Self {
        let first = match address {
            IpAddr::V4(address) => {
                Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - V4_BITS))).into()
            }
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - V6_BITS))).into()
            }
        };
        Self { first }
    }

    const fn bits(self) -> u8 {
        match self.first {
            IpAddr::V4(_) => V4_BITS,
            IpAddr::V6(_) => V6_BITS,
        }
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits())
    }
}

impl From<ClientNetwork> for String {
    fn from(network: ClientNetwork) -> Self {
        network.to_string()
    }
}

impl TryFrom<String> for ClientNetwork {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.parse()? {
            AskedAddress::Network(network) => Ok(network),
            AskedAddress::Address(_) => Err(format!("`{text}` is no network")),
        }
    }
}

/// An address or a network that calls are searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedAddress {
    /// Calls from this address, and calls of its network whose whole address is not recorded.
    Address(IpAddr),
    /// Calls from this network.
    Network(ClientNetwork),
}

impl AskedAddress {
    /// The network that recorded addresses must have.
    pub fn network(self) -> ClientNetwork {
        match self {
            Self::Address(address) => ClientNetwork::of(address),
            Self::Network(network) => network,
        }
    }

    /// Whether a recorded address is asked for.
    pub fn matches(self, recorded: &ClientAddress) -> bool {
        let is_address = match self {
            Self::Address(asked) => recorded.address.is_none_or(|address| address == asked),
            Self::Network(_) => true,
        };
        is_address && recorded.network == self.network()
    }
}

impl FromStr for AskedAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            "it must be an address such as 203.0.113.9, or a network: 203.0.113.0/24, 2001:db8:7::/48"
                .to_owned()
        };
        let address =
            |text: &str| text.parse::<IpAddr>().map(|address| address.to_canonical()).map_err(|_| bad());
        let Some((first, bits)) = text.split_once('/') else { return address(text).map(Self::Address) };
        let first = address(first)?;
        let network = ClientNetwork::of(first);
        let is_recorded = network.first == first && bits.parse() == Ok(network.bits());
        if is_recorded { Ok(Self::Network(network)) } else { Err(bad()) }
    }
}

impl fmt::Display for AskedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Network(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_records_nothing_a_network_or_the_address() {
        for (address, network, full) in [
            ("203.0.113.9", "203.0.113.0/24", "203.0.113.9"),
            ("::ffff:203.0.113.9", "203.0.113.0/24", "203.0.113.9"),
            ("255.255.255.255", "255.255.255.0/24", "255.255.255.255"),
            ("2001:db8:7:8::9", "2001:db8:7::/48", "2001:db8:7:8::9"),
            ("2001:db8:0:8::9", "2001:db8::/48", "2001:db8:0:8::9"),
            ("::1", "::/48", "::1"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let [none, by_network, whole] = ClientAddressPolicy::ALL.map(|policy| policy.record(address));
            assert_eq!(none, None);
            assert_eq!(by_network.unwrap().to_string(), network);
            assert_eq!(whole.unwrap().to_string(), full);
            for recorded in [by_network.unwrap(), whole.unwrap()] {
                let json = serde_json::to_string(&recorded).unwrap();
                assert_eq!(serde_json::from_str::<ClientAddress>(&json).unwrap(), recorded, "{json}");
                assert_eq!(json.contains(full), recorded.address.is_some(), "{json}");
            }
        }
    }

    #[test]
    fn a_search_finds_an_address_its_network_and_nothing_else() {
        let recorded = |policy: ClientAddressPolicy| policy.record("203.0.113.9".parse().unwrap()).unwrap();
        for (asked, by_network, whole) in [
            ("203.0.113.9", true, true),
            ("203.0.113.8", true, false),
            ("203.0.114.9", false, false),
            ("203.0.113.0/24", true, true),
            ("203.0.114.0/24", false, false),
            ("2001:db8:7::/48", false, false),
            ("::ffff:203.0.113.9", true, true),
        ] {
            let found: AskedAddress = asked.parse().unwrap();
            assert_eq!(found.matches(&recorded(ClientAddressPolicy::Network)), by_network, "{asked}");
            assert_eq!(found.matches(&recorded(ClientAddressPolicy::Full)), whole, "{asked}");
        }
        for bad in ["", "x", "203.0.113.0/16", "203.0.113.9/24", "203.0.113.0/", "2001:db8::1/48", "/24"] {
            assert!(bad.parse::<AskedAddress>().is_err(), "{bad}");
        }
    }
}
