//! The `tarn` binary.

use std::process::ExitCode;

use tarn::cli::{self, Invocation};
use tarn::{migrate, offline};

#[global_allocator]
static ALLOCATOR: tarn::util::alloc::Counted = tarn::util::alloc::Counted;

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(Invocation::Serve(config, table)) => tarn::boot::serve(config, *table),
        Ok(Invocation::Check { dir, repair }) => offline::on(&dir, || offline::check::run(&dir, repair)),
        Ok(Invocation::Compact { dir }) => offline::on(&dir, || offline::compact::run(&dir)),
        Ok(Invocation::Reshard { dir, shards }) => offline::reshard::run(&dir, shards),
        Ok(Invocation::Backup { server, ask }) => offline::remote::run(&server, &ask),
        Ok(Invocation::Restore { backup, backup_dir, dir }) => {
            offline::restore::run(&backup, backup_dir.as_deref(), &dir)
        }
        Ok(Invocation::Import(import)) => offline::on(&import.dir, || migrate::import::run(&import)),
        Ok(Invocation::Export(export)) => offline::on(&export.dir, || migrate::export::run(&export)),
        Err(stop) => stop.report(),
    }
}
