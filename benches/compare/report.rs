//! The report: all suites on one build, written to a file as a whole, and its short form between two marks of the README.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum as _;

use crate::server::{self, number_after};
use crate::table::{median, short};
use crate::{Options, Suite};

/// Where the report goes unless told otherwise; nothing else changes the README.
pub(crate) const PATH: &str = "docs/benchmarks.md";
const README: &str = "README.md";
const BEGIN: &str = "<!-- written by cargo bench --bench compare -- --report -->\n";
const END: &str = "<!-- until here -->\n";
/// Syncs of which the median tells what the disk is.
const SYNCS: usize = 50;

/// What a command prints, or a dash.
fn printed(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|| "–".to_owned())
}

fn proc(file: &str) -> String {
    fs::read_to_string(Path::new("/proc").join(file)).unwrap_or_default().trim().to_owned()
}

/// How long the disk takes for a write of 4 KB that is synced, ms.
fn sync_ms(folder: &Path) -> Result<f64, String> {
    use std::io::Write as _;
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut file = tempfile::tempfile_in(folder).map_err(failed)?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        let start = Instant::now();
        file.write_all(&[0; 4096]).and_then(|()| file.sync_data()).map_err(failed)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times))
}

/// What is measured, and on what: the lines at the head.
fn circumstances(options: &Options) -> Result<Vec<String>, String> {
    let servers: Vec<String> = server::rivals(options)?.into_iter().map(|program| program.name).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpuinfo = proc("cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = number_after(&proc("meminfo"), "MemTotal:") / f64::from(1 << 20);
    let folder = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let disk = printed("df", &["-h", "--output=source,fstype,size", &folder.display().to_string()]);
    let disk: Vec<&str> = disk.lines().last().unwrap_or_default().split_whitespace().collect();
    let load = proc("loadavg");
    let build = match &options.tarn {
        Some(path) => path.display().to_string(),
        None => {
            let commit = ["describe", "--always", "--dirty", "--exclude=*"];
            format!("{}, commit {}", env!("CARGO_PKG_VERSION"), printed("git", &commit))
        }
    };
    let args = if options.tarn_arg.is_empty() { String::new() } else { format!(", `{}`", options.tarn_arg.join(" ")) };
    Ok(vec![
        format!("Tarn {build}{args}"),
        format!("{}", humantime::format_rfc3339_seconds(SystemTime::now())),
        format!(
            "rivals: {}; {}",
            servers.join(", "),
            printed(&options.benchmark.display().to_string(), &["--version"])
        ),
        format!(
            "{cores} cores ({}), {memory:.0} GB of memory, shared by server and clients",
            model.map_or("–", |(_, name)| name)
        ),
        format!("Linux {}", proc("sys/kernel/osrelease")),
        format!("disk: {}, a synced write of 4 KB takes {} ms", disk.join(" "), short(sync_ms(&folder)?)),
        format!("load before the first run: {}", load.split(' ').take(3).collect::<Vec<_>>().join(" ")),
    ])
}

/// Puts the short form between the README's marks.
fn write_readme(lines: &str) -> Result<(), String> {
    let text = fs::read_to_string(README).map_err(|e| format!("{README}: {e}"))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{README} lacks the line {BEGIN}or, after it, {END}"))?;
    fs::write(README, format!("{before}{BEGIN}{lines}{END}{after}")).map_err(|e| format!("{README}: {e}"))
}

/// Runs all suites and writes what came out.
pub(crate) fn write(options: &Options, path: &PathBuf) -> Result<(), String> {
    let start = Instant::now();
    let mut command = vec!["cargo bench --bench compare --".to_owned()];
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        // Where the data lies is this machine's affair.
        match &arg[..] {
            "--dir" => _ = args.next(),
            _ if arg.starts_with("--dir=") => {}
            _ => command.push(arg),
        }
    }
    let circumstances = circumstances(options)?;
    let (mut body, mut told) = (String::new(), String::new());
    let suites = if options.suites.is_empty() { Suite::value_variants() } else { &options.suites };
    for suite in suites {
        let began = Instant::now();
        for section in suite.run(options)? {
            body.push_str(&format!("\n{}", section.render(true)));
            told.extend(section.short.map(|line| format!("- {line}\n")));
        }
        eprintln!("{suite:?}: {:.0?}", began.elapsed());
    }
    let took = humantime::format_duration(Duration::from_secs(start.elapsed().as_secs()));
    let trial = if options.quick { "A trial (`--quick`): runs too short for figures to be trusted.\n\n" } else { "" };
    let list: String = circumstances.iter().map(|line| format!("- {line}\n")).collect();
    let text = format!(
        "<!-- Written as a whole by `{}`; not to be edited. -->\n\n# Benchmarks\n\n{trial}One run of one build, which took {took}:\n\n{list}\n{told}{body}",
        command.join(" ")
    );
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    // What is kept there stands for a whole measurement.
    if path == Path::new(PATH) && !options.quick && options.suites.is_empty() {
        write_readme(&format!("{}:\n\n{told}", circumstances[..4].join("; ")))?;
    }
    eprintln!("{} written in {took}", path.display());
    Ok(())
}
