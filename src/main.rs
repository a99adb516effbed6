//! The `tarn` binary.
use std::sync::Arc;
use tarn::config::Config;
use tarn::handler::Server;
use tarn::shard::engine::{Engine, EngineOptions};

fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let port: u16 = std::env::args().nth(1).unwrap_or("7301".into()).parse().unwrap_or(7301);
    let dir = std::env::args().nth(2).unwrap_or("./data".into());
    let dirty: usize = std::env::args().nth(3).unwrap_or("256".into()).parse().unwrap_or(256);
    let config =
        match Config::load(tarn::config::Source::Defaults, &[vec![b"port".to_vec(), port.to_string().into_bytes()]]) {
            Ok(c) => c,
            Err(e) => {
                eprintln!("{e}");
                std::process::exit(1)
            }
        };
    let engine = Engine::open(
        Arc::new(tarn::log::RealIo),
        EngineOptions {
            dir: dir.into(),
            shards: None,
            databases: 16,
            fsync: tarn::log::Fsync::EverySec,
            table_budget: 4 << 30,
            dirty_budget: dirty << 20,
            cold_budget: 256 << 20,
            block_cache: 512 << 20,
            log_limit: 1 << 30,
            nice: 10,
            background: true,
        },
    );
    let engine = match engine {
        Ok(e) => e,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1)
        }
    };
    let server = Arc::new(Server {
        engine: engine.clone(),
        config,
        pause: Default::default(),
        clients: Default::default(),
        next_client: 1.into(),
        threads: Default::default(),
        accepted: 0.into(),
        rejected: 0.into(),
        started_ms: 0,
        run_id: String::new(),
        port: 0.into(),
        password_required: false.into(),
        shutdown: tokio::sync::watch::channel(None).0,
        last_save_s: 0.into(),
        cursors: Default::default(),
    });
    if let Err(e) = engine.replay() {
        eprintln!("{e}");
        std::process::exit(1)
    }
    let rt =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap_or_else(|_| std::process::exit(1));
    let _ = rt.block_on(async move {
        let listeners = match tarn::net::listen::bind(&server) {
            Ok(l) => l,
            Err(e) => {
                eprintln!("{e}");
                return;
            }
        };
        let workers = tarn::net::listen::Workers::start(&server, 1);
        for l in listeners {
            tokio::spawn(tarn::net::listen::accept(server.clone(), l, workers.clone()));
        }
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .unwrap_or_else(|_| std::process::exit(1));
        term.recv().await;
        engine.close(true);
    });
}
