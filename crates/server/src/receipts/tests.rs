//! Receipts are made of the record and the journal alone, and a refused call costs no search.

use headrace_domain::{NanoDollars, Region, RequestId, Stage, TracedRefusal};
use headrace_ledger::verify::VerifyReport;
use headrace_ledger::{HoldSettled, JournalRow, JournaledSettlement, SettleOutcome};
use secrecy::zeroize::Zeroizing;

use super::*;

const NOW: UnixNanos = UnixNanos::new(1_795_132_800_000_000_000);

/// A journal that cannot be read.
struct UnreadableJournal;

impl JournalHistory for UnreadableJournal {
    fn rows_after(&self, _after: u64, _limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        Err(JournalError::Io("it was read".to_owned()))
    }

    fn verify(&self) -> Result<VerifyReport, JournalError> {
        Err(JournalError::Io("it was read".to_owned()))
    }
}

fn record(outcome: CallOutcome) -> TraceRecord {
    TraceRecord::new(RequestId::from_bits(7), NOW, outcome)
}

#[test]
fn a_refused_call_has_no_receipt_and_the_journal_is_not_read_for_it() {
    let signer = ReceiptSigner::of_secrets(&[Zeroizing::new([7; 32])]).unwrap();
    let refusal = TracedRefusal {
        stage: Stage::Hold,
        rule: "balance".to_owned(),
        status: 402,
        code: "insufficient_quota".to_owned(),
        message: "there is no money".to_owned(),
    };
    let refused = signer.receipt(&record(CallOutcome::Refused(refusal)), &UnreadableJournal);
    assert_eq!(refused.unwrap(), None);
    for ran in [
        CallOutcome::Completed { finish: vec!["stop".to_owned()] },
        CallOutcome::Cancelled { why: "the client went away".to_owned() },
        CallOutcome::Failed { stage: Stage::Decode, message: "a fault".to_owned() },
    ] {
        let searched = signer.receipt(&record(ran.clone()), &UnreadableJournal);
        assert!(matches!(searched, Err(ReceiptError::Journal(_))), "{ran:?}");
    }
}

#[test]
fn the_region_is_the_one_of_the_record() {
    for name in [None, Some("eu-west-1")] {
        let mut record = record(CallOutcome::Completed { finish: vec!["stop".to_owned()] });
        record.region = name.map(|name| Region::new(name).unwrap());
        let settlement = JournaledSettlement {
            sequence: 3,
            checksum: [5; 32],
            time: NOW,
            settled: HoldSettled {
                hold: record.request_id.hold(),
                lines: Vec::new(),
                charged: NanoDollars::ZERO,
                loss: NanoDollars::ZERO,
                outcome: SettleOutcome::Completed,
                answer: None,
            },
        };
        assert_eq!(receipt_json(&record, &settlement)["region"].as_str(), name);
    }
}
