//! Reads directives at start: a file in redis.conf's form, the files it includes, standard input, the command line.
//!
//! A line is empty, a comment (`#` first), or a directive and its words (see [`crate::util::words`]). Later lines win; the command
//! line comes last. `include` takes a path, relative to the working directory, whose parts may be globs; matches
//! are read in the order of their names, and none is no error. Names are taken in any case. Nothing is expanded: as in Redis
//! `$NAME` is no variable.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::store::Values;
use super::table;
use super::value::Reason;
use crate::util::glob::matches;
use crate::util::words::{is_space, quote, split};

/// Files that include each other in a circle end here.
const MAX_INCLUDE_DEPTH: usize = 16;

/// The words of a line, the directive's name first.
pub type Line = Vec<Vec<u8>>;

/// Where the directives come from, before those of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// From nowhere: the defaults hold.
    Defaults,
    /// From a file.
    File(PathBuf),
    /// From the text that was read from standard input.
    Stdin(Vec<u8>),
    /// From a file, then from the text that was read from standard input.
    FileAndStdin(PathBuf, Vec<u8>),
}

/// Why the directives cannot be read. Its text is what the operator sees on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// A file cannot be opened or read.
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// A line is refused.
    Line {
        /// Where it stands.
        place: Place,
        /// The line, without the blanks around it.
        text: String,
        /// What is wrong with it.
        why: Reason,
    },
}

/// A `rename-command`. Whether there is such a command is judged by who knows commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The command's name.
    pub from: Vec<u8>,
    /// The name it is called by instead; empty for none.
    pub to: Vec<u8>,
    place: Place,
    text: String,
}

impl Rename {
    /// The error if it cannot be done.
    pub fn refused(&self, why: &'static str) -> LoadError {
        LoadError::Line { place: self.place.clone(), text: self.text.clone(), why: why.into() }
    }
}

/// Where a line stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file, at a line that counts from 1.
    File(PathBuf, usize),
    /// In standard input, likewise.
    Stdin(usize),
    /// On the command line.
    CommandLine,
    /// In `TARN_DEFAULTS`.
    Environment,
}

impl Place {
    /// The file.
    pub fn file(&self) -> Option<&Path> {
        if let Place::File(path, _) = self { Some(path) } else { None }
    }
}

/// A line `user <name> <rule>…`. Its rules are read by who knows the commands.
#[derive(Clone)]
pub struct UserLine {
    /// Where it stands.
    pub place: Place,
    /// The user.
    pub name: Vec<u8>,
    /// The rules, among them passwords.
    pub rules: Vec<Vec<u8>>,
}

