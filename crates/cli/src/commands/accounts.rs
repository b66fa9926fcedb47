//! `headrace users`, `headrace service-accounts`, `headrace groups` and `headrace scim`.

use std::process::ExitCode;

use headrace_admin::{
    AccountAct, AccountReply, AdminCommand, AdminReply, GroupMapping, ListedAccounts, UserChange,
};
use headrace_identity::{
    AccountId, AccountRecord, GroupRecord, ScimCredentialRecord, ServiceAccountRecord, UserLogin,
    UserProfile, UserRecord,
};
use headrace_terminal::output;

use crate::arguments::ServerArgs;
use crate::arguments::accounts::{
    GroupsArgs, GroupsCommand, ScimArgs, ScimCommand, ServiceAccountsArgs, ServiceAccountsCommand, UserFlags,
    UsersArgs, UsersCommand,
};
use crate::commands::{execute, time, unexpected};

/// Creates, lists, changes or removes users.
pub(crate) fn users(args: UsersArgs) -> ExitCode {
    let list = |org| AccountAct::List { kind: ListedAccounts::Users, org };
    let act = match args.command {
        UsersCommand::Create { name, org, data } => {
            let mut profile = UserProfile::new(&name);
            change(data, None, false).apply(&mut profile);
            AccountAct::CreateUser { org, profile: Box::new(profile) }
        }
        UsersCommand::List { org } => list(org),
        UsersCommand::Show { id } => return show(&args.at, list(None), id),
        UsersCommand::Change { id, name, data, no_role } => {
            AccountAct::ChangeUser { id, change: change(data, name, no_role) }
        }
        UsersCommand::Deactivate { id } => AccountAct::SetActive { id, active: false },
        UsersCommand::Activate { id } => AccountAct::SetActive { id, active: true },
        UsersCommand::Remove { id } => AccountAct::Remove { id },
    };
    run(&args.at, act)
}

/// Creates, lists, deactivates or removes service accounts.
pub(crate) fn service_accounts(args: ServiceAccountsArgs) -> ExitCode {
    let list = |org| AccountAct::List { kind: ListedAccounts::ServiceAccounts, org };
    let act = match args.command {
        ServiceAccountsCommand::Create { name, project } => {
            AccountAct::CreateServiceAccount { project, name }
        }
        ServiceAccountsCommand::List { org } => list(org),
        ServiceAccountsCommand::Show { id } => return show(&args.at, list(None), id),
        ServiceAccountsCommand::Deactivate { id } => AccountAct::SetActive { id, active: false },
        ServiceAccountsCommand::Activate { id } => AccountAct::SetActive { id, active: true },
        ServiceAccountsCommand::Remove { id } => AccountAct::Remove { id },
    };
    run(&args.at, act)
}

/// Lists groups, or sets what a group gives its members.
pub(crate) fn groups(args: GroupsArgs) -> ExitCode {
    let act = match args.command {
        GroupsCommand::List { org } => AccountAct::List { kind: ListedAccounts::Groups, org },
        GroupsCommand::Map { id, role, no_role, tier, no_tier } => {
            let role = role.map(Some).or(no_role.then_some(None));
            let tier = tier.map(Some).or(no_tier.then_some(None));
            if role.is_none() && tier.is_none() {
                return output::fail("name one of --role, --no-role, --tier and --no-tier");
            }
            AccountAct::MapGroup { id, change: GroupMapping { role, tier } }
        }
    };
    run(&args.at, act)
}

/// Creates, lists or revokes SCIM credentials.
pub(crate) fn scim(args: ScimArgs) -> ExitCode {
    let act = match args.command {
        ScimCommand::Create { org, issuer, subject } => AccountAct::CreateScim { org, issuer, subject },
        ScimCommand::List { org } => AccountAct::List { kind: ListedAccounts::ScimCredentials, org },
        ScimCommand::Revoke { id } => AccountAct::RevokeScim { id },
    };
    run(&args.at, act)
}

fn change(data: UserFlags, name: Option<String>, no_role: bool) -> UserChange {
    let UserFlags { display_name, email, external_id, issuer, subject, role } = data;
    let login = issuer.zip(subject).map(|(issuer, subject)| UserLogin { issuer, subject });
    let role = role.map(Some).or(no_role.then_some(None));
    UserChange { name, display_name, email, external_id, login, role }
}

