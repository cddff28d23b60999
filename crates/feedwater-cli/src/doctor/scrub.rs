//! What must not leave this machine?
//!
//! Home paths, names of users and hosts, and secrets. Two ways find them, because each misses what the other has: names and
//! secrets that this machine knows (its environment, its host name) are looked for letter by letter; and what has the form
//! of a secret or of somebody's home is taken out wherever it comes from, since a record may be of another machine. Too much
//! is taken out rather than too little: a sample named by a long hash is not told by its name any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Map, Value};

/// Accounts that say nothing about a person, and words that would be taken out of everything.
const NOBODY: [&str; 32] = [
    "root",
    "user",
    "users",
    "admin",
    "ubuntu",
    "debian",
    "ec2-user",
    "runner",
    "docker",
    "nobody",
    "jovyan",
    "vscode",
    "codespace",
    "vagrant",
    "guest",
    "default",
    "shared",
    "public",
    "home",
    "data",
    "test",
    "train",
    "work",
    "main",
    "text",
    "localhost",
    "feedwater",
    "linuxbrew",
    "secret",
    "host",
    "app",
    "[user]",
];

/// Fields of a record. They are its form, whatever somebody is called.
const FIELDS: [&str; 75] = [
    "record",
    "version",
    "run",
    "step",
    "device",
    "end",
    "name",
    "writer",
    "started_unix_seconds",
    "clock",
    "planned_steps",
    "host",
    "devices",
    "settings",
    "os",
    "cpu",
    "cores",
    "usable_cores",
    "quota_cores",
    "memory_bytes",
    "crowding",
    "disk",
    "index",
    "uuid",
    "simulated",
    "role",
    "links",
    "loader",
    "task",
    "data",
    "threads",
    "batch_at_a_time",
    "prefetch",
    "batch_size",
    "dtype",
    "padding",
    "pinned",
    "chunked",
    "longest_seconds",
    "over_30s_share",
    "step_nanos",
    "epoch",
    "wall_nanos",
    "wait_nanos",
    "copy_nanos",
    "compute_nanos",
    "optimizer_nanos",
    "sync_nanos",
    "rows",
    "input",
    "mark",
    "work_nanos",
    "cpu_nanos",
    "queued_nanos",
    "waited_for",
    "slowest",
    "ready",
    "bytes",
    "padding_bytes",
    "padding_to_longest_bytes",
    "read_bytes",
    "key",
    "stage",
    "nanos",
    "at_nanos",
    "busy_percent",
    "memory_busy_percent",
    "memory_used_bytes",
    "overhead_nanos",
    "checks",
    "outcome",
    "id",
    "what",
    "hint",
    "environment",
];

const SECRET: &str = "[secret]";
const USER: &str = "[user]";
const HOST: &str = "[host]";
const HOME: &str = "[home]";

/// What is known to be private before anything is read.
#[derive(Debug, Clone, Default)]
pub(super) struct Identities {
    /// Home folders.
    pub(super) homes: Vec<String>,
    /// Names of users.
    pub(super) users: Vec<String>,
    /// Names of this machine.
    pub(super) hosts: Vec<String>,
    /// Values of variables whose names say that they are secret.
    pub(super) secrets: Vec<String>,
}

impl Identities {
    /// Those of this process.
    pub(super) fn of_this_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut identities = Self::of_environment(variables);
        if let Some(name) = host_name() {
            identities.hosts.push(name);
        }
        identities.add_accounts(&std::fs::read_to_string("/etc/passwd").unwrap_or_default());
        identities
    }

    /// The name that somebody goes by, beside the one to log in with. `accounts` is as in `/etc/passwd`.
    fn add_accounts(&mut self, accounts: &str) {
        for line in accounts.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [login, _, _, _, about, home, ..] = fields[..] else { continue };
            let mine =
                self.homes.iter().any(|mine| mine == home) || self.users.iter().any(|mine| mine == login);
            let name = about.split(',').next().unwrap_or_default();
            if mine {
                self.users
                    .extend([login, name].into_iter().filter(|name| !name.is_empty()).map(str::to_owned));
            }
        }
    }

    fn of_environment(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut found = Self::default();
        for (name, value) in variables {
            match name.to_ascii_uppercase().as_str() {
                "HOME" | "USERPROFILE" => found.homes.push(value),
                "USER" | "LOGNAME" | "USERNAME" | "SUDO_USER" => found.users.push(value),
                "HOSTNAME" | "HOST" | "COMPUTERNAME" | "SLURMD_NODENAME" => found.hosts.push(value),
                // A folder, not a password.
                "PWD" | "OLDPWD" => {}
                _ if is_secret_name(&name) => found.secrets.push(value),
                _ => {
                    // A proxy with a password in it, for one.
                    found.secrets.extend(passwords(&value));
                }
            }
        }
        found
    }
}

