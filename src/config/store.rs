//! The directives of a running server: read as a whole, changed together, written back to their file.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::load::{self, Line, LoadError, Loaded, Rename, Source, UserLine};
use super::rewrite;
use super::settings::{Reader, Settings};
use super::table::{self, Change, Directive};
use super::value::{Reason, Value};
use crate::error::{Error, Result};
use crate::util::glob::matches_nocase;

/// A value for every directive, at the directive's index in the table.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Values(Vec<Value>);

impl Values {
    /// Every directive at its default.
    pub(super) fn defaults() -> Self {
        Values(table::all().map(Directive::default_value).collect())
    }

    pub(super) fn get(&self, index: usize) -> &Value {
        &self.0[index]
    }

    /// Reads `args` into directive `index`; `again` as in [`super::value::Words`].
    pub(super) fn set(&mut self, index: usize, row: &Directive, args: &[Vec<u8>], again: bool) -> Result<(), Reason> {
        self.0[index] = row.kind.parse(args, &self.0[index], again)?;
        Ok(())
    }

    pub(super) fn settings(&self) -> Settings {
        Reader(|name: &str| match table::find(name) {
            Some((index, _)) => self.get(index),
            None => panic!("no directive {name}"),
        })
        .settings()
    }
}

/// The directives of a server, shared by its threads.
pub struct Config {
    state: RwLock<State>,
    /// Held by who changes something, from reading the old values to publishing the new ones.
    changing: Mutex<()>,
    generation: AtomicU64,
    file: Option<PathBuf>,
    users: Vec<UserLine>,
    renames: Vec<Rename>,
}

struct State {
    values: Values,
    settings: Arc<Settings>,
}

/// Why the server cannot act upon a changed directive: its name and the reason.
pub type Refusal = (&'static str, Cow<'static, str>);

impl std::fmt::Debug for Config {
    /// Without the values, among which are passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Default for Config {
    /// Every directive at its default, without a file.
    fn default() -> Self {
        Config::new(Loaded { values: Values::defaults(), renames: Vec::new(), users: Vec::new(), file: None })
    }
}

impl Config {
    fn new(Loaded { values, renames, users, file }: Loaded) -> Self {
        let settings = Arc::new(values.settings());
        Config {
            state: RwLock::new(State { values, settings }),
            changing: Mutex::new(()),
            generation: AtomicU64::new(0),
            file,
            users,
            renames,
        }
    }

    /// Reads `source`, then `overrides`, each the words of a line, name first.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is refused; its text is for the operator.
    pub fn load(source: Source, overrides: &[Line]) -> Result<Self, LoadError> {
        Config::load_over(&[], source, overrides)
    }

