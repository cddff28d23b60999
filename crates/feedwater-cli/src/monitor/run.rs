//! Which run is going on, and how does it do?
//!
//! A run announces itself; its record says the rest. The newest is shown, and stays on the screen when it has ended until
//! another begins: the last figures are what one came for.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use feedwater_profile::record::{self, Announcement, Follow, Record, Step};
use feedwater_profile::{Diagnosis, steps::quantile};

use super::snapshot::{Fix, Recent, RunView, Share, Stage, State, Waited, shown};

/// Figures are over this many seconds of steps, or over the last steps where they take longer.
const WINDOW_SECONDS: f64 = 10.0;
const WINDOW_STEPS: usize = 8;
/// A diagnosis is made of so many steps: enough to be sure, few enough to be of now.
const VERDICT_STEPS: usize = 200;
/// Steps of the chart.
const CHART_STEPS: usize = 120;
/// A run is quiet when nothing came for this many steps' time, and for these seconds at least.
const QUIET_STEPS: f64 = 10.0;
const QUIET_SECONDS: f64 = 5.0;

/// Finds a run and follows it.
pub(crate) struct Runs {
    /// Whether a record was asked for; if not, the newest run is looked for.
    asked: bool,
    following: Option<Following>,
}

struct Following {
    follow: Follow,
    announced: Option<Announcement>,
    /// A diagnosis costs more than a look: it is kept until there are new steps.
    verdict: Verdict,
}

#[derive(Default)]
struct Verdict {
    at_step: u64,
    headline: Option<String>,
    fix: Option<Fix>,
}

impl Runs {
    /// Begins to watch. A record that was asked for and cannot be read is an error here, and later a note: the machine
    /// is still worth watching.
    pub(crate) fn new(asked: Option<&Path>) -> feedwater_profile::Result<Self> {
        let following = match asked {
            Some(path) => {
                let mut following = Following::of(path, None)?;
                following.follow.look()?;
                Some(following)
            }
            None => None,
        };
        Ok(Self { asked: asked.is_some(), following })
    }

    /// The run as it is now, or why there is none.
    pub(crate) fn look(&mut self) -> Result<RunView, String> {
        let live = if self.asked { Vec::new() } else { record::live_runs() };
        let known = self.following.as_ref().and_then(|following| following.announced.as_ref());
        if let Some(newest) = live.first()
            && known != Some(newest)
        {
            // One that is gone again, or that may not be read, is no reason to stop watching the machine.
            self.following = Following::of(&newest.record, Some(newest.clone())).ok();
        }
        let Some(following) = &mut self.following else {
            return Err("no run of feedwater's is going on".to_owned());
        };
        following.follow.look().map_err(|error| shown(&error.to_string().replace('\n', ", ")))?;
        // Nobody knows who writes a record that was named: it is over when it says so.
        let alive = following.announced.as_ref().is_none_or(|announced| live.contains(announced));
        Ok(following.view(alive))
    }
}

impl Following {
    fn of(path: &Path, announced: Option<Announcement>) -> feedwater_profile::Result<Self> {
        let follow = Follow::open(path)?;
        Ok(Self { follow, announced, verdict: Verdict::default() })
    }

    fn view(&mut self, alive: bool) -> RunView {
        self.verdict.keep_up(self.follow.record(), self.follow.steps_done());
        let quiet_seconds = self.follow.silent_for().map_or(0.0, |since| since.as_secs_f64());
        let record = self.follow.record();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let mut view = of_record(record, quiet_seconds, alive, now);
        view.steps_done = self.follow.steps_done();
        view.bad_lines = self.follow.bad_lines();
        view.pid = self.announced.as_ref().map(|announced| announced.pid);
        view.record = shown(&self.follow.path().display().to_string());
        view.verdict.clone_from(&self.verdict.headline);
        view.fix.clone_from(&self.verdict.fix);
        view
    }
}

impl Verdict {
    fn keep_up(&mut self, record: &Record, done: u64) {
        if self.at_step == done {
            return;
        }
        self.at_step = done;
        let last = record.steps.len().saturating_sub(VERDICT_STEPS);
        let window =
            Record { run: record.run.clone(), steps: record.steps[last..].to_vec(), ..Record::default() };
        // Too few steps: no verdict yet, and a guess would be worse.
        let diagnosis = Diagnosis::of(&window).ok();
        self.headline = diagnosis.as_ref().map(|diagnosis| shown(&diagnosis.headline));
        self.fix = diagnosis
            .as_ref()
            .and_then(Diagnosis::best_change)
            .map(|change| Fix { what: shown(&change.what), setting: shown(&change.setting) });
    }
}

