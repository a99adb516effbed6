//! Users in files. What an ACL file's mistakes are called is proven by Redis 8.2.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::resp::Client;
use crate::common::server::{Kind, Server, free_port, notice};
use crate::common::wait::until;

/// A server with an ACL file that holds this.
fn with_file(kind: Kind, text: &str) -> Option<(Server, PathBuf)> {
    let path =
        std::env::temp_dir().join(format!("tarn-acl-{}-{:?}.acl", std::process::id(), std::thread::current().id()));
    std::fs::write(&path, text).unwrap();
    let server = Server::start(kind, &["--aclfile", path.to_str().unwrap()])?;
    Some((server, path))
}

fn list(client: &mut Client) -> Vec<String> {
    client.call("ACL LIST").items().iter().map(|line| line.text()).collect()
}

const BEGIN: &str = "user b on nopass ~* +@all\n";

const FILES: [&str; 22] = [
    "user a on\nfoo\n",
    "user a on\nuser a off\n",
    "user a +foo ~x foo bar +baz\nuser b +bar\n",
    "user\n",
    "user \n",
    "user \"a b\" on\n",
    "user a (~x +get\n",
    "user a on >x ~* & +@all\nuser c <zz",
    "User a on\n",
    "user a\ton\n",
    "user a on \"~x y\"\n",
    "user a on ~x (on) (~y foo)\nuser a on",
    "# comment\nuser a on\n",
    "",
    "\n\n  user a on  \r\n\r\n",
    "user a on ~x (~y +get) (~z)\n",
    "user a  on   ~x\n",
    "user default on nopass ~* +@all\n",
    "user default off\nuser default on nopass\n",
    "user default on nopass +@all ~*\nuser a on >p %R~x &c -@all +get +config|get (%W~y +set)\n",
    "user a on #zz\nuser b on ~* ~x\n",
    "user b on nopass ~* &* +@all\nuser c reset on\n",
];

