//! Encodes budget rules, reservations and alerts, for journal rows of format 5 and snapshots of format 2. A change of shape
//! takes a new format number.

use std::sync::Arc;

use headrace_domain::UnixNanos;

use crate::budget_rule::{
    AlertRaised, BudgetMeasure, BudgetOrigin, BudgetRaise, BudgetReservation, BudgetRule, BudgetScope,
    BudgetWindow, BudgetedHold, HeldPlaces, WindowBounds,
};
use crate::codec::{ByteReader, ByteWriter, MalformedBytes};

pub(crate) fn write_rule(w: &mut ByteWriter, rule: &BudgetRule) {
    let BudgetRule {
        name,
        scope,
        org,
        subject,
        tier,
        window,
        zone,
        measure,
        limit,
        is_hard,
        thresholds,
        origin,
    } = rule;
    w.str(name.as_str());
    w.u8(match scope {
        BudgetScope::Key => 0,
        BudgetScope::User => 1,
        BudgetScope::Project => 2,
        BudgetScope::Org => 3,
        BudgetScope::Model => 4,
    });
    write_text(w, org.as_ref().map(|org| org.as_str()));
    write_text(w, subject.as_deref());
    write_text(w, tier.as_ref().map(|tier| tier.as_str()));
    w.u8(match window {
        BudgetWindow::Hour => 0,
        BudgetWindow::Day => 1,
        BudgetWindow::Week => 2,
        BudgetWindow::Month => 3,
        BudgetWindow::Total => 4,
    });
    w.str(zone);
    w.u8(match measure {
        BudgetMeasure::Dollars => 0,
        BudgetMeasure::Tokens => 1,
        BudgetMeasure::Requests => 2,
    });
    w.u64(*limit);
    w.bool(*is_hard);
    w.len_of(thresholds.len());
    thresholds.iter().for_each(|percent| w.u64((*percent).into()));
    w.u8(match origin {
        BudgetOrigin::Operator => 0,
        BudgetOrigin::Settings => 1,
    });
}

pub(crate) fn read_rule(r: &mut ByteReader<'_>) -> Result<BudgetRule, MalformedBytes> {
    Ok(BudgetRule {
        name: r.id("budget name")?,
        scope: match r.u8()? {
            0 => BudgetScope::Key,
            1 => BudgetScope::User,
            2 => BudgetScope::Project,
            3 => BudgetScope::Org,
            4 => BudgetScope::Model,
            _ => return Err(r.malformed("budget scope")),
        },
        org: r.option(|r| r.id("org id"))?,
        subject: r.option(|r| Ok(Arc::from(r.str()?)))?,
        tier: r.option(|r| r.id("tier name"))?,
        window: match r.u8()? {
            0 => BudgetWindow::Hour,
            1 => BudgetWindow::Day,
            2 => BudgetWindow::Week,
            3 => BudgetWindow::Month,
            4 => BudgetWindow::Total,
            _ => return Err(r.malformed("budget window")),
        },
        zone: r.str()?.into(),
        measure: match r.u8()? {
            0 => BudgetMeasure::Dollars,
            1 => BudgetMeasure::Tokens,
            2 => BudgetMeasure::Requests,
            _ => return Err(r.malformed("budget measure")),
        },
        limit: r.u64()?,
        is_hard: r.bool()?,
        thresholds: read_percents(r)?,
        origin: match r.u8()? {
            0 => BudgetOrigin::Operator,
            1 => BudgetOrigin::Settings,
            _ => return Err(r.malformed("budget origin")),
        },
    })
}

pub(crate) fn read_percents(r: &mut ByteReader<'_>) -> Result<Vec<u16>, MalformedBytes> {
    let count = r.len_of()?;
    (0..count).map(|_| read_percent(r)).collect()
}

fn read_percent(r: &mut ByteReader<'_>) -> Result<u16, MalformedBytes> {
    u16::try_from(r.u64()?).map_err(|_| r.malformed("percent"))
}

fn write_text(w: &mut ByteWriter, text: Option<&str>) {
    w.bool(text.is_some());
    if let Some(text) = text {
        w.str(text);
    }
}

pub(crate) fn write_raise(w: &mut ByteWriter, raise: Option<BudgetRaise>) {
    w.bool(raise.is_some());
    if let Some(BudgetRaise { limit, until }) = raise {
        w.u64(limit);
        w.u64(until.get());
    }
}

pub(crate) fn read_raise(r: &mut ByteReader<'_>) -> Result<Option<BudgetRaise>, MalformedBytes> {
    r.option(|r| Ok(BudgetRaise { limit: r.u64()?, until: UnixNanos::new(r.u64()?) }))
}

pub(crate) fn write_window(w: &mut ByteWriter, window: WindowBounds) {
    let WindowBounds { start, end } = window;
    w.u64(start.get());
    w.u64(end.get());
}

pub(crate) fn read_window(r: &mut ByteReader<'_>) -> Result<WindowBounds, MalformedBytes> {
    Ok(WindowBounds { start: UnixNanos::new(r.u64()?), end: UnixNanos::new(r.u64()?) })
}

pub(crate) fn write_reservations(w: &mut ByteWriter, reservations: &[BudgetReservation]) {
    w.len_of(reservations.len());
    for BudgetReservation { rule, subject, window, amount } in reservations {
        w.u64(*rule);
        w.str(subject);
        write_window(w, *window);
        w.u64(*amount);
    }
}

pub(crate) fn read_reservations(r: &mut ByteReader<'_>) -> Result<Vec<BudgetReservation>, MalformedBytes> {
    let count = r.len_of()?;
    let one = |_| {
        Ok(BudgetReservation {
            rule: r.u64()?,
            subject: r.str()?.into(),
            window: read_window(r)?,
            amount: r.u64()?,
        })
    };
    (0..count).map(one).collect()
}

pub(crate) fn write_budgeted(w: &mut ByteWriter, budgeted: &BudgetedHold) {
    let BudgetedHold { reservations, places: HeldPlaces { key, project, org, model } } = budgeted;
    write_reservations(w, reservations);
    write_text(w, key.as_ref().map(|key| key.as_str()));
    write_text(w, project.as_ref().map(|project| project.as_str()));
    write_text(w, org.as_ref().map(|org| org.as_str()));
    write_text(w, model.as_ref().map(|model| model.as_str()));
}

pub(crate) fn read_budgeted(r: &mut ByteReader<'_>) -> Result<BudgetedHold, MalformedBytes> {
    let reservations = read_reservations(r)?;
    let places = HeldPlaces {
        key: r.option(|r| r.id("key id"))?,
        project: r.option(|r| r.id("project id"))?,
        org: r.option(|r| r.id("org id"))?,
        model: r.option(|r| r.id("model name"))?,
    };
    Ok(BudgetedHold { reservations, places })
}

pub(crate) fn write_alert(w: &mut ByteWriter, alert: &AlertRaised) {
    let AlertRaised { rule, name, subject, window, percent, used, limit } = alert;
    w.u64(*rule);
    w.str(name.as_str());
    w.str(subject);
    write_window(w, *window);
    w.u64((*percent).into());
    w.u64(*used);
    w.u64(*limit);
}

pub(crate) fn read_alert(r: &mut ByteReader<'_>) -> Result<AlertRaised, MalformedBytes> {
    Ok(AlertRaised {
        rule: r.u64()?,
        name: r.id("budget name")?,
        subject: r.str()?.into(),
        window: read_window(r)?,
        percent: read_percent(r)?,
        used: r.u64()?,
        limit: r.u64()?,
    })
}
