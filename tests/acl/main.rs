//! ACL over real connections.
//!
//! | file | what it holds |
//! |---|---|
//! | [`bypass`] | from the command table: nobody gets by what is not allowed, by any way there is to call a command |
//! | [`secrets`] | commands by chance never tell, nor change, what their user may not touch |
//! | [`rules`] | rules by chance, judged and described as by Redis 8.2 |
//! | [`files`] | ACL files, `user` lines |
//! | [`seen`] | who is who in CLIENT LIST, INFO, MONITOR and the log |
//!
//! `TARN_ACL_SEED` repeats a run; `TARN_ACL_ROUNDS` is how many calls by chance are made, 4,000 if it is not given.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod bypass;
mod files;
mod rules;
mod secrets;
mod seen;

use common::resp::{Client, Value};

fn rounds() -> u64 {
    std::env::var("TARN_ACL_ROUNDS").map_or(4_000, |text| text.parse().expect("a number"))
}

/// A call and its reply.
fn ask<A: AsRef<[u8]>>(client: &mut Client, args: &[A]) -> Value {
    client.try_call(args).unwrap_or_else(|gone| {
        let shown: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg.as_ref()).into_owned()).collect();
        panic!("{shown:?}: {gone:?}")
    })
}

/// Makes a user that has just these rules.
fn set_user(admin: &mut Client, name: &str, rules: &str) {
    let mut args = vec!["ACL", "SETUSER", name, "reset", "on", "nopass"];
    args.extend(rules.split(' ').filter(|rule| !rule.is_empty()));
    assert_eq!(ask(admin, &args).text(), "OK", "{rules}");
}
