//! The command line of `tarn`.
//!
//! `tarn [CONFIG] [--directive value …] [-]` runs the server; any directive of [`crate::config`] may be given, in
//! redis-server's manner:
//!
//! | given | means |
//! |---|---|
//! | `--name a b` | the line `name a b` |
//! | `"--name a b"` | the same, with the words split as in a file |
//! | `--name --x` | the first word after a bare name is always its value |
//! | `--save --x …`, `--save` at the end | the line `save ""` |
//!
//! What has a place of Redis's defaults, and is outdone by file and command line:
//!
//! | from | holds |
//! |---|---|
//! | the name that the program is called by, if it is that of another server | `bind * -::*`, `dir .` |
//! | `TARN_DEFAULTS` in the environment | directives as on the command line, in one text |
//!
//! `tarn check [--repair] DIR` and other words look at a data directory, or tell something, instead. Clap knows these and `--help`;
//! the directives are one list to it, as they come from the table of [`crate::config`], not from here. `-v` or `--version`
//! alone are answered in redis-server's form.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::command;
use crate::config::{Config, Line, LoadError, Source, template};
use crate::handler::Table;
use crate::migrate::export::Export;
use crate::migrate::import::Import;
use crate::offline::remote::{BackupTask, RemoteServer};
use crate::rdb::file::writer::For;

/// The version in the form of redis-server's, which tools take apart.
const VERSION: &str =
    concat!("Tarn server v=", env!("CARGO_PKG_VERSION"), " sha=00000000:0 malloc=libc bits=64 build=0");

/// What the binary is asked to do.
pub enum Invocation {
    /// Run the server with these commands.
    Serve(Config, Box<Table>),
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
    /// Rewrite a data directory without what is dead in it.
    Compact {
        /// The data directory.
        dir: PathBuf,
    },
    /// Give a data directory another number of shards.
    Reshard {
        /// The data directory.
        dir: PathBuf,
        /// The number.
        shards: u16,
    },
    /// Ask a server about backups.
    Backup {
        /// The server.
        server: RemoteServer,
        /// What is asked.
        ask: BackupTask,
    },
    /// Make a data directory of a backup.
    Restore {
        /// Name or folder.
        backup: PathBuf,
        /// Folder of names.
        backup_dir: Option<PathBuf>,
        /// The data directory.
        dir: PathBuf,
    },
}

