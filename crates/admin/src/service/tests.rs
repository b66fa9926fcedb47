//! Commands on a directory and a ledger in memory.

use std::time::Duration;

use headrace_domain::{KeyId, NanoDollars, Region};
use headrace_identity::{HashSecret, KeyDetails, MemoryKeyStore};
use headrace_ledger::verify::VerifyReport;
use headrace_ledger::{
    BudgetPeriod, GrantKind, JournalError, JournalEvent, JournalHistory, JournalRow, Ledger,
    LocalLedgerAdmin, MemoryJournal, Owner, ProjectBudget, Transaction,
};

use super::*;
use crate::{BudgetAct, BudgetRuleView};

const NOW: UnixNanos = UnixNanos::new(1_790_000_000_000_000_000);

fn ledger() -> Arc<dyn LedgerAdmin> {
    let journal = MemoryJournal::default();
    let (ledger, _) = Ledger::open(Box::new(journal.clone()), Owner::new(1), NOW).unwrap();
    Arc::new(LocalLedgerAdmin::new(ledger, Arc::new(journal)))
}

/// The history of a journal whose second row has a grant of $5 to `o` with reference `r`.
struct OneGrant;

impl JournalHistory for OneGrant {
    fn has_after(&self, after: u64, is_it: &dyn Fn(&Transaction) -> bool) -> Result<bool, JournalError> {
        let (kind, amount) = (GrantKind::Paid, NanoDollars::new(5_000_000_000));
        let event = JournalEvent::Granted { org: org("o"), kind, amount, reference: "r".into() };
        Ok(after == 1 && is_it(&Transaction { time: NOW, event, entries: [].into_iter().collect() }))
    }

    fn rows_after(&self, _after: u64, _limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        Ok(Vec::new())
    }

    fn verify(&self) -> Result<VerifyReport, JournalError> {
        Ok(VerifyReport::default())
    }
}

fn service() -> AdminService {
    over(ledger())
}

fn over(ledger: Arc<dyn LedgerAdmin>) -> AdminService {
    let directory = Directory::open(Arc::new(MemoryKeyStore::default()), HashSecret::new([7; 32])).unwrap();
    let defaults = DefaultLimits {
        key: RateLimits { requests_per_minute: Some(60), ..RateLimits::default() },
        ..DefaultLimits::default()
    };
    AdminService::new(
        Arc::new(directory),
        ledger,
        Box::new(move || defaults),
        Box::new(ServerStatus::default),
    )
}

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

fn project(name: &str) -> ProjectId {
    ProjectId::new(name).unwrap()
}

fn create_key(name: &str) -> AdminCommand {
    AdminCommand::CreateKey {
        project: project("p"),
        name: name.to_owned(),
        models: None,
        endpoints: None,
        limits: None,
        regions: Residency::Anywhere,
        expires: None,
        secret: None,
        details: KeyDetails::default(),
        tier: None,
    }
}

fn run(service: &AdminService, command: AdminCommand) -> Result<AdminReply, AdminError> {
    service.execute(command, "tester", NOW)
}

fn with_project() -> AdminService {
    with_project_over(ledger())
}

fn with_project_over(ledger: Arc<dyn LedgerAdmin>) -> AdminService {
    let service = over(ledger);
    run(&service, AdminCommand::CreateOrg { id: org("o"), limits: None, regions: Residency::Anywhere })
        .unwrap();
    run(&service, AdminCommand::CreateProject { id: project("p"), org: org("o"), limits: None }).unwrap();
    service
}

#[test]
fn accounts_that_are_missing_are_opened_in_few_writes() {
    const PROJECTS: usize = 2_500;
    let service = with_project();
    for n in 0..PROJECTS {
        let id = project(&format!("p{n}"));
        service.directory.create_project(id, org("o"), RateLimits::default(), "tester", NOW).unwrap();
    }
    let before = service.ledger.health().commits;
    service.reconcile(NOW).unwrap();
    let commits = service.ledger.health().commits - before;
    assert_eq!(service.ledger.projects().len(), PROJECTS + 1);
    assert!(commits <= 3, "{commits} commits");
    service.reconcile(NOW).unwrap();
    assert_eq!(service.ledger.health().commits - before, commits, "nothing is missing now");
}

