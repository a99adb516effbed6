//! Who is who, what was not allowed, and that no password is shown.

use crate::common::server::Server;
use crate::{ask, set_user};

#[test]
fn clients_are_listed_and_killed_by_their_users() {
    let server = Server::tarn(&[]);
    let (mut admin, mut user, mut other) = (server.client(), server.client(), server.client());
    set_user(&mut admin, "u", "+@all ~* &*");
    set_user(&mut admin, "v", "+@all");
    user.call("AUTH u x");
    other.call("AUTH v x");
    let line = user.call("CLIENT INFO").text();
    assert!(line.contains(" user=u redir=-1 "), "{line}");
    let all = admin.call("CLIENT LIST").text();
    for name in ["default", "u", "v"] {
        assert_eq!(all.matches(&format!(" user={name} ")).count(), 1, "{all}");
    }
    assert_eq!(admin.call("CLIENT LIST USER u").text().lines().count(), 1);
    assert_eq!(admin.call("CLIENT KILL USER nobody").text(), "ERR No such user 'nobody'");
    assert_eq!(admin.call("CLIENT KILL USER u").int(), Some(1));
    assert!(user.try_call(&["PING"]).is_err());
    assert_eq!(other.call("ACL WHOAMI").text(), "v");
    // A user of the same name is another one.
    let mut late = server.client();
    set_user(&mut admin, "u", "+@all");
    late.call("AUTH u x");
    assert_eq!(admin.call("ACL DELUSER u").int(), Some(1));
    set_user(&mut admin, "u", "+@all ~* &*");
    assert!(late.try_call(&["PING"]).is_err());
}

#[test]
fn what_is_not_allowed_is_counted() {
    let server = Server::tarn(&[]);
    let (mut admin, mut user) = (server.client(), server.client());
    set_user(&mut admin, "u", "+@all -flushall -info ~k &c");
    for call in ["AUTH u x", "AUTH nobody x", "FLUSHALL", "GET z", "GET z", "PUBLISH z m"] {
        user.call(call);
    }
    user.call("MULTI");
    user.call("GET z");
    user.call("EXEC");
    ask(&mut user, &["EVAL", "redis.pcall('get', 'z'); return redis.pcall('flushall')", "0"]);
    admin.call("CONFIG RESETSTAT");
    for (name, count) in [("auth", 1), ("cmd", 2), ("key", 4), ("channel", 1)] {
        assert_eq!(admin.info("stats", &format!("acl_access_denied_{name}")), count, "{name}");
    }
    // One that is run again, as it looks at a key of another shard, has been refused once.
    admin.call("SET k 1");
    let again = "redis.pcall('get', 'z'); for n = 1, 9 do redis.pcall('exists', 'k') end return 1";
    ask(&mut user, &["EVAL", again, "0"]);
    assert_eq!(admin.info("stats", "acl_access_denied_key"), 5);
    let log = admin.call("ACL LOG");
    assert_eq!(log.items().len(), 7, "{log:?}");
}

#[test]
fn who_has_authenticated_goes_on_and_who_connects_is_asked() {
    let server = Server::tarn(&[]);
    let (mut admin, mut early) = (server.client(), server.client());
    assert_eq!(early.call("PING").text(), "PONG");
    assert_eq!(admin.call("ACL SETUSER default >p").text(), "OK");
    assert_eq!(early.call("PING").text(), "PONG");
    let mut late = server.client();
    assert!(late.call("PING").text().starts_with("NOAUTH"));
    assert!(late.call("AUTH q").text().starts_with("WRONGPASS"));
    assert_eq!(late.call("AUTH p").text(), "OK");
    assert_eq!(late.call("PING").text(), "PONG");
    // Nobody but the one who did it may do anything.
    assert_eq!(admin.call("ACL SETUSER default resetkeys").text(), "OK");
    assert!(early.call("GET k").text().starts_with("NOPERM"));
}

#[test]
fn no_password_is_shown() {
    let server = Server::tarn(&["--loglevel", "debug"]);
    let (mut admin, mut looking) = (server.client(), server.client());
    assert_eq!(looking.call("MONITOR").text(), "OK");
    for call in [
        "ACL SETUSER u on >hunter2 +@all",
        "AUTH u hunter2",
        "HELLO 2 AUTH u hunter2",
        "AUTH u hunter2x",
        "AUTH default hunter2",
        "ACL SETUSER u <hunter2x",
        "CONFIG SET requirepass hunter2",
        "AUTH hunter2",
        "ACL SETUSER v >hunter2 foo",
    ] {
        admin.call(call);
    }
    ask(&mut admin, &["MULTI"]);
    admin.call("AUTH u hunter2");
    admin.call("ACL SETUSER u >hunter2");
    ask(&mut admin, &["EXEC"]);
    assert_eq!(admin.call("ECHO end").text(), "end");
    loop {
        let line = looking.read().unwrap().text();
        assert!(!line.contains("hunter2"), "{line}");
        if line.contains("\"end\"") {
            break;
        }
    }
    for shown in ["ACL LIST", "ACL LOG", "ACL GETUSER u", "CLIENT LIST"] {
        let text = format!("{:?}", admin.call(shown));
        assert!(!text.contains("hunter2"), "{shown}: {text}");
    }
    assert!(!server.output().contains("hunter2"), "{}", server.output());
}
