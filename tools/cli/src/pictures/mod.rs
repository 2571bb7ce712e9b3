//! The pages that `--report` writes: what commands found, as pictures.

mod advice;
mod comparison;
mod experiment;
mod fleet;
mod heat;
mod life;
mod replay;

pub(crate) use advice::advice;
pub(crate) use comparison::comparison;
pub(crate) use experiment::experiment;
pub(crate) use fleet::fleet;
pub(crate) use replay::replay;

use crate::failure::Failure;
use crate::output::{command_line, say_json};
use quire_output::WholeFile;
use quire_report::{Cell, Column, Page, Section, Unit, page_file};
use quire_trace::format::{HostSettings, TraceHeader};
use std::path::Path;

/// A page in progress, if there is to be one. Its target is checked before the work begins.
pub(crate) struct ReportPage {
    place: Option<WholeFile>,
    page: Page,
}

impl ReportPage {
    /// A page at `path`, about what `command` found.
    pub(crate) fn new(path: Option<&Path>, command: &str) -> Result<Self, Failure> {
        let place = path.map(page_file).transpose()?;
        Ok(Self { place, page: Page { title: command.to_owned(), sections: Vec::new() } })
    }

    /// Whether there is to be a page.
    pub(crate) fn is_wanted(&self) -> bool {
        self.place.is_some()
    }

    /// Adds what a section is made of, and prints the numbers of its pictures if those of the command were
    /// printed.
    pub(crate) fn add(&mut self, section: Section, as_json: bool) {
        if as_json {
            section.pictures.iter().for_each(|picture| say_json(picture.object()));
        }
        self.page.sections.push(section);
    }

    /// Writes the page.
    pub(crate) fn write(self) -> Result<(), Failure> {
        match self.place {
            Some(place) => Ok(place.write(self.page.html().as_bytes())?),
            None => Ok(()),
        }
    }
}

/// A column of words, and columns of numbers of one unit.
fn columns(words: &str, numbers: &[&str], unit: &Unit) -> Vec<Column> {
    let numbers = numbers.iter().map(|name| Column::new(*name, unit.clone()));
    std::iter::once(Column::new(words, Unit::Text)).chain(numbers).collect()
}

/// A row of words and numbers.
fn row(words: &str, numbers: impl IntoIterator<Item = Option<f64>>) -> Vec<Cell> {
    std::iter::once(Cell::from(words)).chain(numbers.into_iter().map(Cell::from)).collect()
}

/// Where and how a recording was made.
fn provenance(header: &TraceHeader, lost: u64, differences: u64) -> Vec<(String, String)> {
    let huge = match &header.settings {
        None => "not recorded".to_owned(),
        Some(settings) => huge_pages(settings),
    };
    [
        ("Recorded program", command_line(&header.command)),
        ("Recorded on", utc(header.started)),
        ("Host's kernel", format!("Linux {} ({})", header.kernel, header.machine)),
        ("Host", format!("{} CPUs, {} of RAM", header.cpus, Unit::Bytes.text(header.ram as f64))),
        ("Transparent huge pages", huge),
        ("Page faults from", format!("{}: {}", header.faults.name(), header.faults.exactness())),
        ("Lost page faults and calls", lost.to_string()),
        ("Results that differ from Linux's", differences.to_string()),
        ("Recorder", header.recorder.clone()),
        ("Page made by", concat!("quire ", env!("CARGO_PKG_VERSION")).to_owned()),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into()
}

fn huge_pages(settings: &HostSettings) -> String {
    let enabled = settings.thp_file("enabled").unwrap_or("unknown");
    let off = if settings.thp_turned_off { ", turned off for the program while it was recorded" } else { "" };
    format!("{enabled}{off}")
}

/// Seconds since 1970 as a date, in UTC.
fn utc(seconds: u64) -> String {
    let (days, of_day) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days of eras of 400 years that begin in March (Howard Hinnant's `civil_from_days`).
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) =
        (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59 UTC");
    }
}
