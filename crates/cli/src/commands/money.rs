//! `headrace credit`, `headrace budget` and `headrace ledger`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, BudgetView, CreditView, GrantView};
use headrace_domain::NanoDollars;
use headrace_ledger::verify::VerifyReport;
use headrace_ledger::{BudgetPeriod, GrantKind, ProjectBudget};
use headrace_server::datadir;
use headrace_store::StoreName;
use headrace_terminal::output;
use headrace_trace::counted;

use crate::arguments::budgets::{BudgetArgs, BudgetCommand};
use crate::arguments::{CreditArgs, CreditCommand, LedgerArgs, LedgerCommand, ServerArgs};
use crate::commands::{data_dir, execute, time, unexpected};

/// Runs `headrace credit`.
pub(crate) fn credit(args: CreditArgs) -> ExitCode {
    match args.command {
        CreditCommand::Grant { amount, org, promotional, reference } => {
            let kind = if promotional { GrantKind::Promotional } else { GrantKind::Paid };
            let command = AdminCommand::GrantCredit { org, amount, kind, reference };
            execute(&args.at, command, granted)
        }
        CreditCommand::Correct { amount, org, promotional, reason } => {
            let kind = if promotional { GrantKind::Promotional } else { GrantKind::Paid };
            execute(&args.at, AdminCommand::CorrectCredit { org, amount, kind, reason }, granted)
        }
        CreditCommand::List { org } => execute(&args.at, AdminCommand::ListGrants { org }, grants),
        CreditCommand::Show { org } => execute(&args.at, AdminCommand::ShowCredit { org }, balances),
    }
}

fn granted(reply: AdminReply) -> String {
    let AdminReply::CreditGranted { org, amount, balance, before } = reply else { return unexpected(&reply) };
    let done = match (amount < NanoDollars::ZERO, before) {
        (false, false) => format!("{amount} granted to organisation {org}"),
        (false, true) => format!(
            "{amount} were granted to organisation {org} before, under this reference; nothing is added"
        ),
        (true, false) => format!("{amount} corrected at organisation {org}"),
        (true, true) => {
            format!("{amount} were corrected at organisation {org} before, for this reason; nothing is taken")
        }
    };
    format!("{done}; its balance is {balance}\n")
}

fn grants(reply: AdminReply) -> String {
    let AdminReply::Grants(rows) = reply else { return unexpected(&reply) };
    let rows = rows.into_iter().map(|GrantView { at, actor, org, amount, kind, reference }| {
        let kind = if kind == GrantKind::Paid { "paid" } else { "promotional" };
        vec![time(Some(at)), actor, org.to_string(), amount.to_string(), kind.to_owned(), reference]
    });
    let head = ["when (UTC)", "who", "organisation", "amount", "kind", "reference or reason"];
    output::table(&head, rows.collect())
}

fn balances(reply: AdminReply) -> String {
    let AdminReply::Credit(rows) = reply else { return unexpected(&reply) };
    let is_plain = |row: &CreditView| {
        [row.in_lots, row.credit, row.owed].iter().all(|amount| *amount == NanoDollars::ZERO)
    };
    let head =
        ["organisation", "balance", "held", "available", "project", "budget", "spent", "left", "resets"];
    if rows.iter().all(is_plain) {
        return output::table(&head, rows.into_iter().map(row).collect());
    }
    let [head @ .., spent, left, resets] = head;
    let [org, balance, held, available, project, budget] = head;
    let (lots, contract, owed) = ("in lots", "contract", "owed");
    let head = [org, balance, held, available, lots, contract, owed, project, budget, spent, left, resets];
    let with_lots = |credit: CreditView| {
        let more = [credit.in_lots, credit.credit, credit.owed].map(|amount| amount.to_string());
        let mut cells = row(credit);
        let after = cells.split_off(4);
        cells.into_iter().chain(more).chain(after).collect()
    };
    output::table(&head, rows.into_iter().map(with_lots).collect())
}

fn row(credit: CreditView) -> Vec<String> {
    let mut row = vec![
        credit.org.to_string(),
        credit.balance.to_string(),
        credit.held.to_string(),
        credit.available.to_string(),
        credit.project.to_string(),
    ];
    match credit.budget {
        None => row.extend(["–", &format!("{} in all", credit.spent), "–", "–"].map(str::to_owned)),
        Some(BudgetView { budget, spent, left, resets, .. }) => {
            let per = if budget.period == BudgetPeriod::Month { "a month" } else { "in all" };
            let limit = format!("{} {per}", budget.limit);
            row.extend([limit, spent.to_string(), left.to_string(), time(resets)]);
        }
    }
    row
}

/// Runs `headrace budget`.
pub(crate) fn budget(args: BudgetArgs) -> ExitCode {
    let (project, budget) = match args.command {
        BudgetCommand::Set { amount, project, per } => {
            let period = if per == "total" { BudgetPeriod::Total } else { BudgetPeriod::Month };
            (project, Some(ProjectBudget { limit: amount, period }))
        }
        BudgetCommand::Clear { project } => (project, None),
    };
    execute(&args.at, AdminCommand::SetBudget { project, budget }, |reply| match (reply, budget) {
        (AdminReply::BudgetSet { project }, Some(budget)) => {
            let per = if budget.period == BudgetPeriod::Month { "a month" } else { "in all" };
            format!("project {project} may spend {} {per}; what it has spent counts\n", budget.limit)
        }
        (AdminReply::BudgetSet { project }, None) => format!("project {project} has no budget\n"),
        (other, _) => unexpected(&other),
    })
}

