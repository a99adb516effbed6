//! What an operator should hear at the start: settings of the system, and of the server, that will hurt later.

use std::path::Path;

use crate::config::Settings;

/// A number in a file of `/proc`, if there is one.
fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Warnings for these settings on this machine.
pub(super) fn all(settings: &Settings) -> Vec<String> {
    let thp = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let found = [
        number("/proc/sys/vm/overcommit_memory").and_then(overcommit),
        huge_pages(&thp),
        number("/proc/sys/net/core/somaxconn").and_then(|most| backlog(settings, most)),
        eviction(settings),
        left_over(&settings.dir),
    ];
    found.into_iter().flatten().collect()
}

/// Tarn does not fork: only strict accounting is in its way, which counts memory that is set aside and never used.
fn overcommit(mode: u64) -> Option<String> {
    (mode == 2).then(|| {
        "WARNING vm.overcommit_memory is 2: memory may be refused long before it is used up. To fix this set \
         'vm.overcommit_memory = 1' in /etc/sysctl.conf, or run 'sysctl vm.overcommit_memory=1'."
            .to_owned()
    })
}

fn huge_pages(enabled: &str) -> Option<String> {
    enabled.contains("[always]").then(|| {
        "WARNING Transparent Huge Pages (THP) are always on: the process may take more memory than 'maxmemory' says. To fix \
         this run 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled' as root, at every boot."
            .to_owned()
    })
}

fn backlog(settings: &Settings, most: u64) -> Option<String> {
    let asked = u64::try_from(settings.tcp_backlog).unwrap_or(0);
    (settings.port != 0 && asked > most).then(|| {
        format!(
            "WARNING: The TCP backlog setting of {asked} cannot be enforced because /proc/sys/net/core/somaxconn is set to the \
             lower value of {most}."
        )
    })
}

fn eviction(settings: &Settings) -> Option<String> {
    (settings.maxmemory_policy != "noeviction" && settings.maxdisk == 0).then(|| {
        format!(
            "WARNING maxmemory-policy {} has no effect without 'maxdisk': data beyond 'maxmemory' goes to disk, and grows there \
             until 'disk-reserve' is reached; then writes are refused. With 'maxdisk' keys are evicted before that is reached.",
            settings.maxmemory_policy,
        )
    })
}

/// Files of Redis in the data directory of a server that has no data yet.
fn left_over(dir: &Path) -> Option<String> {
    let is_new = !dir.join(crate::store::superblock::FILE_NAME).exists();
    let found = ["dump.rdb", "appendonlydir"].into_iter().find(|name| is_new && dir.join(name).exists())?;
    Some(format!(
        "WARNING {} holds {found} of another server: it is not read, this server begins empty (tarn import reads it).",
        dir.display()
    ))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Config, Source};

    fn settings(text: &str) -> std::sync::Arc<Settings> {
        Config::load(Source::Stdin(text.into()), &[]).unwrap().settings()
    }

    #[test]
    fn only_what_hurts_is_told() {
        assert!(overcommit(0).is_none() && overcommit(1).is_none() && overcommit(2).is_some());
        assert!(huge_pages("always [madvise] never").is_none() && huge_pages("[always] madvise never").is_some());
        assert!(backlog(&settings(""), 4096).is_none() && backlog(&settings("port 0"), 128).is_none());
        assert!(backlog(&settings(""), 128).unwrap().contains("511") && eviction(&settings("")).is_none());
        let policy = |more: &str| eviction(&settings(&format!("maxmemory-policy allkeys-lru\n{more}")));
        assert!(policy("").unwrap().contains("without 'maxdisk'") && policy("maxdisk 1gb").is_none());
    }

    #[test]
    fn files_of_redis_are_noticed_before_there_is_data() {
        let dir = crate::util::scratch::tempdir().unwrap();
        assert!(left_over(dir.path()).is_none());
        std::fs::write(dir.path().join("dump.rdb"), "").unwrap();
        assert!(left_over(dir.path()).unwrap().contains("dump.rdb"));
        std::fs::write(dir.path().join("SUPERBLOCK"), "").unwrap();
        assert!(left_over(dir.path()).is_none());
    }
}
