//! `feedwater advise`: what settings to begin with, before there is a run?
//!
//! The tables and what is made of them are in [`feedwater_profile::advise`]; this file reads the options and prints. All of it
//! is rules of thumb, and says so, because a person will paste it.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};

use feedwater_profile::advise::{Advice, Asked, Basis, ModelSize, Task, advise, gigabytes};
use miette::{IntoDiagnostic, WrapErr};

use crate::inspect::text::{Page, width};

const EXAMPLES: &str = "\
Examples:
  feedwater advise --gpu-memory 24GB --model-size small
  feedwater advise --gpu-memory 24GB --model-size tiny --gpus 2 --task tts
  feedwater advise --gpu-memory 16GB --model-size medium --json

Exit codes:
  0  there is advice
  1  there is, and the model does not fit as it is
  2  the command line is wrong";

const JSON: &str = "\
The object of --json (fields may be added while `version` is 1):
  version                      1
  task, model_size, gpu_memory_gigabytes, gpus
                               as asked
  fits                         whether there is room for a sample
  batch_size, batch_size_most  samples of a step on each GPU that trains, and
                               the most that may be worth a try
  gradient_accumulation_steps  steps before the optimizer's turn
  effective_batch_size         samples of an optimizer step, all GPUs together
  precision                    bf16
  gradient_checkpointing       true or false
  prefetch, prefetch_least     batches made ahead
  split                        null, or with 2 GPUs, one for data and one for
                               the model: {batch_size, batch_size_most,
                               data_gpu_memory_mebibytes, prefetch,
                               model_gpu_memory_mebibytes, prefetch_least}
  basis                        table, interpolated or extrapolated
  notes                        where it comes from, in words
  settings                     to paste
  settings_split               to paste instead, with one GPU for data; or null
  check                        a command that measures";

/// What is to be trained, and on what.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub(crate) struct Options {
    /// Memory of one GPU: 24GB, 24576MB; a bare number is GB
    #[arg(long, value_name = "SIZE")]
    gpu_memory: String,
    /// tiny, base, small, medium or large, as Whisper's models are called
    #[arg(long, value_name = "SIZE")]
    model_size: String,
    /// GPUs in the run
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: u32,
    /// What is trained: whisper, tts, lm or npy
    #[arg(long, value_name = "TASK", default_value = "whisper")]
    task: String,
    /// Print one JSON object; `--help` says what is in it
    #[arg(long)]
    json: bool,
}

/// Advises, prints, and says by the exit code whether the model fits.
pub(crate) fn run(options: &Options) -> miette::Result<u8> {
    let advice =
        asked(options).and_then(|asked| advise(&asked)).map_err(|error| miette::miette!("{error}"))?;
    let printed = if options.json { as_json(&advice)? } else { as_text(&advice, width()) };
    match writeln!(std::io::stdout(), "{printed}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        done => done.into_diagnostic().wrap_err("could not print the advice")?,
    }
    Ok(u8::from(!advice.fits))
}

fn asked(options: &Options) -> feedwater_profile::Result<Asked> {
    Ok(Asked {
        task: options.task.parse::<Task>()?,
        size: options.model_size.parse::<ModelSize>()?,
        gpu_memory_gigabytes: gigabytes(&options.gpu_memory)?,
        gpus: options.gpus,
    })
}

fn as_json(advice: &Advice) -> miette::Result<String> {
    #[derive(serde::Serialize)]
    struct Object<'a> {
        version: u32,
        #[serde(flatten)]
        advice: &'a Advice,
    }
    serde_json::to_string(&Object { version: 1, advice })
        .into_diagnostic()
        .wrap_err("could not write the advice as JSON")
}

fn as_text(advice: &Advice, width: usize) -> String {
    let mut page = Page { out: String::new(), width };
    let gpus = if advice.gpus == 1 { "one GPU".to_owned() } else { format!("{} GPUs", advice.gpus) };
    let each = if advice.gpus == 1 { "" } else { " each" };
    let (task, size) = (advice.task.name(), advice.model_size.name());
    let memory = (advice.gpu_memory_gigabytes * 10.0).round() / 10.0;
    page.line(
        "advice",
        &format!("{task} {size} on {gpus} of {memory} GB{each}: rules of thumb, not measured"),
    );
    let accumulation = match advice.gradient_accumulation_steps {
        1 => "no accumulation".to_owned(),
        steps => format!("accumulation {steps}"),
    };
    page.line(
        "batch",
        &format!(
            "{}, {accumulation}: {} samples an optimizer step",
            range(advice.batch_size, advice.batch_size_most, "up to"),
            advice.effective_batch_size
        ),
    );
    page.line("precision", &format!("{} (fp16 on GPUs older than Ampere)", advice.precision));
    let recompute = if advice.gradient_checkpointing {
        "on; without it, less time and much more memory"
    } else {
        "off; on if memory runs out"
    };
    page.line("gradients", &format!("checkpointing {recompute}"));
    let prefetch = range(advice.prefetch, advice.prefetch_least, "at least");
    page.line("prefetch", &format!("{prefetch} batches"));
    if let Some(split) = &advice.split {
        page.line(
            "split",
            &format!(
                "data GPU {} MiB, model GPU {} MiB, batch {}, where one GPU prepares the data",
                split.data_gpu_memory_mebibytes,
                split.model_gpu_memory_mebibytes,
                range(split.batch_size, split.batch_size_most, "up to")
            ),
        );
    }
    let basis = match advice.basis {
        Basis::Table => "a row of a table",
        Basis::Interpolated => "interpolated between rows of a table",
        Basis::Extrapolated => "extrapolated from a table",
    };
    page.line("basis", basis);
    for note in &advice.notes {
        page.line("", note);
    }
    pasted(&mut page, "paste", &advice.settings);
    if let Some(settings) = &advice.settings_split {
        pasted(&mut page, "or split", settings);
    }
    pasted(&mut page, "check", &advice.check);
    page.out.trim_end().to_owned()
}

fn range(value: u64, other: u64, word: &str) -> String {
    if value == other { value.to_string() } else { format!("{value} ({word} {other})") }
}

/// A command line may be broken where the shell puts it together again.
fn pasted(page: &mut Page, label: &str, settings: &str) {
    let mut lines: Vec<String> = Vec::new();
    // A flag stays with its value.
    for part in settings.replace(" --", "\n--").lines() {
        match lines.last_mut() {
            Some(line) if line.len() + part.len() + 13 <= page.width => {
                line.push(' ');
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    let text = lines.join(" \\\n            ");
    let _ = writeln!(page.out, "{label:<10}{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_is_broken_between_flags_and_only_where_it_must_be() {
        let mut page = Page { out: String::new(), width: 40 };
        pasted(&mut page, "paste", "--batch-size 16 --bf16 --gradient-checkpointing --data-gpu 0");
        assert_eq!(
            page.out,
            "paste     --batch-size 16 --bf16 \\\n            --gradient-checkpointing \\\n            --data-gpu 0\n"
        );
        assert!(page.out.lines().all(|line| line.len() <= 40));
    }
}
