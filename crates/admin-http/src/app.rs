//! What routes share: the service that does things, who is signed in, and bounds. Runs what blocks off the event loop.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use headrace_admin::{AdminCommand, AdminReply, AdminService};
use headrace_domain::{AdminCode, Clock, UnixNanos};
use headrace_identity::{AuthRefusal, Directory, OperatorId, OperatorRecord, ProjectRecord};
use tokio::sync::{Semaphore, broadcast};

use crate::names::Names;
use crate::pages::Pages;
use crate::places::{NoPlace, Place, Places};
use crate::plays::Plays;
use crate::problem::Problem;
use crate::seams::{Ask, Calls, House, Played, Playground, Prompts};
use crate::sessions::Sessions;
use crate::throttle::{CountedAs, Mark, Throttle};
use crate::who::{Who, bad_credential, cookie_name};

/// Acts and readings at once that wait for a disk; more wait for their turn.
const MAX_BLOCKING: usize = 16;
/// Pages and programs that look on at once, in all and of one operator.
const MAX_SUBSCRIBERS: usize = 64;
const MAX_SUBSCRIBERS_PER_OPERATOR: usize = 16;
/// Divides a listener's connections. Three parts of this many serve requests of operators at once, and one part those of one
/// operator. The rest is left for health checks.
const SERVING_SHARE: usize = 4;
/// Rows about one subject that are looked through for one operator's.
const MAX_NOTED: usize = 64;
/// Changes that a slow subscriber may be behind before it misses some.
const MAX_CHANGES_BEHIND: usize = 64;

/// What an admin listener is made of.
#[derive(Clone)]
pub struct Parts {
    /// What does things.
    pub service: Arc<AdminService>,
    /// Who is signed in.
    pub sessions: Arc<Sessions>,
    /// Organisations, projects and keys, to be read.
    pub directory: Arc<Directory>,
    /// What the program knows that no command tells.
    pub house: Arc<dyn House>,
    /// What is known of calls.
    pub calls: Arc<dyn Calls>,
    /// What models see.
    pub prompts: Arc<dyn Prompts>,
    /// What makes calls for operators.
    pub playground: Arc<dyn Playground>,
    /// Now.
    pub clock: Arc<dyn Clock>,
    /// The console's files.
    pub pages: Pages,
    /// How browsers reach the listener, such as `http://127.0.0.1:8081`: sign-in links begin with it, and by `https` cookies travel
    /// only there.
    pub url: String,
    /// The listener's port, by which the cookies of its sessions are named.
    pub port: u16,
}

/// What every route has at hand.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    parts: Parts,
    names: Names,
    cookie: String,
    throttle: Throttle,
    turns: Arc<Semaphore>,
    changes: broadcast::Sender<&'static str>,
    subscribers: Places<OperatorId>,
    /// Requests of operators that are being answered.
    serving: Places<OperatorId>,
    plays: Plays,
}

impl App {
    /// Of these parts.
    pub(crate) fn new(parts: Parts, most_connections: usize) -> Self {
        let share = most_connections.div_ceil(SERVING_SHARE);
        let subscribers = MAX_SUBSCRIBERS.min(share.saturating_mul(2));
        let (changes, _) = broadcast::channel(MAX_CHANGES_BEHIND);
        Self(Arc::new(Inner {
            names: Names::new(Some(&parts.url)),
            cookie: cookie_name(parts.port),
            throttle: Throttle::default(),
            turns: Arc::new(Semaphore::new(MAX_BLOCKING)),
            changes,
            // An operator who only looks on can still ask.
            subscribers: Places::new(subscribers, MAX_SUBSCRIBERS_PER_OPERATOR.min(share.div_ceil(2))),
            serving: Places::new(most_connections.saturating_sub(share), share),
            plays: Plays::default(),
            parts,
        }))
    }

    pub(crate) fn now(&self) -> UnixNanos {
        self.0.parts.clock.now()
    }

    pub(crate) fn names(&self) -> &Names {
        &self.0.names
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.0.parts.sessions
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.0.parts.directory
    }

    pub(crate) fn pages(&self) -> Pages {
        self.0.parts.pages
    }

    /// The name of the cookie of a session.
    pub(crate) fn cookie(&self) -> &str {
        &self.0.cookie
    }

    pub(crate) fn url(&self) -> &str {
        &self.0.parts.url
    }

    /// Whose key this is. Wrong ones are counted by peer.
    pub(crate) fn by_key(&self, key: &str, peer: IpAddr) -> Result<OperatorRecord, Problem> {
        let mark = Mark::of(key);
        let who = self.0.throttle.counted_as(peer, mark, false);
        let found = self
            .attempt(who, peer, || self.sessions().operators().authenticate(key).map_err(bad_credential))?;
        self.0.throttle.passed(mark);
        Ok(found)
    }

    /// Who has a link, which works no longer then. Wrong ones are counted by peer.
    pub(crate) fn by_link(&self, link: &str, peer: IpAddr) -> Result<OperatorRecord, Problem> {
        let mark = Mark::of(link);
        let waits = mark.is_some_and(|mark| self.sessions().has_link_like(mark));
        let who = self.0.throttle.counted_as(peer, mark, waits);
        let now = self.now();
        let enter = || self.sessions().enter(link, now).ok_or_else(|| bad_credential(AuthRefusal::Unknown));
        self.attempt(who, peer, enter)
    }

