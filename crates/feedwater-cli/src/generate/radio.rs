//! What do people send?
//!
//! Contest exchanges, calls, Q-codes, chats in the usual shorthand, plain prose and practice groups. A model
//! that saw only random letters never learns that `5NN` is likely and `QQQ` is not; one that saw only prose
//! can't copy a callsign. Everything here is in the alphabet of [`super::keying`].

use super::random::Random;

/// Prefixes of real allocations, weighted towards busy ones by repetition. A figure and a suffix follow.
#[rustfmt::skip]
const PREFIXES: &[&str] = &[
    "K", "W", "N", "AA", "KB", "WA", "DL", "DJ", "DK", "DL", "G", "M", "GM", "MW", "EI", "F", "I", "IK",
    "IZ", "EA", "EC", "CT", "ON", "PA", "PE", "OZ", "SM", "SA", "LA", "OH", "ES", "YL", "LY", "SP", "SQ",
    "OK", "OM", "HA", "YO", "LZ", "SV", "9A", "S5", "YU", "UR", "UT", "UA", "RA", "JA", "JH", "JR", "VK",
    "ZL", "VE", "VA", "PY", "LU", "CE", "4X", "ZS", "BD", "HL", "VU", "XE", "HB", "OE", "TA", "TF",
];

#[rustfmt::skip]
const NAMES: &[&str] = &[
    "JOHN", "BOB", "HANS", "PETER", "JIM", "TOM", "MIKE", "DAVE", "ANNA", "KARL", "OLE", "PAUL", "LUIS",
    "MARIA", "YURI", "IVAN", "KEN", "HIRO", "JOSÉ", "RENÉ", "ANDRÉ", "EVA", "LARS", "JEAN", "ROB", "FRED",
    "SUE", "ZOLI",
];

#[rustfmt::skip]
const PLACES: &[&str] = &[
    "BERLIN", "LONDON", "OSLO", "TOKYO", "MADRID", "PRAGUE", "BOSTON", "DENVER", "TEXAS", "OHIO", "PARIS",
    "ROMA", "WIEN", "SYDNEY", "LYON", "TURKU", "GDANSK", "RIGA", "PORTO", "QUITO", "FRANKFURT", "NR DUBLIN",
    "NR SEATTLE", "KYIV", "OSAKA", "ZAGREB", "BUDAPEST", "ST-MALO", "NEW YORK", "SÉTE",
];

#[rustfmt::skip]
const RIGS: &[&str] = &[
    "IC-7300", "K3", "FT-817", "KX2", "TS-590", "HOMEBREW TX", "QMX", "OLD TS-520", "FTDX10",
];
#[rustfmt::skip]
const ANTENNAS: &[&str] = &[
    "DIPOLE", "VERTICAL", "YAGI", "LOOP", "LONG WIRE", "GP", "EFHW", "3 EL BEAM", "DELTA LOOP",
];
#[rustfmt::skip]
const WEATHER: &[&str] = &[
    "SUNNY", "RAIN", "CLOUDY", "SNOW", "FOGGY", "WINDY", "CLEAR", "VY HOT", "COLD",
];

#[rustfmt::skip]
const QUESTIONS: &[&str] = &[
    "QRL?", "QRM?", "QRN?", "QRO?", "QRP?", "QRS?", "QRT?", "QRU?", "QRV?", "QRX?", "QRZ?", "QSB?", "QSL?",
    "QSO?", "QSY?", "QTH?", "QTR?",
];

#[rustfmt::skip]
const STATEMENTS: &[&str] = &[
    "QRM HR", "QRN VY BAD", "QSB ES QRM", "QRP 5 W", "QRS PSE", "QRT NW", "QRU", "QRV ON 40 M", "QRX 5 MIN",
    "QSL TNX", "QSL VIA BURO", "QSY UP 2", "PSE QSY 7030 KHZ", "QTH OK", "QTR 1830 UTC", "NO QSB",
    "QRO 100 W", "PSE AGN",
];

#[rustfmt::skip]
const NOUNS: &[&str] = &[
    "RADIO", "WATER", "RIVER", "HOUSE", "GARDEN", "WINTER", "STATION", "KEY", "MOUNTAIN", "SIGNAL",
    "MORNING", "LETTER", "TRAIN", "MARKET", "QUESTION", "WINDOW", "STORM", "BOAT", "FOREST", "BRIDGE",
    "OPERATOR", "JOURNEY", "VOLTAGE", "ENGINE", "ISLAND", "CLOCK", "CAFÉ", "VILLAGE", "NEIGHBOUR'S DOG",
    "LIGHTHOUSE", "WEATHER", "BOX", "QUARTZ",
];

#[rustfmt::skip]
const ADJECTIVES: &[&str] = &[
    "OLD", "NEW", "QUIET", "SMALL", "LONG", "HEAVY", "GREEN", "WELL-KNOWN", "DISTANT", "BRIGHT", "COLD",
    "SIMPLE", "BROKEN", "JUST", "LAZY", "USEFUL",
];

