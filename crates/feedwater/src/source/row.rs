//! One row of metadata, however it is written.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize,
    de::{Deserializer as _, IgnoredAny, MapAccess, Visitor},
};

use super::lines::Lines;
use crate::{
    error::{Error, Fault, Result},
    sample::Span,
};

/// The names that a column with the file's name goes by; the first that is there counts.
pub(super) const MEDIA_COLUMNS: [&str; 9] =
    ["file_name", "audio_filepath", "audio", "path", "file", "audio_path", "wav", "npy", "filename"];
pub(super) const TEXT_COLUMNS: [&str; 7] =
    ["text", "transcription", "sentence", "transcript", "normalized_text", "normalised", "content"];
pub(super) const LABEL_COLUMNS: [&str; 3] = ["label", "class", "target"];
const SPAN_COLUMNS: [&str; 2] = ["words", "segments"];

/// What a row can say.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) media: Option<String>,
    pub(super) text: Option<String>,
    pub(super) duration: Option<f64>,
    pub(super) offset: Option<f64>,
    pub(super) label: Option<Label>,
    pub(super) spans: Vec<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a label is neither a number nor a name")]
pub(super) enum Label {
    Number(f64),
    Name(String),
}

/// How rows are written.
pub(super) enum Style {
    Json,
    Csv { separator: u8, columns: Vec<Option<Role>>, quoted: bool },
    LjSpeech,
    Path,
}

/// What the columns are called that say what a [`Row`] holds.
#[derive(Debug, Default, Clone)]
pub(super) struct Columns {
    pub(super) media: Option<String>,
    pub(super) text: Option<String>,
    label: Option<String>,
    spans: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Media,
    Text,
    Duration,
    Offset,
    Label,
    Spans,
}

impl Columns {
    pub(super) fn among(names: &[&str]) -> Self {
        let find =
            |known: &[&str]| known.iter().find(|name| names.contains(name)).map(|name| (*name).to_owned());
        Self {
            media: find(&MEDIA_COLUMNS),
            text: find(&TEXT_COLUMNS),
            label: find(&LABEL_COLUMNS),
            spans: find(&SPAN_COLUMNS),
        }
    }

    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    fn role(&self, name: &str) -> Option<Role> {
        let is = |column: &Option<String>| column.as_deref() == Some(name);
        match name {
            "duration" => Some(Role::Duration),
            "offset" => Some(Role::Offset),
            _ if is(&self.media) => Some(Role::Media),
            _ if is(&self.text) => Some(Role::Text),
            _ if is(&self.label) => Some(Role::Label),
            _ if is(&self.spans) => Some(Role::Spans),
            _ => None,
        }
    }
}

impl Style {
    /// JSON lines. Objects need not have the same members, so each row is asked anew what it has; the first few are looked
    /// at for whether any of them names a file.
    pub(super) fn json(lines: &Lines) -> Result<Self> {
        let names = json_columns(lines)?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Columns::among(&names).checked(lines.path(), &names)?;
        Ok(Self::Json)
    }

    /// CSV or TSV; the first record is the header. Only CSV has quotes: Common Voice's tables use none.
    pub(super) fn csv(lines: &Lines, separator: u8) -> Result<Self> {
        if lines.is_empty() {
            return Err(Error::dataset_hint(
                lines.path(),
                Fault::new("the table is empty, it has not even a header"),
                "its first line names the columns, such as `file_name,text`; a line for each file follows",
            ));
        }
        let mut bytes = Vec::new();
        lines.read(0, &mut bytes).map_err(|fault| Error::dataset(lines.path(), fault))?;
        let quoted = separator == b',';
        let header = cells(&bytes, separator, quoted)
            .map_err(|reason| Error::dataset(lines.path(), Fault::at_line(1, reason)))?;
        let names: Vec<&str> = header.iter().map(str::trim).collect();
        if let ([only], Some(other)) = (names.as_slice(), other_separator(&names)) {
            let name = if other == '\t' { "tabs".to_owned() } else { format!("`{other}`") };
            return Err(Error::config_hint(
                format!("`{}` separates its columns by {name}: `{only}`", lines.path().display()),
                "separate them by commas in a file that ends in .csv, by tabs in one that ends in .tsv",
            ));
        }
        let columns = Columns::among(&names).checked(lines.path(), &names)?;
        Ok(Self::Csv { separator, quoted, columns: names.iter().map(|name| columns.role(name)).collect() })
    }

