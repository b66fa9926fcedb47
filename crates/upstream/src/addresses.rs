//! Which addresses of a server's name are used, decided by DNS answers and failed connections. A pure state. Must not
//! know how or when a name is looked up.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Number of consecutive DNS answers without an address after which it is dropped. Answers may be partial.
const ABSENCES: u32 = 3;
/// Maximum number of addresses of one name that are used.
const MOST_ADDRESSES: usize = 64;

/// The addresses of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameAddresses {
    known: BTreeMap<IpAddr, KnownAddress>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KnownAddress {
    /// Number of consecutive answers without this address.
    absences: u32,
    /// The last connection attempt to this address failed.
    unreached: bool,
}

impl NameAddresses {
    /// Applies a DNS answer. New addresses are used from now on. An address that was absent from three answers in a row
    /// is dropped. If the answer has IPv4 addresses, its IPv6 addresses are ignored: usually both lead to the same
    /// servers.
    pub fn answered(&mut self, found: &[IpAddr]) {
        let has_v4 = found.iter().any(IpAddr::is_ipv4);
        let found: Vec<IpAddr> = found.iter().filter(|ip| ip.is_ipv4() == has_v4).copied().collect();
        if found.is_empty() {
            return;
        }
        for (ip, known) in &mut self.known {
            known.absences = if found.contains(ip) { 0 } else { known.absences.saturating_add(1) };
        }
        self.known.retain(|_, known| known.absences < ABSENCES);
        for ip in found {
            if self.known.len() < MOST_ADDRESSES {
                self.known.entry(ip).or_default();
            }
        }
    }

    /// Records that a connection to an address failed. The address is unused until [`Self::reached`].
    pub fn unreached(&mut self, ip: IpAddr) {
        if let Some(known) = self.known.get_mut(&ip) {
            known.unreached = true;
        }
    }

    /// Records that a connection to an address succeeded.
    pub fn reached(&mut self, ip: IpAddr) {
        if let Some(known) = self.known.get_mut(&ip) {
            known.unreached = false;
        }
    }

    /// Returns the addresses to use, in order: all known addresses except those that could not be reached. If none
    /// could be reached, returns all of them, because no better choice is known.
    pub fn used(&self) -> Vec<IpAddr> {
        let all = || self.known.iter();
        let reached: Vec<IpAddr> = all().filter(|(_, known)| !known.unreached).map(|(ip, _)| *ip).collect();
        if reached.is_empty() { all().map(|(ip, _)| *ip).collect() } else { reached }
    }

    /// Returns the addresses that could not be reached.
    pub fn lost(&self) -> Vec<IpAddr> {
        self.known.iter().filter(|(_, known)| known.unreached).map(|(ip, _)| *ip).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn an_address_leaves_after_three_absences_in_a_row_and_not_before() {
        let mut name = NameAddresses::default();
        for (answer, used) in [
            ("10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.2"),
            ("10.0.0.2", "10.0.0.1 10.0.0.2"),
            ("10.0.0.2 10.0.0.3", "10.0.0.1 10.0.0.2 10.0.0.3"),
            // The address is back, so its count starts again.
            ("10.0.0.1", "10.0.0.1 10.0.0.2 10.0.0.3"),
            ("10.0.0.3", "10.0.0.1 10.0.0.2 10.0.0.3"),
            // An answer without addresses changes nothing.
            ("", "10.0.0.1 10.0.0.2 10.0.0.3"),
            ("10.0.0.3", "10.0.0.1 10.0.0.3"),
            ("10.0.0.9", "10.0.0.3 10.0.0.9"),
            ("10.0.0.9", "10.0.0.3 10.0.0.9"),
            ("10.0.0.9", "10.0.0.9"),
        ] {
            name.answered(&ips(answer));
            assert_eq!(name.used(), ips(used), "after {answer:?}");
        }
    }

    #[test]
    fn an_address_leaves_with_one_failed_connection_and_comes_back_when_it_is_reached() {
        let mut name = NameAddresses::default();
        let [one, two] = ips("10.0.0.1 10.0.0.2")[..] else { panic!() };
        name.answered(&[one, two]);
        name.unreached(one);
        assert_eq!((name.used(), name.lost()), (vec![two], vec![one]));
        name.answered(&[one, two]);
        assert_eq!(name.used(), [two], "that the DNS still names it does not bring it back");
        name.unreached(two);
        assert_eq!(name.used(), [one, two], "without any that is reached, all are tried");
        name.reached(two);
        assert_eq!(name.used(), [two]);
        name.reached(one);
        assert_eq!((name.used(), name.lost()), (vec![one, two], vec![]));
        name.unreached("10.0.0.7".parse().unwrap());
        assert_eq!(name.lost(), [] as [IpAddr; 0], "a stranger");
    }

    #[test]
    fn one_family_is_used_and_a_bounded_number() {
        let mut name = NameAddresses::default();
        name.answered(&ips("::1 127.0.0.1"));
        assert_eq!(name.used(), ips("127.0.0.1"));
        let mut six = NameAddresses::default();
        six.answered(&ips("fd00::1 fd00::2"));
        assert_eq!(six.used(), ips("fd00::1 fd00::2"));
        let many: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        six.answered(&many);
        assert_eq!(six.used().len(), MOST_ADDRESSES);
    }
}