#[cfg(unix)]
fn host_name() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().map(str::to_owned)
}

#[cfg(not(unix))]
fn host_name() -> Option<String> {
    None
}

/// Takes out what is private, and counts it.
pub(super) struct Scrubber {
    /// What is looked for letter by letter, the longest first; with what stands in its place.
    known: Vec<(Regex, &'static str)>,
    /// Those of them that count anywhere, in small letters, to make sure at the end.
    letters: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

/// Where a name counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// Also inside of words.
    Anywhere,
    /// As a word of its own: short names are in every other word.
    Words,
}

impl Scrubber {
    /// For these identities, and for users whose homes are named in `texts`.
    pub(super) fn new(identities: &Identities, texts: &[&str]) -> Self {
        let mut all: BTreeSet<(usize, String, &'static str, Reach)> = BTreeSet::new();
        let mut add = |text: &str, placeholder: &'static str, reach: Reach| {
            // Longest first, so that a name in a path does not hide the path.
            all.insert((usize::MAX - text.len(), text.to_owned(), placeholder, reach));
        };
        for secret in identities.secrets.iter().filter(|secret| secret.len() >= 4) {
            // `true` and `1` are no secrets, whatever their variable is called.
            let reach = if secret.len() >= 8 { Reach::Anywhere } else { Reach::Words };
            if !matches!(secret.to_ascii_lowercase().as_str(), "true" | "false" | "none" | "null") {
                add(secret, SECRET, reach);
            }
        }
        let mut users: BTreeSet<String> = identities.users.iter().cloned().collect();
        for home in &identities.homes {
            let home = home.trim_end_matches(['/', '\\']);
            if home.len() > 1 {
                add(home, HOME, Reach::Words);
                add(&home.replace('\\', "\\\\"), HOME, Reach::Words);
                add(&home.replace('/', "%2F"), HOME, Reach::Words);
            }
            users.extend(home.rsplit(['/', '\\']).next().map(str::to_owned));
        }
        for text in texts {
            users.extend(WINDOWS_HOMES.captures_iter(text).map(|found| found[2].to_owned()));
            users.extend(HOMES.captures_iter(text).map(|found| found[2].to_owned()));
        }
        let mut hosts: BTreeSet<String> = BTreeSet::new();
        for host in &identities.hosts {
            hosts.insert(host.clone());
            // Without its domain.
            hosts.extend(host.split('.').next().map(str::to_owned));
        }
        for (names, placeholder) in [(users, USER), (hosts, HOST)] {
            for name in names.iter().map(|name| name.trim()).filter(|name| is_somebody(name)) {
                // A part of what stands in the place of names would take that apart.
                let in_a_placeholder =
                    [SECRET, USER, HOST, HOME].iter().any(|word| word.contains(&name.to_lowercase()));
                let anywhere = name.chars().count() >= 4 && !in_a_placeholder;
                add(name, placeholder, if anywhere { Reach::Anywhere } else { Reach::Words });
            }
        }
        let known = all.iter().filter_map(|(_, text, placeholder, reach)| {
            let text = regex::escape(text);
            let pattern = match reach {
                Reach::Anywhere => format!("(?i)()({text})()"),
                Reach::Words => format!("(?i)(^|[^a-z0-9])({text})($|[^a-z0-9])"),
            };
            Some((Regex::new(&pattern).ok()?, *placeholder))
        });
        let known = known.collect();
        let anywhere = all.into_iter().filter(|(.., reach)| *reach == Reach::Anywhere);
        let letters = anywhere.map(|(_, text, ..)| text.to_lowercase()).collect();
        Self { known, letters, counts: BTreeMap::new() }
    }