#[test]
fn an_emptied_ledger_is_refused_beside_keys() {
    let service = with_project();
    run(&service, create_key("first")).unwrap();
    assert_eq!(service.reconcile(NOW).unwrap(), []);
    let emptied = AdminService { ledger: ledger(), ..service };
    let error = emptied.reconcile(NOW).unwrap_err();
    assert_eq!(error.code.name(), "ledger_emptied");
    assert!(error.message.contains("accounts in it: p."), "{error}");
    let opened = run(&emptied, AdminCommand::OpenAccounts).unwrap();
    assert_eq!(opened, AdminReply::AccountsOpened { count: 1 });
    assert_eq!(emptied.reconcile(NOW).unwrap(), []);
    // An older ledger: it is not empty, but lacks a project that has keys.
    let new = AdminCommand::CreateProject { id: project("q"), org: org("o"), limits: None };
    run(&emptied, new).unwrap();
    emptied.directory.create_key(NewKey::new(org("o"), project("q"), "k"), "tester", NOW).unwrap();
    let older = AdminService { ledger: ledger(), ..emptied };
    older.open_account(org("o"), project("p"), NOW).unwrap();
    assert_eq!(older.reconcile(NOW).unwrap(), [project("q")], "opened, and said");
}

#[test]
fn a_ledger_that_is_ahead_is_set_back_once_and_that_is_audited() {
    let service = with_project();
    let error = run(&service, AdminCommand::SetLedgerClock).unwrap_err();
    assert_eq!(error.code.name(), "invalid", "{error}");
    let ahead = NOW.after(std::time::Duration::from_secs(400 * 86_400));
    let grant =
        Grant { org: org("o"), amount: NanoDollars::new(5), kind: GrantKind::Paid, reference: String::new() };
    service.grant(grant, "tester", ahead).unwrap();
    let set = run(&service, AdminCommand::SetLedgerClock).unwrap();
    assert_eq!(set, AdminReply::LedgerClockSet { from: ahead, to: NOW });
    assert_eq!(service.ledger.time(), NOW);
    assert!(run(&service, AdminCommand::SetLedgerClock).is_err(), "there is nothing left to set back");
    let AdminReply::Audit(rows) = run(&service, AdminCommand::ShowAudit { last: 1, before: None }).unwrap()
    else {
        panic!()
    };
    assert_eq!((rows[0].act.as_str(), rows[0].detail.as_str()), ("ledger.clock", "back by 34560000 s"));
}

#[test]
fn a_key_lives_until_it_is_revoked() {
    let service = with_project();
    let AdminReply::KeyCreated { key, secret, .. } = run(&service, create_key("first")).unwrap() else {
        panic!()
    };
    assert_eq!(key.limits.requests_per_minute, Some(60), "the configured default");
    assert!(service.directory.authenticate(secret.expose(), NOW).is_ok());
    assert!(!format!("{secret:?} {key:?}").contains(secret.expose()));
    let AdminReply::Keys(keys) = run(&service, AdminCommand::ListKeys { project: None }).unwrap() else {
        panic!()
    };
    assert_eq!(keys, std::slice::from_ref(&key));
    for _ in 0..2 {
        run(&service, AdminCommand::RevokeKey { id: key.id.clone() }).unwrap();
    }
    assert!(service.directory.authenticate(secret.expose(), NOW).is_err());
    let AdminReply::Audit(rows) = run(&service, AdminCommand::ShowAudit { last: 2, before: None }).unwrap()
    else {
        panic!()
    };
    let acts: Vec<_> = rows.iter().map(|row| row.act.as_str()).collect();
    assert_eq!(acts, ["key.create", "key.revoke"]);
}

