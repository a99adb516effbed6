//! Running something at a lower scheduling priority.
//!
//! fjall starts its own threads, and a thread inherits the priority of the one that starts it: the database is opened
//! in a thread of its own whose priority is lowered first.

use super::error::{Result, StoreError};
use crate::util::sys::to_background;
use std::path::Path;

/// Runs `work` in a new thread that yields by this `nice` value, with all threads that it starts. Where lowering is refused
/// or unknown to the system it runs as it is.
pub(super) fn at_nice<R: Send>(nice: Option<i32>, work: impl FnOnce() -> R + Send) -> Result<R> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("store-open".into()).spawn_scoped(scope, move || {
            if let Some(nice) = nice {
                to_background(nice);
            }
            work()
        });
        let thread = thread.map_err(StoreError::io("start a thread for", Path::new(super::STORE_FOLDER)))?;
        match thread.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The nice value of the calling thread: the 19th field, the 17th behind the name in brackets.
    fn nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn children_inherit_and_the_caller_keeps_its_own() {
        let before = nice();
        let lowered = (before + 5).min(19);
        let child = at_nice(Some(5), || std::thread::spawn(nice).join().unwrap()).unwrap();
        assert_eq!((child, nice()), (lowered, before));
        assert_eq!(at_nice(None, nice).unwrap(), before);
    }
}
