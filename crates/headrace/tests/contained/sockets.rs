//! WebSockets: frames that are not read, messages that do not end, and slots that are not used.

use std::sync::Arc;

use crate::raw::{self, frame};
use crate::world::{Attack, World};

const TEXT: u8 = 1;
const PING: u8 = 9;
/// Maximum payload of a control frame, in bytes (RFC 6455, 5.5).
const CONTROL_BYTES: usize = 125;
/// Bytes of PINGs that one client sends. Their answers would take half as much again.
const PING_BYTES: usize = 384 << 20;
/// Exceeds the program's WebSocket slots.
const SOCKETS: usize = 300;
/// The first fragment of a message, slightly below the size limit of a message.
const FRAGMENT_BYTES: usize = 4_000_000;

/// A client sends PINGs and reads none of the answers.
pub(crate) async fn unread_pings(world: Arc<World>) -> Attack {
    let socket = raw::web_socket(world.server.address(), &world.attacker).await;
    let mut socket = socket.map_err(|status| format!("the attacker's WebSocket: {status}"))?;
    let pings = frame(PING, true, &[b'x'; CONTROL_BYTES]).repeat(8000);
    let mut sent = 0;
    while sent < PING_BYTES {
        let took = raw::push(&mut socket, &pings).await;
        sent += took;
        if took < pings.len() {
            break;
        }
    }
    Ok(Box::new(socket))
}

/// A key opens as many WebSockets as it can, and another key opens one.
pub(crate) async fn all_places(world: Arc<World>) -> Attack {
    let mut open = Vec::new();
    for _ in 0..SOCKETS {
        open.extend(raw::web_socket(world.server.address(), &world.attacker).await.ok());
    }
    another_opens_one(&world, open.len()).await?;
    Ok(Box::new(open))
}

/// A key opens as many WebSockets as it can and sends the first part of a message on each.
pub(crate) async fn half_messages(world: Arc<World>) -> Attack {
    let half: Arc<Vec<u8>> = Arc::new(frame(TEXT, false, &vec![b'a'; FRAGMENT_BYTES]));
    let mut pushes = Vec::new();
    for _ in 0..SOCKETS {
        let Ok(mut socket) = raw::web_socket(world.server.address(), &world.attacker).await else { continue };
        let half = Arc::clone(&half);
        pushes.push(tokio::spawn(async move {
            raw::push(&mut socket, &half).await;
            socket
        }));
    }
    let mut open = Vec::new();
    for push in pushes {
        open.push(push.await.unwrap());
    }
    another_opens_one(&world, open.len()).await?;
    Ok(Box::new(open))
}

async fn another_opens_one(world: &World, open: usize) -> Result<(), String> {
    let socket = raw::web_socket(world.server.address(), &world.other).await;
    let refused = |status| format!("beside {open} WebSockets of one key another key's is refused: {status}");
    socket.map(drop).map_err(refused)
}
