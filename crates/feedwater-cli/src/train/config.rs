//! What does a `config.yaml` say? The same as flags, by their names: it is put before the flags of the command line, which
//! therefore count more.

use std::{ffi::OsString, fs, path::Path};

use clap::CommandFactory;
use miette::miette;
use serde_json::Value;

use crate::commands::tune;

/// Keys of other trainers' files for what is always done here, with what is said about them.
const NEEDLESS: [(&str, &str); 4] = [
    ("use-tf-native-loading", "loading is native anyway"),
    ("pin-memory", "memory is pinned where there is a GPU"),
    ("persistent-workers", "there are threads, which last"),
    ("prefetch-to-gpu", "batches are copied ahead anyway"),
];
const FLAG: &str = "--config";
/// More than this is no configuration.
const MOST_BYTES: u64 = 1 << 20;

/// The arguments, with what `feedwater.toml` and the file of `--config` say behind the command's name.
pub(crate) fn spliced(arguments: Vec<OsString>) -> miette::Result<Vec<OsString>> {
    let Some((command, words)) = reads(&arguments) else { return Ok(arguments) };
    let mut flags = Vec::new();
    if found(&arguments) {
        flags.extend(flags_of(Path::new(tune::FILE), command)?);
        known(Path::new(tune::FILE), &flags, &arguments[1..words])?;
    }
    if let Some(file) = named(&arguments) {
        flags.extend(flags_of(Path::new(&file), command)?);
        known(Path::new(&file), &flags, &arguments[1..words])?;
    }
    let mut arguments = arguments.into_iter();
    let mut spliced: Vec<OsString> = arguments.by_ref().take(words).collect();
    spliced.extend(flags.into_iter().map(OsString::from));
    spliced.extend(arguments);
    Ok(spliced)
}

/// What `tune` takes from a configuration of `train`.
const TUNED: [&str; 6] = ["data-dir", "train-data", "batch-size", "tokenizer", "cache", "bad-ceiling"];
/// Threads and batches ahead, by all their names.
const FOUND_OUT: [&str; 5] =
    ["threads", "num-workers", "dataloader-num-workers", "prefetch", "prefetch-buffer-size"];

/// Whether a setting says what there is without a word: what is found out as it runs, and no cache.
fn says_nothing(flag: &str) -> bool {
    let nothing: &[&str] = if FOUND_OUT.contains(&name(flag)) { &["auto", "0"] } else { &["auto", "off"] };
    flag.split_once('=').is_some_and(|(_, value)| nothing.contains(&value))
}

/// The arguments of `tune CONFIG`, with what the configuration says: its data, above all, unless the command line says where
/// they are.
pub(crate) fn tuned(arguments: &[OsString], file: &Path, has_data: bool) -> miette::Result<Vec<OsString>> {
    let is_said = |flag: &String| {
        (TUNED.contains(&name(flag)) || FOUND_OUT.contains(&name(flag))) && !says_nothing(flag)
    };
    let mut flags = flags_of(file, "train")?;
    // Which of them will be trained is not said here.
    let command = crate::Cli::command();
    let recipes = command.find_subcommand("train").into_iter().flat_map(clap::Command::get_subcommands);
    let names: Vec<&str> = recipes.flat_map(names).collect();
    if let Some(unknown) = flags.iter().map(|flag| name(flag)).find(|name| !names.contains(name)) {
        return Err(miette!(
            help = "`feedwater train whisper --help` lists them",
            "`{}` says `{unknown}`, and `feedwater train` has no such flag",
            file.display()
        ));
    }
    flags.retain(is_said);
    let says = |names: &[&str]| flags.iter().any(|flag| names.contains(&name(flag)));
    if !has_data && !says(&TUNED[..2]) {
        return Err(miette!(
            help = "`data_dir: data/speech` in it says so, or --data-dir",
            "`{}` does not say where the data is",
            file.display()
        ));
    }
    let as_it_is = says(&FOUND_OUT) && !says(&["cache"]);
    // A level is tried, at the one that there is to try.
    let flag = |flag: String| if name(&flag) == "cache" { "--cache".to_owned() } else { flag };
    let mut flags: Vec<OsString> = flags.into_iter().map(flag).map(OsString::from).collect();
    flags.extend(as_it_is.then(|| "--as-it-is".into()));
    let (before, behind) = arguments.split_at(2);
    Ok([before, &flags, behind].concat())
}

/// All names that a command's flags have.
fn names(command: &clap::Command) -> Vec<&str> {
    let arguments = || command.get_arguments();
    let longs =
        arguments().flat_map(|argument| argument.get_long_and_visible_aliases().into_iter().flatten());
    longs.chain(arguments().flat_map(|argument| argument.get_all_aliases().into_iter().flatten())).collect()
}

/// The name of a flag, without its value.
fn name(flag: &str) -> &str {
    flag.trim_start_matches('-').split('=').next().unwrap_or_default()
}