#[test]
fn credit_and_budget() {
    let service = with_project();
    let amount = NanoDollars::from_dollars("10").unwrap();
    let grant = |org| AdminCommand::GrantCredit {
        org,
        amount,
        kind: GrantKind::Promotional,
        reference: "play".to_owned(),
    };
    let reply = run(&service, grant(org("o"))).unwrap();
    assert_eq!(reply, AdminReply::CreditGranted { org: org("o"), amount, balance: amount, before: false });
    let budget = ProjectBudget { limit: NanoDollars::new(5), period: BudgetPeriod::Month };
    run(&service, AdminCommand::SetBudget { project: project("p"), budget: Some(budget) }).unwrap();
    let AdminReply::Credit(rows) = run(&service, AdminCommand::ShowCredit { org: None }).unwrap() else {
        panic!()
    };
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.available, row.budget.as_ref().map(|b| b.left)), (amount, Some(NanoDollars::new(5))));
    run(&service, AdminCommand::SetBudget { project: project("p"), budget: None }).unwrap();
    assert_eq!(run(&service, grant(org("x"))).unwrap_err().code.name(), "unknown_org");
}

fn dollars(text: &str) -> NanoDollars {
    NanoDollars::from_dollars(text).unwrap()
}

fn grant(amount: &str, reference: &str) -> AdminCommand {
    let (kind, reference) = (GrantKind::Paid, reference.to_owned());
    AdminCommand::GrantCredit { org: org("o"), amount: dollars(amount), kind, reference }
}

fn correct(amount: &str, reason: &str) -> AdminCommand {
    let (kind, reason) = (GrantKind::Paid, reason.to_owned());
    AdminCommand::CorrectCredit { org: org("o"), amount: dollars(amount), kind, reason }
}

fn balance_after(reply: &AdminReply) -> (String, bool) {
    let AdminReply::CreditGranted { balance, before, .. } = reply else { panic!("{reply:?}") };
    (balance.to_string(), *before)
}

#[test]
fn audit_21_money_moves_once_for_a_reference_and_is_told_in_the_log() {
    let service = with_project();
    let steps = [
        (grant("5", "invoice \"17\", ö"), "$5.00", false),
        (grant("5", "invoice \"17\", ö"), "$5.00", true),
        (grant("2.5", ""), "$7.50", false),
        (grant("2.5", ""), "$10.00", false),
        (correct("2.5", "granted twice"), "$7.50", false),
        (correct("-2.5", "granted twice"), "$7.50", true),
    ];
    for (command, balance, before) in steps {
        let reply = run(&service, command.clone()).unwrap();
        assert_eq!(balance_after(&reply), (balance.to_owned(), before), "{command:?}");
    }
    let refused = [
        (grant("6", "invoice \"17\", ö"), "reference_used", "credit list"),
        (grant("-5", ""), "invalid", "credit correct"),
        (correct("5", " "), "invalid", "--reason"),
        (correct("8", "more than there is"), "invalid", ""),
    ];
    for (command, code, remedy) in refused {
        let error = run(&service, command.clone()).unwrap_err();
        assert_eq!(error.code.name(), code, "{command:?}: {error}");
        assert!(error.remedy.contains(remedy), "{error:?}");
    }
    // A refused correction may be tried again with the same reason.
    run(&service, grant("1", "")).unwrap();
    run(&service, correct("8", "more than there is")).unwrap();
    let budget = ProjectBudget { limit: dollars("3"), period: BudgetPeriod::Month };
    run(&service, AdminCommand::SetBudget { project: project("p"), budget: Some(budget) }).unwrap();

    let AdminReply::Grants(grants) = run(&service, AdminCommand::ListGrants { org: Some(org("o")) }).unwrap()
    else {
        panic!()
    };
    let listed: Vec<_> = grants.iter().map(|of| (of.amount.to_string(), of.reference.as_str())).collect();
    let expected = [
        ("-$8.00", "more than there is"),
        ("$1.00", ""),
        ("-$2.50", "granted twice"),
        ("$2.50", ""),
        ("$2.50", ""),
        ("$5.00", "invoice \"17\", ö"),
    ];
    assert_eq!(listed, expected.map(|(amount, reference)| (amount.to_owned(), reference)));
    let AdminReply::Audit(rows) = run(&service, AdminCommand::ShowAudit { last: 4, before: None }).unwrap()
    else {
        panic!()
    };
    let listed: Vec<_> =
        rows.iter().map(|row| (row.act.as_str(), row.subject.as_str(), row.detail.as_str())).collect();
    assert_eq!(
        listed[1..],
        [
            ("credit.grant", "o", "$1.00 paid, reference \"\""),
            ("credit.correct", "o", "-$8.00 paid, reference \"more than there is\""),
            ("budget.set", "p", "$3.00 a month"),
        ]
    );
    assert_eq!((listed[0].0, listed[0].2.contains("did not happen")), ("money.refused", true), "{listed:?}");
    assert!(rows.iter().all(|row| row.actor == "tester"));
    assert_eq!(service.directory.announced().unwrap(), []);
    service.directory.verify_audit().unwrap();
}