/// Runs `headrace ledger`.
pub(crate) fn ledger(args: &LedgerArgs) -> ExitCode {
    match args.command {
        LedgerCommand::Verify => verify(&args.at),
        LedgerCommand::OpenAccounts => execute(&args.at, AdminCommand::OpenAccounts, |reply| match reply {
            AdminReply::AccountsOpened { count } => {
                format!("{} opened, each with a balance of zero\n", counted(count, "account"))
            }
            other => unexpected(&other),
        }),
        LedgerCommand::SetClock => execute(&args.at, AdminCommand::SetLedgerClock, |reply| match reply {
            AdminReply::LedgerClockSet { from, to } => {
                format!("the ledger's time is set back from {} to {}\n", time(Some(from)), time(Some(to)))
            }
            other => unexpected(&other),
        }),
    }
}

fn verify(at: &ServerArgs) -> ExitCode {
    let dir = match data_dir(at) {
        Ok(dir) => dir,
        Err(error) => return error.exit(),
    };
    let stored = datadir::stored(&dir);
    let place = stored.place(StoreName::Ledger);
    if !place.exists() {
        let hint = "name the data directory with --data-dir";
        return output::fail(&format!("there is no ledger {place}: {hint}"));
    }
    let report = match stored.ledger().verify() {
        Ok(report) => report,
        Err(error) => return output::fail(&error.to_string()),
    };
    if at.json {
        output::say(&format!("{}\n", json(&report)));
    } else {
        output::say(&describe(&report));
    }
    if report.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn describe(report: &VerifyReport) -> String {
    let totals = &report.totals;
    let amounts = [
        ("paid in", totals.paid_in),
        ("promotional", totals.promotional),
        ("revenue", totals.revenue),
        ("loss", totals.loss),
        ("refunded", totals.refunded),
        ("expired", totals.expired),
        ("receivable", totals.receivable),
        ("in lots", totals.in_lots),
        ("available", totals.available),
        ("held", totals.held),
    ];
    let rows =
        amounts.map(|(name, amount)| format!("  {name:<12} {amount:>24}\n", amount = amount.to_string()));
    let mut text = format!(
        "{}, {}, {} compared\naccounts: money came from those below zero, and is in those above\n{}  {}, {}; {}: {} settled, {} released, {} open\n",
        counted(report.rows, "row"),
        counted(report.transactions, "transaction"),
        counted(report.snapshots, "snapshot"),
        rows.concat(),
        counted(totals.orgs, "organisation"),
        counted(totals.projects, "project"),
        counted(totals.holds, "hold"),
        totals.settled,
        totals.released,
        totals.open_holds,
    );
    for finding in &report.findings {
        text.push_str(&format!("  row {}: {}\n", finding.sequence, finding.what));
    }
    let verdict = if report.ok() {
        "every invariant holds; the accounts sum to zero\n".to_owned()
    } else {
        format!("{}\n", counted(report.finding_count, "fault"))
    };
    text + &verdict
}

fn json(report: &VerifyReport) -> serde_json::Value {
    let totals = &report.totals;
    let findings = report.findings.iter();
    let findings = findings.map(|found| serde_json::json!({ "row": found.sequence, "what": found.what }));
    serde_json::json!({
        "ok": report.ok(),
        "rows": report.rows,
        "transactions": report.transactions,
        "snapshots": report.snapshots,
        "findings": findings.collect::<Vec<_>>(),
        "finding_count": report.finding_count,
        "totals": {
            "paid_in": totals.paid_in,
            "promotional": totals.promotional,
            "revenue": totals.revenue,
            "loss": totals.loss,
            "refunded": totals.refunded,
            "expired": totals.expired,
            "receivable": totals.receivable,
            "in_lots": totals.in_lots,
            "available": totals.available,
            "held": totals.held,
            "orgs": totals.orgs,
            "projects": totals.projects,
            "holds": totals.holds,
            "settled": totals.settled,
            "released": totals.released,
            "open_holds": totals.open_holds,
        },
    })
}

#[cfg(test)]
mod tests {
    use headrace_domain::{OrgId, ProjectId};

    use super::*;

    #[test]
    fn what_was_spent_is_shown_without_a_budget() {
        let view = CreditView {
            org: OrgId::new("acme").unwrap(),
            project: ProjectId::new("shop").unwrap(),
            balance: NanoDollars::new(9_000_000_000),
            held: NanoDollars::ZERO,
            available: NanoDollars::new(9_000_000_000),
            in_lots: NanoDollars::ZERO,
            credit: NanoDollars::ZERO,
            owed: NanoDollars::ZERO,
            low_balance: headrace_ledger::LowBalance::Refuse,
            spent: NanoDollars::new(1_000_000_000),
            budget: None,
        };
        assert_eq!(row(view)[5..], ["–", "$1.00 in all", "–", "–"]);
    }

    #[test]
    fn the_signs_of_accounts_are_explained_and_counts_have_their_number() {
        let report = VerifyReport { rows: 1, transactions: 2, ..VerifyReport::default() };
        let text = describe(&report);
        assert!(text.starts_with("1 row, 2 transactions, 0 snapshots compared\n"), "{text}");
        assert!(text.contains("accounts: money came from those below zero, and is in those above"), "{text}");
    }
}
