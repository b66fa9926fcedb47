//! Ids. Each is a type of its own, so that an org's id cannot be passed in place of a key's id. They check their
//! spelling and know nothing of what they identify.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// An id or name with an invalid spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdError {
    kind: &'static str,
    why: &'static str,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a valid {}: {}", self.kind, self.why)
    }
}

impl std::error::Error for IdError {}

/// Longest name of an org, project, user or key, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Longest model name, in bytes.
const MAX_MODEL_NAME_BYTES: usize = 256;

macro_rules! name_id {
    ($(#[$doc:meta])* $type:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            /// Accepts 1 to 64 bytes of `a-z A-Z 0-9 . _ -`, not beginning with a dot.
            pub fn new(name: &str) -> Result<Self, IdError> {
                let fail = |why| Err(IdError { kind: $kind, why });
                if name.is_empty() || name.len() > MAX_NAME_BYTES {
                    return fail("it must have 1 to 64 characters");
                }
                if name.starts_with('.') {
                    return fail("it must not begin with a dot");
                }
                if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
                    return fail("only letters, digits, '.', '_' and '-' may stand in it");
                }
                Ok(Self(name.into()))
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        // Serialized by hand: `serde(into = "String")` would first copy every id of a record.
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl TryFrom<String> for $type {
            type Error = IdError;
            fn try_from(name: String) -> Result<Self, IdError> {
                Self::new(&name)
            }
        }

        impl FromStr for $type {
            type Err = IdError;
            fn from_str(name: &str) -> Result<Self, IdError> {
                Self::new(name)
            }
        }

        impl From<$type> for String {
            fn from(id: $type) -> String {
                id.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self.0)
            }
        }
    };
}

name_id!(
    /// An organisation: the account that pays.
    OrgId,
    "org id"
);
name_id!(
    /// A project within an organisation. Budgets are set per project. Unique across organisations.
    ProjectId,
    "project id"
);
name_id!(
    /// The public id of an API key (never its secret).
    KeyId,
    "key id"
);
name_id!(
    /// A user within a project, if the credential names one.
    UserId,
    "user id"
);
name_id!(
    /// A tier: a named set of limits and entitlements.
    TierName,
    "tier name"
);
name_id!(
    /// A budget rule, unique in a ledger.
    BudgetName,
    "budget name"
);
name_id!(
    /// A region of the world, or of a cloud, as operators name it: `eu`, `eu-west-1`. Only a name: no region contains
    /// another.
    Region,
    "region"
);

impl From<KeyId> for UserId {
    /// The holder of an identity provider's token has one id, as a user and in place of a key.
    fn from(id: KeyId) -> Self {
        Self(id.0)
    }
}

/// The name under which a model is requested and served.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct ModelName(Arc<str>);

