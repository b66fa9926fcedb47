//! Decides what a hold draws from: lots, free tiers, the balance and contracts. Changes nothing.
//!
//! What ends soonest comes first, then gifts, then what was paid. A contract always comes last: what is not used of it
//! costs the customer nothing, so a hold does not draw on it while there is other money.

use headrace_domain::{ModelName, NanoDollars, UnixNanos};

use crate::budget_rule::{BudgetMeasure, BudgetReservation};
use crate::command::LowBalance;
use crate::counters::{HoldParties, RuleState};
use crate::free_tier::FreeLeft;
use crate::lot::{FundingShare, HoldFunding, LotId, LotKind, MoneySource};
use crate::lot_state::LotBalance;
use crate::refusal::LedgerRefusal;
use crate::state::{LedgerState, OrgAccount, PartyRows};
use crate::windows::TOTAL;

/// A hold, or the extension of one, that needs money.
#[derive(Clone, Copy)]
pub(crate) struct FundingNeed<'h> {
    pub(crate) parties: HoldParties<'h>,
    pub(crate) rows: PartyRows,
    pub(crate) amount: NanoDollars,
    pub(crate) now: UnixNanos,
}

/// A source that a hold may draw from.
struct FundingCandidate {
    /// Contracts last, then the end, then the kind, then the number.
    order: (bool, u64, u8, u64),
    supply: FundingSupply,
}

/// What a source can give.
enum FundingSupply {
    /// Money, from the balance or a lot.
    Money { source: MoneySource, left: i64 },
    /// Money of a free tier that counts dollars.
    FreeMoney { reservation: BudgetReservation, left: i64 },
    /// Any amount of money: a free tier that counts tokens or requests has enough of them for the call.
    FreeCall { reservation: BudgetReservation },
}

/// The rank of gifts among sources with the same end.
const GIFT: u8 = 0;
/// The rank of paid money among sources with the same end.
const PAID: u8 = 1;
const NO_END: u64 = u64::MAX;

impl LedgerState {
    /// Whether a hold of the organisation may draw from elsewhere than the balance.
    pub(crate) fn has_other_funding(&self, parties: HoldParties<'_>) -> bool {
        self.free_tiers.has_tiers() || self.lots.has_lots(parties.org)
    }

    /// Returns what a new hold draws from. `None` for the balance alone.
    ///
    /// # Errors
    /// The sources do not cover the hold.
    pub(crate) fn fund(&self, need: FundingNeed<'_>) -> Result<Option<HoldFunding>, LedgerRefusal> {
        let mut candidates = vec![self.balance(need)];
        let model = need.parties.demand.map(|demand| &demand.model);
        self.lot_candidates(need, |lot| is_for(lot.terms().models.as_deref(), model), &mut candidates);
        let _ = self.each_free_tier(need.parties, |state, subject| {
            let tier = FreeWindow::new(state, subject, need.now);
            let left = tier.left(state, need.now);
            candidates.extend(tier.candidate(state, left, need));
            Ok::<(), ()>(())
        });
        self.drawn(need, candidates)
    }

    /// Returns what an extension draws from: the balance, lots for all models, and what the hold drew from before.
    ///
    /// # Errors
    /// The sources do not cover the extension.
    pub(crate) fn fund_extension(
        &self,
        need: FundingNeed<'_>,
        before: Option<&HoldFunding>,
    ) -> Result<Option<HoldFunding>, LedgerRefusal> {
        let shares = || before.into_iter().flat_map(|funding| &funding.shares);
        let mut candidates = vec![self.balance(need)];
        let drew_from = |id: LotId| {
            shares().any(
                |share| matches!(share.source, MoneySource::Lot(of) | MoneySource::Contract(of) if of == id),
            )
        };
        let may_draw = |lot: &LotBalance| lot.terms().models.is_none() || drew_from(lot.lot.id);
        self.lot_candidates(need, may_draw, &mut candidates);
        let mut rules: Vec<u64> = Vec::new();
        for free in shares().filter_map(|share| share.free.as_ref()) {
            let Some(state) = self.free_tiers.budgets.by_number(free.rule) else { continue };
            if rules.contains(&free.rule) {
                continue;
            }
            rules.push(free.rule);
            let tier = FreeWindow::new(state, free.subject.clone(), need.now);
            let left = tier.left(state, need.now);
            candidates.push(match state.rule.measure {
                BudgetMeasure::Dollars => tier.money(state, left),
                // The call was counted when its hold was taken.
                BudgetMeasure::Tokens | BudgetMeasure::Requests => tier.call(state, 0),
            });
        }
        self.drawn(need, candidates)
    }

