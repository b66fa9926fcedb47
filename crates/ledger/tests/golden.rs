//! Journals and snapshots of every format version must stay readable forever, and this version must write the same
//! bytes as before. If the last assertion fails, a shape changed: give it a new version and its own reader.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use std::sync::Arc;

use headrace_domain::{BudgetName, HolderTiers, ModelName, TierName, TokenClass, UnixNanos};
use headrace_ledger::verify::verify;
use headrace_ledger::{
    BudgetMeasure, BudgetOrigin, BudgetPeriod, BudgetRaise, BudgetRule, BudgetScope, BudgetWindow,
    ChargeLine, ChargedShare, FORMAT_VERSION, FreeTier, GrantKind, HoldView, JournalError, JournalRow,
    Ledger, LedgerError, LedgerOperation, LedgerOptions, LoadedJournal, LotId, LotKind, LotTerms, LowBalance,
    MemoryJournal, MoneySource, Owner, PlaceLimits, RefundableCharge, ReleaseReason, SNAPSHOT_FORMAT_VERSION,
    SettleOutcome, StateSnapshot,
};

#[path = "support/world.rs"]
mod world;
use world::*;

const GOLDEN_V1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-v1.txt");
const GOLDEN_V2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-v2.txt");
const GOLDEN_V3: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-v3.txt");
const GOLDEN_V4: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-v4.txt");

const GOLDEN_V6: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-v6.txt");
/// A journal of format 6 in which a free call paid a part of its call, and a lot the rest.
const GOLDEN_V6_PARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-v6-parts.txt");
const GOLDEN_V5: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-v5.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn print(loaded: &LoadedJournal) -> String {
    let mut text = String::new();
    for r in &loaded.rows {
        let (previous, checksum, payload) = (hex(&r.previous), hex(&r.checksum), hex(&r.payload));
        let (sequence, version, time) = (r.sequence, r.format_version, r.time.get());
        text += &format!("row {sequence} {version} {time} {previous} {checksum} {payload}\n");
    }
    for s in &loaded.snapshots {
        let (row, checksum, payload) = (hex(&s.row_checksum), hex(&s.checksum), hex(&s.payload));
        text += &format!("snapshot {} {} {row} {checksum} {payload}\n", s.sequence, s.format_version);
    }
    text
}

fn parse(text: &str) -> LoadedJournal {
    let mut loaded = LoadedJournal::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields.as_slice() {
            ["row", sequence, version, time, previous, checksum, payload] => loaded.rows.push(JournalRow {
                sequence: sequence.parse().unwrap(),
                format_version: version.parse().unwrap(),
                time: UnixNanos::new(time.parse().unwrap()),
                payload: unhex(payload),
                previous: unhex(previous).try_into().unwrap(),
                checksum: unhex(checksum).try_into().unwrap(),
            }),
            ["snapshot", sequence, version, row, checksum, payload] => loaded.snapshots.push(StateSnapshot {
                sequence: sequence.parse().unwrap(),
                format_version: version.parse().unwrap(),
                row_checksum: unhex(row).try_into().unwrap(),
                payload: unhex(payload),
                checksum: unhex(checksum).try_into().unwrap(),
            }),
            other => panic!("{other:?}"),
        }
    }
    loaded
}

/// Every kind of event, account, class, reason and outcome, one batch per row.
fn script() -> Vec<LedgerOperation> {
    let keyed = |n, key: &str| hold_of("o", "p", n, 100, Some((key, 3)));
    let gift = GrantKind::Promotional;
    let mut script = vec![
        open("o", "p"),
        open("other", "q"),
        grant("o", 123_456_789_012),
        LedgerOperation::Grant {
            org: org("other"), amount: nano(5), kind: gift, reference: "größer".into()
        },
        budget("o", "p", 9_999_999, BudgetPeriod::Month),
        budget("other", "q", 7, BudgetPeriod::Total),
        LedgerOperation::SetBudget { org: org("other"), project: project("q"), budget: None },
        keyed(1, "first"),
        settle_as(1, 60, 2, SettleOutcome::Completed, Some("{\"text\":\"é\"}".as_bytes())),
        keyed(2, "second"),
        settle_as(2, 10, 0, SettleOutcome::Cancelled, None),
        hold(3, 0),
        settle_as(3, 30, 4, SettleOutcome::Failed, None),
        keyed(5, "still running"),
        hold_of("other", "q", u128::MAX, 5, None),
    ];
    let reasons = [
        ReleaseReason::Refused,
        ReleaseReason::Failed,
        ReleaseReason::Cancelled,
        ReleaseReason::Rerouted,
        ReleaseReason::Orphaned,
        ReleaseReason::Expired,
    ];
    for (n, why) in (100..).zip(reasons) {
        script.extend([hold(n, 10), LedgerOperation::Release { hold: hold_id(n), why }]);
    }
    let mut all_classes = lines(50);
    let line = all_classes[0].clone();
    all_classes.clear();
    let of_format_1 = TokenClass::ALL.into_iter().filter(|class| *class != TokenClass::CacheWrite1h);
    for (n, class) in (1..).zip(of_format_1) {
        all_classes.push(ChargeLine { class, tokens: n, amount: nano(n as i64), ..line.clone() });
    }
    let (outcome, loss) = (SettleOutcome::Completed, nano(0));
    script.extend([
        hold(6, 100),
        LedgerOperation::Settle { hold: hold_id(6), lines: all_classes, loss, outcome, answer: None },
    ]);
    script
}

