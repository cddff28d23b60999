//! Where do kept samples lie, who writes them, and which go when there is no room?
//!
//! A folder of shards ([`super::shard`]). A process reads all shards of its chain and appends to one of its own, so several
//! may share a folder without waiting for each other; what others have added is looked for when something is missing. A
//! later entry of the same key stands for an earlier one: what was damaged and made anew is whole again.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use feedwater_profile::machine;

use super::{
    key::{ByKey, Chain, Key},
    shard::{self, Checking, Head, Record, Unusable, paths, size},
};
use crate::read::{
    mapped::{Mapped, View},
    read_exact_at, write_all_at,
};

/// Writes bytes at a place of a file.
pub(crate) type Write = fn(&File, &[u8], u64) -> io::Result<()>;
pub(crate) const WRITE: Write = write_all_at;

/// A shard is closed when it has this many bytes, so that there is something to take away when room is needed.
const SHARD_BYTES: u64 = 256 << 20;
/// More than a head: the last page of so many bytes is beyond the end of a shard.
const BEYOND: usize = 1 << 20;
/// What is left to everybody else on the disk, where nobody has set a ceiling.
const RESERVE_BYTES: u64 = 2 << 30;
/// After a write has failed, none is tried for this long.
const PAUSE: Duration = Duration::from_secs(10);
/// How often others' shards are looked at, while entries are missing.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A shard that was used this recently may be in use; one of the same chain may be what this run comes to later.
const IN_USE: Duration = Duration::from_mins(10);
const IN_USE_OF_CHAIN: Duration = Duration::from_hours(24);
/// So many files stay open: a process may have a thousand or so, and the dataset wants some too.
const KEPT_OPEN: usize = 256;
/// Where there is no room, none is looked for again for this long.
const ROOM_PAUSE: Duration = Duration::from_mins(1);
/// How often the time at which a shard was used is written down.
const TOUCH_EVERY: Duration = Duration::from_mins(1);

/// What has happened to it.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Entries that were not what was written, each of which was made anew.
    pub(super) damaged: AtomicU64,
    /// Entries that could not be written.
    pub(super) failed: AtomicU64,
    /// Entries that were not, for want of room or because a write had just failed.
    pub(super) refused: AtomicU64,
    pub(super) written_bytes: AtomicU64,
}

/// The shards of one chain.
pub(super) struct Shards {
    folder: PathBuf,
    chain: Chain,
    most_bytes: Option<u64>,
    write: Write,
    index: RwLock<Index>,
    /// When others' shards were looked for; held by whoever does. Nobody who finds an entry waits for that.
    looked: Mutex<Option<Instant>>,
    /// How often an entry was asked for.
    lookups: AtomicU64,
    writer: Mutex<Writer>,
    pub(super) counts: Counts,
    /// What went wrong first, for people.
    trouble: Mutex<Option<String>>,
}

#[derive(Default)]
struct Index {
    places: ByKey<Place>,
    shards: Vec<Arc<Shard>>,
}

#[derive(Clone, Copy)]
struct Place {
    shard: u32,
    record: Record,
}

struct Shard {
    name: String,
    head: Head,
    /// Looked at now and then.
    index: PathBuf,
    data: PathBuf,
    /// The data, once they were used, if they stay open: a cache may have more shards than a process may have files. What nobody has
    /// used is not open, so that there is room when it is taken away.
    open: OnceLock<Option<File>>,
    stays_open: bool,
    /// The data, to be read in place; nothing where that cannot be.
    mapped: OnceLock<Option<Arc<Mapped>>>,
    /// Something of it was not what was written.
    doubtful: AtomicBool,
    /// Records that were read.
    seen: Mutex<u32>,
    touched: Mutex<Option<Instant>>,
}

/// The shard that this process appends to.
#[derive(Default)]
struct Writer {
    current: Option<Open>,
    /// There was no room, or a write has failed.
    not_before: Option<Instant>,
}

