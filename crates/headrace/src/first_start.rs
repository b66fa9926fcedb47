//! The first key, and what an empty data directory is set up with: organisation and project `default`, play credit. Each
//! step is done only where it is missing, so that a start that was cut short is finished by the next.

use headrace_admin::{AdminCommand, AdminError, AdminReply, AdminService, SecretText};
use headrace_domain::{IdError, NanoDollars, OrgId, ProjectId, Residency, UnixNanos};
use headrace_identity::{AuthRefusal, Directory, ExposeSecret, SecretString};
use headrace_ledger::{GrantKind, Ledger};

use crate::config::FirstStart;
use crate::key_text::{read_key, trimmed};

/// The variable that chooses the first key.
pub(crate) const KEY_VARIABLE: &str = "HEADRACE_BOOTSTRAP_KEY";
/// The name of the organisation and of the project.
const DEFAULT: &str = "default";
/// Who did it, in the audit log, and the key's name.
const ACTOR: &str = "first start";
/// The same for a key that a later start brought.
const LATER: &str = "later start";

/// How things stand with keys once a server is ready.
pub(crate) enum Keys {
    /// There was none: the first one was made.
    First(FirstKey),
    /// There were keys, and nobody chose another.
    Kept,
    /// There were keys, and the one in the environment works.
    Works,
    /// There were keys, and the one in the environment is now one of them.
    Added,
    /// There were keys, and the one in the environment is refused: why, and what to do.
    Refused(String),
}

/// What was set up.
pub(crate) struct FirstKey {
    /// The key, if it was made here rather than chosen.
    pub(crate) secret: Option<SecretText>,
    /// Play credit granted.
    pub(crate) credit: NanoDollars,
}

/// Who sets up what.
pub(crate) struct Setup<'a> {
    pub(crate) service: &'a AdminService,
    pub(crate) directory: &'a Directory,
    pub(crate) ledger: &'a Ledger,
    pub(crate) now: UnixNanos,
}

impl Setup<'_> {
    /// Sets up what is missing. With `play`, a key in the environment that is none of the directory's becomes one.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn run(
        &self,
        config: &FirstStart,
        environment: Option<&SecretString>,
        play: bool,
    ) -> Result<Keys, String> {
        if self.directory.list().is_empty() {
            return self.first(config, environment).map(Keys::First);
        }
        let Some(key) = environment else { return Ok(Keys::Kept) };
        let refused = |why: &str| Ok(Keys::Refused(format!("the key in {KEY_VARIABLE} {why}")));
        match self.directory.authenticate(key.expose_secret(), self.now) {
            Ok(_) => Ok(Keys::Works),
            Err(AuthRefusal::Unknown) if play => {
                let project = ProjectId::new(DEFAULT).map_err(|error: IdError| error.to_string())?;
                match self.create(project, LATER, Some(key)) {
                    Ok(_) => Ok(Keys::Added),
                    Err(why) => {
                        refused(&format!("is none of this data directory's and cannot be made one: {why}"))
                    }
                }
            }
            Err(AuthRefusal::Unknown) => refused(
                "is ignored: this data directory has keys, and it is none of them. Unset it, or make it one with \
                 `headrace keys create --secret-file FILE`",
            ),
            Err(AuthRefusal::Revoked) => {
                refused("was revoked here and stays so: choose another, or unset it")
            }
            Err(AuthRefusal::Expired) => refused("has expired here: choose another, or unset it"),
            Err(_) => refused("is no API key: they begin with `sk-`"),
        }
    }

    fn first(&self, config: &FirstStart, environment: Option<&SecretString>) -> Result<FirstKey, String> {
        let bad_name = |error: IdError| error.to_string();
        let (org, project) =
            (OrgId::new(DEFAULT).map_err(bad_name)?, ProjectId::new(DEFAULT).map_err(bad_name)?);
        if self.directory.org(&org).is_none() {
            self.execute(
                ACTOR,
                AdminCommand::CreateOrg { id: org.clone(), limits: None, regions: Residency::Anywhere },
            )?;
        }
        if self.directory.project(&project).is_none() {
            self.execute(
                ACTOR,
                AdminCommand::CreateProject { id: project.clone(), org: org.clone(), limits: None },
            )?;
        }
        let totals = self.ledger.totals();
        let untouched = totals.promotional == NanoDollars::ZERO && totals.paid_in == NanoDollars::ZERO;
        if untouched && config.credit > NanoDollars::ZERO {
            self.execute(
                ACTOR,
                AdminCommand::GrantCredit {
                    org,
                    amount: config.credit,
                    kind: GrantKind::Promotional,
                    reference: ACTOR.to_owned(),
                },
            )?;
        }
        let file = config.key_file.as_deref().filter(|_| environment.is_none()).map(read_key).transpose()?;
        let chosen = environment.or(file.as_ref());
        let secret = self.create(project, ACTOR, chosen)?;
        Ok(FirstKey { secret: chosen.is_none().then_some(secret), credit: config.credit })
    }

    fn create(
        &self,
        project: ProjectId,
        name: &str,
        secret: Option<&SecretString>,
    ) -> Result<SecretText, String> {
        let create = AdminCommand::CreateKey {
            project,
            name: name.to_owned(),
            models: None,
            endpoints: None,
            limits: None,
            regions: Residency::Anywhere,
            expires: None,
            secret: secret.map(|secret| SecretText::new(secret.expose_secret().to_owned())),
        };
        match self.execute(name, create)? {
            AdminReply::KeyCreated { secret, .. } => Ok(secret),
            other => Err(format!("the key could not be made: {other:?}")),
        }
    }

    fn execute(&self, actor: &str, command: AdminCommand) -> Result<AdminReply, String> {
        self.service.execute(command, actor, self.now).map_err(|error: AdminError| error.to_string())
    }
}

/// The key in the environment.
pub(crate) fn first_key() -> Option<SecretString> {
    let text = std::env::var_os(KEY_VARIABLE).filter(|text| !text.is_empty())?;
    // Text that is not UTF-8 is no key, and is refused as one that is not well formed.
    Some(trimmed(text.into_string().unwrap_or_else(|_| "?".to_owned())))
}
