//! The command line of `tarn`.
//!
//! `tarn [CONFIG | -] [--directive value …]` runs the server; any directive of [`crate::config`] may be given, in
//! redis-server's manner:
//!
//! | given | means |
//! |---|---|
//! | `--name a b` | the line `name a b` |
//! | `"--name a b"` | the same, with the words split as in a file |
//! | `--name --x` | the first word after a bare name is always its value |
//! | `--save --x …`, `--save` at the end | the line `save ""` |
//!
//! `tarn check [--repair] DIR` looks at a data directory instead, `tarn import FILE…` makes one, `tarn export FILE` writes what one holds for Redis or Valkey. Clap knows these and `--help`; the directives
//! are one list to it, as they come from the table of [`crate::config`], not from here. `-v` or `--version` alone are
//! answered in redis-server's form.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{Config, LoadError, Source, template};
use crate::migrate::export::Export;
use crate::migrate::import::Import;
use crate::rdb::file::writer::For;

/// The version in the form of redis-server's, which tools take apart.
const VERSION: &str =
    concat!("Tarn server v=", env!("CARGO_PKG_VERSION"), " sha=00000000:0 malloc=libc bits=64 build=0");

/// What the binary is asked to do.
#[derive(Debug)]
pub enum Invocation {
    /// Run the server.
    Serve(Config),
    /// Look at a data directory that no server has open.
    Check {
        /// The data directory.
        dir: PathBuf,
        /// Also repair what can be.
        repair: bool,
    },
    /// Make a data directory of files of Redis or Valkey.
    Import(Import),
    /// Make a file for Redis or Valkey of a data directory.
    Export(Export),
}

/// Why there is nothing to do: an answer that was asked for, or an error.
#[derive(Debug)]
pub enum Stop {
    /// Help, or misuse.
    Usage(clap::Error),
    /// The version was asked for.
    Version,
    /// A directive, or the file that holds it, is refused.
    Config(LoadError),
}

impl Stop {
    /// Prints it to where it belongs; answers how to exit: 0 after what was asked for, 2 after misuse, otherwise 1.
    pub fn report(&self) -> ExitCode {
        match self {
            Stop::Usage(usage) => {
                // Nobody is left to be told of a closed pipe.
                let _ = usage.print();
                if usage.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
            }
            Stop::Version => {
                let _ = writeln!(std::io::stdout(), "{VERSION}");
                ExitCode::SUCCESS
            }
            Stop::Config(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }
    }
}

impl From<LoadError> for Stop {
    fn from(error: LoadError) -> Self {
        Stop::Config(error)
    }
}

/// A Redis-compatible server that keeps its data on disk.
#[derive(Debug, Parser)]
#[command(
    name = "tarn",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    override_usage = "tarn [CONFIG | -] [--DIRECTIVE VALUE...]...\n       tarn check [--repair] DIR\n       tarn import FILE... [--dir DIR]\n       tarn export FILE [--for SERVER] [--dir DIR]\n       tarn -v"
)]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,

    /// A file in redis.conf's form, or - for standard input; then directives, as --port 7000 --appendfsync always.
    /// Every directive of the file may be given; the command line wins.
    #[arg(value_name = "CONFIG | --DIRECTIVE VALUE")]
    #[arg(num_args = 0.., trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check a data directory that no server has open: the log's records, the store's checksums, whether any part is
    /// missing or from another time.
    Check {
        /// Cut the log before the first damaged record, and accept the loss of what is missing.
        #[arg(long)]
        repair: bool,
        /// The data directory.
        dir: PathBuf,
    },
    /// Make a data directory of what files of Redis or Valkey hold. It takes the place of what is there once all of it is on
    /// disk: whatever happens before leaves everything as it was.
    Import {
        /// dump.rdb, an AOF, its manifest, or the folder that holds that; read one after the other.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The data directory.
        #[arg(long, default_value = DEFAULT_DIR)]
        dir: PathBuf,
        /// Replace the data that the directory holds.
        #[arg(long)]
        replace: bool,
        /// Leave out keys whose values only a module can read.
        #[arg(long)]
        skip_modules: bool,
        /// Shards of the directory [default: as a server would].
        #[arg(long)]
        shards: Option<u16>,
        /// Databases that may be among what is imported.
        #[arg(long, default_value_t = 16)]
        databases: u32,
        /// Memory that the import may take, as 2gb [default: half of the machine's].
        #[arg(long)]
        maxmemory: Option<String>,
    },
    /// Write dump.rdb of a data directory that no server has open; what the servers it is for cannot have is named.
    Export {
        /// The file.
        file: PathBuf,
        /// Whose it is: redis-7.0, redis-8.2 or valkey-9.
        #[arg(long = "for", value_name = "SERVER", default_value = "redis-8.2", value_parser = target)]
        target: For,
        /// The data directory.
        #[arg(long, default_value = DEFAULT_DIR)]
        dir: PathBuf,
        /// Memory that the export may take, as 2gb [default: half of the machine's].
        #[arg(long)]
        maxmemory: Option<String>,
    },
}