/// Why there is nothing to do: an answer that was asked for, or an error.
#[derive(Debug)]
pub enum Stop {
    /// Help, or misuse.
    Usage(clap::Error),
    /// The version was asked for.
    Version,
    /// What was asked for is this text.
    Text(Vec<u8>),
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
            Stop::Text(text) => {
                let _ = std::io::stdout().write_all(text);
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
    override_usage = "tarn [CONFIG] [--DIRECTIVE VALUE...]... [-]\n       tarn COMMAND ...\n       tarn -v",
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,

    /// A file in redis.conf's form, then directives, as --port 7000 --appendfsync always, then - for more of the file on
    /// standard input. Every directive of the file may be given; the command line wins.
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
    /// Make, list and remove backups of a running server, in its `backup-dir`.
    Backup {
        #[command(flatten)]
        server: RemoteServer,
        #[command(subcommand)]
        ask: BackupTask,
    },
    /// Rewrite a data directory that no server has open, without what is dead in it.
    Compact {
        /// The data directory.
        dir: PathBuf,
    },
    /// Divide the keys of a data directory that no server has open among another number of shards. The old directory stays beside
    /// it, as DIR.before-reshard.
    Reshard {
        /// The data directory.
        dir: PathBuf,
        /// A power of two up to 1024; four for each core is what a new directory gets.
        #[arg(long, value_name = "N")]
        shards: u16,
    },
    /// Make a data directory of a backup, for a server to be started on.
    Restore {
        /// The backup's folder, or its name in --backup-dir.
        #[arg(value_name = "NAME | DIR")]
        backup: PathBuf,
        /// Where the names are looked for.
        #[arg(long)]
        backup_dir: Option<PathBuf>,
        /// The data directory that is made; it must not exist, or be empty.
        #[arg(long, value_name = "DATA")]
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
    /// Print what makes a shell complete this program's command line.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, for man(1).
    Manual,
}

/// The end of the help.
const EXAMPLES: &str = "\
Examples:
  tarn                                        serve 127.0.0.1:6379, with data in ./data
  tarn /etc/tarn/tarn.conf                    serve as the file says
  tarn --port 7000 --dir /srv/a --maxmemory 4gb --appendfsync always
  redis-cli -p 7000 PING                      any client of Redis talks to it
  tarn check /srv/a                           is the data sound? (while no server has it open)
  tarn import dump.rdb --dir /srv/b           data of a Redis or Valkey

Data is kept in 'dir' at all times: there is nothing to save and nothing to load. SIGTERM ends the server in good order.
TARN_DEFAULTS in the environment holds directives for where neither file nor command line say something.
";

/// The help for who wants all of it.
fn whole_help() -> clap::Command {
    let list = template::help_list();
    let after = format!("{EXAMPLES}\nDirectives that have an effect (tarn -h leaves them out):\n\n{list}");
    Cli::command().after_long_help(after)
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
    let args: Vec<OsString> = args.into_iter().collect();
    if matches!(&args[..], [_, only] if only == "-v" || only == "--version") {
        return Err(Stop::Version);
    }
    let presets = presets(args.first(), std::env::var_os("TARN_DEFAULTS"));
    let matches = whole_help().try_get_matches_from(args).map_err(Stop::Usage)?;
    let cli = Cli::from_arg_matches(&matches).map_err(Stop::Usage)?;
    match cli.task {
        Some(Task::Check { repair, dir }) => Ok(Invocation::Check { dir, repair }),
        Some(Task::Compact { dir }) => Ok(Invocation::Compact { dir }),
        Some(Task::Reshard { dir, shards }) => {
            // A server would refuse them, too.
            Config::load(Source::Defaults, &[line("shards", shards.to_string())])?;
            Ok(Invocation::Reshard { dir, shards })
        }
        Some(Task::Backup { server, ask }) => Ok(Invocation::Backup { server, ask }),
        Some(Task::Restore { backup, backup_dir, dir }) => Ok(Invocation::Restore { backup, backup_dir, dir }),
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
        Some(Task::Completions { shell }) => Err(Stop::Text(completions(shell))),
        Some(Task::Manual) => manual().map(|text| Err(Stop::Text(text))).unwrap_or_else(|why| Err(Stop::Usage(why))),
        None => {
            let (source, overrides) = read_args(cli.args.into_iter().map(OsString::into_vec).collect())?;
            let config = Config::load_over(&presets, source, &overrides)?;
            let table = command::renamed(config.renames())?;
            Ok(Invocation::Serve(config, Box::new(table)))
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tarn", &mut text);
    text
}

fn manual() -> Result<Vec<u8>, clap::Error> {
    let mut text = Vec::new();
    clap_mangen::Man::new(whole_help()).render(&mut text)?;
    Ok(text)
}

/// Lines that take the place of defaults: see this module's head.
fn presets(program: Option<&OsString>, environment: Option<OsString>) -> Vec<Line> {
    const OTHERS: [&str; 2] = ["redis-server", "valkey-server"];
    let name = program.and_then(|program| Path::new(program).file_name());
    let called_so = name.is_some_and(|name| OTHERS.iter().any(|other| name == *other));
    let of_redis = called_so.then(|| lines(&[b"--bind * -::*".into(), b"--dir .".into()]));
    let text = environment.map(OsString::into_vec).unwrap_or_default();
    let words = crate::util::words::split(&text).unwrap_or_else(|| vec![text]);
    of_redis.into_iter().flatten().chain(lines(&words)).collect()
}

/// Where the file's directives come from, and the lines that the rest of the command line stands for.
fn read_args(mut args: Vec<Vec<u8>>) -> Result<(Source, Vec<Line>), LoadError> {
    let is_file = args.first().is_some_and(|first| !first.starts_with(b"-"));
    let file = is_file.then(|| PathBuf::from(OsString::from_vec(args.remove(0))));
    // Redis takes it as the first of all or as the last.
    let before = args.len();
    if file.is_none() && args.first().is_some_and(|first| first == b"-") {
        args.remove(0);
    }
    if args.last().is_some_and(|last| last == b"-") {
        args.pop();
    }
    let stdin = if args.len() < before { Some(read_stdin()?) } else { None };
    let source = match (file, stdin) {
        (None, None) => Source::Defaults,
        (Some(file), None) => Source::File(file),
        (None, Some(text)) => Source::Stdin(text),
        (Some(file), Some(text)) => Source::FileAndStdin(file, text),
    };
    Ok((source, lines(&args)))
}

/// Groups `args` into lines as the table in this module's head says.
fn lines(args: &[Vec<u8>]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
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
            Ok(Invocation::Serve(config, _)) => config,
            _ => panic!("{args:?}"),
        }
    }

    fn shown(config: &Config, name: &str) -> String {
        String::from_utf8(config.get(&[name]).remove(0).1).unwrap()
    }

    fn refused(args: &[&str]) -> String {
        match run(args) {
            Err(Stop::Config(error)) => error.to_string(),
            _ => panic!("{args:?}"),
        }
    }

    fn usage(args: &[&str]) -> clap::Error {
        match run(args) {
            Err(Stop::Usage(usage)) => usage,
            _ => panic!("{args:?}"),
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
        let folder = crate::util::scratch::tempdir().unwrap();
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
            (&["-port", "3"], "-port \"3\"", "Bad directive or wrong number of arguments; is 'port' meant?"),
            (&["--port", "1", "--help"], "help", "Bad directive or wrong number of arguments"),
        ] {
            let text = refused(args);
            assert!(text.ends_with(&format!(">>> '{line}'\n{why}")), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_renamed_is_told_of_its_line() {
        let Ok(Invocation::Serve(_, table)) = run(&["--rename-command", "get", "GEtX", "--rename-command", "SET", ""])
        else {
            panic!("refused");
        };
        assert_eq!(table.find(b"getx").unwrap().1.name, "get");
        assert!(table.find(b"get").is_none() && table.find(b"set").is_none());
        assert!(!table.rows().iter().any(|row| row.name == "set"));
        for (line, why) in [
            (["no-such", "x"], "No such command in rename-command"),
            (["get", "set"], "Target command name already exists"),
            (["config|get", "x"], "No such command in rename-command"),
        ] {
            let text = refused(&["--rename-command", line[0], line[1]]);
            assert!(text.ends_with(why), "{text}");
        }
    }

    #[test]
    fn the_name_and_the_environment_have_defaults_of_their_own() {
        let get = |program: &str, environment: &str, text: &str| {
            let presets = presets(Some(&program.into()), Some(environment.into()));
            let config = Config::load_over(&presets, Source::Stdin(text.into()), &[]).unwrap();
            [shown(&config, "bind"), shown(&config, "dir"), shown(&config, "save")]
        };
        let here = std::env::current_dir().unwrap().to_str().unwrap().to_owned();
        assert_eq!(get("/usr/bin/tarn", "", "")[..2], ["127.0.0.1 -::1".to_owned(), format!("{here}/data")]);
        for name in ["redis-server", "/usr/local/bin/valkey-server"] {
            assert_eq!(get(name, "", "")[..2], ["* -::*".to_owned(), here.clone()]);
            assert_eq!(get(name, "", "bind ::1")[0], "::1");
        }
        let given = "--dir /data --bind 10.0.0.1 --save 1 1";
        assert_eq!(get("tarn", given, ""), ["10.0.0.1", "/data", "1 1"]);
        assert_eq!(get("redis-server", given, "bind ::1\nsave 2 2"), ["::1", "/data", "2 2"]);
        let refused = Config::load_over(&presets(None, Some("--prot 1".into())), Source::Defaults, &[]).unwrap_err();
        assert!(refused.to_string().contains("from TARN_DEFAULTS\n>>> 'prot \"1\"'"), "{refused}");
    }

    #[test]
    fn what_a_package_needs_is_made_from_the_command_line() {
        let text = |args: &[&str]| match run(args) {
            Err(Stop::Text(text)) => String::from_utf8(text).unwrap(),
            _ => panic!("{args:?}"),
        };
        for shell in ["bash", "zsh", "fish"] {
            let text = text(&["completions", shell]);
            assert!(text.contains("check") && text.contains("repair"), "{text}");
        }
        let manual = text(&["manual"]);
        assert!(manual.starts_with(".ie") && manual.contains("appendfsync") && manual.contains("tarn check /srv/a"));
    }

    #[test]
    fn check_takes_a_directory() {
        match run(&["check", "--repair", "x"]) {
            Ok(Invocation::Check { dir, repair }) => assert_eq!((dir, repair), (PathBuf::from("x"), true)),
            _ => panic!("something else"),
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
        assert!(help.contains("--appendfsync [default: everysec]") && help.contains("tarn check /srv/a"), "{help}");
        assert!(!usage(&["-h"]).to_string().contains("--appendfsync ["));
    }
}
