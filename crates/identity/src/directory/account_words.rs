//! Accounts in words, for the audit log.

use crate::{GroupProfile, GroupRecord, UserRecord};

/// A user, with the data that decides its access.
pub(super) fn user_words(user: &UserRecord) -> String {
    let UserRecord { org, profile, .. } = user;
    let mut words = format!("org {org}, name {:?}", profile.name);
    for (what, text) in [("e-mail", profile.email()), ("external id", profile.external_id.as_deref())] {
        if let Some(text) = text {
            words.push_str(&format!(", {what} {text:?}"));
        }
    }
    if let Some(login) = &profile.login {
        words.push_str(&format!(", subject {:?} of {:?}", login.subject, login.issuer));
    }
    if let Some(role) = profile.role {
        words.push_str(&format!(", role {role}"));
    }
    words.push_str(if profile.active { ", active" } else { ", not active" });
    words
}

/// A group, with the number of its members.
pub(super) fn group_words(group: &GroupRecord) -> String {
    let GroupRecord { org, profile: GroupProfile { name, members, role, tier, .. }, .. } = group;
    let mut words = format!("org {org}, name {name:?}, {} members", members.len());
    if let Some(role) = role {
        words.push_str(&format!(", role {role}"));
    }
    if let Some(tier) = tier {
        words.push_str(&format!(", tier {tier}"));
    }
    words
}