    /// Looks at what a peer shows and may have guessed, unless too much of it was wrong lately: then right and wrong ones are
    /// answered alike, without a look.
    fn attempt<T>(
        &self,
        who: CountedAs,
        peer: IpAddr,
        look: impl FnOnce() -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let (throttle, now) = (&self.0.throttle, self.now());
        throttle.may_try(who, now).map_err(|seconds| {
            let message = format!(
                "too many keys or links from your address were wrong, and this one was not looked at: try again in {seconds} s"
            );
            Problem::new(AdminCode::TooManyAttempts, message)
                .retry_after(seconds)
                .remedy("headrace operators link ID makes a link, which has attempts of its own")
        })?;
        look().inspect_err(|_| {
            throttle.failed(who, now);
            tracing::warn!(%peer, "a key or link of an operator was wrong");
        })
    }

    /// Does it, off the event loop, in the name of who asks. Whoever asked may be gone before it is done: it is done all the same.
    pub(crate) async fn run(&self, who: &Who, command: AdminCommand) -> Result<AdminReply, Problem> {
        let (app, actor, now) = (self.clone(), who.actor(), self.now());
        self.blocking(move || app.0.parts.service.execute(command, &actor, now)).await?.map_err(Problem::from)
    }

    /// Asks the program, off the event loop.
    pub(crate) async fn house<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn House) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let house = Arc::clone(&self.0.parts.house);
        self.blocking(move || ask(house.as_ref())).await
    }

    /// Asks what is known of calls, off the event loop.
    pub(crate) async fn ask_calls<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Calls) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let calls = Arc::clone(&self.0.parts.calls);
        self.blocking(move || ask(calls.as_ref())).await
    }

    /// Asks what models see, off the event loop.
    pub(crate) async fn ask_prompts<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Prompts) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let prompts = Arc::clone(&self.0.parts.prompts);
        self.blocking(move || ask(prompts.as_ref())).await
    }

    /// The same of what does not block.
    pub(crate) fn calls(&self) -> &dyn Calls {
        self.0.parts.calls.as_ref()
    }

    /// A place to look on from, if the operator may have one.
    pub(crate) fn subscriber(&self, who: &Who) -> Result<Place<OperatorId>, NoPlace> {
        self.0.subscribers.take(who.operator.id.clone())
    }

    /// A place for a request that is answered, if the operator may have one.
    pub(crate) fn serving(&self, who: &Who) -> Result<Place<OperatorId>, NoPlace> {
        self.0.serving.take(who.operator.id.clone())
    }

    /// What is administered from here on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<&'static str> {
        self.0.changes.subscribe()
    }

    /// Whether somebody may go on with what lasts longer than a request.
    pub(crate) fn may_go_on(&self, who: &Who) -> bool {
        match &who.session {
            Some(session) => self.sessions().lasts(&session.token.0, self.now()),
            None => self.sessions().operators().active(&who.operator.id).is_some(),
        }
    }

    /// Stores the sessions as they are, off the event loop.
    pub(crate) async fn store_sessions(&self) -> Result<(), Problem> {
        let sessions = self.sessions().clone();
        let failed = |why: String| {
            let message = format!(
                "this session ended, but that could not be written, so that it would be open again after a restart: {why}"
            );
            Problem::new(AdminCode::StoreFailed, message)
        };
        self.blocking(move || sessions.store()).await?.map_err(failed)
    }

    /// Calls of the playground.
    pub(crate) fn plays(&self) -> &Plays {
        &self.0.plays
    }

    /// Makes a call as a project.
    pub(crate) async fn play(&self, who: &Who, project: ProjectRecord, ask: Ask, body: Bytes) -> Played {
        self.0.parts.playground.ask(ask, project, &who.operator, body).await
    }

    /// Whether the audit log has such an act of somebody.
    pub(crate) async fn was_noted(
        &self,
        who: &Who,
        act: &'static str,
        subject: &str,
    ) -> Result<bool, Problem> {
        let (app, actor, subject) = (self.clone(), who.actor(), subject.to_owned());
        let look = move || app.directory().audit_of(act, Some(&subject), MAX_NOTED);
        let rows = self.blocking(look).await?.map_err(headrace_admin::AdminError::from)?;
        Ok(rows.iter().any(|row| row.entry.actor == actor))
    }

    /// Notes in the audit log what no command does.
    pub(crate) async fn note(
        &self,
        who: &Who,
        act: &'static str,
        subject: String,
        detail: String,
    ) -> Result<(), Problem> {
        let (app, actor, now) = (self.clone(), who.actor(), self.now());
        let note = move || app.0.parts.service.note(act, &subject, detail, &actor, now);
        self.blocking(note).await?.map_err(Problem::from)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let gone = || Problem::internal("the server is stopping");
        let turn = Arc::clone(&self.0.turns).acquire_owned().await.map_err(|_| gone())?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        done.await.map_err(|_| Problem::internal("this failed within the server"))
    }

    /// Tells whoever looks on that something was administered.
    pub(crate) fn changed(&self, what: &'static str) {
        // Nobody looks on.
        let _ = self.0.changes.send(what);
    }
}

/// A reply of another kind than the command's.
pub(crate) fn unexpected(_: AdminReply) -> Problem {
    Problem::internal("the command answered with something else")
}
