//! `headrace operators`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply};
use headrace_identity::{OperatorId, OperatorRecord, OperatorScope};
use headrace_terminal::output;

use crate::arguments::ServerArgs;
use crate::arguments::operators::{OperatorsArgs, OperatorsCommand};
use crate::commands::{CommandError, ask, execute, time, unexpected};

/// Creates, lists or revokes operators, or makes a sign-in link.
pub(crate) fn run(args: OperatorsArgs) -> ExitCode {
    let at = args.at;
    match args.command {
        OperatorsCommand::Create { name, role, org, user } => {
            let scope = match (org, user) {
                (_, Some(user)) => OperatorScope::User(user),
                (Some(org), None) => OperatorScope::Org(org),
                (None, None) => OperatorScope::Server,
            };
            execute(&at, AdminCommand::CreateOperator { name, role, scope }, created)
        }
        OperatorsCommand::List => execute(&at, AdminCommand::ListOperators, list),
        OperatorsCommand::Revoke { who } => with(&at, &who, |id| AdminCommand::RevokeOperator { id }),
        OperatorsCommand::Link { who } => with(&at, &who, |id| AdminCommand::LinkOperator { id }),
    }
}

/// Executes a command on the operator with this name or id.
fn with(at: &ServerArgs, who: &str, command: impl FnOnce(OperatorId) -> AdminCommand) -> ExitCode {
    match find(at, who) {
        Ok(id) => execute(at, command(id), |reply| match reply {
            AdminReply::OperatorRevoked { id } => format!("{id} is revoked\n"),
            AdminReply::SignInLink { link, expires } => {
                format!("{}\n\nIt signs in once, until {} UTC.\n", link.expose(), time(Some(expires)))
            }
            other => unexpected(&other),
        }),
        Err(error) => error.exit(),
    }
}

fn find(at: &ServerArgs, who: &str) -> Result<OperatorId, CommandError> {
    let AdminReply::Operators(operators) = ask(at, AdminCommand::ListOperators)? else {
        return Err(CommandError::Other("the server answered with something else".to_owned()));
    };
    let is = |operator: &&OperatorRecord| {
        operator.id.as_str() == who || (operator.name == who && operator.revoked.is_none())
    };
    let found = operators.iter().find(is).map(|operator| operator.id.clone());
    found.ok_or_else(|| {
        CommandError::Other(format!("there is no operator `{who}`\n  try: headrace operators list"))
    })
}

fn created(reply: AdminReply) -> String {
    match reply {
        AdminReply::OperatorCreated { operator, key } => format!(
            "{}\n\n  id       {}\n  name     {}\n  role     {}\n\nThe first line is the key. It is shown this once.\n",
            key.expose(),
            operator.id,
            operator.name,
            operator.role,
        ),
        other => unexpected(&other),
    }
}

fn list(reply: AdminReply) -> String {
    let AdminReply::Operators(operators) = reply else { return unexpected(&reply) };
    if operators.is_empty() {
        return "no operators: headrace operators create --name NAME --role owner makes the first\n"
            .to_owned();
    }
    let rows = operators.into_iter().map(|of| {
        let state =
            of.revoked.map_or_else(|| "active".to_owned(), |at| format!("revoked {}", time(Some(at))));
        let key = format!("…{}", of.hint);
        let org = of.org.map_or_else(|| "all".to_owned(), |org| org.to_string());
        vec![of.id.to_string(), of.name, of.role.to_string(), org, key, time(Some(of.created)), state]
    });
    output::table(&["id", "name", "role", "organisation", "key ends in", "created", "state"], rows.collect())
}