#[rustfmt::skip]
const VERBS: &[&str] = &[
    "FOUND", "CROSSED", "HEARD", "REPAIRED", "LEFT", "WATCHED", "PAINTED", "KEPT", "REACHED", "FORGOT",
    "BUILT", "JOINED", "SOLD", "FOLLOWED", "MOVED", "FIXED",
];

/// One message, as words.
pub(crate) fn message(random: &mut Random) -> Vec<String> {
    let text = match random.below(100) {
        0..22 => contest(random),
        22..36 => call(random),
        36..60 => chat(random),
        60..70 => codes(random),
        70..86 => prose(random),
        86..92 => formal(random),
        _ => groups(random),
    };
    text.split_whitespace().map(str::to_owned).collect()
}

/// Words short enough to fit where nothing else does, longest first.
#[rustfmt::skip]
pub(crate) const SHORT_WORDS: &[&str] = &[
    "QRZ?", "599", "TNX", "73", "TU", "CQ", "DE", "UR", "K", "R", "A", "N", "I", "T", "E",
];

/// A callsign: prefix, figure, one to three letters, sometimes portable or abroad.
pub(crate) fn callsign(random: &mut Random) -> String {
    let mut call = format!("{}{}", random.pick(PREFIXES), random.below(10));
    let letters = match random.below(100) {
        0..6 => 1,
        6..46 => 2,
        _ => 3,
    };
    for _ in 0..letters {
        call.push(letter(random));
    }
    match random.below(40) {
        0 | 1 => call + "/P",
        2 => call + "/M",
        3 => call + "/QRP",
        4 => format!("{}/{call}", random.pick(PREFIXES)),
        5 => format!("{call}/{}", random.below(10)),
        _ => call,
    }
}

fn letter(random: &mut Random) -> char {
    char::from(b'A' + random.below(26) as u8)
}

fn report(random: &mut Random) -> String {
    match random.below(4) {
        0 => "5NN".to_owned(),
        1 => "599".to_owned(),
        _ => format!("{}{}9", 3 + random.below(3), 3 + random.below(7)),
    }
}

/// What contesters exchange: a zone, or a serial number, whose zeros are often sent as T.
fn serial(random: &mut Random) -> String {
    match random.below(3) {
        0 => format!("{:02}", 1 + random.below(40)),
        1 => format!("{:03}", 1 + random.below(2400)),
        _ => format!("{:03}", 1 + random.below(99)).replace('0', "T"),
    }
}

fn contest(random: &mut Random) -> String {
    let (me, you) = (callsign(random), callsign(random));
    let (report, number) = (random.pick(&["5NN", "599"]), serial(random));
    match random.below(6) {
        0 => format!("CQ TEST DE {me} {me} TEST"),
        1 => format!("CQ CQ TEST {me} {me}"),
        2 => format!("{you} {report} {number}"),
        3 => format!("R {report} {number} TU"),
        4 => format!("TU {me} TEST {you} {report} {number} R TU {me}"),
        _ => format!("{you} DE {me} {report} {number} {number} BK NR? NR {number} R TU 73"),
    }
}

fn call(random: &mut Random) -> String {
    let (me, you) = (callsign(random), callsign(random));
    match random.below(6) {
        0 => format!("CQ CQ CQ DE {me} {me} {me} PSE K"),
        1 => format!("CQ DX DE {me} {me} K"),
        2 => format!("{you} {you} DE {me} {me} K"),
        3 => format!(
            "CQ SOTA DE {me} {me} REF {}/{}{}-{:03}",
            random.pick(PREFIXES),
            letter(random),
            letter(random),
            random.below(300)
        ),
        4 => format!(
            "CQ POTA DE {me} {me} {}-{:04} K",
            random.pick(&["US", "DE", "GB", "FI"]),
            random.below(10_000)
        ),
        _ => format!("QRZ? DE {me} <AS> {you} DE {me} K"),
    }
}

fn chat(random: &mut Random) -> String {
    let (me, you, name) = (callsign(random), callsign(random), random.pick(NAMES));
    let (report, place) = (report(random), random.pick(PLACES));
    let greeting = random.pick(&["GM", "GA", "GE", "GD"]);
    match random.below(6) {
        0 => format!(
            "{greeting} DR OM TNX FER CALL = UR RST {report} {report} = NAME {name} {name} = QTH {place} = HW? {you} DE {me} K"
        ),
        1 => format!(
            "R R {greeting} {name} ES TNX FER RPRT = RIG {} ES PWR {} W = ANT {} UP {} M = BK",
            random.pick(RIGS),
            random.pick(&[5, 10, 50, 100, 400]),
            random.pick(ANTENNAS),
            3 + random.below(22)
        ),
        2 => format!(
            "WX HR {} ES TEMP {} C = AGE {} YRS = HAM SINCE {} =",
            random.pick(WEATHER),
            random.below(35),
            14 + random.below(75),
            1955 + random.below(70)
        ),
        3 => format!(
            "FB {name} TNX FER QSO = QSL VIA {} = HPE CUAGN = 73 ES GL + {you} DE {me} <SK>",
            random.pick(&["BURO", "LOTW", "DIRECT"])
        ),
        4 => format!(
            "{you} DE {me} = SOLID CPY <VE> = NAME HR {}X <HH> {name} = UR {report} IN {place} = {} BK",
            &name[..1],
            random.pick(STATEMENTS)
        ),
        _ => format!(
            "VVV <KA> {you} DE {me} = {greeting} OM = UR SIGS {report} WID {} + K",
            random.pick(&["QSB", "QRM", "QRN", "CHIRP"])
        ),
    }
}

