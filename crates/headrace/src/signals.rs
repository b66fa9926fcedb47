//! The signals that end a server or a command, and the one that has a server read its configuration again. Must not know what ending takes.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::machine;
use crate::reload::Reloader;
use crate::welcome::Manner;

/// The signals that end a server, and the one that does not.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None`: it was ignored from the beginning, as `nohup` does, and stays so.
    hang_up: Option<Signal>,
    manner: Manner,
    reloader: Arc<Reloader>,
    /// The configuration is being read again, which may take as long as a model takes to load.
    reading: Option<JoinHandle<()>>,
}

impl Signals {
    pub(crate) fn new(manner: Manner, reloader: Arc<Reloader>) -> std::io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let hang_up = if machine::ignores_hang_up() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt, terminate, hang_up, manner, reloader, reading: None })
    }

    /// The next signal that means an end.
    pub(crate) async fn next(&mut self) {
        loop {
            let hang_up = async {
                match (&mut self.reading, &mut self.hang_up) {
                    (Some(reading), _) => {
                        // What came of it has been said. However often the signal comes meanwhile, it is read once more.
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
                // The terminal is gone, and with it whoever could press Ctrl-C. Shell and kernel may both say so: the second
                // time is no wish to stop at once.
                Manner::Up => {
                    self.hang_up = None;
                    return;
                }
                Manner::Serve => {
                    let reloader = Arc::clone(&self.reloader);
                    self.reading = Some(tokio::task::spawn_blocking(move || drop(reloader.reload("SIGHUP"))));
                }
            }
        }
    }
}

/// Resolves at the next Ctrl-C; never where signals cannot be caught.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
