//! The settings as the server reads them: a plain struct, made anew whenever a directive changes.
//!
//! What stands here is what was asked for. Values that are 0 for "automatic" are resolved in [`super::budget`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::classes::Classes;
use super::special::read_limits;
use super::tls::{AuthClients, Tls, read_cipher_suites, read_ciphers, read_protocols};
use super::value::{Value, integer};

/// Every directive that has an effect, under its name with `_` for `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen for TCP.
    pub bind: Vec<BindAddr>,
    /// TCP port, or 0.
    pub port: u16,
    /// Length of the accept queue.
    pub tcp_backlog: i32,
    /// Path of the unix socket.
    pub unixsocket: Option<PathBuf>,
    /// Its permission bits; `None` leaves the umask's.
    pub unixsocketperm: Option<u32>,
    /// Without a password, let in only clients of this machine.
    pub protected_mode: bool,
    /// Password of the default user; empty for none.
    pub requirepass: Secret,
    /// File of users.
    pub aclfile: Option<PathBuf>,
    /// A user that is new has all channels.
    pub acl_pubsub_default: bool,
    /// Entries that ACL LOG keeps.
    pub acllog_max_len: usize,
    /// Connections at the same time.
    pub maxclients: usize,
    /// Idle time after which a connection is closed.
    pub timeout: Option<Duration>,
    /// How long a peer may take nothing of a file that it is sent.
    pub repl_timeout: Duration,
    /// Time between keep-alive probes.
    pub tcp_keepalive: Option<Duration>,
    /// Threads that serve connections; 0 for automatic.
    pub io_threads: usize,
    /// How long to poll before sleeping; zero does not.
    pub busy_poll: Duration,
    /// Longest argument, in bytes.
    pub proto_max_bulk_len: usize,
    /// Most bytes of an unfinished request.
    pub client_query_buffer_limit: usize,
    /// Limits of output buffers.
    pub client_output_buffer_limit: OutputLimits,
    /// Keys that clients may be remembered at; 0 for any number.
    pub tracking_table_max_keys: usize,
    /// Keyspace events that are published.
    pub notify_keyspace_events: Classes,

    /// Whether to run in the background.
    pub daemonize: bool,
    /// TLS.
    pub tls: Tls,
    /// TCP port of metrics and status page, or 0.
    pub metrics_port: u16,
    /// Where to listen for these.
    pub metrics_bind: Vec<BindAddr>,
    /// Names of the host under which they may be asked for.
    pub metrics_hosts: Vec<String>,

    /// Whom to tell when ready.
    pub supervised: Supervised,
    /// File with the process id.
    pub pidfile: Option<PathBuf>,
    /// How much is logged.
    pub loglevel: LogLevel,
    /// File of the server's log; `None` is standard output.
    pub logfile: Option<PathBuf>,
    /// Databases with a number.
    pub databases: u32,
    /// Whether SELECT takes names.
    pub namespaces: bool,
    /// Most namespaces with a name.
    pub max_namespaces: usize,
    /// How long a shutdown waits for clients.
    pub shutdown_timeout: Duration,
    /// Who may call DEBUG.
    pub enable_debug_command: Access,

    /// The whole budget, in bytes; 0 for automatic.
    pub maxmemory: u64,
    /// Which keys go where `maxdisk` would be reached.
    pub maxmemory_policy: &'static str,
    /// Of so many keys one goes.
    pub maxmemory_samples: u32,
    /// What a key's counter of uses grows by.
    pub lfu_log_factor: u32,
    /// Minutes without use that take one off it.
    pub lfu_decay_time: u32,
    /// Buffers of all clients, in bytes; below 0 a percentage of the budget, 0 for automatic.
    pub maxmemory_clients: i64,
    /// The dirty part, in bytes; 0 for automatic.
    pub dirty_budget: u64,
    /// The block cache, in bytes; 0 for automatic.
    pub block_cache_size: u64,
    /// The metadata cache, in bytes; 0 for automatic.
    pub metadata_cache_size: u64,

    /// Directory of log and store, absolute.
    pub dir: PathBuf,
    /// Most bytes of log and store; 0 for any number.
    pub maxdisk: u64,
    /// Bytes that stay free on the file system.
    pub disk_reserve: u64,
    /// Milliseconds of processor time.
    pub script_hold_limit: u64,
    /// Directory of backups, absolute.
    pub backup_dir: Option<PathBuf>,
    /// Shards, a power of two; 0 for automatic.
    pub shards: usize,
    /// When the log is synced.
    pub appendfsync: AppendFsync,
    /// Bytes of a file of the log.
    pub log_segment_size: u64,
    /// Bytes of the whole log that trigger a flush; 0 for automatic.
    pub log_max_size: u64,
    /// Niceness of background threads.
    pub background_nice: i32,
    /// Encode-version of new hashes.
    pub hash_encode_version: u8,
    /// Encode-version of new sets.
    pub set_encode_version: u8,
    /// Encode-version of new sorted sets.
    pub zset_encode_version: u8,

    /// Longest HyperLogLog that stays sparse, bytes.
    pub hll_sparse_max_bytes: usize,
    /// What is kept of commands that have run.
    pub observing: Observing,
    /// Percentiles that INFO shows of commands' times, as words.
    pub latency_tracking_info_percentiles: Vec<u8>,
    /// What OBJECT ENCODING goes by.
    pub encodings: Encodings,
}

