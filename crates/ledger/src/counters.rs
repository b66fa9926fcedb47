//! The state of budget rules: the rules, one counter per rule, subject and window, the calls in flight per subject, and the
//! newest alerts. Changes it as events say. Makes no decisions and computes no windows.

use std::collections::VecDeque;
use std::sync::Arc;

use headrace_domain::{BudgetName, HolderTiers, ModelName, OrgId, ProjectId, TierName, UnixNanos};
use jiff::tz::TimeZone;
use smallvec::SmallVec;

use crate::budget_rule::{
    AlertRaised, BudgetRaise, BudgetReservation, BudgetRule, BudgetScope, BudgetWindow, BudgetedHold,
    HeldPlaces, HoldDemand, WindowBounds,
};
use crate::hold_use::{HoldUse, model_of, model_subject};
use crate::table::Map;
use crate::time_zone::find_zone;
use crate::transaction::HoldSettled;
use crate::windows::{TOTAL, window_at};

/// The number of alerts that are remembered. All of them are in the journal.
pub(crate) const MAX_ALERTS_KEPT: usize = 1_000;
/// Ended counters are removed when there are as many counters as at the last removal, twice, and this number.
const COUNTERS_BEFORE_REMOVAL: usize = 1_024;

/// The state of all budget rules.
#[derive(Debug, Clone, Default)]
pub(crate) struct BudgetState {
    /// Rules by their number, ascending.
    pub(crate) rules: Vec<RuleState>,
    /// The number of the rule that was created last. 0 before the first one.
    pub(crate) last_number: u64,
    /// The newest alerts with their times, oldest first.
    pub(crate) alerts: VecDeque<(UnixNanos, AlertRaised)>,
    /// Calls in flight by subject, for subjects with a limit: keys, projects, organisations, models.
    places: [Map<Arc<str>, u32>; 4],
    /// Rules without a subject, as places in `rules`.
    open_rules: Vec<usize>,
    /// Rules with a subject, by scope and subject.
    bound_rules: [Map<Arc<str>, Vec<usize>>; 5],
    counter_count: usize,
    counters_at_removal: usize,
}

/// A rule with its counters.
#[derive(Debug, Clone)]
pub(crate) struct RuleState {
    pub(crate) number: u64,
    pub(crate) rule: BudgetRule,
    pub(crate) raise: Option<BudgetRaise>,
    zone: TimeZone,
    pub(crate) counters: Map<Arc<str>, SubjectCounters>,
}

/// The counters of one subject, oldest window first. All but the last are of ended windows with open holds.
pub(crate) type SubjectCounters = SmallVec<[WindowCounter; 1]>;

/// The counter of one rule, subject and window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowCounter {
    pub(crate) window: WindowBounds,
    /// Whether the window takes the end of the next reservation, because the clock was set back to a time before it.
    pub(crate) has_open_end: bool,
    pub(crate) used: u64,
    pub(crate) reserved: u64,
    /// The thresholds whose alert was raised, ascending.
    pub(crate) alerted: SmallVec<[u16; 4]>,
}

impl WindowCounter {
    pub(crate) fn new(window: WindowBounds) -> Self {
        Self { window, has_open_end: false, used: 0, reserved: 0, alerted: SmallVec::new() }
    }

    fn merged(self, later: Self) -> Self {
        let mut alerted = self.alerted;
        alerted.extend(later.alerted);
        alerted.sort_unstable();
        alerted.dedup();
        let (used, reserved) =
            (self.used.saturating_add(later.used), self.reserved.saturating_add(later.reserved));
        Self { used, reserved, alerted, ..later }
    }

    /// Whether the counter means nothing any more at `now`.
    pub(crate) fn is_over(&self, now: UnixNanos) -> bool {
        self.window.end <= now && self.reserved == 0 && !self.has_open_end
    }
}

/// The parties of a hold, as rules select them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldParties<'h> {
    pub(crate) org: &'h OrgId,
    pub(crate) project: &'h ProjectId,
    /// `None` for a hold without a call, which counts only its money.
    pub(crate) demand: Option<&'h HoldDemand>,
}

impl RuleState {
    pub(crate) fn new(number: u64, rule: BudgetRule, raise: Option<BudgetRaise>) -> Self {
        // A name that only newer programs know. The bounds in rows are what counts.
        let zone = find_zone(&rule.zone).unwrap_or(TimeZone::UTC);
        Self { number, rule, raise, zone, counters: Map::default() }
    }