struct Open {
    at: usize,
    shard: u128,
    index: File,
    data: File,
    end: u64,
    head_bytes: u64,
    records: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shards {
    /// What there is of a chain in a folder. A folder that cannot be read or made holds nothing.
    pub(super) fn open(folder: &Path, chain: Chain, most_bytes: Option<u64>, write: Write) -> Self {
        let shards = Self {
            folder: folder.to_owned(),
            chain,
            most_bytes,
            write,
            index: RwLock::default(),
            looked: Mutex::default(),
            lookups: AtomicU64::new(0),
            writer: Mutex::default(),
            counts: Counts::default(),
            trouble: Mutex::default(),
        };
        if let Err(error) = fs::create_dir_all(folder) {
            shards.trouble(format!("`{}` cannot be made: {error}", folder.display()));
        }
        shards.look(true);
        shards
    }

    /// How many entries are known.
    pub(super) fn len(&self) -> usize {
        self.index.read().unwrap_or_else(PoisonError::into_inner).places.len()
    }

    /// What went wrong first.
    pub(super) fn first_trouble(&self) -> Option<String> {
        lock(&self.trouble).clone()
    }

    fn trouble(&self, what: String) {
        lock(&self.trouble).get_or_insert(what);
    }

    /// How many bytes the entry of a key has.
    pub(super) fn find(&self, key: Key) -> Option<Found> {
        self.lookups.fetch_add(1, Relaxed);
        if let Some(found) = self.known(key) {
            return Some(found);
        }
        self.look(false).then(|| self.known(key)).flatten()
    }

    fn known(&self, key: Key) -> Option<Found> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let place = index.places.get(&key)?;
        Some(Found { shard: index.shards[place.shard as usize].clone(), place: *place })
    }

