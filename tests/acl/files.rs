//! Users in files. What an ACL file's mistakes are called is proven by Redis 8.2.

use std::path::PathBuf;

use crate::ask;
use crate::common::resp::Client;
use crate::common::server::{Kind, Server, notice};

/// A server with an ACL file that holds this.
fn with_file(kind: Kind, text: &str) -> Option<(Server, PathBuf)> {
    let path = std::env::temp_dir().join(format!("tarn-acl-{}-{:?}.acl", std::process::id(), std::thread::current().id()));
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
        crate::common::wait::until("it ends", || server.exited().is_some());
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

#[test]
fn user_lines_are_read_and_written_back() {
    let folder = std::env::temp_dir().join(format!("tarn-acl-conf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("tarn.conf");
    std::fs::write(&file, "# first\nuser x on nopass ~* +@all\n# second\nrequirepass q\nuser y off\n").unwrap();
    let mut server = Server::prepare(Kind::Tarn, &[file.to_str().unwrap()]).unwrap();
    server.spawn();
    let mut admin = None;
    crate::common::wait::until("it listens", || {
        admin = Client::connect(server.port()).ok();
        admin.is_some()
    });
    let mut admin = admin.unwrap();
    crate::common::wait::until("it serves", || ask(&mut admin, &["AUTH", "q"]).text() == "OK");
    assert_eq!(list(&mut admin).len(), 3);
    for call in ["ACL SETUSER z on >p ~k", "ACL DELUSER y", "ACL SETUSER x -@all"] {
        assert!(!admin.call(call).is_error(), "{call}");
    }
    assert_eq!(admin.call("CONFIG REWRITE").text(), "OK");
    let text = std::fs::read_to_string(&file).unwrap();
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
    server.stop();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("user default on sanitize-payload #"), "{text}");
    server.spawn();
    crate::common::wait::until("it listens", || Client::connect(server.port()).is_ok());
    let mut admin = Client::connect(server.port()).unwrap();
    crate::common::wait::until("it serves", || ask(&mut admin, &["AUTH", "q"]).text() == "OK");
    assert_eq!(list(&mut admin), before);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn bad_user_lines_are_told_without_their_passwords() {
    for (lines, why) in [
        ("user a on >hunter2 +nothing", "Error in user declaration 'a': Unknown command or category name in ACL"),
        ("user a on >hunter2\nuser a off", "Duplicate user found"),
        ("user a on >hunter2 foo", "Error in user declaration 'a': Syntax error"),
        ("user a (~x >hunter2", "Wrong format"),
        ("aclfile /nowhere\nuser a on >hunter2", "one of them must go"),
    ] {
        let file = std::env::temp_dir().join(format!("tarn-acl-bad-{}.conf", std::process::id()));
        std::fs::write(&file, lines).unwrap();
        let mut server = Server::prepare(Kind::Tarn, &[file.to_str().unwrap()]).unwrap();
        server.spawn();
        crate::common::wait::until("it ends", || server.exited().is_some());
        let output = server.output();
        assert!(!server.exited().unwrap().success());
        assert!(output.contains(why) && !output.contains("hunter2"), "{lines}: {output}");
        std::fs::remove_file(file).unwrap();
    }
}
