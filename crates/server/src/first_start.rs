//! The first key and the setup of an empty data directory: organisation and project `default`, and play credit. Each
//! step runs only if its result is missing, so the next start finishes an interrupted one.

use headrace_admin::{AdminCommand, AdminError, AdminReply, AdminService, SecretText};
use headrace_domain::{IdError, NanoDollars, OrgId, ProjectId, Residency, UnixNanos};
use headrace_identity::{AuthRefusal, Directory, ExposeSecret, KeyDetails, SecretString};
use headrace_ledger::{GrantKind, LedgerAdmin};

use headrace_config::FirstStart;
use headrace_config::key_text::{read_key, trimmed};

/// The variable that sets the first key.
pub(crate) const KEY_VARIABLE: &str = "HEADRACE_BOOTSTRAP_KEY";
/// The name of the first organisation and of its project.
const DEFAULT: &str = "default";
/// The actor in the audit log, and the name of the first key.
const ACTOR: &str = "first start";
/// Actor and key name for a key that a later start adds.
const LATER: &str = "later start";

/// The state of the keys when a server is ready.
pub(crate) enum FirstKeys {
    /// There was no key, and the first one was created.
    First(FirstKey),
    /// There were keys, and the environment has none.
    Kept,
    /// There were keys, and the one in the environment is valid.
    Works,
    /// There were keys, and the one in the environment was added to them.
    Added,
    /// There were keys, and the one in the environment is refused. Says why, and what to do.
    Refused(String),
}

/// The first key and its credit.
pub(crate) struct FirstKey {
    /// The secret, if it was generated here. `None` if the operator chose it.
    pub(crate) secret: Option<SecretText>,
    /// The play credit that was granted.
    pub(crate) credit: NanoDollars,
}

/// Everything that the setup needs.
pub(crate) struct FirstSetup<'a> {
    pub(crate) service: &'a AdminService,
    pub(crate) directory: &'a Directory,
    pub(crate) ledger: &'a dyn LedgerAdmin,
    pub(crate) now: UnixNanos,
}

impl FirstSetup<'_> {
    /// Sets up what is missing. With `play`, an unknown key in the environment is added to the directory.
    ///
    /// # Errors
    /// Returns a message.
    pub(crate) fn run(
        &self,
        config: &FirstStart,
        environment: Option<&SecretString>,
        play: bool,
    ) -> Result<FirstKeys, String> {
        if self.directory.list().is_empty() {
            return self.first(config, environment).map(FirstKeys::First);
        }
        let Some(key) = environment else { return Ok(FirstKeys::Kept) };
        let refused = |why: &str| Ok(FirstKeys::Refused(format!("the key in {KEY_VARIABLE} {why}")));
        match self.directory.authenticate(key.expose_secret(), self.now) {
            Ok(_) => Ok(FirstKeys::Works),
            Err(AuthRefusal::Unknown) if play => {
                let project = ProjectId::new(DEFAULT).map_err(|error: IdError| error.to_string())?;
                match self.create(project, LATER, Some(key)) {
                    Ok(_) => Ok(FirstKeys::Added),
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
            details: KeyDetails::default(),
            tier: None,
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

/// The key in the environment, if any.
pub fn first_key() -> Option<SecretString> {
    let text = std::env::var_os(KEY_VARIABLE).filter(|text| !text.is_empty())?;
    // Text that is not UTF-8 is no key. It is replaced by a text that is refused as malformed.
    Some(trimmed(text.into_string().unwrap_or_else(|_| "?".to_owned())))
}
