//! The shares of several gateways in their limits, as their common storage keeps them. A gateway reads the table,
//! changes its own rows and writes it in one transaction. Knows neither buckets nor databases.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use headrace_domain::{KeyId, ModelName, OrgId, ProjectId};
use serde::{Deserialize, Serialize};

use crate::part::{LimitPart, WHOLE_UNITS, scale};
use crate::{RateRule, Scope};

/// How long a gateway may go without an exchange before others take its shares.
pub const SHARE_LEASE: Duration = Duration::from_secs(15);
/// How long after the start of its last exchange a gateway uses its shares. Less than the lease, because clocks run at
/// different speeds.
pub(crate) const USABLE_TIME: Duration = Duration::from_secs(12);
/// How long a scope without demand keeps its rows.
const IDLE_LIFETIME: Duration = Duration::from_secs(60);
/// The number of scopes whose shares follow demand at the same time. Other scopes keep their base shares.
const MAX_SCOPES: usize = 4_096;
const MINUTE_MICROS: u64 = 60_000_000;

/// A running gateway that holds shares. Never used again after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareHolder(u128);

impl ShareHolder {
    /// Creates a name from a random number.
    pub const fn new(random: u128) -> Self {
        Self(random)
    }

    /// The number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ShareHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ShareHolder {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl Serialize for ShareHolder {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ShareHolder {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// One limit per minute: a scope and a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareKey {
    /// What the limit applies to.
    pub scope: Scope,
    /// Which limit.
    pub rule: RateRule,
}

impl ShareKey {
    /// The rule, the kind of the scope and its id, as a database stores them.
    pub fn columns(&self) -> (&'static str, &'static str, &str) {
        let rule = match self.rule {
            RateRule::Requests => "requests",
            RateRule::Tokens => "tokens",
        };
        (rule, self.scope.kind(), self.scope.id())
    }

    /// Reads what [`ShareKey::columns`] returned. Returns `None` for anything else.
    pub fn from_columns(rule: &str, kind: &str, id: &str) -> Option<Self> {
        let rule = match rule {
            "requests" => RateRule::Requests,
            "tokens" => RateRule::Tokens,
            _ => return None,
        };
        let scope = match kind {
            "key" => Scope::Key(KeyId::new(id).ok()?),
            "project" => Scope::Project(ProjectId::new(id).ok()?),
            "org" => Scope::Org(OrgId::new(id).ok()?),
            "model" => Scope::Model(ModelName::new(id).ok()?),
            _ => return None,
        };
        Some(Self { scope, rule })
    }
}

/// A gateway in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareMember {
    /// The time of its last exchange, in microseconds of the storage's clock.
    pub seen_micros: u64,
    /// Its part of each limit that has no rows, in 720,720ths. The sum over all members is at most 720,720.
    pub base_units: u32,
    /// When base units last became free that may have been used, in microseconds. Zero if never.
    pub used_micros: u64,
}

/// The shares of one limit. Each member of the table has a row. The sum of all shares is at most `limit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitShares {
    /// The limit per minute, over all gateways.
    pub limit: u64,
    /// What is missing from the part that no gateway has, in thousandths of a token. It refills with time.
    pub free_missing: u64,
    /// The time of `free_missing`, in microseconds.
    pub at_micros: u64,
    /// Since when no gateway has demand, in microseconds. `None` if one has.
    pub idle_since_micros: Option<u64>,
    /// A row for each member.
    pub rows: BTreeMap<ShareHolder, ShareRow>,
}

/// One gateway's share of one limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRow {
    /// Tokens or requests per minute. The gateway uses at most this.
    pub share: u64,
    /// Tokens or requests per minute that its calls ask for, with a margin.
    pub want: u64,
    /// The largest call that did not fit into its share. Zero if none was refused.
    pub need: u64,
}

/// All shares of all gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShareTable {
    /// The gateways.
    pub members: BTreeMap<ShareHolder, ShareMember>,
    /// The limits whose shares follow demand.
    pub limits: BTreeMap<ShareKey, LimitShares>,
}

impl ShareTable {
    /// Removes gateways that made no exchange for a lease. What they had may be used up, so it returns empty.
    /// Returns the last time at which one of them may have used its shares. Zero if none was removed.
    pub(crate) fn remove_lapsed(&mut self, me: ShareHolder, time: u64) -> u64 {
        let lease = micros(SHARE_LEASE);
        let lapsed = |member: &ShareMember| time.saturating_sub(member.seen_micros) > lease;
        let gone: Vec<(ShareHolder, u64)> = self
            .members
            .iter()
            .filter(|(holder, member)| **holder != me && lapsed(member))
            .map(|(holder, member)| (*holder, member.seen_micros))
            .collect();
        let mut last = 0;
        for (holder, seen) in gone {
            let until = seen.saturating_add(lease);
            last = last.max(until);
            self.remove_used(holder, until, time);
        }
        last
    }

    /// Removes a gateway that may have used its shares until `until`.
    pub(crate) fn remove_used(&mut self, holder: ShareHolder, until: u64, time: u64) {
        self.remove(holder, time);
        for member in self.members.values_mut() {
            member.used_micros = member.used_micros.max(until);
        }
    }