fn run(at: &ServerArgs, act: AccountAct) -> ExitCode {
    execute(at, AdminCommand::Accounts { act }, describe)
}

/// Shows the account of a list that has this id.
fn show(at: &ServerArgs, list: AccountAct, id: AccountId) -> ExitCode {
    execute(at, AdminCommand::Accounts { act: list }, move |reply| match reply {
        AdminReply::Accounts(AccountReply::Listed(accounts)) => {
            let found = accounts.into_iter().find(|account| *account.id() == id);
            found.map_or_else(|| format!("there is no {} `{id}`\n", id.kind().name()), |found| detail(&found))
        }
        other => unexpected(&other),
    })
}

fn describe(reply: AdminReply) -> String {
    let AdminReply::Accounts(reply) = reply else { return unexpected(&reply) };
    match reply {
        AccountReply::Listed(accounts) if accounts.is_empty() => "none\n".to_owned(),
        AccountReply::Listed(accounts) => table(accounts),
        AccountReply::Set(account) => detail(&account),
        AccountReply::Active { id, active: true } => format!("{id} is active: its keys and tokens work\n"),
        AccountReply::Active { id, active: false } => {
            format!("{id} is not active: its keys, tokens and sessions end, and so do its calls\n")
        }
        AccountReply::Removed(id) => format!("{id} is gone\n"),
        AccountReply::ScimCreated { credential, secret } => format!(
            "{}\n\n  id       {}\n  org      {}\n  address  /scim/v2 of the admin listener\n\n\
             The first line is the credential. It is shown this once.\n",
            secret.expose(),
            credential.id,
            credential.org,
        ),
    }
}

fn state(active: bool) -> String {
    if active { "active" } else { "not active" }.to_owned()
}

fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

/// The columns of an account, with their titles.
fn columns(account: &AccountRecord) -> Vec<(&'static str, String)> {
    match account {
        AccountRecord::User(UserRecord { id, org, profile, created, last_seen, .. }) => vec![
            ("id", id.to_string()),
            ("org", org.to_string()),
            ("name", profile.name.clone()),
            ("e-mail", or_none(profile.email())),
            ("role", or_none(profile.role)),
            ("subject", or_none(profile.login.as_ref().map(|login| &login.subject))),
            ("created", time(Some(*created))),
            ("last seen", time(*last_seen)),
            ("state", state(profile.active)),
        ],
        AccountRecord::ServiceAccount(ServiceAccountRecord {
            id,
            org,
            project,
            name,
            active,
            created,
            ..
        }) => {
            vec![
                ("id", id.to_string()),
                ("org", org.to_string()),
                ("project", project.to_string()),
                ("name", name.clone()),
                ("created", time(Some(*created))),
                ("state", state(*active)),
            ]
        }
        AccountRecord::Group(GroupRecord { id, org, profile, .. }) => vec![
            ("id", id.to_string()),
            ("org", org.to_string()),
            ("name", profile.name.clone()),
            ("members", profile.members.len().to_string()),
            ("role", or_none(profile.role)),
            ("tier", or_none(profile.tier.as_ref())),
        ],
        AccountRecord::ScimCredential(ScimCredentialRecord {
            id,
            org,
            hint,
            issuer,
            created,
            revoked,
            ..
        }) => {
            vec![
                ("id", id.to_string()),
                ("org", org.to_string()),
                ("ends in", format!("…{hint}")),
                ("issuer", or_none(issuer.as_ref())),
                ("created", time(Some(*created))),
                ("state", if revoked.is_none() { "active" } else { "revoked" }.to_owned()),
            ]
        }
    }
}

fn table(accounts: Vec<AccountRecord>) -> String {
    let Some(first) = accounts.first() else { return String::new() };
    let head: Vec<&str> = columns(first).into_iter().map(|(title, _)| title).collect();
    let rows = accounts.iter().map(|account| columns(account).into_iter().map(|(_, value)| value).collect());
    output::table(&head, rows.collect())
}

fn detail(account: &AccountRecord) -> String {
    let lines = columns(account).into_iter().map(|(title, value)| format!("  {title:<8}  {value}\n"));
    lines.collect()
}
