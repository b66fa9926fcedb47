//! JSON forms of values: amounts of money in dollars and nano-dollars, times as text, limits, names. Contains no
//! decisions.

use std::borrow::Cow;

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{NanoDollars, Region, Residency, UnixNanos};
use headrace_identity::RateLimits;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

/// An amount of money, in dollars and in nano-dollars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Money {
    /// Dollars as a decimal fraction, such as `12.50` or `-0.000027`.
    pub dollars: String,
    /// The same amount in nano-dollars, as an integer.
    pub nano_dollars: String,
}

impl From<NanoDollars> for Money {
    fn from(amount: NanoDollars) -> Self {
        Self { dollars: amount.to_string().replacen('$', "", 1), nano_dollars: amount.get().to_string() }
    }
}

/// A time, such as `2026-11-22T21:35:00Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub UnixNanos);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Rfc3339(self.0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        headrace_domain::rfc3339::deserialize(deserializer).map(Self)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "A time in UTC, with a `Z`.",
            "pattern": r"^[12]\d{3}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$",
        })
    }
}

/// An amount in dollars from a request, such as `25` or `0.50`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dollars(pub(crate) NanoDollars);

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        NanoDollars::from_dollars(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Dollars {
    fn schema_name() -> Cow<'static, str> {
        "Dollars".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Dollars as a decimal fraction of at most nine digits.",
            "pattern": r"^\d{1,9}(\.\d{1,9})?$",
        })
    }
}

/// The schema of names of organisations, projects, keys, regions and operators.
pub(crate) struct Name;

impl JsonSchema for Name {
    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$" })
    }
}

/// The schema of a freely chosen text: 1 to 64 bytes without control characters.
pub(crate) struct Title;

impl JsonSchema for Title {
    fn schema_name() -> Cow<'static, str> {
        "Title".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^[!-~][ -~]{0,63}$" })
    }
}

/// The schema of an IP address or a network.
pub(crate) struct AddressText;

impl JsonSchema for AddressText {
    fn schema_name() -> Cow<'static, str> {
        "AddressRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "An IP address, or a network such as `203.0.113.0/24` or `2001:db8::/32`.",
            "pattern": r"^[0-9A-Fa-f:.]{2,45}(/\d{1,3})?$",
        })
    }
}

/// Limits. `null` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// Requests per minute.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_295_u64))]
    pub(crate) requests_per_minute: Option<u32>,
    /// Tokens per minute, input and output together.
    #[serde(default)]
    #[schemars(range(max = 18_446_744_073_709_551_615_u64))]
    pub(crate) tokens_per_minute: Option<u64>,
    /// Requests in flight.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_295_u64))]
    pub(crate) concurrency: Option<u32>,
}

impl From<RateLimits> for Limits {
    fn from(of: RateLimits) -> Self {
        let RateLimits { requests_per_minute, tokens_per_minute, concurrency } = of;
        Self { requests_per_minute, tokens_per_minute, concurrency }
    }
}

impl From<Limits> for RateLimits {
    fn from(of: Limits) -> Self {
        let Limits { requests_per_minute, tokens_per_minute, concurrency } = of;
        Self { requests_per_minute, tokens_per_minute, concurrency }
    }
}

/// Regions for JSON. `None` if calls may run anywhere.
pub(crate) fn regions(of: Residency) -> Option<Vec<String>> {
    match of {
        Residency::Anywhere => None,
        Residency::Only(regions) => Some(regions.iter().map(ToString::to_string).collect()),
    }
}

/// Regions from JSON. `None` means anywhere.
pub(crate) fn residency(regions: Option<Vec<Region>>) -> Residency {
    regions.map_or(Residency::Anywhere, Residency::only)
}

/// Deserializes a field for which `null` differs from absent: `Some(None)` for `null`. Needs `#[serde(default)]`.
pub(crate) fn said<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}
