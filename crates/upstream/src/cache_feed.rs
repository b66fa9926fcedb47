//! Addresses of a server's cache events, as configured. Must not know a connection.

/// Where a server publishes changes of its cache. Addresses have the form `tcp://10.0.0.7:5557`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFeed {
    /// Address of the live events.
    pub events: String,
    /// Address for replays of earlier events.
    pub replay: Option<String>,
}

impl CacheFeed {
    /// Returns what is wrong with the addresses, as text.
    pub(crate) fn check(&self) -> Vec<String> {
        let settings = [("kv_events", Some(&self.events)), ("kv_replay", self.replay.as_ref())];
        let wrong = |(setting, address): (&str, Option<&String>)| {
            let why = host(address?).err()?;
            Some(format!("`{setting}`: {why}"))
        };
        settings.into_iter().filter_map(wrong).collect()
    }
}

/// Returns host and port of an address.
pub(crate) fn host(address: &str) -> Result<&str, String> {
    let host = address.strip_prefix("tcp://");
    let port = host.and_then(|host| host.rsplit_once(':')).and_then(|(name, port)| {
        let named = !name.is_empty() && !name.contains(['*', '/', ' ']);
        port.parse::<u16>().ok().filter(|port| named && *port > 0)
    });
    host.filter(|_| port.is_some())
        .ok_or_else(|| format!("`{address}` is no place where events are published; write tcp://HOST:PORT"))
}
