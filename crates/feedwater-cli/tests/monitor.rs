//! What a person, a program and a browser see of `feedwater monitor`: the real command, a run that is announced here, and
//! GPUs from the stub of NVML.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

#[path = "../../feedwater-profile/tests/nvml/mod.rs"]
mod nvml;
mod browser;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use feedwater_profile::record::{Blame, Device, Input, Recorder, Run, Settings, Step};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing here takes this long, on any machine: it is where a test gives up.
const DEADLINE: Duration = Duration::from_mins(1);

/// A place of its own for the announcements of a test, with a run in it.
struct Scene {
    folder: TempDir,
    gpus: Option<nvml::Stub>,
    recorder: Option<Recorder>,
}

impl Scene {
    /// A machine with GPUs, if they can be had, and no run.
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), gpus: nvml::stub(&[]), recorder: None }
    }

    /// The same with a run that has done `steps`.
    fn with_run(steps: u64) -> Self {
        let mut scene = Self::new();
        scene.begin("whisper-small", steps);
        scene
    }

    /// Begins a run in another process' name: the announcement is made by a recorder, in this test's folder.
    fn begin(&mut self, name: &str, steps: u64) {
        let settings = Settings { threads: Some(2), prefetch: Some(4), ..Settings::default() };
        let run = Run {
            name: name.to_owned(),
            planned_steps: Some(5000),
            devices: vec![Device { name: "reference".to_owned(), simulated: true, ..Device::default() }],
            settings,
            ..Run::default()
        };
        let mut recorder = Recorder::create_announced_in(self.record(), &run, self.runs()).unwrap();
        for number in 0..steps {
            recorder.step(&step(number)).unwrap();
        }
        recorder.flush().unwrap();
        self.recorder = Some(recorder);
    }

    fn record(&self) -> PathBuf {
        self.folder.path().join("run.jsonl")
    }

    fn runs(&self) -> PathBuf {
        self.folder.path().join("runs")
    }

    fn set_up(&self, command: &mut Command) {
        command.current_dir(self.folder.path()).env("FEEDWATER_RUNS_DIR", self.runs());
        command.env_remove("COLUMNS").env_remove("NO_COLOR").env("TERM", "xterm-256color");
        let none = self.folder.path().join("no-such-library.so");
        command.env("FEEDWATER_NVML", self.gpus.as_ref().map_or(none, |stub| stub.path.clone()));
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feedwater"));
        command.arg("monitor").args(line.split_whitespace());
        self.set_up(&mut command);
        command
    }

    fn output(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn json(&self, line: &str) -> Value {
        let output = self.output(line);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
        assert_eq!(text(&output.stdout).lines().count(), 1);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A step that waits for decoding.
fn step(number: u64) -> Step {
    let slow = number.is_multiple_of(10);
    let wait_nanos = if slow { 90_000_000 } else { 40_000_000 };
    let work =
        [("read", 4_000_000), ("decode", 120_000_000), ("log_mel", 30_000_000), ("collate", 1_500_000)];
    let input = Input {
        work_nanos: work.map(|(stage, nanos)| (stage.to_owned(), nanos)).into(),
        waited_for: Some(Blame {
            key: "clips/clip0123.mp3".to_owned(),
            stage: "decode".to_owned(),
            nanos: 60_000_000,
            ..Blame::default()
        }),
        ready: Some(number % 2),
        bytes: 7_680_000,
        padding_bytes: 3_000_000,
        read_bytes: 1_200_000,
        ..Input::default()
    };
    Step {
        step: number,
        wall_nanos: 50_000_000 + wait_nanos,
        wait_nanos,
        compute_nanos: 48_000_000,
        rows: 16,
        input: Some(input),
        ..Step::default()
    }
}

/// Looks again and again until there is something, or nobody believes in it any more.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "gave up waiting for {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn one_sample_as_json() {
    let scene = Scene::with_run(80);
    let sample = scene.json("--json");
    let run = &sample["run"];
    assert_eq!((run["name"].as_str(), run["steps_done"].as_u64()), (Some("whisper-small"), Some(80)));
    assert_eq!(run["pid"].as_u64(), Some(u64::from(std::process::id())));
    assert_eq!(run["stages"][0]["name"], "decode");
    assert_eq!(run["device"], "reference (pretended)");
    let busy = run["busy_percent"].as_f64().unwrap();
    assert!((busy - 100.0 * 48.0 / 95.0).abs() < 1.0, "{busy}");
    assert!(run["verdict"].as_str().unwrap().contains("input-bound"), "{run}");
    if cfg!(target_os = "linux") {
        assert!(!sample["host"]["cores_percent"].as_array().unwrap().is_empty());
        assert!(sample["host"]["memory_used_bytes"].as_u64().unwrap() > 0);
    }
    if scene.gpus.is_some() {
        assert!(sample["gpus"][0]["busy_percent"].is_number(), "{}", sample["gpus"]);
        assert!(sample["gpus_note"].is_null());
    }
}

#[test]
fn a_run_that_is_over_or_was_killed_is_not_shown() {
    let mut scene = Scene::with_run(5);
    scene.recorder.take().unwrap().end(Duration::ZERO).unwrap();
    assert_eq!(fs::read_dir(scene.runs()).unwrap().count(), 0, "its announcement is gone");
    let announced = "{\"pid\":1,\"record\":\"/run.jsonl\"}";
    for name in ["1.json", "1.lock"] {
        fs::write(scene.runs().join(name), announced).unwrap();
    }
    let sample = scene.json("--json");
    assert!(sample["run"].is_null());
    assert_eq!(sample["run_note"], "no run of feedwater's is going on");
    assert_eq!(fs::read_dir(scene.runs()).unwrap().count(), 0, "what was left of a dead one is gone too");
    let named = scene.json("--json --record run.jsonl");
    assert_eq!((&named["run"]["state"], &named["run"]["steps_done"]), (&"ended".into(), &5.into()));
}

#[test]
fn samples_follow_a_run() {
    let mut scene = Scene::with_run(30);
    let mut command = scene.command("--json --follow --interval 0.1");
    let mut child = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut done = || {
        let sample: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        sample["run"]["steps_done"].as_u64().unwrap()
    };
    assert_eq!(done(), 30);
    let recorder = scene.recorder.as_mut().unwrap();
    recorder.step(&step(30)).unwrap();
    recorder.flush().unwrap();
    until("the next step", || (done() == 31).then_some(()));
}

#[test]
fn a_plain_frame_comes_from_a_pipe() {
    let scene = Scene::with_run(80);
    let output = scene.output("--once");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let frame = text(&output.stdout);
    for part in ["run whisper-small · running", "decode", "80 of 5000", "input-bound", "host"] {
        assert!(frame.contains(part), "{part} in\n{frame}");
    }
    if scene.gpus.is_some() {
        assert!(frame.contains("GPU 0 "), "{frame}");
    }
    assert!(!frame.contains('\u{1b}'));
    assert!(frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
}

#[test]
fn without_gpus_and_without_a_run_it_says_so() {
    let mut scene = Scene::new();
    scene.gpus = None;
    let frame = text(&scene.output("--once").stdout);
    assert!(frame.contains("no NVIDIA driver was found"), "{frame}");
    assert!(frame.contains("no run of feedwater's is going on"), "{frame}");
}

#[test]
fn mistakes_are_told() {
    let scene = Scene::new();
    fs::write(scene.folder.path().join("not.jsonl"), "hello\n").unwrap();
    let cases = [
        ("--record nowhere.jsonl", "cannot read `nowhere.jsonl`"),
        ("--once --record not.jsonl", "`not.jsonl` is not a record that can be read"),
        ("", "the output is not a terminal\nhint: `feedwater monitor --once`"),
        ("--interval 0", "from 0.1 to 3600"),
        ("--port 80", "--web"),
        ("--json --web", "cannot be used with"),
    ];
    for (line, told) in cases {
        let output = scene.output(line);
        let error = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{line}: {error}");
        assert!(error.contains(told), "{line}: {error}");
    }
}

/// A child that is ended with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The page's server, and what it printed.
struct Web {
    _child: Ended,
    out: BufReader<std::process::ChildStdout>,
    port: u16,
    link: String,
    token: String,
}

impl Web {
    fn start(scene: &Scene) -> Self {
        let mut command = scene.command("--web --interval 0.1");
        let mut child = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut out = BufReader::new(child.0.stdout.take().unwrap());
        let mut read = || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line
        };
        let page = read();
        let link = page.split_whitespace().nth(1).unwrap().to_owned();
        read();
        let metrics = read();
        let token = metrics.split("Bearer ").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        read();
        let port = link.split(':').nth(2).unwrap().split('/').next().unwrap().parse().unwrap();
        Self { _child: child, out, port, link, token }
    }

    fn secret(&self) -> &str {
        self.link.split_once('#').unwrap().1
    }

    /// Sends a request as it is, and gives back the code, the headers and what came after them.
    fn raw(&self, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, head.to_ascii_lowercase(), body.to_owned())
    }

    fn get(&self, path: &str, headers: &str) -> (u16, String, String) {
        let port = self.port;
        self.raw(&format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{headers}\r\n"
        ))
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token)
    }
}