fn write_today() -> LoadedJournal {
    written(script(), &[])
}

/// Runs the commands of `script`, one per second, and then those of `back`, all at the time of the first command.
fn written(script: Vec<LedgerOperation>, back: &[LedgerOperation]) -> LoadedJournal {
    let journal = MemoryJournal::new();
    let options = LedgerOptions { snapshot_rows: 1000, ..LedgerOptions::default() };
    let (ledger, _) = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options).unwrap();
    let later = back.iter().map(|command| (1, command.clone()));
    for (n, command) in (1..).zip(script).chain(later) {
        let done = ledger.transact(vec![command.clone()], at(n * SECOND));
        assert!(done.verdicts[0].is_done(), "{command:?}: {:?}", done.verdicts);
        done.durable.wait().unwrap();
    }
    ledger.close().unwrap();
    journal.contents()
}

#[test]
fn format_1_stays_readable_and_is_still_what_is_written() {
    if std::env::var("HEADRACE_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(GOLDEN_V1, print(&write_today())).unwrap();
    }
    let golden = parse(&std::fs::read_to_string(GOLDEN_V1).unwrap());
    let report = verify(&golden);
    assert!(report.ok(), "{report}");
    let t = report.totals;
    assert_eq!((t.paid_in.get(), t.promotional.get()), (-123_456_789_012, -5));
    assert_eq!((t.revenue.get(), t.loss.get(), t.held.get()), (60 + 2 + 10 + 34 + 15, -36, 105));
    assert_eq!((t.holds, t.settled, t.released, t.open_holds), (12, 4, 6, 2));
    for snapshots in [golden.snapshots.clone(), vec![]] {
        let contents = LoadedJournal { snapshots, rows: golden.rows.clone() };
        let (ledger, opened) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(0)).unwrap();
        assert_eq!(opened.totals, t);
        match ledger.hold(&hold_id(5)) {
            Some(HoldView::Open(held)) => assert_eq!(held.claim.unwrap().0.as_ref(), "still running"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        (FORMAT_VERSION, SNAPSHOT_FORMAT_VERSION),
        (6, 3),
        "a new version needs a golden file of its own"
    );
    assert!(
        print(&write_today()) == print(&golden),
        "format 1 is not written as it was: give the change a new format"
    );
}

#[test]
fn format_2_is_a_hold_extended_and_a_clock_set_back() {
    let extend = LedgerOperation::Extend { hold: hold_id(7), amount: nano(9), model: None };
    let written = || written(script(), &[LedgerOperation::SetClock, hold(7, 1), extend.clone()]);
    if std::env::var("HEADRACE_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(GOLDEN_V2, print(&written())).unwrap();
    }
    let golden = parse(&std::fs::read_to_string(GOLDEN_V2).unwrap());
    let report = verify(&golden);
    assert!(report.ok(), "{report}");
    let versions: Vec<_> = golden.rows.iter().rev().take(4).map(|row| row.format_version).collect();
    assert_eq!(versions, [2, 1, 2, 1], "only the rows that need it have the new format");
    for snapshots in [golden.snapshots.clone(), vec![]] {
        let contents = LoadedJournal { snapshots, rows: golden.rows.clone() };
        let (ledger, opened) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(0)).unwrap();
        assert_eq!((opened.totals, ledger.time()), (report.totals, at(SECOND)));
    }
    assert!(print(&written()) == print(&golden), "format 2 is not written as it was");
    let mut forged = golden;
    let row = forged.rows.last_mut().unwrap();
    row.format_version = 1;
    let why = headrace_ledger::decode_row(row).unwrap_err().to_string();
    assert!(why.contains("an event or a class of tokens that its format does not have"), "{why}");
}