/// What a record says of its last moments.
fn of_record(record: &Record, quiet_seconds: f64, alive: bool, now: f64) -> RunView {
    let run = &record.run;
    let mut view = RunView {
        name: shown(if run.name.is_empty() { "unnamed" } else { &run.name }),
        device: run.devices.first().map(|device| {
            let pretended = if device.simulated { " (pretended)" } else { "" };
            format!("{}{pretended}", shown(&device.name))
        }),
        steps_planned: run.planned_steps,
        threads: run.settings.threads,
        prefetch: run.settings.prefetch,
        ..RunView::default()
    };
    let begun = run.started_unix_seconds as f64;
    view.elapsed_seconds = match &record.end {
        Some(end) => Some(end.wall_nanos as f64 / 1e9),
        None if alive && begun > 0.0 && now > begun => Some(now - begun),
        None => None,
    };
    let steps = window(&record.steps);
    let wall: f64 = steps.iter().map(|step| step.wall_nanos as f64).sum();
    view.state = match () {
        () if record.end.is_some() || !alive => State::Ended,
        () if steps.is_empty() => State::Starting,
        () if quiet_seconds > (QUIET_STEPS * wall / 1e9 / steps.len() as f64).max(QUIET_SECONDS) => {
            State::Quiet
        }
        () => State::Running,
    };
    let Some(last) = steps.last() else { return view };
    let count = steps.len() as f64;
    let sum = |part: fn(&Step) -> u64| steps.iter().map(|step| part(step) as f64).sum::<f64>();
    view.epoch = last.epoch;
    view.last_step_seconds_ago = (view.state != State::Ended).then_some(quiet_seconds);
    view.steps_per_second = Some(count * 1e9 / wall);
    let rows = sum(|step| step.rows);
    view.samples_per_second = (rows > 0.0).then_some(rows * 1e9 / wall);
    let mut walls: Vec<u64> = steps.iter().map(|step| step.wall_nanos).collect();
    walls.sort_unstable();
    view.step_millis = Some(quantile(&walls, 0.5) as f64 / 1e6);
    if view.state != State::Ended
        && let Some(planned) = run.planned_steps
    {
        view.eta_seconds = Some(planned.saturating_sub(last.step + 1) as f64 * wall / 1e9 / count);
    }
    let percent = |nanos: f64| (100.0 * nanos / wall).clamp(0.0, 100.0);
    let busy = sum(Step::busy_nanos);
    view.busy_percent = (busy > 0.0).then(|| percent(busy));
    let parts = [
        ("compute", busy),
        ("wait", sum(|step| step.wait_nanos)),
        ("copy", sum(|step| step.copy_nanos)),
        ("sync", sum(|step| step.sync_nanos)),
        ("unknown", sum(Step::unknown_nanos)),
    ];
    // Clocks of two kinds may add up to a little more than the step.
    let total = parts.iter().map(|(_, nanos)| nanos).sum::<f64>().max(1.0);
    view.shares = parts
        .into_iter()
        .filter(|(_, nanos)| *nanos > 0.0)
        .map(|(part, nanos)| Share { part, percent: 100.0 * nanos / total })
        .collect();
    input(&mut view, steps, wall);
    let chart = &record.steps[record.steps.len().saturating_sub(CHART_STEPS)..];
    view.recent = chart
        .iter()
        .map(|step| Recent {
            step: step.step,
            wall_millis: rounded(step.wall_nanos as f64 / 1e6),
            wait_millis: rounded(step.wait_nanos as f64 / 1e6),
        })
        .collect();
    view
}

/// What the steps say of their input.
fn input(view: &mut RunView, steps: &[Step], wall: f64) {
    let inputs: Vec<_> = steps.iter().filter_map(|step| step.input.as_ref()).collect();
    if inputs.is_empty() {
        return;
    }
    let mut work = std::collections::BTreeMap::<&str, u64>::new();
    for (stage, nanos) in inputs.iter().flat_map(|input| &input.work_nanos) {
        *work.entry(stage).or_default() += nanos;
    }
    let all = work.values().sum::<u64>().max(1) as f64;
    view.stages = work
        .into_iter()
        .map(|(name, nanos)| Stage {
            name: shown(name),
            millis_a_step: nanos as f64 / 1e6 / inputs.len() as f64,
            percent: 100.0 * nanos as f64 / all,
        })
        .collect();
    view.stages.sort_by(|a, b| b.millis_a_step.total_cmp(&a.millis_a_step));
    let ready: Vec<u64> = inputs.iter().filter_map(|input| input.ready).collect();
    view.ready_batches = ready.last().copied();
    view.ready_batches_mean =
        (!ready.is_empty()).then(|| ready.iter().sum::<u64>() as f64 / ready.len() as f64);
    let sum = |part: fn(&record::Input) -> u64| inputs.iter().map(|input| part(input) as f64).sum::<f64>();
    let bytes = sum(|input| input.bytes);
    if bytes > 0.0 {
        view.batch_bytes_per_second = Some(bytes * 1e9 / wall);
        view.padding_percent = Some((100.0 * sum(|input| input.padding_bytes) / bytes).min(100.0));
    }
    let read = sum(|input| input.read_bytes);
    view.read_bytes_per_second = (read > 0.0).then_some(read * 1e9 / wall);
    view.waited_for = steps.iter().rev().find_map(|step| {
        let blame = step.input.as_ref()?.waited_for.as_ref()?;
        Some(Waited {
            step: step.step,
            millis: step.wait_nanos as f64 / 1e6,
            key: shown(&blame.key),
            stage: shown(&blame.stage),
        })
    });
}

