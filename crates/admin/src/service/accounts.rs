//! Users, service accounts, groups and SCIM credentials. Must not know what they may call.

use headrace_domain::UnixNanos;
use headrace_identity::{AccountRecord, ExposeSecret, GroupProfile, UserProfile};

use super::AdminService;
use crate::account_act::{AccountAct, AccountReply, ListedAccounts};
use crate::command::AdminReply;
use crate::error::AdminError;
use crate::secret_text::SecretText;

impl AdminService {
    pub(super) fn accounts(
        &self,
        act: AccountAct,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let directory = &self.directory;
        let one = |record| Ok(AccountReply::Set(Box::new(record)));
        let done: Result<AccountReply, AdminError> = match act {
            AccountAct::List { kind, org } => {
                let org = org.as_ref();
                Ok(AccountReply::Listed(match kind {
                    ListedAccounts::Users => {
                        directory.users(org).into_iter().map(AccountRecord::User).collect()
                    }
                    ListedAccounts::ServiceAccounts => directory
                        .service_accounts(org)
                        .into_iter()
                        .map(AccountRecord::ServiceAccount)
                        .collect(),
                    ListedAccounts::Groups => {
                        directory.groups(org).into_iter().map(AccountRecord::Group).collect()
                    }
                    ListedAccounts::ScimCredentials => directory
                        .scim_credentials(org)
                        .into_iter()
                        .map(AccountRecord::ScimCredential)
                        .collect(),
                }))
            }
            AccountAct::CreateUser { org, profile } => {
                one(AccountRecord::User(directory.create_user(org, *profile, actor, now)?))
            }
            AccountAct::ChangeUser { id, change } => {
                let apply = |profile: &mut UserProfile| {
                    change.apply(profile);
                    Ok(())
                };
                one(AccountRecord::User(directory.change_user(&id, actor, now, apply)?))
            }
            AccountAct::CreateServiceAccount { project, name } => {
                let account = directory.create_service_account(project, &name, actor, now)?;
                one(AccountRecord::ServiceAccount(account))
            }
            AccountAct::SetActive { id, active } => {
                directory.set_account_active(&id, active, actor, now)?;
                Ok(AccountReply::Active { id, active })
            }
            AccountAct::Remove { id } => {
                directory.remove_account(&id, actor, now)?;
                Ok(AccountReply::Removed(id))
            }
            AccountAct::MapGroup { id, change } => {
                let apply = |profile: &mut GroupProfile| {
                    if let Some(role) = change.role {
                        profile.role = role;
                    }
                    if let Some(tier) = &change.tier {
                        profile.tier.clone_from(tier);
                    }
                    Ok(())
                };
                one(AccountRecord::Group(directory.change_group(&id, actor, now, apply)?))
            }
            AccountAct::CreateScim { org, issuer, subject } => {
                let (credential, secret) =
                    directory.create_scim_credential(org, issuer, subject, actor, now)?;
                let secret = SecretText::new(secret.expose_secret().to_owned());
                Ok(AccountReply::ScimCreated { credential, secret })
            }
            AccountAct::RevokeScim { id } => {
                directory.revoke_scim_credential(&id, actor, now)?;
                Ok(AccountReply::Removed(id))
            }
        };
        done.map(AdminReply::Accounts)
    }
}
