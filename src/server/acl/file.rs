//! Users in files: a line `user <name> <rule>…` each, in an ACL file or in the configuration.
//!
//! An ACL file is read as a whole, and every mistake in it is told. If there is one, nothing has changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config::load::{LoadError, UserLine, io_text};
use crate::error::{Error, Result};
use crate::handler::Server;
use crate::handler::acl::rules::{Refused, Rules, is_name, merge};
use crate::handler::acl::user::{DEFAULT, User};
use crate::meter;
use crate::util::path::replace;
use crate::util::words::as_word;

const NO_FILE: Error = Error::err(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER \
     command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users \
     in the Redis configuration.",
);

/// The ACL file.
pub(super) fn path(server: &Server) -> Result<PathBuf> {
    let settings = server.config.settings();
    // As in Redis, which works in that directory.
    settings.aclfile.as_ref().map(|path| settings.dir.join(path)).ok_or(NO_FILE)
}

fn rules_of(server: &Server) -> Rules<'_> {
    Rules { table: server.table, all_channels: server.config.settings().acl_pubsub_default }
}

/// The users of an ACL file, the default one among them.
pub(super) fn read(server: &Server, path: &Path) -> Result<Vec<User>> {
    let shown = path.display().to_string();
    let text = std::fs::read(path).map_err(|error| {
        let why = io_text(&error);
        Error::Text(format!("ERR Error loading ACLs, opening file '{shown}': {why}").into())
    })?;
    let mut users = BTreeMap::<Vec<u8>, User>::new();
    let mut mistakes = Vec::new();
    for (number, line) in text.split(|&c| c == b'\n').enumerate() {
        meter::step_through(line.len())?;
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let place = format!("{shown}:{}", number + 1);
        read_line(server, line, &place, number + 1, &mut users, &mut mistakes)?;
    }
    if !mistakes.is_empty() {
        let end = b"WARNING: ACL errors detected, no change to the previously active ACL rules was performed";
        return Err(Error::Quoted([b"ERR ", &mistakes[..], end].concat().into()));
    }
    users.entry(DEFAULT.to_vec()).or_insert_with(|| User::new_default(server.table));
    Ok(users.into_values().collect())
}

fn read_line(
    server: &Server,
    line: &[u8],
    place: &str,
    number: usize,
    users: &mut BTreeMap<Vec<u8>, User>,
    mistakes: &mut Vec<u8>,
) -> Result {
    let mut words = line.split(|&c| c == b' ');
    let (Some(b"user"), Some(name)) = (words.next(), words.next()) else {
        let text = format!("{place} should start with user keyword followed by the username. ");
        mistakes.extend_from_slice(text.as_bytes());
        return Ok(());
    };
    if !is_name(name) {
        let text = [b"'", place.as_bytes(), b": username '", name, b"' contains invalid characters. "];
        mistakes.extend_from_slice(&text.concat());
        return Ok(());
    }
    if users.contains_key(name) {
        mistakes.extend_from_slice(&[b"WARNING: Duplicate user '", name].concat());
        mistakes.extend_from_slice(format!("' found on line {number}. ").as_bytes());
        return Ok(());
    }
    let rules = rules_of(server);
    let mut user = User::new(server.table, name, rules.all_channels);
    match merge(words) {
        Err(_) => {
            mistakes.extend_from_slice(format!("{place}: Unmatched parenthesis in selector definition.").as_bytes())
        }
        Ok(given) => {
            let mut is_told = false;
            for rule in given {
                match rules.apply(&mut user, rule.trim_ascii())? {
                    Ok(()) => {}
                    Err(refused @ Refused::Unknown) => {
                        let before = [place.as_bytes(), b": Error in applying operation '", &rule].concat();
                        mistakes.extend_from_slice(&before);
                        mistakes.extend_from_slice(format!("': {}. ", refused.text()).as_bytes());
                    }
                    Err(_) if is_told => {}
                    Err(refused) => {
                        is_told = true;
                        mistakes.extend_from_slice(format!("{place}: {}. ", refused.text()).as_bytes());
                    }
                }
            }
        }
    }
    users.insert(name.to_vec(), user);
    Ok(())
}

/// Writes all users into an ACL file: the old one stays, or the new one is whole.
pub(super) fn write(server: &Server, path: &Path) -> Result {
    let mut text = Vec::new();
    for user in server.acl.users().values() {
        let line = user.line();
        meter::step_through(line.len())?;
        meter::hold(line.len())?;
        text.extend_from_slice(&line);
        text.push(b'\n');
    }
    replace(path, &text).map_err(|error| {
        tracing::warn!(path = %path.display(), %error, "cannot save users");
        Error::err("ERR There was an error trying to save the ACLs. Please check the server logs for more information")
    })
}

/// Puts the users in force that the configuration declares, or those of the ACL file.
///
/// # Errors
/// If there are both, or a mistake; its text is for the operator.
pub fn load_at_start(server: &Server) -> Result<(), String> {
    let lines = server.config.user_lines();
    if let Ok(path) = path(server) {
        if !lines.is_empty() {
            return Err(
                "users are declared in the configuration, and in an ACL file as well: one of them must go".into()
            );
        }
        let users = read(server, &path).map_err(|error| {
            let text = error.text();
            format!("the ACL file cannot be used: {}", text.strip_prefix("ERR ").unwrap_or(&text))
        })?;
        server.acl.replace(users);
        return Ok(());
    }
    for line in lines {
        declare(server, line).map_err(|why| {
            let why = format!("Error in user declaration '{}': {why}", String::from_utf8_lossy(&line.name)).into();
            LoadError::Line { place: line.place.clone(), text: line.shown(), why }.to_string()
        })?;
    }
    Ok(())
}

fn declare(server: &Server, line: &UserLine) -> Result<(), &'static str> {
    if !is_name(&line.name) {
        return Err("Spaces not allowed in ACL usernames");
    }
    let rules = rules_of(server);
    let old = server.acl.user(&line.name);
    let mut user = User::new(server.table, &line.name, rules.all_channels);
    user.id = old.as_ref().map_or(user.id, |old| old.id);
    for rule in merge(line.rules.iter().map(Vec::as_slice)).map_err(|_| "Wrong format")? {
        let applied = rules.apply(&mut user, &rule).map_err(|_| "it takes too much")?;
        applied.map_err(Refused::text)?;
    }
    server.acl.put(old.as_ref(), user);
    Ok(())
}

/// The lines by which the configuration is to declare the users as they are. The default one stands there only if it is another
/// than `requirepass` alone makes it. Other than in an ACL file, a word stands in quotes there if it has characters of its own meaning.
pub fn lines(server: &Server) -> Vec<Vec<u8>> {
    let mut plain = User::new_default(server.table);
    plain.set_password(&server.config.settings().requirepass.0);
    let plain = plain.line();
    let quoted = |line: Vec<u8>| line.split(|&byte| byte == b' ').map(as_word).collect::<Vec<_>>().join(&b' ');
    server.acl.users().values().map(|user| user.line()).filter(|line| *line != plain).map(quoted).collect()
}