#[test]
fn audit_21_what_a_crash_cut_short_is_finished_once() {
    for in_the_ledger in [false, true] {
        let (known, _) = Ledger::open(Box::new(MemoryJournal::default()), Owner::new(1), NOW).unwrap();
        let known: Arc<dyn LedgerAdmin> = Arc::new(LocalLedgerAdmin::new(known, Arc::new(OneGrant)));
        let service = with_project_over(if in_the_ledger { known } else { ledger() });
        // The process ended before the ledger had the act, or after that but before the conclusion.
        let act = r#"{"act":"grant","grant":{"org":"o","amount":5000000000,"kind":"paid","reference":"r"},"after":1}"#;
        let told = AuditEntry {
            at: NOW,
            actor: "tester".to_owned(),
            act: "credit.grant".to_owned(),
            subject: "o".to_owned(),
            detail: "$5.00 paid, reference \"r\"".to_owned(),
        };
        service.directory.announce(&told, act).unwrap();
        service.reconcile(NOW).unwrap();
        assert_eq!(service.directory.announced().unwrap(), []);
        let reply = run(&service, grant("5", "r")).unwrap();
        let balance = if in_the_ledger { "$0.00" } else { "$5.00" };
        assert_eq!(balance_after(&reply), (balance.to_owned(), true), "done once, by whichever");
    }
}

#[test]
fn refusals_say_what_to_try() {
    let service = with_project();
    let rows = [
        (AdminCommand::RevokeKey { id: KeyId::new("key_x").unwrap() }, "unknown_key", "keys list"),
        (
            AdminCommand::CreateOrg { id: org("o"), limits: None, regions: Residency::Anywhere },
            "exists",
            "another",
        ),
        (
            AdminCommand::CreateProject { id: project("q"), org: org("x"), limits: None },
            "unknown_org",
            "orgs create",
        ),
        (AdminCommand::SetBudget { project: project("q"), budget: None }, "unknown_project", "projects"),
        (AdminCommand::ListKeys { project: Some(project("q")) }, "unknown_project", "projects"),
        (AdminCommand::ShowCredit { org: Some(org("x")) }, "unknown_org", "orgs"),
        (create_key(""), "invalid", ""),
        (AdminCommand::SetOrgRegions { org: org("x"), regions: Residency::Anywhere }, "unknown_org", "orgs"),
    ];
    for (command, code, remedy) in rows {
        let error = run(&service, command.clone()).unwrap_err();
        assert_eq!(error.code.name(), code, "{command:?}");
        assert!(error.remedy.contains(remedy), "{error:?}");
    }
}

