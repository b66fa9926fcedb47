//! Tiers and their assignments. Must not know how they are enforced.

use headrace_domain::{TierName, UnixNanos};

use super::records::Records;
use super::{Directory, IdentityError, entry};
use crate::record::check_text;
use crate::tier::AssignedTiers;
use crate::{Principal, StoreError, TierHolder, TierRecord, TierRules};

/// Holders that a refusal to remove a tier names.
const MAX_NAMED: usize = 5;

impl Directory {
    /// All tiers, ordered by name.
    pub fn tiers(&self) -> Vec<TierRecord> {
        self.records.read().tiers.values().cloned().collect()
    }

    /// The tier with this name.
    pub fn tier(&self, name: &TierName) -> Option<TierRecord> {
        self.records.read().tiers.get(name).cloned()
    }

    /// Creates a tier. It has no effect until it is assigned.
    ///
    /// # Errors
    /// [`IdentityError::Exists`], [`IdentityError::Invalid`] for its rules, or a store error.
    pub fn create_tier(
        &self,
        name: TierName,
        rules: TierRules,
        actor: &str,
        now: UnixNanos,
    ) -> Result<TierRecord, IdentityError> {
        check_text("actor", actor)?;
        rules.check()?;
        let _one_change = self.waiting.lock();
        if self.tier(&name).is_some() {
            return Err(IdentityError::Exists { what: format!("tier `{name}`") });
        }
        let tier = TierRecord { name, rules, created: now };
        let audit = entry(now, actor, "tier.create", tier.name.as_str(), tier.rules.to_string());
        self.store.put_tier(&tier, &audit)?;
        self.records.write().tiers.insert(tier.name.clone(), tier.clone());
        Ok(tier)
    }

    /// Changes the rules of a tier, for all that have it. Calls in flight continue.
    ///
    /// # Errors
    /// [`IdentityError::UnknownTier`], [`IdentityError::Invalid`] for its rules, or a store error.
    pub fn change_tier(
        &self,
        name: &TierName,
        rules: TierRules,
        actor: &str,
        now: UnixNanos,
    ) -> Result<TierRecord, IdentityError> {
        check_text("actor", actor)?;
        rules.check()?;
        let _one_change = self.waiting.lock();
        let before = self.tier(name).ok_or_else(|| IdentityError::UnknownTier(name.clone()))?;
        let tier = TierRecord { rules, ..before };
        let audit = entry(now, actor, "tier.change", name.as_str(), tier.rules.to_string());
        self.store.put_tier(&tier, &audit)?;
        let mut records = self.records.write();
        records.tiers.insert(name.clone(), tier.clone());
        self.entries.put(records.entries_under(name)?);
        Ok(tier)
    }

    /// Removes a tier that is assigned to none.
    ///
    /// # Errors
    /// [`IdentityError::UnknownTier`], [`IdentityError::TierInUse`] while it is assigned, or a store error.
    pub fn remove_tier(&self, name: &TierName, actor: &str, now: UnixNanos) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        let tier = self.tier(name).ok_or_else(|| IdentityError::UnknownTier(name.clone()))?;
        let holders = self.records.read().holder_names(name);
        if !holders.is_empty() {
            let more = holders.len().saturating_sub(MAX_NAMED);
            let named: Vec<_> = holders.iter().take(MAX_NAMED).cloned().collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let holders = format!("{}{more}", named.join(", "));
            return Err(IdentityError::TierInUse { tier: name.clone(), holders });
        }
        let audit = entry(now, actor, "tier.remove", name.as_str(), tier.rules.to_string());
        self.store.remove_tier(name, &audit).map_err(|error| match error {
            // Another process assigned it meanwhile.
            StoreError::InUse { .. } => {
                let holders = "an organisation, project, key or group".to_owned();
                IdentityError::TierInUse { tier: name.clone(), holders }
            }
            error => error.into(),
        })?;
        self.records.write().tiers.remove(name);
        Ok(())
    }

    /// Assigns a tier in place of the one before, or none. Calls in flight continue.
    ///
    /// # Errors
    /// [`IdentityError::UnknownTier`], an unknown organisation, project or key, or a store error.
    pub fn assign_tier(
        &self,
        to: &TierHolder,
        tier: Option<&TierName>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        if let Some(name) = tier.filter(|name| self.tier(name).is_none()) {
            return Err(IdentityError::UnknownTier(name.clone()));
        }
        let known = match to {
            TierHolder::Org(id) => {
                self.org(id).map(drop).ok_or_else(|| IdentityError::UnknownOrg(id.clone()))
            }
            TierHolder::Project(id) => {
                self.project(id).map(drop).ok_or_else(|| IdentityError::UnknownProject(id.clone()))
            }
            TierHolder::Key(id) => {
                self.key(id).map(drop).ok_or_else(|| IdentityError::UnknownKey(id.clone()))
            }
        };
        known?;
        let detail = tier.map_or_else(|| "no tier".to_owned(), |tier| format!("tier {tier}"));
        let act = match to {
            TierHolder::Org(_) => "org.tier",
            TierHolder::Project(_) => "project.tier",
            TierHolder::Key(_) => "key.tier",
        };
        self.store.assign_tier(to, tier, &entry(now, actor, act, to.id(), detail))?;
        let mut records = self.records.write();
        let entries = match to {
            TierHolder::Org(id) => {
                if let Some(org) = records.orgs.get_mut(id) {
                    org.tier = tier.cloned();
                }
                records.entries_of_org(id)?
            }
            TierHolder::Project(id) => {
                if let Some(project) = records.projects.get_mut(id) {
                    project.tier = tier.cloned();
                }
                records.entries_of_project(id)?
            }
            TierHolder::Key(id) => {
                if let Some(key) = records.keys.get_mut(id) {
                    key.record.tier = tier.cloned();
                }
                match records.keys.get(id) {
                    Some(key) => records.entries_of_key(key)?,
                    None => Vec::new(),
                }
            }
        };
        self.entries.put(entries);
        Ok(())
    }

    /// Narrows a principal without a stored key to what the tiers of its project and organisation allow.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if an assigned tier is missing.
    pub fn apply_tiers(&self, principal: &mut Principal) -> Result<(), IdentityError> {
        let records = self.records.read();
        records.assigned_tiers(principal, None, None)?.narrow(principal);
        Ok(())
    }
}