    /// Returns the limit in force at `now`.
    pub(crate) fn limit_at(&self, now: UnixNanos) -> u64 {
        match self.raise {
            Some(raise) if now < raise.until => raise.limit.max(self.rule.limit),
            _ => self.rule.limit,
        }
    }

    /// Returns the counter of the window that contains `now`. `None` if a new window begins.
    pub(crate) fn current(&self, subject: &str, now: UnixNanos) -> Option<&WindowCounter> {
        let last = self.counters.get(subject)?.last()?;
        (last.has_open_end || now < last.window.end).then_some(last)
    }

    /// Returns the window of a hold that is taken at `now`. It never begins before the end of the window before it.
    pub(crate) fn window_at(&self, subject: &str, now: UnixNanos) -> WindowBounds {
        if self.rule.window == BudgetWindow::Total {
            return TOTAL;
        }
        let last = self.counters.get(subject).and_then(|counters| counters.last());
        match last {
            Some(last) if last.has_open_end => {
                let bounds = window_at(self.rule.window, &self.zone, now);
                WindowBounds { start: last.window.start, end: bounds.end }
            }
            Some(last) if now < last.window.end => last.window,
            Some(last) => {
                let bounds = window_at(self.rule.window, &self.zone, now);
                WindowBounds { start: bounds.start.max(last.window.end), end: bounds.end }
            }
            None => window_at(self.rule.window, &self.zone, now),
        }
    }

    /// Returns the subject of the rule among the parties of a hold. `None` if the rule does not concern the hold.
    fn subject_of(&self, parties: HoldParties<'_>) -> Option<RuleSubject> {
        let HoldParties { org, project, demand } = parties;
        let rule = &self.rule;
        if rule.org.as_ref().is_some_and(|only| only != org) {
            return None;
        }
        let id = match rule.scope {
            BudgetScope::Key => demand?.key.as_str(),
            BudgetScope::User => demand?.user.as_ref()?.as_str(),
            BudgetScope::Project => project.as_str(),
            BudgetScope::Org => org.as_str(),
            BudgetScope::Model => demand?.model.as_str(),
        };
        if rule.subject.as_deref().is_some_and(|only| only != id) {
            return None;
        }
        if let Some(tier) = &rule.tier
            && holder_tier(rule.scope, demand?.tiers.as_deref()?) != Some(tier)
        {
            return None;
        }
        Some(match rule.scope {
            BudgetScope::Model => self.known_subject(&model_subject(org, id)),
            _ => self.known_subject(id),
        })
    }

    /// Whether the rule counts anything for a subject. A call that goes over to another model reserves nothing for that model
    /// of a rule that is for other models alone, and such a reservation makes no counter.
    pub(crate) fn may_count(&self, subject: &str) -> bool {
        match (self.rule.scope, &self.rule.subject) {
            (BudgetScope::Model, Some(only)) => model_of(subject) == &**only,
            _ => true,
        }
    }

    fn known_subject(&self, id: &str) -> RuleSubject {
        self.counters.get_key_value(id).map_or_else(|| id.into(), |(known, _)| Arc::clone(known))
    }
}

type RuleSubject = Arc<str>;

fn holder_tier(scope: BudgetScope, tiers: &HolderTiers) -> Option<&TierName> {
    match scope {
        BudgetScope::Key => tiers.key.as_ref(),
        BudgetScope::Project => tiers.project.as_ref(),
        BudgetScope::Org => tiers.org.as_ref(),
        BudgetScope::User | BudgetScope::Model => None,
    }
}

/// Returns the place of a scope in [`BudgetState::bound_rules`].
const fn scope_place(scope: BudgetScope) -> usize {
    match scope {
        BudgetScope::Key => 0,
        BudgetScope::User => 1,
        BudgetScope::Project => 2,
        BudgetScope::Org => 3,
        BudgetScope::Model => 4,
    }
}

/// The kinds of subjects whose calls in flight are counted, with their place in [`BudgetState::places`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceScope {
    Key = 0,
    Project = 1,
    Org = 2,
    Model = 3,
}

impl BudgetState {
    /// Whether the state was never used, so that it takes no room in a snapshot.
    pub(crate) fn is_unused(&self) -> bool {
        self.last_number == 0
    }

    pub(crate) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    pub(crate) fn by_name(&self, name: &BudgetName) -> Option<&RuleState> {
        self.rules.iter().find(|state| state.rule.name == *name)
    }