#[test]
fn the_page_is_for_this_host_and_for_get_only() {
    let scene = Scene::with_run(30);
    let web = Web::start(&scene);
    let port = web.port;
    let ask = |line: &str, host: &str| {
        web.raw(&format!("{line} HTTP/1.1\r\n{host}Connection: close\r\n{}\r\n", web.bearer())).0
    };
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("LOCALHOST:{port}")] {
        assert_eq!(ask("GET /metrics", &format!("Host: {host}\r\n")), 200, "{host}");
    }
    let foreign =
        ["evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example", "[::1]", "localhost:80", ""];
    for host in foreign {
        for path in ["/", "/metrics", "/events", "/session"] {
            assert_eq!(ask(&format!("GET {path}"), &format!("Host: {host}\r\n")), 403, "{host}");
        }
    }
    let two = format!("Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n");
    assert!([400, 403].contains(&ask("GET /metrics", &two)));
    let ours = format!("Host: 127.0.0.1:{port}\r\n");
    assert_eq!(ask("GET http://evil.example/metrics", &ours), 403);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"] {
        let (code, head, _) =
            web.raw(&format!("{method} /metrics HTTP/1.1\r\n{ours}Connection: close\r\n\r\n"));
        assert_eq!(code, 405, "{method}");
        assert!(head.contains("allow: get"), "{head}");
    }
}

