//! Which words are there?
//!
//! Several hundred common English ones, each list roughly in order of frequency because words are drawn from
//! it by Zipf's law, and an endless supply of made-up ones, built from onsets, vowels, codas and suffixes. A
//! tokenizer knows the first by heart and must cut the second into pieces; real text makes it do both.

use super::random::{Purpose, Random};

#[rustfmt::skip]
pub(crate) const NOUNS: &[&str] = &[
    "time", "year", "person", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "government", "number", "night", "point", "home",
    "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book",
    "eye", "job", "word", "business", "issue", "side", "kind", "head", "house", "service", "friend",
    "father", "power", "hour", "game", "line", "end", "member", "law", "car", "city", "community", "name",
    "president", "team", "minute", "idea", "body", "information", "back", "parent", "face", "level",
    "office", "door", "health", "reader", "art", "war", "history", "party", "result", "change", "morning",
    "reason", "research", "girl", "guy", "moment", "air", "teacher", "force", "education", "foot", "boy",
    "age", "policy", "process", "music", "market", "sense", "nation", "plan", "college", "interest",
    "death", "experience", "effect", "use", "class", "control", "care", "field", "development", "role",
    "effort", "rate", "heart", "drug", "show", "leader", "light", "voice", "wife", "police", "mind",
    "price", "report", "decision", "son", "view", "relationship", "town", "road", "arm", "difference",
    "value", "building", "action", "model", "season", "society", "tax", "director", "position", "player",
    "record", "paper", "space", "ground", "form", "event", "official", "matter", "center", "couple", "site",
    "project", "activity", "star", "table", "need", "court", "oil", "situation", "cost", "industry",
    "figure", "street", "image", "phone", "data", "picture", "practice", "piece", "land", "product",
    "doctor", "wall", "patient", "worker", "news", "test", "movie", "north", "love", "support",
    "technology", "step", "baby", "computer", "type", "attention", "film", "tree", "source", "organization",
    "hair", "window", "culture", "chance", "brother", "energy", "period", "course", "summer", "plant",
    "opportunity", "letter", "condition", "choice", "rule", "daughter", "south", "husband", "floor",
    "campaign", "material", "population", "economy", "hospital", "church", "risk", "fire", "future", "bank",
    "west", "sport", "board", "subject", "officer", "rest", "behavior", "performance", "top", "goal",
    "second", "bed", "order", "author", "blood", "agency", "nature", "color", "store", "sound", "movement",
    "page", "race", "concern", "series", "language", "response", "animal", "factor", "decade", "article",
    "east", "artist", "scene", "stock", "career", "treatment", "approach", "size", "dog", "fund", "sign",
    "thought", "list", "quality", "pressure", "answer", "resource", "meeting", "disease", "success", "cup",
    "amount", "ability", "staff", "character", "growth", "loss", "degree", "attack", "region", "television",
    "box", "training", "trade", "deal", "election", "feeling", "standard", "bill", "message", "analysis",
    "benefit", "lawyer", "section", "glass", "skill", "sister", "professor", "operation", "crime", "stage",
    "authority", "design", "sort", "knowledge", "gun", "station", "strategy", "truth", "song", "example",
    "environment", "leg", "dark", "river", "garden", "engine", "island", "bridge", "kitchen", "machine",
    "pipeline", "signal", "boiler",
];

/// Base form and past.
#[rustfmt::skip]
pub(crate) const VERBS: &[(&str, &str)] = &[
    ("have", "had"), ("say", "said"), ("make", "made"), ("go", "went"), ("take", "took"), ("know", "knew"),
    ("see", "saw"), ("get", "got"), ("want", "wanted"), ("find", "found"), ("give", "gave"),
    ("tell", "told"), ("use", "used"), ("need", "needed"), ("call", "called"), ("ask", "asked"),
    ("feel", "felt"), ("leave", "left"), ("put", "put"), ("keep", "kept"), ("let", "let"),
    ("help", "helped"), ("show", "showed"), ("hear", "heard"), ("play", "played"), ("run", "ran"),
    ("move", "moved"), ("believe", "believed"), ("bring", "brought"), ("write", "wrote"),
    ("provide", "provided"), ("lose", "lost"), ("pay", "paid"), ("meet", "met"), ("include", "included"),
    ("continue", "continued"), ("set", "set"), ("learn", "learned"), ("change", "changed"), ("lead", "led"),
    ("understand", "understood"), ("watch", "watched"), ("follow", "followed"), ("create", "created"),
    ("read", "read"), ("allow", "allowed"), ("add", "added"), ("spend", "spent"), ("open", "opened"),
    ("win", "won"), ("offer", "offered"), ("remember", "remembered"), ("love", "loved"),
    ("consider", "considered"), ("buy", "bought"), ("send", "sent"), ("expect", "expected"),
    ("build", "built"), ("reach", "reached"), ("kill", "killed"), ("remain", "remained"),
    ("suggest", "suggested"), ("raise", "raised"), ("pass", "passed"), ("sell", "sold"),
    ("require", "required"), ("report", "reported"), ("decide", "decided"), ("pull", "pulled"),
    ("carry", "carried"), ("measure", "measured"), ("repair", "repaired"), ("study", "studied"),
    ("describe", "described"), ("choose", "chose"), ("cause", "caused"), ("draw", "drew"), ("hold", "held"),
    ("break", "broke"), ("support", "supported"), ("produce", "produced"), ("eat", "ate"),
    ("cover", "covered"), ("catch", "caught"), ("share", "shared"), ("wear", "wore"), ("teach", "taught"),
    ("explain", "explained"),
];