    /// The same, with lines before all that take the place of defaults.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_over(presets: &[Line], source: Source, overrides: &[Line]) -> Result<Self, LoadError> {
        Ok(Config::new(load::load(presets, source, overrides)?))
    }

    /// The settings as they are now. They do not change under who holds them.
    pub fn settings(&self) -> Arc<Settings> {
        self.state.read().settings.clone()
    }

    /// Counts changes: who keeps what [`Config::settings`] gave reads it again when this number is another.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The file that was read at start, absolute.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The lines about users that were read at start.
    pub fn user_lines(&self) -> &[UserLine] {
        &self.users
    }

    /// The commands that are to have other names, in the order in which the lines were read.
    pub fn renames(&self) -> &[Rename] {
        &self.renames
    }

    /// `CONFIG GET`: name and value of every directive that one of the globs matches, in any case and each once.
    /// Where a directive has two names each is matched and shown on its own.
    pub fn get<P: AsRef<[u8]>>(&self, patterns: &[P]) -> Vec<(&'static str, Vec<u8>)> {
        let wanted = |name: &str| patterns.iter().any(|pattern| matches_nocase(pattern.as_ref(), name.as_bytes()));
        let state = self.state.read();
        let mut found = Vec::new();
        for (index, row) in table::all().enumerate() {
            for name in [Some(row.name), row.alias].into_iter().flatten().filter(|name| wanted(name)) {
                found.push((name, row.kind.show(state.values.get(index))));
            }
        }
        found
    }

    /// `CONFIG SET` where nothing must be done about it; see [`Config::set_with`].
    ///
    /// # Errors
    /// As [`Config::set_with`].
    pub fn set<N: AsRef<[u8]>, V: AsRef<[u8]>>(&self, pairs: &[(N, V)]) -> Result<Vec<&'static str>> {
        self.set_with(pairs, |_, _| Ok(()))
    }

    /// `CONFIG SET`: all pairs of name and value, or none. `apply` sees the settings to be and the names of the
    /// directives whose values change or are to be read again, and does what cannot be undone by reading the old settings again; if it
    /// refuses, nothing has changed. It must not call `set` itself. Answers the changed names.
    ///
    /// # Errors
    /// Redis's texts: an unknown directive, one that cannot change, one named twice, a value that is refused.
    pub fn set_with<N: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(N, V)],
        apply: impl FnOnce(&Settings, &[&'static str]) -> Result<(), Refusal>,
    ) -> Result<Vec<&'static str>> {
        let _changing = self.changing.lock();
        let rows = find_changeable(pairs)?;
        let old = self.state.read().values.clone();
        let mut new = old.clone();
        for ((name, arg), &(index, row)) in pairs.iter().zip(&rows) {
            let args = [arg.as_ref().to_vec()];
            new.set(index, row, &args, false).map_err(|why| refused(name.as_ref(), &why))?;
        }
        let mut changed: Vec<_> = rows
            .iter()
            .filter(|(at, row)| row.of_file || old.get(*at) != new.get(*at))
            .map(|(_, row)| row.name)
            .collect();
        changed.sort_unstable();
        changed.dedup();
        let settings = Arc::new(new.settings());
        apply(&settings, &changed).map_err(|(name, why)| refused(name.as_bytes(), &why))?;
        *self.state.write() = State { values: new, settings };
        self.generation.fetch_add(1, Ordering::Release);
        Ok(changed)
    }

    /// `CONFIG REWRITE`: brings the file that was read at start in line with the values as they are. Lines and
    /// comments that still hold stay as they are. Its lines about users become these.
    ///
    /// # Errors
    /// Without a file, or when it cannot be read or written; then it is as it was.
    pub fn rewrite(&self, users: &[Vec<u8>]) -> Result<()> {
        let Some(file) = &self.file else { return Err(Error::err("ERR The server is running without a config file")) };
        let _changing = self.changing.lock();
        let values = self.state.read().values.clone();
        rewrite::rewrite(file, &values, users)
            .map_err(|why| Error::Text(format!("ERR Rewriting config file: {}", load::io_text(&why)).into()))
    }
}

/// The directives that `pairs` name, with the first reason, in their order, why one cannot be set.
fn find_changeable<N: AsRef<[u8]>, V>(pairs: &[(N, V)]) -> Result<Vec<(usize, &'static Directive)>> {
    let mut rows = Vec::with_capacity(pairs.len());
    let mut names: Vec<String> = Vec::with_capacity(pairs.len());
    for (given, _) in pairs {
        let given = given.as_ref();
        let name = String::from_utf8_lossy(given).to_ascii_lowercase();
        let Some((index, row)) = table::find(&name) else {
            const UNKNOWN: &str = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(Error::quoting(UNKNOWN, given, usize::MAX, "'"));
        };
        match row.change {
            Change::Start => return Err(refused(given, "can't set immutable config")),
            Change::Protected => return Err(refused(given, "can't set protected config")),
            Change::Any if names.contains(&name) => return Err(refused(given, "duplicate parameter")),
            Change::Any => {}
        }
        names.push(name);
        rows.push((index, row));
    }
    Ok(rows)
}

/// Of a directive that there is: its name is plain text however it was given.
fn refused(name: &[u8], why: &str) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::Text(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into())
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