/// What is kept of commands that have run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observing {
    /// The slow log has those that took so many µs and more; below 0 none.
    pub slower_than_us: i64,
    /// Large are requests of so many bytes and more; below 0 none.
    pub request_larger_than: i64,
    /// The same for replies.
    pub reply_larger_than: i64,
    /// Entries of the logs of slow commands, large requests and large replies.
    pub most_entries: [usize; 3],
    /// What an event must take to be kept, ms; 0 for none.
    pub latency_ms: u64,
    /// How the times of commands are distributed is kept.
    pub tracks: bool,
}

/// A text that must not reach the server's log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// One address of `bind`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindAddr {
    /// Where.
    pub host: BindHost,
    /// Given with a `-` before it: no error where the machine lacks the address or its family.
    pub optional: bool,
}

/// The host of a [`BindAddr`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindHost {
    /// `*`: every IPv4 address.
    AnyV4,
    /// `::*`: every IPv6 address.
    AnyV6,
    /// An address or a name to resolve.
    Named(String),
}

impl std::fmt::Display for BindHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BindHost::AnyV4 => "*",
            BindHost::AnyV6 => "::*",
            BindHost::Named(name) => name,
        })
    }
}

/// Limits of the bytes that wait for a client, by class of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimits {
    /// Of clients of no other class.
    pub normal: OutputLimit,
    /// Of replicas.
    pub replica: OutputLimit,
    /// Of subscribers.
    pub pubsub: OutputLimit,
}

/// The limits of a class; 0 bytes is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLimit {
    /// A client that passes it is closed.
    pub hard_bytes: u64,
    /// A client that stays above it for `soft_time` is closed.
    pub soft_bytes: u64,
    /// See `soft_bytes`.
    pub soft_time: Duration,
}

/// Values of `supervised`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supervised {
    /// By nobody.
    No,
    /// By whoever set the environment that upstart or systemd sets.
    Auto,
    /// By upstart.
    Upstart,
    /// By systemd.
    Systemd,
}

/// Values of `loglevel`, by how much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing at all.
    Nothing,
    /// Only what needs attention.
    Warning,
    /// What an operator wants to know.
    Notice,
    /// More than that.
    Verbose,
    /// Everything.
    Debug,
}

/// Who may do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nobody.
    No,
    /// Everybody.
    Yes,
    /// Clients of this machine: loopback and unix socket.
    Local,
}

/// Values of `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFsync {
    /// Before every reply.
    Always,
    /// Once a second.
    Everysec,
    /// When the operating system likes.
    No,
}

/// Up to where OBJECT ENCODING names the compact encodings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encodings {
    /// Fields of a hash.
    pub hash_max_listpack_entries: usize,
    /// Bytes of a field or value.
    pub hash_max_listpack_value: usize,
    /// Elements of a list, or, below 0, a class of bytes (-1 is 4 KB, -5 is 64 KB).
    pub list_max_listpack_size: i32,
    /// Members of a set of integers.
    pub set_max_intset_entries: usize,
    /// Members of a set.
    pub set_max_listpack_entries: usize,
    /// Bytes of a member.
    pub set_max_listpack_value: usize,
    /// Members of a sorted set.
    pub zset_max_listpack_entries: usize,
    /// Bytes of a member.
    pub zset_max_listpack_value: usize,
}

/// Reads typed values by the names of directives.
pub(super) struct Reader<F>(pub(super) F);

impl<'a, F: Fn(&str) -> &'a Value> Reader<F> {
    fn yes(&self, name: &str) -> bool {
        matches!((self.0)(name), Value::Bool(true))
    }

