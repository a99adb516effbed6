//! What a package is made of: the unit, the files that the binary makes, the ways in which an image calls it.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::resp::Client;
use common::server::{Kind, free_port, notice};
use common::wait::until;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tarn() -> PathBuf {
    Kind::Tarn.binary().expect("cargo builds tarn before its tests")
}

/// `None` where this machine does not have the program.
fn run(command: &mut Command) -> Option<Output> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(error) => {
            notice(&format!("skipped: {:?} does not run on this machine: {error}", command.get_program()));
            None
        }
    }
}

#[test]
fn the_unit_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(root().join("packaging/tarn.service")).unwrap();
    assert!(unit.contains("Type=notify") && unit.contains("NoNewPrivileges=yes"));
    // Programs that it names must be there.
    let unit = unit.replace("/usr/bin/tarn", tarn().to_str().unwrap()).replace("User=tarn\nGroup=tarn\n", "");
    let path = dir.path().join("tarn.service");
    std::fs::write(&path, unit).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let Some(output) = run(verify.args(["verify", "--man=no"]).arg(&path)) else { return };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.lines().any(|line| line.contains("tarn.service")), "{said}");
}

#[test]
fn the_binary_makes_its_manual_and_completions() {
    let dir = tempfile::tempdir().unwrap();
    let mut make = Command::new("bash");
    let Some(made) = run(make.arg(root().join("packaging/package-files")).arg(tarn()).arg(dir.path())) else { return };
    assert!(made.status.success(), "{made:?}");
    for (shell, check) in [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")] {
        let file = dir.path().join(format!("tarn.{shell}"));
        assert!(std::fs::read_to_string(&file).unwrap().contains("tarn"));
        if let Some(output) = run(Command::new(check).arg("-n").arg(&file)) {
            assert!(output.status.success(), "{shell}: {output:?}");
        }
    }
    let mut man = Command::new("man");
    let man = man.args(["--warnings", "-E", "UTF-8", "-l"]).arg(dir.path().join("tarn.1.gz")).env("MANWIDTH", "100");
    let Some(page) = run(man) else { return };
    let text = String::from_utf8_lossy(&page.stdout).into_owned();
    // Cut down images of Debian have a `man` that only says so.
    if !text.contains("minimized") {
        assert!(page.status.success() && page.stderr.is_empty(), "{page:?}");
        for what in ["SYNOPSIS", "tarn check", "--appendfsync", "TARN_DEFAULTS"] {
            assert!(text.contains(what), "{what}: {text}");
        }
    }
}

/// As compose files and units call it: by a link of the other's name.
#[test]
fn called_as_redis_server_it_has_redis_defaults() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bind, data, more) in [
        ("redis-server", "* -::*", ".", ""),
        ("valkey-server", "127.0.0.2", "of-image", "--bind 127.0.0.2 --dir of-image"),
    ] {
        let link = dir.path().join(name);
        symlink(tarn(), &link).unwrap();
        let (port, host) = (free_port(), if more.is_empty() { "127.0.0.1" } else { "127.0.0.2" });
        let mut command = Command::new(&link);
        command.args(["--port", &port.to_string(), "--save", "60", "1"]).current_dir(dir.path());
        command.env("TARN_DEFAULTS", more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        until("it answers", || std::net::TcpStream::connect((host, port)).is_ok());
        if more.is_empty() {
            let mut client = Client::connect(port).unwrap();
            assert_eq!(client.call("CONFIG GET bind").items()[1].text(), bind);
        }
        until("it has data there", || dir.path().join(data).join("SUPERBLOCK").exists());
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn what_is_no_command_is_the_servers() {
    let entry = root().join("packaging/entrypoint.sh");
    let dir = tempfile::tempdir().unwrap();
    for name in ["tarn", "redis-server", "redis-cli"] {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\necho {name} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap_or_default());
    for (args, runs) in [
        (&[][..], "tarn"),
        (&["--appendfsync", "always"], "tarn --appendfsync always"),
        (&["/etc/tarn.conf", "--port", "1"], "tarn /etc/tarn.conf --port 1"),
        (&["redis-server", "--save", ""], "redis-server --save "),
        (&["redis-cli", "ping"], "redis-cli ping"),
    ] {
        let output = Command::new("sh").arg(&entry).args(args).env("PATH", &path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{runs}\n"), "{args:?}");
    }
}

/// Every file that the Debian package takes from the repository, and those that `package-files` makes.
#[test]
fn the_debian_package_names_files_that_exist() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let assets = manifest.split("\nassets = [").nth(1).unwrap().split("\n]").next().unwrap();
    let sources: Vec<&str> =
        assets.lines().filter_map(|line| line.trim().strip_prefix("[\"")?.split('"').next()).collect();
    assert!(sources.len() > 8, "{sources:?}");
    let makes = std::fs::read_to_string(root().join("packaging/package-files")).unwrap();
    for source in sources {
        let found = match source.strip_prefix("target/package/") {
            Some("tarn.1.gz") => makes.contains("tarn.1.gz"),
            Some(file) => makes.contains(file.rsplit('.').next().unwrap()),
            None if source == "target/release/tarn" => true,
            None => root().join(source.trim_end_matches("*.md")).exists(),
        };
        assert!(found, "{source}");
    }
}

/// Scripts are read by their shell, not run.
#[test]
fn scripts_are_scripts() {
    for (shell, script) in [
        ("bash", "packaging/static"),
        ("bash", "packaging/package-files"),
        ("bash", "packaging/check-image"),
        ("sh", "packaging/entrypoint.sh"),
        ("sh", "packaging/deb/postinst"),
        ("bash", ".ci/run"),
    ] {
        let output = Command::new(shell).arg("-n").arg(root().join(script)).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }
}
