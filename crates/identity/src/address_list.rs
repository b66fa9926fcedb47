//! The addresses from which a key may be used. Must not know connections or proxies.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Maximum number of ranges in a list.
const MAX_RANGES: usize = 100;

/// A range of IP addresses: a network such as `203.0.113.0/24` or `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Returns whether the range contains an address. An IPv4 address that is written as an IPv6 address
    /// (`::ffff:203.0.113.7`) counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for AddressRange {
    type Err = String;

    /// Parses a network in CIDR notation (RFC 4632, RFC 4291) or one address. Bits after the prefix must be zero.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(IpNet::from(address.to_canonical())));
        }
        let network: IpNet = text.parse().map_err(|_| {
            format!("{text:?} is no IP address and no network such as 203.0.113.0/24 or 2001:db8::/32")
        })?;
        let whole = network.trunc();
        if whole != network {
            return Err(format!("{text:?} has bits after its prefix: write {whole}"));
        }
        if matches!(network, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some()) {
            return Err(format!("{text:?} is an IPv4 network in IPv6 form: write it as IPv4"));
        }
        Ok(Self(network))
    }
}

impl TryFrom<String> for AddressRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.prefix_len() == self.0.max_prefix_len() {
            true => self.0.addr().fmt(f),
            false => self.0.fmt(f),
        }
    }
}

/// The addresses from which a key may be used. An empty list allows every address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<AddressRange>", into = "Vec<AddressRange>")]
pub struct AddressList(Box<[AddressRange]>);

impl AddressList {
    /// Makes a list of ranges.
    ///
    /// # Errors
    /// More than 100 ranges.
    pub fn new(ranges: Vec<AddressRange>) -> Result<Self, String> {
        if ranges.len() > MAX_RANGES {
            return Err(format!("a list of addresses may have at most {MAX_RANGES} ranges"));
        }
        Ok(Self(ranges.into()))
    }

    /// Returns whether the list allows every address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the list allows an address.
    pub fn allows(&self, address: IpAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|range| range.contains(address))
    }

    /// The ranges.
    pub fn ranges(&self) -> &[AddressRange] {
        &self.0
    }
}

impl TryFrom<Vec<AddressRange>> for AddressList {
    type Error = String;

    fn try_from(ranges: Vec<AddressRange>) -> Result<Self, String> {
        Self::new(ranges)
    }
}

impl From<AddressList> for Vec<AddressRange> {
    fn from(list: AddressList) -> Self {
        list.0.into()
    }
}

impl fmt::Display for AddressList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else { return f.write_str("any address") };
        first.fmt(f)?;
        others.iter().try_for_each(|range| write!(f, ",{range}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_allows_the_addresses_of_its_ranges() {
        let rows: [(&[&str], &str, bool); 12] = [
            (&[], "203.0.113.9", true),
            (&["203.0.113.0/24"], "203.0.113.9", true),
            (&["203.0.113.0/24"], "203.0.114.9", false),
            (&["203.0.113.0/24"], "::ffff:203.0.113.9", true),
            (&["203.0.113.0/24"], "2001:db8::1", false),
            (&["10.0.0.1"], "10.0.0.1", true),
            (&["10.0.0.1"], "10.0.0.2", false),
            (&["::ffff:10.0.0.1"], "10.0.0.1", true),
            (&["2001:db8::/32"], "2001:db8:1::7", true),
            (&["2001:db8::/32"], "2001:db9::7", false),
            (&["10.0.0.0/8", "2001:db8::/32"], "2001:db8::7", true),
            (&["0.0.0.0/0"], "2001:db8::7", false),
        ];
        for (ranges, address, expected) in rows {
            let list = AddressList::new(ranges.iter().map(|range| range.parse().unwrap()).collect()).unwrap();
            assert_eq!(list.allows(address.parse().unwrap()), expected, "{list} {address}");
            let text = serde_json::to_string(&list).unwrap();
            assert_eq!(serde_json::from_str::<AddressList>(&text).unwrap(), list, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_ranges_are_refused_with_the_remedy() {
        for (text, part) in [
            ("203.0.113.7/24", "write 203.0.113.0/24"),
            ("::ffff:10.0.0.0/104", "write it as IPv4"),
            ("10.0.0.0/33", "no network such as"),
            ("example.com", "no network such as"),
            ("", "no network such as"),
        ] {
            let error = text.parse::<AddressRange>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let one: AddressRange = "10.0.0.1".parse().unwrap();
        assert!(AddressList::new(vec![one; MAX_RANGES]).is_ok());
        assert!(AddressList::new(vec![one; MAX_RANGES + 1]).is_err());
    }
}
