//! Invoices over a ledger in memory: lines and rounding are the ledger, and a final invoice never changes.

use headrace_domain::{HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, Rounding, TokenClass};
use headrace_identity::{HashSecret, MemoryKeyStore};
use headrace_ledger::{ChargeLine, Ledger, LocalLedgerAdmin, MemoryJournal, Owner, SettleOutcome};

use super::*;
use crate::invoice::{InvoiceDocument, InvoiceState, PriceVersion};
use crate::invoice_act::{InvoiceAct, InvoiceReply};
use crate::invoice_settings::{InvoiceBuyer, InvoiceParty, InvoiceSettings, TaxRate};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
/// 2026-11-01 00:00 UTC.
const NOVEMBER: u64 = 1_793_491_200 * SECOND;

/// A seeded sequence of random numbers.
struct SeededNumbers(u64);

impl SeededNumbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

struct InvoiceWorld {
    service: AdminService,
    ledger: Arc<dyn LedgerAdmin>,
    settings: Arc<Mutex<InvoiceSettings>>,
    next: u128,
}

fn settings() -> InvoiceSettings {
    let party = |name: &str| InvoiceParty { name: name.to_owned(), ..InvoiceParty::default() };
    let tokyo = InvoiceBuyer {
        party: party("Kaisha & <Co>"),
        zone: Some("Asia/Tokyo".to_owned()),
        tax: Some(TaxRate { category: "S".to_owned(), basis_points: 1000 }),
        reference: Some("PO 7".to_owned()),
    };
    InvoiceSettings {
        seller: Some(party("Example GmbH")),
        buyers: [(OrgId::new("tokyo").unwrap(), tokyo)].into(),
        ..InvoiceSettings::default()
    }
}

impl InvoiceWorld {
    fn new(settings: InvoiceSettings) -> Self {
        Self::with_balance(settings, 1_000_000_000_000)
    }

    fn with_balance(settings: InvoiceSettings, balance: i64) -> Self {
        let settings = Arc::new(Mutex::new(settings));
        let read = Arc::clone(&settings);
        let start = UnixNanos::new(NOVEMBER - 2 * DAY);
        let journal = MemoryJournal::default();
        let (ledger, _) = Ledger::open(Box::new(journal.clone()), Owner::new(1), start).unwrap();
        let ledger: Arc<dyn LedgerAdmin> = Arc::new(LocalLedgerAdmin::new(ledger, Arc::new(journal)));
        let store = Arc::new(MemoryKeyStore::default());
        let directory = Arc::new(Directory::open(store, HashSecret::new([7; 32])).unwrap());
        let service = AdminService::new(
            directory,
            Arc::clone(&ledger),
            Box::new(DefaultLimits::default),
            Box::new(ServerStatus::default),
        )
        .with_invoices(InvoiceSource {
            settings: Box::new(move || read.lock().clone()),
            versions: Box::new(|_| {
                Box::new(|group| {
                    let from = Some(format!("{}-01-01", 2000 + group.price.get() % 100));
                    Some(PriceVersion { from, ..PriceVersion::default() })
                })
            }),
        });
        let mut world = Self { service, ledger, settings, next: 0 };
        for (org, project) in [("acme", "a"), ("acme", "b"), ("tokyo", "t")] {
            let (id, regions) = (OrgId::new(org).unwrap(), Residency::Anywhere);
            if world.service.directory.org(&id).is_none() {
                world
                    .admin(AdminCommand::CreateOrg { id: id.clone(), limits: None, regions }, start)
                    .unwrap();
            }
            let create =
                AdminCommand::CreateProject { id: ProjectId::new(project).unwrap(), org: id, limits: None };
            world.admin(create, start).unwrap();
        }
        for org in ["acme", "tokyo"].into_iter().filter(|_| balance > 0) {
            let grant = LedgerOperation::Grant {
                org: OrgId::new(org).unwrap(),
                amount: NanoDollars::new(balance),
                kind: headrace_ledger::GrantKind::Paid,
                reference: "a test".into(),
            };
            world.ledger(grant, start);
        }
        world
    }

