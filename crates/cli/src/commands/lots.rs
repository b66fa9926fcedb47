//! `headrace lots` and `headrace free-tiers`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, FreeTierView, LotAct, LotReply, NewLot};
use headrace_domain::{BudgetName, ModelName, NanoDollars};
use headrace_ledger::{FreeTier, LotKind, LotReport, LowBalance};
use headrace_terminal::output;

use crate::arguments::budgets::BudgetFlags;
use crate::arguments::lots::{FreeTierFlags, FreeTiersArgs, FreeTiersCommand, LotsArgs, LotsCommand};
use crate::commands::budgets::{CounterCells, counter_cells, limit_text, rule_of};
use crate::commands::{execute, time, unexpected};

/// Lists, makes or ends lots, or records a payment.
pub(crate) fn lots(args: LotsArgs) -> ExitCode {
    let act = match args.command {
        LotsCommand::List { org } => LotAct::List { org },
        LotsCommand::Add { amount, org, promotional, contract, begins, ends, models, reference } => {
            let kind = match (promotional, contract) {
                (_, true) => LotKind::Contract,
                (true, false) => LotKind::Promotional,
                (false, false) => LotKind::Paid,
            };
            let models = (!models.is_empty()).then(|| models.into());
            LotAct::Make { org, lot: NewLot { kind, amount, begins, ends, models, reference } }
        }
        LotsCommand::End { lot } => LotAct::End { lot },
        LotsCommand::Pay { amount, org, reference } => LotAct::Pay { org, amount, reference },
    };
    execute(&args.at, AdminCommand::Lots { act }, describe)
}

/// Lists, sets or removes free tiers.
pub(crate) fn free_tiers(args: FreeTiersArgs) -> ExitCode {
    let act = match args.command {
        FreeTiersCommand::List => LotAct::ListFree,
        FreeTiersCommand::Set { name, amount, rule } => match tier_of(name, &amount, rule) {
            Ok(tier) => LotAct::SetFree { tier },
            Err(why) => return output::fail(&why),
        },
        FreeTiersCommand::Remove { name } => LotAct::RemoveFree { name },
    };
    execute(&args.at, AdminCommand::Lots { act }, describe)
}

fn tier_of(name: BudgetName, amount: &str, flags: FreeTierFlags) -> Result<FreeTier, String> {
    let FreeTierFlags { counted, per, each, models } = flags;
    let flags = BudgetFlags { counted, per, each, soft: false, alerts: Vec::new() };
    let rule = rule_of(name, "amount", amount, flags)?;
    let tier = FreeTier { rule, models: (!models.is_empty()).then(|| models.into()) };
    tier.check().map_err(|fault| format!("{}: {}", fault.field, fault.why))?;
    Ok(tier)
}

pub(super) fn describe(reply: AdminReply) -> String {
    let AdminReply::Lots(reply) = reply else { return unexpected(&reply) };
    match reply {
        LotReply::Lots(lots) if lots.is_empty() => "no lots: headrace lots add AMOUNT makes one\n".to_owned(),
        LotReply::Lots(lots) => {
            let head =
                ["lot", "organisation", "kind", "amount", "left", "begins", "ends", "models", "reference"];
            output::table(&head, lots.into_iter().map(lot_row).collect())
        }
        LotReply::Made { lot, before } => {
            let LotReport { lot, left } = lot;
            let (id, kind, org) = (lot.id, lot.terms.kind.name(), lot.org);
            match before {
                false => format!("{id}: {left} {kind} for organisation {org}\n"),
                true => format!("{id} was made before under this reference; nothing is added\n"),
            }
        }
        LotReply::Ended { lot, left } => format!("{lot} is ended; {left} were left of it\n"),
        LotReply::Paid { org, amount, owed, before } => match before {
            false => format!("{amount} paid by organisation {org}; it owes {owed}\n"),
            true => format!(
                "{amount} were paid by organisation {org} before, under this reference; it owes {owed}\n"
            ),
        },
        LotReply::LowBalanceSet { project, policy: LowBalance::Refuse } => {
            format!("calls of project {project} that the money does not cover are refused\n")
        }
        LotReply::LowBalanceSet { project, policy: LowBalance::Cap } => {
            format!("calls of project {project} are cut to what the money covers\n")
        }
        LotReply::FreeTiers(tiers) if tiers.is_empty() => {
            "no free tiers: headrace free-tiers set NAME AMOUNT makes one\n".to_owned()
        }
        LotReply::FreeTiers(tiers) => {
            let head = ["free tier", "amount", "of", "models", "used", "reserved", "left", "resets"];
            output::table(&head, tiers.into_iter().flat_map(tier_rows).collect())
        }
        LotReply::FreeSet(FreeTierView { tier, .. }) => {
            let models = names(tier.models.as_deref());
            format!("free tier {}: {}, models: {models}\n", tier.rule.name, tier.rule)
        }
        LotReply::FreeRemoved(name) => format!("free tier {name} is removed\n"),
    }
}

fn names(models: Option<&[ModelName]>) -> String {
    let Some(models) = models else { return "all".to_owned() };
    models.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn lot_row(of: LotReport) -> Vec<String> {
    let LotReport { lot, left } = of;
    let terms = lot.terms;
    let amount = |amount: NanoDollars| amount.to_string();
    vec![
        lot.id.to_string(),
        lot.org.to_string(),
        terms.kind.name().to_owned(),
        amount(terms.amount),
        amount(left),
        time(Some(terms.begins)),
        time(terms.ends),
        names(terms.models.as_deref()),
        terms.reference.to_string(),
    ]
}

/// Returns a row per subject, or one for a free tier without use.
fn tier_rows(view: FreeTierView) -> Vec<Vec<String>> {
    let FreeTierView { tier: FreeTier { rule, models }, counters } = view;
    let (limit, models) = (limit_text(&rule, rule.limit), names(models.as_deref()));
    let row = |cells: CounterCells| {
        let CounterCells { rule, usage, .. } = cells;
        rule.into_iter().chain([models.clone()]).chain(usage).collect()
    };
    counter_cells(&rule, &limit, counters).into_iter().map(row).collect()
}