    /// Reads a row. The error is the reason; the caller knows the line.
    pub(super) fn parse(&self, bytes: &[u8]) -> Result<Row, String> {
        match self {
            Self::Json => parse_json(bytes, |_| true),
            Self::Csv { separator, columns, quoted } => {
                let cells = cells(bytes, *separator, *quoted)?;
                if cells.len() != columns.len() {
                    return Err(format!("{} cells where the header has {}", cells.len(), columns.len()));
                }
                let mut row = Row::default();
                for (cell, role) in cells.iter().zip(columns) {
                    if let Some(role) = role {
                        row.set_cell(*role, cell)?;
                    }
                }
                Ok(row)
            }
            Self::LjSpeech => {
                let line = utf8(bytes)?;
                let mut parts = line.split('|');
                let media = parts.next().map(|id| id.trim().to_owned());
                let raw = parts.next().ok_or("one cell where LJSpeech has `id|raw|normalised`")?;
                let text = parts.next().filter(|text| !text.trim().is_empty()).unwrap_or(raw);
                Ok(Row { media, text: Some(text.trim().to_owned()), ..Row::default() })
            }
            Self::Path => Ok(Row { media: Some(utf8(bytes)?.trim().to_owned()), ..Row::default() }),
        }
    }
}

impl Row {
    fn set_cell(&mut self, role: Role, cell: &str) -> Result<(), String> {
        let number = |cell: &str| finite(cell).ok_or_else(|| format!("`{cell}` is not a number"));
        match role {
            Role::Media => self.media = Some(cell.to_owned()),
            Role::Text => self.text = Some(cell.to_owned()),
            Role::Duration | Role::Offset | Role::Spans if cell.trim().is_empty() => {}
            Role::Duration => self.duration = Some(number(cell)?),
            Role::Offset => self.offset = Some(number(cell)?),
            Role::Label => {
                self.label = Some(number(cell).map_or_else(|_| Label::Name(cell.to_owned()), Label::Number));
            }
            Role::Spans => {
                let spans: Vec<SpanRow> = serde_json::from_str(cell).map_err(|error| error.to_string())?;
                self.spans = spans.into_iter().map(Span::from).collect();
            }
        }
        Ok(())
    }
}

/// What the columns seem to be separated by, where the header is one cell.
fn other_separator(names: &[&str]) -> Option<char> {
    let [only] = names else { return None };
    let known = |separator: &char| {
        let parts: Vec<&str> = only.split(*separator).map(|part| part.trim().trim_matches('"')).collect();
        parts.len() > 1 && parts.iter().any(|part| role_of(part).is_some())
    };
    [';', '\t', ',', '|'].into_iter().find(known)
}

/// A number. `nan` and `inf` would parse, but nothing in a table is that long or of that class.
pub(super) fn finite(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes)
        .map_err(|error| format!("not UTF-8 from byte {} of the line on", error.valid_up_to()))
}