    /// Removes a gateway, which uses its shares no longer.
    pub fn remove(&mut self, holder: ShareHolder, time_micros: u64) {
        self.members.remove(&holder);
        for limit in self.limits.values_mut() {
            limit.refill(time_micros);
            if let Some(row) = limit.rows.remove(&holder) {
                limit.add_missing(row.share);
            }
        }
        if self.members.is_empty() {
            self.limits.clear();
        }
    }

    /// When free base units may last have been used. Zero if never.
    pub(crate) fn used_micros(&self) -> u64 {
        self.members.values().map(|member| member.used_micros).max().unwrap_or(0)
    }

    /// The base units that no member but `me` has.
    pub(crate) fn units_left_by_others(&self, me: ShareHolder) -> u32 {
        let others = self.members.iter().filter(|(holder, _)| **holder != me);
        let taken: u64 = others.map(|(_, member)| u64::from(member.base_units)).sum();
        WHOLE_UNITS.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX))
    }

    /// Adds rows for a limit that had base shares. Does nothing if there are too many limits.
    pub(crate) fn add_limit(&mut self, key: ShareKey, limit: u64, time: u64) {
        if self.limits.len() >= MAX_SCOPES || self.limits.contains_key(&key) {
            return;
        }
        let row =
            |member: &ShareMember| ShareRow { share: base_share(limit, *member), ..ShareRow::default() };
        let rows = self.members.iter().map(|(holder, member)| (*holder, row(member))).collect();
        let mut shares =
            LimitShares { limit, free_missing: 0, at_micros: time, idle_since_micros: None, rows };
        // What is free was either never used, or may be used up since.
        shares.add_missing(shares.free());
        shares.at_micros = self.used_micros();
        shares.refill(time);
        self.limits.insert(key, shares);
    }

    /// Removes the rows of limits without demand once each gateway has at most its base share.
    pub(crate) fn remove_idle(&mut self, time: u64) {
        let members = &self.members;
        self.limits.retain(|_, shares| !(shares.is_idle(time) && shares.is_at_base(members)));
    }
}

/// The base share of a member.
pub(crate) fn base_share(limit: u64, member: ShareMember) -> u64 {
    LimitPart::Base(member.base_units).of(limit)
}

impl LimitShares {
    /// Returns whether nothing but the time of the last refill differs.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { limit, free_missing, at_micros: _, idle_since_micros, rows } = self;
        *limit == other.limit
            && *free_missing == other.free_missing
            && *idle_since_micros == other.idle_since_micros
            && *rows == other.rows
    }

    /// Returns whether a gateway has a larger share than it had in `before`.
    pub fn lets_grow(&self, before: &Self) -> bool {
        let former = |holder| before.rows.get(holder).map_or(0, |row: &ShareRow| row.share);
        self.rows.iter().any(|(holder, row)| row.share > former(holder))
    }

    /// The part of the limit that no gateway has.
    pub(crate) fn free(&self) -> u64 {
        let taken = self.rows.values().fold(0_u64, |sum, row| sum.saturating_add(row.share));
        self.limit.saturating_sub(taken)
    }

    /// Refills the free part up to `time`.
    pub(crate) fn refill(&mut self, time: u64) {
        let elapsed = time.saturating_sub(self.at_micros);
        let refilled = scale(self.free().saturating_mul(1_000), elapsed, MINUTE_MICROS);
        self.free_missing = self.free_missing.saturating_sub(refilled);
        self.at_micros = self.at_micros.max(time);
    }

    /// Records that `tokens` of the free part are missing.
    pub(crate) fn add_missing(&mut self, tokens: u64) {
        self.free_missing = self.free_missing.saturating_add(tokens.saturating_mul(1_000));
    }

    /// Takes the fullest `tokens` of the free part. Returns the thousandths that are missing from them.
    pub(crate) fn take_free(&mut self, tokens: u64) -> u64 {
        let rest = self.free().saturating_sub(tokens).saturating_mul(1_000);
        let missing = self.free_missing.saturating_sub(rest);
        self.free_missing -= missing;
        missing
    }

    /// Changes the limit. All shares change in proportion.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        for row in self.rows.values_mut() {
            row.share = scale(row.share, limit, self.limit);
        }
        self.free_missing = scale(self.free_missing, limit, self.limit);
        self.limit = limit;
        self.add_missing(1);
    }

    /// Notes whether any gateway has demand.
    pub(crate) fn note_demand(&mut self, time: u64) {
        let is_asked = self.rows.values().any(|row| row.want > 0 || row.need > 0);
        self.idle_since_micros = if is_asked { None } else { self.idle_since_micros.or(Some(time)) };
    }

    /// Returns whether no gateway had demand for a minute.
    pub(crate) fn is_idle(&self, time: u64) -> bool {
        self.idle_since_micros.is_some_and(|since| time.saturating_sub(since) > micros(IDLE_LIFETIME))
    }

    fn is_at_base(&self, members: &BTreeMap<ShareHolder, ShareMember>) -> bool {
        self.rows.iter().all(|(holder, row)| {
            members.get(holder).is_some_and(|member| row.share <= base_share(self.limit, *member))
        })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