    pub(crate) fn by_number(&self, number: u64) -> Option<&RuleState> {
        let place = self.rules.binary_search_by_key(&number, |state| state.number).ok()?;
        self.rules.get(place)
    }

    fn by_number_mut(&mut self, number: u64) -> Option<&mut RuleState> {
        let place = self.rules.binary_search_by_key(&number, |state| state.number).ok()?;
        self.rules.get_mut(place)
    }

    /// Calls `act` for each rule that concerns a hold, with the rule's subject. Stops at the first error.
    pub(crate) fn each_rule_of<E>(
        &self,
        parties: HoldParties<'_>,
        mut act: impl FnMut(&RuleState, Arc<str>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut visit = |place: &usize| match self.rules.get(*place) {
            Some(state) => state.subject_of(parties).map_or(Ok(()), |subject| act(state, subject)),
            None => Ok(()),
        };
        self.open_rules.iter().try_for_each(&mut visit)?;
        let demand = parties.demand;
        let ids = [
            demand.map(|demand| demand.key.as_str()),
            demand.and_then(|demand| demand.user.as_ref()).map(|user| user.as_str()),
            Some(parties.project.as_str()),
            Some(parties.org.as_str()),
            demand.map(|demand| demand.model.as_str()),
        ];
        for (bound, id) in self.bound_rules.iter().zip(ids) {
            let places = id.and_then(|id| bound.get(id));
            places.into_iter().flatten().try_for_each(&mut visit)?;
        }
        Ok(())
    }

    /// Calls `act` for each rule that counts calls of a model in an organisation, with the rule's subject.
    pub(crate) fn each_model_rule(
        &self,
        org: &OrgId,
        model: &ModelName,
        mut act: impl FnMut(&RuleState, Arc<str>),
    ) {
        let bound =
            self.bound_rules.get(scope_place(BudgetScope::Model)).and_then(|bound| bound.get(model.as_str()));
        for place in self.open_rules.iter().chain(bound.into_iter().flatten()) {
            let Some(state) = self.rules.get(*place).filter(|state| state.rule.scope == BudgetScope::Model)
            else {
                continue;
            };
            if state.rule.org.as_ref().is_none_or(|only| only == org) {
                act(state, state.known_subject(&model_subject(org, model.as_str())));
            }
        }
    }

    /// Returns the number of calls in flight of a subject.
    pub(crate) fn in_flight(&self, scope: PlaceScope, subject: &str) -> u32 {
        self.places.get(scope as usize).and_then(|places| places.get(subject)).copied().unwrap_or(0)
    }

    /// Sets a rule. A rule that counts something else than before has a new number and new counters.
    pub(crate) fn set(&mut self, number: u64, rule: &BudgetRule) {
        if let Some(place) = self.rules.iter().position(|state| state.rule.name == rule.name) {
            if let Some(state) = self.rules.get_mut(place).filter(|state| state.number == number) {
                state.rule = rule.clone();
                return;
            }
            self.rules.remove(place);
        }
        self.rules.push(RuleState::new(number, rule.clone(), None));
        self.last_number = self.last_number.max(number);
        self.index();
    }

    /// Inserts a rule that a snapshot holds.
    pub(crate) fn restore(&mut self, state: RuleState) {
        self.counter_count += state.counters.values().map(SmallVec::len).sum::<usize>();
        self.rules.push(state);
    }

    pub(crate) fn raise(&mut self, number: u64, raise: Option<BudgetRaise>) {
        if let Some(state) = self.by_number_mut(number) {
            state.raise = raise;
        }
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.rules.retain(|state| state.number != number);
        self.index();
    }

    /// Builds the index of rules anew.
    pub(crate) fn index(&mut self) {
        self.open_rules.clear();
        self.bound_rules.iter_mut().for_each(Map::clear);
        for (place, state) in self.rules.iter().enumerate() {
            match &state.rule.subject {
                None => self.open_rules.push(place),
                Some(subject) => {
                    if let Some(bound) = self.bound_rules.get_mut(scope_place(state.rule.scope)) {
                        bound.entry(Arc::clone(subject)).or_default().push(place);
                    }
                }
            }
        }
    }

    /// Returns the rule that a reservation would break: its window is none that may follow.
    pub(crate) fn check(
        &self,
        reservations: &[BudgetReservation],
        now: UnixNanos,
    ) -> Result<(), &'static str> {
        for reservation in reservations {
            let BudgetReservation { rule, subject, window, amount } = reservation;
            let state = self.by_number(*rule).ok_or("a reservation of an unknown budget rule")?;
            if window.end <= now || window.start >= window.end {
                return Err("a reservation in a window that is over");
            }
            let last = state.counters.get(subject).and_then(|counters| counters.last());
            // A counter that is over may be gone in another copy of the state, and must not decide.
            let Some(last) = last.filter(|last| !last.is_over(now)) else { continue };
            let is_same = last.window == *window || (last.has_open_end && last.window.start == window.start);
            if !is_same && window.start < last.window.end {
                return Err("a window of a budget rule begins before the one before it has ended");
            }
            let sum = if is_same { last.reserved.checked_add(last.used) } else { Some(0) };
            sum.and_then(|sum| sum.checked_add(*amount)).ok_or("a counter of a budget rule overflows")?;
        }
        Ok(())
    }

