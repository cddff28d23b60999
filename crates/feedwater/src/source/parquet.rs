//! Parquet tables with a text column or with sound as Hugging Face stores it (`struct<bytes, path>`).
//!
//! A row group is the least that can be read, so rows are handed out of row groups that are kept decoded: a few of
//! them, shared by all threads. Shuffling knows about them ([`Source::blocks`]) and stays within a few at a time. The
//! reader is known to panic on malformed files, so it is run behind `catch_unwind`.

use std::{
    collections::VecDeque,
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use arrow_array::{
    Array, BinaryArray, BooleanArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array,
    Int64Array, RecordBatch, StringArray, StructArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_schema::DataType;
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder},
    },
    errors::ParquetError,
};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Kind, Source, ending, files_below, parquet_pages,
    row::{Columns, MEDIA_COLUMNS},
};
use crate::{
    error::{Error, Fault, Place, Result},
    sample::{Media, MediaPlace, Sample, Value, field},
};

/// How many row groups are kept decoded.
const KEPT_GROUPS: usize = 12;
/// A row group that is said to be larger than this is refused.
const MAX_GROUP_BYTES: i64 = 4 << 30;

/// What is usually the matter with a table that has no footer.
const UNREADABLE: &str = "it was cut off, or is something else by that name (a Git LFS pointer, an error page): copy or \
                          download it again";

/// Parquet tables.
pub struct Parquet {
    files: Vec<TableFile>,
    groups: Vec<Group>,
    /// The first row of each group.
    blocks: Vec<u64>,
    total: u64,
    fingerprint: u128,
    kept: Mutex<VecDeque<Kept>>,
}

struct TableFile {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    columns: Columns,
    name: String,
}

struct Group {
    file: u32,
    number: u32,
    bytes: i64,
}

/// A decoded group, or why there is none. The lock of the list is not held while one is being decoded; whoever asks for
/// it in the meantime waits for that group alone.
type Decoded = Arc<OnceLock<Result<Vec<RecordBatch>, Fault>>>;

struct Kept {
    group: usize,
    decoded: Decoded,
}

impl Parquet {
    /// Opens a table, or all tables of a folder in the order of their names.
    pub fn open(path: &Path) -> Result<Self> {
        let paths: Vec<PathBuf> = if path.is_dir() {
            files_below(path, |file| ending(file) == "parquet")?
        } else {
            vec![path.to_owned()]
        };
        let base = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let mut this = Self {
            files: Vec::new(),
            groups: Vec::new(),
            blocks: Vec::new(),
            total: 0,
            fingerprint: 0,
            kept: Mutex::default(),
        };
        let mut hasher = Xxh3::new();
        for path in paths {
            let file = File::open(&path).map_err(|error| Error::read(&path, error))?;
            // What a writer notes about its own memory (views, dictionaries) is of no use here: text is text.
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let metadata = isolated(|| ArrowReaderMetadata::load(&file, options))
                .map_err(|fault| Error::dataset_hint(&path, fault, UNREADABLE))?;
            let columns = columns(&path, &metadata)?;
            let name = path.strip_prefix(base).unwrap_or(&path).to_string_lossy().into_owned();
            hasher.update(name.as_bytes());
            let mut rows_left = metadata.metadata().file_metadata().num_rows();
            for (number, group) in metadata.metadata().row_groups().iter().enumerate() {
                rows_left = rows_left.wrapping_sub(group.num_rows());
                let rows = u64::try_from(group.num_rows()).map_err(|_| {
                    Error::dataset(
                        &path,
                        Fault::new(format!("row group {number} has a negative number of rows")),
                    )
                })?;
                hasher.update(&rows.to_le_bytes());
                hasher.update(&group.total_byte_size().to_le_bytes());
                if rows > 0 {
                    self::push_group(&mut this, number as u32, rows, group.total_byte_size());
                }
            }
            if rows_left != 0 {
                let reason = "the row groups have another number of rows than the table is said to have";
                return Err(Error::dataset(&path, Fault::new(reason)));
            }
            this.files.push(TableFile { path, file, metadata, columns, name });
        }
        this.fingerprint = hasher.digest128();
        Ok(this)
    }

    /// The group of a row, and the row's number in it.
    fn place(&self, index: u64) -> (usize, u64) {
        let group = self.blocks.partition_point(|first| *first <= index) - 1;
        (group, index - self.blocks[group])
    }