#[test]
fn format_3_is_a_bill_of_cache_writes_for_an_hour() {
    is_a_bill_of(TokenClass::CacheWrite1h, 3, GOLDEN_V3);
}

#[test]
fn format_4_is_a_bill_of_web_searches() {
    is_a_bill_of(TokenClass::WebSearch, 4, GOLDEN_V4);
}

#[test]
fn format_5_is_what_budget_rules_need_and_its_snapshots_have_format_2() {
    let name = || BudgetName::new("daily").unwrap();
    let raise = Some(BudgetRaise { limit: 500, until: at(DAY) });
    let daily = BudgetRule {
        org: Some(org("o")),
        subject: Some("key_1".into()),
        tier: Some(TierName::new("gold").unwrap()),
        zone: "Europe/Berlin".into(),
        thresholds: vec![50, 100],
        origin: BudgetOrigin::Settings,
        ..rule("daily", BudgetScope::Key)
    };
    let tokens = BudgetRule {
        measure: BudgetMeasure::Tokens,
        window: BudgetWindow::Total,
        is_hard: false,
        ..rule("tokens", BudgetScope::Model)
    };
    let places = PlaceLimits { key: Some(3), project: Some(3), org: Some(3), model: Some(3) };
    let gold = HolderTiers { key: Some(TierName::new("gold").unwrap()), ..HolderTiers::default() };
    let budgeted = |n| {
        changed(call(n, "key_1", 400), &|demand| {
            (demand.places, demand.tiers) = (Some(places), Some(Arc::new(gold.clone())));
        })
    };
    let more = vec![
        set_rule(daily.clone()),
        set_rule(tokens.clone()),
        LedgerOperation::RaiseBudget { name: name(), raise },
        budgeted(20),
        LedgerOperation::Extend { hold: hold_id(20), amount: nano(100), model: None },
        settle(20, 500),
        LedgerOperation::RaiseBudget { name: name(), raise: None },
        set_rule(BudgetRule { limit: 2_000, ..daily.clone() }),
        budgeted(21),
        LedgerOperation::RemoveBudgetRule { name: tokens.name.clone() },
    ];
    let written = || written([script(), more.clone()].concat(), &[hold(30, 1)]);
    if std::env::var("HEADRACE_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(GOLDEN_V5, print(&written())).unwrap();
    }
    let golden = parse(&std::fs::read_to_string(GOLDEN_V5).unwrap());
    let report = verify(&golden);
    assert!(report.ok(), "{report}");
    let versions: Vec<_> = golden.rows.iter().rev().take(12).map(|row| row.format_version).collect();
    assert_eq!(
        versions,
        [1, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 1],
        "only the rows that need it have the new format"
    );
    assert_eq!(golden.snapshots.last().unwrap().format_version, 2);
    for snapshots in [golden.snapshots.clone(), vec![]] {
        let contents = LoadedJournal { snapshots, rows: golden.rows.clone() };
        let (ledger, opened) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(0)).unwrap();
        assert_eq!(opened.totals, report.totals);
        let budgets = ledger.budgets(ledger.time());
        let counter = &budgets[0].counters[0];
        assert_eq!(
            (budgets.len(), counter.used, counter.reserved, &counter.alerted[..]),
            (1, 500, 400, &[50][..])
        );
    }
    assert!(print(&written()) == print(&golden), "format 5 is not written as it was");
    let mut forged = golden;
    let row = forged.rows.iter_mut().rev().nth(1).unwrap();
    row.format_version = 4;
    let why = headrace_ledger::decode_row(row).unwrap_err().to_string();
    assert!(why.contains("an event or a class of tokens that its format does not have"), "{why}");
}