#[test]
fn figures_need_a_secret_and_a_link_works_once() {
    let scene = Scene::with_run(30);
    let mut web = Web::start(&scene);
    for path in ["/events", "/snapshot", "/metrics", "/metrics?token=", "/metrics?token=x"] {
        let (code, head, body) = web.get(path, "");
        assert_eq!(code, 401, "{path}");
        assert!(head.contains("www-authenticate: bearer"), "{head}");
        assert!(!body.contains("feedwater_"), "{body}");
    }
    assert_eq!(web.get("/metrics", &web.bearer()).0, 200);
    assert_eq!(web.get(&format!("/metrics?token={}", web.token), "").0, 200);
    // The link's secret is for the exchange alone, and the programs' token not for that.
    let link = format!("Authorization: Bearer {}\r\n", web.secret());
    assert_eq!(web.get("/metrics", &link).0, 401);
    assert_eq!(web.get("/session", &web.bearer()).0, 401);
    let (code, head, _) = web.get("/session", &link);
    assert_eq!(code, 204);
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    let cookie = format!("Cookie: other=1; {}\r\n", cookie.split(';').next().unwrap());
    let (code, _, body) = web.get("/snapshot", &cookie);
    assert_eq!(code, 200);
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["run"]["name"], "whisper-small");
    assert_eq!(web.get("/session", &link).0, 401, "a second time");
    // Another is printed, and works.
    let mut line = String::new();
    web.out.read_line(&mut line).unwrap();
    let next = line.split_once('#').unwrap().1.trim();
    assert_eq!(web.get("/session", &format!("Authorization: Bearer {next}\r\n")).0, 204);
}