/// The servers for which a file can be.
fn target(name: &str) -> Result<For, String> {
    let known = For::ALL.map(|(name, _)| name).join(", ");
    For::ALL.iter().find(|(known, _)| *known == name).map(|(_, target)| *target).ok_or(format!("known are {known}"))
}

/// Where a server keeps its data unless it is told otherwise.
const DEFAULT_DIR: &str = "data";

/// A directive, as the words of its line.
fn line(name: &str, value: String) -> Vec<Vec<u8>> {
    vec![name.as_bytes().to_vec(), value.into_bytes()]
}

/// Reads the command line, the program's name first, and with it the configuration.
///
/// # Errors
/// See [`Stop`].
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Stop> {
    let list = format!("Directives that have an effect (tarn -h leaves them out):\n\n{}", template::help_list());
    let args: Vec<OsString> = args.into_iter().collect();
    if matches!(&args[..], [_, only] if only == "-v" || only == "--version") {
        return Err(Stop::Version);
    }
    let matches = Cli::command().after_long_help(list).try_get_matches_from(args).map_err(Stop::Usage)?;
    let cli = Cli::from_arg_matches(&matches).map_err(Stop::Usage)?;
    match cli.task {
        Some(Task::Check { repair, dir }) => Ok(Invocation::Check { dir, repair }),
        Some(Task::Import { files, dir, replace, skip_modules, shards, databases, maxmemory }) => {
            let mut directives = vec![line("databases", databases.to_string())];
            directives.extend(shards.map(|shards| line("shards", shards.to_string())));
            directives.extend(maxmemory.map(|memory| line("maxmemory", memory)));
            Ok(Invocation::Import(Import { files, dir, replace, skip_modules, directives }))
        }
        Some(Task::Export { file, target, dir, maxmemory }) => {
            let directives = maxmemory.map(|memory| line("maxmemory", memory)).into_iter().collect();
            Ok(Invocation::Export(Export { file, target, dir, directives }))
        }
        None => {
            let (source, overrides) = read_args(cli.args.into_iter().map(OsString::into_vec).collect())?;
            Ok(Invocation::Serve(Config::load(source, &overrides)?))
        }
    }
}

type Lines = Vec<Vec<Vec<u8>>>;

/// Where the file's directives come from, and the lines that the rest of the command line stands for.
fn read_args(mut args: Vec<Vec<u8>>) -> Result<(Source, Lines), LoadError> {
    let source = match args.first() {
        Some(first) if first == b"-" => Source::Stdin(read_stdin()?),
        Some(first) if !first.starts_with(b"-") => Source::File(PathBuf::from(OsString::from_vec(first.clone()))),
        _ => Source::Defaults,
    };
    if source != Source::Defaults {
        args.remove(0);
    }
    Ok((source, lines(&args)))
}

/// Groups `args` into lines as the table in this module's head says.
fn lines(args: &[Vec<u8>]) -> Lines {
    let mut lines: Lines = Vec::new();
    // A bare name takes what follows as its value, whatever that looks like.
    let mut wants_value = false;
    for (at, arg) in args.iter().enumerate() {
        match arg.strip_prefix(b"--") {
            Some(name) if !wants_value => {
                let mut words = crate::util::words::split(name).unwrap_or_else(|| vec![name.to_vec()]);
                let next = args.get(at + 1);
                let bare = words.len() <= 1;
                if bare && arg.eq_ignore_ascii_case(b"--save") && next.is_none_or(|next| next.starts_with(b"--")) {
                    words.push(Vec::new());
                } else {
                    wants_value = bare;
                }
                lines.push(words);
            }
            _ => {
                wants_value = false;
                match lines.last_mut() {
                    Some(line) => line.push(arg.clone()),
                    None => lines.push(vec![arg.clone()]),
                }
            }
        }
    }
    lines
}