#[test]
fn organisations_and_keys_are_pinned_and_it_is_told_whom_that_narrows() {
    let service = with_project();
    let only = |name: &str| Residency::only(name.split_whitespace().map(|name| Region::new(name).unwrap()));
    let pin = |regions| run(&service, AdminCommand::SetOrgRegions { org: org("o"), regions });
    let AdminReply::KeyCreated { key, .. } = run(&service, create_key("k")).unwrap() else { panic!() };
    assert_eq!(pin(only("eu ch")), Ok(AdminReply::RegionsSet { narrowed: Vec::new() }));
    let of_key = |regions| run(&service, AdminCommand::SetKeyRegions { key: key.id.clone(), regions });
    assert_eq!(of_key(only("us")).unwrap_err().code.name(), "widens");
    assert_eq!(of_key(only("ch")), Ok(AdminReply::RegionsSet { narrowed: Vec::new() }));
    assert_eq!(pin(only("eu")), Ok(AdminReply::RegionsSet { narrowed: vec![key.id.clone()] }));
    let AdminReply::Orgs(orgs) = run(&service, AdminCommand::ListOrgs).unwrap() else { panic!() };
    assert_eq!(orgs[0].regions, only("eu"));
    let AdminReply::Keys(keys) = run(&service, AdminCommand::ListKeys { project: None }).unwrap() else {
        panic!()
    };
    assert_eq!(keys[0].regions, only("ch"));
    let AdminCommand::CreateKey { project, name, .. } = create_key("wide") else { panic!() };
    let wide = AdminCommand::CreateKey {
        project,
        name,
        regions: only("us"),
        models: None,
        endpoints: None,
        limits: None,
        expires: None,
        secret: None,
        details: KeyDetails::default(),
        tier: None,
    };
    assert_eq!(run(&service, wide).unwrap_err().code.name(), "widens");
    let there = AdminCommand::CreateOrg { id: org("pinned"), limits: None, regions: only("ch") };
    let AdminReply::OrgCreated(made) = run(&service, there).unwrap() else { panic!() };
    assert_eq!(made.regions, only("ch"));
}

#[test]
fn a_project_without_an_account_gets_one_at_start() {
    let service = service();
    service.directory.create_org(org("o"), RateLimits::default(), "t", NOW).unwrap();
    service.directory.create_project(project("p"), org("o"), RateLimits::default(), "t", NOW).unwrap();
    assert!(service.ledger.standing_at(&org("o"), &project("p"), NOW).is_none());
    service.reconcile(NOW).unwrap();
    assert!(service.ledger.standing_at(&org("o"), &project("p"), NOW).is_some());
}

#[test]
fn a_lent_key_is_given_again_until_it_is_near_its_end_or_revoked() {
    let service = with_project();
    let lend = |actor: &str, at: UnixNanos| {
        let AdminReply::KeyLent { key, secret } =
            service.execute(AdminCommand::LendKey { project: None }, actor, at).unwrap()
        else {
            panic!()
        };
        (key, secret)
    };
    let hours = |n: u64| NOW.after(Duration::from_secs(n * 3600));
    let (first, secret) = lend("uid 1", NOW);
    assert_eq!((first.project.clone(), first.name.as_str()), (project("p"), "lent to uid 1"));
    assert_eq!(first.limits.requests_per_minute, Some(60), "as any key's");
    assert!(service.directory.authenticate(secret.expose(), NOW).is_ok());
    assert_eq!(lend("uid 1", hours(10)), (first.clone(), secret.clone()), "no new row");
    assert_ne!(lend("uid 2", NOW).0.id, first.id, "nobody is given another's");
    let second = lend("uid 1", hours(11)).0;
    assert_ne!(second.id, first.id, "an hour before its end it is too old to be given");
    assert!(service.directory.authenticate(secret.expose(), hours(12)).is_err(), "it has ended");
    run(&service, AdminCommand::RevokeKey { id: second.id.clone() }).unwrap();
    let third = lend("uid 1", hours(11)).0;
    assert_ne!(third.id, second.id, "a revoked one is not given");
    let AdminReply::Audit(rows) = run(&service, AdminCommand::ShowAudit { last: 1, before: None }).unwrap()
    else {
        panic!()
    };
    assert_eq!((rows[0].actor.as_str(), rows[0].act.as_str()), ("uid 1", "key.create"));
}