#[test]
fn every_answer_is_strict_about_what_a_page_may_do() {
    let scene = Scene::new();
    let web = Web::start(&scene);
    for path in ["/", "/page.js", "/page.css", "/icon.svg", "/metrics", "/nowhere", "/../etc/passwd"] {
        let (code, head, body) = web.get(path, "");
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"), "{head}");
        for part in
            ["x-content-type-options: nosniff", "referrer-policy: no-referrer", "cache-control: no-store"]
        {
            assert!(head.contains(part), "{part} in {head}");
        }
        assert!(!head.contains("access-control-allow"), "{head}");
        assert!(!body.contains(web.secret()) && !body.contains(&web.token));
        let elsewhere = body.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"), "{path} asks elsewhere");
        assert!(code == 200 || code == 401 || code == 404, "{path}: {code}");
    }
    // Only loopback listens.
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let port = format!(":{:04X}", web.port);
    let open = sockets.lines().filter_map(|line| line.split_whitespace().nth(1));
    let open: Vec<&str> = open.filter(|local| local.ends_with(&port)).collect();
    assert!(open.iter().all(|local| local.starts_with("0100007F")), "{open:?}");
}

#[test]
fn prometheus_can_read_every_line() {
    let scene = Scene::with_run(60);
    let web = Web::start(&scene);
    let (_, head, body) = web.get("/metrics", &web.bearer());
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let mut families = Vec::new();
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            families.push(help.split(' ').next().unwrap().to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            assert_eq!(kind, format!("{} gauge", families.last().unwrap()));
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(name.split('{').next(), families.last().map(String::as_str), "{line}");
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
        }
    }
    let mut once = families.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), families.len(), "a family is in one piece");
    assert!(body.contains("feedwater_run_steps_done 60\n"), "{body}");
    assert!(body.contains("feedwater_run_stage_seconds_per_step{stage=\"decode\"} 0.12\n"), "{body}");
}