fn read_stdin() -> Result<Vec<u8>, LoadError> {
    let mut text = Vec::new();
    match std::io::stdin().read_to_end(&mut text) {
        Ok(_) => Ok(text),
        Err(why) => Err(LoadError::Open { path: "-".into(), why: why.to_string() }),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn run(args: &[&str]) -> Result<Invocation, Stop> {
        parse(std::iter::once("tarn").chain(args.iter().copied()).map(OsString::from))
    }

    fn serve(args: &[&str]) -> Config {
        match run(args) {
            Ok(Invocation::Serve(config)) => config,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    fn shown(config: &Config, name: &str) -> String {
        String::from_utf8(config.get(&[name]).remove(0).1).unwrap()
    }

    fn refused(args: &[&str]) -> String {
        match run(args) {
            Err(Stop::Config(error)) => error.to_string(),
            other => panic!("{args:?}: {other:?}"),
        }
    }

    fn usage(args: &[&str]) -> clap::Error {
        match run(args) {
            Err(Stop::Usage(usage)) => usage,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    #[test]
    fn directives_as_redis_server_takes_them() {
        assert_eq!(shown(&serve(&[]), "port"), "6379");
        let config = serve(&["--port", "7000", "--bind", "127.0.0.1", "::1", "--save", "", "--APPENDFSYNC", "always"]);
        assert_eq!(shown(&config, "port"), "7000");
        assert_eq!(shown(&config, "bind"), "127.0.0.1 ::1");
        assert_eq!(shown(&config, "save"), "");
        assert_eq!(shown(&config, "appendfsync"), "always");

        let config = serve(&["--save", "--timeout", "3"]);
        assert_eq!((shown(&config, "save"), shown(&config, "timeout")), (String::new(), "3".into()));
        assert_eq!(shown(&serve(&["--save"]), "save"), "");
        assert_eq!(shown(&serve(&["--save", "5", "6", "--save", "7 8"]), "save"), "5 6 7 8");
        assert_eq!(shown(&serve(&["--requirepass", "--hz"]), "requirepass"), "--hz");
        assert_eq!(shown(&serve(&["--requirepass", "a \"b"]), "requirepass"), "a \"b");
        assert_eq!(shown(&serve(&["--slowlog-log-slower-than", "-1"]), "slowlog-log-slower-than"), "-1");
        let config = serve(&["--port 7001", "--bind '::1'", "--requirepass \"a b\""]);
        assert_eq!(shown(&config, "port"), "7001");
        assert_eq!(shown(&config, "bind"), "::1");
        assert_eq!(shown(&config, "requirepass"), "a b");
    }

    #[test]
    fn a_file_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.conf");
        std::fs::write(&file, "port 7000\ntimeout 3\n").unwrap();
        let path = file.to_str().unwrap();
        let config = serve(&[path, "--port", "7001"]);
        assert_eq!((shown(&config, "port"), shown(&config, "timeout")), ("7001".into(), "3".into()));
        assert_eq!(config.file(), Some(file.as_path()));
        assert!(refused(&["no-such.conf"]).ends_with("no-such.conf': No such file or directory"));
    }

    #[test]
    fn refusals_quote_the_line() {
        for (args, line, why) in [
            (&["--timeout", "x"][..], "timeout \"x\"", "argument couldn't be parsed into an integer"),
            (&["--port"], "port", "wrong number of arguments"),
            (&["--port", "1", "bogus"], "port \"1\" \"bogus\"", "wrong number of arguments"),
            (&["--foo", "bar"], "foo \"bar\"", "Bad directive or wrong number of arguments"),
            (&["-port", "3"], "-port \"3\"", "Bad directive or wrong number of arguments"),
            (&["--port", "1", "--help"], "help", "Bad directive or wrong number of arguments"),
        ] {
            let text = refused(args);
            assert!(text.ends_with(&format!(">>> '{line}'\n{why}")), "{text}");
        }
    }

    #[test]
    fn check_takes_a_directory() {
        match run(&["check", "--repair", "x"]) {
            Ok(Invocation::Check { dir, repair }) => assert_eq!((dir, repair), (PathBuf::from("x"), true)),
            other => panic!("{other:?}"),
        }
        assert!(matches!(run(&["check", "x"]), Ok(Invocation::Check { repair: false, .. })));
        assert!(usage(&["check"]).use_stderr());
        assert!(usage(&["check", "x", "y"]).use_stderr());
    }

    #[test]
    fn help_and_version() {
        for name in ["-v", "--version"] {
            assert!(matches!(run(&[name]), Err(Stop::Version)));
        }
        let form = format!("Tarn server v={} sha=", env!("CARGO_PKG_VERSION"));
        assert!(VERSION.starts_with(&form) && VERSION.split(' ').count() == 7, "{VERSION}");
        let help = usage(&["--help"]).to_string();
        assert!(
            help.contains("--appendfsync [default: everysec]") && help.contains("tarn check [--repair] DIR"),
            "{help}"
        );
        assert!(!usage(&["-h"]).to_string().contains("--appendfsync ["));
    }
}