/// The steps of the last seconds.
fn window(steps: &[Step]) -> &[Step] {
    let mut seconds = 0.0;
    let mut from = steps.len();
    while from > 0 && (seconds < WINDOW_SECONDS || steps.len() - from < WINDOW_STEPS) {
        from -= 1;
        seconds += steps[from].wall_nanos as f64 / 1e9;
    }
    // The first step of a run has waited for everything to begin, and says nothing about its pace.
    if from == 0 && steps.len() > WINDOW_STEPS { &steps[1..] } else { &steps[from..] }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedwater_profile::record::{Blame, End, Input, Recorder, Run, Settings};

    fn step(number: u64) -> Step {
        let input = Input {
            work_nanos: [("decode".to_owned(), 30_000_000), ("read".to_owned(), 10_000_000)].into(),
            waited_for: Some(Blame {
                key: "a\u{1b}[2Jb".to_owned(),
                stage: "decode".to_owned(),
                ..Blame::default()
            }),
            ready: Some(number % 3),
            bytes: 1_000_000,
            padding_bytes: 250_000,
            read_bytes: 500_000,
            ..Input::default()
        };
        Step {
            step: number,
            wall_nanos: 100_000_000,
            wait_nanos: 20_000_000,
            compute_nanos: 70_000_000,
            rows: 16,
            input: Some(input),
            ..Step::default()
        }
    }

    fn record(steps: u64) -> Record {
        let settings = Settings { threads: Some(2), prefetch: Some(4), ..Settings::default() };
        let run = Run {
            name: "whisper".to_owned(),
            planned_steps: Some(1000),
            started_unix_seconds: 100,
            settings,
            ..Run::default()
        };
        Record { run, steps: (0..steps).map(step).collect(), ..Record::default() }
    }

    #[test]
    fn figures_are_those_of_the_last_seconds() {
        let mut record = record(400);
        for step in &mut record.steps[..200] {
            step.wall_nanos *= 50;
        }
        let view = of_record(&record, 0.1, true, 150.0);
        assert_eq!(view.state, State::Running);
        assert_eq!(view.elapsed_seconds, Some(50.0));
        let close = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e-6;
        assert!(close(view.steps_per_second, 10.0));
        assert!(close(view.samples_per_second, 160.0));
        assert!(close(view.eta_seconds, 60.0));
        assert!(close(view.busy_percent, 70.0));
        assert!(close(view.padding_percent, 25.0));
        assert!(close(view.read_bytes_per_second, 5e6));
        let shares: Vec<_> = view.shares.iter().map(|share| (share.part, share.percent.round())).collect();
        assert_eq!(shares, [("compute", 70.0), ("wait", 20.0), ("unknown", 10.0)]);
        assert_eq!(view.stages[0].name, "decode");
        assert!(close(Some(view.stages[0].millis_a_step), 30.0));
        assert_eq!(view.ready_batches, Some(399 % 3));
        assert_eq!(view.recent.len(), CHART_STEPS);
        // What a file says cannot move the cursor.
        assert_eq!(view.waited_for.unwrap().key, "a\u{fffd}[2Jb");
    }

    #[test]
    fn a_run_starts_runs_falls_quiet_and_ends() {
        let state = |record: &Record, quiet, alive| of_record(record, quiet, alive, 0.0).state;
        assert_eq!(state(&record(0), 0.0, true), State::Starting);
        assert_eq!(state(&record(5), 1.0, true), State::Running);
        assert_eq!(state(&record(5), 6.0, true), State::Quiet);
        assert_eq!(state(&record(5), 0.0, false), State::Ended, "killed");
        let mut ended = record(5);
        ended.end = Some(End { wall_nanos: 3_000_000_000, overhead_nanos: None });
        let view = of_record(&ended, 0.0, true, 0.0);
        assert_eq!((view.state, view.eta_seconds, view.elapsed_seconds), (State::Ended, None, Some(3.0)));
    }

    #[test]
    fn a_record_that_is_named_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let mut recorder = Recorder::create_announced_in(&path, &record(0).run, folder.path()).unwrap();
        let mut runs = Runs::new(Some(&path)).unwrap();
        assert_eq!(runs.look().unwrap().state, State::Starting);
        for number in 0..60 {
            recorder.step(&step(number)).unwrap();
        }
        recorder.end(std::time::Duration::ZERO).unwrap();
        let view = runs.look().unwrap();
        assert_eq!((view.state, view.steps_done), (State::Ended, 60));
        assert!(view.verdict.is_some_and(|verdict| verdict.contains("input-bound")));
        assert!(Runs::new(Some(Path::new("/nowhere.jsonl"))).is_err());
    }
}
