//! What a relayed body requests besides tokens: extras that cost money, and addresses that a server would fetch. Plain
//! data. Must not know which server allows what.

/// A field of a relayed body that needs a decision before the body is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldConcern {
    /// Byte offset in the body at which the field's value begins.
    pub at: usize,
    /// What the field requests.
    pub ask: ConcernKind,
}

/// What a field requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConcernKind {
    /// An extra that a provider may charge for separately, or that passes the work to another party.
    Extra {
        /// The name of the extra in `allow_unpriced`.
        name: &'static str,
        /// The field's value, if the decision depends on it.
        value: Option<Box<str>>,
    },
    /// The provider's own web search.
    WebSearch {
        /// Maximum number of searches for this call. `None` if the call sets no limit.
        most: Option<u32>,
    },
    /// An address that the server would fetch.
    Url(Box<str>),
}

impl FieldConcern {
    /// Returns whether the work, or a part of it, may leave the server that receives the call.
    pub fn leaves_the_server(&self) -> bool {
        match &self.ask {
            ConcernKind::Extra { name, .. } => !STAYS.contains(name),
            ConcernKind::WebSearch { .. } | ConcernKind::Url(_) => true,
        }
    }
}

/// Extras that cost more but keep the work on the server that receives the call.
const STAYS: &[&str] = &["audio", "compaction", "context_1m", "prediction", "service_tier", "speed"];