#[test]
fn acl_files_are_read_as_by_redis() {
    let Some((redis, theirs)) = with_file(Kind::Redis82, BEGIN) else {
        notice("skipped: no redis 8.2 on this machine to compare with");
        return;
    };
    let (ours, path) = with_file(Kind::Tarn, BEGIN).unwrap();
    assert_eq!(theirs, path, "one file for both, as errors name it");
    let (mut ours, mut redis) = (ours.client(), redis.client());
    for text in FILES {
        std::fs::write(&path, text).unwrap();
        let before = list(&mut ours);
        let (a, b) = (ours.call("ACL LOAD"), redis.call("ACL LOAD"));
        assert_eq!(a, b, "{text:?}");
        let after = list(&mut ours);
        assert_eq!(after, list(&mut redis), "{text:?}");
        if a.is_error() {
            assert_eq!(after, before, "{text:?} was refused, and something changed");
        } else {
            assert_eq!(ours.call("ACL SAVE").text(), "OK");
            let written = std::fs::read(&path).unwrap();
            assert_eq!(redis.call("ACL SAVE").text(), "OK");
            assert_eq!(written, std::fs::read(&path).unwrap(), "{text:?}");
        }
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(ours.call("ACL LOAD"), redis.call("ACL LOAD"));
}

/// What cannot be read or written is told as by Redis, and nothing changes.
#[test]
fn an_acl_file_that_the_disk_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    let path = place.join("users.acl");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(&path, BEGIN).unwrap();
    let start = |kind| Server::start(kind, &["--aclfile", path.to_str().unwrap()]);
    let Some(redis) = start(Kind::Redis82) else {
        notice("skipped: no redis 8.2 on this machine to compare with");
        return;
    };
    let ours = start(Kind::Tarn).unwrap();
    let (mut ours, mut redis) = (ours.client(), redis.client());
    let mut same = |what: &str| {
        let before = list(&mut ours);
        for command in ["ACL SAVE", "ACL LOAD"] {
            let (a, b) = (ours.call(command), redis.call(command));
            assert!(a == b && a.is_error(), "{what}, {command}: {a:?}, Redis says {b:?}");
        }
        assert_eq!(list(&mut ours), before, "{what}");
    };
    std::fs::remove_dir_all(&place).unwrap();
    same("its folder is gone");
    std::fs::write(&place, b"").unwrap();
    same("its folder is a file");
    std::fs::remove_file(&place).unwrap();
    std::fs::create_dir_all(&path).unwrap();
    assert_eq!(ours.call("ACL SAVE"), redis.call("ACL SAVE"), "it is a folder");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn load_cuts_who_is_gone_or_hears_too_much_and_nobody_else() {
    let all = "user b on nopass ~* &* +@all\nuser c on nopass ~* &* +@all\nuser d on nopass ~* &* +@all\n";
    let (server, path) = with_file(Kind::Tarn, all).unwrap();
    let mut admin = server.client();
    let [mut b, mut c, mut d, mut deaf] = ["b", "c", "d", "c"].map(|name| {
        let mut client = server.client();
        assert_eq!(client.call(&format!("AUTH {name} x")).text(), "OK");
        client
    });
    c.call("SUBSCRIBE x");
    d.call("SUBSCRIBE x");
    std::fs::write(&path, "user c on nopass ~k &y +@all\nuser d on nopass ~* &x* +@all\n").unwrap();
    assert_eq!(admin.call("ACL LOAD").text(), "OK");
    assert!(b.try_call(&["PING"]).is_err(), "it is nobody any more");
    assert!(c.try_call(&["PING"]).is_err(), "it may not hear x");
    assert_eq!(d.call("PING").items()[0].text(), "pong");
    assert_eq!(deaf.call("ACL WHOAMI").text(), "c");
    assert!(deaf.call("GET z").text().starts_with("NOPERM"), "it is judged by its new rules");
    assert_eq!(admin.call("PING").text(), "PONG");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_bad_acl_file_keeps_the_server_from_starting() {
    for text in ["user a on\nfoo\n", "user a +nothing\n"] {
        let path = std::env::temp_dir().join(format!("tarn-acl-bad-{}.acl", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let mut server = Server::prepare(Kind::Tarn, &["--aclfile", path.to_str().unwrap()]).unwrap();
        server.spawn();
        until("it ends", || server.exited().is_some());
        assert!(!server.exited().unwrap().success());
        assert!(server.output().contains("no change to the previously active ACL rules"), "{}", server.output());
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn users_survive_a_restart_in_the_acl_file() {
    let (mut server, path) = with_file(Kind::Tarn, "").unwrap();
    let mut admin = server.client();
    assert_eq!(admin.call("ACL SETUSER z on >secret ~k* -@all +get (+set ~w)").text(), "OK");
    assert_eq!(admin.call("ACL SAVE").text(), "OK");
    let before = list(&mut admin);
    server.restart();
    let mut client = server.client();
    assert_eq!(list(&mut client), before);
    assert_eq!(client.call("AUTH z secret").text(), "OK");
    assert!(client.call("GET x").text().starts_with("NOPERM"));
    std::fs::remove_file(path).unwrap();
}

/// A server that is started with a configuration file.
struct Configured {
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Configured {
    fn new(text: &str) -> Configured {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tarn.conf"), text).unwrap();
        Configured { folder, port: free_port(), child: None }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("tarn.conf")).unwrap()
    }

    fn start(&mut self) {
        let output = std::fs::File::create(self.folder.path().join("output")).unwrap();
        let mut command = Command::new(Kind::Tarn.binary().unwrap());
        command.arg("tarn.conf").args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir", "data"]);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.stdout(output.try_clone().unwrap()).stderr(output);
        self.child = Some(command.spawn().unwrap());
    }

    /// A connection that has authenticated, once the server serves.
    fn client(&self, password: &str) -> Client {
        let mut found = None;
        until("it serves", || {
            let Ok(mut client) = Client::connect(self.port) else { return false };
            let is_ready = client.try_call(&["AUTH", password]).is_ok_and(|reply| reply.text() == "OK")
                && client.try_call(&["DBSIZE"]).is_ok_and(|reply| !reply.is_error());
            found = Some(client);
            is_ready
        });
        found.unwrap()
    }

    /// Waits for it to end by itself: what it has said.
    fn end(&mut self) -> String {
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(!status.success());
        std::fs::read_to_string(self.folder.path().join("output")).unwrap()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn user_lines_are_read_and_written_back() {
    let text = "# first\nuser x on nopass ~* +@all\n# second\nrequirepass q\nuser y off\n";
    let mut server = Configured::new(text);
    server.start();
    let mut admin = server.client("q");
    assert_eq!(list(&mut admin).len(), 3);
    for call in ["ACL SETUSER z on >p ~k", "ACL DELUSER y", "ACL SETUSER x -@all"] {
        assert!(!admin.call(call).is_error(), "{call}");
    }
    assert_eq!(admin.call("CONFIG REWRITE").text(), "OK");
    let text = server.text();
    let users: Vec<_> = text.lines().filter(|line| line.starts_with("user ")).collect();
    let hash = "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940";
    let expected = [
        "user x on nopass sanitize-payload ~* resetchannels -@all".to_owned(),
        format!("user z on sanitize-payload #{hash} ~k resetchannels -@all"),
    ];
    assert_eq!(users, expected, "{text}");
    assert!(text.contains("# first\n") && text.contains("requirepass q\n"), "{text}");
    // The default user stands there once it is another than requirepass makes it.
    assert_eq!(admin.call("ACL SETUSER default -flushall").text(), "OK");
    assert_eq!(admin.call("CONFIG REWRITE").text(), "OK");
    let before = list(&mut admin);
    server.kill();
    assert!(server.text().contains("user default on sanitize-payload #"), "{}", server.text());
    server.start();
    assert_eq!(list(&mut server.client("q")), before);
}

/// A line of the configuration is read as words, which may stand in quotes.
#[test]
fn what_users_may_have_quotes_is_read_back_as_it_was() {
    let mut server = Configured::new("requirepass q\n");
    server.start();
    let mut admin = server.client("q");
    let rules: [&[u8]; 7] = [b"~\"a\"", b"~it's", b"~back\\x41", b"~open\"", b"&b\xff", b"&\"c", b"+get|\"x"];
    let name: &[u8] = b"\"who";
    let command: Vec<&[u8]> =
        [&b"ACL"[..], b"SETUSER", name, b"on", b"resetchannels"].into_iter().chain(rules).collect();
    assert_eq!(admin.try_call(&command).unwrap().text(), "OK");
    let before = list(&mut admin);
    assert_eq!(admin.call("CONFIG REWRITE").text(), "OK");
    server.kill();
    server.start();
    assert_eq!(list(&mut server.client("q")), before);
}

#[test]
fn users_of_an_included_file_are_not_written_into_another() {
    let mut server = Configured::new("include users.conf\nuser y off\n");
    std::fs::write(server.folder.path().join("users.conf"), "user x off\nuser default on nopass ~* &* +@all >q\n")
        .unwrap();
    server.start();
    let mut admin = server.client("q");
    let before = server.text();
    let reply = admin.call("CONFIG REWRITE").text();
    assert_eq!(reply, "ERR Rewriting config file: users are declared in an included file");
    assert_eq!(server.text(), before);
}

#[test]
fn bad_user_lines_are_told_without_their_passwords() {
    for (lines, why) in [
        ("user a on >hunter2 +nothing", "Error in user declaration 'a': Unknown command or category name in ACL"),
        ("user a on >hunter2\nuser a off", "Duplicate user found"),
        ("user a on >hunter2 foo", "Error in user declaration 'a': Syntax error"),
        ("user a (~x >hunter2", "Wrong format"),
        ("user \"a b\" >hunter2", "Spaces not allowed in ACL usernames"),
        ("aclfile /nowhere\nuser a on >hunter2", "one of them must go"),
        ("aclfile /nowhere", "opening file '/nowhere': No such file or directory"),
    ] {
        let mut server = Configured::new(lines);
        server.start();
        let output = server.end();
        assert!(output.contains(why) && !output.contains("hunter2"), "{lines}: {output}");
    }
}
