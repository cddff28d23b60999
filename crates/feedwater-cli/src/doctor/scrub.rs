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
const NOBODY: &str = "\
    root user users admin ubuntu debian ec2-user runner docker nobody jovyan vscode codespace vagrant \
    guest default shared public home data test train work main text localhost feedwater linuxbrew secret \
    host app [user]";

/// Fields of a record. They are its form, whatever somebody is called.
const FIELDS: &str = "cer error loss persistent_workers score scores shares steps wer \
    record version run step device end name writer started_unix_seconds clock planned_steps host devices \
    settings os cpu cores usable_cores quota_cores memory_bytes crowding fill nanos_per_mib cached first_nanos_per_mib handover_nanos disk index uuid simulated role \
    links loader task data threads batch_at_a_time prefetch batch_size dtype padding buckets pinned chunked \
    longest_seconds over_30s_share step_nanos epoch wall_nanos wait_nanos copy_nanos compute_nanos \
    optimizer_nanos sync_nanos rows input mark work_nanos cpu_nanos queued_nanos waited_for slowest \
    ready bytes padding_bytes padding_to_longest_bytes read_bytes key stage nanos at_nanos busy_percent \
    memory_busy_percent memory_used_bytes overhead_nanos tuned checks outcome id what hint environment";

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
                    let mut name = if is_field(&name) { name } else { self.text(&name) };
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
        let in_a_field = |letters: &str| FIELDS.split(' ').any(|field| field.contains(letters));
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

fn is_field(name: &str) -> bool {
    FIELDS.split(' ').any(|field| field == name)
}

fn is_nobody(name: &str) -> bool {
    NOBODY.split(' ').any(|nobody| nobody == name.to_lowercase())
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
mod tests;