/// Every event of refunds, lots, contracts and free tiers, and holds with and without them.
fn lot_script() -> Vec<LedgerOperation> {
    let lot = |kind, amount, ends: Option<u64>, model: Option<&str>| {
        let models: Option<Arc<[ModelName]>> = model.map(|name| Arc::from([ModelName::new(name).unwrap()]));
        let (amount, begins, ends) = (nano(amount), at(0), ends.map(at));
        let terms = LotTerms { kind, amount, begins, ends, models, reference: "größer".into() };
        LedgerOperation::MakeLot { org: org("o"), terms: Box::new(terms) }
    };
    let free = |name: &str, measure, limit, model: Option<&str>| {
        let rule = BudgetRule { measure, limit, zone: "Asia/Tokyo".into(), ..rule(name, BudgetScope::Key) };
        let models = model.map(|name| Arc::from([ModelName::new(name).unwrap()]));
        LedgerOperation::SetFreeTier { tier: Box::new(FreeTier { rule, models }) }
    };
    let shares = [2, 3].map(|lot| MoneySource::Lot(LotId::new(lot)));
    let shares = [(MoneySource::Free, 100), (shares[1], 50), (shares[0], 400)];
    let refund = |n, charged, shares: &[(MoneySource, i64)], amount: Option<i64>, reference: &str| {
        let shares =
            shares.iter().map(|(source, amount)| ChargedShare { source: *source, amount: nano(*amount) });
        let (org, project, charged) = (org("o"), project("p"), nano(charged));
        let charge = RefundableCharge { hold: hold_id(n), org, project, charged, shares: shares.collect() };
        LedgerOperation::Refund {
            charge: Box::new(charge),
            amount: amount.map(nano),
            reference: reference.into(),
        }
    };
    let places = Some(PlaceLimits { key: Some(3), ..PlaceLimits::default() });
    let budgeted = |n, amount| changed(call(n, "key_1", amount), &|demand| demand.places = places);
    vec![
        lot(LotKind::Contract, 1_000, Some(DAY), None),
        lot(LotKind::Promotional, 550, None, Some("demo-1")),
        lot(LotKind::Paid, 50, Some(DAY), None),
        free("money", BudgetMeasure::Dollars, 100, Some("demo-1")),
        free("calls", BudgetMeasure::Requests, 1, None),
        budgeted(20, 400),
        settle(20, 350),
        budgeted(21, 500),
        LedgerOperation::Extend { hold: hold_id(21), amount: nano(100), model: None },
        settle(21, 550),
        call(22, "key_1", 60),
        refund(21, 550, &shares, Some(200), "a"),
        refund(21, 550, &shares, None, "b"),
        LedgerOperation::EndLot { lot: LotId::new(3) },
        LedgerOperation::SetLowBalance { org: org("o"), project: project("p"), policy: LowBalance::Cap },
        LedgerOperation::RemoveFreeTier { name: BudgetName::new("calls").unwrap() },
    ]
}

#[test]
fn format_6_is_what_refunds_lots_and_free_tiers_need_and_its_snapshots_have_format_3() {
    let written = || written([script(), lot_script()].concat(), &[hold(30, 1)]);
    if std::env::var("HEADRACE_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(GOLDEN_V6, print(&written())).unwrap();
    }
    let golden = parse(&std::fs::read_to_string(GOLDEN_V6).unwrap());
    let report = verify(&golden);
    assert!(report.ok(), "{report}");
    let versions: Vec<_> = golden.rows.iter().rev().take(17).map(|row| row.format_version).collect();
    // The settlements of holds with shares need nothing new.
    assert_eq!(versions, [1, 6, 6, 6, 6, 6, 6, 1, 6, 6, 1, 6, 6, 6, 6, 6, 6]);
    assert_eq!(golden.snapshots.last().unwrap().format_version, 3);
    for snapshots in [golden.snapshots.clone(), vec![]] {
        let contents = LoadedJournal { snapshots, rows: golden.rows.clone() };
        let (ledger, opened) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(0)).unwrap();
        assert_eq!(opened.totals, report.totals);
        let time = ledger.time();
        let lots: Vec<_> =
            ledger.lots(None, time).iter().map(|of| (of.lot.id.get(), of.left.get())).collect();
        assert_eq!(lots, [(1, 1_000), (2, 490)]);
        assert_eq!(ledger.free_tiers(time).len(), 1);
        assert_eq!(ledger.refund_by_reference(&org("o"), "a").unwrap().amount, nano(200));
    }
    assert!(print(&written()) == print(&golden), "format 6 is not written as it was");
    let mut forged = golden;
    let row = forged.rows.iter_mut().rev().nth(1).unwrap();
    row.format_version = 5;
    let why = headrace_ledger::decode_row(row).unwrap_err().to_string();
    assert!(why.contains("an event or a class of tokens that its format does not have"), "{why}");
}

#[test]
fn a_journal_in_which_free_calls_paid_a_part_is_read_as_it_was_written() {
    let old = parse(&std::fs::read_to_string(GOLDEN_V6_PARTS).unwrap());
    let report = verify(&old);
    assert!(report.ok(), "{report}");
    for snapshots in [old.snapshots.clone(), vec![]] {
        let contents = LoadedJournal { snapshots, rows: old.rows.clone() };
        let (ledger, opened) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(0)).unwrap();
        assert_eq!(opened.totals, report.totals);
        let lots: Vec<_> =
            ledger.lots(None, ledger.time()).iter().map(|of| (of.lot.id.get(), of.left.get())).collect();
        assert_eq!(lots, [(1, 1_000), (2, 500)]);
    }
}

