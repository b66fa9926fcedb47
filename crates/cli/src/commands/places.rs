//! `headrace orgs` and `headrace projects`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, LotAct};
use headrace_domain::{KeyId, RecordRules};
use headrace_ledger::LowBalance;
use headrace_terminal::output;

use crate::arguments::places::{OrgsArgs, OrgsCommand, ProjectsArgs, ProjectsCommand};
use crate::commands::{execute, lots, time, unexpected};

/// Runs `headrace orgs`.
pub(crate) fn orgs(args: OrgsArgs) -> ExitCode {
    let command = match args.command {
        OrgsCommand::Create { id, limits, regions } => {
            AdminCommand::CreateOrg { id, limits: limits.given(), regions: regions.residency() }
        }
        OrgsCommand::Regions { id, regions } => {
            AdminCommand::SetOrgRegions { org: id, regions: regions.residency() }
        }
        OrgsCommand::List => AdminCommand::ListOrgs,
        OrgsCommand::Limits { id, limits } => AdminCommand::SetOrgLimits { org: id, limits: limits.limits() },
    };
    execute(&args.at, command, describe)
}

/// Runs `headrace projects`.
pub(crate) fn projects(args: ProjectsArgs) -> ExitCode {
    let command = match args.command {
        ProjectsCommand::Create { id, org, limits } => {
            AdminCommand::CreateProject { id, org, limits: limits.given() }
        }
        ProjectsCommand::LowBalance { id, policy } => {
            let policy = if policy == "cap" { LowBalance::Cap } else { LowBalance::Refuse };
            AdminCommand::Lots { act: LotAct::SetLowBalance { project: id, policy } }
        }
        ProjectsCommand::List => AdminCommand::ListProjects,
        ProjectsCommand::Limits { id, limits } => {
            AdminCommand::SetProjectLimits { project: id, limits: limits.limits() }
        }
        ProjectsCommand::Records { id, level, keep } => {
            let records = RecordRules { level, keep_seconds: keep.map(|keep| keep.as_secs()) };
            AdminCommand::SetProjectRecords { project: id, records }
        }
    };
    execute(&args.at, command, describe)
}

fn describe(reply: AdminReply) -> String {
    match reply {
        AdminReply::OrgCreated(org) => {
            format!("organisation {} is there; it can be granted credit once it has a project\n", org.id)
        }
        AdminReply::ProjectCreated(project) => {
            format!("project {} of organisation {} is there\n", project.id, project.org)
        }
        AdminReply::ProjectChanged(project) => {
            format!("project {} {}, from the next call on\n", project.id, project.records)
        }
        reply @ AdminReply::Lots(_) => lots::describe(reply),
        AdminReply::LimitsSet => "the limits are set\n".to_owned(),
        AdminReply::RegionsSet { narrowed } => pinned(&narrowed),
        AdminReply::Orgs(orgs) => {
            let rows = orgs.into_iter();
            let rows = rows.map(|org| {
                let limits = org.limits.to_string();
                let tier = org.tier.map_or_else(|| "–".to_owned(), String::from);
                vec![org.id.to_string(), time(Some(org.created)), limits, org.regions.to_string(), tier]
            });
            output::table(&["organisation", "created", "limits", "regions", "tier"], rows.collect())
        }
        AdminReply::Projects(projects) => {
            let rows = projects.into_iter().map(|project| {
                let (id, org) = (project.id.to_string(), project.org.to_string());
                let tier = project.tier.map_or_else(|| "–".to_owned(), String::from);
                let records = match project.records.is_default() {
                    true => "–".to_owned(),
                    false => project.records.to_string(),
                };
                vec![id, org, time(Some(project.created)), project.limits.to_string(), tier, records]
            });
            output::table(
                &["project", "organisation", "created", "limits", "tier", "records"],
                rows.collect(),
            )
        }
        other => unexpected(&other),
    }
}

/// The text after a change of regions, with a warning for each key that the change narrows.
pub(crate) fn pinned(narrowed: &[KeyId]) -> String {
    let mut text =
        "the regions are set, from the next call on; calls under way end where they began\n".to_owned();
    for id in narrowed {
        text += &format!(
            "  warning  key {id} has regions of its own that are none of these: what both allow is in force\n"
        );
    }
    text
}
