//! The handshake that switches a connection to WebSockets (RFC 6455), and the answer that completes it. Must not know
//! the messages that follow, or who is admitted.

use std::sync::Mutex;

use bytes::Bytes;
use headrace_call_api::{AnswerFrames, CallerInfo, SessionId};
use headrace_domain::KeyId;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode, Version};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::body::OutBody;
use crate::sockets::SocketPlace;

/// Length of a handshake's key: 16 bytes in base64.
const KEY_CHARACTERS: usize = 24;

/// The responses socket that a connection continues as, from its handshake to the switch.
pub(crate) type PendingSocket<A> = Mutex<Option<AdmittedSocket<A>>>;

/// A responses socket whose handshake was admitted.
pub(crate) struct AdmittedSocket<A> {
    pub(crate) caller: SocketCaller,
    /// The admission of the handshake, which lasts as long as the socket.
    pub(crate) admission: A,
}

/// The caller of a responses socket.
#[derive(Debug)]
pub(crate) struct SocketCaller {
    /// The caller as the handshake showed it.
    pub(crate) info: CallerInfo,
    /// The session of the socket at the call service, if the service keeps one.
    pub(crate) session: Option<SessionId>,
    /// The socket's place. It belongs to the key that opened the socket.
    pub(crate) place: SocketPlace,
}

impl SocketCaller {
    /// Returns the key that opened the socket.
    pub(crate) const fn key(&self) -> &KeyId {
        self.place.key()
    }
}

/// Returns whether a request asks for a switch to WebSockets (RFC 6455 §4.2.1).
pub(crate) fn is_websocket(head: &Parts) -> bool {
    let has = |name: HeaderName, word: &str| {
        let values = head.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let keys: Vec<_> = head.headers.get_all(header::SEC_WEBSOCKET_KEY).iter().collect();
    head.method == Method::GET
        && head.version == Version::HTTP_11
        && has(header::CONNECTION, "upgrade")
        && has(header::UPGRADE, "websocket")
        && has(header::SEC_WEBSOCKET_VERSION, "13")
        && matches!(keys.as_slice(), [key] if key.len() == KEY_CHARACTERS)
}

/// Returns the answer after which the connection uses WebSockets.
pub(crate) fn switched<S: AnswerFrames>(head: &Parts) -> Response<OutBody<S>> {
    let mut response = Response::new(OutBody::Whole(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let key = head.headers.get(header::SEC_WEBSOCKET_KEY).map_or(&[][..], HeaderValue::as_bytes);
    if let Ok(accept) = HeaderValue::try_from(derive_accept_key(key)) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}
