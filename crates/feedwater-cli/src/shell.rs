//! How is something written so that a shell takes it for one word?

/// Quotes what a shell would take apart.
pub(crate) fn word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        assert_eq!(
            ["data/a-1.wav", "my data", "it's", ""].map(word),
            ["data/a-1.wav", "'my data'", r"'it'\''s'", "''"]
        );
    }
}
