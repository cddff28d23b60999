//! The `feedwater` command.

mod commands;
mod generate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keeps an accelerator fed while a model trains, and when it starves, says why and what will fix it.
#[derive(Parser)]
#[command(name = "feedwater", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what a dataset is, how long its samples are, and what is wrong with it
    Inspect(commands::inspect::Options),
    /// Make a dataset to try things on
    Generate(commands::generate::Options),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Inspect(options) => commands::inspect::run(&options),
        Command::Generate(options) => commands::generate::run(&options).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error:?}");
        ExitCode::FAILURE
    })
}
