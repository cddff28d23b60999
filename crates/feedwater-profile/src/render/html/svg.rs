//! Pictures and words that a browser cannot misunderstand.
//!
//! Whatever comes from a record passes through [`escaped`]: a sample may be called `<script>`.

use std::fmt::Write as _;

/// Text that is only text, whatever it says.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            // What moves a cursor or turns the direction of the text around is shown as what it is: not a letter.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                out.push('\u{fffd}');
            }
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// The beginning and the end of what is too long.
pub(super) fn short(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let half = most / 2;
    let begin: String = text.chars().take(most - half - 1).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{begin}…{end}")
}

/// Both.
pub(super) fn shown(text: &str, most: usize) -> String {
    escaped(&short(text, most))
}

/// A coordinate in as few letters as do.
pub(super) fn at(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A picture under construction.
pub(super) struct Svg {
    body: String,
    pub(super) width: f64,
    height: f64,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    pub(super) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let (x, y, width, height) = (at(x), at(y), at(width.max(0.0)), at(height.max(0.0)));
        let _ =
            write!(self.body, r#"<rect class="{class}" x="{x}" y="{y}" width="{width}" height="{height}"/>"#);
    }

    /// A place that says something when the pointer is over it.
    pub(super) fn hover(&mut self, x: f64, y: f64, width: f64, height: f64, says: &str) {
        let (x, y, width, height, says) = (at(x), at(y), at(width), at(height), escaped(says));
        let _ = write!(
            self.body,
            r#"<rect class="over" x="{x}" y="{y}" width="{width}" height="{height}"><title>{says}</title></rect>"#
        );
    }

    pub(super) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let (x1, y1, x2, y2) = (at(x1), at(y1), at(x2), at(y2));
        let _ = write!(self.body, r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#);
    }

    pub(super) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            let _ = write!(self.body, r#"<path class="{class}" d="{path}"/>"#);
        }
    }

    pub(super) fn circle(&mut self, class: &str, x: f64, y: f64, radius: f64) {
        let (x, y, radius) = (at(x), at(y), at(radius));
        let _ = write!(self.body, r#"<circle class="{class}" cx="{x}" cy="{y}" r="{radius}"/>"#);
    }

    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let (x, y, text) = (at(x), at(y), escaped(text));
        let _ = write!(self.body, r#"<text class="{class}" x="{x}" y="{y}">{text}</text>"#);
    }

    /// Horizontal lines of a scale, with their figures.
    pub(super) fn scale(&mut self, left: f64, right: f64, most: f64, y: impl Fn(f64) -> f64) {
        for tick in ticks(most, 4) {
            let class = if tick == 0.0 { "axis" } else { "grid" };
            self.line(class, left, y(tick), right, y(tick));
            self.text("small end", left - 6.0, y(tick) + 4.0, &figure(tick));
        }
    }

    /// The picture, with what it is and what it shows for those who cannot see it.
    pub(super) fn finish(self, id: &str, class: &str, title: &str, shows: &str) -> String {
        let Self { body, width, height } = self;
        let (width, height, title, shows) = (at(width), at(height), escaped(title), escaped(shows));
        format!(
            r#"<svg class="{class}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{id}-t {id}-d"><title id="{id}-t">{title}</title><desc id="{id}-d">{shows}</desc>{body}</svg>"#
        )
    }
}

/// A box of a path.
pub(super) fn push_box(path: &mut String, x: f64, y: f64, width: f64, height: f64) {
    if height > 0.0 && width > 0.0 {
        let _ = write!(path, "M{} {}h{}v{}h-{}z", at(x), at(y), at(width), at(height), at(width));
    }
}

/// Round figures from 0 to at most `most`, about `count` of them.
pub(super) fn ticks(most: f64, count: usize) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0];
    }
    let rough = most / count as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|by| by * power >= rough).unwrap_or(10.0) * power;
    (0..=(most / step + 1e-9) as usize).map(|number| number as f64 * step).collect()
}

/// A figure in as many digits as it needs.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        10_000.0.. => {
            let mut whole = format!("{value:.0}");
            for place in
                (1..whole.len()).rev().filter(|place| (whole.len() - place) % 3 == 0).collect::<Vec<_>>()
            {
                whole.insert(place, '\u{202f}');
            }
            whole
        }
        100.0.. => format!("{value:.0}"),
        10.0.. => at(value),
        0.0 => "0".to_owned(),
        _ => {
            let text = format!("{value:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_record_is_markup() {
        assert_eq!(
            escaped("<b a='1'>&\"\u{1b}[0m\u{202e}"),
            "&lt;b a=&#39;1&#39;&gt;&amp;&quot;\u{fffd}[0m\u{fffd}"
        );
        assert_eq!(short("abcdefghij", 5), "ab…ij");
        assert_eq!(short("äöü", 3), "äöü");
    }

    #[test]
    fn scales_have_round_figures() {
        assert_eq!(ticks(17.0, 4), [0.0, 5.0, 10.0, 15.0]);
        assert_eq!(ticks(0.0, 4), [0.0]);
        assert_eq!(ticks(f64::INFINITY, 4), [0.0]);
        assert_eq!(
            [12_345.0, 123.4, 12.0, 1.25, 0.0].map(figure),
            ["12\u{202f}345", "123", "12", "1.25", "0"]
        );
    }
}
