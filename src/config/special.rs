//! Directives whose values are more than a number, a size or a name: each function checks the words and answers the
//! form in which they are read back. Texts equal Redis's, except where Tarn refuses what it does not do.

use super::value::{Reason, Words, bounded, bytes, integer, name};
use crate::util::num::parse_double;

type Checked = Result<Vec<u8>, Reason>;

const I32_MAX: i64 = i32::MAX as i64;

/// Any text.
pub(super) fn text(arg: &[u8]) -> Checked {
    Ok(arg.to_vec())
}

/// `bind`: the addresses, separated by blanks; none at all is allowed where a unix socket serves.
pub(super) fn bind(words: &Words<'_>) -> Checked {
    let given: Vec<_> = words.args.iter().filter(|word| !word.is_empty()).map(Vec::as_slice).collect();
    if given.len() > 16 { Err("Too many bind addresses specified.".into()) } else { Ok(given.join(&b' ')) }
}

/// `metrics-hosts`: names, separated by blanks.
pub(super) fn host_names(words: &Words<'_>) -> Checked {
    let given: Vec<_> = words.args.iter().filter(|word| !word.is_empty()).map(Vec::as_slice).collect();
    match given.iter().all(|name| name.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))) {
        true => Ok(given.join(&b' ')),
        false => Err("names of hosts have letters, digits, dots and hyphens".into()),
    }
}

/// `dir`: made absolute, so that it names the same place whatever the working directory.
pub(super) fn data_dir(arg: &[u8]) -> Checked {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let path = std::path::absolute(std::ffi::OsStr::from_bytes(arg)).map_err(|_| "No such file or directory")?;
    Ok(path.into_os_string().into_vec())
}

/// `backup-dir`: empty, or made absolute as well.
pub(super) fn backup_dir(arg: &[u8]) -> Checked {
    if arg.is_empty() { text(arg) } else { data_dir(arg) }
}

/// `shards`: 0 or a power of two up to 1024.
pub(super) fn power_of_two(arg: &[u8]) -> Checked {
    let shards = bounded(integer(arg)?, 0, 1024, false)?;
    if shards & (shards - 1).max(0) == 0 { text(arg) } else { Err("argument must be 0 or a power of two".into()) }
}

/// `cluster-enabled`.
pub(super) fn cluster_enabled(arg: &[u8]) -> Checked {
    no_or(arg, "cluster mode is not supported yet")
}

/// `tls-cluster`, `tls-replication`.
pub(super) fn tls_of_links_off(arg: &[u8]) -> Checked {
    no_or(arg, "replication and cluster mode are not supported yet")
}

fn no_or(arg: &[u8], why: &'static str) -> Checked {
    match arg.to_ascii_lowercase().as_slice() {
        b"no" => Ok(b"no".to_vec()),
        b"yes" => Err(why.into()),
        _ => Err("argument must be 'yes' or 'no'".into()),
    }
}

/// `replicaof`: `no one`, or nothing.
pub(super) fn no_replication(words: &Words<'_>) -> Checked {
    match words.args {
        [] => Ok(Vec::new()),
        [no, one] if no.eq_ignore_ascii_case(b"no") && one.eq_ignore_ascii_case(b"one") => Ok(Vec::new()),
        [_, port] => match integer(port) {
            Ok(1..=65535) => Err("replication is not supported yet".into()),
            _ => Err("Invalid master port".into()),
        },
        _ => Err("wrong number of arguments".into()),
    }
}

/// `client-output-buffer-limit`: groups of class, hard limit, soft limit and seconds; classes left out stay.
pub(super) fn output_limits(words: &Words<'_>) -> Checked {
    const CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];
    const FAULTY: &str = "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
    let (groups, []) = words.args.as_chunks::<4>() else {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    };
    let mut limits = read_limits(words.current);
    for [class, numbers @ ..] in groups {
        let class = class.to_ascii_lowercase();
        let class = if class == b"replica" { b"slave" } else { class.as_slice() };
        let Some(at) = CLASSES.iter().position(|known| known.as_bytes() == class) else {
            return Err("Invalid client class specified in buffer limit configuration.".into());
        };
        let [hard, soft, seconds] = numbers;
        let numbers = [bytes(hard), bytes(soft), integer(seconds)].map(|n| n.ok().filter(|n| *n >= 0));
        let [Some(hard), Some(soft), Some(seconds)] = numbers else { return Err(FAULTY.into()) };
        limits[at] = [hard, soft, seconds];
    }
    let shown =
        CLASSES.iter().zip(limits).map(|(class, [hard, soft, seconds])| format!("{class} {hard} {soft} {seconds}"));
    Ok(shown.collect::<Vec<_>>().join(" ").into())
}

