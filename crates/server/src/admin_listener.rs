//! The admin listener: its address, the first operator, and its parts. Must not know what a route does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use headrace_admin::{AdminCommand, AdminReply, AdminService, LinkSource, SecretText};
use headrace_admin_assets::{StaticAsset, console, docs_site};
use headrace_admin_http::{
    AdminHttp, AdminParts, AdminSocket, ByteStream, ConsoleAsset, ConsolePages, OperatorSessions, Secure,
    Secured,
};
use headrace_config::admin::{AdminListen, AdminSettings};
use headrace_domain::UnixNanos;
use headrace_edge::TlsCertificate;
use headrace_identity::{OperatorId, OperatorScope, Operators, Role};
use headrace_jwt::SignInProviders;
use headrace_terminal::output;
use secrecy::zeroize::Zeroizing;

use crate::banner::StartManner;
use crate::session_file::SessionFile;

/// The address that `up` prefers.
const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
/// The actor who creates the first operator, in the audit log, and that operator's name.
const ACTOR: &str = "first start";
const FIRST_OPERATOR: &str = "owner";

/// Why a listener with TLS cannot be opened beside no edge.
const NO_CERTIFICATE: &str = "`admin.tls` takes the certificate of the edge, and this server has no edge: put a proxy with TLS in \
                              front of the admin listener, and name it in `admin.url`";

/// An admin listener that is bound but not serving yet.
pub(crate) struct AdminListener {
    listener: AdminSocket,
    /// TLS, if it is configured.
    secure: Option<Secure>,
    sessions: Arc<OperatorSessions>,
    operators: Arc<Operators>,
    url: String,
}

impl AdminListener {
    /// Binds the listener, if it is wanted. `certificate` is the edge's. If the API takes any free port, this listener does too.
    pub(crate) fn open(
        settings: &AdminSettings,
        certificate: Option<&Arc<TlsCertificate>>,
        manner: StartManner,
        chosen: bool,
        (operators, providers): (Arc<Operators>, Arc<SignInProviders>),
        (dir, now): (&Path, UnixNanos),
    ) -> Result<Option<Self>, String> {
        let bound = match (settings.listen, manner) {
            (AdminListen::Off, _) | (AdminListen::Usual, StartManner::Serve) => return Ok(None),
            (AdminListen::At(at), _) => AdminSocket::bind(at, false).map_err(|error| (at, error)),
            (AdminListen::Usual, StartManner::Up) => {
                let wanted = if chosen { USUAL } else { free() };
                let bound = AdminSocket::bind(wanted, true).or_else(|_| AdminSocket::bind(free(), false));
                bound.map_err(|error| (wanted, error))
            }
        };
        let listener =
            bound.map_err(|(at, error)| crate::listen_addresses::cannot(at, "--admin-listen", &error))?;
        let listener = listener.with_most_connections(settings.most_connections);
        let at = listener.local_addr();
        if settings.listen == AdminListen::Usual && chosen && at != USUAL {
            output::note(&format!(
                "note: {USUAL} is taken by {}; the console is at {at}",
                crate::port_holder::holder(USUAL)
            ));
        }
        let secure = match (settings.tls, certificate) {
            (true, Some(certificate)) => Some(secured(certificate)?),
            // The configuration check refuses `admin.tls` without certificate files.
            (true, None) => return Err(NO_CERTIFICATE.to_owned()),
            (false, _) => None,
        };
        let is_safe =
            secure.is_some() || settings.url.as_deref().is_some_and(|url| url.starts_with("https://"));
        if !at.ip().is_loopback() && !is_safe {
            output::note(&format!(
                "warning: operators are listened to on {at} without TLS: keys and sessions can be read on the way. Set `admin.tls`, or put a proxy with TLS in front and name it in `admin.url`"
            ));
        }
        let url = settings.url.clone().unwrap_or_else(|| crate::listen_addresses::url(at, secure.is_some()));
        let (file, stored) = SessionFile::open(dir);
        let stored = stored.unwrap_or_else(|why| {
            output::note(&format!(
                "warning: the sessions of operators cannot be read, so that each has to sign in again: {why}"
            ));
            Vec::new()
        });
        let sessions =
            OperatorSessions::continued(Arc::clone(&operators), providers, stored, Box::new(file), now);
        let sessions = Arc::new(sessions);
        Ok(Some(Self { listener, secure, sessions, operators, url }))
    }

    /// Its address, as browsers write it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns a function that creates sign-in links to this listener.
    pub(crate) fn links(console: Option<&Self>) -> LinkSource {
        let console = console.map(|console| (Arc::clone(&console.sessions), console.url.clone()));
        Box::new(move |id, now| {
            let (sessions, url) = console.as_ref()?;
            let (token, expires) = sessions.link(id, now).ok()?;
            Some((SecretText::new(format!("{url}/#sign-in={}", token.expose())), expires))
        })
    }