    fn admin(&self, command: AdminCommand, now: UnixNanos) -> Result<AdminReply, AdminError> {
        self.service.execute(command, "tester", now)
    }

    fn ledger(&mut self, command: LedgerOperation, now: UnixNanos) {
        let done = self.ledger.transact(vec![command], now);
        assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
        done.durable.wait().unwrap();
    }

    /// Settles a call of a project at `now`. Returns what it was charged.
    fn call(&mut self, random: &mut SeededNumbers, (org, project): (&str, &str), now: UnixNanos) -> i64 {
        self.next += 1;
        let hold = HoldId::from_bits(self.next);
        let held = i64::try_from(random.below(40_000_000)).unwrap();
        let lines: Vec<ChargeLine> = [TokenClass::Input, TokenClass::CachedInput, TokenClass::Output]
            .into_iter()
            .map(|class| {
                let price =
                    NanoDollarsPerMillion::new(i64::try_from(1 + random.below(3) * 777_777_777).unwrap());
                let tokens = random.below(20_000);
                let (price, model) = (price.unwrap(), ["m", "n"][usize::try_from(random.below(2)).unwrap()]);
                let amount = price.cost(tokens, Rounding::Nearest).unwrap();
                ChargeLine { model: ModelName::new(model).unwrap(), class, tokens, price, amount }
            })
            .collect();
        let of_lines: i64 = lines.iter().map(|line| line.amount.get()).sum();
        self.ledger(
            LedgerOperation::Hold {
                hold,
                org: OrgId::new(org).unwrap(),
                project: ProjectId::new(project).unwrap(),
                amount: NanoDollars::new(held),
                owner: Owner::new(1),
                expires: now.after(Duration::from_secs(3_600)),
                demand: None,
                idempotency: None,
            },
            UnixNanos::new(now.get() - 60 * SECOND),
        );
        let (loss, outcome) = (NanoDollars::ZERO, SettleOutcome::Completed);
        self.ledger(LedgerOperation::Settle { hold, lines, loss, outcome, answer: None }, now);
        of_lines.min(held)
    }

    fn invoice(&self, act: InvoiceAct, now: UnixNanos) -> Result<InvoiceDocument, AdminError> {
        match self.admin(AdminCommand::Invoices { act }, now)? {
            AdminReply::Invoices(InvoiceReply::Invoice(invoice)) => Ok(*invoice),
            other => panic!("{other:?}"),
        }
    }
}

fn month(org: &str, month: &str) -> (OrgId, String) {
    (OrgId::new(org).unwrap(), month.to_owned())
}

fn draft(org: &str, of: &str) -> InvoiceAct {
    let (org, month) = month(org, of);
    InvoiceAct::Draft { org, month }
}

fn finish(org: &str, of: &str) -> InvoiceAct {
    let (org, month) = month(org, of);
    InvoiceAct::Final { org, month }
}

/// Checks the sums of an invoice, and that JSON keeps all of it.
fn check(invoice: &InvoiceDocument, charged: i64) {
    let of_lines: i64 = invoice.lines.iter().map(|line| line.amount.get()).sum();
    let totals = &invoice.totals;
    assert_eq!((of_lines, totals.charged.get()), (charged, charged));
    let in_cents = totals.charged.get() + totals.rounding_to_cents.get();
    assert_eq!(in_cents, totals.charged_cents.0 * 10_000_000, "lines and rounding are whole cents");
    assert!(totals.rounding_to_cents.get().abs() <= 5_000_000);
    let net: i64 = invoice.lines.iter().map(|line| line.net.0).sum();
    assert_eq!(net, totals.net.0);
    let tax: i64 = invoice.taxes.iter().map(|tax| tax.amount.0).sum();
    assert_eq!((tax, totals.taxable.0 + tax), (totals.tax.0, totals.gross.0));
    assert_eq!(totals.taxable.0, totals.net.0 - totals.allowance.0);
    assert_eq!(totals.due.0, totals.gross.0 - totals.paid.0 + totals.rounding.0);
    assert_eq!(totals.charged_cents.0, totals.net.0 + totals.rounding.0);
    let text = serde_json::to_string(invoice).unwrap();
    assert_eq!(serde_json::from_str::<InvoiceDocument>(&text).unwrap(), *invoice);
}

