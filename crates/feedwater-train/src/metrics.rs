//! How wrong is a transcript? Word and character error rates, as jiwer counts them.

/// Errors over what there was to be right, of many transcripts together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorRate {
    /// Units that are wrong, missing or too many.
    pub errors: u64,
    /// Units of the references.
    pub of: u64,
}

impl ErrorRate {
    /// As a share. With nothing to be right, it is 0 where nothing was said, and 1 otherwise.
    pub fn share(self) -> f64 {
        if self.of > 0 { self.errors as f64 / self.of as f64 } else { f64::from(u8::from(self.errors > 0)) }
    }

    /// Counts another transcript.
    pub fn add<T: PartialEq>(&mut self, reference: &[T], heard: &[T]) {
        self.errors += distance(reference, heard) as u64;
        self.of += reference.len() as u64;
    }
}

impl std::ops::AddAssign for ErrorRate {
    fn add_assign(&mut self, more: Self) {
        self.errors += more.errors;
        self.of += more.of;
    }
}

/// Word error rate: words are what blanks separate.
pub fn wer<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> ErrorRate {
    let mut rate = ErrorRate::default();
    for (reference, heard) in pairs {
        let words = |text: &'a str| text.split_whitespace().collect::<Vec<_>>();
        rate.add(&words(reference), &words(heard));
    }
    rate
}

/// Character error rate: blanks count, but none at the ends.
pub fn cer<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> ErrorRate {
    let mut rate = ErrorRate::default();
    for (reference, heard) in pairs {
        let letters = |text: &str| text.trim().chars().collect::<Vec<_>>();
        rate.add(&letters(reference), &letters(heard));
    }
    rate
}

/// The fewest units to change, to put in or to take away.
fn distance<T: PartialEq>(from: &[T], to: &[T]) -> usize {
    let mut costs: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = costs[0];
        costs[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = costs[j + 1];
            costs[j + 1] = changed.min(diagonal + 1).min(costs[j] + 1);
        }
    }
    costs[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_over_all_transcripts() {
        let pairs = [("CQ CQ DE DL1ABC", "CQ CQ DL1ABD"), ("73", "73"), ("", "")];
        assert_eq!(wer(pairs), ErrorRate { errors: 2, of: 5 });
        assert_eq!(cer(pairs), ErrorRate { errors: 4, of: 17 });
        assert!(cer([("", "EE")]).share() > 0.999);
        assert!(cer([("", " ")]).share() < 0.001);
    }
}
