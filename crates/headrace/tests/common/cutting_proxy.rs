//! A TCP proxy whose connections a test cuts. Knows nothing of what they carry.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy on a free port of 127.0.0.1.
pub(crate) struct CuttingProxy {
    pub(crate) port: u16,
    /// The number of cuts. A change ends every open connection.
    cuts: watch::Sender<u64>,
    state: Arc<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// Whether what the server answers is dropped.
    is_muted: AtomicBool,
    /// The number of connections that cuts ended.
    ended: AtomicU64,
}

impl CuttingProxy {
    /// Forwards connections to `port` of 127.0.0.1.
    pub(crate) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let (cuts, seen) = watch::channel(0);
        let state = Arc::new(ProxyState::default());
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (cuts, state) = (seen.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                        forward(client, server, cuts, &state).await;
                    }
                });
            }
        });
        Self { port: own_port, cuts, state }
    }

    /// Resets all connections.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Drops the server's answers for a while, so that commits arrive and their outcome does not, and then resets all
    /// connections.
    pub(crate) async fn cut_without_answers(&self, silence: Duration) {
        self.state.is_muted.store(true, Ordering::SeqCst);
        tokio::time::sleep(silence).await;
        self.cut();
        self.state.is_muted.store(false, Ordering::SeqCst);
    }

    /// Returns the number of connections that cuts ended.
    pub(crate) fn ended(&self) -> u64 {
        self.state.ended.load(Ordering::SeqCst)
    }
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    mut cuts: watch::Receiver<u64>,
    state: &ProxyState,
) {
    cuts.mark_unchanged();
    // Without delays that neither end asked for.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut asked, mut answered) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        tokio::select! {
            _ = cuts.changed() => {
                state.ended.fetch_add(1, Ordering::SeqCst);
                // Both ends see a reset, not an orderly end.
                let _ = (client.set_zero_linger(), server.set_zero_linger());
                return;
            }
            read = client.read(&mut asked) => {
                let Ok(bytes @ 1..) = read else { return };
                if server.write_all(&asked[..bytes]).await.is_err() { return }
            }
            read = server.read(&mut answered) => {
                let Ok(bytes @ 1..) = read else { return };
                let is_muted = state.is_muted.load(Ordering::SeqCst);
                if !is_muted && client.write_all(&answered[..bytes]).await.is_err() { return }
            }
        }
    }
}