#[test]
fn lines_and_rounding_are_the_ledger_in_every_zone() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut random = SeededNumbers(seed);
        let mut world = InvoiceWorld::new(settings());
        // By organisation and month of its zone.
        let mut sums = [[0_i64; 3]; 2];
        let mut now = NOVEMBER - DAY;
        while now < NOVEMBER + 31 * DAY {
            now += random.below(DAY) + 61 * SECOND;
            let (at, place) = [(0, ("acme", "a")), (0, ("acme", "b")), (1, ("tokyo", "t"))]
                [usize::try_from(random.below(3)).unwrap()];
            // Tokyo's months begin nine hours earlier.
            let local = if at == 1 { now + 9 * 3_600 * SECOND } else { now };
            let month = match local {
                local if local < NOVEMBER => 0,
                local if local < NOVEMBER + 30 * DAY => 1,
                _ => 2,
            };
            sums[at][month] += world.call(&mut random, place, UnixNanos::new(now));
        }
        let later = UnixNanos::new(NOVEMBER + 70 * DAY);
        for (at, org) in [(0, "acme"), (1, "tokyo")] {
            for (of, name) in [(0, "2026-10"), (1, "2026-11"), (2, "2026-12")] {
                let invoice = world.invoice(draft(org, name), later).unwrap();
                check(&invoice, sums[at][of]);
                assert_eq!((invoice.state, &invoice.number), (InvoiceState::Draft, &None));
            }
        }
    }
}

#[test]
fn a_final_invoice_has_a_number_and_never_changes() {
    let mut world = InvoiceWorld::new(settings());
    let mut random = SeededNumbers(7);
    let during = UnixNanos::new(NOVEMBER + 3 * DAY);
    let charged = world.call(&mut random, ("acme", "a"), during);
    let code = |act, now| world.invoice(act, now).unwrap_err().code;
    assert_eq!(code(finish("acme", "2026-11"), during), AdminCode::MonthOpen);
    assert_eq!(code(finish("missing", "2026-11"), during), AdminCode::UnknownOrg);
    assert_eq!(code(finish("acme", "2026-13"), during), AdminCode::Invalid);
    assert_eq!(code(InvoiceAct::Show { number: "INV-1".to_owned() }, during), AdminCode::UnknownInvoice);
    let after = UnixNanos::new(NOVEMBER + 31 * DAY);
    let first = world.invoice(finish("acme", "2026-11"), after).unwrap();
    check(&first, charged);
    assert_eq!((first.number.as_deref(), first.state), (Some("INV-1"), InvoiceState::Final));
    assert_eq!((first.from.as_str(), first.to.as_str()), ("2026-11-01", "2026-11-30"));
    assert_eq!(code(finish("acme", "2026-11"), after), AdminCode::InvoiceExists);
    let second = world.invoice(finish("tokyo", "2026-11"), after).unwrap();
    assert_eq!((second.number.as_deref(), second.zone.as_str()), (Some("INV-2"), "Asia/Tokyo"));
    // More calls, in the month after.
    world.call(&mut random, ("acme", "a"), UnixNanos::new(NOVEMBER + 32 * DAY));
    let shown = world.invoice(InvoiceAct::Show { number: "INV-1".to_owned() }, after).unwrap();
    assert_eq!(shown, first);
    let listed = world.admin(AdminCommand::Invoices { act: InvoiceAct::List { org: None } }, after).unwrap();
    let AdminReply::Invoices(InvoiceReply::Invoices(listed)) = listed else { panic!("{listed:?}") };
    let numbers: Vec<&str> = listed.iter().map(|row| row.number.as_str()).collect();
    assert_eq!(numbers, ["INV-1", "INV-2"]);
    let audit = world.service.directory.audit_of("invoice.final", Some("INV-1"), 9).unwrap();
    assert!(audit[0].entry.detail.contains(&listed[0].hash), "{}", audit[0].entry.detail);
}