/// The limits, as hard, soft and seconds of `normal`, `slave`, `pubsub`, in a text that [`output_limits`] made.
pub(super) fn read_limits(text: &[u8]) -> [[i64; 3]; 3] {
    let mut limits = [[0; 3]; 3];
    let words = text.split(|&c| c == b' ').filter_map(|word| integer(word).ok());
    for (slot, number) in limits.iter_mut().flatten().zip(words) {
        *slot = number;
    }
    limits
}

/// `save`: pairs of seconds and changes. Lines of a file add up; a lone empty text clears.
pub(super) fn save_points(words: &Words<'_>) -> Checked {
    const INVALID: &str = "Invalid save parameters";
    let (pairs, []) = words.args.as_chunks::<2>() else { return Err(INVALID.into()) };
    let mut points = Vec::new();
    if words.again && !pairs.is_empty() && !words.current.is_empty() {
        points.push(String::from_utf8_lossy(words.current).into_owned());
    }
    for [seconds, changes] in pairs {
        match (integer(seconds), integer(changes)) {
            (Ok(seconds @ 1..), Ok(changes @ 0..)) => points.push(format!("{seconds} {changes}")),
            _ => return Err(INVALID.into()),
        }
    }
    Ok(points.join(" ").into())
}

/// `oom-score-adj`: Redis takes `relative` for `yes`.
pub(super) fn oom_mode(arg: &[u8]) -> Checked {
    let mode = name(arg, &["no", "yes", "relative", "absolute"])?;
    text(if mode == "relative" { b"yes" } else { mode.as_bytes() })
}

/// `oom-score-adj-values`: three numbers.
pub(super) fn oom_scores(words: &Words<'_>) -> Checked {
    if words.args.len() != 3 {
        return Err("wrong number of arguments".into());
    }
    if words.args.iter().any(|arg| !matches!(integer(arg), Ok(-2000..=2000))) {
        return Err("Invalid oom-score-adj-values, elements must be between -2000 and 2000.".into());
    }
    Ok(words.args.join(&b' '))
}

/// `latency-tracking-info-percentiles`: numbers from 0 to 100, shown with up to six decimals.
pub(super) fn percentiles(words: &Words<'_>) -> Checked {
    let mut shown = Vec::new();
    for arg in words.args {
        let Some(number) = parse_double(arg) else {
            return Err("Invalid latency-tracking-info-percentiles parameters".into());
        };
        if !(0.0..=100.0).contains(&number) {
            return Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".into());
        }
        shown.push(format!("{number:.6}").trim_end_matches('0').trim_end_matches('.').to_owned());
    }
    Ok(shown.join(" ").into())
}

/// `shutdown-on-sigint` and `shutdown-on-sigterm`: a set of names, shown in Redis's order.
pub(super) fn shutdown_flags(words: &Words<'_>) -> Checked {
    const FLAGS: &[&str] = &["default", "save", "nosave", "now", "force"];
    let mut given = words.args.iter().map(|arg| name(arg, FLAGS)).collect::<Result<Vec<_>, _>>()?;
    if given.is_empty() {
        name(b"", FLAGS)?;
    }
    if given.contains(&"save") && given.contains(&"nosave") {
        return Err("shutdown options SAVE and NOSAVE can't be used simultaneously".into());
    }
    given.retain(|flag| *flag != "default");
    if given.is_empty() {
        return text(b"default");
    }
    Ok(FLAGS.iter().copied().filter(|flag| given.contains(flag)).collect::<Vec<_>>().join(" ").into())
}

/// `hz`: Redis takes any number and brings it between 1 and 500.
pub(super) fn clamped_hz(arg: &[u8]) -> Checked {
    Ok(bounded(integer(arg)?, 0, I32_MAX, false)?.clamp(1, 500).to_string().into())
}

/// `proc-title-template`: text with `{variables}`; `{{` is a brace.
pub(super) fn title_template(arg: &[u8]) -> Checked {
    const VARIABLES: [&[u8]; 7] =
        [b"title", b"listen-addr", b"server-mode", b"port", b"tls-port", b"unixsocket", b"config-file"];
    let invalid = || Reason::from("template format is invalid or contains unknown variables");
    let mut rest = arg;
    while let Some(open) = rest.iter().position(|&c| c == b'{') {
        rest = &rest[open + 1..];
        if let Some(after) = rest.strip_prefix(b"{") {
            rest = after;
            continue;
        }
        let close = rest.iter().position(|&c| c == b'}').ok_or_else(invalid)?;
        if !VARIABLES.contains(&&rest[..close]) {
            return Err(invalid());
        }
        rest = &rest[close + 1..];
    }
    if arg.is_empty() { Err(invalid()) } else { text(arg) }
}