impl UserLine {
    /// The line without its rules.
    pub fn shown(&self) -> String {
        format!("user {} …", String::from_utf8_lossy(&self.name))
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Open { path, why } => {
                write!(f, "Fatal error, can't open config file '{}': {why}", path.display())
            }
            LoadError::Line { place, text, why } => {
                writeln!(f, "\n*** FATAL CONFIG FILE ERROR (Tarn {}) ***", env!("CARGO_PKG_VERSION"))?;
                match place {
                    Place::File(path, line) => {
                        writeln!(f, "Reading the configuration file {}, at line {line}", path.display())?;
                    }
                    Place::Stdin(line) => writeln!(f, "Reading the configuration from standard input, at line {line}")?,
                    Place::CommandLine => writeln!(f, "Reading the configuration from the command line")?,
                    Place::Environment => writeln!(f, "Reading the configuration from TARN_DEFAULTS")?,
                }
                write!(f, ">>> '{text}'\n{why}")
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// The reason of an I/O error as C's `strerror` puts it.
pub fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// What [`load`] has read.
pub(super) struct Loaded {
    pub(super) values: Values,
    /// In their order.
    pub(super) renames: Vec<Rename>,
    /// Lines about users.
    pub(super) users: Vec<UserLine>,
    /// The file's absolute path.
    pub(super) file: Option<PathBuf>,
}

/// Reads `presets`, which take the place of defaults, `source`, then `overrides`; both are lines, each as its words.
pub(super) fn load(presets: &[Line], source: Source, overrides: &[Line]) -> Result<Loaded, LoadError> {
    let mut loader = Loader::new();
    loader.lines(presets, &Place::Environment)?;
    loader.seen.fill(false);
    let (file, stdin) = match source {
        Source::Defaults => (None, None),
        Source::File(path) => (Some(path), None),
        Source::Stdin(text) => (None, Some(text)),
        Source::FileAndStdin(path, text) => (Some(path), Some(text)),
    };
    let file = file.map(|path| std::path::absolute(&path).unwrap_or(path));
    if let Some(path) = &file {
        loader.file(path, 0)?;
    }
    if let Some(text) = stdin {
        loader.text(&text, None, 0)?;
    }
    loader.lines(overrides, &Place::CommandLine)?;
    Ok(Loaded { values: loader.values, renames: loader.renames, users: loader.users, file })
}

/// What `text`, as the contents of `file`, would give at start.
pub(super) fn values_of(text: &[u8], file: &Path) -> Result<(Values, Vec<UserLine>), LoadError> {
    let mut loader = Loader::new();
    loader.text(text, Some(file), 0)?;
    Ok((loader.values, loader.users))
}

struct Loader {
    values: Values,
    renames: Vec<Rename>,
    /// Directives that stood in what was read so far, by index.
    seen: Vec<bool>,
    users: Vec<UserLine>,
}

impl Loader {
    fn new() -> Self {
        Loader {
            values: Values::defaults(),
            renames: Vec::new(),
            seen: vec![false; table::all().count()],
            users: Vec::new(),
        }
    }

    fn file(&mut self, path: &Path, depth: usize) -> Result<(), LoadError> {
        match std::fs::read(path) {
            Ok(text) => self.text(&text, Some(path), depth),
            Err(why) => Err(LoadError::Open { path: path.to_owned(), why: io_text(&why) }),
        }
    }

    /// Reads `text`, the contents of `file` or else of standard input.
    fn text(&mut self, text: &[u8], file: Option<&Path>, depth: usize) -> Result<(), LoadError> {
        for (number, line) in text.split(|&c| c == b'\n').enumerate() {
            let line = trim(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let place = match file {
                Some(file) => Place::File(file.to_owned(), number + 1),
                None => Place::Stdin(number + 1),
            };
            let refused = |why: &'static str| LoadError::Line {
                place: place.clone(),
                text: String::from_utf8_lossy(line).into_owned(),
                why: why.into(),
            };
            let words = split(line).ok_or_else(|| refused("Unbalanced quotes in configuration line"))?;
            self.line(&words, &place, line, depth)?;
        }
        Ok(())
    }

    /// Reads lines that were given by their words.
    fn lines(&mut self, lines: &[Line], place: &Place) -> Result<(), LoadError> {
        for words in lines {
            let mut text = words.first().cloned().unwrap_or_default();
            for word in words.iter().skip(1) {
                text.push(b' ');
                text.extend(quote(word));
            }
            self.line(words, place, &text, 0)?;
        }
        Ok(())
    }

    /// Reads a line: its words, and it as it is shown. This many files are open that include each other.
    fn line(&mut self, words: &[Vec<u8>], place: &Place, text: &[u8], depth: usize) -> Result<(), LoadError> {
        let text = || String::from_utf8_lossy(text).into_owned();
        match words {
            [name, path] if name.eq_ignore_ascii_case(b"include") => {
                if depth == MAX_INCLUDE_DEPTH {
                    let why = "too many files include each other".into();
                    return Err(LoadError::Line { place: place.clone(), text: text(), why });
                }
                for path in included(Path::new(OsStr::from_bytes(path))) {
                    self.file(&path, depth + 1)?;
                }
                Ok(())
            }
            [name, from, to] if name.eq_ignore_ascii_case(b"rename-command") => {
                let (from, to) = (from.clone(), to.clone());
                self.renames.push(Rename { from, to, place: place.clone(), text: text() });
                Ok(())
            }
            // It may hold passwords.
            [name, user, ..] if name.eq_ignore_ascii_case(b"user") => {
                let text = format!("user {}", String::from_utf8_lossy(user));
                self.user(user, &words[2..], place).map_err(|why| LoadError::Line { place: place.clone(), text, why })
            }
            _ => self.words(words).map_err(|why| LoadError::Line { place: place.clone(), text: text(), why }),
        }
    }

    /// Reads a line about a user.
    fn user(&mut self, name: &[u8], rules: &[Vec<u8>], place: &Place) -> Result<(), Reason> {
        if self.users.iter().any(|user| user.name == name) {
            let name = String::from_utf8_lossy(name);
            let why = "Duplicate user found. A user can only be defined once in config files";
            return Err(format!("Error in user declaration '{name}': {why}").into());
        }
        self.users.push(UserLine { place: place.clone(), name: name.to_vec(), rules: rules.to_vec() });
        Ok(())
    }

    /// Reads the line of a directive with a value.
    fn words(&mut self, words: &[Vec<u8>]) -> Result<(), Reason> {
        let Some((name, args)) = words.split_first() else { return Ok(()) };
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        match name.as_str() {
            // Redis itself ignores these, left over from older versions.
            "io-threads-do-reads"
            | "list-max-ziplist-entries"
            | "list-max-ziplist-value"
            | "lua-replicate-commands" => Ok(()),
            "user" => Err("Bad directive or wrong number of arguments".into()),
            // To ignore these would leave open what they are meant to close.
            "loadmodule" => Err("modules are not supported".into()),
            name => {
                let Some((index, row)) = table::find(name) else { return Err(unknown(name)) };
                self.values.set(index, row, args, self.seen[index])?;
                self.seen[index] = true;
                Ok(())
            }
        }
    }
}

/// Names that a line may have beside those of the table.
const LINES: [&str; 2] = ["include", "rename-command"];

/// Why a line is refused whose name nobody knows: as Redis puts it, and the name that may have been meant.
fn unknown(name: &str) -> Reason {
    const BAD: &str = "Bad directive or wrong number of arguments";
    let names = table::all().flat_map(|row| [Some(row.name), row.alias]).flatten().chain(LINES);
    let nearest = names.map(|known| (strsim::osa_distance(name, known), known)).min();
    match nearest {
        Some((distance @ 1.., known)) if distance <= name.len() / 3 => format!("{BAD}; is '{known}' meant?").into(),
        _ => BAD.into(),
    }
}

fn trim(mut line: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = line {
        if !is_space(*first) {
            break;
        }
        line = rest;
    }
    while let [rest @ .., last] = line {
        if !is_space(*last) {
            break;
        }
        line = rest;
    }
    line
}

/// The files that an `include` names.
fn included(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    let mut any = false;
    for part in path.components() {
        let pattern = part.as_os_str().as_bytes();
        if !matches!(part, Component::Normal(_)) || !pattern.iter().any(|c| b"*?[".contains(c)) {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        any = true;
        found = found.iter().flat_map(|folder| matching(folder, pattern)).collect();
    }
    // Of what a glob found a part without one may be missing.
    found.retain(|path| !any || path.exists());
    found
}

/// What in `folder` the glob matches, in the order of names.
fn matching(folder: &Path, pattern: &[u8]) -> Vec<PathBuf> {
    let place = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    // As in a shell, a glob does not name hidden files unless it begins with a dot.
    names.retain(|name| {
        let name = name.as_bytes();
        matches(pattern, name) && name.starts_with(b".") == pattern.starts_with(b".")
    });
    names.sort_unstable();
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::Config;
    use super::*;

    fn stdin(text: &str) -> Result<Config, LoadError> {
        Config::load(Source::Stdin(text.into()), &[])
    }

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(Into::into).collect()
    }

    fn shown(config: &Config, name: &str) -> String {
        String::from_utf8(config.get(&[name]).remove(0).1).unwrap()
    }

    #[test]
    fn reads_lines_comments_quotes_and_aliases() {
        let config = stdin(
            "# port 1\n\n  PORT 7000 \r\nmaxmemory 64mb\nrequirepass \"a \\\"b\\x00\"\nslave-priority 7\nsave 10 1\n\
             save 20 2\nclient-output-buffer-limit pubsub 1 2 3\nbind 127.0.0.1   ::1",
        )
        .unwrap();
        assert_eq!(shown(&config, "port"), "7000");
        assert_eq!(shown(&config, "maxmemory"), "67108864");
        assert_eq!(shown(&config, "replica-priority"), "7");
        assert_eq!(shown(&config, "save"), "10 1 20 2");
        assert_eq!(shown(&config, "bind"), "127.0.0.1 ::1");
        assert!(shown(&config, "client-output-buffer-limit").ends_with("pubsub 1 2 3"));
        assert_eq!(config.settings().requirepass.0, b"a \"b\0");
        assert_eq!(config.file(), None);
    }

    #[test]
    fn the_command_line_comes_last_and_adds_to_save() {
        let overrides = [words("timeout 9"), words("save 5 6")];
        let config = Config::load(Source::Stdin("timeout 3\nsave 1 2".into()), &overrides).unwrap();
        assert_eq!(shown(&config, "timeout"), "9");
        assert_eq!(shown(&config, "save"), "1 2 5 6");
        let config = Config::load(Source::Stdin("save 1 2".into()), &[words("save ")]).unwrap();
        assert_eq!(shown(&config, "save"), "");
    }

    #[test]
    fn refusals_name_place_line_and_reason() {
        let head = format!("\n*** FATAL CONFIG FILE ERROR (Tarn {}) ***\n", env!("CARGO_PKG_VERSION"));
        for (text, line, shown, why) in [
            ("foo bar", 1, "foo bar", "Bad directive or wrong number of arguments"),
            ("\n# x\n  TimeOut x ", 3, "TimeOut x", "argument couldn't be parsed into an integer"),
            ("port 1 2", 1, "port 1 2", "wrong number of arguments"),
            ("port", 1, "port", "wrong number of arguments"),
            ("port \"1", 1, "port \"1", "Unbalanced quotes in configuration line"),
            ("save 1", 1, "save 1", "Invalid save parameters"),
            ("include", 1, "include", "Bad directive or wrong number of arguments"),
            ("tls-cluster yes", 1, "tls-cluster yes", "replication and cluster mode are not supported yet"),
            ("user", 1, "user", "Bad directive or wrong number of arguments"),
            (
                "user a on\nuser a >secret",
                2,
                "user a",
                "Error in user declaration 'a': Duplicate user found. A user can only be defined once in config files",
            ),
            ("maxmemroy 1gb", 1, "maxmemroy 1gb", "Bad directive or wrong number of arguments; is 'maxmemory' meant?"),
            ("bnid *", 1, "bnid *", "Bad directive or wrong number of arguments; is 'bind' meant?"),
            ("rename-command a", 1, "rename-command a", "Bad directive or wrong number of arguments"),
            ("port ${PORT}", 1, "port ${PORT}", "argument couldn't be parsed into an integer"),
        ] {
            let place = format!("Reading the configuration from standard input, at line {line}\n");
            assert_eq!(stdin(text).unwrap_err().to_string(), format!("{head}{place}>>> '{shown}'\n{why}"));
        }
        let error = Config::load(Source::Defaults, &[words("timeout x")]).unwrap_err();
        let place = "Reading the configuration from the command line\n";
        let why = "argument couldn't be parsed into an integer";
        assert_eq!(error.to_string(), format!("{head}{place}>>> 'timeout \"x\"'\n{why}"));
    }

    #[test]
    fn a_file_comes_before_standard_input() {
        let folder = crate::util::scratch::tempdir().unwrap();
        let file = folder.path().join("a.conf");
        std::fs::write(&file, "timeout 1\nhz 20\nrename-command get x").unwrap();
        let source = Source::FileAndStdin(file.clone(), b"timeout 2\nrename-command x \"\"".into());
        let config = Config::load(source, &[words("rename-command set y")]).unwrap();
        assert_eq!((shown(&config, "timeout"), shown(&config, "hz")), ("2".into(), "20".into()));
        assert_eq!(config.file(), Some(file.as_path()));
        let renames: Vec<_> = config.renames().iter().map(|rename| [&rename.from[..], &rename.to]).collect();
        assert_eq!(renames, [[&b"get"[..], b"x"], [b"x", b""], [b"set", b"y"]]);
        let text = config.renames()[1].refused("why").to_string();
        assert!(text.ends_with("from standard input, at line 2\n>>> 'rename-command x \"\"'\nwhy"), "{text}");
    }

    #[test]
    fn what_redis_ignores_is_ignored() {
        stdin("io-threads-do-reads yes\nlist-max-ziplist-entries 512").unwrap();
    }

    #[test]
    fn includes_with_globs() {
        let folder = crate::util::scratch::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("1.inc"), "timeout 1\nhz 20").unwrap();
        std::fs::write(at("2.inc"), "timeout 2").unwrap();
        std::fs::write(at(".3.inc"), "timeout 3").unwrap();
        std::fs::write(at("a.conf"), format!("include {}\nhz 30\n", at("*.inc").display())).unwrap();
        let config = Config::load(Source::File(at("a.conf")), &[]).unwrap();
        assert_eq!(shown(&config, "timeout"), "2");
        assert_eq!(shown(&config, "hz"), "30");
        assert_eq!(config.file(), Some(at("a.conf").as_path()));

        std::fs::write(at("2.inc"), "\ntimeout x").unwrap();
        let error = Config::load(Source::File(at("a.conf")), &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("{}, at line 2\n>>> 'timeout x'", at("2.inc").display())), "{error}");

        std::fs::write(at("b.conf"), format!("include {}\n", at("none.conf").display())).unwrap();
        let error = Config::load(Source::File(at("b.conf")), &[]).unwrap_err().to_string();
        let path = at("none.conf");
        let text = format!("Fatal error, can't open config file '{}': No such file or directory", path.display());
        assert_eq!(error, text);

        for name in ["x1", "x2"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("x2").join("d.conf"), "timeout 7").unwrap();
        std::fs::write(at("b.conf"), format!("include {}\n", at("x?").join("d.conf").display())).unwrap();
        let config = Config::load(Source::File(at("b.conf")), &[]).unwrap();
        assert_eq!(shown(&config, "timeout"), "7");

        std::fs::write(at("c.conf"), format!("include {}\n", at("c.conf").display())).unwrap();
        let error = Config::load(Source::File(at("c.conf")), &[]).unwrap_err().to_string();
        assert!(error.ends_with("too many files include each other"), "{error}");
    }
}