#[test]
fn a_changed_time_zone_neither_repeats_nor_omits_hours() {
    let hour = 3_600 * SECOND;
    for (before, after) in [("UTC", "Asia/Tokyo"), ("Asia/Tokyo", "UTC"), ("UTC", "America/Los_Angeles")] {
        let mut world = InvoiceWorld::new(settings());
        world.settings.lock().zone = before.to_owned();
        let mut random = SeededNumbers(13);
        let mut charged = 0;
        // A call in each hour around the end of November, in every zone.
        for n in 0..48_u64 {
            let time = NOVEMBER + 29 * DAY + n * hour + 1_000;
            charged += world.call(&mut random, ("acme", "a"), UnixNanos::new(time));
        }
        let first = world.invoice(finish("acme", "2026-11"), UnixNanos::new(NOVEMBER + 32 * DAY)).unwrap();
        world.settings.lock().zone = after.to_owned();
        let second = world.invoice(finish("acme", "2026-12"), UnixNanos::new(NOVEMBER + 63 * DAY)).unwrap();
        let sum = first.totals.charged.get() + second.totals.charged.get();
        assert_eq!(sum, charged, "{before} to {after}");
        assert_eq!(first.period().end, second.period().start);
    }
}

#[test]
fn a_refund_of_promotional_credit_changes_no_tax() {
    let mut world = InvoiceWorld::new(settings());
    let during = UnixNanos::new(NOVEMBER + 3 * DAY);
    let org = OrgId::new("tokyo").unwrap();
    let terms = headrace_ledger::LotTerms {
        kind: headrace_ledger::LotKind::Promotional,
        amount: NanoDollars::new(100_000_000_000),
        begins: UnixNanos::new(NOVEMBER - 2 * DAY),
        ends: Some(UnixNanos::new(NOVEMBER + 10 * DAY)),
        models: None,
        reference: "a test".into(),
    };
    let make = LedgerOperation::MakeLot { org: org.clone(), terms: Box::new(terms) };
    world.ledger(make, UnixNanos::new(NOVEMBER - 2 * DAY));
    let charged = world.call(&mut SeededNumbers(1), ("tokyo", "t"), during);
    let source = headrace_ledger::MoneySource::Lot(headrace_ledger::LotId::new(1));
    let charge = headrace_ledger::RefundableCharge {
        hold: HoldId::from_bits(1),
        org,
        project: ProjectId::new("t").unwrap(),
        charged: NanoDollars::new(charged),
        shares: vec![headrace_ledger::ChargedShare { source, amount: NanoDollars::new(charged) }],
    };
    let refund = |amount: Option<i64>, reference: &str| LedgerOperation::Refund {
        charge: Box::new(charge.clone()),
        amount: amount.map(NanoDollars::new),
        reference: reference.to_owned(),
    };
    // The lot has ended, so that the refund makes a new one.
    let later = UnixNanos::new(NOVEMBER + 20 * DAY);
    world.ledger(refund(Some(charged / 2), "a"), later);
    let after = UnixNanos::new(NOVEMBER + 32 * DAY);
    let invoice = world.invoice(finish("tokyo", "2026-11"), after).unwrap();
    check(&invoice, charged - charged / 2);
    let untaxed = |totals: &crate::invoice::InvoiceTotals| {
        // What remains is the rounding of single lines.
        assert!((totals.allowance.0 - totals.charged_cents.0).abs() <= 1, "{totals:?}");
        assert_eq!((totals.paid.0.abs() <= 1, totals.tax.0), (true, 0), "{totals:?}");
    };
    untaxed(&invoice.totals);
    world.ledger(refund(None, "b"), after);
    let note = world.invoice(InvoiceAct::Credit { number: "INV-01".to_owned() }, after).unwrap();
    check(&note, charged - charged / 2);
    untaxed(&note.totals);
    let again = world.invoice(InvoiceAct::Credit { number: "INV-1".to_owned() }, after).unwrap_err();
    assert_eq!(again.code, AdminCode::Invalid, "it is credited once, however its number is written");
}