    /// Returns what is left of the free tier that covers a call, the one with the most. `None` if none does.
    pub(crate) fn free_left(&self, parties: HoldParties<'_>, now: UnixNanos) -> Option<FreeLeft> {
        let mut free: Option<FreeLeft> = None;
        let _ = self.each_free_tier(parties, |state, subject| {
            let tier = FreeWindow::new(state, subject, now);
            let reported = tier.reported(state, tier.left(state, now), now);
            if free.as_ref().is_none_or(|known| has_larger_part(&reported, known)) {
                free = Some(reported);
            }
            Ok::<(), ()>(())
        });
        free
    }

    /// Returns the refusal of a hold that is not covered. `own` is the organisation's own money for the call, and `covered` all
    /// that the sources can give.
    pub(crate) fn short_funds(
        &self,
        rows: PartyRows,
        needed: NanoDollars,
        (own, covered): (i64, i64),
        free: Option<FreeLeft>,
    ) -> LedgerRefusal {
        let (org, free) = (self.org(rows), free.map(Box::new));
        let project = rows.project.and_then(|place| self.projects.at(place));
        let may_cap = project.is_some_and(|project| project.low_balance == LowBalance::Cap);
        // What free tiers pay for never was the organisation's money.
        let held_own = org.held.saturating_sub(org.held_free).saturating_sub(org.held_credit);
        let (held, balance) = (NanoDollars::new(held_own), NanoDollars::new(own.saturating_add(held_own)));
        let may_return = org.held.saturating_sub(org.held_free);
        let fits_later = needed.get() <= covered.saturating_add(may_return);
        let covered = NanoDollars::new(covered);
        if fits_later {
            LedgerRefusal::HeldInFlight { balance, held, needed, covered, free, may_cap }
        } else {
            LedgerRefusal::OutOfMoney { balance, held, needed, covered, free, may_cap }
        }
    }

    fn each_free_tier<E>(
        &self,
        parties: HoldParties<'_>,
        mut act: impl FnMut(&RuleState, std::sync::Arc<str>) -> Result<(), E>,
    ) -> Result<(), E> {
        let model = parties.demand.map(|demand| &demand.model);
        self.free_tiers.budgets.each_rule_of(parties, |state, subject| {
            if self.free_tiers.covers(state.number, model) { act(state, subject) } else { Ok(()) }
        })
    }

    fn balance(&self, need: FundingNeed<'_>) -> FundingCandidate {
        let left = self.org(need.rows).available;
        let source = MoneySource::Balance;
        FundingCandidate { order: (false, NO_END, PAID, 0), supply: FundingSupply::Money { source, left } }
    }

    fn org(&self, rows: PartyRows) -> OrgAccount {
        rows.org.and_then(|place| self.orgs.at(place)).copied().unwrap_or_default()
    }

    fn lot_candidates(
        &self,
        need: FundingNeed<'_>,
        may_draw: impl Fn(&LotBalance) -> bool,
        candidates: &mut Vec<FundingCandidate>,
    ) {
        let lots = self.lots.of_org(need.parties.org);
        let usable = lots.filter(|of| of.left > 0 && of.terms().is_live(need.now) && may_draw(of));
        candidates.extend(usable.map(|of| {
            let LotBalance { lot, left, held: _ } = of;
            let is_contract = lot.terms.kind == LotKind::Contract;
            let rank = if lot.terms.kind == LotKind::Promotional { GIFT } else { PAID };
            let source = if is_contract { MoneySource::Contract(lot.id) } else { MoneySource::Lot(lot.id) };
            let end = lot.terms.ends.map_or(NO_END, UnixNanos::get);
            FundingCandidate {
                order: (is_contract, end, rank, lot.id.get()),
                supply: FundingSupply::Money { source, left: *left },
            }
        }));
    }