    /// Adds reservations to their counters. `check` has accepted them.
    pub(crate) fn reserve(&mut self, reservations: &[BudgetReservation], now: UnixNanos) {
        for BudgetReservation { rule, subject, window, amount } in reservations {
            let Some(state) = self.by_number_mut(*rule) else { continue };
            if *amount == 0 && !state.may_count(subject) {
                continue;
            }
            let counters = match state.counters.get_mut(subject) {
                Some(counters) => counters,
                None => state.counters.entry(Arc::clone(subject)).or_default(),
            };
            let before = counters.len();
            counters.retain(|counter| !counter.is_over(now));
            match counters.last_mut() {
                Some(last) if last.window.start == window.start => {
                    (last.window, last.has_open_end) = (*window, false);
                }
                _ => counters.push(WindowCounter::new(*window)),
            }
            if let Some(last) = counters.last_mut() {
                last.reserved = last.reserved.saturating_add(*amount);
            }
            let after = counters.len();
            self.counter_count = (self.counter_count + after).saturating_sub(before);
        }
        if self.counter_count > 2 * self.counters_at_removal + COUNTERS_BEFORE_REMOVAL {
            self.remove_ended(now);
        }
    }

    /// Counts a hold's calls in flight.
    pub(crate) fn take_places(&mut self, places: &HeldPlaces) {
        self.each_place(places, |counts, subject| match counts.get_mut(subject) {
            Some(count) => *count = count.saturating_add(1),
            None => {
                counts.insert(subject.into(), 1);
            }
        });
    }

