//! Directives that Tarn acts upon.

use super::super::special::{backup_dir, bind, data_dir, host_names, output_limits, percentiles, power_of_two, text};
use super::super::tls::{cipher_suites, ciphers, protocols};
use super::super::value::Kind::{
    Bool, Classes, Duration, Enum, Int, Mem, MemOrPercent, Octal, Text, Uint, Umem, Words,
};
use super::{Section, live};

const I32: i64 = i32::MAX as i64;
const U32: i64 = u32::MAX as i64;
const MAX: i64 = i64::MAX;
const MB: i64 = 1 << 20;

// One row a directive, and where it fits one line a row.
#[rustfmt::skip]
pub(super) const SECTIONS: &[Section] = &[
    Section {
        title: "Network",
        rows: &[
            live("bind", Words(bind), "127.0.0.1 -::1",
                "Addresses to listen on; `*` is every IPv4, `::*` every IPv6 address, a `-` before one lets it be \
                missing."),
            live("port", Int(0, 65535), "6379", "TCP port; 0 listens on none."),
            live("tcp-backlog", Int(0, I32), "511",
                "Length of the queue of connections not yet accepted.").at_start(),
            live("unixsocket", Text(text), "", "Path of a unix socket to listen on; empty for none.").at_start(),
            live("unixsocketperm", Octal(0o777), "0",
                "Permission bits of the unix socket; 0 leaves the umask's.").at_start(),
            live("protected-mode", Bool, "yes", "Without a password only clients of this machine are let in."),
            live("requirepass", Text(text), "", "Password of the default user; empty for none."),
            live("aclfile", Text(text), "",
                "File of users, within `dir` if its path is relative; empty for none, and users may stand here in lines \
                `user <name> <rule>...`.").at_start(),
            live("acl-pubsub-default", Enum(&["allchannels", "resetchannels"]), "resetchannels",
                "Channels of a user that is new."),
            live("acllog-max-len", Int(0, MAX), "128", "Entries that ACL LOG keeps."),
            live("maxclients", Uint(1, U32), "10000",
                "Connections at the same time; one more is told so and closed."),
            live("timeout", Int(0, I32), "0", "Seconds after which an idle connection is closed; 0 never."),
            live("repl-timeout", Int(1, I32), "60",
                "Seconds after which a peer that takes nothing of the file that SYNC sends is closed."),
            live("tcp-keepalive", Int(0, I32), "300",
                "Seconds between keep-alive probes on new connections; 0 sends none."),
            live("io-threads", Int(0, 128), "0",
                "Threads that serve connections; 0 is half of the cores. More threads than cores interrupt nobody when they wake \
                 (on Linux): less processor time for a command, but longer waits beside background work.").at_start(),
            live("busy-poll", Duration, "0",
                "How long a thread looks for more work before it sleeps, as 50us: lower latency for more CPU; with 0 for \
                25us where that has paid of late."),
            live("proto-max-bulk-len", Mem(MB, MAX), "512mb", "Longest argument and longest string."),
            live("client-query-buffer-limit", Umem(MB, MAX), "1gb",
                "Most bytes of a request held before it is whole."),
            live("client-output-buffer-limit", Words(output_limits),
                "normal 0 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60",
                "Per class of clients: hard limit, soft limit and the seconds it may be passed, after which the \
                connection is closed."),
        ],
    },
    Section {
        title: "TLS",
        rows: &[
            live("tls-port", Int(0, 65535), "0",
                "TCP port where TLS is spoken, at the addresses of `bind`; 0 is none. With `port 0` nothing else is."),
            live("tls-cert-file", Text(text), "",
                "The server's certificate, PEM, with those between it and the authority. Named again it is read \
                again.").of_file(),
            live("tls-key-file", Text(text), "",
                "Its private key, PEM, without a password: RSA, ECDSA on P-256 or P-384, or Ed25519 for TLS 1.3 alone.").of_file(),
            live("tls-ca-cert-file", Text(text), "",
                "Certificates of the authorities that clients' certificates must come from, PEM.").of_file(),
            live("tls-ca-cert-dir", Text(text), "", "A directory of such files, all of which are read.").of_file(),
            live("tls-auth-clients", Enum(&["no", "yes", "optional"]), "yes",
                "Whether clients must show a certificate; `optional` takes none, but no bad one."),
            live("tls-protocols", Words(protocols), "", "`TLSv1.2`, `TLSv1.3`; empty is both."),
            live("tls-ciphers", Text(ciphers), "",
                "Ciphers of TLS 1.2, best first, by OpenSSL's names; empty or `DEFAULT` is all."),
            live("tls-ciphersuites", Text(cipher_suites), "", "Ciphers of TLS 1.3, best first; empty is all."),
            live("tls-prefer-server-ciphers", Bool, "no", "The server's order of ciphers counts, not the client's."),
            live("tls-session-caching", Bool, "yes", "Sessions can be taken up again, which spares most of a handshake."),
            live("tls-session-cache-size", Int(0, I32), "20480",
                "Sessions that are kept; 0 is the default's number. More than 65,536 are not."),
            live("tls-session-cache-timeout", Int(0, I32), "300", "Seconds that a session is kept; 0 is 300."),
            live("tls-handshake-timeout", Uint(1, 3600), "10", "Seconds after which a handshake is given up."),
            live("tls-max-handshakes", Uint(1, 65536), "256",
                "Handshakes under way at the same time; one more ends the oldest.").at_start(),
        ],
    },
    Section {
        title: "Metrics and status page",
        rows: &[
            live("metrics-port", Int(0, 65535), "0",
                "TCP port of metrics in Prometheus's form (`/metrics`) and of the status page (`/`), over HTTP; 0 is none. \
                The default user's password is asked for, if it has one; where that user may not call INFO, nothing is told.").at_start(),
            live("metrics-bind", Words(bind), "127.0.0.1 -::1", "Addresses to listen on for these.").at_start(),
            live("metrics-hosts", Words(host_names), "",
                "Names of this host under which they may be asked for, besides `localhost` and addresses."),
        ],
    },
    Section {
        title: "General",
        rows: &[
            live("daemonize", Bool, "no",
                "Run in the background, with standard streams closed; not where a service manager is told of the start.").at_start(),
            live("supervised", Enum(&["upstart", "systemd", "auto", "no"]), "no",
                "Whom to tell when the server is ready, through NOTIFY_SOCKET.").at_start(),
            live("pidfile", Text(text), "",
                "File that holds the process id while the server runs; empty for none, or /var/run/redis.pid in the background.").at_start(),
            live("loglevel", Enum(&["debug", "verbose", "notice", "warning", "nothing"]), "notice",
                "How much is logged."),
            live("logfile", Text(text), "", "File of the server's log; empty for standard output.").at_start(),
            live("databases", Int(1, I32), "16", "Databases that SELECT reaches by number.").at_start(),
            live("namespaces", Bool, "no", "SELECT takes any name besides a number.").at_start(),
            live("max-namespaces", Int(1, 1 << 20), "4096", "Most namespaces with a name that may exist."),
            live("shutdown-timeout", Int(0, I32), "10", 
                "Seconds that a shutdown waits for clients' last replies, and for commands that still run."),
            live("enable-debug-command", Enum(&["no", "yes", "local"]), "no",
                "Who may call DEBUG: nobody, everybody, or clients of this machine.").at_start(),
        ],
    },
    Section {
        title: "Memory",
        rows: &[
            live("maxmemory", Umem(0, MAX), "0",
                "The one memory budget, of tables and caches together; 0 is half of the memory of machine or \
                cgroup. Data beyond it lives on disk."),
            live("maxmemory-policy", Enum(&[
                "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl", "allkeys-lru",
                "allkeys-lfu", "allkeys-random", "noeviction"
            ]), "noeviction",
                "Which keys go where `maxdisk` would be reached; without that nothing is evicted."),
            live("maxmemory-samples", Int(1, 64), "5",
                "Of so many keys that eviction comes by, the one that the policy names first goes."),
            live("lfu-log-factor", Int(0, I32), "10",
                "While a policy goes by frequency: the higher, the more uses it takes for a key's counter to grow."),
            live("lfu-decay-time", Int(0, I32), "1",
                "While a policy goes by frequency: minutes without use that take one off a key's counter; 0 for never."),
            live("maxmemory-clients", MemOrPercent, "0",
                "Buffers of all connections together, as bytes or percentage of the budget, beyond which the largest are \
                closed; 0 is a tenth, at least 16 MB."),
            live("dirty-budget", Mem(0, MAX), "0",
                "The part of it that may wait to be flushed to the store; 0 is a quarter, at most 1 GB."),
            live("block-cache-size", Mem(0, MAX), "0",
                "The part of it for blocks of the store, and their indexes; 0 is a quarter. Its size stays while the \
                server runs.").at_start(),
            live("metadata-cache-size", Mem(0, MAX), "0",
                "The part of it for metadata of keys that left the tables; these have what it leaves; 0 is a tenth."),
        ],
    },
    Section {
        title: "Data on disk",
        rows: &[
            live("dir", Text(data_dir), "data",
                "Directory of log and store, read back as an absolute path.").protected(),
            live("backup-dir", Text(backup_dir), "",
                "Directory of the backups that BACKUP makes; empty for none.").protected(),
            live("maxdisk", Mem(0, MAX), "0",
                "Most bytes that log and store take: beyond it commands that add answer -OOM, those that remove go on. 0 for any \
                number; compactions take more for moments."),
            live("disk-reserve", Mem(0, MAX), "1gb",
                "Bytes that stay free on the file system of `dir`, at most a quarter of it: beyond it commands that add answer \
                -OOM. 0 for none."),
            live("shards", Text(power_of_two), "0",
                "Shards that keys are divided among, a power of two, fixed when the directory is created; 0 is four \
                a core, 16 to 256.").at_start(),
            live("appendfsync", Enum(&["everysec", "always", "no"]), "everysec",
                "When the log is synced: once a second, before every reply, or when the system likes."),
            live("log-segment-size", Mem(MB, MAX), "64mb", "Least of `log-max-size`, whatever that is: each flush begins a new file of the log."),
            live("log-max-size", Mem(0, MAX), "0",
                "Size of the whole log that makes the shards flush; 0 is twice the dirty budget, 256 MB to 2 GB."),
            live("background-nice", Int(0, 19), "10",
                "By how much flush and compaction yield to commands, as nice(1) counts.").at_start(),
            live("hash-encode-version", Int(0, 1), "0",
                "Of new hashes: 0 counts fields exactly; 1 writes blindly, faster, and counts by scanning."),
            live("set-encode-version", Int(0, 1), "0",
                "Of new sets: 0 counts members exactly; 1 writes blindly, faster, and counts by scanning."),
            live("zset-encode-version", Int(0, 1), "0",
                "Of new sorted sets: 0 stores members twice; 1 stores those of 15 bytes and more once, by a digest."),
        ],
    },
    Section {
        title: "Scripts",
        rows: &[
            live("script-hold-limit", Int(1, 60_000), "50",
                "Milliseconds of processor time that a script may keep the shards of its keys once it has written; one that needs \
                more is taken back, and answered after 20 times as long. Meanwhile others wait for them."),
        ],
    },
    Section {
        title: "Events",
        rows: &[
            live("notify-keyspace-events", Classes, "",
                "Classes of keyspace events that are published, as letters; empty for none."),
            live("tracking-table-max-keys", Uint(0, MAX), "1000000",
                "Keys of which is remembered which clients have read them; beyond that some clients are told of changes \
                that did not happen. 0 for any number."),
        ],
    },
    Section {
        title: "What is seen of commands",
        rows: &[
            live("slowlog-log-slower-than", Int(-1, MAX), "10000",
                "Microseconds that a command must run to be kept by SLOWLOG; -1 keeps \
                none.").alias("commandlog-execution-slower-than"),
            live("slowlog-max-len", Int(0, MAX), "128",
                "Commands that SLOWLOG keeps.").alias("commandlog-slow-execution-max-len"),
            live("commandlog-request-larger-than", Int(-1, MAX), "1048576",
                "Bytes that a request must have to be kept by COMMANDLOG; -1 keeps none."),
            live("commandlog-large-request-max-len", Int(0, MAX), "128", "Large requests that COMMANDLOG keeps."),
            live("commandlog-reply-larger-than", Int(-1, MAX), "1048576",
                "Bytes that a reply must have to be kept by COMMANDLOG; -1 keeps none."),
            live("commandlog-large-reply-max-len", Int(0, MAX), "128", "Large replies that COMMANDLOG keeps."),
            live("latency-monitor-threshold", Int(0, MAX), "0",
                "Milliseconds that something must take to be kept by LATENCY; 0 keeps nothing."),
            live("latency-tracking", Bool, "yes", "How the times of commands are distributed is kept."),
            live("latency-tracking-info-percentiles", Words(percentiles), "50 99 99.9",
                "Percentiles of these that INFO latencystats shows."),
        ],
    },
    Section {
        title: "Encodings that OBJECT ENCODING names",
        rows: &[
            live("hash-max-listpack-entries", Uint(0, MAX), "512",
                "Fields up to which a hash is called a listpack.").alias("hash-max-ziplist-entries"),
            live("hash-max-listpack-value", Umem(0, MAX), "64",
                "Longest field or value of a hash that is called a listpack.").alias("hash-max-ziplist-value"),
            live("list-max-listpack-size", Int(i32::MIN as i64, I32), "-2",
                "Elements, or below 0 a class of bytes, up to which a list is called a \
                listpack.").alias("list-max-ziplist-size"),
            live("set-max-intset-entries", Uint(0, MAX), "512",
                "Members up to which a set of integers is called an intset."),
            live("set-max-listpack-entries", Uint(0, MAX), "128", "Members up to which a set is called a listpack."),
            live("set-max-listpack-value", Uint(0, MAX), "64", "Longest member of a set that is called a listpack."),
            live("zset-max-listpack-entries", Uint(0, MAX), "128",
                "Members up to which a sorted set is called a listpack.").alias("zset-max-ziplist-entries"),
            live("zset-max-listpack-value", Umem(0, MAX), "64",
                "Longest member of a sorted set that is called a listpack.").alias("zset-max-ziplist-value"),
        ],
    },
    Section {
        title: "Encodings that are stored",
        rows: &[
            live("hll-sparse-max-bytes", Umem(0, MAX), "3000",
                "Longest HyperLogLog that is kept sparse; a longer one turns dense."),
        ],
    },
];