    /// Draws from the candidates in their order.
    fn drawn(
        &self,
        need: FundingNeed<'_>,
        mut candidates: Vec<FundingCandidate>,
    ) -> Result<Option<HoldFunding>, LedgerRefusal> {
        candidates.sort_unstable_by_key(|candidate| candidate.order);
        let mut rest = need.amount.get();
        let mut covered = 0_i64;
        let mut own = 0_i64;
        let mut shares = Vec::new();
        for FundingCandidate { supply, .. } in candidates {
            let (source, taken, free) = match supply {
                FundingSupply::Money { source, left } => {
                    covered = covered.saturating_add(left);
                    if !matches!(source, MoneySource::Contract(_)) {
                        own = own.saturating_add(left);
                    }
                    (source, left.min(rest), None)
                }
                FundingSupply::FreeMoney { mut reservation, left } => {
                    covered = covered.saturating_add(left);
                    let taken = left.min(rest);
                    reservation.amount = u64::try_from(taken).unwrap_or(0);
                    (MoneySource::Free, taken, Some(reservation))
                }
                FundingSupply::FreeCall { reservation } if rest > 0 => {
                    // It pays for a whole call, because it counts the whole call.
                    shares.clear();
                    rest = need.amount.get();
                    (MoneySource::Free, rest, Some(reservation))
                }
                FundingSupply::FreeCall { .. } => break,
            };
            if taken > 0 {
                rest -= taken;
                shares.push(FundingShare { source, amount: NanoDollars::new(taken), free });
            }
        }
        if rest > 0 {
            let free = self.free_left(need.parties, need.now);
            return Err(self.short_funds(need.rows, need.amount, (own, covered), free));
        }
        let is_plain = shares.iter().all(|share| share.source == MoneySource::Balance);
        Ok(if is_plain { None } else { Some(HoldFunding { shares }) })
    }
}

/// The current window of a free tier for one subject.
struct FreeWindow {
    reservation: BudgetReservation,
}

impl FreeWindow {
    fn new(state: &RuleState, subject: std::sync::Arc<str>, now: UnixNanos) -> Self {
        let window = state.window_at(&subject, now);
        Self { reservation: BudgetReservation { rule: state.number, subject, window, amount: 0 } }
    }

    /// What further calls can use, in the unit of the rule.
    fn left(&self, state: &RuleState, now: UnixNanos) -> u64 {
        let counter = state.current(&self.reservation.subject, now);
        let taken = counter.map_or(0, |counter| counter.used.saturating_add(counter.reserved));
        state.limit_at(now).saturating_sub(taken)
    }

    fn reported(&self, state: &RuleState, left: u64, now: UnixNanos) -> FreeLeft {
        let end = self.reservation.window.end;
        FreeLeft {
            name: state.rule.name.clone(),
            measure: state.rule.measure,
            window: state.rule.window,
            limit: state.limit_at(now),
            left,
            resets: (end != TOTAL.end).then_some(end),
        }
    }

    /// Returns the source for a new hold. `None` if too little is left.
    fn candidate(&self, state: &RuleState, left: u64, need: FundingNeed<'_>) -> Option<FundingCandidate> {
        let units = match (state.rule.measure, need.parties.demand) {
            (BudgetMeasure::Dollars, _) => return (left > 0).then(|| self.money(state, left)),
            (BudgetMeasure::Tokens, Some(demand)) => demand.tokens,
            (BudgetMeasure::Requests, Some(_)) => 1,
            (BudgetMeasure::Tokens | BudgetMeasure::Requests, None) => return None,
        };
        (units <= left).then(|| self.call(state, units))
    }

    fn money(&self, state: &RuleState, left: u64) -> FundingCandidate {
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        self.with(state, |reservation| FundingSupply::FreeMoney { reservation, left })
    }

    fn call(&self, state: &RuleState, units: u64) -> FundingCandidate {
        self.with(state, |reservation| FundingSupply::FreeCall {
            reservation: BudgetReservation { amount: units, ..reservation },
        })
    }

    fn with(
        &self,
        state: &RuleState,
        supply: impl FnOnce(BudgetReservation) -> FundingSupply,
    ) -> FundingCandidate {
        let reservation = self.reservation.clone();
        let order = (false, reservation.window.end.get(), GIFT, state.number);
        FundingCandidate { order, supply: supply(reservation) }
    }
}

/// Whether a larger part of one free tier is left than of another. They may count different units.
fn has_larger_part(one: &FreeLeft, other: &FreeLeft) -> bool {
    u128::from(one.left) * u128::from(other.limit) > u128::from(other.left) * u128::from(one.limit)
}

/// Whether a source for `models` can pay for a call of `model`.
fn is_for(models: Option<&[ModelName]>, model: Option<&ModelName>) -> bool {
    models.is_none_or(|models| model.is_some_and(|model| models.contains(model)))
}