    fn name(&self, name: &str) -> &'static str {
        if let Value::Name(name) = (self.0)(name) { name } else { panic!("{name} is no enumeration") }
    }

    fn text(&self, name: &str) -> &'a [u8] {
        if let Value::Text(text) = (self.0)(name) { text } else { panic!("{name} is no text") }
    }

    /// A number; its kind's bounds make it fit.
    fn num<N: TryFrom<i64>>(&self, name: &str) -> N {
        let number = match (self.0)(name) {
            Value::Int(number) => *number,
            Value::Text(text) => integer(text).unwrap_or_default(),
            _ => panic!("{name} is no number"),
        };
        N::try_from(number).unwrap_or_else(|_| panic!("{name} is out of bounds: {number}"))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let text = self.text(name);
        (!text.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(text)))
    }

    /// A number of seconds; 0 is none.
    fn seconds(&self, name: &str) -> Option<Duration> {
        Some(Duration::from_secs(self.num(name))).filter(|span| !span.is_zero())
    }

    /// All of them. Panics if the table and this function disagree, which a test of the defaults shows.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            bind: read_bind(self.text("bind")),
            port: self.num("port"),
            tcp_backlog: self.num("tcp-backlog"),
            unixsocket: self.path("unixsocket"),
            unixsocketperm: Some(self.num("unixsocketperm")).filter(|bits| *bits != 0),
            protected_mode: self.yes("protected-mode"),
            requirepass: Secret(self.text("requirepass").to_vec()),
            aclfile: self.path("aclfile"),
            acl_pubsub_default: self.name("acl-pubsub-default") == "allchannels",
            acllog_max_len: self.num("acllog-max-len"),
            maxclients: self.num("maxclients"),
            timeout: self.seconds("timeout"),
            repl_timeout: Duration::from_secs(self.num("repl-timeout")),
            tcp_keepalive: self.seconds("tcp-keepalive"),
            io_threads: self.num("io-threads"),
            busy_poll: Duration::from_micros(self.num("busy-poll")),
            proto_max_bulk_len: self.num("proto-max-bulk-len"),
            client_query_buffer_limit: self.num("client-query-buffer-limit"),
            client_output_buffer_limit: output_limits(self.text("client-output-buffer-limit")),
            tracking_table_max_keys: self.num("tracking-table-max-keys"),
            notify_keyspace_events: Classes::from_bits(self.num("notify-keyspace-events")),
            daemonize: self.yes("daemonize"),
            tls: self.tls(),
            metrics_port: self.num("metrics-port"),
            metrics_bind: read_bind(self.text("metrics-bind")),
            metrics_hosts: read_words(self.text("metrics-hosts")),
            supervised: self.supervised(),
            pidfile: self.path("pidfile"),
            loglevel: self.loglevel(),
            logfile: self.path("logfile"),
            databases: self.num("databases"),
            namespaces: self.yes("namespaces"),
            max_namespaces: self.num("max-namespaces"),
            shutdown_timeout: Duration::from_secs(self.num("shutdown-timeout")),
            enable_debug_command: self.access("enable-debug-command"),
            maxmemory: self.num("maxmemory"),
            maxmemory_policy: self.name("maxmemory-policy"),
            maxmemory_samples: self.num("maxmemory-samples"),
            lfu_log_factor: self.num("lfu-log-factor"),
            lfu_decay_time: self.num("lfu-decay-time"),
            maxmemory_clients: self.num("maxmemory-clients"),
            dirty_budget: self.num("dirty-budget"),
            block_cache_size: self.num("block-cache-size"),
            metadata_cache_size: self.num("metadata-cache-size"),
            dir: self.path("dir").unwrap_or_default(),
            maxdisk: self.num("maxdisk"),
            disk_reserve: self.num("disk-reserve"),
            script_hold_limit: self.num("script-hold-limit"),
            backup_dir: self.path("backup-dir"),
            shards: self.num("shards"),
            appendfsync: self.appendfsync(),
            log_segment_size: self.num("log-segment-size"),
            log_max_size: self.num("log-max-size"),
            background_nice: self.num("background-nice"),
            hash_encode_version: self.num("hash-encode-version"),
            set_encode_version: self.num("set-encode-version"),
            zset_encode_version: self.num("zset-encode-version"),
            hll_sparse_max_bytes: self.num("hll-sparse-max-bytes"),
            observing: self.observing(),
            latency_tracking_info_percentiles: self.text("latency-tracking-info-percentiles").to_vec(),
            encodings: self.encodings(),
        }
    }

    fn observing(&self) -> Observing {
        Observing {
            slower_than_us: self.num("slowlog-log-slower-than"),
            request_larger_than: self.num("commandlog-request-larger-than"),
            reply_larger_than: self.num("commandlog-reply-larger-than"),
            most_entries: [
                self.num("slowlog-max-len"),
                self.num("commandlog-large-request-max-len"),
                self.num("commandlog-large-reply-max-len"),
            ],
            latency_ms: self.num("latency-monitor-threshold"),
            tracks: self.yes("latency-tracking"),
        }
    }

    fn tls(&self) -> Tls {
        // What the directives' own functions have let pass.
        let ciphers = [read_ciphers(self.text("tls-ciphers")), read_cipher_suites(self.text("tls-ciphersuites"))];
        let number_or = |name, automatic| Some(self.num(name)).filter(|number| *number != 0).unwrap_or(automatic);
        let sessions = (
            number_or("tls-session-cache-size", 20_480usize),
            Duration::from_secs(number_or("tls-session-cache-timeout", 300usize) as u64),
        );
        Tls {
            port: self.num("tls-port"),
            cert_file: self.path("tls-cert-file"),
            key_file: self.path("tls-key-file"),
            ca_cert_file: self.path("tls-ca-cert-file"),
            ca_cert_dir: self.path("tls-ca-cert-dir"),
            auth_clients: match self.name("tls-auth-clients") {
                "no" => AuthClients::No,
                "optional" => AuthClients::Optional,
                _ => AuthClients::Yes,
            },
            protocols: read_protocols(self.text("tls-protocols")).unwrap_or_default(),
            ciphers: ciphers.into_iter().filter_map(Result::ok).flatten().collect(),
            prefer_server_ciphers: self.yes("tls-prefer-server-ciphers"),
            sessions: self.yes("tls-session-caching").then_some(sessions),
            handshake_timeout: Duration::from_secs(self.num("tls-handshake-timeout")),
            max_handshakes: self.num("tls-max-handshakes"),
        }
    }

    fn encodings(&self) -> Encodings {
        Encodings {
            hash_max_listpack_entries: self.num("hash-max-listpack-entries"),
            hash_max_listpack_value: self.num("hash-max-listpack-value"),
            list_max_listpack_size: self.num("list-max-listpack-size"),
            set_max_intset_entries: self.num("set-max-intset-entries"),
            set_max_listpack_entries: self.num("set-max-listpack-entries"),
            set_max_listpack_value: self.num("set-max-listpack-value"),
            zset_max_listpack_entries: self.num("zset-max-listpack-entries"),
            zset_max_listpack_value: self.num("zset-max-listpack-value"),
        }
    }

    fn supervised(&self) -> Supervised {
        match self.name("supervised") {
            "auto" => Supervised::Auto,
            "upstart" => Supervised::Upstart,
            "systemd" => Supervised::Systemd,
            _ => Supervised::No,
        }
    }

    fn loglevel(&self) -> LogLevel {
        match self.name("loglevel") {
            "debug" => LogLevel::Debug,
            "verbose" => LogLevel::Verbose,
            "warning" => LogLevel::Warning,
            "nothing" => LogLevel::Nothing,
            _ => LogLevel::Notice,
        }
    }

    fn access(&self, name: &str) -> Access {
        match self.name(name) {
            "yes" => Access::Yes,
            "local" => Access::Local,
            _ => Access::No,
        }
    }

    fn appendfsync(&self) -> AppendFsync {
        match self.name("appendfsync") {
            "always" => AppendFsync::Always,
            "no" => AppendFsync::No,
            _ => AppendFsync::Everysec,
        }
    }
}

fn read_words(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).split_ascii_whitespace().map(str::to_owned).collect()
}

fn read_bind(text: &[u8]) -> Vec<BindAddr> {
    let words = text.split(|&c| c == b' ').filter(|word| !word.is_empty());
    words
        .map(|word| {
            let (word, optional) = word.strip_prefix(b"-").map_or((word, false), |rest| (rest, true));
            let host = match word {
                b"*" => BindHost::AnyV4,
                b"::*" => BindHost::AnyV6,
                name => BindHost::Named(String::from_utf8_lossy(name).into_owned()),
            };
            BindAddr { host, optional }
        })
        .collect()
}

fn output_limits(text: &[u8]) -> OutputLimits {
    let [normal, replica, pubsub] = read_limits(text).map(|[hard, soft, seconds]| OutputLimit {
        hard_bytes: hard.unsigned_abs(),
        soft_bytes: soft.unsigned_abs(),
        soft_time: Duration::from_secs(seconds.unsigned_abs()),
    });
    OutputLimits { normal, replica, pubsub }
}
