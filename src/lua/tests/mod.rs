//! Tests, in files by what they hold.

#![expect(clippy::unwrap_used, reason = "tests")]

mod bad;
mod differential;
mod host;
mod libraries;
mod semantics;

use super::*;
use std::sync::Arc;

/// The host's functions of these tests.
const PRINT: u16 = 1;

fn items() -> Arc<[(String, HostItem)]> {
    vec![("print".to_string(), HostItem::Function(PRINT))].into()
}

fn machine(limits: Limits) -> Machine {
    Machine::new(limits, items())
}

/// What `print` shows of a value; addresses are left out.
fn show(machine: &Machine, value: Value, out: &mut Vec<u8>) {
    if machine.write_text(value, out) {
        return;
    }
    match value {
        Value::Nil => out.extend_from_slice(b"nil"),
        Value::Bool(b) => out.extend_from_slice(b.to_string().as_bytes()),
        other => out.extend_from_slice(other.type_name().as_bytes()),
    }
}

/// Runs a started machine to its end, in slices, collecting what is printed; a failure is the last line.
fn finish(machine: &mut Machine, fuel: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        match machine.run(fuel) {
            Outcome::Call(_) => {
                let values = machine.values().to_vec();
                for (n, value) in values.into_iter().enumerate() {
                    if n > 0 {
                        out.push(b'\t');
                    }
                    show(machine, value, &mut out);
                }
                out.push(b'\n');
                machine.answer(&[]);
            }
            Outcome::OutOfFuel => {}
            Outcome::Done => return out,
            Outcome::Failed(failure) => {
                out.extend_from_slice(b"FAILED ");
                match failure.value {
                    Some(value) => show(machine, value, &mut out),
                    None => out.extend_from_slice(b"out of memory"),
                }
                return out;
            }
        }
    }
}

/// Compiles and runs a script on a machine of its own, in slices of so many steps.
fn run_in_slices(source: &[u8], fuel: u64) -> String {
    let limits = Limits::default();
    let out = match Chunk::compile(source, "@user_script", &limits) {
        Ok(chunk) => {
            let mut machine = machine(limits);
            assert!(machine.start(&chunk));
            finish(&mut machine, fuel)
        }
        Err(text) => [b"FAILED ", &*text].concat(),
    };
    String::from_utf8_lossy(&out).into_owned()
}

fn run(source: &str) -> String {
    run_in_slices(source.as_bytes(), u64::MAX)
}