/// Makes sure that a command has all the flags that a file says: nobody typed them, and nobody would look for them there.
fn known(file: &Path, flags: &[String], words: &[OsString]) -> miette::Result<()> {
    let mut command = crate::Cli::command();
    for word in words {
        // A word that is no command is told by whoever reads the command line.
        let Some(word) = word.to_str() else { return Ok(()) };
        let Some(next) = command.find_subcommand(word).cloned() else { return Ok(()) };
        command = next;
    }
    let names = names(&command);
    for flag in flags {
        let name = name(flag);
        if !names.contains(&name) {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            let words = words.join(" ");
            return Err(miette!(
                help = format!(
                    "`feedwater {words} --help` lists them; what is for one command alone stands below [train], [profile] or [cache]"
                ),
                "`{}` says `{name}`, and `feedwater {words}` has no such flag",
                file.display()
            ));
        }
    }
    Ok(())
}

/// Whether a command has settings from `feedwater.toml`.
pub(crate) fn found(arguments: &[OsString]) -> bool {
    reads(arguments).is_some() && Path::new(tune::FILE).is_file()
}

/// The name of a command that reads settings, and how many words come before its flags.
fn reads(arguments: &[OsString]) -> Option<(&'static str, usize)> {
    match (arguments.get(1)?.to_str()?, arguments.get(2).and_then(|word| word.to_str())) {
        ("train", Some(recipe)) if !recipe.starts_with('-') => Some(("train", 3)),
        ("profile", _) if !arguments.iter().any(|word| word == "--") => Some(("profile", 2)),
        ("cache", Some("build")) => Some(("cache", 3)),
        _ => None,
    }
}

/// What a file says, as flags of a command.
fn flags_of(path: &Path, command: &str) -> miette::Result<Vec<String>> {
    let toml = path.extension().is_some_and(|ending| ending == "toml");
    let wrong = |what: String| {
        let like = if toml { "batch-size = 16" } else { "batch_size: 16" };
        miette!(
            help = format!("keys are the names of flags: `{like}`"),
            "`{}` cannot be used: {what}",
            path.display()
        )
    };
    let size = fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if size > MOST_BYTES {
        return Err(wrong(format!("it has {size} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut said: Value = if toml {
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            wrong(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
        })?
    } else {
        serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))?
    };
    // What is for another command is not for this one.
    if let Value::Object(map) = &mut said
        && toml
    {
        const SECTIONS: [&str; 3] = ["train", "profile", "cache"];
        let sections = map.iter().filter(|(_, value)| value.is_object());
        if let Some((name, _)) = sections.into_iter().find(|(name, _)| !SECTIONS.contains(&name.as_str())) {
            return Err(wrong(format!("there is no section [{name}]: there are {}", SECTIONS.join(", "))));
        }
        map.retain(|key, value| key == command || !value.is_object());
    }
    let mut flags = Vec::new();
    flatten(&said, &mut flags).map_err(wrong)?;
    // It says itself what it tries.
    flags.retain(|flag| command != "profile" || !FOUND_OUT.contains(&name(flag)) || !says_nothing(flag));
    Ok(flags)
}

fn named(arguments: &[OsString]) -> Option<OsString> {
    if arguments.get(1)?.to_str()? != "train" {
        return None;
    }
    let at = arguments.iter().position(|argument| {
        argument.to_str().is_some_and(|argument| argument == FLAG || argument.starts_with("--config="))
    })?;
    match arguments[at].to_str()?.split_once('=') {
        Some((_, file)) => Some(file.into()),
        None => arguments.get(at + 1).cloned(),
    }
}