    /// The table of a row, and the row's number in it.
    fn row_of_file(&self, index: u64) -> (&TableFile, u64) {
        let file = self.groups[self.place(index).0].file;
        let first = self.groups.partition_point(|group| group.file < file);
        (&self.files[file as usize], index - self.blocks[first])
    }

    /// A group, decoded.
    fn decoded(&self, group: usize) -> Decoded {
        let cell = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let known = kept.iter().position(|kept| kept.group == group);
            let entry = known
                .and_then(|at| kept.remove(at))
                .unwrap_or_else(|| Kept { group, decoded: Decoded::default() });
            let cell = entry.decoded.clone();
            kept.push_back(entry);
            if kept.len() > KEPT_GROUPS {
                kept.pop_front();
            }
            cell
        };
        cell.get_or_init(|| self.decode(group));
        cell
    }

    fn decode(&self, group: usize) -> Result<Vec<RecordBatch>, Fault> {
        let Group { file, number, bytes } = self.groups[group];
        let table = &self.files[file as usize];
        if bytes > MAX_GROUP_BYTES {
            return Err(Fault::new(format!("row group {number} is said to have {bytes} bytes")));
        }
        isolated(|| {
            let wanted =
                [table.columns.media.as_deref(), table.columns.text.as_deref(), table.columns.label()];
            let schema = table.metadata.parquet_schema();
            let roots = table.metadata.schema().fields().iter().enumerate();
            let roots =
                roots.filter(|(_, field)| wanted.contains(&Some(field.name().as_str()))).map(|(at, _)| at);
            let projection = ProjectionMask::roots(schema, roots);
            for (leaf, column) in
                table.metadata.metadata().row_group(number as usize).columns().iter().enumerate()
            {
                if projection.leaf_included(leaf) {
                    parquet_pages::check(&table.file, column)
                        .map_err(|fault| ParquetError::General(fault.reason))?;
                }
            }
            ParquetRecordBatchReaderBuilder::new_with_metadata(
                // Opened anew: a clone would share its position with other threads, and this reader seeks.
                File::open(&table.path)?,
                table.metadata.clone(),
            )
            .with_row_groups(vec![number as usize])
            // The cells of a column of one batch together must stay below 2 GiB.
            .with_batch_size(if table.columns.media.is_some() { 64 } else { 1024 })
            .with_projection(projection)
            .build()?
            .collect::<Result<Vec<_>, _>>()
            .map_err(ParquetError::from)
        })
    }

    fn fields(table: &TableFile, batch: &RecordBatch, row: usize, sample: &mut Sample) -> Result<(), String> {
        let column = |name: &Option<String>| batch.column_by_name(name.as_deref()?).cloned();
        if let Some(column) = column(&table.columns.media) {
            let media = audio_cell(&*column, row)?;
            let path: Arc<Path> = table.path.as_path().into();
            sample.set(field::AUDIO, Media { path, place: MediaPlace::Bytes(media), window: None });
        }
        if let Some(column) = column(&table.columns.text) {
            sample.set(field::TEXT, text_cell(&*column, row).ok_or("the text is missing")?.to_owned());
        }
        if let Some(column) = table.columns.label().and_then(|name| batch.column_by_name(name))
            && let Some(number) = number_cell(&**column, row)
        {
            if column.is_null(row) {
                return Err("the label is missing".to_owned());
            }
            sample.set(field::LABELS, Value::Number(number));
        }
        Ok(())
    }
}

