//! The signals that end a server, and the signal that reloads its configuration. Must not know what ending takes.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::banner::StartManner;
use crate::machine;
use crate::reload::ConfigReloader;

/// Signals that end a server, and SIGHUP, which reloads a server under `serve`.
pub(crate) struct ProcessSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if SIGHUP was ignored when the process started, as under `nohup`, or after the first SIGHUP under `up`.
    hang_up: Option<Signal>,
    manner: StartManner,
    reloader: Arc<ConfigReloader>,
    /// A running reload, which may take as long as loading a model.
    reading: Option<JoinHandle<()>>,
}

impl ProcessSignals {
    pub(crate) fn new(manner: StartManner, reloader: Arc<ConfigReloader>) -> std::io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let hang_up = if machine::ignores_hang_up() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt, terminate, hang_up, manner, reloader, reading: None })
    }

    /// Waits for the next signal that ends the server. Reloads on SIGHUP under `serve`.
    pub(crate) async fn next(&mut self) {
        loop {
            let hang_up = async {
                match (&mut self.reading, &mut self.hang_up) {
                    (Some(reading), _) => {
                        // The reload reports its own outcome. Signals that arrive meanwhile cause one further reload
                        // together.
                        let _ = reading.await;
                        false
                    }
                    (None, Some(signal)) => {
                        signal.recv().await;
                        true
                    }
                    (None, None) => std::future::pending().await,
                }
            };
            let hung_up = tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                hung_up = hang_up => hung_up,
            };
            self.reading = None;
            if !hung_up {
                continue;
            }
            match self.manner {
                // The terminal is gone, so no user can press Ctrl-C. Shell and kernel may both send SIGHUP, and the
                // second one does not ask for an immediate stop.
                StartManner::Up => {
                    self.hang_up = None;
                    return;
                }
                StartManner::Serve => {
                    let reloader = Arc::clone(&self.reloader);
                    self.reading = Some(tokio::task::spawn_blocking(move || drop(reloader.reload("SIGHUP"))));
                }
            }
        }
    }
}