    /// The text about the console in the startup message. Under `up` it holds a sign-in link; the first start also
    /// creates an operator for it.
    pub(crate) fn welcome(
        &self,
        service: &AdminService,
        manner: StartManner,
        now: UnixNanos,
    ) -> Result<Zeroizing<String>, String> {
        let how = match (manner, self.operators.first_owner()) {
            (StartManner::Serve, None) => {
                "; headrace operators create --name NAME --role owner makes the first operator"
            }
            (StartManner::Serve, Some(_)) => "; headrace operators link NAME lets one in",
            (StartManner::Up, owner) => {
                let id = owner.map_or_else(|| first_owner(service, now), |owner| Ok(owner.id))?;
                return match execute(service, AdminCommand::LinkOperator { id }, now)? {
                    AdminReply::SignInLink { link, .. } => {
                        Ok(Zeroizing::new(format!("{}   (signs in once, within ten minutes)", link.expose())))
                    }
                    other => Err(format!("the sign-in link could not be made: {other:?}")),
                };
            }
        };
        Ok(Zeroizing::new(format!("{}{how}", self.url)))
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().port()
    }

    /// The sessions of operators that are signed in.
    pub(crate) const fn sessions(&self) -> &Arc<OperatorSessions> {
        &self.sessions
    }

    /// Serves until the future is dropped.
    pub(crate) async fn serve(self, parts: AdminParts) {
        let Self { listener, secure, .. } = self;
        if let Err(error) = AdminHttp::new(parts).serve(listener, secure).await {
            output::note(&format!("warning: operators are not listened to any longer: {error}"));
        }
    }
}

/// TLS with the API's certificate, which a reload refreshes for both listeners.
fn secured(certificate: &Arc<TlsCertificate>) -> Result<Secure, String> {
    let acceptor = certificate.http1().map_err(|error| error.to_string())?;
    Ok(Arc::new(move |stream: tokio::net::TcpStream| {
        let handshake = acceptor.accept(stream);
        Box::pin(async move { Ok(Box::new(handshake.await?) as Box<dyn ByteStream>) }) as Secured
    }))
}

/// The console's files and the pages of the documentation.
pub(crate) const fn pages() -> ConsolePages {
    ConsolePages { asset: page, missing, policy: console::CONTENT_SECURITY_POLICY }
}

/// The asset at a path: a page of the documentation, or a file of the console.
fn page(path: &str) -> Option<ConsoleAsset> {
    docs_site::page(path).or_else(|| console::asset(path)).map(console_asset)
}

/// The page that replaces a missing documentation page.
fn missing(path: &str) -> Option<ConsoleAsset> {
    (path == "docs" || path.starts_with("docs/")).then(|| console_asset(docs_site::missing()))
}

fn console_asset(asset: StaticAsset) -> ConsoleAsset {
    let StaticAsset { bytes, mime, etag } = asset;
    ConsoleAsset { bytes, mime, etag }
}

/// Any free port of this machine.
const fn free() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)
}

fn first_owner(service: &AdminService, now: UnixNanos) -> Result<OperatorId, String> {
    let create = AdminCommand::CreateOperator {
        name: FIRST_OPERATOR.to_owned(),
        role: Role::Owner,
        scope: OperatorScope::Server,
    };
    match execute(service, create, now)? {
        // The key is never shown. The user who starts the server signs in by links.
        AdminReply::OperatorCreated { operator, .. } => Ok(operator.id),
        other => Err(format!("the first operator could not be made: {other:?}")),
    }
}

fn execute(service: &AdminService, command: AdminCommand, now: UnixNanos) -> Result<AdminReply, String> {
    service.execute(command, ACTOR, now).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use headrace_identity::{HashSecret, MemoryKeyStore};

    use super::*;

    #[test]
    fn a_listener_with_tls_needs_the_certificate_of_an_edge() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryKeyStore::default());
        let operators = Arc::new(Operators::open(store, &HashSecret::new([1; 32])).unwrap());
        let open = |tls| {
            let (listen, sign_in) = (AdminListen::At(free()), Vec::new());
            let settings = AdminSettings { listen, url: None, tls, sign_in, most_connections: 8 };
            let here = (dir.path(), UnixNanos::new(1));
            let operators = (Arc::clone(&operators), Arc::default());
            AdminListener::open(&settings, None, StartManner::Serve, true, operators, here)
        };
        assert!(open(false).unwrap().is_some());
        let why = open(true).err().unwrap();
        assert!(why.contains("`admin.tls`") && why.contains("`admin.url`"), "{why}");
    }
}
