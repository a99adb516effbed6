//! MONITOR: connections that are shown every command that runs.
//!
//! A line is noted as the command runs, an effect like a message, and left with the connection's thread when it commits: of
//! a command that is run again elsewhere there is one. Those that EXEC and scripts run stand before EXEC and behind the script's
//! call. What only an administrator may call is not shown, nor are passwords. Where nobody looks, all this is one look at a
//! number.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;

use super::effects::Effect;
use super::pubsub::Notice;
use super::session::{Client, bits};
use super::{Args, Command, Ctx, Error, Result, Server, flags};
use crate::meter;
use crate::util::words::{as_word, quote};

/// Those who are shown all commands.
#[derive(Default)]
pub struct Monitors {
    clients: RwLock<Vec<Arc<Client>>>,
}

impl Server {
    /// Shows a line to all who look. If nobody does any more, no lines are made from now on.
    pub(super) fn show(&self, line: &Arc<[u8]>) {
        let clients = self.monitors.clients.read();
        for client in clients.iter() {
            client.messages.put_notice(Notice::Line { to: client.id, line: line.clone() }, 0);
        }
        let nobody = clients.is_empty();
        drop(clients);
        if nobody {
            let clients = self.monitors.clients.write();
            self.set_monitored(!clients.is_empty());
        }
    }
}

/// A connection that is shown all commands, as long as this is there.
pub struct Monitoring {
    monitors: Arc<Monitors>,
    client: Arc<Client>,
}

impl std::fmt::Debug for Monitoring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Monitoring({})", self.client.id)
    }
}

impl Monitoring {
    fn new(server: &Server, client: &Arc<Client>) -> Monitoring {
        let mut clients = server.monitors.clients.write();
        clients.push(client.clone());
        server.set_monitored(true);
        drop(clients);
        client.set_bit(bits::MONITOR, true);
        Monitoring { monitors: server.monitors.clone(), client: client.clone() }
    }
}

impl Drop for Monitoring {
    fn drop(&mut self) {
        self.monitors.clients.write().retain(|client| client.id != self.client.id);
        self.client.set_bit(bits::MONITOR, false);
    }
}

impl super::Session {
    /// Whether it is shown all commands, and may therefore call nothing that has to do with keys.
    ///
    /// # Errors
    /// If this command has.
    pub fn check_monitor(&self, command: &Command) -> Result {
        const OF_KEYS: [u32; 3] = [flags::READONLY, flags::WRITE, flags::MAY_WRITE];
        match self.monitoring.is_some() && OF_KEYS.iter().any(|flag| command.has(*flag)) {
            true => Err(Error::err("ERR Replica can't interact with the keyspace")),
            false => Ok(()),
        }
    }
}

impl Ctx<'_, '_> {
    /// Shows the connection all commands from now on; false if it is shown them already.
    ///
    /// # Errors
    /// Within EXEC.
    pub fn monitor(&mut self) -> Result<bool> {
        if !self.may_wait() {
            return Err(Error::err("ERR MONITOR isn't allowed for DENY BLOCKING client"));
        }
        let (server, client) = (self.server, &self.session.client);
        let is_new = self.session.monitoring.is_none();
        self.session.monitoring.get_or_insert_with(|| Box::new(Monitoring::new(server, client)));
        Ok(is_new)
    }

    /// Shows none any more.
    pub fn monitor_no_more(&mut self) {
        self.session.monitoring = None;
    }

    /// A command is about to run: those that show before what they run.
    #[inline]
    pub fn show_before(&mut self, command: &Command, args: Args<'_>) {
        if self.monitored && command.has(flags::SKIP_MONITOR) {
            self.show(command, args);
        }
    }

    /// A command has run.
    #[inline]
    pub fn show_after(&mut self, command: &Command, args: Args<'_>) {
        if self.monitored && !command.has(flags::SKIP_MONITOR) {
            self.show(command, args);
        }
    }

    /// A command has failed, and what it had noted is taken back.
    #[inline]
    pub fn show_failed(&mut self, command: &Command, args: Args<'_>) {
        if self.monitored {
            self.show(command, args);
        }
    }

    #[cold]
    fn show(&mut self, command: &Command, args: Args<'_>) {
        // One that has waited was shown when it came; a subcommand that is not known is not run.
        if command.has(flags::ADMIN) || !command.subcommands.is_empty() || self.served != super::ctx::Served::No {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let by = if self.scripted { "lua" } else { &self.session.client.addr };
        let mut line = format!("+{}.{:06} [", now.as_secs(), now.subsec_micros()).into_bytes();
        // A namespace may have any name; a line is one.
        line.extend_from_slice(&as_word(&self.session.db));
        line.extend_from_slice(format!(" {by}]").as_bytes());
        for (at, arg) in args.iter().enumerate() {
            line.push(b' ');
            if (command.hides)(args, at) {
                line.extend_from_slice(b"\"(redacted)\"");
            } else {
                line.extend_from_slice(&quote(arg));
            }
        }
        line.extend_from_slice(b"\r\n");
        _ = meter::hold(line.len());
        self.note(Effect::Show(line.into()));
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Config, Source};
    use crate::handler::pubsub::What;
    use crate::shard::keyspace::walk::tests::engine;

    /// Nothing of who has gone stays, and when the last has, no lines are made.
    #[test]
    fn lines_are_made_as_long_as_somebody_is_shown_them() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let config = Config::load(Source::Defaults, &[]).unwrap();
        let table = Box::leak(Box::new(crate::handler::table::Table::new(&[])));
        let server = Server::new(engine(dir.path(), 1), config, table);
        let client = |id| Arc::new(Client { id, messages: server.hub.messages(), ..Client::default() });
        let clients = [client(1), client(2)];
        let shown = |line: &[u8]| {
            server.show(&line.into());
            clients.each_ref().map(|client| {
                let queued = std::iter::from_fn(|| client.messages.take());
                let is_line = |what: &What| {
                    matches!(what, What::Notice(notice)
                        if matches!(&**notice, Notice::Line { to, line: told } if *to == client.id && **told == *line))
                };
                queued.filter(|queued| is_line(&queued.what)).count()
            })
        };
        assert!(!server.is_monitored());
        let [one, two] = clients.each_ref().map(|client| Monitoring::new(&server, client));
        assert_eq!((shown(b"a"), server.is_monitored()), ([1, 1], true));
        drop(one);
        assert_eq!((shown(b"b"), server.is_monitored()), ([0, 1], true));
        drop(two);
        assert_eq!((shown(b"c"), server.is_monitored()), ([0, 0], false));
        assert!(clients.iter().all(|client| client.bits.load(std::sync::atomic::Ordering::Relaxed) == 0));
        assert!(clients.iter().all(|client| Arc::strong_count(client) == 1), "nobody has them");
    }
}
