//! `tarn backup`: asks a server for what the BACKUP command does, and waits for a backup until it is whole.

use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use crate::util::progress::Progress;

use super::Failure;

/// A server that is asked. The password may stand in REDISCLI_AUTH instead.
#[derive(Debug, Clone, clap::Args)]
pub struct RemoteServer {
    /// Its host.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Its port.
    #[arg(long, default_value_t = 6379)]
    pub port: u16,
    /// Name of the user.
    #[arg(long)]
    pub user: Option<String>,
    /// The user's password.
    #[arg(long)]
    pub pass: Option<String>,
}

/// What a server is asked about backups.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum BackupTask {
    /// Make a backup, and wait until it is whole.
    Create {
        /// Its name.
        name: String,
    },
    /// List the backups.
    List,
    /// Remove a backup.
    Delete {
        /// Its name.
        name: String,
    },
}

/// Time between two looks at a backup that is being made.
const LOOK: Duration = Duration::from_millis(100);
/// A server that is silent for so long is given up.
const SILENT: Duration = Duration::from_secs(600);
/// More than any reply to BACKUP has.
const MOST: usize = 64 << 20;

/// Asks and reports.
pub fn run(server: &RemoteServer, ask: &BackupTask) -> ExitCode {
    let mut say = |line: &str| {
        // A reader who has closed the pipe has read enough.
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    match asked(server, ask, &mut say) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn asked(server: &RemoteServer, ask: &BackupTask, say: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    let mut connection = Connection::open(server)?;
    match ask {
        BackupTask::Create { name } => {
            connection.call(&["BACKUP", "CREATE", name])?;
            wait(&mut connection, name)?;
            say(&format!("backup {name} is made"));
        }
        BackupTask::Delete { name } => {
            connection.call(&["BACKUP", "DELETE", name])?;
            say(&format!("backup {name} is removed"));
        }
        BackupTask::List => {
            for line in connection.backups()? {
                let Line { name, status, time_s, bytes, .. } = line;
                let time = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(time_s));
                say(&format!("{name}  {time}  {bytes} bytes  {status}"));
            }
        }
    }
    Ok(())
}

/// Waits until the backup of this name is made.
fn wait(connection: &mut Connection, name: &str) -> Result<(), Failure> {
    let mut progress = Progress::new("backup", 0);
    loop {
        let lines = connection.backups()?;
        let Some(running) = lines.iter().find(|line| line.name == name && line.status == "running") else {
            if lines.iter().any(|line| line.name == name && line.status == "whole") {
                return Ok(());
            }
            return Err(format!("backup {name} failed: {}", connection.failure()?).into());
        };
        progress.set(running.done_bytes, running.bytes);
        std::thread::sleep(LOOK);
    }
}

/// What the server says of a backup.
#[derive(Default)]
struct Line {
    name: String,
    status: String,
    time_s: u64,
    bytes: u64,
    done_bytes: u64,
}

enum Reply {
    Text(String),
    List(Vec<Reply>),
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(server: &RemoteServer) -> Result<Connection, Failure> {
        let RemoteServer { host, port, user, pass } = server;
        let stream = TcpStream::connect((host.as_str(), *port)).map_err(|error| format!("{host}:{port}: {error}"))?;
        stream.set_read_timeout(Some(SILENT))?;
        let mut connection = Connection(BufReader::new(stream));
        let from_environment = std::env::var("REDISCLI_AUTH").ok();
        if let Some(pass) = pass.as_ref().or(from_environment.as_ref()) {
            match user {
                Some(user) => connection.call(&["AUTH", user, pass])?,
                None => connection.call(&["AUTH", pass])?,
            };
        }
        Ok(connection)
    }

    fn call(&mut self, args: &[&str]) -> Result<Reply, Failure> {
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request += &format!("${}\r\n{arg}\r\n", arg.len());
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        self.reply(0)
    }

    fn reply(&mut self, depth: usize) -> Result<Reply, Failure> {
        let mut line = String::new();
        if (&mut self.0).take(MOST as u64).read_line(&mut line)? == 0 {
            return Err("the server has closed the connection".into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        let len = || rest.parse::<usize>().ok().filter(|len| *len <= MOST).ok_or("the server's reply cannot be read");
        match kind {
            "+" | ":" => Ok(Reply::Text(rest.to_owned())),
            "-" => Err(rest.to_owned().into()),
            "$" => {
                let mut bytes = vec![0; len()? + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            "*" if depth < 8 => {
                let mut list = Vec::new();
                for _ in 0..len()? {
                    list.push(self.reply(depth + 1)?);
                }
                Ok(Reply::List(list))
            }
            _ => Err("the server's reply cannot be read".into()),
        }
    }

    fn backups(&mut self) -> Result<Vec<Line>, Failure> {
        let Reply::List(list) = self.call(&["BACKUP", "LIST"])? else { return Ok(Vec::new()) };
        let line = |reply| {
            let mut line = Line::default();
            let Reply::List(parts) = reply else { return line };
            let mut texts =
                parts.into_iter().map(|part| if let Reply::Text(text) = part { text } else { String::new() });
            while let (Some(field), Some(text)) = (texts.next(), texts.next()) {
                match field.as_str() {
                    "name" => line.name = text,
                    "status" => line.status = text,
                    "time" => line.time_s = text.parse().unwrap_or_default(),
                    "bytes" => line.bytes = text.parse().unwrap_or_default(),
                    "bytes-done" => line.done_bytes = text.parse().unwrap_or_default(),
                    _ => {}
                }
            }
            line
        };
        Ok(list.into_iter().map(line).collect())
    }

    /// Why the last backup failed.
    fn failure(&mut self) -> Result<String, Failure> {
        let Reply::Text(info) = self.call(&["INFO", "tarn"])? else { return Ok(String::new()) };
        let why = info.lines().find_map(|line| line.strip_prefix("tarn_backup_last_error:"));
        Ok(why.unwrap_or_default().to_owned())
    }
}