#[test]
fn events_come() {
    let mut scene = Scene::with_run(30);
    let web = Web::start(&scene);
    let mut stream = TcpStream::connect(("127.0.0.1", web.port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = format!("GET /events HTTP/1.1\r\nHost: localhost:{}\r\n{}\r\n", web.port, web.bearer());
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut next = || {
        let mut named = false;
        loop {
            let line = lines.next().expect("the stream goes on").unwrap();
            named |= line == "event: snapshot";
            if let Some(data) = line.strip_prefix("data: ") {
                assert!(named);
                return serde_json::from_str::<Value>(data).unwrap();
            }
        }
    };
    assert_eq!(next()["run"]["steps_done"], 30);
    let recorder = scene.recorder.as_mut().unwrap();
    recorder.step(&step(30)).unwrap();
    recorder.flush().unwrap();
    until("an event with the next step", || (next()["run"]["steps_done"] == 31).then_some(()));
}

/// What is on a terminal: the command in tmux, which is one, of a size that a test can choose.
struct Pty {
    /// Of its own, since a server that was told to end takes a moment to do so.
    _folder: TempDir,
    socket: PathBuf,
}

impl Pty {
    /// Starts the monitor; where it ends, the shell writes its exit code, and what `stty` says of the terminal.
    fn start(scene: &Scene, width: u16, height: u16) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("skipped: the terminal is driven by `tmux`, which is not here");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("tmux");
        let before = scene.folder.path().join("before");
        let after = scene.folder.path().join("after");
        let script = format!(
            "stty -a > {before}; {program} monitor --interval 0.2; code=$?; stty -a > {after}; echo left with $code; exec cat",
            before = before.display(),
            after = after.display(),
            program = env!("CARGO_BIN_EXE_feedwater"),
        );
        let mut command = Command::new("tmux");
        command.args(["-f", "/dev/null", "-S"]).arg(&socket).args(["new-session", "-d", "-x"]);
        command.args([width.to_string(), "-y".to_owned(), height.to_string()]).args(["sh", "-c", &script]);
        scene.set_up(&mut command);
        assert!(command.env("LC_ALL", "C.UTF-8").status().unwrap().success());
        Some(Self { _folder: folder, socket })
    }

    fn tmux(&self, line: &[&str]) -> String {
        let output = Command::new("tmux").arg("-u").arg("-S").arg(&self.socket).args(line).output().unwrap();
        text(&output.stdout)
    }

    fn see(&self, what: &str) -> String {
        until(what, || {
            let screen = self.tmux(&["capture-pane", "-p"]);
            screen.contains(what).then_some(screen)
        })
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn on_a_terminal_it_is_drawn_resized_and_given_back() {
    let scene = Scene::with_run(80);
    for (keys, code) in [("q", 0), ("Escape", 0), ("C-c", 0)] {
        let Some(pty) = Pty::start(&scene, 120, 40) else { return };
        pty.see("run whisper-small · running");
        pty.see("── host");
        if keys == "q" {
            pty.tmux(&["resize-window", "-x", "40", "-y", "12"]);
            pty.see("more lines");
            for _ in 0..60 {
                pty.tmux(&["send-keys", "Down"]);
            }
            pty.see("more above");
        }
        pty.tmux(&["send-keys", keys]);
        let left = pty.see(&format!("left with {code}"));
        assert!(!left.contains("── host"), "the screen that was there before is back: {left}");
        given_back(&scene, &pty);
    }
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_given_back() {
    let scene = Scene::with_run(80);
    let Some(pty) = Pty::start(&scene, 80, 24) else { return };
    pty.see("run whisper-small");
    let shell = pty.tmux(&["display-message", "-p", "#{pane_pid}"]);
    let children = Command::new("pgrep").args(["-P", shell.trim()]).output().unwrap();
    let child = text(&children.stdout);
    assert!(Command::new("kill").args(["-TERM", child.trim()]).status().unwrap().success());
    pty.see("left with 143");
    given_back(&scene, &pty);
}

/// Neither raw, nor on the other screen, nor without a cursor.
fn given_back(scene: &Scene, pty: &Pty) {
    let read = |name: &str| fs::read_to_string(scene.folder.path().join(name)).unwrap();
    let modes = |text: String| text.lines().filter(|line| !line.contains("rows")).collect::<String>();
    assert_eq!(modes(read("after")), modes(read("before")));
    assert_eq!(pty.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]).trim(), "0 1");
}

#[test]
fn the_page_works_in_a_browser() {
    let mut scene = Scene::with_run(120);
    let Some(mut browser) = browser::Browser::start(scene.folder.path()) else { return };
    let web = Web::start(&scene);
    browser.ask("Page.navigate", &json!({"url": web.link}));
    browser.until("document.body.dataset.live === 'yes'");
    assert_eq!(browser.value("location.href"), json!(format!("http://127.0.0.1:{}/", web.port)), "no secret");
    assert_eq!(browser.value("document.cookie"), json!(""), "no script sees the cookie");
    let mut parts =
        vec!["whisper-small", "running", "120 of 5000", "decode", "input-bound", "steps/s", "Host"];
    if scene.gpus.is_some() {
        parts.extend(["GPU 0", "GPU 1", "controller", "PCIe", "power"]);
    }
    let seen = browser.value("document.body.innerText");
    for part in parts {
        assert!(seen.as_str().unwrap().contains(part), "{part} in {seen}");
    }
    assert_eq!(browser.value("document.querySelectorAll('svg.chart rect').length"), json!(240));
    // Figures move with the run.
    let recorder = scene.recorder.as_mut().unwrap();
    recorder.step(&step(120)).unwrap();
    recorder.flush().unwrap();
    browser.until("document.body.innerText.includes('121 of 5000')");
    // Nothing is wider than a phone, in either scheme.
    let phone = json!({"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": false});
    browser.ask("Emulation.setDeviceMetricsOverride", &phone);
    for scheme in ["light", "dark"] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.ask("Emulation.setEmulatedMedia", &media);
        browser.until("document.documentElement.scrollWidth <= 400");
    }
    // Loaded again, the cookie is enough.
    browser.ask("Page.reload", &json!({}));
    browser.until("document.body?.dataset.live === 'yes'");
    assert_eq!(browser.complaints(), [] as [&str; 0]);
    let ours = format!("http://127.0.0.1:{}/", web.port);
    let requests = browser.requests();
    assert!(requests.iter().any(|url| url.ends_with("/events")), "{requests:?}");
    assert!(requests.iter().all(|url| url.starts_with(&ours)), "{requests:?}");
}

#[test]
fn a_page_without_its_link_is_told_so() {
    let scene = Scene::with_run(30);
    let Some(mut browser) = browser::Browser::start(scene.folder.path()) else { return };
    let web = Web::start(&scene);
    browser.ask("Page.navigate", &json!({"url": format!("http://localhost:{}/", web.port)}));
    browser.until("document.body?.innerText.includes('not allowed: open the link')");
    assert_eq!(browser.value("document.body.innerText.includes('whisper')"), json!(false));
}
