//! Tar shards.

use std::fs::{self, File};

use feedwater::error::Place;
use tar::{Builder, EntryType, Header};

use crate::harness::{As, Scratch, every_mutation, every_prefix, fixture, folder, only_bad, skipping};

/// A header with its checksum right, and what follows it, filled up.
fn member(name: &str, kind: EntryType, size: u64, body: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    // The library's own way of setting a name refuses the ones that are wanted here.
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = [header.as_bytes().as_slice(), body].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, body: &[u8]) -> Vec<u8> {
    member(name, EntryType::Regular, body.len() as u64, body)
}

fn good() -> Vec<u8> {
    [file("good.wav", &fixture("pcm_s16le.wav")), file("good.txt", b"words")].concat()
}

fn end() -> Vec<u8> {
    vec![0; 1024]
}

fn shard(parts: &[Vec<u8>]) -> Vec<u8> {
    [good(), parts.concat(), end()].concat()
}

#[track_caller]
fn bad(shard: &[u8], place: &Place, words: &str) {
    let folder = folder(&[("shard.tar", shard)]);
    only_bad(&folder.path().join("shard.tar"), As::Sound, "shard.tar", place, words);
}

/// The first byte of a member that stands right behind the good ones.
fn behind() -> u64 {
    good().len() as u64 + 512
}

#[test]
fn names_that_point_elsewhere() {
    let wav = fixture("pcm_s16le.wav");
    for name in ["../evil.wav", "a/../../evil.wav", "/etc/evil.wav", "..\\evil.wav"] {
        bad(&shard(&[file(name, &wav)]), &Place::Byte(behind()), "points out of the archive");
    }
}

#[test]
fn members_that_are_no_files() {
    for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Block, EntryType::Fifo] {
        let link = member("evil.wav", kind, 0, &[]);
        bad(&shard(&[link]), &Place::Byte(behind()), "member `evil.wav` is a link or a device, not a file");
    }
    // A good file of the same name beside it does not save the sample.
    let both = [member("evil.txt", EntryType::Symlink, 0, &[]), file("evil.wav", &fixture("pcm_s16le.wav"))];
    bad(&shard(&both), &Place::Byte(behind()), "is a link or a device");
}

/// A sparse member's bytes are not where they seem to be. It was read as if they were: what followed it in the shard
/// became its sound.
#[test]
fn members_with_holes() {
    let mut header = Header::new_gnu();
    header.set_path("holes.wav").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(512);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize.copy_from_slice(b"00000010000\0");
    gnu.sparse[0].offset.copy_from_slice(b"00000007000\0");
    gnu.sparse[0].numbytes.copy_from_slice(b"00000001000\0");
    header.set_cksum();
    let sparse = [header.as_bytes().as_slice(), &[1; 512]].concat();
    bad(&shard(&[sparse]), &Place::Byte(behind()), "member `holes.wav` is stored with holes");
    let records = [pax_record("GNU.sparse.major", "1"), pax_record("GNU.sparse.realsize", "4096")].concat();
    let newer = [pax(&records), file("GNUSparseFile.0/holes.wav", b"1\n0\n512\n")].concat();
    let at = good().len() as u64 + 3 * 512;
    bad(&shard(&[newer]), &Place::Byte(at), "is stored with holes");
}

fn pax_record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let length = (1..1000).find(|length| length == &(length.to_string().len() + rest.len())).unwrap();
    format!("{length}{rest}").into_bytes()
}

fn pax(records: &[u8]) -> Vec<u8> {
    member("pax", EntryType::XHeader, records.len() as u64, records)
}

#[test]
fn a_pax_size_that_is_not_the_header_s() {
    let wav = fixture("pcm_s16le.wav");
    // The PAX header counts, as in every tar program: here it is right, and the member's own says 0.
    let right =
        [pax(&pax_record("size", &wav.len().to_string())), member("pax.wav", EntryType::Regular, 0, &wav)]
            .concat();
    let folder = folder(&[("shard.tar", shard(&[right]))]);
    let run = skipping(&folder.path().join("shard.tar"), As::Sound);
    assert_eq!((run.good, run.bad.len()), (vec!["good".to_owned(), "pax".to_owned()], 0));
    // Here it is 8 GiB more than there is.
    let huge = [pax(&pax_record("size", "8589934592")), file("pax.wav", &wav)].concat();
    let at = good().len() as u64 + 3 * 512;
    bad(&shard(&[huge]), &Place::Byte(at), "ends at byte 8589941760, the shard at byte 12288");
    // And here one that wraps around.
    let most = [pax(&pax_record("size", &u64::MAX.to_string())), file("pax.wav", &wav)].concat();
    let folder = crate::harness::folder(&[("shard.tar", shard(&[most]))]);
    let run = skipping(&folder.path().join("shard.tar"), As::Sound);
    assert_eq!((run.good, run.bad.len()), (vec!["good".to_owned()], 1));
    assert!(
        run.bad[0].reason.contains("a member of 18446744073709551615 bytes is not possible"),
        "{:?}",
        run.bad
    );
}

