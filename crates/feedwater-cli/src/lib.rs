//! The `feedwater` command, as a library: the program calls it, and so does the Python package, which brings the command
//! along in its wheel.

mod caching;
mod commands;
mod doctor;
mod generate;
mod inspect;
mod monitor;
mod profile;
mod shell;
mod train;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

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
    /// Measure whether data keeps an accelerator fed, and say why not
    Profile(commands::profile::Options),
    /// Make, look at, check or drop what need not be done again
    Cache(commands::cache::Options),
    /// Put many small files into a few large ones, and say what that brings
    Convert(commands::convert::Options),
    /// Look for the settings that are best for a dataset on this machine
    Tune(commands::tune::Options),
    /// Make a dataset to try things on
    Generate(commands::generate::Options),
    /// Say where the accelerator of a recorded run waits, what it costs and what will fix it
    Report(commands::report::Options),
    /// Say whether a recorded run is better than one before it, or whether that is noise
    Compare(commands::compare::Options),
    /// Say what is right and wrong with this machine, and pack it up for others to look at
    Doctor(commands::doctor::Options),
    /// Say what settings to begin with, before there is a run
    Advise(commands::advise::Options),
    /// Show what this machine and the run on it are doing, live
    Monitor(commands::monitor::Options),
    /// Make data, see an accelerator starve and stop starving, train a model, hear it transcribe
    #[cfg(feature = "train")]
    Quickstart(commands::quickstart::Options),
    /// Write down what is said in sound files, by a model that was trained
    #[cfg(feature = "train")]
    Transcribe(commands::transcribe::Options),
    /// Train a model, with PyTorch or without Python
    Train(Box<commands::train::Options>),
}

/// Runs the command with its arguments, the program's name first, and gives back its exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let (command, arguments) = match parsed(arguments) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    if train::config::found(&arguments) {
        eprintln!("settings  from {}", commands::tune::FILE);
    }
    let done = match command {
        Command::Inspect(options) => commands::inspect::run(&options),
        Command::Profile(options) => commands::profile::run(&options),
        Command::Cache(options) => commands::cache::run(&options),
        Command::Convert(options) => commands::convert::run(&options),
        Command::Tune(options) => commands::tune::run(&options),
        Command::Generate(options) => commands::generate::run(&options).map(|()| 0),
        Command::Report(options) => commands::report::run(&options),
        Command::Compare(options) => commands::compare::run(&options),
        Command::Doctor(options) => commands::doctor::run(&options),
        Command::Advise(options) => commands::advise::run(&options),
        Command::Monitor(options) => commands::monitor::run(&options),
        Command::Train(options) => commands::train::run(*options, &arguments),
        #[cfg(feature = "train")]
        Command::Quickstart(options) => commands::quickstart::run(&options),
        #[cfg(feature = "train")]
        Command::Transcribe(options) => commands::transcribe::run(&options),
    };
    done.unwrap_or_else(|error| failed(&error))
}

/// What the arguments of `train` say, the program's name first, as JSON; or the exit code, where that was all.
pub fn train_options(arguments: impl IntoIterator<Item = OsString>) -> Result<String, u8> {
    match parsed(arguments)? {
        (Command::Train(options), _) => {
            train::torch::described(&options.settled()).map_err(|error| failed(&error))
        }
        _ => Err(2),
    }
}

/// The command that was meant, and the arguments with everything spelled out; or the exit code, where that was all.
fn parsed(arguments: impl IntoIterator<Item = OsString>) -> Result<(Command, Vec<OsString>), u8> {
    let arguments = spelled(arguments);
    let mut arguments = train::config::spliced(arguments).map_err(|error| failed(&error))?;
    let mut read = Cli::try_parse_from(&arguments);
    if let Ok(Cli { command: Command::Tune(options) }) = &read
        && let Some(file) = options.config()
    {
        let file = file.to_owned();
        arguments = train::config::tuned(&arguments, &file, options.data_dir.is_some())
            .map_err(|error| failed(&error))?;
        read = Cli::try_parse_from(&arguments);
        if read.is_err() {
            eprintln!("hint: `{}` may have said so", file.display());
        }
    }
    match read {
        Ok(cli) => Ok((cli.command, arguments)),
        Err(said) => {
            // Nobody is left to tell where it cannot be printed.
            let _ = said.print();
            if said.exit_code() != 0 && train::config::found(&arguments) {
                eprintln!("hint: {} is read here, and may have said so", commands::tune::FILE);
            }
            Err(said.exit_code() as u8)
        }
    }
}

/// Flags with underscores, as other programs have them, are the same with hyphens. What is behind `--` is not ours.
fn spelled(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut ours = true;
    let spell = |argument: OsString| {
        ours &= argument != "--";
        let Some(flag) = argument.to_str().filter(|text| ours && text.starts_with("--")) else {
            return argument;
        };
        let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
        (name.replace('_', "-") + value).into()
    };
    arguments.into_iter().map(spell).collect()
}

/// Tells an error, and gives the exit code for it.
fn failed(error: &miette::Report) -> u8 {
    eprintln!("{}", told(error));
    // 1 is the answer of a command that worked and found something wrong.
    2
}

/// An error as all commands tell it: what happened, why, and a hint, a line each.
fn told(error: &miette::Report) -> String {
    let mut what = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Some errors say themselves what caused them.
        if !what.contains(&cause) {
            what = format!("{what}: {cause}");
        }
    }
    // The engine's errors bring their hint along as a last line.
    let (what, own_hint) = match what.split_once("\nhint: ") {
        Some((what, hint)) => (what.to_owned(), Some(hint.to_owned())),
        None => (what, None),
    };
    let hint = own_hint.or_else(|| error.help().map(|help| help.to_string()));
    let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    format!("error: {what}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use miette::{IntoDiagnostic, WrapErr};

    #[test]
    fn underscores_are_hyphens_but_not_in_values_or_behind_the_dashes() {
        let words = ["feedwater", "--data_dir=my_data", "--batch_size", "a_b", "--", "python", "--max_steps"];
        let spelled = spelled(words.map(OsString::from));
        let expected =
            ["feedwater", "--data-dir=my_data", "--batch-size", "a_b", "--", "python", "--max_steps"];
        assert_eq!(spelled, expected);
    }

    #[test]
    fn errors_of_all_kinds_are_told_alike() {
        let ours = miette::miette!(help = "for example --clips 200", "there would be no clips");
        assert_eq!(told(&ours), "error: there would be no clips\nhint: for example --clips 200");
        let engine = feedwater::Error::config_hint("`x` does not exist", "make it");
        assert_eq!(told(&miette::miette!("{engine}")), "error: `x` does not exist\nhint: make it");
        let read = || feedwater::Error::read("x", std::io::Error::other("disk on fire"));
        let chained = Err::<(), _>(read()).into_diagnostic().wrap_err("no data").unwrap_err();
        assert_eq!(told(&chained), "error: no data: cannot read `x`: disk on fire");
    }
}
