//! What a path names: dump.rdb, an AOF, a manifest with the files that it lists, or a folder with a manifest.
//!
//! A manifest (Redis 7.0 and later) has a line for each file: `file NAME seq N type T`, T being `b` for the base, `i` for what
//! came after it, in order, and `h` for what is of no use any more.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::util::words;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// dump.rdb; commands may follow.
    Rdb,
    /// Commands.
    Aof,
}

/// A file to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    /// It may end within a command, as the last one does when a server ends in the middle of its write.
    pub(super) may_be_cut: bool,
    /// It goes on where the one before has ended: with its clock and its database.
    pub(super) goes_on: bool,
}

/// The files that these paths name, in order.
pub(super) fn all(paths: &[PathBuf]) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    for path in paths {
        if path.is_dir() {
            parts.extend(of_manifest(&manifest_in(path)?)?);
        } else if path.extension().is_some_and(|end| end == "manifest") {
            parts.extend(of_manifest(path)?);
        } else {
            let part = part(path)?;
            // Only a server that has just begun an AOF leaves an empty file, and no dump.rdb was ever one.
            if part.bytes == 0 && path.extension().is_none_or(|end| end != "aof") {
                return Err(Failure(format!("{} is empty", path.display())));
            }
            parts.push(part);
        }
    }
    Ok(parts)
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| Failure(format!("cannot read {path}: {error}"))
}

fn part(path: &Path) -> Result<Part, Failure> {
    // Before it is opened: who opens a pipe waits for somebody to write. It could not be read twice, either, nor is its length known.
    if !path.metadata().map_err(io(path))?.is_file() {
        let path = path.display();
        return Err(Failure(format!("{path} is no regular file: reading from a pipe or a device is not supported")));
    }
    let mut file = File::open(path).map_err(io(path))?;
    let mut head = Vec::new();
    file.by_ref().take(6).read_to_end(&mut head).map_err(io(path))?;
    let is_rdb = head.starts_with(b"REDIS") || head.starts_with(b"VALKEY");
    if !is_rdb && !matches!(head.first(), None | Some(b'*' | b'#')) {
        return Err(Failure(format!("{} is neither an RDB nor an AOF file", path.display())));
    }
    let bytes = file.metadata().map_err(io(path))?.len();
    let kind = if is_rdb { Kind::Rdb } else { Kind::Aof };
    Ok(Part { path: path.to_owned(), kind, bytes, may_be_cut: true, goes_on: false })
}

/// The manifest in a folder.
fn manifest_in(folder: &Path) -> Result<PathBuf, Failure> {
    let mut found = Vec::new();
    for entry in folder.read_dir().map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        if path.extension().is_some_and(|end| end == "manifest") {
            found.push(path);
        }
    }
    match (found.pop(), found.pop()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Failure(format!("{} holds no manifest of an AOF", folder.display()))),
        _ => Err(Failure(format!("{} holds several manifests: name one of them", folder.display()))),
    }
}

fn of_manifest(path: &Path) -> Result<Vec<Part>, Failure> {
    let text = std::fs::read(path).map_err(io(path))?;
    let folder = crate::util::path::folder_of(path);
    let mut found = Vec::new();
    for (at, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let wrong = || Failure(format!("{}: line {at} is no line of a manifest", path.display()));
        let words = words::split(line).ok_or_else(wrong)?;
        let value = |name: &[u8]| words.chunks_exact(2).find(|two| two[0] == name).map(|two| &two[1][..]);
        let (Some(name), Some(seq), Some(kind)) = (value(b"file"), value(b"seq"), value(b"type")) else {
            return Err(wrong());
        };
        let seq = crate::util::num::parse_i64(seq).ok_or_else(wrong)?;
        let order = match kind {
            b"b" => (0, 0),
            b"i" => (1, seq),
            b"h" => continue,
            _ => return Err(wrong()),
        };
        if name.contains(&b'/') {
            return Err(wrong());
        }
        let name = String::from_utf8_lossy(name).into_owned();
        found.push((order, Part { may_be_cut: false, ..part(&folder.join(name))? }));
    }
    found.sort_by_key(|(order, _)| *order);
    let mut parts: Vec<Part> = found.into_iter().map(|(_, part)| part).collect();
    parts.iter_mut().skip(1).for_each(|part| part.goes_on = true);
    match parts.last_mut() {
        Some(last) => last.may_be_cut = true,
        None => return Err(Failure(format!("{} lists no file", path.display()))),
    }
    Ok(parts)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_what_its_manifest_lists() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let file = |name: &str, text: &[u8]| std::fs::write(dir.path().join(name), text).unwrap();
        file("a.1.base.rdb", b"REDIS0011");
        file("a.1.incr.aof", b"*1\r\n");
        file("a.2.incr.aof", b"");
        file("a.9.incr.aof", b"#TS:1\r\n");
        // After the second, not after the first.
        file("a.10.incr.aof", b"*1\r\n");
        file(
            "a.manifest",
            b"file a.10.incr.aof seq 10 type i\nfile a.2.incr.aof seq 2 type i\nfile a.9.incr.aof seq 9 type h\nfile \"a.1.base.rdb\" seq 1 type b\n\
              # a comment\nfile a.1.incr.aof seq 1 type i startoffset 5\n",
        );
        let parts = all(&[dir.path().to_owned()]).unwrap();
        let seen: Vec<_> = parts
            .iter()
            .map(|p| (p.path.file_name().unwrap().to_str().unwrap(), p.kind, p.may_be_cut, p.goes_on))
            .collect();
        let expected = [
            ("a.1.base.rdb", Kind::Rdb, false, false),
            ("a.1.incr.aof", Kind::Aof, false, true),
            ("a.2.incr.aof", Kind::Aof, false, true),
            ("a.10.incr.aof", Kind::Aof, true, true),
        ];
        assert_eq!(seen, expected);
        assert_eq!(all(&[dir.path().join("a.manifest")]).unwrap(), parts);
        file("b.manifest", b"file ../x seq 1 type b\n");
        assert!(all(&[dir.path().to_owned()]).is_err(), "two manifests");
        assert!(all(&[dir.path().join("b.manifest")]).unwrap_err().0.contains("line 1"));
        file("text", b"hello");
        assert!(all(&[dir.path().join("text")]).is_err());
        assert_eq!(all(&[dir.path().join("a.2.incr.aof")]).unwrap().len(), 1, "an AOF that has just begun");
        file("dump.rdb", b"");
        assert!(all(&[dir.path().join("dump.rdb")]).unwrap_err().0.ends_with("dump.rdb is empty"));
    }

    /// It cannot be read twice, nor told how long it is; whoever opens one waits for somebody to write.
    #[test]
    fn a_pipe_or_a_device_is_refused() {
        let dir = crate::util::scratch::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // It is never opened for want of a writer: an attempt finds what is no file of Redis.
        let mut writer = File::options().read(true).write(true).open(&pipe).unwrap();
        std::io::Write::write_all(&mut writer, b"hello!").unwrap();
        let listed = dir.path().join("a.manifest");
        std::fs::write(&listed, "file pipe seq 1 type b\n").unwrap();
        for path in [&pipe, &listed, Path::new("/dev/null")] {
            let why = all(&[path.to_owned()]).unwrap_err().0;
            assert!(why.ends_with("is no regular file: reading from a pipe or a device is not supported"), "{why}");
        }
    }
}
