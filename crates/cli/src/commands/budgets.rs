//! `headrace budgets`.

use std::process::ExitCode;

use headrace_admin::{
    AdminCommand, AdminReply, BudgetAct, BudgetAlertView, BudgetCounterView, BudgetRuleView,
};
use headrace_domain::BudgetName;
use headrace_ledger::{BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow};
use headrace_terminal::output;

use crate::arguments::budgets::{BudgetFlags, BudgetsArgs, BudgetsCommand, CountedFlags};
use crate::commands::{execute, time, unexpected};

/// Lists, sets, raises or removes budgets, or lists alerts.
pub(crate) fn run(args: BudgetsArgs) -> ExitCode {
    let act = match args.command {
        BudgetsCommand::List => BudgetAct::List,
        BudgetsCommand::Alerts => BudgetAct::Alerts,
        BudgetsCommand::Set { name, limit, rule } => match rule_of(name, "limit", &limit, rule) {
            Ok(rule) => BudgetAct::Set { rule },
            Err(why) => return output::fail(&why),
        },
        BudgetsCommand::Raise { name, limit, hours } => {
            BudgetAct::Raise { name, limit, seconds: hours.saturating_mul(3600) }
        }
        BudgetsCommand::Remove { name } => BudgetAct::Remove { name },
    };
    execute(&args.at, AdminCommand::Budgets { act }, describe)
}

/// Makes the rule of flags. `limit` is the text of the argument `limit_name`, which errors name.
pub(super) fn rule_of(
    name: BudgetName,
    limit_name: &str,
    limit: &str,
    flags: BudgetFlags,
) -> Result<BudgetRule, String> {
    let BudgetFlags { counted, per, each, soft, mut alerts } = flags;
    let CountedFlags { measure, only, org, tier, zone } = counted;
    let unknown = |flag: &str| format!("--{flag}: no such value");
    let measure = BudgetMeasure::ALL.into_iter().find(|known| known.name() == measure);
    let measure = measure.ok_or_else(|| unknown("measure"))?;
    let window = BudgetWindow::ALL.into_iter().find(|known| known.name() == per);
    let scope = BudgetScope::ALL.into_iter().find(|known| known.name() == each);
    alerts.sort_unstable();
    alerts.dedup();
    let rule = BudgetRule {
        name,
        scope: scope.ok_or_else(|| unknown("each"))?,
        org,
        subject: only.map(Into::into),
        tier,
        window: window.ok_or_else(|| unknown("per"))?,
        zone: zone.into(),
        measure,
        limit: measure.parse(limit).map_err(|why| format!("{limit_name}: {why}"))?,
        is_hard: !soft,
        thresholds: alerts,
        origin: BudgetOrigin::Operator,
    };
    rule.check().map_err(|fault| format!("{}: {}", fault.field, fault.why))?;
    Ok(rule)
}

fn describe(reply: AdminReply) -> String {
    match reply {
        AdminReply::Budgets(budgets) if budgets.is_empty() => {
            "no budgets: headrace budgets set NAME LIMIT makes one\n".to_owned()
        }
        AdminReply::Budgets(budgets) => {
            let head = ["budget", "limit", "of", "used", "reserved", "left", "resets", "alerts"];
            output::table(&head, budgets.into_iter().flat_map(rows).collect())
        }
        AdminReply::BudgetAlerts(alerts) if alerts.is_empty() => "no alerts\n".to_owned(),
        AdminReply::BudgetAlerts(alerts) => {
            let head = ["when (UTC)", "budget", "of", "percent", "used", "limit", "window ends"];
            output::table(&head, alerts.into_iter().map(alert_row).collect())
        }
        AdminReply::BudgetChanged(BudgetRuleView { rule, raise, limit, .. }) => match raise {
            None => format!("budget {}: {rule}\n", rule.name),
            Some(raise) => {
                let limit = rule.measure.amount(limit);
                format!("budget {}: {limit} until {}, then {rule}\n", rule.name, time(Some(raise.until)))
            }
        },
        AdminReply::BudgetRemoved(name) => format!("budget {name} is removed\n"),
        other => unexpected(&other),
    }
}

/// The cells of one subject of a rule, in two parts: other cells may be between them.
pub(super) struct CounterCells {
    /// The rule, its limit and the subject.
    pub(super) rule: [String; 3],
    /// What is used, reserved and left, and when the window ends.
    pub(super) usage: [String; 4],
    /// The thresholds whose alert was raised.
    alerted: Vec<u16>,
}

/// Returns the cells of each subject, or those of a rule without use.
pub(super) fn counter_cells(
    rule: &BudgetRule,
    limit: &str,
    counters: Vec<BudgetCounterView>,
) -> Vec<CounterCells> {
    let amount = |n: u64| rule.measure.amount(n);
    let head = |of: &str| [rule.name.to_string(), limit.to_owned(), format!("{} {of}", rule.scope.name())];
    if counters.is_empty() {
        let usage = ["–"; 4].map(str::to_owned);
        let rule = head(rule.subject.as_deref().unwrap_or("–"));
        return vec![CounterCells { rule, usage, alerted: Vec::new() }];
    }
    let cells = |counter: BudgetCounterView| {
        let BudgetCounterView { subject, used, reserved, left, resets, alerted } = counter;
        let usage = [amount(used), amount(reserved), amount(left), time(resets)];
        CounterCells { rule: head(&subject), usage, alerted }
    };
    counters.into_iter().map(cells).collect()
}

/// Returns a limit with the window of its rule.
pub(super) fn limit_text(rule: &BudgetRule, limit: u64) -> String {
    let per = match rule.window {
        BudgetWindow::Total => String::new(),
        window => format!(" a {}", window.name()),
    };
    format!("{}{per}", rule.measure.amount(limit))
}

/// Returns a row per subject, or one for a rule without use.
fn rows(view: BudgetRuleView) -> Vec<Vec<String>> {
    let BudgetRuleView { rule, raise, limit, counters } = view;
    let soft = if rule.is_hard { "" } else { ", soft" };
    let raised =
        raise.map_or_else(String::new, |raise| format!(", raised until {}", time(Some(raise.until))));
    let limit = format!("{}{soft}{raised}", limit_text(&rule, limit));
    let row = |cells: CounterCells| {
        let CounterCells { rule, usage, alerted } = cells;
        let alerted: Vec<String> = alerted.iter().map(|percent| format!("{percent} %")).collect();
        let alerted = if alerted.is_empty() { "–".to_owned() } else { alerted.join(", ") };
        rule.into_iter().chain(usage).chain([alerted]).collect()
    };
    counter_cells(&rule, &limit, counters).into_iter().map(row).collect()
}

fn alert_row(alert: BudgetAlertView) -> Vec<String> {
    let BudgetAlertView { at, name, subject, percent, used, limit, measure, resets } = alert;
    let amount = |n: u64| measure.map_or_else(|| n.to_string(), |measure| measure.amount(n));
    vec![
        time(Some(at)),
        name.to_string(),
        subject,
        format!("{percent} %"),
        amount(used),
        amount(limit),
        time(resets),
    ]
}
