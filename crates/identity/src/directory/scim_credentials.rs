//! Credentials with which identity providers keep users and groups. Must not know the protocol.

use std::sync::atomic::Ordering::Release;

use headrace_domain::{OrgId, UnixNanos};
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use super::{Directory, IdentityError, entry};
use crate::credential_kind::SCIM_CREDENTIAL as PREFIX;
use crate::{
    AccountId, AccountKind, AccountRecord, AuthRefusal, ScimCredentialRecord, ScimSubject, StoredAccount,
    secret,
};

/// Characters of a secret after the prefix: 43 · log2(62) = 256 bits.
const SECRET_CHARS: usize = 43;

impl Directory {
    /// Creates a credential for an organisation. The secret is returned and stored nowhere else. With an `issuer`, the
    /// users that it creates are those of the issuer's tokens. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], [`IdentityError::Invalid`], or a store error.
    pub fn create_scim_credential(
        &self,
        org: OrgId,
        issuer: Option<String>,
        subject: ScimSubject,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(ScimCredentialRecord, SecretString), IdentityError> {
        if issuer.as_ref().is_some_and(|issuer| issuer.is_empty() || issuer.len() > 256) {
            return Err(IdentityError::Invalid { field: "issuer", why: "must have 1 to 256 bytes" });
        }
        let id = self.next_id(AccountKind::ScimCredential, &org, actor)?;
        let secret = SecretString::from(secret::random_base62(PREFIX, SECRET_CHARS)?);
        let hint = secret::tail(&secret);
        let credential = ScimCredentialRecord { id, org, hint, issuer, subject, created: now, revoked: None };
        let of = credential.issuer.as_ref().map_or_else(String::new, |issuer| format!(", issuer {issuer:?}"));
        let detail = format!("org {}{of}, ends in {:?}", credential.org, credential.hint);
        let audit = entry(now, actor, "scim.create", credential.id.as_str(), detail);
        let hash = Some(self.scim_hasher.hash(secret.expose_secret().as_bytes()));
        let record = AccountRecord::ScimCredential(credential.clone());
        self.put_account(StoredAccount { hash, record }, &audit)?;
        Ok((credential, secret))
    }

    /// The credentials of an organisation, or all of them, ordered by id, revoked ones among them.
    pub fn scim_credentials(&self, org: Option<&OrgId>) -> Vec<ScimCredentialRecord> {
        let records = self.records.read();
        let all = records.accounts.credentials.values().map(|(_, credential)| credential);
        all.filter(|credential| org.is_none_or(|org| credential.org == *org)).cloned().collect()
    }

    /// Revokes a credential. From here on, no request authenticates with it. Revoking a revoked one changes nothing.
    ///
    /// # Errors
    /// [`IdentityError::UnknownAccount`], or a store error.
    pub fn revoke_scim_credential(
        &self,
        id: &AccountId,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        self.change(id, |records| {
            let found = records.accounts.credentials.get(id);
            let (hash, credential) = found.ok_or_else(|| IdentityError::UnknownAccount(id.to_string()))?;
            if credential.revoked.is_some() {
                return Ok(((), None));
            }
            let credential = ScimCredentialRecord { revoked: Some(now), ..credential.clone() };
            let audit = entry(now, actor, "scim.revoke", id.as_str(), format!("org {}", credential.org));
            let record = AccountRecord::ScimCredential(credential);
            Ok(((), Some((StoredAccount { hash: Some(*hash), record }, audit))))
        })?;
        self.revocations.fetch_add(1, Release);
        Ok(())
    }

    /// Returns the credential of a presented secret. Compares with every credential's hash in constant time.
    ///
    /// # Errors
    /// The reason for the refusal. Only [`AuthRefusal::public`] may be shown to the caller.
    pub fn authenticate_scim(&self, presented: &str) -> Result<ScimCredentialRecord, AuthRefusal> {
        let hash = self.scim_hasher.hash(presented.as_bytes());
        let records = self.records.read();
        let same = |found: &&(crate::KeyHash, ScimCredentialRecord)| bool::from(found.0.ct_eq(&hash));
        // Look at all of them, so that the time does not reveal which one matched.
        let found = records.accounts.credentials.values().filter(same).fold(None, |_, found| Some(found));
        match found {
            _ if !presented.starts_with(PREFIX) => Err(AuthRefusal::Malformed),
            None => Err(AuthRefusal::Unknown),
            Some((_, credential)) if credential.revoked.is_some() => Err(AuthRefusal::Revoked),
            Some((_, credential)) => Ok(credential.clone()),
        }
    }
}
