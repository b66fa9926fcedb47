//! Where servers are, and where calls may be processed. Must not know the servers or the callers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Region;

/// Regions in which calls may be processed, and in which data beyond figures and names may be kept about them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// Any server may process the calls, even one without a region.
    #[default]
    Anywhere,
    /// Only servers in these regions. An empty set allows no server.
    Only(Arc<BTreeSet<Region>>),
}

impl Residency {
    /// Restricts calls to these regions.
    pub fn only(regions: impl IntoIterator<Item = Region>) -> Self {
        Self::Only(Arc::new(regions.into_iter().collect()))
    }

    /// Returns whether nothing is ruled out.
    pub const fn is_anywhere(&self) -> bool {
        matches!(self, Self::Anywhere)
    }

    /// Returns whether a server in `region` may process the calls. A server without a region passes only
    /// [`Residency::Anywhere`].
    pub fn allows(&self, region: Option<&Region>) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Only(regions) => region.is_some_and(|region| regions.contains(region)),
        }
    }

    /// Returns the regions that both allow.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Anywhere, both) | (both, Self::Anywhere) => both.clone(),
            (Self::Only(a), Self::Only(b)) if a.is_subset(b) => Self::Only(Arc::clone(a)),
            (Self::Only(a), Self::Only(b)) => Self::only(a.intersection(b).cloned()),
        }
    }

    /// Returns whether `self` allows nothing outside `outer`. [`Residency::Anywhere`] counts as no restriction of its
    /// own, so it always passes.
    pub fn narrows(&self, outer: &Self) -> bool {
        match (self, outer) {
            (Self::Anywhere, _) | (_, Self::Anywhere) => true,
            (Self::Only(own), Self::Only(outer)) => own.is_subset(outer),
        }
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere => f.write_str("anywhere"),
            Self::Only(regions) if regions.is_empty() => f.write_str("nowhere"),
            Self::Only(regions) => {
                let names: Vec<&str> = regions.iter().map(Region::as_str).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(names: &str) -> Residency {
        Residency::only(names.split_whitespace().map(|name| Region::new(name).unwrap()))
    }

    #[test]
    fn a_pin_allows_what_it_names_and_nothing_that_is_unknown() {
        let anywhere = Residency::Anywhere;
        let region = |name: &str| Region::new(name).ok();
        for (pin, at, allowed) in [
            (&anywhere, region("us"), true),
            (&anywhere, None, true),
            (&only("eu ch"), region("ch"), true),
            (&only("eu ch"), region("us"), false),
            // A region's name is compared as a whole: `eu-west-1` is not part of `eu`.
            (&only("eu"), region("eu-west-1"), false),
            (&only("eu"), region("EU"), false),
            (&only("eu"), None, false),
            (&only(""), region("eu"), false),
        ] {
            assert_eq!(pin.allows(at.as_ref()), allowed, "{pin} {at:?}");
        }
    }

    #[test]
    fn two_pins_allow_what_both_do() {
        let pins = ["eu", "us", "eu ch", "", "ch us"].map(only);
        let pins = || pins.iter().cloned().chain([Residency::Anywhere]);
        let places = || ["eu", "us", "ch", "jp"].map(|name| Region::new(name).ok()).into_iter().chain([None]);
        for a in pins() {
            for b in pins() {
                for at in places() {
                    let at = at.as_ref();
                    assert_eq!(a.and(&b).allows(at), a.allows(at) && b.allows(at), "{a} | {b} | {at:?}");
                    if a.narrows(&b) && a != Residency::Anywhere {
                        assert!(!a.allows(at) || b.allows(at), "{a} | {b} | {at:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn pins_are_written_as_they_are_read() {
        for (pin, text, json) in [
            (Residency::Anywhere, "anywhere", r#""anywhere""#),
            (only("eu ch"), "ch, eu", r#"{"only":["ch","eu"]}"#),
            (only(""), "nowhere", r#"{"only":[]}"#),
        ] {
            assert_eq!(pin.to_string(), text);
            assert_eq!(serde_json::to_string(&pin).unwrap(), json);
            assert_eq!(serde_json::from_str::<Residency>(json).unwrap(), pin);
        }
        assert!(serde_json::from_str::<Residency>(r#"{"only":["e u"]}"#).is_err());
    }
}