    fn leave_places(&mut self, places: &HeldPlaces) {
        self.each_place(places, |counts, subject| {
            if let Some(count) = counts.get_mut(subject) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    counts.remove(subject);
                }
            }
        });
    }

    fn each_place(&mut self, places: &HeldPlaces, mut act: impl FnMut(&mut Map<Arc<str>, u32>, &str)) {
        let HeldPlaces { key, project, org, model } = places;
        let subjects = [
            key.as_ref().map(|key| key.as_str()),
            project.as_ref().map(|project| project.as_str()),
            org.as_ref().map(|org| org.as_str()),
            model.as_ref().map(|model| model.as_str()),
        ];
        for (counts, subject) in self.places.iter_mut().zip(subjects) {
            if let Some(subject) = subject {
                act(counts, subject);
            }
        }
    }

    /// Ends a hold: what was reserved of each rule becomes what was used, or is free again. A rule that has reservations for
    /// several models takes the use of each model from its own; `settled` has the lines by model. `None` if nothing was used.
    pub(crate) fn end_hold(&mut self, held: &BudgetedHold, used: HoldUse, settled: Option<&HoldSettled>) {
        self.leave_places(&held.places);
        for (place, reservation) in held.reservations.iter().enumerate() {
            let BudgetReservation { rule, subject, window, amount } = reservation;
            let of_rule = || held.reservations.iter().enumerate().filter(|(_, one)| one.rule == *rule);
            // What earlier reservations of the same rule and subject cover.
            let earlier = of_rule().filter(|(at, one)| *at < place && one.subject == *subject);
            let covered = earlier.fold(0_u64, |sum, (_, earlier)| sum.saturating_add(earlier.amount));
            let has_moved = of_rule().any(|(_, one)| one.subject != *subject);
            let Some(state) = self.by_number_mut(*rule) else { continue };
            let used = match settled {
                Some(settled) if has_moved => {
                    let is_last = of_rule().next_back().is_some_and(|(_, one)| one.subject == *subject);
                    used.of_model(settled, model_of(subject), is_last)
                }
                _ => used,
            };
            let actual = used.of(state.rule.measure).saturating_sub(covered).min(*amount);
            let counters = state.counters.get_mut(subject);
            let counter = counters.and_then(|counters| {
                counters.iter_mut().rev().find(|counter| counter.window.start <= window.start)
            });
            if let Some(counter) = counter {
                counter.reserved = counter.reserved.saturating_sub(*amount);
                counter.used = counter.used.saturating_add(actual);
            }
        }
    }

    /// Returns the alerts that are due for the counters of an ended hold, at `now`.
    pub(crate) fn due_alerts(&self, held: &BudgetedHold, now: UnixNanos) -> Vec<AlertRaised> {
        let mut due: Vec<AlertRaised> = Vec::new();
        for BudgetReservation { rule, subject, window, .. } in &held.reservations {
            let Some(state) = self.by_number(*rule).filter(|state| !state.rule.thresholds.is_empty()) else {
                continue;
            };
            let counters = state.counters.get(subject);
            let Some(counter) = counters.and_then(|counters| {
                counters.iter().rev().find(|counter| counter.window.start <= window.start)
            }) else {
                continue;
            };
            let limit = state.limit_at(now);
            for percent in &state.rule.thresholds {
                let is_due = is_reached(counter.used, limit, *percent) && !counter.alerted.contains(percent);
                let alert = AlertRaised {
                    rule: *rule,
                    name: state.rule.name.clone(),
                    subject: Arc::clone(subject),
                    window: counter.window,
                    percent: *percent,
                    used: counter.used,
                    limit,
                };
                if is_due && !due.contains(&alert) {
                    due.push(alert);
                }
            }
        }
        due
    }

    /// Returns the rule that an alert would break.
    pub(crate) fn check_alert(&self, alert: &AlertRaised) -> Result<(), &'static str> {
        let state = self.by_number(alert.rule).ok_or("an alert of an unknown budget rule")?;
        let counters = state.counters.get(&alert.subject);
        let counter =
            counters.and_then(|counters| counters.iter().find(|counter| counter.window == alert.window));
        let counter = counter.ok_or("an alert of a window that is not counted")?;
        if counter.alerted.contains(&alert.percent) {
            return Err("an alert is raised twice");
        }
        if counter.used != alert.used || !is_reached(alert.used, alert.limit, alert.percent) {
            return Err("an alert of a threshold that is not reached");
        }
        Ok(())
    }

    /// Records an alert. `check_alert` has accepted it.
    pub(crate) fn note_alert(&mut self, alert: &AlertRaised, now: UnixNanos) {
        let state = self.by_number_mut(alert.rule);
        let counters = state.and_then(|state| state.counters.get_mut(&alert.subject));
        let counter =
            counters.and_then(|counters| counters.iter_mut().find(|counter| counter.window == alert.window));
        if let Some(counter) = counter {
            counter.alerted.push(alert.percent);
            counter.alerted.sort_unstable();
        }
        if self.alerts.len() >= MAX_ALERTS_KEPT {
            self.alerts.pop_front();
        }
        self.alerts.push_back((now, alert.clone()));
    }

    /// Lets windows that lie ahead of `to` contain `to`, after the clock was set back from `from`. What was used in them
    /// counts. Their end is that of the window of the next hold.
    pub(crate) fn set_back(&mut self, from: UnixNanos, to: UnixNanos) {
        self.remove_ended(from);
        for state in self.rules.iter_mut().filter(|state| state.rule.window != BudgetWindow::Total) {
            for counters in state.counters.values_mut() {
                let ahead = counters.iter().filter(|counter| counter.window.start > to);
                let merged = ahead.cloned().reduce(WindowCounter::merged);
                if let Some(mut merged) = merged {
                    (merged.window.start, merged.has_open_end) = (to, true);
                    counters.retain(|counter| counter.window.start <= to);
                    counters.push(merged);
                }
            }
        }
    }

    fn remove_ended(&mut self, now: UnixNanos) {
        let mut count = 0;
        for state in &mut self.rules {
            state.counters.retain(|_, counters| {
                counters.retain(|counter| !counter.is_over(now));
                count += counters.len();
                !counters.is_empty()
            });
        }
        (self.counter_count, self.counters_at_removal) = (count, count);
    }
}

/// Whether `used` is at least `percent` of `limit`. Nothing is reached without use.
pub(crate) fn is_reached(used: u64, limit: u64, percent: u16) -> bool {
    used > 0 && u128::from(used) * 100 >= u128::from(limit) * u128::from(percent)
}