#[rustfmt::skip]
pub(crate) const ADJECTIVES: &[&str] = &[
    "other", "new", "good", "high", "old", "great", "big", "small", "large", "young", "different", "long",
    "little", "important", "political", "bad", "white", "real", "best", "social", "only", "public", "sure",
    "low", "early", "able", "human", "local", "late", "hard", "major", "better", "economic", "strong",
    "possible", "whole", "free", "military", "true", "federal", "international", "full", "special", "easy",
    "clear", "recent", "certain", "personal", "open", "red", "difficult", "available", "likely", "short",
    "single", "medical", "current", "wrong", "private", "past", "foreign", "fine", "common", "poor",
    "natural", "significant", "similar", "hot", "dead", "central", "happy", "serious", "ready", "simple",
    "left", "physical", "general", "environmental", "financial", "blue", "democratic", "dark", "various",
    "entire", "close", "legal", "religious", "cold", "final", "main", "green", "nice", "huge", "popular",
    "traditional", "cultural", "quiet", "uneven", "well-known", "half-finished",
];

#[rustfmt::skip]
pub(crate) const ADVERBS: &[&str] = &[
    "also", "then", "now", "only", "even", "still", "never", "again", "however", "often", "really",
    "always", "already", "together", "later", "once", "probably", "perhaps", "quickly", "finally",
    "usually", "especially", "recently", "certainly", "clearly", "slowly", "nearly", "suddenly", "simply",
    "quietly", "carefully", "eventually", "directly", "exactly", "generally", "meanwhile", "unfortunately",
    "otherwise", "elsewhere", "afterwards",
];

#[rustfmt::skip]
pub(crate) const PREPOSITIONS: &[&str] = &[
    "of", "in", "to", "for", "with", "on", "at", "from", "by", "about", "into", "through", "after", "over",
    "between", "without", "before", "under", "around", "among", "during", "against", "across", "behind",
    "near", "beyond",
];

pub(crate) const DETERMINERS: &[&str] = &[
    "the", "a", "the", "this", "his", "their", "her", "our", "my", "its", "that", "every", "another", "each",
    "no",
];

pub(crate) const PRONOUNS: &[&str] = &["he", "it", "they", "she", "we", "you", "I", "somebody", "everyone"];

pub(crate) const CONJUNCTIONS: &[&str] =
    &["and", "but", "because", "so", "while", "when", "if", "although", "since", "until", "or", "whereas"];

#[rustfmt::skip]
pub(crate) const GIVEN_NAMES: &[&str] = &[
    "James", "Mary", "John", "Anna", "Robert", "Maria", "Michael", "Linda", "David", "Sarah", "Thomas",
    "Fatima", "Daniel", "Yuki", "Ahmed", "Elena", "José", "Zoë", "Chloé", "Björn", "Søren", "Łukasz",
    "Nuñez", "Mehmet", "Priya", "Wei", "Olga", "François", "Jürgen", "Siân",
];

/// Words that English borrowed with their accents.
pub(crate) const LOANS: &[&str] = &[
    "café",
    "naïve",
    "résumé",
    "façade",
    "jalapeño",
    "über",
    "fiancée",
    "crème brûlée",
    "smörgåsbord",
    "cliché",
    "piñata",
    "déjà vu",
    "São Paulo",
    "Zürich",
    "Kraków",
    "Ångström",
];

/// Short phrases in other scripts, as they are quoted in English text.
pub(crate) const OTHER_SCRIPTS: &[&str] = &[
    "東京",
    "你好",
    "机器学习",
    "ありがとう",
    "数据",
    "한국어",
    "서울",
    "Москва",
    "спасибо",
    "Ελλάδα",
    "مرحبا",
    "שלום",
    "नमस्ते",
    "こんにちは世界",
    "北京大学",
];

