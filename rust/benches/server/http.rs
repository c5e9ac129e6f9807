//! A load on Weft's server, over HTTP, in a separate process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use weft::config::KernelChoice;

use super::load::{Arrival, Load, Trace};
use crate::support::options::Options;

/// Maximum time for a server to load its model.
const MAX_STARTUP: Duration = Duration::from_secs(60);

/// A connection without data for this time is considered broken.
const MAX_SILENCE: Duration = Duration::from_secs(120);

/// A running server, which is stopped on drop.
struct Server {
    process: Child,
    port: u16,
}

/// Message of a reader: the time of a token of a request, or the request's error.
type Message = (usize, Result<Instant, String>);

/// Returns true if the server can be started: it requires the built Python package.
pub(crate) fn is_built() -> bool {
    let status = Command::new("python").args(["-m", "weft", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs the load.
///
/// # Errors
/// A message, if the server does not start, or answers with anything but tokens.
pub(crate) fn run(model: &Path, options: &Options, load: &Load) -> Result<Vec<Trace>, String> {
    let server = Server::start(model, options, load)?;
    let (sender, receiver) = mpsc::channel();
    let mut traces = Vec::new();
    send(&server, &load.first, &mut traces, &sender)?;
    let n_tokens = |traces: &[Trace], request: usize| traces.get(request).map_or(0, |trace| trace.times.len());
    while !load.is_over(|request| n_tokens(&traces, request)) {
        let (request, time) = receiver.recv_timeout(MAX_SILENCE).map_err(|_| format!("nothing came for {MAX_SILENCE:?}"))?;
        traces[request].times.push(time?);
        if traces.len() == load.first.len() && load.may_continue(|request| n_tokens(&traces, request)) {
            send(&server, &load.then, &mut traces, &sender)?;
        }
    }
    Ok(traces)
}

/// Sends each request over a separate connection, which a thread reads.
fn send(server: &Server, arrivals: &[Arrival], traces: &mut Vec<Trace>, sender: &Sender<Message>) -> Result<(), String> {
    for arrival in arrivals {
        let connection = server.post(arrival).map_err(|error| error.to_string())?;
        let (request, sender) = (traces.len(), sender.clone());
        traces.push(Trace { submitted: Instant::now(), times: Vec::new() });
        thread::spawn(move || {
            if let Err(error) = read(connection, request, &sender) {
                // The receiver is dropped when the load is over; the error is then irrelevant.
                let _ = sender.send((request, Err(error)));
            }
        });
    }
    Ok(())
}

/// Reads server-sent events: one per token, and one at the end of each completion.
fn read(connection: TcpStream, request: usize, sender: &Sender<Message>) -> Result<(), String> {
    let mut lines = BufReader::new(connection).lines();
    let status = lines.next().and_then(Result::ok).unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200") {
        return Err(format!("the server answered {status:?}"));
    }
    for line in lines {
        // A connection that is closed after the end of the load is irrelevant.
        let Ok(line) = line else { return Ok(()) };
        let is_token = line.starts_with("data: {") && !line.contains("\"stop\":true");
        if is_token && sender.send((request, Ok(Instant::now()))).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

impl Server {
    fn start(model: &Path, options: &Options, load: &Load) -> Result<Self, String> {
        // The port is free again when the probe is dropped; no other code here requests one.
        let probe = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| error.to_string())?;
        let port = probe.local_addr().map_err(|error| error.to_string())?.port();
        drop(probe);
        let mut command = Command::new("python");
        command.args(["-m", "weft", "-m"]).arg(model).args(["--port", &port.to_string()]);
        command.args(["-np", &load.n_slots().to_string(), "-c", &super::n_cells(load).to_string()]);
        match options.kernels {
            KernelChoice::Auto => {}
            KernelChoice::Weft => drop(command.args(["--kernels", "weft"])),
            KernelChoice::LlamaCpp => drop(command.args(["--kernels", "llama.cpp"])),
        }
        if let Some(n_threads) = options.n_threads {
            command.args(["-t", &n_threads.to_string()]);
        }
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Self { process: process.map_err(|error| error.to_string())?, port };
        let started = Instant::now();
        while !server.is_ready() {
            let has_ended = server.process.try_wait().map_err(|error| error.to_string())?.is_some();
            if has_ended || started.elapsed() > MAX_STARTUP {
                return Err("the server did not start".to_owned());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn is_ready(&self) -> bool {
        let ask = || -> std::io::Result<bool> {
            let mut connection = self.connect()?;
            connection.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
            let mut answer = [0; 12];
            connection.read_exact(&mut answer)?;
            Ok(&answer == b"HTTP/1.1 200")
        };
        ask().unwrap_or(false)
    }

    fn post(&self, arrival: &Arrival) -> std::io::Result<TcpStream> {
        let Arrival { prompt, n, n_predict } = arrival;
        let body = format!("{{\"prompt\":{prompt:?},\"n\":{n},\"n_predict\":{n_predict},\"ignore_eos\":true,\"stream\":true}}");
        let mut connection = self.connect()?;
        write!(
            connection,
            "POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        Ok(connection)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let connection = TcpStream::connect(("127.0.0.1", self.port))?;
        connection.set_read_timeout(Some(MAX_SILENCE))?;
        Ok(connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
