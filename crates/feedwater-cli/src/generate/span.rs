//! How does a person write a range?
//!
//! `15..30`, or one number for a range of one value. Both ends belong to it, because that is what people
//! mean.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::random::Random;

/// A closed range of numbers, `low..high`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Span {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Span {
    pub(crate) fn draw(self, random: &mut Random) -> f64 {
        random.between(self.low, self.high)
    }

    /// An error, with a hint, if the range leaves `legal`.
    pub(crate) fn within(self, legal: Span, flag: &str) -> miette::Result<()> {
        if self.low >= legal.low && self.high <= legal.high {
            return Ok(());
        }
        let near = |value: f64| value.clamp(legal.low, legal.high);
        Err(miette::miette!(
            help = format!("for example {flag} {}", Self { low: near(self.low), high: near(self.high) }),
            "`{flag} {self}` is outside of {legal}"
        ))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            part.trim().parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(|| {
                format!("`{part}` is not a number; write one number or LO..HI, such as 15..30")
            })
        };
        // `..=` is what a Rust programmer may type for the same thing.
        let (low, high) = match text.split_once("..") {
            Some((low, high)) => (number(low)?, number(high.strip_prefix('=').unwrap_or(high))?),
            None => (number(text)?, number(text)?),
        };
        if low > high {
            return Err(format!("the low end is above the high end; write {high}..{low}"));
        }
        Ok(Self { low, high })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if (self.high - self.low).abs() < f64::EPSILON {
            write!(f, "{}", self.low)
        } else {
            write!(f, "{}..{}", self.low, self.high)
        }
    }
}

/// A number, and not what else a float can be.
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|value| value.is_finite());
    number.ok_or_else(|| "a number is wanted, such as 2.5".to_owned())
}

/// A share of something, 0 to 1.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Ok(percent) if percent > 1.0 && percent <= 100.0 => {
            Err(format!("a share is between 0 and 1; for {percent} % write {}", percent / 100.0))
        }
        _ => Err("a share is a number between 0 and 1, such as 0.2".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_read_and_print_the_same() {
        for text in ["15..30", "20", "-5..10", "2.5..4.5"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("5..=9".parse(), Ok(Span { low: 5.0, high: 9.0 }));
    }

    /// It said `--rate 8000..8000` where `--rate` takes one number.
    #[test]
    fn the_example_has_the_form_of_what_was_typed() {
        let legal = Span { low: 5.0, high: 40.0 };
        let hint = |text: &str| {
            let refusal = text.parse::<Span>().unwrap().within(legal, "--wpm").unwrap_err();
            refusal.help().unwrap().to_string()
        };
        assert_eq!(hint("3"), "for example --wpm 5");
        assert_eq!(hint("3..50"), "for example --wpm 5..40");
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write_instead() {
        assert!("30..15".parse::<Span>().unwrap_err().contains("15..30"));
        for text in ["", "..", "a..b", "1..", "nan", "1..inf"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        assert_eq!(parse_number("2.5"), Ok(2.5));
        for text in ["nan", "inf", "-inf", "two"] {
            assert!(parse_number(text).is_err(), "{text}");
        }
        assert!(parse_share("20").unwrap_err().contains("0.2"));
        assert!(parse_share("-0.1").is_err());
    }
}
