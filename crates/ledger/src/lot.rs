//! Lots of money and the shares of a hold, as plain data. Makes no decisions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headrace_domain::{ModelName, NanoDollars, OrgId, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::budget_rule::BudgetReservation;

/// The number of lots from which on an organisation gets no further lot by a command. Refunds may still make some.
pub const MAX_LOTS_PER_ORG: usize = 1_000;
/// The maximum number of models that a lot or a free tier names.
pub const MAX_LOT_MODELS: usize = 64;

/// The number of a lot, from 1. Lots count across organisations, and no number is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LotId(u64);

impl LotId {
    /// Creates an id from a number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lot_{}", self.0)
    }
}

impl FromStr for LotId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("lot_").and_then(|digits| digits.parse().ok());
        number.map(Self).ok_or_else(|| format!("`{text}` is not the id of a lot, such as lot_17"))
    }
}

/// The kind of a lot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LotKind {
    /// Paid in by the customer.
    Paid,
    /// A gift.
    Promotional,
    /// Paid later: calls add to what the organisation owes, up to the amount of the lot.
    Contract,
}

impl LotKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Paid, Self::Promotional, Self::Contract];

    /// The word for operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paid => "paid",
            Self::Promotional => "promotional",
            Self::Contract => "contract",
        }
    }
}

/// Money of an organisation that is limited in time or to some models, or that is paid later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditLot {
    /// The lot's id.
    pub id: LotId,
    /// The organisation.
    pub org: OrgId,
    /// The terms of the lot. They never change.
    #[serde(flatten)]
    pub terms: LotTerms,
}

/// The terms of a lot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LotTerms {
    /// The kind.
    pub kind: LotKind,
    /// The amount, more than zero. Of a contract: the most that the organisation may owe.
    pub amount: NanoDollars,
    /// The first moment at which a hold draws from it, by ledger time.
    #[serde(with = "headrace_domain::rfc3339")]
    pub begins: UnixNanos,
    /// The first moment at which no hold draws from it. `None` if it never ends.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub ends: Option<UnixNanos>,
    /// The only models whose calls draw from it. `None` for all.
    pub models: Option<Arc<[ModelName]>>,
    /// An operator's reference, such as a payment or a contract. At most 256 bytes.
    pub reference: Arc<str>,
}

impl LotTerms {
    /// Whether the lot has ended at `now`.
    pub fn is_over(&self, now: UnixNanos) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    /// Whether holds can draw from the lot at `now`.
    pub fn is_live(&self, now: UnixNanos) -> bool {
        self.begins <= now && !self.is_over(now)
    }
}

/// A lot with what is left of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LotReport {
    /// The lot.
    #[serde(flatten)]
    pub lot: CreditLot,
    /// The amount that holds can still draw.
    pub left: NanoDollars,
}

/// The origin of a part of a hold or of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoneySource {
    /// The organisation's balance, which acts as a paid lot without an end.
    Balance,
    /// A paid or promotional lot.
    Lot(LotId),
    /// A contract.
    Contract(LotId),
    /// A free tier.
    Free,
}

/// A part of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FundingShare {
    /// The origin of the money.
    pub source: MoneySource,
    /// The amount, more than zero.
    pub amount: NanoDollars,
    /// What a free tier reserves. `Some` exactly if the source is a free tier.
    pub free: Option<BudgetReservation>,
}

/// The shares of a hold that takes money from elsewhere than the balance. A charge takes them in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldFunding {
    /// The shares. Their sum is the amount of the hold.
    pub shares: Vec<FundingShare>,
}

/// A part of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargedShare {
    /// The origin of the money.
    pub source: MoneySource,
    /// The amount, more than zero.
    pub amount: NanoDollars,
}

/// A share with what was charged of it and what goes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SplitShare<'f> {
    pub(crate) share: &'f FundingShare,
    pub(crate) charged: i64,
    pub(crate) returned: i64,
}

impl HoldFunding {
    /// Splits a charge over the shares: the first ones are charged in full.
    pub(crate) fn split(&self, charged: NanoDollars) -> impl Iterator<Item = SplitShare<'_>> {
        let mut left = charged.get();
        self.shares.iter().map(move |share| {
            let charged = share.amount.get().min(left).max(0);
            left -= charged;
            SplitShare { share, charged, returned: share.amount.get() - charged }
        })
    }

    /// Returns the parts of a charge by their origin.
    pub fn charged(&self, charged: NanoDollars) -> Vec<ChargedShare> {
        let parts = self.split(charged).filter(|part| part.charged > 0);
        parts
            .map(|part| ChargedShare { source: part.share.source, amount: NanoDollars::new(part.charged) })
            .collect()
    }

    /// Adds the shares of an extension by `amount` to the shares of a hold of `held`. `None` means the balance alone.
    pub fn extended(
        before: Option<&Self>,
        held: NanoDollars,
        more: Option<&Self>,
        amount: NanoDollars,
    ) -> Option<Self> {
        if before.is_none() && more.is_none() {
            return None;
        }
        let of = |funding: Option<&Self>, amount: NanoDollars| match funding {
            Some(funding) => funding.shares.clone(),
            None if amount > NanoDollars::ZERO => {
                vec![FundingShare { source: MoneySource::Balance, amount, free: None }]
            }
            None => Vec::new(),
        };
        let mut shares = of(before, held);
        shares.extend(of(more, amount));
        Some(Self { shares })
    }
}
