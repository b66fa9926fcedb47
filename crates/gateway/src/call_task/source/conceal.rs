//! Hides cached token counts in a server's answer if several organisations share the server's cache. Must not know what
//! was cached.

use bytes::{Bytes, BytesMut};
use headrace_domain::{Dialect, TokenClass, Usage};
use headrace_engine_api::RelayedEvent;
use headrace_relay::{concealed, concealed_usage};

/// Bytes around an event's name and data.
const EVENT_BYTES: usize = 32;

/// How an answer is shown: as it came, or with all cached tokens counted in one class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheConcealment(pub(crate) Option<(Dialect, TokenClass)>);

impl CacheConcealment {
    /// The usage that the caller sees and is billed for.
    pub(super) fn usage(self, usage: Usage) -> Usage {
        self.0.map_or(usage, |(_, class)| concealed_usage(usage, class))
    }

    /// A whole answer.
    pub(super) fn whole(self, body: Bytes) -> Bytes {
        let shown = self.0.and_then(|(dialect, class)| concealed(&body, dialect, class));
        shown.unwrap_or(body)
    }

    /// An event.
    pub(super) fn event(self, event: &RelayedEvent) -> Bytes {
        let shown = self.0.and_then(|(dialect, class)| concealed(&event.data, dialect, class));
        let Some(data) = shown else { return event.raw.clone() };
        let mut bytes = BytesMut::with_capacity(data.len() + event.name.len() + EVENT_BYTES);
        if !event.name.is_empty() {
            bytes.extend_from_slice(b"event: ");
            bytes.extend_from_slice(&event.name);
            bytes.extend_from_slice(b"\n");
        }
        for line in data.split(|byte| *byte == b'\n') {
            bytes.extend_from_slice(b"data: ");
            bytes.extend_from_slice(line);
            bytes.extend_from_slice(b"\n");
        }
        bytes.extend_from_slice(b"\n");
        bytes.freeze()
    }
}