    /// How often each kind was taken out.
    pub(super) fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// A text of any kind.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        self.replace(&PRIVATE_KEYS, &mut text, SECRET, |_| Some(SECRET.to_owned()));
        self.known(&mut text);
        for credentials in [&*URL_USERS, &*URL_PASSWORDS] {
            self.replace(credentials, &mut text, SECRET, |found| {
                (&found[2] != SECRET).then(|| format!("{}{SECRET}@", &found[1]))
            });
        }
        for after in [&*URL_QUERIES, &*AUTHORIZATION] {
            self.replace(after, &mut text, SECRET, |found| {
                (!found[2].starts_with(SECRET)).then(|| format!("{}{SECRET}", &found[1]))
            });
        }
        self.replace(&PREFIXES, &mut text, SECRET, |found| {
            // `hf_transfer` is a package.
            let letters = found[2].bytes();
            let likely = found[2].len() >= 20 || letters.clone().any(|byte| byte.is_ascii_digit());
            likely.then(|| format!("{}{SECRET}", &found[1]))
        });
        for assigned in [&*ASSIGNMENTS, &*FLAGS] {
            self.replace(assigned, &mut text, SECRET, |found| {
                let (name, value) = (&found[1], &found[3]);
                let secret = is_secret_name(name) || (is_key(name) && is_random(value));
                (secret && !value.starts_with(SECRET)).then(|| format!("{name}{}{SECRET}", &found[2]))
            });
        }
        self.replace(&WINDOWS_HOMES, &mut text, HOME, |found| {
            (&found[2] != USER).then(|| format!("{}{USER}{}", &found[1], &found[3]))
        });
        self.replace(&HOMES, &mut text, HOME, |found| {
            (!is_nobody(&found[2])).then(|| format!("{}{USER}", &found[1]))
        });
        self.replace(&ADDRESSES, &mut text, USER, |_| Some(format!("{USER}@{HOST}")));
        self.replace(&LONG, &mut text, SECRET, |found| {
            let long = found.get(3).filter(|long| is_random(long.as_str()))?;
            let before = found.get(2).map_or("", |before| before.as_str());
            (!long.is_empty()).then(|| format!("{before}{SECRET}"))
        });
        text
    }

