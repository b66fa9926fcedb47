//! Memory per connection in the governed server: connections without a request, idle connections after a call, and open
//! streams. Must not know what a server does.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::load::Load;
use crate::mock::Mock;
use crate::process::Server;
use crate::{Cell, Failure};

const COUNT: usize = 1_000;
/// Time after which a connection is idle. The server checks connections at least every 10 s (`server.header_timeout`).
const RESTS_BY: Duration = Duration::from_secs(12);
/// Time after which requested data has arrived and freed memory has been returned.
const SETTLED: Duration = Duration::from_secs(3);

/// Prints the memory of each connection in the governed server.
pub(crate) fn print(instant: &Cell, stream: &Cell) -> Result<(), Failure> {
    let (never, rests) = idle(instant)?;
    println!(
        "{COUNT} connections that never asked: {never:.1} KiB each; {COUNT} that rest after a call: {rests:.1} KiB each; \
         {COUNT} open streams: {:.1} KiB each",
        streams(stream)?
    );
    Ok(())
}

fn idle(cell: &Cell) -> Result<(f64, f64), Failure> {
    let mut setup = ServerSetup::new(cell.answer.clone())?;
    // Memory that the newest calls leave behind must not count as the connections'.
    let load = Load { port: setup.server.port, connections: 4, request: cell.request.clone() };
    load.closed(Duration::from_secs(1), &mut || setup.mock.turn())?;
    setup.wait(Duration::from_secs(1))?;
    let empty = setup.server.resident_bytes()?;
    let mut connections = setup.connect(COUNT)?;
    setup.wait(Duration::from_secs(1))?;
    let connected = setup.server.resident_bytes()?;
    for connection in &mut connections {
        setup.call(connection, cell)?;
    }
    setup.wait(RESTS_BY)?;
    // Freed memory is returned only when there is work.
    load.closed(Duration::from_secs(1), &mut || setup.mock.turn())?;
    Ok((each(connected, empty), each(setup.server.resident_bytes()?, empty)))
}

fn streams(cell: &Cell) -> Result<f64, Failure> {
    // The answer's first event and no more.
    let first = cell.answer.windows(4).position(|window| window == b"\n\n\r\n");
    let first = first.and_then(|at| cell.answer.get(..at + 4)).unwrap_or_default();
    let mut setup = ServerSetup::new(first.to_vec())?;
    let empty = setup.server.resident_bytes()?;
    let mut connections = setup.connect(COUNT)?;
    setup.ask(&mut connections, cell)?;
    setup.wait(SETTLED)?;
    Ok(each(setup.server.resident_bytes()?, empty))
}

fn each(more: u64, less: u64) -> f64 {
    more.saturating_sub(less) as f64 / COUNT as f64 / 1024.0
}

/// A server with its upstream.
struct ServerSetup {
    mock: Mock,
    server: Server,
    _dir: tempfile::TempDir,
}

impl ServerSetup {
    fn new(answer: Vec<u8>) -> Result<Self, Failure> {
        let dir = tempfile::tempdir()?;
        let mock = Mock::new(answer)?;
        let url = format!("http://127.0.0.1:{}", mock.port()?);
        let server = Server::start("memory", &dir.path().to_string_lossy(), &url)?;
        Ok(Self { mock, server, _dir: dir })
    }

    fn connect(&self, count: usize) -> Result<Vec<TcpStream>, Failure> {
        let connect = |_| TcpStream::connect(("127.0.0.1", self.server.port)).map_err(Failure::from);
        (0..count).map(connect).collect()
    }

    fn ask(&mut self, connections: &mut [TcpStream], cell: &Cell) -> Result<(), Failure> {
        for connection in connections {
            connection.write_all(&cell.request)?;
            self.mock.turn()?;
        }
        Ok(())
    }

    /// Runs one call to its end.
    fn call(&mut self, connection: &mut TcpStream, cell: &Cell) -> Result<(), Failure> {
        connection.write_all(&cell.request)?;
        connection.set_nonblocking(true)?;
        let mut answer = [0; 4096];
        let read = loop {
            self.mock.turn()?;
            match connection.read(&mut answer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => break read?,
            }
        };
        let is_good = answer.get(..read).is_some_and(|answer| answer.starts_with(b"HTTP/1.1 200 OK"));
        if is_good { Ok(()) } else { Err("a call was refused".into()) }
    }

    /// Waits while the upstream keeps answering.
    fn wait(&mut self, length: Duration) -> Result<(), Failure> {
        let until = Instant::now() + length;
        while Instant::now() < until {
            self.mock.turn()?;
        }
        Ok(())
    }
}