#[test]
fn an_end_in_the_midst_of_a_member() {
    let whole = [good(), file("late.wav", &fixture("pcm_s16le.wav"))].concat();
    let cut = &whole[..whole.len() - 2000];
    bad(cut, &Place::Byte(behind()), &format!("the shard at byte {}", cut.len()));
    // In the midst of a header.
    let cut = &whole[..good().len() + 100];
    bad(cut, &Place::Byte(cut.len() as u64), "the shard ends inside of a header");
    // Between two members: nothing is cut in two, but the end of the archive is not there either.
    let cut = good();
    bad(&cut, &Place::Byte(cut.len() as u64), "the shard has no end mark");
}

#[test]
fn a_header_that_is_damaged() {
    let mut damaged = file("late.wav", &fixture("pcm_s16le.wav"));
    damaged[150] ^= 1;
    let shard = shard(&[damaged]);
    bad(&shard, &Place::Byte(good().len() as u64), "the checksum of a tar header is wrong");
}

#[test]
fn keys_that_come_twice() {
    let wav = fixture("pcm_s16le.wav");
    let again = [file("other.wav", &wav), file("good.wav", &wav)].concat();
    let at = good().len() + again.len() / 2 + 512;
    bad(&shard(&[again]), &Place::Byte(at as u64), "the key `good` stands in the shards twice");
    // Two members of one name, side by side: which is meant?
    let twins = [file("twin.wav", &wav), file("twin.wav", &wav)].concat();
    bad(&shard(&[twins]), &Place::Byte(behind()), "two members of this sample end in `.wav`");
}

#[test]
fn members_that_say_nonsense() {
    let place = |name: &str| Place::Member(name.to_owned());
    let wav = |name: &str| file(name, &fixture("pcm_s16le.wav"));
    let text = [wav("b.wav"), file("b.txt", b"caf\xE9")].concat();
    bad(&shard(&[text]), &place("b.txt"), "not UTF-8");
    let json = [wav("b.wav"), file("b.json", b"{\"text\": ")].concat();
    bad(&shard(&[json]), &place("b.json"), "EOF while parsing");
    let deep = [wav("b.wav"), file("b.json", "[".repeat(100_000).as_bytes())].concat();
    bad(&shard(&[deep]), &place("b.json"), "expected a JSON object");
    let deeper =
        [wav("b.wav"), file("b.json", format!("{{\"a\": {}", "[".repeat(100_000)).as_bytes())].concat();
    bad(&shard(&[deeper]), &place("b.json"), "EOF while parsing a list");
    let class = [wav("b.wav"), file("b.cls", b"dog")].concat();
    bad(&shard(&[class]), &place("b.cls"), "the class `dog` is not a number");
    let sound = [file("b.wav", b"RIFF"), file("b.txt", b"words")].concat();
    bad(&shard(&[sound]), &place("b.wav"), "not WAVE, which is not decoded here (byte 0 of it)");
}

/// A long name is read into memory whole by the library. A shard that is one hole can claim one of gigabytes.
#[test]
fn a_name_of_gigabytes() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let folder = folder(&[("shard.tar", [good(), member("long", kind, 6 << 30, &[])].concat())]);
        let path = folder.path().join("shard.tar");
        let size = fs::metadata(&path).unwrap().len() + (6 << 30) + 4096;
        File::options().write(true).open(&path).unwrap().set_len(size).unwrap();
        let words = "a name or PAX header of 6442450944 bytes is not possible";
        only_bad(&path, As::Sound, "shard.tar", &Place::Byte(behind()), words);
    }
}

fn small() -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut add = |name: &str, body: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_size(body.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, body).unwrap();
    };
    add("a.wav", &fixture("pcm_u8.wav")[..300]);
    add("a.txt", b"one");
    add(&format!("{}b.cls", "long/".repeat(40)), b"7");
    add("c.json", b"{\"text\": \"three\"}");
    builder.into_inner().unwrap()
}

#[test]
fn every_truncation() {
    let whole = small();
    let scratch = Scratch::new("shard.tar");
    let all = scratch.try_dataset(&whole);
    assert_eq!(all, (3, 0));
    let marked = whole.len() - 1024;
    every_prefix(
        &whole,
        |bytes| scratch.try_dataset(bytes) == all,
        |length, good| {
            assert!(!good || length > marked, "cut to {length} bytes nothing was missed");
        },
    );
}

#[test]
fn mutations() {
    let whole = small();
    let scratch = Scratch::new("shard.tar");
    every_mutation(&whole, 2000, |bytes| scratch.try_dataset(bytes).0 > 0);
    // With the checksums of the headers right again, what they say is reached.
    every_mutation(&whole, 4000, |bytes| {
        let mut bytes = bytes.to_vec();
        for block in bytes.as_chunks_mut::<512>().0 {
            if block[257..].starts_with(b"ustar") {
                block[148..156].fill(b' ');
                let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        scratch.try_dataset(&bytes).0 > 0
    });
}
