//! How is a page looked at in a test? In headless Chromium, asked over a pipe (Chrome `DevTools` protocol): what it shows,
//! what it complains of, and what it asks the network for.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// A browser that says nothing for this long will not say anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// A browser with one page open.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    asked: u64,
    session: Option<String>,
    events: Vec<Value>,
}

impl Browser {
    /// Starts one with its files in `folder`. Where there is none, that is said, and the test is to return.
    pub(crate) fn start(folder: &Path) -> Option<Self> {
        let found = NAMES.into_iter().find(|name| {
            let mut command = Command::new(name);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        });
        let Some(name) = found else {
            eprintln!("skipped: the page is looked at in `chromium`, which is not here");
            return None;
        };
        let profile: PathBuf = folder.join("browser");
        // Commands are read from descriptor 3 and answered on 4.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script, name, "--headless=new", "--remote-debugging-pipe", "--no-sandbox"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let commands = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, answers) = sync_channel(1024);
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|count| count > 1) {
                message.pop();
                let answer = serde_json::from_slice(&message).expect("the browser speaks JSON");
                message.clear();
                if send.send(answer).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self { child, commands, answers, asked: 0, session: None, events: Vec::new() };
        let page = browser.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let page = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", &page);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Asks the browser for something, and gives back its answer.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).expect("the browser reads");
        loop {
            let mut answer = self.answers.recv_timeout(PATIENCE).expect("the browser answers");
            if answer["id"] == self.asked {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// What a script's expression comes to.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        self.ask("Runtime.evaluate", &params)["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.value(expression) != json!(true) {
            assert!(
                began.elapsed() < PATIENCE,
                "gave up waiting for {expression}; the page complains of {:?}",
                self.complaints()
            );
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Errors and warnings of the page's: exceptions, its console, what its policy forbade, what could not be loaded.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let bad = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => {
                matches!(event["params"]["type"].as_str(), Some("error" | "warning" | "assert"))
            }
            Some("Log.entryAdded") => {
                matches!(event["params"]["entry"]["level"].as_str(), Some("error" | "warning"))
            }
            _ => false,
        };
        self.events.iter().filter(bad).map(Value::to_string).collect()
    }

    /// Every address that the page asked for.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str()).map(str::to_owned).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
