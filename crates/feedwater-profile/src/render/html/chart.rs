//! What every chart of the page has: a title that says what it shows, how to read it, the picture, and the same as a table.

use std::fmt::Write as _;

use super::svg::{Svg, escaped, shown};

/// A picture across the page.
pub(super) const WIDE: f64 = 1000.0;
/// A picture across half the page, or a telephone.
pub(super) const HALF: f64 = 480.0;

/// A chart.
pub(super) struct Chart {
    pub(super) id: &'static str,
    pub(super) title: String,
    pub(super) how: String,
    /// What is to be seen, for those who do not see it.
    pub(super) shows: String,
    /// One picture for all widths, or a wide and a narrow one; none where the record does not say enough.
    pub(super) pictures: Vec<Svg>,
    /// What the fillings mean.
    pub(super) legend: Vec<(&'static str, String)>,
    /// What is said below the picture, always to be seen.
    pub(super) below: Option<Table>,
    /// The picture's figures, to unfold.
    pub(super) table: Option<Table>,
}

impl Chart {
    pub(super) fn new(id: &'static str, title: impl Into<String>, how: impl Into<String>) -> Self {
        Self {
            id,
            title: title.into(),
            how: how.into(),
            shows: String::new(),
            pictures: Vec::new(),
            legend: Vec::new(),
            below: None,
            table: None,
        }
    }

    /// A chart that cannot be drawn, and why.
    pub(super) fn missing(id: &'static str, title: &str, why: &str) -> Self {
        Self { shows: why.to_owned(), ..Self::new(id, title, "") }
    }

    pub(super) fn render(self) -> String {
        let (id, title) = (self.id, escaped(&self.title));
        let missing = if self.pictures.is_empty() { " missing" } else { "" };
        let mut out = format!(r#"<section class="card{missing}" id="{id}"><h2>{title}</h2>"#);
        if self.pictures.is_empty() {
            let _ = write!(out, r#"<p class="how">{}</p></section>"#, escaped(&self.shows));
            return out;
        }
        let _ = write!(out, r#"<p class="how"><b>How to read:</b> {}</p>"#, escaped(&self.how));
        let classes: &[&str] = if self.pictures.len() == 1 { &["half"] } else { &["wide", "narrow"] };
        for (class, picture) in classes.iter().zip(self.pictures) {
            out += &picture.finish(&format!("{id}-{class}"), class, &self.title, &self.shows);
        }
        if !self.legend.is_empty() {
            out += r#"<ul class="legend">"#;
            for (class, says) in self.legend {
                let mut sample = format!(r#"<rect class="{class}" width="14" height="14" rx="2"/>"#);
                for pattern in ["hatch", "dots"].into_iter().filter(|pattern| class == of_pattern(pattern)) {
                    let _ = write!(sample, r#"<rect class="{pattern}" width="14" height="14"/>"#);
                }
                let _ = write!(
                    out,
                    r#"<li><svg viewBox="0 0 14 14" aria-hidden="true">{sample}</svg>{}</li>"#,
                    escaped(&says)
                );
            }
            out += "</ul>";
        }
        if let Some(table) = self.below {
            out += &table.render();
        }
        if let Some(table) = self.table {
            let _ =
                write!(out, "<details><summary>The figures as a table</summary>{}</details>", table.render());
        }
        out + "</section>"
    }
}

/// Which filling has which pattern over it, so that it is told by more than its colour.
fn of_pattern(pattern: &str) -> &'static str {
    if pattern == "hatch" { "f-wait" } else { "f-copy" }
}

/// The pattern over a filling.
pub(super) fn pattern(class: &str) -> Option<&'static str> {
    match class {
        "f-wait" => Some("hatch"),
        "f-copy" => Some("dots"),
        _ => None,
    }
}

/// A table. Columns whose head begins with `#` are figures.
pub(super) struct Table {
    pub(super) head: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn render(&self) -> String {
        let figures: Vec<bool> = self.head.iter().map(|head| head.starts_with('#')).collect();
        let class = |column: usize| if figures.get(column) == Some(&true) { r#" class="n""# } else { "" };
        let mut out = r#"<div class="scroll"><table><thead><tr>"#.to_owned();
        for (column, head) in self.head.iter().enumerate() {
            let _ = write!(
                out,
                r#"<th scope="col"{}>{}</th>"#,
                class(column),
                escaped(head.trim_start_matches('#'))
            );
        }
        out += "</tr></thead><tbody>";
        for row in &self.rows {
            out += "<tr>";
            for (column, cell) in row.iter().enumerate() {
                let _ = write!(out, "<td{}>{}</td>", class(column), shown(cell, 160));
            }
            out += "</tr>";
        }
        out + "</tbody></table></div>"
    }
}