    /// Reads an entry into bytes of its length. Whether it is what was written; where it is not, it is forgotten.
    pub(super) fn read(&self, found: &Found, into: &mut [u8]) -> bool {
        let record = &found.place.record;
        let read = found.shard.with_data(|data| {
            read_exact_at(data, into, record.offset).map_err(|fault| io::Error::other(fault.reason))
        });
        if read.is_ok() && shard::check(record.key, into) == record.check {
            found.shard.touch();
            return true;
        }
        // Somebody made room.
        if read.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.forget(record);
            return false;
        }
        self.counts.damaged.fetch_add(1, Relaxed);
        self.trouble(format!("an entry of `{}.data` is damaged", found.shard.name));
        self.forget(record);
        false
    }

    fn forget(&self, record: &Record) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        if index.places.get(&record.key).is_some_and(|place| place.record == *record) {
            index.places.remove(&record.key);
        }
    }

    /// Looks for what others have added. Whether there was anything.
    fn look(&self, first: bool) -> bool {
        // Somebody looks already, or has just looked.
        let Ok(mut looked) = self.looked.try_lock() else { return false };
        if !first && looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return false;
        }
        *looked = Some(Instant::now());
        let known: Vec<Arc<Shard>> = self.index.read().unwrap_or_else(PoisonError::into_inner).shards.clone();
        let mut new = Vec::new();
        for name in names(&self.folder, &shard::prefix(&self.chain)) {
            if known.iter().any(|shard| shard.name == name) {
                continue;
            }
            let stays_open = known.len() + new.len() < KEPT_OPEN;
            match Shard::open(&self.folder, &name, &self.chain, stays_open) {
                Ok(shard) => new.push(Arc::new(shard)),
                // Said once: another look finds it again.
                Err(_) if !first => {}
                Err(Unusable::NotThere) => {}
                Err(Unusable::Elses(why)) => self.trouble(format!("`{name}` is not used: {why}")),
                Err(Unusable::Damaged(why)) => {
                    self.counts.damaged.fetch_add(1, Relaxed);
                    self.trouble(format!("`{name}` is not used: {why}"));
                }
            }
        }
        let mut places = Vec::new();
        for (at, shard) in known.iter().enumerate() {
            self.catch_up(shard, at, &mut places);
        }
        let of_known = places.len();
        let mut of_new = Vec::new();
        for shard in new {
            let from = places.len();
            self.catch_up(&shard, 0, &mut places);
            of_new.push((shard, from..places.len()));
        }
        // Nobody else adds shards but the one who writes, and that is its own.
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let before = index.places.len();
        index.places.extend(places[..of_known].iter().copied());
        for (shard, range) in of_new {
            if index.shards.iter().any(|known| known.name == shard.name) {
                continue;
            }
            index.shards.push(shard);
            let at = index.shards.len() as u32 - 1;
            index
                .places
                .extend(places[range].iter().map(|(key, place)| (*key, Place { shard: at, ..*place })));
        }
        index.places.len() > before
    }

    /// Reads the records that a shard has more than last time.
    fn catch_up(&self, shard: &Shard, at: usize, places: &mut Vec<(Key, Place)>) {
        let mut seen = lock(&shard.seen);
        let known = shard.head.bytes + u64::from(*seen) * shard::RECORD as u64;
        if fs::metadata(&shard.index).is_ok_and(|about| about.len() < known + shard::RECORD as u64) {
            return;
        }
        let index_file = File::open(&shard.index);
        let Some(records) = index_file.and_then(|file| shard::read_records(&file, &shard.head, *seen)).ok()
        else {
            return;
        };
        let bytes = fs::metadata(&shard.data).map_or(0, |about| about.len());
        let count = records.len();
        for (number, record) in records.into_iter().enumerate() {
            match record {
                Some(record) if record.end() <= bytes => {
                    places.push((record.key, Place { shard: at as u32, record }));
                }
                // The last may still be being written.
                None if number + 1 == count => return,
                _ => {
                    self.counts.damaged.fetch_add(1, Relaxed);
                    self.trouble(format!(
                        "a record of `{}.index` is damaged, or its entry is gone",
                        shard.name
                    ));
                }
            }
            *seen += 1;
        }
    }

    /// Adds an entry. Whether it was; where there is no room, or nobody may write, it is not, and nothing is lost by it.
    pub(super) fn append(&self, key: Key, entry: &[u8]) -> bool {
        let Ok(length) = u32::try_from(entry.len()) else { return false };
        let mut writer = lock(&self.writer);
        // An epoch may begin while its last samples are still being made: two may have made this one.
        if self.known(key).is_some() {
            return true;
        }
        if writer.not_before.is_some_and(|until| Instant::now() < until) {
            self.counts.refused.fetch_add(1, Relaxed);
            return false;
        }
        match self.put(&mut writer, key, entry, length) {
            Ok(Some(place)) => {
                let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
                index.places.insert(key, place);
                self.counts.written_bytes.fetch_add(entry.len() as u64, Relaxed);
                true
            }
            Ok(None) => {
                self.counts.refused.fetch_add(1, Relaxed);
                writer.not_before = Some(Instant::now() + ROOM_PAUSE);
                let limit = if self.most_bytes.is_some() {
                    "as large as it may be"
                } else {
                    "full, but for 2 GB of the disk that are left free unless a size is given"
                };
                self.trouble(format!(
                    "`{}` is {limit}: what does not fit is made anew",
                    self.folder.display()
                ));
                false
            }
            Err(error) => {
                writer.not_before = Some(Instant::now() + PAUSE);
                self.counts.failed.fetch_add(1, Relaxed);
                self.trouble(format!("`{}` cannot be written: {error}", self.folder.display()));
                false
            }
        }
    }

    fn put(&self, writer: &mut Writer, key: Key, entry: &[u8], length: u32) -> io::Result<Option<Place>> {
        let most = self.most_bytes.map_or(SHARD_BYTES, |most| SHARD_BYTES.min(most / 8));
        let fits = writer.current.as_ref().is_some_and(|own| {
            own.end + u64::from(length) <= most.max(u64::from(length)) + shard::DATA_HEAD
                && own.records < u32::MAX
        });
        if !fits {
            if !self.make_room(most.max(u64::from(length))) {
                return Ok(None);
            }
            writer.current = None;
            writer.current = Some(self.begin()?);
        }
        let Some(own) = &mut writer.current else { return Ok(None) };
        // A write that fails half-way is written over by the next: `end` moves when all is there.
        let record = Record { key, offset: own.end, length, check: shard::check(key, entry) };
        (self.write)(&own.data, entry, own.end)?;
        let at = own.head_bytes + u64::from(own.records) * shard::RECORD as u64;
        (self.write)(&own.index, &record.write(own.shard, own.records), at)?;
        own.end = record.end();
        own.records += 1;
        Ok(Some(Place { shard: own.at as u32, record }))
    }

    /// Begins a shard of this process' own.
    fn begin(&self) -> io::Result<Open> {
        let number = shard::new_number();
        let name = shard::name(&self.chain, number);
        let create = |ending: &str| {
            let path = self.folder.join(format!("{name}.{ending}"));
            File::options().read(true).write(true).create_new(true).open(path)
        };
        fs::create_dir_all(&self.folder)?;
        let (data, head) = (create("data")?, shard::index_head(&self.chain, number));
        let begun = (self.write)(&data, &shard::data_head(number), 0)
            .and_then(|()| create("index"))
            .and_then(|index| (self.write)(&index, &head, 0).map(|()| index))
            .map(|index| (Shard::open(&self.folder, &name, &self.chain, true), index));
        let (shard, index) = match begun {
            Ok((Ok(shard), index)) => (shard, index),
            other => {
                for ending in ["data", "index"] {
                    let _ = fs::remove_file(self.folder.join(format!("{name}.{ending}")));
                }
                return Err(other.err().unwrap_or_else(|| io::Error::other("what was written is not there")));
            }
        };
        shard.touch();
        let mut index_of = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index_of.shards.push(Arc::new(shard));
        let at = index_of.shards.len() - 1;
        let (end, head_bytes) = (shard::DATA_HEAD, head.len() as u64);
        Ok(Open { at, shard: number, index, data, end, head_bytes, records: 0 })
    }

    /// Takes away shards that nobody has used for long, until there is room. Whether there is.
    fn make_room(&self, bytes: u64) -> bool {
        let mut held: Vec<(SystemTime, u64, String)> = names(&self.folder, "")
            .into_iter()
            .map(|name| (used(&self.folder, &name), size(&self.folder, &name), name))
            .collect();
        let mut total: u64 = held.iter().map(|(_, bytes, _)| bytes).sum();
        let free = || machine::room(&self.folder).map_or(u64::MAX, |room| room.free_bytes);
        let fits = |total: u64| match self.most_bytes {
            Some(most) => total + bytes <= most,
            None => free() >= bytes + RESERVE_BYTES,
        };
        held.sort();
        let prefix = shard::prefix(&self.chain);
        let (mine, settled) = {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            let touched = index.shards.iter().filter(|shard| lock(&shard.touched).is_some());
            let mine: Vec<String> = touched.map(|shard| shard.name.clone()).collect();
            // A run that has only begun comes to what it has not used yet.
            (mine, self.lookups.load(Relaxed) >= 2 * index.places.len() as u64)
        };
        for (used, bytes, name) in held {
            if fits(total) {
                return true;
            }
            let own = name.starts_with(&prefix);
            let limit = if own { IN_USE_OF_CHAIN } else { IN_USE };
            // A clock that is ahead is not long ago.
            let recent = used.elapsed().map_or(true, |since| since < limit);
            let needed = own && (!settled || mine.contains(&name));
            if !recent && !needed && remove(&self.folder, &name).is_ok() {
                total -= bytes;
            }
        }
        fits(total)
    }
}