impl ModelName {
    /// Accepts 1 to 256 bytes without control characters. The result is only a name and never becomes a path.
    pub fn new(name: &str) -> Result<Self, IdError> {
        let fail = |why| Err(IdError { kind: "model name", why });
        if name.is_empty() || name.len() > MAX_MODEL_NAME_BYTES {
            return fail("it must have 1 to 256 bytes");
        }
        // Nearly every name is ASCII, so a check of its bytes finds the control characters.
        let has_control = match name.is_ascii() {
            true => name.bytes().any(|byte| byte.is_ascii_control()),
            false => name.chars().any(char::is_control),
        };
        if has_control {
            return fail("it must not hold control characters");
        }
        Ok(Self(name.into()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ModelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for ModelName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl TryFrom<String> for ModelName {
    type Error = IdError;
    fn try_from(name: String) -> Result<Self, IdError> {
        Self::new(&name)
    }
}

impl FromStr for ModelName {
    type Err = IdError;
    fn from_str(name: &str) -> Result<Self, IdError> {
        Self::new(name)
    }
}

impl From<ModelName> for String {
    fn from(name: ModelName) -> String {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelName({})", self.0)
    }
}

/// The two hexadecimal digits of each byte value.
const PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Returns the 32 hexadecimal digits of `bits`. A table is used because ids are written several times per request.
fn digits(bits: u128) -> [u8; 32] {
    let mut digits = [0; 32];
    for (place, byte) in digits.chunks_exact_mut(2).zip(bits.to_be_bytes()) {
        place.copy_from_slice(&PAIRS[usize::from(byte)]);
    }
    digits
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $type:ident, $prefix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(u128);

        impl $type {
            /// Creates the id from its 128 bits.
            pub const fn from_bits(bits: u128) -> Self {
                Self(bits)
            }

            /// Returns the id's 128 bits.
            pub const fn bits(self) -> u128 {
                self.0
            }

            /// Returns the id's text in ASCII.
            fn text(self) -> [u8; $prefix.len() + 32] {
                let mut text = [0; $prefix.len() + 32];
                let (prefix, rest) = text.split_at_mut($prefix.len());
                prefix.copy_from_slice($prefix.as_bytes());
                rest.copy_from_slice(&digits(self.0));
                text
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(std::str::from_utf8(&self.text()).unwrap_or_default())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // Written in one piece, so that the output buffer grows at most once.
                f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $type {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let bad = IdError {
                    kind: $kind,
                    why: concat!("it must be `", $prefix, "` and 32 hexadecimal digits"),
                };
                let digits = text.strip_prefix($prefix).ok_or_else(|| bad.clone())?;
                if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(bad);
                }
                u128::from_str_radix(digits, 16).map(Self).map_err(|_| bad)
            }
        }

        impl TryFrom<String> for $type {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(id: $type) -> String {
                id.to_string()
            }
        }
    };
}

uuid_id!(
    /// One request, as shown in `x-request-id`, the trace and the ledger. Ordered by time (UUID v7).
    RequestId,
    "req_",
    "request id"
);
uuid_id!(
    /// One hold in the ledger.
    HoldId,
    "hold_",
    "hold id"
);

impl HoldId {
    /// Returns the time at which the request arrived that took the hold, in whole milliseconds. It is part of the id.
    pub fn request_time(self) -> crate::UnixNanos {
        let millis = u64::try_from(self.0 >> 80).unwrap_or(0);
        crate::UnixNanos::new(millis.saturating_mul(1_000_000))
    }
}

impl RequestId {
    /// Creates an id for a request that arrived at `now` (UUID v7: 48 bits of milliseconds, then randomness).
    pub fn fresh(now: crate::UnixNanos) -> Self {
        let nanos = now.get();
        let subsec = u32::try_from(nanos % 1_000_000_000).unwrap_or(0);
        let stamp = uuid::Timestamp::from_unix(uuid::NoContext, nanos / 1_000_000_000, subsec);
        Self(uuid::Uuid::new_v7(stamp).as_u128())
    }

    /// Returns the id of the hold that this request's first dispatch takes.
    pub const fn hold(self) -> HoldId {
        HoldId(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "team-1", "a.b_c", &"x".repeat(64)] {
            assert!(OrgId::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".hidden", "a b", "a/b", "é", "x'; DROP", &"x".repeat(65)] {
            assert!(OrgId::new(bad).is_err(), "{bad}");
        }
        assert!(ModelName::new("../../etc/passwd").is_ok(), "a name only; it never becomes a path");
        for bad in ["a\nb", "a\u{7f}", "\0", "é\n", "é\u{85}", "\u{9f}"] {
            assert!(ModelName::new(bad).is_err(), "{bad:?}");
        }
        for good in ["~ !", "é\u{a0}", "模型"] {
            assert!(ModelName::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn request_ids_order_by_time_and_round_trip() {
        let early = RequestId::fresh(crate::UnixNanos::new(1_000_000_000_000_000_000));
        let late = RequestId::fresh(crate::UnixNanos::new(1_000_000_000_002_000_000));
        assert!(early < late);
        assert_eq!(early.hold().request_time(), crate::UnixNanos::new(1_000_000_000_000_000_000));
        assert_eq!(early.to_string().parse::<RequestId>().unwrap(), early);
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210] {
            assert_eq!(RequestId::from_bits(bits).to_string(), format!("req_{bits:032x}"));
        }
        let json = serde_json::to_string(&(early, early.hold(), ModelName::new("m\"é").unwrap())).unwrap();
        assert_eq!(json, format!("[\"{early}\",\"{}\",\"m\\\"é\"]", early.hold()));
        assert_eq!(serde_json::to_string(&OrgId::new("a-1").unwrap()).unwrap(), "\"a-1\"");
        assert!("req_zz".parse::<RequestId>().is_err());
        assert!("req_+0000000000000000000000000000001".parse::<RequestId>().is_err());
    }
}