/// Which columns are wanted, after a look at what they hold.
fn columns(path: &Path, metadata: &ArrowReaderMetadata) -> Result<Columns> {
    let fields = metadata.schema().fields();
    let kind = |name: &str| fields.iter().find(|field| field.name() == name).map(|field| field.data_type());
    let is_sound = |kind: &DataType| match kind {
        DataType::Struct(members) => {
            members.iter().any(|member| member.name() == "bytes" && *member.data_type() == DataType::Binary)
        }
        other => *other == DataType::Binary,
    };
    let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    // A file's name may stand beside the sound. Only `audio` can be nothing else.
    let usable =
        |name: &&str| *name == "audio" || !MEDIA_COLUMNS.contains(name) || kind(name).is_some_and(is_sound);
    let columns = Columns::among(&names.iter().copied().filter(usable).collect::<Vec<_>>());
    if columns.media.is_none() && columns.text.is_none() {
        return Err(Error::config_hint(
            format!("`{}` has neither a text nor an audio column, only {}", path.display(), names.join(", ")),
            "call them `text` and `audio`",
        ));
    }
    let wrong = |name: &str, kind: &DataType, wanted: &str| {
        let reason = format!("the column `{name}` holds {kind}, not {wanted}");
        Err(Error::dataset(path, Fault::new(reason)))
    };
    match (columns.media.as_deref(), columns.media.as_deref().and_then(kind)) {
        (Some(name), Some(kind)) if !is_sound(kind) => {
            return wrong(name, kind, "sound (bytes, or a struct of `bytes`)");
        }
        _ => {}
    }
    match (columns.text.as_deref(), columns.text.as_deref().and_then(kind)) {
        (Some(name), Some(kind)) if *kind != DataType::Utf8 => wrong(name, kind, "text"),
        _ => Ok(columns),
    }
}

fn push_group(this: &mut Parquet, number: u32, rows: u64, bytes: i64) {
    this.blocks.push(this.total);
    this.total = this.total.saturating_add(rows);
    this.groups.push(Group { file: this.files.len() as u32, number, bytes });
}

fn isolated<T>(run: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| Fault::new(error.to_string())),
        Err(_) => Err(Fault::new("the reader panicked on it: the file is malformed")),
    }
}

fn text_cell(column: &dyn Array, row: usize) -> Option<&str> {
    if column.is_null(row) {
        return None;
    }
    let any = column.as_any();
    any.downcast_ref::<StringArray>().map(|array| array.value(row))
}

/// A number of any type. Labels that are names are left to the text.
fn number_cell(column: &dyn Array, row: usize) -> Option<f64> {
    macro_rules! any_of {
        ($($array:ident)*) => {$(
            if let Some(numbers) = column.as_any().downcast_ref::<$array>() {
                return Some(numbers.value(row) as f64);
            }
        )*};
    }
    any_of!(Int64Array Int32Array Int16Array Int8Array UInt64Array UInt32Array UInt16Array UInt8Array Float64Array
            Float32Array);
    column.as_any().downcast_ref::<BooleanArray>().map(|array| f64::from(u8::from(array.value(row))))
}

/// The bytes of a sound: the column itself, or the member `bytes` of it.
fn audio_cell(column: &dyn Array, row: usize) -> Result<Vec<u8>, String> {
    if column.is_null(row) {
        return Err("the audio is missing".to_owned());
    }
    let any = column.as_any();
    if let Some(cells) = any.downcast_ref::<StructArray>() {
        let bytes = cells.column_by_name("bytes").ok_or("the audio column has no member `bytes`")?;
        return audio_cell(&**bytes, row);
    }
    any.downcast_ref::<BinaryArray>()
        .map(|array| array.value(row).to_vec())
        .ok_or_else(|| format!("the audio column holds {}, not bytes", column.data_type()))
}

impl Source for Parquet {
    fn kind(&self) -> Kind {
        Kind::Parquet
    }

    fn len(&self) -> u64 {
        self.total
    }

    fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    fn key(&self, index: u64) -> String {
        let (file, row) = self.row_of_file(index);
        format!("{}#{row}", file.name)
    }

    fn sample(&self, index: u64) -> Result<Sample, Fault> {
        let (group, row) = self.place(index);
        let table = &self.files[self.groups[group].file as usize];
        let named = |fault: Fault| Fault {
            place: Place::Row(self.row_of_file(index).1),
            ..fault.in_file(&table.path)
        };
        let decoded = self.decoded(group);
        let Some(batches) = decoded.get() else { return Err(Fault::new("the row group was not decoded")) };
        let mut row = row as usize;
        for batch in batches.as_ref().map_err(|fault| named(fault.clone()))? {
            if row < batch.num_rows() {
                let mut sample = Sample::new(self.key(index));
                let filled = isolated(|| Ok(Self::fields(table, batch, row, &mut sample)));
                filled.and_then(|result| result.map_err(Fault::new)).map_err(named)?;
                return Ok(sample);
            }
            row -= batch.num_rows();
        }
        Err(named(Fault::new("the row group has fewer rows than its header says")))
    }

    fn blocks(&self) -> Option<&[u64]> {
        Some(&self.blocks)
    }
}
