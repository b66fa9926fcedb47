//! Journals that are each wrong in one way, with a correct chain. The check must name the error.

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use super::*;
use crate::command::{Owner, ReleaseReason, SettleOutcome};
use crate::record::encode_payload;
use crate::transaction::{Entries, MoneyEntry};

fn nano(amount: i64) -> NanoDollars {
    NanoDollars::new(amount)
}

fn org() -> OrgId {
    OrgId::new("o").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("p").unwrap()
}

fn entry(account: Account, amount: i64) -> MoneyEntry {
    MoneyEntry { account, amount: nano(amount) }
}

const HOLD: HoldId = HoldId::from_bits(1);

/// Open, grant 100, hold 40, settle 30: one transaction each, at times 0, 1, 2, 3.
fn story() -> Vec<Transaction> {
    let at = |n, event, entries: Vec<MoneyEntry>| Transaction {
        time: UnixNanos::new(n),
        event,
        entries: entries.into(),
    };
    let held = HoldTaken {
        hold: HOLD,
        org: org(),
        project: project(),
        amount: nano(40),
        owner: Owner::new(1),
        expires: UnixNanos::new(1000),
        claim: None,
        budgeted: None,
        funding: None,
    };
    let price = headrace_domain::NanoDollarsPerMillion::new(1_000_000).unwrap();
    let line = crate::ChargeLine {
        model: headrace_domain::ModelName::new("m").unwrap(),
        class: headrace_domain::TokenClass::Input,
        tokens: 30,
        price,
        amount: nano(30),
    };
    let settled = HoldSettled {
        hold: HOLD,
        lines: vec![line],
        charged: nano(30),
        loss: nano(0),
        outcome: SettleOutcome::Completed,
        answer: None,
    };
    let (available, in_hold) = (|| Account::Available(org()), || Account::Held(project()));
    let granted = JournalEvent::Granted {
        org: org(),
        kind: crate::GrantKind::Paid,
        amount: nano(100),
        reference: "r".into(),
    };
    vec![
        at(0, JournalEvent::ProjectOpened { org: org(), project: project() }, vec![]),
        at(1, granted, vec![entry(Account::PaidIn, -100), entry(available(), 100)]),
        at(2, JournalEvent::Held(held), vec![entry(available(), -40), entry(in_hold(), 40)]),
        at(
            3,
            JournalEvent::Settled(settled),
            vec![entry(in_hold(), -40), entry(available(), 10), entry(Account::Revenue, 30)],
        ),
    ]
}

/// Returns one row per transaction, correctly chained.
fn chained(story: &[Transaction]) -> LoadedJournal {
    let mut rows: Vec<JournalRow> = Vec::new();
    for transaction in story {
        let (sequence, previous) = rows.last().map_or((0, GENESIS), |last| (last.sequence, last.checksum));
        let payload = encode_payload(std::slice::from_ref(transaction));
        rows.push(JournalRow::chained(sequence + 1, transaction.time, payload, previous));
    }
    LoadedJournal { snapshots: vec![], rows }
}

fn with_snapshot(story: &[Transaction]) -> LoadedJournal {
    let mut loaded = chained(story);
    let mut state = LedgerState::default();
    story.iter().for_each(|transaction| state.replay(transaction).unwrap());
    let last = loaded.rows.last().unwrap();
    loaded.snapshots.push(StateSnapshot::sealed(last.sequence, last.checksum, snapshot::encode(&state)));
    loaded
}

fn settled(story: &mut [Transaction]) -> &mut HoldSettled {
    match &mut story[3].event {
        JournalEvent::Settled(settled) => settled,
        _ => panic!("the fourth transaction is the settlement"),
    }
}

#[test]
fn a_right_journal_passes_and_its_totals_are_printed() {
    let report = verify(&with_snapshot(&story()));
    assert!(report.ok(), "{report}");
    assert_eq!((report.rows, report.transactions, report.snapshots), (4, 4, 1));
    let t = &report.totals;
    assert_eq!((t.paid_in, t.available, t.held, t.revenue), (nano(-100), nano(70), nano(0), nano(30)));
    assert_eq!((t.holds, t.settled, t.released, t.open_holds), (1, 1, 0, 0));
    let printed = report.to_string();
    assert!(printed.contains("revenue") && printed.ends_with("every invariant holds"), "{printed}");
    assert!(verify(&LoadedJournal::default()).ok(), "an empty journal breaks nothing");
}

