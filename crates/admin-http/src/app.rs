//! State that all routes share: the admin service, the sessions, and limits on concurrent work. Runs blocking work off
//! the event loop.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use headrace_admin::{AdminCommand, AdminReply, AdminService};
use headrace_domain::{AdminCode, Clock, UnixNanos};
use headrace_identity::{
    CredentialKind, Directory, OperatorId, OperatorRecord, ProjectRecord, ScimCredentialRecord,
};
use tokio::sync::{Semaphore, broadcast};

use crate::names::HostNames;
use crate::pages::ConsolePages;
use crate::peers::PeerAccess;
use crate::places::{HolderSlot, HolderSlots, NoPlace};
use crate::plays::StoredAnswers;
use crate::problem::ApiProblem;
use crate::seams::{
    CallRecords, PlaygroundAnswer, PlaygroundCaller, PlaygroundEndpoint, PromptInspector, ServerAdmin,
};
use crate::sessions::OperatorSessions;
use crate::throttle::{AttemptThrottle, CountedAs, CredentialMark};
use crate::who::{AuthenticatedOperator, bad_credential, cookie_name, refused_credential};

/// Maximum number of blocking operations at once. Further ones wait for a permit.
const MAX_BLOCKING: usize = 16;
/// Maximum number of open event streams, in total and for one operator.
const MAX_SUBSCRIBERS: usize = 64;
const MAX_SUBSCRIBERS_PER_OPERATOR: usize = 16;
/// Divides a listener's connections into shares. Requests of operators may use all shares but one, and requests of one
/// operator one share. The last share is left for health checks.
const SERVING_SHARE: usize = 4;
/// Maximum number of audit rows about one subject that [`AdminApp::was_noted`] searches.
const MAX_NOTED: usize = 64;
/// Maximum number of changes that a slow subscriber may lag behind before it misses some.
const MAX_CHANGES_BEHIND: usize = 64;

/// The parts of an admin listener.
#[derive(Clone)]
pub struct AdminParts {
    /// Executes admin commands.
    pub service: Arc<AdminService>,
    /// Sessions and sign-in links of operators.
    pub sessions: Arc<OperatorSessions>,
    /// Organisations, projects and keys, for reading.
    pub directory: Arc<Directory>,
    /// Facts of the program that no admin command returns.
    pub server: Arc<dyn ServerAdmin>,
    /// Traces, usage and live figures of calls.
    pub calls: Arc<dyn CallRecords>,
    /// The other gateways with the same stores. `None` if this server has its stores for itself.
    pub peers: Option<PeerAccess>,
    /// Renders prompts, tokenizes texts and checks model files.
    pub prompts: Arc<dyn PromptInspector>,
    /// Makes calls for operators.
    pub playground: Arc<dyn PlaygroundCaller>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The console's files.
    pub pages: ConsolePages,
    /// The listener's address for browsers, such as `http://127.0.0.1:8081`. Sign-in links begin with it. If it begins
    /// with `https`, session cookies are marked `Secure`.
    pub url: String,
    /// The listener's port. The name of the session cookie contains it.
    pub port: u16,
}

/// State of every route. Clones share it.
#[derive(Clone)]
pub(crate) struct AdminApp(Arc<AppInner>);

struct AppInner {
    parts: AdminParts,
    names: HostNames,
    cookie: String,
    throttle: AttemptThrottle,
    turns: Arc<Semaphore>,
    changes: broadcast::Sender<&'static str>,
    subscribers: HolderSlots<OperatorId>,
    /// Slots for requests of operators that are being answered.
    serving: HolderSlots<OperatorId>,
    plays: StoredAnswers,
}

impl AdminApp {
    /// Builds the state from `parts`, for a listener with `most_connections` connections.
    pub(crate) fn new(parts: AdminParts, most_connections: usize) -> Self {
        let share = most_connections.div_ceil(SERVING_SHARE);
        let subscribers = MAX_SUBSCRIBERS.min(share.saturating_mul(2));
        let (changes, _) = broadcast::channel(MAX_CHANGES_BEHIND);
        Self(Arc::new(AppInner {
            names: HostNames::new(Some(&parts.url)),
            cookie: cookie_name(parts.port),
            throttle: AttemptThrottle::default(),
            turns: Arc::new(Semaphore::new(MAX_BLOCKING)),
            changes,
            // One operator's event streams use at most half of the operator's share, so requests still get through.
            subscribers: HolderSlots::new(subscribers, MAX_SUBSCRIBERS_PER_OPERATOR.min(share.div_ceil(2))),
            serving: HolderSlots::new(most_connections.saturating_sub(share), share),
            plays: StoredAnswers::default(),
            parts,
        }))
    }

    pub(crate) fn now(&self) -> UnixNanos {
        self.0.parts.clock.now()
    }

    pub(crate) fn names(&self) -> &HostNames {
        &self.0.names
    }

