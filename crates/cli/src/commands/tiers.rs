//! `headrace tiers`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, TierAct};
use headrace_identity::{TierRecord, TierRules};
use headrace_terminal::output;

use crate::arguments::tiers::{TiersArgs, TiersCommand};
use crate::commands::{execute, time, unexpected};

/// Creates, lists, changes, removes or assigns tiers.
pub(crate) fn run(args: TiersArgs) -> ExitCode {
    let nowhere = || output::fail("name one of --org, --project and --key");
    let act = match args.command {
        TiersCommand::Create { name, rules } => TierAct::Create { name, rules: rules.rules() },
        TiersCommand::List => TierAct::List,
        TiersCommand::Change { name, rules } => TierAct::Change { name, rules: rules.rules() },
        TiersCommand::Remove { name } => TierAct::Remove { name },
        TiersCommand::Assign { name, to } => match to.holder() {
            Some(to) => TierAct::Assign { to, tier: Some(name) },
            None => return nowhere(),
        },
        TiersCommand::Unassign { of } => match of.holder() {
            Some(to) => TierAct::Assign { to, tier: None },
            None => return nowhere(),
        },
    };
    execute(&args.at, AdminCommand::Tiers { act }, describe)
}

fn describe(reply: AdminReply) -> String {
    match reply {
        AdminReply::TierSet(TierRecord { name, rules, .. }) => format!("tier {name} allows {rules}\n"),
        AdminReply::Tiers(tiers) if tiers.is_empty() => {
            "no tiers: headrace tiers create NAME makes one\n".to_owned()
        }
        AdminReply::Tiers(tiers) => {
            let head = ["tier", "models", "context", "output", "reasoning", "limits", "created"];
            output::table(&head, tiers.into_iter().map(row).collect())
        }
        AdminReply::TierRemoved(name) => format!("tier {name} is removed\n"),
        AdminReply::TierAssigned(to, tier) => match tier {
            Some(tier) => format!("{to} now has tier {tier}, from the next call on\n"),
            None => format!("{to} now has no tier, from the next call on\n"),
        },
        other => unexpected(&other),
    }
}

fn row(tier: TierRecord) -> Vec<String> {
    let TierRecord { name, rules, created } = tier;
    let TierRules { limits, models, max_context_tokens, max_output_tokens, reasoning } = rules;
    let tokens = |bound: Option<u32>| bound.map_or_else(|| "–".to_owned(), |tokens| tokens.to_string());
    vec![
        name.to_string(),
        models.to_string(),
        tokens(max_context_tokens),
        tokens(max_output_tokens),
        if reasoning { "yes" } else { "no" }.to_owned(),
        limits.to_string(),
        time(Some(created)),
    ]
}