#[test]
fn every_forged_story_is_found_out() {
    type Forge = fn(&mut Vec<Transaction>);
    let table: [(&str, Forge); 11] = [
        ("not to zero", |s| s[1].entries[1].amount = nano(101)),
        ("runs backwards", |s| s[3].time = UnixNanos::new(1)),
        ("is resolved twice", |s| {
            let event = JournalEvent::Released { hold: HOLD, why: ReleaseReason::Expired };
            s.push(Transaction { time: UnixNanos::new(4), event, entries: Entries::new() });
        }),
        ("was not open", |s| {
            s.remove(2);
        }),
        ("is taken twice", |s| {
            let again = s[2].clone();
            s.insert(3, again);
        }),
        ("is below zero", |s| {
            s.remove(1);
        }),
        ("and is charged", |s| {
            settled(s).charged = nano(41);
            s[3].entries = vec![
                entry(Account::Held(project()), -40),
                entry(Account::Available(org()), -1),
                entry(Account::Revenue, 41),
            ]
            .into();
        }),
        ("do not cover its lines", |s| settled(s).charged = nano(20)),
        ("not its tokens times its price", |s| settled(s).lines[0].amount = nano(29)),
        ("is on a project that its org lacks", |s| {
            s.remove(0);
        }),
        ("moved by", |s| s[3].entries[1].amount = nano(11)),
    ];
    for (what, forge) in table {
        let mut forged = story();
        forge(&mut forged);
        let report = verify(&chained(&forged));
        assert!(!report.ok(), "{what} went unnoticed");
        assert!(report.to_string().contains(what), "{what} is not named in\n{report}");
    }
}

#[test]
fn every_damaged_row_is_found() {
    type Damage = fn(&mut LoadedJournal);
    let table: [(&str, Damage); 9] = [
        ("rows are missing", |l| {
            l.rows.remove(1);
        }),
        ("rows are missing or doubled", |l| {
            let again = l.rows[1].clone();
            l.rows.insert(2, again);
        }),
        ("checksum does not match", |l| l.rows[1].payload[3] ^= 1),
        ("checksum does not match", |l| l.rows[1].time = UnixNanos::new(9)),
        ("does not chain", |l| l.rows[2].previous[0] ^= 1),
        ("formats up to 6", |l| l.rows[3].format_version = 7),
        ("another history", |l| l.snapshots[0].row_checksum[0] ^= 1),
        ("snapshot's checksum", |l| l.snapshots[0].payload[0] ^= 1),
        ("a row that the journal lacks", |l| {
            l.rows.pop();
        }),
    ];
    for (what, damage) in table {
        let mut damaged = with_snapshot(&story());
        damage(&mut damaged);
        let report = verify(&damaged);
        assert!(report.to_string().contains(what), "{what} is not named in\n{report}");
    }
}

#[test]
fn a_forged_snapshot_is_not_what_replaying_gives() {
    let mut loaded = with_snapshot(&story());
    let mut state = LedgerState::default();
    story()[..3].iter().for_each(|transaction| state.replay(transaction).unwrap());
    let last = loaded.rows.last().unwrap();
    loaded.snapshots = vec![StateSnapshot::sealed(last.sequence, last.checksum, snapshot::encode(&state))];
    let report = verify(&loaded);
    assert!(report.to_string().contains("not what replaying gives"), "{report}");
}

#[test]
fn every_truncation_and_flip_of_a_payload_is_an_error_and_never_a_panic() {
    let (_, payload) = encode_payload(&story());
    let row = |payload: Vec<u8>| JournalRow::chained(1, UnixNanos::new(3), (1, payload), GENESIS);
    assert!(decode_row(&row(payload.clone())).is_ok());
    for length in 0..payload.len() {
        assert!(decode_row(&row(payload[..length].to_vec())).is_err(), "cut to {length} bytes");
    }
    for at in 0..payload.len() {
        for bit in 0..8 {
            let mut flipped = payload.clone();
            flipped[at] ^= 1 << bit;
            // The row may still parse. Then the rules or the totals must report it, or only a name or a time differs.
            let _ = verify(&LoadedJournal { snapshots: vec![], rows: vec![row(flipped)] });
        }
    }
    let mut state = LedgerState::default();
    story().iter().for_each(|transaction| state.replay(transaction).unwrap());
    let (format, encoded) = snapshot::encode(&state);
    for at in 0..encoded.len() {
        let mut flipped = encoded.clone();
        flipped[at] ^= 0x55;
        let _ = snapshot::decode(&StateSnapshot::sealed(4, GENESIS, (format, flipped)));
        assert!(
            snapshot::decode(&StateSnapshot::sealed(4, GENESIS, (format, encoded[..at].to_vec()))).is_err()
        );
    }
}