    pub(crate) fn sessions(&self) -> &OperatorSessions {
        &self.0.parts.sessions
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.0.parts.directory
    }

    pub(crate) fn pages(&self) -> ConsolePages {
        self.0.parts.pages
    }

    /// The name of the session cookie.
    pub(crate) fn cookie(&self) -> &str {
        &self.0.cookie
    }

    /// The listener's port.
    pub(crate) fn port(&self) -> u16 {
        self.0.parts.port
    }

    pub(crate) fn url(&self) -> &str {
        &self.0.parts.url
    }

    /// Returns the operator of `key`. Counts wrong keys by peer.
    pub(crate) fn by_key(&self, key: &str, peer: IpAddr) -> Result<OperatorRecord, ApiProblem> {
        let mark = CredentialMark::of(key);
        let who = self.0.throttle.counted_as(peer, mark, false);
        let found = self.attempt(who, peer, || {
            let found = self.sessions().operators().authenticate(key);
            found.map_err(|_| refused_credential(key, CredentialKind::OperatorKey))
        })?;
        self.0.throttle.passed(mark);
        Ok(found)
    }

    /// Returns the SCIM credential of a presented secret. Counts wrong ones by peer.
    pub(crate) fn by_scim(&self, secret: &str, peer: IpAddr) -> Result<ScimCredentialRecord, ApiProblem> {
        let mark = CredentialMark::of(secret);
        let who = self.0.throttle.counted_as(peer, mark, false);
        let found = self.attempt(who, peer, || {
            let found = self.directory().authenticate_scim(secret);
            found.map_err(|_| refused_credential(secret, CredentialKind::ScimCredential))
        })?;
        self.0.throttle.passed(mark);
        Ok(found)
    }

    /// Returns the operator of a sign-in link and uses the link up. Counts wrong links by peer.
    pub(crate) fn by_link(&self, link: &str, peer: IpAddr) -> Result<OperatorRecord, ApiProblem> {
        let mark = CredentialMark::of(link);
        let waits = mark.is_some_and(|mark| self.sessions().has_link_like(mark));
        let who = self.0.throttle.counted_as(peer, mark, waits);
        let now = self.now();
        let enter = || self.sessions().enter(link, now).ok_or_else(bad_credential);
        self.attempt(who, peer, enter)
    }

    /// Checks that a peer may try to complete a sign-in at a provider. Too many failed ones are refused.
    pub(crate) fn may_sign_in(&self, peer: IpAddr) -> Result<(), ApiProblem> {
        let who = self.0.throttle.counted_as(peer, None, false);
        self.0.throttle.may_try(who, self.now()).map_err(|seconds| {
            let message =
                format!("too many sign-ins from your address have failed: try again in {seconds} s");
            ApiProblem::new(AdminCode::TooManyAttempts, message).retry_after(seconds)
        })
    }

    /// Counts a failed sign-in of a peer.
    pub(crate) fn sign_in_failed(&self, peer: IpAddr) {
        self.0.throttle.failed(self.0.throttle.counted_as(peer, None, false), self.now());
    }

    /// Checks a credential that a peer may have guessed. After too many wrong attempts, right and wrong credentials are
    /// refused alike, without a check.
    fn attempt<T>(
        &self,
        who: CountedAs,
        peer: IpAddr,
        look: impl FnOnce() -> Result<T, ApiProblem>,
    ) -> Result<T, ApiProblem> {
        let (throttle, now) = (&self.0.throttle, self.now());
        throttle.may_try(who, now).map_err(|seconds| {
            let message = format!(
                "too many keys or links from your address were wrong, and this one was not looked at: try again in {seconds} s"
            );
            ApiProblem::new(AdminCode::TooManyAttempts, message)
                .retry_after(seconds)
                .remedy("headrace operators link ID makes a link, which has attempts of its own")
        })?;
        look().inspect_err(|_| {
            throttle.failed(who, now);
            tracing::warn!(%peer, "a key or link of an operator was wrong");
        })
    }

    /// Executes a command off the event loop, in the operator's name. The command completes even if the client
    /// disconnects.
    pub(crate) async fn run(
        &self,
        who: &AuthenticatedOperator,
        command: AdminCommand,
    ) -> Result<AdminReply, ApiProblem> {
        let (app, actor, now) = (self.clone(), who.actor(), self.now());
        self.blocking(move || app.0.parts.service.execute(command, &actor, now))
            .await?
            .map_err(ApiProblem::from)
    }