fn codes(random: &mut Random) -> String {
    let (question, statement, me) = (random.pick(QUESTIONS), random.pick(STATEMENTS), callsign(random));
    match random.below(3) {
        0 => format!("{question} {question} DE {me}"),
        1 => format!("{question} = {statement} = {} ?", random.pick(STATEMENTS)),
        _ => format!("{statement} {question} {me} K"),
    }
}

fn prose(random: &mut Random) -> String {
    let thing = |random: &mut Random| match random.below(3) {
        0 => format!("THE {}", random.pick(NOUNS)),
        1 => format!("THE {} {}", random.pick(ADJECTIVES), random.pick(NOUNS)),
        _ => format!(
            "{} {}S",
            random.pick(&["SOME", "MANY", "TWO", "FIVE"]),
            random.pick(&["DAY", "BOOK", "ZEBRA", "JOB", "LAMP"])
        ),
    };
    let (who, what, verb) = (random.pick(NAMES), thing(random), random.pick(VERBS));
    let (other, noun) = (thing(random), random.pick(NOUNS));
    match random.below(7) {
        0 => format!("{who} {verb} {what} AND {other}, BUT NOT THE {noun}."),
        1 => format!("WE {verb} {what} AT {:02}:{:02}.", random.below(24), random.below(60)),
        2 => format!("\"{what} IS GONE\", SAID {who}, \"AND {other} TOO.\""),
        3 => format!("{what} (AND {other}) WAS NEAR THE {noun}."),
        4 => format!("WHY DID {who} SAY IT'S {what}? {verb} OR NOT, THE {noun} IS HERE."),
        5 => format!("WRITE TO {who}.{}@{}.ORG: {what} IS READY.", random.pick(NAMES), random.pick(PREFIXES))
            .replace('É', "E"),
        _ => format!(
            "{other} {verb} {what} FOR {}/{} OF {}.{} MILES.",
            1 + random.below(8),
            2 + random.below(7),
            random.below(100),
            random.below(10)
        ),
    }
}

/// A telegram's head: number, precedence, station, word count, place, time, date.
fn formal(random: &mut Random) -> String {
    format!(
        "NR {} R {} {} {} {:02}{:02}Z {} = {} {} =",
        1 + random.below(999),
        callsign(random),
        3 + random.below(40),
        random.pick(PLACES),
        random.below(24),
        random.below(60),
        1 + random.below(28),
        random.pick(STATEMENTS),
        random.pick(NOUNS),
    )
}

/// Practice groups of five.
fn groups(random: &mut Random) -> String {
    const MIXED: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789?/=+.,";
    const LETTERS: usize = 26;
    let (first, last) = match random.below(3) {
        0 => (0, LETTERS),
        1 => (LETTERS, LETTERS + 10),
        _ => (0, MIXED.len()),
    };
    let count = 5 * (3 + random.below(5));
    let mut text = String::with_capacity(count * 2);
    for number in 0..count {
        if number > 0 && number % 5 == 0 {
            text.push(' ');
        }
        text.push(char::from(MIXED[first + random.below(last - first)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::keying::{ALPHABET, signs};
    use crate::generate::random::Purpose;

    #[test]
    fn every_sign_can_be_sent_and_every_sign_is_used() {
        let mut random = Random::keyed(7, Purpose::Clip, 0);
        let mut used = std::collections::BTreeSet::new();
        let short = SHORT_WORDS.iter().map(|word| (*word).to_owned());
        for word in (0..20_000).flat_map(|_| message(&mut random)).chain(short) {
            let codes = signs(&word).unwrap_or_else(|| panic!("`{word}` is not in the alphabet"));
            used.extend(codes);
        }
        let missing: Vec<_> = ALPHABET.iter().filter(|(_, code)| !used.contains(code)).collect();
        assert!(missing.is_empty(), "never sent: {missing:?}");
    }

    #[test]
    fn callsigns_have_a_figure_between_prefix_and_suffix() {
        let mut random = Random::keyed(7, Purpose::Clip, 1);
        for _ in 0..5_000 {
            let call = callsign(&mut random);
            let base = call
                .split('/')
                .find(|part| part.len() >= 3 && part.bytes().any(|b| b.is_ascii_digit()))
                .unwrap();
            let figure = base.rfind(|c: char| c.is_ascii_digit()).unwrap_or_else(|| panic!("{call}"));
            let suffix = &base[figure + 1..];
            assert!(
                (1..=3).contains(&suffix.len()) && suffix.bytes().all(|b| b.is_ascii_uppercase()),
                "{call}"
            );
            assert!((1..=2).contains(&figure) && PREFIXES.contains(&&base[..figure]), "{call}");
        }
    }
}