#[test]
fn contracts_are_due_and_promotional_credit_has_no_tax() {
    let mut world = InvoiceWorld::new(settings());
    let mut random = SeededNumbers(11);
    let lot = |kind, dollars: i64| LedgerOperation::MakeLot {
        org: OrgId::new("tokyo").unwrap(),
        terms: Box::new(headrace_ledger::LotTerms {
            kind,
            amount: NanoDollars::new(dollars * 1_000_000_000),
            begins: UnixNanos::new(NOVEMBER - 2 * DAY),
            ends: Some(UnixNanos::new(NOVEMBER + 60 * DAY)),
            models: None,
            reference: "a test".into(),
        }),
    };
    let start = UnixNanos::new(NOVEMBER - 2 * DAY);
    world.ledger(lot(headrace_ledger::LotKind::Promotional, 100), start);
    let during = UnixNanos::new(NOVEMBER + 3 * DAY);
    let mut given = 0;
    for _ in 0..20 {
        given += world.call(&mut random, ("tokyo", "t"), during);
    }
    let invoice = world.invoice(draft("tokyo", "2026-11"), during).unwrap();
    check(&invoice, given);
    let totals = &invoice.totals;
    assert_eq!(
        (totals.allowance, totals.paid),
        (totals.charged_cents, crate::invoice_amounts::CentAmount(0))
    );
    // All that is left is the rounding of single lines.
    assert_eq!(totals.due, totals.tax);

    // Another organisation has a contract alone.
    let contract = LedgerOperation::MakeLot {
        org: OrgId::new("acme").unwrap(),
        terms: Box::new(headrace_ledger::LotTerms {
            kind: headrace_ledger::LotKind::Contract,
            amount: NanoDollars::new(1_000_000_000_000),
            begins: start,
            ends: None,
            models: None,
            reference: "a contract".into(),
        }),
    };
    let mut world = InvoiceWorld::with_balance(settings(), 0);
    world.ledger(contract, start);
    let owed =
        world.call(&mut random, ("acme", "a"), during) + world.call(&mut random, ("acme", "b"), during);
    let invoice = world.invoice(draft("acme", "2026-11"), during).unwrap();
    check(&invoice, owed);
    let totals = &invoice.totals;
    assert_eq!((totals.allowance.0, totals.paid.0), (0, 0));
    assert_eq!(totals.due.0, totals.charged_cents.0 + totals.tax.0, "a contract is paid later");
}