    /// Queries [`ServerAdmin`], off the event loop.
    pub(crate) async fn server<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn ServerAdmin) -> T + Send + 'static,
    ) -> Result<T, ApiProblem> {
        let server = Arc::clone(&self.0.parts.server);
        self.blocking(move || ask(server.as_ref())).await
    }

    /// Queries [`CallRecords`], off the event loop.
    pub(crate) async fn ask_calls<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn CallRecords) -> T + Send + 'static,
    ) -> Result<T, ApiProblem> {
        let calls = Arc::clone(&self.0.parts.calls);
        self.blocking(move || ask(calls.as_ref())).await
    }

    /// Queries [`PromptInspector`], off the event loop.
    pub(crate) async fn ask_prompts<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn PromptInspector) -> T + Send + 'static,
    ) -> Result<T, ApiProblem> {
        let prompts = Arc::clone(&self.0.parts.prompts);
        self.blocking(move || ask(prompts.as_ref())).await
    }

    /// The calls, for queries that do not block.
    pub(crate) fn calls(&self) -> &dyn CallRecords {
        self.0.parts.calls.as_ref()
    }

    /// The other gateways with the same stores. `None` if there cannot be any.
    pub(crate) fn peers(&self) -> Option<&PeerAccess> {
        self.0.parts.peers.as_ref()
    }

    /// Takes an event-stream slot for the operator.
    pub(crate) fn subscriber(&self, who: &AuthenticatedOperator) -> Result<HolderSlot<OperatorId>, NoPlace> {
        self.0.subscribers.take(who.operator.id.clone())
    }

    /// Takes a request slot for the operator.
    pub(crate) fn serving(&self, who: &AuthenticatedOperator) -> Result<HolderSlot<OperatorId>, NoPlace> {
        self.0.serving.take(who.operator.id.clone())
    }

    /// Subscribes to changes that are made from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<&'static str> {
        self.0.changes.subscribe()
    }

    /// Returns whether the operator's session, or the operator if there is no session, is still valid. For work that
    /// outlasts a request.
    pub(crate) fn may_go_on(&self, who: &AuthenticatedOperator) -> bool {
        match &who.session {
            Some(session) => self.sessions().lasts(&session.token.0, self.now()),
            None => self.is_active(who),
        }
    }

    /// Returns whether the operator was not revoked, and a user of a provider may still be an operator.
    pub(crate) fn is_active(&self, who: &AuthenticatedOperator) -> bool {
        match &who.user {
            Some(user) => self.sessions().still_allows(user),
            None => self.sessions().operators().active(&who.operator.id).is_some(),
        }
    }

    /// Stores the current sessions, off the event loop.
    pub(crate) async fn store_sessions(&self) -> Result<(), ApiProblem> {
        let sessions = self.sessions().clone();
        let failed = |why: String| {
            let message = format!(
                "this session ended, but that could not be written, so that it would be open again after a restart: {why}"
            );
            ApiProblem::new(AdminCode::StoreFailed, message)
        };
        self.blocking(move || sessions.store()).await?.map_err(failed)
    }

    /// The calls of the playground.
    pub(crate) fn plays(&self) -> &StoredAnswers {
        &self.0.plays
    }

    /// Makes a playground call as `project`.
    pub(crate) async fn play(
        &self,
        who: &AuthenticatedOperator,
        project: ProjectRecord,
        ask: PlaygroundEndpoint,
        body: Bytes,
    ) -> PlaygroundAnswer {
        self.0.parts.playground.ask(ask, project, &who.operator, body).await
    }

    /// Returns whether the audit log has this act of the operator on `subject`. Searches at most [`MAX_NOTED`] rows.
    pub(crate) async fn was_noted(
        &self,
        who: &AuthenticatedOperator,
        act: &'static str,
        subject: &str,
    ) -> Result<bool, ApiProblem> {
        let (app, actor, subject) = (self.clone(), who.actor(), subject.to_owned());
        let look = move || app.directory().audit_of(act, Some(&subject), MAX_NOTED);
        let rows = self.blocking(look).await?.map_err(headrace_admin::AdminError::from)?;
        Ok(rows.iter().any(|row| row.entry.actor == actor))
    }

    /// Writes an audit row for an act that is not a command.
    pub(crate) async fn note(
        &self,
        who: &AuthenticatedOperator,
        act: &'static str,
        subject: String,
        detail: String,
    ) -> Result<(), ApiProblem> {
        let (app, actor, now) = (self.clone(), who.actor(), self.now());
        let note = move || app.0.parts.service.note(act, &subject, detail, &actor, now);
        self.blocking(note).await?.map_err(ApiProblem::from)
    }

    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiProblem> {
        let gone = || ApiProblem::internal("the server is stopping");
        let turn = Arc::clone(&self.0.turns).acquire_owned().await.map_err(|_| gone())?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        done.await.map_err(|_| ApiProblem::internal("this failed within the server"))
    }

    /// Tells all subscribers that an operator changed something.
    pub(crate) fn changed(&self, what: &'static str) {
        // Sending fails if there is no subscriber.
        let _ = self.0.changes.send(what);
    }
}

/// The error for a reply that does not match the command.
pub(crate) fn unexpected(_: AdminReply) -> ApiProblem {
    ApiProblem::internal("the command answered with something else")
}
