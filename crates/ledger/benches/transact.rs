//! The cost of a call for the ledger: the processor time of `transact` (hold and settle) and the time until both are
//! durable, on a journal without latency. Run with `cargo bench -p headrace-ledger`.

use std::time::{Duration, Instant};

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos,
};
use headrace_ledger::{ChargeLine, GrantKind, Ledger, LedgerOperation, MemoryJournal, Owner, SettleOutcome};

const CALLS: u64 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (org, project) = (OrgId::new("org")?, ProjectId::new("project")?);
    let now = UnixNanos::new(1_800_000_000_000_000_000);
    let (ledger, _) = Ledger::open(Box::new(MemoryJournal::discarding()), Owner::new(1), now)?;
    let opened = ledger.transact(
        vec![
            LedgerOperation::OpenProject { org: org.clone(), project: project.clone() },
            LedgerOperation::Grant {
                org: org.clone(),
                amount: NanoDollars::new(i64::MAX / 2),
                kind: GrantKind::Promotional,
                reference: "bench".into(),
            },
        ],
        now,
    );
    opened.durable.wait()?;

    let model = ModelName::new("demo-1")?;
    let price = NanoDollarsPerMillion::new(1_000_000)?;
    let line = |class, tokens| ChargeLine {
        model: model.clone(),
        class,
        tokens,
        price,
        amount: NanoDollars::new(i64::from(tokens as u32)),
    };
    let hold = |n: u64| LedgerOperation::Hold {
        hold: HoldId::from_bits(n.into()),
        org: org.clone(),
        project: project.clone(),
        amount: NanoDollars::new(5_000),
        owner: Owner::new(1),
        expires: now.after(Duration::from_secs(600)),
        demand: None,
        idempotency: None,
    };
    let settle = |n: u64| LedgerOperation::Settle {
        hold: HoldId::from_bits(n.into()),
        lines: vec![
            line(TokenClass::Input, 50),
            line(TokenClass::CachedInput, 16),
            line(TokenClass::Output, 100),
        ],
        loss: NanoDollars::ZERO,
        outcome: SettleOutcome::Completed,
        answer: None,
    };

    for (name, every) in [("transact alone", 64), ("each waited for", 1)] {
        let base = if every == 1 { CALLS } else { 0 };
        let mut inside = Duration::ZERO;
        let started = Instant::now();
        for n in base..base + CALLS {
            for command in [hold(n), settle(n)] {
                let before = Instant::now();
                let done = ledger.transact(vec![command], now);
                inside += before.elapsed();
                if n % every == 0 {
                    done.durable.wait()?;
                }
            }
        }
        let per_call = |total: Duration| total.as_nanos() as f64 / CALLS as f64 / 1000.0;
        println!(
            "{name}: {:.2} µs a call inside transact (hold + settle), {:.2} µs a call on the clock",
            per_call(inside),
            per_call(started.elapsed())
        );
    }
    let health = ledger.health();
    println!("{} transactions in {} commits", health.transactions, health.commits);
    ledger.close()?;
    Ok(())
}