fn cells(bytes: &[u8], separator: u8, quoted: bool) -> Result<csv::StringRecord, String> {
    if memchr::memchr(0, bytes).is_some() {
        return Err("a NUL byte in the row".to_owned());
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .delimiter(separator)
        .quoting(quoted)
        .flexible(true)
        // By default a return alone ends a record, too; the lines were not found that way.
        .terminator(csv::Terminator::Any(b'\n'))
        .from_reader(bytes);
    let mut record = csv::StringRecord::new();
    reader.read_record(&mut record).map_err(|error| error.to_string())?;
    if reader.position().byte() < bytes.len() as u64 {
        return Err("the row ends in its midst: a quote is out of place".to_owned());
    }
    Ok(record)
}

/// The names of all members of the first few lines.
pub(super) fn json_columns(lines: &Lines) -> Result<Vec<String>> {
    let mut bytes = Vec::new();
    let mut first_error = None;
    let mut names = std::collections::BTreeSet::new();
    for index in 0..lines.len().min(super::sniff::JSON_LINES as u64) {
        let parsed = lines.read(index, &mut bytes).and_then(|()| {
            serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&bytes)
                .map_err(|error| lines.fault(index, format!("not a JSON object: {error}")))
        });
        match parsed {
            Ok(row) => names.extend(row.into_iter().map(|(name, _)| name)),
            Err(fault) => first_error = first_error.or(Some(fault)),
        }
    }
    if names.is_empty() {
        let hint = if lines.is_empty() {
            r#"write a line such as {"file_name":"a.wav","text":"hello"} for each file, or delete it to open the files alone"#
        } else {
            "every line is a JSON object of its own; a JSON array can be turned into lines with `jq -c '.[]'`"
        };
        let fault = first_error.unwrap_or_else(|| Fault::new("the file is empty"));
        return Err(Error::dataset_hint(lines.path(), fault, hint));
    }
    Ok(names.into_iter().collect())
}

/// What a member of this name says, and how much the name is to be preferred over others for the same: less is more.
fn role_of(name: &str) -> Option<(Role, usize)> {
    let among = |names: &[&str], role| names.iter().position(|known| *known == name).map(|rank| (role, rank));
    match name {
        "duration" => Some((Role::Duration, 0)),
        "offset" => Some((Role::Offset, 0)),
        _ => among(&TEXT_COLUMNS, Role::Text)
            .or_else(|| among(&MEDIA_COLUMNS, Role::Media))
            .or_else(|| among(&LABEL_COLUMNS, Role::Label))
            .or_else(|| among(&SPAN_COLUMNS, Role::Spans)),
    }
}

/// Reads the wanted members of an object and skips the rest without building it, or minding what they are.
pub(super) fn parse_json(bytes: &[u8], wanted: fn(Role) -> bool) -> Result<Row, String> {
    struct Reader(fn(Role) -> bool);

    impl<'de> Visitor<'de> for Reader {
        type Value = Row;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a JSON object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
            let mut row = Row::default();
            let mut ranks = [usize::MAX; 6];
            while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                let role =
                    role_of(&name).filter(|(role, rank)| self.0(*role) && *rank < ranks[*role as usize]);
                let Some((role, rank)) = role else {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                };
                ranks[role as usize] = rank;
                match role {
                    Role::Media => row.media = map.next_value()?,
                    Role::Text => row.text = map.next_value()?,
                    Role::Duration => row.duration = map.next_value()?,
                    Role::Offset => row.offset = map.next_value()?,
                    Role::Label => row.label = map.next_value()?,
                    Role::Spans => {
                        let spans: Option<Vec<SpanRow>> = map.next_value()?;
                        row.spans = spans.unwrap_or_default().into_iter().map(Span::from).collect();
                    }
                }
            }
            Ok(row)
        }
    }

    let mut json = serde_json::Deserializer::from_slice(bytes);
    let row = json.deserialize_map(Reader(wanted)).and_then(|row| json.end().map(|()| row));
    row.map_err(|error| {
        // The place that serde_json names is in the line; ours is the line in the file.
        format!(
            "{} (column {})",
            error.to_string().split(" at line").next().unwrap_or_default(),
            error.column()
        )
    })
}

/// A word or a segment as tools write them: Whisper says `text`, most others `word`.
#[derive(Deserialize)]
struct SpanRow {
    #[serde(alias = "word", alias = "label")]
    text: String,
    #[serde(alias = "start_time", alias = "begin")]
    start: f64,
    #[serde(alias = "end_time", alias = "stop")]
    end: f64,
}

impl From<SpanRow> for Span {
    fn from(row: SpanRow) -> Self {
        Self { start_seconds: row.start, end_seconds: row.end, text: row.text }
    }
}