/// Sections are for people; what counts is the keys in them.
fn flatten(said: &Value, flags: &mut Vec<String>) -> Result<(), String> {
    let map = match said {
        Value::Object(map) => map,
        Value::Null => return Ok(()),
        _ => return Err("it is no list of keys and values".to_owned()),
    };
    for (key, value) in map {
        let name = key.replace('_', "-");
        if let Some((_, why)) = NEEDLESS.iter().find(|(needless, _)| *needless == name) {
            eprintln!("config    `{key}` is not needed: {why}");
            continue;
        }
        match value {
            Value::Object(_) => flatten(value, flags)?,
            Value::Bool(true) => flags.push(format!("--{name}")),
            // The one flag that may be on by itself.
            Value::Bool(false) if name == "gradient-checkpointing" => flags.push(format!("--{name}=off")),
            Value::Bool(false) | Value::Null => {}
            Value::Number(number) => flags.push(format!("--{name}={number}")),
            Value::String(text) => flags.push(format!("--{name}={text}")),
            Value::Array(items) => {
                let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                flags.push(format!("--{name}={}", items.join(",")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_flags_and_come_before_those_of_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let text = "data:\n  num_workers: 24\n  prefetch_buffer_size: 6\n  use_tf_native_loading: true\nbf16: true\nresume: false\n";
        fs::write(&path, text).unwrap();
        let file = path.to_str().unwrap();
        let words = ["feedwater", "train", "tts", "--config", file, "--num-workers", "2"];
        let spliced = spliced(words.map(OsString::from).to_vec()).unwrap();
        let spliced: Vec<&str> = spliced.iter().map(|word| word.to_str().unwrap()).collect();
        let mut expected =
            vec!["feedwater", "train", "tts", "--bf16", "--num-workers=24", "--prefetch-buffer-size=6"];
        expected.extend(["--config", file, "--num-workers", "2"]);
        assert_eq!(spliced, expected);
    }

    #[test]
    fn a_file_of_tune_has_flags_for_all_and_sections_for_some() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("feedwater.toml");
        fs::write(
            &path,
            "threads = 2\ncache = \"features\"\n\n[train]\nbatch-size = 16\n\n[profile]\nhalf = true\n",
        )
        .unwrap();
        assert_eq!(flags_of(&path, "train").unwrap(), ["--cache=features", "--threads=2", "--batch-size=16"]);
        assert_eq!(flags_of(&path, "profile").unwrap(), ["--cache=features", "--half", "--threads=2"]);
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(reads(&words("feedwater train whisper --bf16")), Some(("train", 3)));
        assert_eq!(reads(&words("feedwater cache build data")), Some(("cache", 3)));
        fs::write(&path, "threads = \"auto\"\nprefetch = 3\n").unwrap();
        assert_eq!(flags_of(&path, "train").unwrap(), ["--prefetch=3", "--threads=auto"]);
        assert_eq!(flags_of(&path, "profile").unwrap(), ["--prefetch=3"]);
        fs::write(&path, "threads = 2\n\n[profil]\nbatch-size = 8\n").unwrap();
        let said = flags_of(&path, "profile").unwrap_err().to_string();
        assert!(said.contains("there is no section [profil]: there are train, profile, cache"), "{said}");
        fs::write(&path, "threads = 2\nprefetch = = 3\n").unwrap();
        let said = flags_of(&path, "profile").unwrap_err().to_string();
        assert!(said.contains("line 2: "), "{said}");
        let flags = |flag: &str| known(&path, &[flag.to_owned()], &words("cache build"));
        assert!(flags("--threads=2").is_ok() && flags("--cache-dtype=f16").is_ok());
        let said = flags("--thread=2").unwrap_err().to_string();
        assert!(said.ends_with("says `thread`, and `feedwater cache build` has no such flag"), "{said}");
        assert!(known(&path, &["--num-workers=2".to_owned()], &words("train whisper")).is_ok());
        // A script has settings of its own.
        assert_eq!(reads(&words("feedwater profile -- python train.py")), None);
        assert_eq!(reads(&words("feedwater train --help")), None);
    }

    #[test]
    fn tune_takes_from_a_configuration_what_it_has_flags_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let tuned = |text: &str, more: &[&str]| {
            fs::write(&path, text).unwrap();
            let words = [&["feedwater", "tune", path.to_str().unwrap()], more].concat();
            let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
            tuned(&words, &path, !more.is_empty())
                .map(|words| words.into_iter().filter_map(|word| word.into_string().ok()).collect())
        };
        let text = "model_size: tiny\nbatch_size: auto\ncache: features\ndata:\n  train_data: clips\n  num_workers: 24\n  prefetch_buffer_size: 6\n";
        let said: Vec<String> = tuned(text, &[]).unwrap();
        let mut expected = ["--cache", "--train-data=clips", "--num-workers=24", "--prefetch-buffer-size=6"];
        expected.sort_unstable();
        let (flags, rest) = said[2..].split_at(4);
        let mut flags = flags.to_vec();
        flags.sort_unstable();
        assert_eq!(
            (flags.as_slice(), rest),
            (expected.map(str::to_owned).as_slice(), &[path.to_str().unwrap().to_owned()][..])
        );
        let said: Vec<String> =
            tuned("task: classify\njson: true\nnum_workers: 0\nprefetch: 3\n", &["--data-dir=clips"])
                .unwrap();
        assert_eq!(said[2..4], ["--prefetch=3", "--as-it-is"], "what means something else there is left out");
        let error = tuned("num_workers: 24\n", &[]).unwrap_err().to_string();
        assert!(error.ends_with("does not say where the data is"), "{error}");
        assert!(tuned("num_workers: 24\n", &["--data-dir=clips"]).is_ok());
        let error =
            tuned("data:\n  prefetch_bufer_size: 8\n", &["--data-dir=clips"]).unwrap_err().to_string();
        assert!(error.contains("says `prefetch-bufer-size`"), "{error}");
        let said = tuned("batch_size: 0\n", &["--data-dir=clips"]).unwrap();
        assert!(said.contains(&"--batch-size=0".to_owned()), "it is refused by whoever reads it: {said:?}");
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        for wrong in ["- a\n- b\n", "a: [1\n", "a: 1\na: 2\n", "just words"] {
            fs::write(&path, wrong).unwrap();
            let words = ["feedwater", "train", "lm", "--config", path.to_str().unwrap()];
            assert!(spliced(words.map(OsString::from).to_vec()).is_err(), "{wrong}");
        }
    }
}