/// Checks a format version that is used only for rows with bills of one class.
fn is_a_bill_of(class: TokenClass, version: u32, file: &str) {
    let bill = || {
        let ChargeLine { model, price, .. } = lines(50).remove(0);
        let lines = vec![ChargeLine { model, class, tokens: 8, price, amount: nano(8) }];
        let (outcome, loss) = (SettleOutcome::Completed, nano(0));
        LedgerOperation::Settle { hold: hold_id(7), lines, loss, outcome, answer: None }
    };
    let written = || written([script(), vec![hold(7, 100), bill()]].concat(), &[]);
    if std::env::var("HEADRACE_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(file, print(&written())).unwrap();
    }
    let golden = parse(&std::fs::read_to_string(file).unwrap());
    let report = verify(&golden);
    assert!(report.ok(), "{report}");
    let versions: Vec<_> = golden.rows.iter().rev().take(3).map(|row| row.format_version).collect();
    assert_eq!(versions, [version, 1, 1], "only the rows that need it have the new format");
    let last = headrace_ledger::decode_row(golden.rows.last().unwrap()).unwrap();
    assert!(format!("{last:?}").contains(&format!("{class:?}")), "{last:?}");
    for snapshots in [golden.snapshots.clone(), vec![]] {
        let contents = LoadedJournal { snapshots, rows: golden.rows.clone() };
        let (_, opened) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(0)).unwrap();
        assert_eq!(opened.totals, report.totals);
    }
    assert!(print(&written()) == print(&golden), "format {version} is not written as it was");
    let mut forged = golden;
    let row = forged.rows.last_mut().unwrap();
    row.format_version = version - 1;
    let why = headrace_ledger::decode_row(row).unwrap_err().to_string();
    assert!(why.contains("a class of tokens that its format does not have"), "{why}");
}

/// The checksum of the row was written by the command that released the holds of all owners but one.
#[test]
fn the_holds_of_ended_processes_are_released_by_the_same_row_as_ever() {
    let journal = MemoryJournal::new();
    let (ledger, _) = Ledger::open(Box::new(journal.clone()), OWNER, at(0)).unwrap();
    let mut commands = vec![open("o", "p"), grant("o", 1_000)];
    for (n, of) in [(4, 21), (1, 22), (3, 22), (2, 21), (5, 99), (6, 7)] {
        let LedgerOperation::Hold { hold, org, project, amount, expires, idempotency, demand, .. } =
            hold(n, 10)
        else {
            panic!("it is no hold")
        };
        let owner = Owner::new(of);
        commands.push(LedgerOperation::Hold {
            hold,
            org,
            project,
            amount,
            owner,
            expires,
            idempotency,
            demand,
        });
    }
    ledger.transact(commands, at(SECOND)).durable.wait().unwrap();
    let copy = MemoryJournal::with(journal.contents());
    let (ledger, report) = Ledger::open(Box::new(copy.clone()), Owner::new(99), at(2 * SECOND)).unwrap();
    assert_eq!(report.orphans, [1, 2, 3, 4, 6].map(hold_id), "in order of the holds, not of their owners");
    assert_eq!(ledger.totals().open_holds, 1);
    let row = copy.contents().rows.pop().unwrap();
    assert_eq!((row.sequence, row.format_version), (2, 1));
    assert_eq!(hex(&row.checksum), "8935e0b8f300e844cf8f8ab00f3078bf4d0206f972fbf0f31664fadb8bc170d3");
}

#[test]
fn a_newer_format_is_refused_by_name() {
    type Age = fn(&mut LoadedJournal);
    let table: [(&str, u32, Age); 2] = [
        ("journal row", FORMAT_VERSION, |loaded| {
            loaded.snapshots.clear();
            let row = loaded.rows.last_mut().unwrap();
            row.format_version = FORMAT_VERSION + 1;
            row.checksum = row.computed_checksum();
        }),
        ("snapshot", SNAPSHOT_FORMAT_VERSION, |loaded| {
            let snapshot = loaded.snapshots.last_mut().unwrap();
            snapshot.format_version = SNAPSHOT_FORMAT_VERSION + 1;
            snapshot.checksum = snapshot.computed_checksum();
        }),
    ];
    for (what, known, age) in table {
        let mut newer = write_today();
        age(&mut newer);
        let opened = Ledger::open(Box::new(MemoryJournal::with(newer)), Owner::new(1), at(0));
        let error = opened.map(|_| ()).unwrap_err();
        let found = known + 1;
        assert_eq!(error, LedgerError::Journal(JournalError::NewerFormat { what, found, known }));
        assert!(error.to_string().contains("use a newer Headrace"));
    }
}
