//! `headrace orgs` and `headrace projects`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply};

use crate::cli::places::{OrgsArgs, OrgsCommand, ProjectsArgs, ProjectsCommand};
use crate::commands::{execute, time, unexpected};
use crate::output;

/// Organisations.
pub(crate) fn orgs(args: OrgsArgs) -> ExitCode {
    let command = match args.command {
        OrgsCommand::Create { id, limits } => AdminCommand::CreateOrg { id, limits: limits.given() },
        OrgsCommand::List => AdminCommand::ListOrgs,
        OrgsCommand::Limits { id, limits } => AdminCommand::SetOrgLimits { org: id, limits: limits.limits() },
    };
    execute(&args.at, command, describe)
}

/// Projects.
pub(crate) fn projects(args: ProjectsArgs) -> ExitCode {
    let command = match args.command {
        ProjectsCommand::Create { id, org, limits } => {
            AdminCommand::CreateProject { id, org, limits: limits.given() }
        }
        ProjectsCommand::List => AdminCommand::ListProjects,
        ProjectsCommand::Limits { id, limits } => {
            AdminCommand::SetProjectLimits { project: id, limits: limits.limits() }
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
        AdminReply::LimitsSet => "the limits are set\n".to_owned(),
        AdminReply::Orgs(orgs) => {
            let rows = orgs.into_iter();
            let rows =
                rows.map(|org| vec![org.id.to_string(), time(Some(org.created)), org.limits.to_string()]);
            output::table(&["organisation", "created", "limits"], rows.collect())
        }
        AdminReply::Projects(projects) => {
            let rows = projects.into_iter().map(|project| {
                let (id, org) = (project.id.to_string(), project.org.to_string());
                vec![id, org, time(Some(project.created)), project.limits.to_string()]
            });
            output::table(&["project", "organisation", "created", "limits"], rows.collect())
        }
        other => unexpected(&other),
    }
}