/// An entry that is there.
pub(super) struct Found {
    shard: Arc<Shard>,
    place: Place,
}

impl Found {
    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        self.place.record.length as usize
    }

    /// The entry where it lies, not checked. Where it cannot be looked at there, it is to be read.
    pub(super) fn view(&self) -> Option<View> {
        let record = &self.place.record;
        let range = usize::try_from(record.offset).ok()?..usize::try_from(record.end()).ok()?;
        let view = self.shard.mapped()?.view(range)?;
        self.shard.touch();
        Some(view)
    }

    /// Its check, while its bytes are used.
    pub(super) fn checking<'a>(&self, bytes: &'a [u8]) -> Checking<'a> {
        Checking::new(self.place.record.key, bytes)
    }

    /// Whether what was looked at of a view, or a copy of it, is what was written. Where it is not, all of the shard is read
    /// from here on, which tells what is damaged.
    pub(super) fn is(&self, check: u64, view: &View) -> bool {
        let whole = check == self.place.record.check && view.is_whole();
        if !whole {
            self.shard.doubtful.store(true, Relaxed);
        }
        whole
    }
}

impl Shard {
    fn open(folder: &Path, name: &str, chain: &Chain, stays_open: bool) -> Result<Self, Unusable> {
        let (_, _, head) = shard::open(folder, name)?;
        if head.chain != chain.hash || shard::name(chain, head.shard) != name {
            return Err(Unusable::Damaged("its index is another's"));
        }
        let [index, data] = paths(folder, name);
        let name = name.to_owned();
        let (open, mapped, doubtful) = (OnceLock::new(), OnceLock::new(), AtomicBool::new(false));
        let (seen, touched) = (Mutex::default(), Mutex::default());
        Ok(Self { name, head, index, data, open, stays_open, mapped, doubtful, seen, touched })
    }

