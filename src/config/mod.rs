//! stub
use std::sync::Arc;
#[derive(Default)]
pub struct Settings {
    pub busy_poll: u64,
    pub databases: u32,
    pub namespaces: bool,
    pub max_namespaces: usize,
    pub timeout: u32,
    pub proto_max_bulk_len: u64,
    pub client_query_buffer_limit: u64,
    pub port: u16,
    pub bind: Vec<String>,
    pub tcp_backlog: u32,
    pub unixsocket: Option<String>,
    pub unixsocketperm: Option<u32>,
    pub maxclients: u32,
    pub protected_mode: bool,
    pub tcp_keepalive: u32,
}
pub struct Config(Arc<Settings>);
impl Config {
    pub fn new(s: Settings) -> Self {
        Config(Arc::new(s))
    }
    pub fn settings(&self) -> Arc<Settings> {
        self.0.clone()
    }
}
