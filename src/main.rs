//! The `tarn` binary.

use std::process::ExitCode;

use tarn::cli::{self, Invocation};

#[global_allocator]
static ALLOCATOR: tarn::util::alloc::Counted = tarn::util::alloc::Counted;

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(Invocation::Serve(config, table)) => tarn::boot::serve(config, *table),
        Ok(Invocation::Check { dir, repair }) => tarn::boot::check::run(&dir, repair),
        Ok(Invocation::Import(import)) => tarn::migrate::import::run(&import),
        Ok(Invocation::Export(export)) => tarn::migrate::export::run(&export),
        Err(stop) => stop.report(),
    }
}