    fn with_data<T>(&self, with: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        let open = || File::open(&self.data);
        match self.stays_open.then(|| self.open.get_or_init(|| open().ok()).as_ref()).flatten() {
            Some(file) => with(file),
            None => with(&open()?),
        }
    }

    /// Its data in place, as many as a shard has, but for one of a single, larger entry.
    fn mapped(&self) -> Option<&Arc<Mapped>> {
        // SAFETY: what was appended is never written again.
        let map = |data: &File| unsafe { Mapped::new(data, SHARD_BYTES as usize + BEYOND) }.map(Arc::new);
        let map = || self.with_data(|data| Ok(map(data))).ok().flatten();
        self.mapped.get_or_init(map).as_ref().filter(|_| !self.doubtful.load(Relaxed))
    }

    /// Writes down that it was used, now and then. Where nobody may write, nobody takes it away either.
    fn touch(&self) {
        let Ok(mut touched) = self.touched.try_lock() else { return };
        if touched.is_none_or(|last| last.elapsed() > TOUCH_EVERY) {
            *touched = Some(Instant::now());
            // Some systems want a file that may be written for it.
            let index = File::options().write(true).open(&self.index);
            let _ = index.and_then(|index| index.set_modified(SystemTime::now()));
        }
    }
}

/// The names of the shards in a folder, the oldest first; also of those that were begun and have one file alone.
pub(super) fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let name = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let name = name.strip_suffix(".index").or_else(|| name.strip_suffix(".data"))?;
        let is_one = name.len() == 49 && name.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        (is_one && name.starts_with(prefix)).then(|| name.to_owned())
    };
    let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
    names.sort_by(|a, b| a[17..].cmp(&b[17..]));
    names.dedup();
    names
}

/// When a shard was last written or read.
pub(super) fn used(folder: &Path, name: &str) -> SystemTime {
    let times = paths(folder, name).into_iter().filter_map(|path| fs::metadata(path).ok()?.modified().ok());
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Takes a shard away: the index first, without which nobody looks for the data.
pub(super) fn remove(folder: &Path, name: &str) -> io::Result<()> {
    for path in paths(folder, name) {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::DType;

    #[test]
    fn what_two_have_made_at_once_is_kept_once() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let shards = Shards::open(folder.path(), Chain::of(&[], DType::F32), None, WRITE);
        assert!(shards.append(1, b"one") && shards.append(1, b"one") && shards.append(2, b"two"));
        assert_eq!(super::super::held(folder.path())[0].entries, 2);
        assert_eq!(shards.counts.written_bytes.load(Relaxed), 6);
    }

    /// A process may have a thousand files open, and a cache more shards than that.
    #[test]
    fn a_cache_of_many_shards_keeps_few_of_them_open_and_one_that_is_gone_is_no_damage() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let open = || Shards::open(folder.path(), Chain::of(&[], DType::F32), None, WRITE);
        let many = KEPT_OPEN as Key + 20;
        for key in 0..many {
            assert!(open().append(key, &key.to_le_bytes()));
        }
        let shards = open();
        let read = |key: Key| {
            let mut bytes = [0; 16];
            shards.find(key).is_some_and(|found| shards.read(&found, &mut bytes))
                && bytes == key.to_le_bytes()
        };
        let opened = || {
            let index = shards.index.read().unwrap_or_else(PoisonError::into_inner);
            index.shards.iter().filter(|shard| shard.open.get().is_some_and(Option::is_some)).count()
        };
        assert_eq!(opened(), 0, "what nobody has used");
        assert!((1..many).all(read));
        assert!(opened() <= KEPT_OPEN);
        for name in names(folder.path(), "") {
            let _ = remove(folder.path(), &name);
        }
        assert!(!read(0) && read(1), "one was open");
        assert_eq!((shards.counts.damaged.load(Relaxed), shards.first_trouble()), (0, None));
    }
}