pub(crate) const EMOJI: &[&str] = &["🙂", "😂", "👍", "🚀", "❤️", "🎉", "👩‍🔬", "🇫🇮", "✅", "☕", "🤷🏽"];

/// How many made-up words there are.
const COINED: usize = 40_000;

/// A made-up word, the same for the same rank and seed. Low ranks come up often, so these words repeat as
/// names and terms of a subject do.
pub(crate) fn coined(seed: u64, random: &mut Random) -> String {
    const ONSETS: &[&str] = &[
        "b", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h", "j", "k", "l",
        "m", "n", "p", "pl", "pr", "qu", "r", "s", "sc", "sh", "sl", "sp", "st", "str", "t", "th", "tr", "v",
        "w", "z", "",
    ];
    const MIDDLES: &[&str] =
        &["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "v", "nd", "st", "rt", "mp", "ll"];
    const VOWELS: &[&str] = &["a", "e", "i", "o", "u", "a", "e", "i", "o", "ea", "ai", "oo", "ou", "y"];
    const CODAS: &[&str] =
        &["n", "r", "l", "s", "t", "m", "nd", "st", "ck", "rm", "nt", "x", "lt", "d", "p", "sh"];
    const SUFFIXES: &[&str] = &[
        "", "", "", "er", "ing", "ed", "s", "ation", "ness", "ity", "ment", "able", "ous", "al", "ist",
        "ism", "ize", "ology", "ful", "less", "ive", "ographic",
    ];
    const HEADS: &[&str] =
        &["", "", "", "", "", "", "", "", "", "", "re", "un", "inter", "sub", "over", "micro", "anti", "pre"];
    let rank = random.zipf(COINED);
    let mut random = Random::keyed(seed, Purpose::Word, rank as u64);
    let mut word = random.pick(HEADS).to_owned();
    // Frequent words are short: Zipf again.
    for _ in 0..usize::from(rank > 40) + random.below(2) {
        word += random.pick(if word.is_empty() { ONSETS } else { MIDDLES });
        word += random.pick(VOWELS);
    }
    word += random.pick(if word.is_empty() { ONSETS } else { MIDDLES });
    word += random.pick(VOWELS);
    word += random.pick(CODAS);
    word + random.pick(SUFFIXES)
}

/// A noun in the plural, or a verb with the s of the third person.
pub(crate) fn with_s(word: &str) -> String {
    match word {
        "man" | "woman" => return word.replace("an", "en"),
        "child" => return "children".to_owned(),
        "person" => return "people".to_owned(),
        "foot" => return "feet".to_owned(),
        "life" | "wife" => return word.replace('f', "v") + "s",
        "have" => return "has".to_owned(),
        "people" | "police" | "news" | "series" | "data" | "information" => return word.to_owned(),
        _ => {}
    }
    let before = word.chars().rev().nth(1).unwrap_or('a');
    if word.ends_with('y') && !"aeiou".contains(before) {
        format!("{}ies", &word[..word.len() - 1])
    } else if ["s", "x", "ch", "sh", "z"].iter().any(|end| word.ends_with(end)) || word == "go" {
        format!("{word}es")
    } else {
        format!("{word}s")
    }
}

/// A verb with -ing.
pub(crate) fn with_ing(verb: &str) -> String {
    let doubled = ["get", "put", "let", "run", "set", "win"];
    match verb.strip_suffix('e') {
        Some(stem) if !verb.ends_with("ee") => format!("{stem}ing"),
        _ if doubled.contains(&verb) => format!("{verb}{}ing", &verb[verb.len() - 1..]),
        _ => format!("{verb}ing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hundred_real_words() {
        let all = NOUNS.len() + VERBS.len() * 2 + ADJECTIVES.len() + ADVERBS.len() + PREPOSITIONS.len();
        assert!(all > 600, "{all}");
    }

    #[test]
    fn inflections() {
        let plural = |words: [&str; 6]| words.map(with_s);
        assert_eq!(
            plural(["city", "day", "box", "child", "have", "watch"]),
            ["cities", "days", "boxes", "children", "has", "watches"]
        );
        assert_eq!(["make", "see", "run", "open"].map(with_ing), ["making", "seeing", "running", "opening"]);
    }

    #[test]
    fn coined_words_are_many_and_some_come_back_often() {
        let mut random = Random::keyed(7, Purpose::Document, 0);
        let mut counts = std::collections::HashMap::new();
        for _ in 0..20_000 {
            *counts.entry(coined(7, &mut random)).or_insert(0) += 1;
        }
        assert!(counts.len() > 5_000, "{}", counts.len());
        assert!(counts.values().max() > Some(&500));
        assert!(counts.keys().all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase())));
    }
}