    /// A JSON value: its strings, and the names of its fields where they are not those of a record.
    pub(super) fn value(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => Value::Array(values.into_iter().map(|value| self.value(value)).collect()),
            Value::Object(fields) => {
                let mut scrubbed = Map::new();
                for (name, value) in fields {
                    let value = match value {
                        // What makes a record a record.
                        Value::String(kind) if name == "record" && kind == "feedwater" => Value::String(kind),
                        Value::String(text) if is_secret_name(&name) && text != SECRET => {
                            self.count(SECRET);
                            Value::String(SECRET.to_owned())
                        }
                        value => self.value(value),
                    };
                    let mut name = if FIELDS.contains(&name.as_str()) { name } else { self.text(&name) };
                    // Two that were told apart by what was taken out still are.
                    while scrubbed.contains_key(&name) {
                        name.push('\'');
                    }
                    scrubbed.insert(name, value);
                }
                Value::Object(scrubbed)
            }
            value => value,
        }
    }

    /// JSON lines, each as a value; what is none of these, as text.
    pub(super) fn lines(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
            match serde_json::from_str::<Value>(body) {
                Ok(value) => out.push_str(&self.value(value).to_string()),
                Err(_) => out.push_str(&self.text(body)),
            }
            out.push_str(end);
        }
        out
    }

    /// Whether something that is known is still there, however it got there: the last look before a bundle is written.
    pub(super) fn leaks(&self, text: &str) -> bool {
        let lower = text.to_lowercase();
        let in_a_field = |letters: &str| FIELDS.iter().any(|field| field.contains(letters));
        let mut letters = self.letters.iter().filter(|letters| !in_a_field(letters));
        letters.any(|letters| lower.contains(letters.as_str()))
    }

    /// What is known, letter by letter.
    fn known(&mut self, text: &mut String) {
        let known = std::mem::take(&mut self.known);
        for (pattern, placeholder) in &known {
            // Twice: of two that share the letter between them, only one gets it.
            for _ in 0..2 {
                self.replace(pattern, text, placeholder, |found| {
                    Some(format!("{}{placeholder}{}", &found[1], &found[3]))
                });
            }
        }
        self.known = known;
    }

    /// Replaces what `with` has something to say of. What it lets stand is looked at again behind its first group: in
    /// `note: token=x`, the first assignment hides the second.
    fn replace(
        &mut self,
        pattern: &Regex,
        text: &mut String,
        kind: &'static str,
        with: impl Fn(&Captures<'_>) -> Option<String>,
    ) {
        let mut out = String::new();
        let (mut from, mut copied) = (0, 0);
        while let Some(found) = pattern.captures_at(text, from) {
            let Some(whole) = found.get(0) else { break };
            if let Some(replacement) = with(&found) {
                out.push_str(&text[copied..whole.start()]);
                out.push_str(&replacement);
                self.count(kind);
                (from, copied) = (whole.end(), whole.end());
            } else {
                from = found.get(1).map_or(whole.end(), |first| first.end());
            }
            if from <= whole.start() {
                // On by a letter, or it would be found for ever.
                from = whole.start() + text[whole.start()..].chars().next().map_or(1, char::len_utf8);
            }
            if from > text.len() {
                break;
            }
        }
        if copied > 0 {
            out.push_str(&text[copied..]);
            *text = out;
        }
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }
}

fn is_nobody(name: &str) -> bool {
    NOBODY.contains(&name.to_lowercase().as_str())
}

fn is_somebody(name: &str) -> bool {
    name.chars().count() >= 2 && name.chars().any(char::is_alphabetic) && !is_nobody(name)
}

/// Whether a variable, a field or a parameter of this name holds a secret. `max_tokens` and `author` do not.
pub(super) fn is_secret_name(name: &str) -> bool {
    let mut words: Vec<String> = Vec::new();
    let mut lower = false;
    for letter in name.chars() {
        if !letter.is_alphanumeric() {
            words.push(String::new());
            lower = false;
            continue;
        }
        // `apiKey` is two words, `APIKEY` is one.
        if letter.is_uppercase() && lower || words.is_empty() {
            words.push(String::new());
        }
        lower = letter.is_lowercase();
        if let Some(word) = words.last_mut() {
            word.extend(letter.to_lowercase());
        }
    }
    let ends = [
        "token",
        "secret",
        "secrets",
        "password",
        "passwd",
        "passphrase",
        "apikey",
        "credential",
        "credentials",
    ];
    let whole =
        ["pwd", "auth", "authorization", "cookie", "signature", "sig", "bearer", "pass", "pat", "jwt"];
    let keys = [
        "api",
        "access",
        "private",
        "secret",
        "account",
        "storage",
        "encryption",
        "ssh",
        "signing",
        "license",
    ];
    words.iter().any(|word| ends.iter().any(|end| word.ends_with(end)) || whole.contains(&word.as_str()))
        || words
            .windows(2)
            .any(|pair| (pair[1] == "key" || pair[1] == "keys") && keys.contains(&pair[0].as_str()))
}

/// Names that hold a secret now and then.
fn is_key(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.ends_with("key") || lower.ends_with("id") || lower.ends_with("hash")
}