impl Records {
    /// The tiers of a principal, whose key has the tier `of_key` and the owner `owner`.
    pub(super) fn assigned_tiers(
        &self,
        principal: &Principal,
        of_key: Option<&TierName>,
        owner: Option<&str>,
    ) -> Result<AssignedTiers<'_>, IdentityError> {
        let find = |name: Option<&TierName>| {
            name.map(|name| {
                self.tiers.get(name).ok_or_else(|| {
                    let why = format!("tier `{name}` is missing");
                    StoreError::Corrupt { what: format!("key `{}`", principal.key), why }
                })
            })
            .transpose()
        };
        let groups: Result<Vec<_>, StoreError> = self
            .accounts
            .tiers_of(owner)
            .into_iter()
            .filter_map(|name| find(Some(name)).transpose())
            .collect();
        Ok(AssignedTiers {
            groups: groups?,
            key: find(of_key)?,
            project: find(self.projects.get(&principal.project).and_then(|project| project.tier.as_ref()))?,
            org: find(self.orgs.get(&principal.org).and_then(|org| org.tier.as_ref()))?,
        })
    }

    /// The organisations, projects and keys that have a tier. Keys that were revoked are among them.
    pub(super) fn holders(&self, name: &TierName) -> Vec<TierHolder> {
        let has = |tier: &Option<TierName>| tier.as_ref() == Some(name);
        let orgs = self.orgs.values().filter(|org| has(&org.tier)).map(|org| TierHolder::Org(org.id.clone()));
        let projects = self.projects.values().filter(|project| has(&project.tier));
        let projects = projects.map(|project| TierHolder::Project(project.id.clone()));
        let keys = self.keys.values().filter(|key| has(&key.record.tier));
        let keys = keys.map(|key| TierHolder::Key(key.record.id.clone()));
        orgs.chain(projects).chain(keys).collect()
    }

    /// What has the tier, in words.
    fn holder_names(&self, name: &TierName) -> Vec<String> {
        let holders = self.holders(name);
        let groups = self.accounts.groups_with(name).map(|group| format!("group `{}`", group.profile.name));
        holders.iter().map(ToString::to_string).chain(groups).collect()
    }

    /// The entries of all keys that a tier concerns.
    pub(super) fn entries_under(&self, name: &TierName) -> Result<Vec<super::records::Entry>, IdentityError> {
        let mut entries = self.entries_owned_by(&self.accounts.under(name))?;
        for holder in self.holders(name) {
            entries.extend(match &holder {
                TierHolder::Org(id) => self.entries_of_org(id)?,
                TierHolder::Project(id) => self.entries_of_project(id)?,
                TierHolder::Key(id) => match self.keys.get(id) {
                    Some(key) => self.entries_of_key(key)?,
                    None => Vec::new(),
                },
            });
        }
        Ok(entries)
    }
}