#[test]
fn who_pays_for_a_lent_key_is_never_guessed() {
    let lend = |service: &AdminService, project| run(service, AdminCommand::LendKey { project });
    let service = service();
    assert_eq!(lend(&service, None).unwrap_err().code.name(), "unknown_project");
    let service = with_project();
    let new = |id: &str| AdminCommand::CreateProject { id: project(id), org: org("o"), limits: None };
    run(&service, new("q")).unwrap();
    assert_eq!(lend(&service, None).unwrap_err().code.name(), "project_not_named");
    assert!(lend(&service, Some(project("q"))).is_ok());
    assert_eq!(lend(&service, Some(project("x"))).unwrap_err().code.name(), "unknown_project");
    run(&service, new("default")).unwrap();
    let AdminReply::KeyLent { key, .. } = lend(&service, None).unwrap() else { panic!() };
    assert_eq!(key.project, project("default"));
}

#[test]
fn budgets_of_the_settings_are_taken_over_and_those_of_operators_stay() {
    use headrace_ledger::{BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow};
    let service = with_project();
    let name = |name: &str| headrace_domain::BudgetName::new(name).unwrap();
    let rule = |of: &str, limit| BudgetRule {
        name: name(of),
        scope: BudgetScope::Project,
        org: None,
        subject: None,
        tier: None,
        window: BudgetWindow::Day,
        zone: "UTC".into(),
        measure: BudgetMeasure::Requests,
        limit,
        is_hard: true,
        thresholds: Vec::new(),
        origin: BudgetOrigin::Settings,
    };
    let listed = || {
        let AdminReply::Budgets(budgets) =
            run(&service, AdminCommand::Budgets { act: BudgetAct::List }).unwrap()
        else {
            panic!()
        };
        let of = |view: BudgetRuleView| (view.rule.name.to_string(), view.limit, view.rule.origin);
        budgets.into_iter().map(of).collect::<Vec<_>>()
    };
    let set = |rule| run(&service, AdminCommand::Budgets { act: BudgetAct::Set { rule } });
    set(rule("own", 1)).unwrap();
    let settings = [rule("a", 5), rule("b", 6)];
    assert_eq!(service.take_over_budgets(&settings, NOW).unwrap(), 2);
    assert_eq!(service.take_over_budgets(&settings, NOW).unwrap(), 0, "nothing changes");
    let own = ("own".to_owned(), 1, BudgetOrigin::Operator);
    let of_settings = |name: &str, limit| (name.to_owned(), limit, BudgetOrigin::Settings);
    assert_eq!(listed(), [of_settings("a", 5), of_settings("b", 6), own.clone()]);
    assert_eq!(service.take_over_budgets(&[rule("b", 7)], NOW).unwrap(), 2);
    assert_eq!(listed(), [of_settings("b", 7), own]);
    let raise = |limit: &str, seconds| BudgetAct::Raise { name: name("b"), limit: limit.to_owned(), seconds };
    run(&service, AdminCommand::Budgets { act: raise("9", 60) }).unwrap();
    assert_eq!(listed()[0].1, 9);
    assert_eq!(service.take_over_budgets(&[rule("b", 7)], NOW).unwrap(), 0, "a raise is no other rule");
    run(&service, AdminCommand::Budgets { act: raise("", 0) }).unwrap();
    assert_eq!(listed()[0].1, 7);
    let refused = run(&service, AdminCommand::Budgets { act: raise("many", 60) }).unwrap_err();
    assert_eq!(refused.code, AdminCode::Invalid);
    let remove = BudgetAct::Remove { name: name("none") };
    let refused = run(&service, AdminCommand::Budgets { act: remove }).unwrap_err();
    assert_eq!(refused.code, AdminCode::UnknownBudget);
    let AdminReply::Audit(rows) = run(&service, AdminCommand::ShowAudit { last: 20, before: None }).unwrap()
    else {
        panic!()
    };
    let acts: Vec<_> = rows
        .iter()
        .filter(|row| row.act.starts_with("budget_rule"))
        .map(|row| (row.actor.as_str(), row.act.as_str()))
        .collect();
    assert_eq!(acts.len(), 8, "{acts:?}");
    assert!(acts.contains(&("settings", "budget_rule.remove")), "{acts:?}");
}

mod lots;