/// Long, and of no language: hexadecimal digits, or letters of both kinds with digits among them. Names of files are long
/// too, and made of short words.
fn is_random(text: &str) -> bool {
    let core = text.trim_end_matches('=');
    let hex = core.len() >= 32 && core.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mixed = |word: &str| {
        let has = |class: fn(&u8) -> bool| word.as_bytes().iter().any(class);
        word.len() >= 16
            && has(u8::is_ascii_digit)
            && has(u8::is_ascii_uppercase)
            && has(u8::is_ascii_lowercase)
    };
    hex || (core.len() >= 20 && core.split(['-', '_', '.', '/', ':']).any(mixed))
}

/// Passwords of the URLs in a text.
fn passwords(text: &str) -> impl Iterator<Item = String> + '_ {
    URL_PASSWORDS.captures_iter(text).filter_map(|found| Some(found[2].split_once(':')?.1.to_owned()))
}

/// A pattern that is compiled when it is first needed.
macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("a pattern that never changes"));
    };
}

pattern!(PRIVATE_KEYS, r"(?s)()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)");
pattern!(URL_USERS, r#"([a-zA-Z][a-zA-Z0-9+.-]*://)([^\s/"'<>\\]*)@"#);
// A password may have a slash in it.
pattern!(URL_PASSWORDS, r#"([a-zA-Z][a-zA-Z0-9+.-]*://)([^\s"'<>@:/]*:[^\s"'<>@]+)@"#);
// All of a query: which of its parts is the secret one differs from store to store.
pattern!(URL_QUERIES, r#"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s?#"'<>]*\?)([^\s"'<>]+)"#);
pattern!(
    AUTHORIZATION,
    r#"(?i)(\bbearer\s+|\bauthorization["']?\s*[:=]\s*["']?(?:[a-z]+\s+)?)([a-z0-9._~+/=:-]{6,})"#
);
// Hugging Face, OpenAI and its likes, Stripe, GitHub, GitLab, Slack, AWS, Google, npm, PyPI, NVIDIA, Docker, JWT, …
pattern!(
    PREFIXES,
    concat!(
        r"(^|[^A-Za-z0-9])(",
        r"(?:hf_|sk-|[spr]k_live_|[spr]k_test_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|npm_|pypi-|nvapi-|dckr_pat_",
        r"|gsk_|r8_|api_org_|dop_v1_|shpat_|AIza|ya29\.|SG\.)[A-Za-z0-9_.-]{8,}",
        r"|(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA|ABIA|ACCA)[A-Z0-9]{12,}",
        r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){0,2})"
    )
);
pattern!(ASSIGNMENTS, r#"([A-Za-z][A-Za-z0-9_.-]*)(\\?["']?\s*[:=]\s*\\?["']?)([^\s"'<>\\]+)"#);
pattern!(FLAGS, r#"(--?[A-Za-z][A-Za-z0-9_-]*)(\s+["']?)([^\s"'<>]+)"#);
// Also as it is written in an address, and in JSON that escapes its slashes.
pattern!(
    HOMES,
    concat!(
        r#"(?i)((?:/|\\/|%2F|\\u002F)(?:home|Users)(?:/|\\/|%2F|\\u002F)|[A-Z]:(?:\\+|/)Users(?:\\+|/))"#,
        r#"([^/\\\s"'<>:;,%?&()]+)"#
    )
);
// A name with blanks ends where the next folder begins.
pattern!(WINDOWS_HOMES, r#"(?i)([A-Z]:\\+Users\\+)([^\\/"'<>:\r\n]+)(\\)"#);
pattern!(ADDRESSES, r"()[A-Za-z0-9._%+-]+@[A-Za-z](?:[A-Za-z0-9.-]*[A-Za-z0-9])?");
// Pictures in a page are long, and no secrets.
pattern!(LONG, r"(;base64,[A-Za-z0-9+/=]+)|(^|[^A-Za-z0-9_+-])([A-Za-z0-9_+-]{32,})");

#[cfg(test)]
mod tests {
    use super::*;
    use feedwater_profile::Record;
    use proptest::prelude::*;

    fn identities() -> Identities {
        let variables = [
            ("HOME", "/home/quillon"),
            ("USER", "quillon"),
            ("HOSTNAME", "gandalf.lab.example"),
            ("WANDB_API_KEY", "correct horse battery"),
            ("HTTPS_PROXY", "http://proxy-user:pr0xy-word@proxy:3128"),
            ("PATH", "/usr/bin"),
            ("PWD", "/usr/share"),
        ];
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        let mut identities = Identities::of_environment(variables);
        identities.add_accounts(
            "root:x:0:0:root:/root:/bin/sh\nquillon:x:1000:1000:Ada Quill-Ononymous,,,:/home/quillon:/bin/sh\nbad line\n\
             other:x:1001:1001:Some Body:/home/other:/bin/sh\n",
        );
        identities
    }

    fn scrubbed(text: &str) -> String {
        Scrubber::new(&identities(), &[text]).text(text)
    }

    #[test]
    fn names_and_homes() {
        for (text, expected) in [
            ("/home/quillon/data", "[home]/data"),
            ("/home/quillon", "[home]"),
            ("/scratch/quillon/x", "/scratch/[user]/x"),
            ("Quillon's run, quillon_2", "[user]'s run, [user]_2"),
            ("on gandalf and gandalf.lab.example.", "on [host] and [host]."),
            ("/Users/jane/set and jane", "/Users/[user]/set and [user]"),
            (r"C:\Users\Jane Doe\set, Jane Doe", r"C:\Users\[user]\set, [user]"),
            (r"C:\\Users\\jane\\set", r"C:\\Users\\[user]\\set"),
            ("file:///home/bob/x", "file:///home/[user]/x"),
            ("%2Fhome%2Fquillon%2Fx", "[home]%2Fx"),
            (r"\/home\/bob\/x and bob", r"\/home\/[user]\/x and [user]"),
            ("%2Fhome%2Fbob%2Fx", "%2Fhome%2F[user]%2Fx"),
            ("Ada Quill-Ononymous", "[user]"),
            ("/home/ubuntu/x", "/home/ubuntu/x"),
            ("mail jane.doe@example.org now", "mail [user]@[host] now"),
            ("root, data, feedwater, /usr/share/x", "root, data, feedwater, /usr/share/x"),
            ("Some Body", "Some Body"),
        ] {
            assert_eq!(scrubbed(text), expected, "{text}");
        }
    }

    #[test]
    fn secrets_of_every_form() {
        for secret in [
            "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345",
            "sk-proj-abcdef0123456789abcdef",
            "ghp_0123456789abcdefghijABCDEFGHIJ012345",
            "github_pat_11ABCDEFG0123456789_abcdefghijk",
            "AKIAIOSFODNN7EXAMPLE",
            "xoxb-123456789012-abcdefghijkl",
            "glpat-abcDEF0123456789wxyz",
            "AIzaSyA0123456789abcdefghijklmnopqrstuv",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
            "0123456789abcdef0123456789abcdef01234567",
            "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY0a",
        ] {
            for text in [
                secret.to_owned(),
                format!("with {secret}, and more"),
                format!("x={secret}"),
                format!("\"{secret}\""),
                format!("https://a.example/x?y={secret}&z=1"),
            ] {
                let out = scrubbed(&text);
                assert!(!out.contains(secret), "{text} → {out}");
                assert!(out.contains(SECRET), "{text} → {out}");
            }
        }
        for (text, expected) in [
            ("https://user:pass@host/x", "https://[secret]@host/x"),
            ("https://user:p@ss@host/x", "https://[secret]@host/x"),
            ("https://user:p/ss@host/x", "https://[secret]@host/x"),
            ("https://ghp_x@host/x", "https://[secret]@host/x"),
            ("https://host/x?token=abc", "https://host/x?[secret]"),
            ("s3://b/k?X-Amz-Signature=abc&v=1 end", "s3://b/k?[secret] end"),
            ("Authorization: Basic dXNlcg==", "Authorization: [secret] [secret]"),
            ("Bearer abc.def-123", "Bearer [secret]"),
            ("note: token=abc", "note: token=[secret]"),
            ("a=1;password=x,y z", "a=1;password=[secret] z"),
            ("--hf-token abc --steps 3", "--hf-token [secret] --steps 3"),
            ("apiKey: 'abc'", "apiKey: '[secret]'"),
            (r#"{\"secret\": \"abc\"}"#, r#"{\"secret\": \"[secret]\"}"#),
            ("db_password=hunter2", "db_password=[secret]"),
            ("login correct horse battery today", "login [secret] today"),
            ("pr0xy-word", "[secret]"),
        ] {
            assert_eq!(scrubbed(text), expected, "{text}");
        }
        let pem = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\nb";
        assert_eq!(scrubbed(pem), "a\n[secret]\nb");
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "tokenize 171 ms, max_tokens=448, tokenizer: whisper, tokens: 12",
            "author: nobody, key: clip00012.wav, keyboard=us",
            "LibriSpeech-train-clean-100-1272-128104-0000.flac",
            "common_voice_en_19676522.mp3, commonvoice/clips/a.mp3",
            "GPU-00000000-0000-0000-0000-000000000001 NVIDIA GeForce RTX 4090",
            "3.6 it/s of 15.4, p50 270 ms: decode 171 · read 22",
            "http://www.w3.org/2000/svg",
            "hf_transfer, sk-learn",
            "<img src=\"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUA/9hAFCAYAAACNbyblAAAAHElEQVQI12P4z8DAAA==\">",
            "<path d=\"M10.5 20L30 40Z\" class=\"fw-wait\"/>",
        ] {
            assert_eq!(scrubbed(text), text);
        }
    }

    #[test]
    fn names_of_variables() {
        for name in [
            "HF_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "WANDB_API_KEY",
            "apiKey",
            "DB_PASSWORD",
            "GITHUB_PAT",
            "access-token",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "TOKENIZERS_PARALLELISM",
            "max_tokens",
            "author",
            "key",
            "tokenize",
            "path",
            "compass",
            "PYTHONPATH",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    fn record() -> String {
        let head = serde_json::json!({"record": "feedwater", "version": 1, "run": {
            "name": "quillon-whisper", "host": {"os": "Linux", "cpu": "x", "cores": 2.0},
            "devices": [{"index": 0, "name": "GPU", "links": {"1": "SYS"}}],
            "settings": {"loader": "feedwater", "data": "/home/quillon/morse", "threads": 2},
        }});
        let step = serde_json::json!({"step": 0, "wall_nanos": 61_000_000, "wait_nanos": 900_000, "input": {
            "work_nanos": {"decode": 5, "/home/quillon/stage.py": 7},
            "waited_for": {"key": "https://u:p@h/a.wav?token=abc", "stage": "decode", "nanos": 12},
        }});
        let device = serde_json::json!({"device": {"index": 0, "at_nanos": 1, "busy_percent": 97.5}});
        format!("{head}\n{step}\n{device}\n{{\"end\":{{\"wall_nanos\":61000000}}}}\nhalf a li /home/quillon")
    }

    fn read(text: &str) -> Record {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.jsonl");
        std::fs::write(&path, text).unwrap();
        Record::open(&path).unwrap()
    }

    #[test]
    fn a_scrubbed_record_is_the_same_record_without_the_names() {
        let text = record();
        let out = Scrubber::new(&identities(), &[&text]).lines(&text);
        assert!(!out.contains("quillon"), "{out}");
        let (before, after) = (read(&text), read(&out));
        assert_eq!(after.run.settings.data.as_deref(), Some("[home]/morse"));
        assert_eq!(after.steps[0].wait_nanos, before.steps[0].wait_nanos);
        let input = after.steps[0].input.as_ref().unwrap();
        assert_eq!(input.work_nanos, [("decode".to_owned(), 5), ("[home]/stage.py".to_owned(), 7)].into());
        assert_eq!(input.waited_for.as_ref().unwrap().key, "https://[secret]@h/a.wav?[secret]");
        assert_eq!((before.devices, before.end), (after.devices, after.end));
        assert_eq!(before.damage, after.damage);
    }

    #[test]
    fn a_record_survives_users_who_are_called_like_its_fields() {
        let text = record();
        let before = read(&text);
        for name in FIELDS.iter().copied().chain(["feedwater", "nanos", "wall", "input"]) {
            let mine = Identities { users: vec![name.to_owned()], ..Identities::default() };
            let after = read(&Scrubber::new(&mine, &[]).lines(&text));
            assert_eq!(after.steps.len(), before.steps.len(), "{name}");
            assert_eq!(after.steps[0].wall_nanos, before.steps[0].wall_nanos, "{name}");
            assert_eq!(after.end, before.end, "{name}");
        }
    }

    /// The list has every field that a record can have.
    #[test]
    fn all_fields_of_a_record_are_known() {
        use feedwater_profile::record::{Blame, DeviceSample, End, Input, Run, Step};
        fn names(value: &Value, found: &mut BTreeSet<String>) {
            if let Value::Object(fields) = value {
                for (name, value) in fields {
                    found.insert(name.clone());
                    names(value, found);
                }
            }
        }
        let blame = Some(Blame::default());
        let input = Input {
            cpu_nanos: Some(1),
            queued_nanos: Some(1),
            waited_for: blame.clone(),
            slowest: blame,
            ready: Some(1),
            ..Input::default()
        };
        let step = Step {
            step: 1,
            epoch: 1,
            wall_nanos: 1,
            wait_nanos: 1,
            copy_nanos: 1,
            compute_nanos: 1,
            optimizer_nanos: 1,
            sync_nanos: 1,
            rows: 1,
            input: Some(input),
            mark: Some(String::new()),
        };
        let device = feedwater_profile::record::Device::default();
        let mut found = BTreeSet::new();
        for value in [
            serde_json::to_value(Run::default()).unwrap(),
            serde_json::to_value(step).unwrap(),
            serde_json::to_value(device).unwrap(),
            serde_json::to_value(DeviceSample::default()).unwrap(),
            serde_json::to_value(End::default()).unwrap(),
        ] {
            names(&value, &mut found);
        }
        let missing: Vec<&String> = found.iter().filter(|name| !FIELDS.contains(&name.as_str())).collect();
        assert_eq!(missing, Vec::<&String>::new());
    }

    proptest! {
        #[test]
        fn nothing_planted_survives_wherever_it_stands(
            before in "\\PC{0,30}", after in "\\PC{0,30}",
            planted in prop::sample::select(vec![
                "quillon", "QUILLON", "/home/quillon", "gandalf", "correct horse battery", "pr0xy-word",
            ]),
        ) {
            let text = format!("{before}{planted}{after}");
            let mut scrubber = Scrubber::new(&identities(), &[&text]);
            let out = scrubber.text(&text);
            for word in ["quillon", "gandalf", "correct horse battery", "pr0xy-word"] {
                prop_assert!(!out.to_lowercase().contains(word), "{} → {}", text, out);
            }
            prop_assert!(!scrubber.leaks(&out));
        }

        #[test]
        fn tokens_do_not_survive_between_other_words(
            before in "[ a-z:=\"(,/]{0,12}[ :=\"(,/]", token in "hf_[A-Za-z0-9]{20,34}", after in "[ \",)&\n]\\PC{0,20}",
        ) {
            let text = format!("{before}{token}{after}");
            let out = scrubbed(&text);
            prop_assert!(!out.contains(&token), "{} → {}", text, out);
        }

        #[test]
        fn scrubbing_twice_changes_nothing_more(text in "[a-z0-9=:/@.?& _\"\\\\-]{0,60}|\\PC{0,60}") {
            let once = scrubbed(&text);
            prop_assert_eq!(&scrubbed(&once), &once);
        }

        #[test]
        fn json_stays_json(text in "\\PC{0,40}", name in "\\PC{0,10}") {
            let value = serde_json::json!({ name: [text, 1, null, { "step": 3 }] });
            let out = Scrubber::new(&identities(), &[]).value(value.clone());
            prop_assert_eq!(out.as_object().unwrap().len(), 1);
        }
    }
}