#[test]
fn a_refund_is_a_line_before_the_invoice_is_final_and_a_credit_note_after_it() {
    let mut world = InvoiceWorld::new(settings());
    let mut random = SeededNumbers(5);
    let during = UnixNanos::new(NOVEMBER + 3 * DAY);
    let first = world.call(&mut random, ("tokyo", "t"), during);
    let second = world.call(&mut random, ("tokyo", "t"), during);
    let refund = |hold: u128, charged: i64, amount: i64, reference: &str| LedgerOperation::Refund {
        charge: Box::new(headrace_ledger::RefundableCharge {
            hold: HoldId::from_bits(hold),
            org: OrgId::new("tokyo").unwrap(),
            project: ProjectId::new("t").unwrap(),
            charged: NanoDollars::new(charged),
            shares: Vec::new(),
        }),
        amount: Some(NanoDollars::new(amount)),
        reference: reference.to_owned(),
    };
    // Refunded in the month after, while its month has no invoice.
    let after = UnixNanos::new(NOVEMBER + 32 * DAY);
    world.ledger(refund(1, first, first / 2, "a"), after);
    let invoice = world.invoice(finish("tokyo", "2026-11"), after).unwrap();
    check(&invoice, first + second - first / 2);
    let line = invoice.lines.iter().find(|line| line.class == "refund").unwrap();
    assert_eq!(line.amount.get(), -(first / 2));
    let credit = || InvoiceAct::Credit { number: "INV-1".to_owned() };
    assert_eq!(world.invoice(credit(), after).unwrap_err().code, AdminCode::Invalid, "nothing is refunded");
    world.ledger(refund(2, second, second, "b"), after);
    world.ledger(refund(1, first, 1, "c"), after);
    let note = world.invoice(credit(), after).unwrap();
    check(&note, second + 1);
    assert_eq!((note.kind, note.number.as_deref()), (381, Some("INV-2")));
    assert_eq!((note.corrects.as_deref(), note.taxes[0].percent.as_str()), (Some("INV-1"), "10"));
    assert!(note.html().contains("Credit note INV-2") && note.html().contains("Corrects invoice INV-1"));
    assert_eq!(world.invoice(credit(), after).unwrap_err().code, AdminCode::Invalid, "it is credited once");
    world.ledger(refund(1, first, 2, "d"), after);
    let third = world.invoice(credit(), after).unwrap();
    assert_eq!((third.number.as_deref(), third.totals.charged.get()), (Some("INV-3"), 2));
    let of_note = InvoiceAct::Credit { number: "INV-2".to_owned() };
    assert_eq!(world.invoice(of_note, after).unwrap_err().code, AdminCode::Invalid);
    // The next month has none of them.
    let december = world.invoice(draft("tokyo", "2026-12"), after).unwrap();
    assert_eq!(december.totals.charged.get(), 0);
    assert_eq!(world.invoice(InvoiceAct::Show { number: "INV-1".to_owned() }, after).unwrap(), invoice);
}

#[test]
fn without_a_seller_no_invoice_becomes_final() {
    let world = InvoiceWorld::new(InvoiceSettings::default());
    let later = UnixNanos::new(NOVEMBER + 70 * DAY);
    assert!(world.invoice(draft("acme", "2026-11"), later).is_ok());
    let refused = world.invoice(finish("acme", "2026-11"), later).unwrap_err();
    assert!(refused.message.contains("invoices.seller_name"), "{refused}");
}

#[test]
fn texts_have_every_line_and_escape_what_customers_write() {
    let mut world = InvoiceWorld::new(settings());
    let mut random = SeededNumbers(3);
    for _ in 0..5 {
        world.call(&mut random, ("tokyo", "t"), UnixNanos::new(NOVEMBER + 3 * DAY));
    }
    let invoice = world.invoice(draft("tokyo", "2026-11"), UnixNanos::new(NOVEMBER + 4 * DAY)).unwrap();
    let csv = invoice.csv();
    let rows: Vec<&str> = csv.split_terminator("\r\n").collect();
    let columns = rows[0].split(',').count();
    assert!(rows.iter().all(|row| row.split(',').count() == columns), "{csv}");
    assert_eq!(rows.len(), 1 + invoice.lines.len() + 9 + invoice.taxes.len());
    assert!(csv.contains("rounding to cents"), "{csv}");
    let html = invoice.html();
    assert!(html.contains("Kaisha &amp; &lt;Co&gt;") && !html.contains("<Co>"), "{html}");
    assert!(html.contains("@media print") && html.contains("This draft is no invoice"));
    assert!(!html.contains("<script") && !html.contains("http"), "it loads nothing");
    for line in &invoice.lines {
        assert!(html.contains(&format!(">{}<", line.net)), "{line:?}");
    }
}