/// `cluster-announce-hostname`.
pub(super) fn hostname(arg: &[u8]) -> Checked {
    if arg.len() >= 256 {
        return Err("Hostnames must be less than 256 characters".into());
    }
    if arg.iter().all(|&c| c.is_ascii_alphanumeric() || c == b'-' || c == b'.') {
        text(arg)
    } else {
        Err("Hostnames may only contain alphanumeric characters, hyphens or dots".into())
    }
}

/// `dbfilename`.
pub(super) fn db_filename(arg: &[u8]) -> Checked {
    if arg.contains(&b'/') { Err("dbfilename can't be a path, just a filename".into()) } else { text(arg) }
}

/// `appendfilename`.
pub(super) fn append_filename(arg: &[u8]) -> Checked {
    match arg {
        [] => Err("appendfilename can't be empty".into()),
        _ if arg.contains(&b'/') => Err("appendfilename can't be a path, just a filename".into()),
        _ => text(arg),
    }
}

/// `appenddirname`.
pub(super) fn append_dirname(arg: &[u8]) -> Checked {
    match arg {
        [] => Err("appenddirname can't be empty".into()),
        _ if arg.contains(&b'/') => Err("appenddirname can't be a path, just a dirname".into()),
        _ => text(arg),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn words<'a>(args: &'a [Vec<u8>], current: &'a str, again: bool) -> Words<'a> {
        Words { args, current: current.as_bytes(), again }
    }

    fn shown(read: fn(&Words<'_>) -> Checked, args: &str, current: &str, again: bool) -> Result<String, String> {
        let args: Vec<Vec<u8>> = args.split_whitespace().map(Into::into).collect();
        let read = read(&words(&args, current, again)).map_err(|why| why.to_string())?;
        Ok(String::from_utf8(read).unwrap())
    }

    #[test]
    fn save_lines_add_up() {
        assert_eq!(shown(save_points, "60 5", "1 2", false), Ok("60 5".into()));
        assert_eq!(shown(save_points, "60 5", "1 2", true), Ok("1 2 60 5".into()));
        assert_eq!(shown(save_points, "60 5", "", true), Ok("60 5".into()));
        assert_eq!(shown(save_points, "", "1 2", true), Ok(String::new()));
    }

    #[test]
    fn limits_keep_what_is_not_named() {
        let both = shown(output_limits, "pubsub 1 2 3 replica 1kb 5 6", "normal 7 8 9 slave 0 0 0 pubsub 0 0 0", false);
        assert_eq!(both, Ok("normal 7 8 9 slave 1024 5 6 pubsub 1 2 3".into()));
        assert_eq!(read_limits(b"normal 7 8 9 slave 4 5 6 pubsub 1 2 3"), [[7, 8, 9], [4, 5, 6], [1, 2, 3]]);
    }

    #[test]
    fn shards_are_a_power_of_two() {
        for good in ["0", "1", "2", "64", "1024"] {
            assert_eq!(power_of_two(good.as_bytes()).unwrap(), good.as_bytes());
        }
        assert_eq!(power_of_two(b"48").unwrap_err(), "argument must be 0 or a power of two");
        assert_eq!(power_of_two(b"2048").unwrap_err(), "argument must be between 0 and 1024 inclusive");
    }

    #[test]
    fn what_is_not_built_is_refused() {
        let why = "replication and cluster mode are not supported yet";
        assert_eq!(tls_of_links_off(b"yes").unwrap_err(), why);
        assert_eq!(tls_of_links_off(b"no").unwrap(), b"no");
        assert_eq!(cluster_enabled(b"YES").unwrap_err(), "cluster mode is not supported yet");
        assert_eq!(cluster_enabled(b"No").unwrap(), b"no");
        assert_eq!(cluster_enabled(b"x").unwrap_err(), "argument must be 'yes' or 'no'");
        assert_eq!(shown(no_replication, "no one", "", false), Ok(String::new()));
        assert_eq!(shown(no_replication, "a 6379", "", false).unwrap_err(), "replication is not supported yet");
        assert_eq!(shown(no_replication, "a b", "", false).unwrap_err(), "Invalid master port");
        assert_eq!(shown(no_replication, "a", "", false).unwrap_err(), "wrong number of arguments");
    }

    #[test]
    fn bind_takes_up_to_sixteen() {
        assert_eq!(shown(bind, "* -::*", "", false), Ok("* -::*".into()));
        assert_eq!(shown(bind, &"a ".repeat(17), "", false).unwrap_err(), "Too many bind addresses specified.");
    }

    #[test]
    fn dir_turns_absolute() {
        assert_eq!(data_dir(b"/x/y").unwrap(), b"/x/y");
        assert!(data_dir(b"data").unwrap().starts_with(b"/"));
        assert_eq!(data_dir(b"").unwrap_err(), "No such file or directory");
    }
}
